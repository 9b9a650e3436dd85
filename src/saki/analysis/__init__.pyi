from .figures import plot_corrections
from .metrics_file import MetricRows, merge_steps, read_metrics, series
from .report import write_report

__all__ = ["MetricRows", "merge_steps", "plot_corrections", "read_metrics", "series", "write_report"]

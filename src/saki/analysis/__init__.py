"""Analysis of what a run left on disk. Reads files, never trains."""

from saki.analysis.figures import plot_corrections
from saki.analysis.metrics_file import MetricRows, merge_steps, read_metrics, series
from saki.analysis.report import write_report

__all__ = ["MetricRows", "merge_steps", "plot_corrections", "read_metrics", "series", "write_report"]

"""The chart of what a run measured on its evaluation prompts while it trained."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from saki.analysis.figures import Chart, Rows, draw_trend, first_to_last, has_values, panels_of
from saki.analysis.style import BLUE, GREEN

EVALUATION_KL = "eval/kl_to_teacher"
_ACCURACY = "eval/mean_at_"


def evaluation_names(rows: Rows) -> tuple[str, ...]:
    """Names of the metrics to show: graded accuracy where it was logged, and the KL to the teacher."""
    return (*sorted({name for row in rows for name in row if name.startswith(_ACCURACY)}), EVALUATION_KL)


def draw_evaluation(rows: Rows) -> Figure:
    """A panel for each that was logged."""
    names = [name for name in evaluation_names(rows) if has_values(rows, name)]
    figure, panels = panels_of(len(names))
    for axes, name in zip(panels, names, strict=True):
        graded = name.startswith(_ACCURACY)
        draw_trend(axes, rows, name, BLUE if graded else GREEN)
        axes.set_title(_title(name))
        axes.set_ylabel("share right" if graded else "nats per token")
        if graded:
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    return figure


def describe_evaluation(rows: Rows) -> str:
    """First and last value of each."""
    graded = [name for name in evaluation_names(rows) if name.startswith(_ACCURACY)]
    sentences = [first_to_last(rows, name, _title(name), "{:.1%}") for name in graded]
    return " ".join(filter(None, [*sentences, first_to_last(rows, EVALUATION_KL, _title(EVALUATION_KL))]))


def _title(name: str) -> str:
    return f"Mean@{name.removeprefix(_ACCURACY)}" if name.startswith(_ACCURACY) else "KL to the teacher"


EVALUATION_CHART = Chart(
    "evaluation_prompts", "On the evaluation prompts", evaluation_names, draw_evaluation, describe_evaluation
)

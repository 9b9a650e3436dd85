"""Figures in the form that a paper takes: SVG, PDF and PNG, with the numbers drawn as CSV beside them."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from saki.analysis.style import BLUE, GREEN, INK, ORANGE, PURPLE, SKY, VERMILION, figure_context
from saki.files import whole_file, write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE_WIDTH = 6.9
"""Width of a page's text, inches: figures are drawn at the size at which they are printed."""
DPI = 300
FORMATS = ("svg", "pdf", "png")

LINES: tuple[tuple[str, Any, str], ...] = tuple(
    (colour, dash, marker)
    for dash, markers in (("solid", "osD^vPX"), ((0, (4, 1.5)), "sD^vPXo"), ((0, (1.2, 1.2)), "D^vPXos"))
    for colour, marker in zip((BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, INK), markers, strict=True)
)
"""Colour, dash and marker of line after line: no two are told apart by colour alone for those who do not see it."""

BARS = ((BLUE, ""), (ORANGE, "//"), (GREEN, "\\\\"), (PURPLE, ".."), (SKY, "xx"), (VERMILION, "--"))
"""Colour and hatch of group after group of bars."""

_PRINT = MappingProxyType(
    {
        "font.size": 8.0,
        "axes.titlesize": 8.5,
        "axes.labelsize": 8.0,
        "xtick.labelsize": 7.5,
        "ytick.labelsize": 7.5,
        "legend.fontsize": 7.5,
        "lines.linewidth": 1.4,
        "lines.markersize": 4.0,
        "axes.linewidth": 0.7,
        "grid.linewidth": 0.5,
        "figure.constrained_layout.w_pad": 0.06,
        "figure.constrained_layout.h_pad": 0.06,
        "svg.fonttype": "path",  # the same picture where the font is not installed
        "pdf.fonttype": 42,
    }
)
_NO_DATE = MappingProxyType({"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}})


@dataclass(frozen=True)
class Drawing:
    """A figure with the numbers that it shows.

    Attributes:
        name: File name without ending.
        figure: Drawn in :func:`print_context`.
        header: Columns of the numbers.
        rows: One a mark of the figure.
    """

    name: str
    figure: Figure
    header: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


def print_context() -> AbstractContextManager[None]:
    """Context in which figures for print are drawn and saved; the caller's matplotlib settings come back after it."""
    return figure_context(_PRINT)


def publish(folder: Path, drawings: Sequence[Drawing]) -> list[Path]:
    """Write each drawing as ``.svg``, ``.pdf``, ``.png`` and ``.csv``, whole or not at all; equal data, equal bytes.

    Args:
        folder: Where to; made where it is missing.
        drawings: What to write.

    Returns:
        The paths, in the order written.

    Raises:
        DiskFullError: If there is no room.
    """
    written = []
    for drawing in drawings:
        with print_context():
            drawing.figure.draw_without_rendering()
            drawing.figure.set_layout_engine("none")  # laid out once and not again for each form
        for ending in FORMATS:
            path = folder / f"{drawing.name}.{ending}"
            with whole_file(path) as unfinished, print_context():
                drawing.figure.savefig(unfinished, format=ending, dpi=DPI, metadata=_NO_DATE[ending])
            written.append(path)
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(drawing.header)
        writer.writerows(drawing.rows)
        written.append(folder / f"{drawing.name}.csv")
        write_text(written[-1], text.getvalue())
    return written


def panel_title(letter: str, text: str) -> str:
    """Title of a panel, such as ``(a) Gains``."""
    return f"({letter}) {text}"

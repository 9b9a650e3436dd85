"""How figures look: colours that colour-blind readers can tell apart, and SVG that follows the page's theme."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import matplotlib as mpl

from saki.files import whole_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, FAINT, GRID, PAPER = "#1b1f24", "#59626c", "#d5dae0", "#fefefe"
BLUE, ORANGE, GREEN, VERMILION, SKY, PURPLE = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7"
"""The Okabe-Ito palette."""
VERMILION_INK = "#b34e00"
"""Vermilion for text: the palette's own has a contrast of 3.8 on white, and text needs 4.5."""

THEME: Mapping[str, tuple[str, str, str]] = MappingProxyType(
    {
        INK: ("--ink", INK, "#e8eaed"),
        FAINT: ("--faint", FAINT, "#a3acb5"),
        GRID: ("--grid", GRID, "#3a424b"),
        PAPER: ("--paper", PAPER, "#15181c"),
        BLUE: ("--blue", BLUE, "#4aa8e0"),
        ORANGE: ("--orange", ORANGE, ORANGE),
        GREEN: ("--green", GREEN, "#2fc79b"),
        VERMILION: ("--vermilion", VERMILION, "#f0803c"),
        VERMILION_INK: ("--vermilion-ink", VERMILION_INK, "#f0803c"),
        SKY: ("--sky", SKY, "#8fd0f5"),
        PURPLE: ("--purple", PURPLE, "#dd9cc0"),
    }
)
"""Colour as drawn to (CSS variable, value on a light page, value on a dark page)."""

_RC: Mapping[Any, Any] = MappingProxyType(
    {
        "font.family": ["DejaVu Sans", "sans-serif"],
        "font.size": 10.0,
        "text.color": INK,
        "text.parse_math": False,
        "axes.labelcolor": INK,
        "axes.titlesize": 10.5,
        "axes.titlelocation": "left",
        "axes.edgecolor": FAINT,
        "axes.facecolor": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.formatter.use_mathtext": False,
        "axes.unicode_minus": True,
        "grid.color": GRID,
        "grid.linewidth": 0.7,
        "xtick.color": FAINT,
        "ytick.color": FAINT,
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
        "figure.facecolor": PAPER,
        "savefig.facecolor": "auto",
        "legend.frameon": False,
        "legend.fontsize": 9.5,
        "lines.linewidth": 1.8,
        "hatch.linewidth": 0.6,
        "svg.fonttype": "none",
        "svg.hashsalt": "saki",
    }
)

_KEPT = ("backend", "backend_fallback", "interactive")
_INNER_STYLE = re.compile(r"<defs>\s*<style\b[^>]*>[^<]*</style>\s*</defs>")
_STYLE_ATTRIBUTE = re.compile(r'style="[^"]*"')
_ID_REFERENCE = re.compile(r'(\bid="|href="#|url\(#)')


def figure_context(changes: Mapping[Any, Any] | None = None) -> AbstractContextManager[None]:
    """Context in which figures are drawn and saved; the caller's matplotlib settings come back after it.

    Args:
        changes: Settings over those of the project.
    """
    # The library's defaults stand below, so that a user's own settings cannot change a report.
    defaults: dict[Any, Any] = {name: mpl.rcParamsDefault[name] for name in mpl.rcParamsDefault if name not in _KEPT}
    return mpl.rc_context({**defaults, **_RC, **(changes or {})})


def figure_to_svg(figure: Figure, name: str, description: str) -> str:
    """SVG element for a HTML page, coloured through the page's CSS variables.

    Args:
        figure: The figure, drawn in :func:`figure_context`.
        name: Unique in the page; every id within the SVG begins with it.
        description: What the picture shows, for readers that do not see it.

    Returns:
        One ``<svg>`` element without prolog, metadata or anything to fetch.
    """
    buffer = io.StringIO()
    with figure_context():
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(buffer, format="svg", metadata=nothing, transparent=True)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].strip()
    svg = _STYLE_ATTRIBUTE.sub(lambda match: _themed(match.group()), svg)
    svg = _INNER_STYLE.sub("", svg)  # it would hold for the whole page, which has its own
    svg = _ID_REFERENCE.sub(lambda match: match.group() + name + "-", svg)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{_attribute(description)}" ', 1)


def figure_to_png(figure: Figure, path: Path, dpi: int = 160) -> Path:
    """Write a figure as PNG on a light ground, whole or not at all.

    Args:
        figure: The figure.
        path: Where to; its folder is made where it is missing.
        dpi: Dots per inch.

    Returns:
        The path written.
    """
    with whole_file(path) as unfinished, figure_context():
        figure.savefig(unfinished, format="png", dpi=dpi)
    return path


def theme_css() -> str:
    """CSS that declares the variables of :data:`THEME` for light pages, dark pages and print."""
    light = " ".join(f"{variable}: {value};" for variable, value, _ in THEME.values())
    dark = " ".join(f"{variable}: {value};" for variable, _, value in THEME.values())
    return (
        f":root {{ color-scheme: light dark; {light} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"
    )


def _themed(style: str) -> str:
    for colour, (variable, _, _) in THEME.items():
        style = style.replace(colour, f"var({variable})")
    return style


def _attribute(text: str) -> str:
    for char, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")):
        text = text.replace(char, entity)
    return text

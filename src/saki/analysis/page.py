"""The HTML page around a report's sections: escaping, style and layout, nothing fetched and no script."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from saki.analysis.style import theme_css

_CSS = """
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 54rem; padding: 2rem 1.2rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .3rem; }
h2 { font-size: 1.15rem; margin: 2.4rem 0 .6rem; padding-top: .8rem; border-top: 1px solid var(--grid); }
p { margin: .4rem 0; max-width: 46rem; }
.faint, figcaption, .missing { color: var(--faint); font-size: .9rem; }
.missing { border-left: 3px solid var(--grid); padding-left: .7rem; }
figure { margin: .6rem 0 1rem; }
figure svg { width: 100%; height: auto; max-width: 52rem; display: block; }
figure svg * { stroke-linejoin: round; stroke-linecap: butt; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .93rem; }
th, td { padding: .3rem .8rem .3rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--grid); }
td.number, th.number { text-align: right; padding: .3rem .5rem; white-space: nowrap; }
tr.average td, tr.average th { font-weight: 600; border-top: 2px solid var(--faint); }
td small { color: var(--faint); font-weight: 400; display: block; font-size: .78rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1.2rem; margin: .6rem 0; font-size: .95rem; }
dt { color: var(--faint); }
dd { margin: 0; overflow-wrap: anywhere; }
pre, code, .sample { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: .85rem; }
pre { overflow-x: auto; padding: .7rem; border: 1px solid var(--grid); }
.sample { white-space: pre-wrap; overflow-wrap: anywhere; border: 1px solid var(--grid); border-radius: 4px;
  padding: .6rem .8rem; margin: .3rem 0 1.1rem; }
.sample .prompt { color: var(--faint); }
.sample del { color: var(--vermilion-ink); text-decoration: line-through; }
.sample ins { color: var(--blue); text-decoration: underline; font-weight: 700; }
summary { cursor: pointer; }
a { color: var(--blue); }
@media print { body { max-width: none; padding: 0; font-size: 11pt; } figure, tr, .sample { break-inside: avoid; }
  h2 { break-after: avoid; } }
"""

# Enforced by the browser: no script, no request, only the style of this page.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(title: str, lead: str, sections: Sequence[str]) -> str:
    """A whole HTML document.

    Args:
        title: Plain text.
        lead: Plain text below the title.
        sections: Sections as of :func:`section`.
    """
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>
{theme_css()}
{_CSS.strip()}
</style>
</head>
<body>
<header>
<h1>{escape(title)}</h1>
<p class="faint">{escape(lead)}</p>
</header>
<main>
{chr(10).join(sections)}
</main>
</body>
</html>
"""


def section(title: str, *blocks: str) -> str:
    """A section: a plain-text title and blocks of HTML."""
    return f"<section>\n<h2>{escape(title)}</h2>\n" + "\n".join(block for block in blocks if block) + "\n</section>"


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph of plain text; nothing for an empty one."""
    return f"<p{_class(kind)}>{escape(text)}</p>" if text else ""


def missing(text: str) -> str:
    """A paragraph that says what is not there."""
    return paragraph(text, "missing")


def figure_block(svg: str, caption: str) -> str:
    """An SVG element with a plain-text caption."""
    return f"<figure>\n{svg}\n<figcaption>{escape(caption)}</figcaption>\n</figure>"


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """A list of plain-text names and values."""
    return "<dl>\n" + "\n".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in pairs) + "\n</dl>"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of plain text: the first column names the rows, the others hold numbers."""
    top = "".join(f'<th class="number">{escape(text)}</th>' for text in header[1:])
    body = "\n".join(
        f"<tr><th>{escape(first)}</th>" + "".join(f'<td class="number">{escape(text)}</td>' for text in rest) + "</tr>"
        for first, *rest in rows
    )
    return (
        f'<div class="scroll" tabindex="0"><table>\n<thead><tr><th>{escape(header[0])}</th>{top}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def folded(summary: str, block: str) -> str:
    """A block of HTML that opens on demand, under a plain-text summary."""
    return f"<details>\n<summary>{escape(summary)}</summary>\n{block}\n</details>"


def preformatted(text: str) -> str:
    """Plain text as it stands."""
    return f"<pre>{escape(text)}</pre>"


def link(text: str, target: str) -> str:
    """A paragraph with one link to a file beside the page; both plain text."""
    return f'<p class="faint"><a href="{escape(target)}">{escape(text)}</a></p>'


def _class(kind: str) -> str:
    return f' class="{escape(kind)}"' if kind else ""

"""The trace page: template, style, script and data in one file that asks for nothing."""

from __future__ import annotations

import base64
import hashlib
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from urllib.parse import quote

from saki.analysis.style import THEME
from saki.analysis.trace.data import Trace, pack
from saki.analysis.trace.vocabulary import TokenTexts
from saki.files import write_text

TRACE_PAGE = "trace.html"
"""Name of the page in a run folder."""

SCRIPTS = ("payload.js", "tokens.js", "list.js", "strip.js", "laws.js", "inspector.js", "reader.js", "main.js")
"""Parts of the script, in the order in which they use one another."""

# No request, no script or style but those of this page, and no text that a script could take for markup.
_POLICY = (
    "default-src 'none'; script-src '{script}'; style-src '{style}'; base-uri 'none'; form-action 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)


def write_trace(path: Path, trace: Trace, *, title: str, texts: TokenTexts | None) -> Path:
    """Write a trace page, whole or not at all.

    Args:
        path: The HTML file.
        trace: What to show.
        title: Plain text, for example the name of the run.
        texts: Looks up tokens; without it ids are shown, and the page says so.

    Returns:
        The path written.

    Raises:
        DiskFullError: If there is no room.
    """
    write_text(path, trace_page(trace, title, texts))
    return path


def trace_page(trace: Trace, title: str, texts: TokenTexts | None) -> str:
    """The whole HTML document; arguments as of :func:`write_trace`."""
    style = "\n" + theme_rules() + "\n" + _asset("trace.css")
    script = "\n" + "\n".join(["(() => {", '"use strict";', *(_asset(name) for name in SCRIPTS), "})();"]) + "\n"
    return Template(_asset("trace.html")).substitute(
        policy=_POLICY.format(script=_digest(script), style=_digest(style)),
        title=escape(title),
        style=style,
        script=script,
        # Base64 in an element that no browser runs: no token's text can end the element or become markup.
        payload=base64.b64encode(pack(trace, title, texts)).decode(),
    )


def trace_link(file: str, row: int) -> str:
    """Address of one completion in the trace page beside a report.

    Args:
        file: Name of its rollout file.
        row: Its row there.
    """
    return f"{TRACE_PAGE}#{quote(file, safe='')}/{row}"


def theme_rules() -> str:
    """CSS variables of the project's colours: the reader's own theme, unless a button says otherwise."""
    light = " ".join(f"{variable}: {value};" for variable, value, _ in THEME.values())
    dark = " ".join(f"{variable}: {value};" for variable, _, value in THEME.values())
    return (
        f":root {{ color-scheme: light; {light} }}\n"
        f'@media (prefers-color-scheme: dark) {{ :root:not([data-theme="light"]) {{ color-scheme: dark; {dark} }} }}\n'
        f':root[data-theme="dark"] {{ color-scheme: dark; {dark} }}'
    )


def _asset(name: str) -> str:
    return (files("saki.analysis.trace") / "assets" / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

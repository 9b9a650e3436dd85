"""A headless Chromium, where this machine has one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.analysis.trace import made_rollouts as made

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install 'saki[dev-browser]'")
    with playwright.sync_playwright() as driver:
        path = next(filter(None, map(shutil.which, NAMES)), None) or driver.chromium.executable_path
        if not Path(path).is_file():
            pytest.skip(f"needs a Chromium: none of {', '.join(NAMES)} is installed")
        chromium = driver.chromium.launch(executable_path=path, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser):
    """Opens a page file and waits until it is ready; fails on console messages, errors and requests."""
    contexts, complaints = [], []

    def open_it(path: Path, fragment: str = "", **options):
        context = browser.new_context(viewport={"width": 1440, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.on(
            "request", lambda request: None if request.url.startswith(path.as_uri()) else complaints.append(request.url)
        )
        page.goto(path.as_uri() + fragment)
        page.wait_for_selector("body[data-ready]")
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert not complaints


@pytest.fixture(scope="session")
def trace_batches():
    """Three steps of two methods, with every kind of token."""
    mixed = [made.THE, made.CAT, made.SAT, made.STOP_LINE, made.TAB, made.HOSTILE_ID, made.EURO_HEAD, made.EURO_TAIL]
    mixed += [made.ESCAPE, made.OVERRIDE, made.SPACES, made.NUL, made.END]
    plain = [made.THE, made.CAT, made.SAT, made.ON, made.THE, made.MAT, made.END]
    return {
        (1, "saki"): made.batch_of(
            [mixed, plain, plain[:4]],
            corrections={(0, 2): made.HOSTILE_ID, (0, 7): made.EURO_HEAD, (0, 10): made.CAT, (1, 1): made.SPACES},
            finish=["stop", "stop", "length"],
        ),
        (2, "saki"): made.batch_of([plain, plain[1:]], seed=1, corrections={(1, 0): made.OVERRIDE}),
        (2, "trb"): made.batch_of([plain[2:], plain[3:]], seed=2, finish=["nan", "stop"]),
    }


@pytest.fixture(scope="session")
def trace_file(tmp_path_factory, trace_batches):
    """The page of :func:`trace_batches`; samples 0 are right, samples 1 wrong, those of step 2 not known."""
    from saki.analysis.trace import TokenTexts, read_trace, write_trace

    folder = tmp_path_factory.mktemp("trace")
    files = [made.write_step(folder / method, step, batch, method) for (step, method), batch in trace_batches.items()]

    def judge(drawn):
        return [None if drawn.step == 2 else sample == 0 for sample in drawn.sample_indices]

    trace = read_trace(files, judge=judge, notes=[f"A note {made.HOSTILE}"])
    texts = TokenTexts(made.byte_level_tokenizer())
    return write_trace(folder / "trace.html", trace, title=f"Trace {made.HOSTILE}", texts=texts)

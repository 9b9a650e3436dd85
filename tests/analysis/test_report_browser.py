"""The report in headless Chromium: one run, several, and a study, in both themes, on hostile text."""

from __future__ import annotations

import pytest

from saki.analysis import write_report
from saki.analysis.comparison_report import write_comparison_report, write_study_report
from saki.analysis.trace import TokenTexts, read_trace, write_trace
from tests.analysis import made_study
from tests.analysis.trace import made_rollouts as made

pytestmark = pytest.mark.browser
READY = "main > section"
LEAST_CONTRAST = 4.5
"""WCAG 2.1, AA, of text of any size."""

CONTRASTS = """() => {
  const rgb = (text) => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
  const luminance = (colour) => {
    const [r, g, b] = colour.map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = luminance(rgb(getComputedStyle(document.body).backgroundColor));
  const found = {};
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || element.closest("script, style")) continue;
    const style = getComputedStyle(element);
    const colour = element.namespaceURI.endsWith("svg") ? style.fill : style.color;
    const [low, high] = [ground, luminance(rgb(colour))].sort((a, b) => a - b);
    found[`${element.tagName} ${colour}`] = (high + 0.05) / (low + 0.05);
  }
  return found;
}"""


def assert_readable(page):
    """Every text stands out, and nothing is wider than the page."""
    found = page.evaluate(CONTRASTS)
    assert len(found) > 4
    assert {name: value for name, value in found.items() if value < LEAST_CONTRAST} == {}
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.fixture
def hostile_run(run_dir):
    """A run whose rollouts and settings are hostile, with a trace page that decodes them."""
    for path in (run_dir / "rollouts").iterdir():
        path.unlink()
    texts = [made.THE, made.HOSTILE_ID, made.SAT, made.ESCAPE, made.NUL, made.END]
    for step in (1, 2):
        corrections = {(1, 1): made.CAT, (1, 3): made.HOSTILE_ID}
        made.write_step(run_dir, step, made.batch_of([texts, texts, texts[:3]], corrections=corrections, seed=step))
    files = sorted((run_dir / "rollouts").iterdir())
    trace = read_trace(files)
    write_trace(run_dir / "trace.html", trace, title="t", texts=TokenTexts(made.byte_level_tokenizer()))
    write_report(run_dir, decode=made.byte_level_tokenizer().decode)
    return run_dir


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_run_is_readable_in_both_themes_and_hostile_text_does_nothing(open_page, hostile_run, hostile, scheme):
    page = open_page(hostile_run / "report.html", ready=READY, color_scheme=scheme)
    assert page.title() == "Run report: saki"
    assert page.locator("img, script").count() == 0
    assert page.locator("svg").count() == 7
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 24, 28)"
    assert dark == (scheme == "dark")
    assert page.locator(".sample").nth(0).inner_text().count(made.HOSTILE) == 3  # prompt, committed and rejected
    assert page.locator(".sample del").nth(1).inner_text() == made.HOSTILE
    assert not page.is_visible("pre")
    page.click("summary")
    assert page.is_visible("pre")
    assert hostile in page.inner_text("pre")
    page.hover(".sample del >> nth=0")
    assert_readable(page)


def test_a_sample_opens_in_the_trace_page(browser, hostile_run):
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page, complaints = context.new_page(), []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    home = hostile_run.as_uri()
    page.on("request", lambda request: None if request.url.startswith(home) else complaints.append(request.url))
    page.goto((hostile_run / "report.html").as_uri())
    second = page.locator("a").nth(1)
    assert second.get_attribute("href") == "trace.html#step-000002.parquet/1"
    second.click()
    page.wait_for_selector("body[data-ready]")
    assert page.evaluate("decodeURIComponent(location.hash)") == "#step-000002.parquet/1"
    assert page.inner_text("#text del[data-t='3']") == made.HOSTILE
    context.close()
    assert not complaints


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_several_runs_and_a_study_are_readable(open_page, run_dir, tmp_path, hostile, scheme):
    other = tmp_path / "other <b>"
    other.mkdir()
    for name in ("metrics.jsonl", "config.resolved.yaml"):
        (other / name).write_text((run_dir / name).read_text().replace("0.0003", "0.001"))
    path = write_comparison_report([run_dir, other], tmp_path / "c.html")
    page = open_page(path, ready=READY, color_scheme=scheme)
    assert "other <b>" in page.inner_text("h1 + p")
    assert page.locator("b").count() == 0
    assert_readable(page)
    folder = made_study.make_study(tmp_path / "study", hostile=hostile)
    page = open_page(write_study_report(folder, folder / "report.html"), ready=READY, color_scheme=scheme)
    assert hostile in page.inner_text("main")
    assert page.locator("img, script").count() == 0
    assert_readable(page)


def test_a_narrow_screen_scrolls_tables_alone(open_page, tmp_path):
    folder = made_study.make_study(tmp_path / "study")
    page = open_page(write_study_report(folder, folder / "report.html"), ready=READY)
    page.set_viewport_size({"width": 480, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")

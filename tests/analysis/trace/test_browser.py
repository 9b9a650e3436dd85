"""The trace page in headless Chromium, on hostile tokens."""

from __future__ import annotations

import re

import pytest
import torch

from saki.analysis.trace import TokenTexts, read_trace, write_trace
from saki.functional import normalized_log_probs
from saki.methods import get_method
from saki.models import TableLM
from saki.rollout import ResidentEngine, TableDecoder
from saki.types import Prompt, RolloutRequest
from saki.verification.laws import row_laws
from tests.analysis.trace import made_rollouts as made

pytestmark = pytest.mark.browser
FIRST, ROWS = "#rows [role=option]", "#summary"


def shown(page):
    """Number of completions that match."""
    found = re.match(r"([\d,]+)", page.inner_text(ROWS))
    return int(found[1].replace(",", "")) if found else 0


def card(page):
    return page.inner_text("#card")


def law_rows(page):
    """What the card says of each token under p, q and T."""
    return page.evaluate("""() => Object.fromEntries([...document.querySelectorAll("#card .laws tbody tr")].map(
      (row) => [row.cells[0].textContent, [...row.cells].slice(1).map((cell) => cell.textContent)]))""")


def law_logprobs(page):
    """The same in nats, from the titles of the cells."""
    return page.evaluate("""() => [...document.querySelectorAll("#card .laws tbody tr")].map((row) =>
      [...row.cells].slice(1).map((cell) => {
        const found = /^log-probability (\\S+) nats$/.exec(cell.title);
        return found ? Number(found[1]) : cell.title;
      }))""")


def focused_token(page):
    return page.evaluate("document.activeElement.dataset.t ?? null")


def test_hostile_text_is_shown_and_does_nothing(open_page, trace_file):
    page = open_page(trace_file)
    assert page.title() == f"Trace {made.HOSTILE}"
    assert page.inner_text("h1") == f"Trace {made.HOSTILE}"
    assert page.inner_text("#notes") == f"A note {made.HOSTILE}"
    assert page.locator("img").count() == 0
    assert page.inner_text("#text [data-t='5']") == made.HOSTILE
    assert page.inner_text("#text del[data-t='2']") == made.HOSTILE
    page.keyboard.press("j")
    assert made.HOSTILE in page.inner_text("#prompt-text")


def test_the_policy_forbids_markup_from_text_further_scripts_and_requests(browser, trace_file):
    page = browser.new_context().new_page()
    page.goto(trace_file.as_uri())
    page.wait_for_selector("body[data-ready]")
    blocked = []
    page.on("requestfailed", lambda request: blocked.append((request.url, request.failure)))
    assert (
        page.evaluate("() => { try { document.body.innerHTML = '<b>x</b>' } catch (e) { return e.name } }")
        == "TypeError"
    )
    page.evaluate(
        "() => { const s = document.createElement('script'); s.append('window.owned = 1'); document.body.append(s) }"
    )
    assert page.evaluate("() => window.owned") is None
    assert page.evaluate("() => fetch('https://example.org/').then(() => 'done', (error) => error.name)") == "TypeError"
    page.evaluate("() => { document.body.append(Object.assign(new Image(), { src: 'https://example.org/x.png' })) }")
    page.wait_for_timeout(100)
    assert blocked == [("https://example.org/x.png", "csp")]
    page.context.close()


def test_what_would_not_show_is_written_out(open_page, trace_file):
    page = open_page(trace_file)
    texts = page.evaluate("[...document.querySelectorAll('#text [data-t]:not(del)')].map((each) => each.textContent)")
    assert texts[3:5] == [".⏎\n", "⇥\t"]
    assert texts[6:13] == ["‹E2 82›", "‹AC›", "⟨U+001B⟩[31m", "⟨U+202E⟩txet", "  ", "⟨U+0000⟩", "<|end|>"]
    assert page.get_attribute("#text [data-t='12']", "class").startswith("special")
    page.hover("#text span[data-t='6']")
    assert "Part of\t€ with 2 tokens in a row" in card(page)
    page.hover("#text ins[data-t='10']")
    assert "Proposal\t␣cat" in card(page)
    assert "Committed\t␣␣" in card(page)


RADII = {"saki": 0.2, "skd": 0.2, "opd": 0.0}


@pytest.mark.parametrize("method", RADII)
def test_three_tokens_under_three_laws_are_what_enumeration_says(open_page, tmp_path, method):
    """The card of each token of a float32 rollout against p, q and T in float64; what it cannot know it calls so."""
    student, teacher = (TableLM(7, 2, seed=seed, sharpness=2.0, dtype=torch.float32) for seed in (1, 2))
    behavior = get_method(method).behavior
    request = RolloutRequest(
        seed=6,
        max_completion_length=12,
        num_generations=8,
        trust_region_radius=RADII[method],
        behavior=behavior,
        top_k=2 if behavior == "skd" else None,
    )
    batch = ResidentEngine(TableDecoder(student), TableDecoder(teacher), [0]).generate([Prompt(0, (1, 2))], request)
    path = made.write_step(tmp_path, 1, batch, method)
    page = open_page(write_trace(tmp_path / "t.html", read_trace([path]), title="t", texts=None))
    kinds = set()
    for row in range(len(batch)):
        for t, y in enumerate(batch.completion_token_ids(row)):
            page.keyboard.press("ArrowRight")
            prefix = torch.tensor([batch.prompt_token_ids(row) + batch.completion_token_ids(row)[:t]])
            log_p, log_t = (normalized_log_probs(model.logits(prefix)[0, -1:].double()) for model in (student, teacher))
            log_q = row_laws(log_p, log_t, batch.beta[row, t : t + 1].double()).log_q
            z, mode = int(batch.proposal_ids[row, t]), int(log_t.argmax())
            if behavior == "skd":
                inside = log_t >= log_t.topk(2).values[..., -1:]
                log_q = (log_p.exp() * inside + (log_p.exp() * ~inside).sum() * log_t.exp()).log()
            for token, shown in zip((z, y, mode), law_logprobs(page), strict=True):
                expected = [float(law[0, token]) for law in (log_p, log_q, log_t)]
                if token != y and behavior == "student":
                    assert shown[:2] == ["The file does not say."] * 2
                    shown, expected = shown[2:], expected[2:]
                elif token != y and behavior == "skd":
                    assert shown.pop(1) == "The file does not say."
                    del expected[1]
                assert shown == pytest.approx(expected, abs=2e-5)  # six digits of numbers below 10
            kinds.add((z == y, mode == y, mode == z))
        page.keyboard.press("j")
    if behavior == "bridge":
        assert len(kinds) == 5  # three tokens coincide in five ways, and each came up


@pytest.mark.parametrize("position", [0, 2])
def test_the_card_says_what_the_record_says(open_page, trace_file, trace_batches, position):
    page = open_page(trace_file)
    page.hover(f"#text :not(del)[data-t='{position}']")
    text, batch = card(page), trace_batches[1, "saki"]
    assert f"token {position + 1} of 13, not chosen" in text
    assert ("Correction" if position == 2 else "Kept proposal") in text
    assert f"Proposal\t{'the' if position == 0 else made.HOSTILE} id {batch.proposal_ids[0, position]}" in text
    assert f"Committed\t{'the' if position == 0 else '␣sat'} id {batch.completion_ids[0, position]}" in text
    assert f"Teacher's top\t␣mat id {made.MAT}" in text
    for name in ("student_logprobs", "behavior_logprobs", "teacher_logprobs"):
        assert f"{float(getattr(batch, name)[0, position].exp()):.3g}" in text
    for name in ("beta", "kl", "tv", "acceptance_probability"):
        assert f"{float(getattr(batch, name)[0, position]):.4g}" in text
    assert "nats, at most 0.02" in text
    assert "chance of a correction, at most 0.1" in text
    page.hover("h2")
    assert "No token chosen" in card(page)


def test_a_click_keeps_a_token_in_the_card(open_page, trace_file):
    page = open_page(trace_file)
    page.click("#text ins[data-t='2']")
    page.hover("#text span[data-t='0']")
    assert "token 1 of 13, not chosen" in card(page)
    page.hover("h2")
    assert "token 3 of 13\n" in card(page)
    assert page.evaluate("decodeURIComponent(location.hash)") == "#saki/rollouts/step-000001.parquet/0/2"
    page.keyboard.press("Escape")
    assert "No token chosen" in card(page)


def test_values_that_the_file_does_not_have_are_called_so(open_page, tmp_path):
    path = made.write_step(tmp_path, 1, made.batch_of([[1, 2]], scored=False))
    page = open_page(write_trace(tmp_path / "t.html", read_trace([path]), title="t", texts=None))
    assert "Token ids are shown" in page.inner_text("#notes")
    assert page.inner_text("#text") == "1 2 "
    page.click("#text [data-t='1']")
    assert "Committed\t2 the proposal" in card(page)
    assert "Teacher's top\tnot recorded" in card(page)
    assert law_rows(page)["Committed"][2] == law_rows(page)["Proposal"][2] == "unknown"
    assert law_rows(page)["Teacher's top"] == ["unknown"] * 3
    for name in ("method", "finish", "correct"):
        assert page.is_disabled(f"#f-{name}")


def test_skd_is_not_told_as_a_maximal_coupling(open_page, tmp_path):
    path = made.write_step(tmp_path, 1, made.batch_of([[1, 2]]), method="skd")
    page = open_page(
        write_trace(tmp_path / "t.html", read_trace([path]), title="t", texts=None), "#step-000001.parquet/0/1"
    )
    assert "at most the chance of a correction" in card(page)


def test_filters(open_page, trace_file):
    page = open_page(trace_file)
    assert page.inner_text(ROWS) == "7 completions, 5 corrections in 46 tokens (10.87 %)"
    for id_, value, count in (
        ("f-method", "trb", 2),
        ("f-finish", "length", 1),
        ("f-finish", "nan", 1),
        ("f-correct", "true", 2),
        ("f-correct", "false", 1),
        ("f-correct", "null", 4),
        ("f-step-from", "2", 4),
        ("f-step-to", "1", 3),
    ):
        page.select_option(f"#{id_}", value)
        assert shown(page) == count, (id_, value)
        assert page.locator(FIRST).count() == count
        page.click("#f-reset")
        page.locator(ROWS, has_text=re.compile("^7")).wait_for()
    page.fill("#f-min", "1")
    assert shown(page) == 3
    page.fill("#f-max", "1")
    assert shown(page) == 2
    page.select_option("#f-method", "trb")
    assert page.inner_text(ROWS) == "No completion matches; clear a filter or the search."
    page.click("#f-reset")
    page.select_option("#f-order", "corrections")
    counts = [text.split(" / ")[0] for text in page.locator(".row-count").all_inner_texts()]
    assert counts == ["3", "1", "1", "0", "0", "0", "0"]


def test_the_list_has_only_the_rows_in_sight_and_a_new_order_begins_at_its_top(open_page, tmp_path):
    path = made.write_step(tmp_path, 1, made.batch_of([[1]] * 999 + [[1, 2]]))
    page = open_page(write_trace(tmp_path / "t.html", read_trace([path]), title="t", texts=None))
    page.focus("#rows")
    for _ in range(30):
        page.keyboard.press("j")
    assert page.evaluate("document.querySelector('#rows').scrollTop") > 0
    assert page.locator(FIRST).count() < 40
    page.select_option("#f-order", "long")
    assert page.evaluate("document.querySelector('#rows').scrollTop") == 0
    assert page.locator("[aria-posinset='1'] .row-count").inner_text() == "0 / 2"


def test_search(open_page, trace_file):
    page = open_page(trace_file)
    page.keyboard.press("/")
    page.keyboard.type("ONTHE MAT")  # whatever the case, and over the ends of tokens
    page.keyboard.press("Enter")
    assert shown(page) == 5
    assert page.locator("#text .hit").all_inner_texts() == [" on", "the", " mat"]
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.press("Enter")  # the next match is in the next completion that has one
    assert "step 2" in page.inner_text("h2")
    page.fill("#search", "€")
    page.keyboard.press("Enter")
    assert shown(page) == 1
    assert page.locator("#text .hit").all_inner_texts() == ["‹E2 82›", "‹AC›"]
    page.fill("#search", made.HOSTILE[:20])
    page.keyboard.press("Enter")
    assert shown(page) == 4  # one completion and the prompts of three others
    page.fill("#search", "(.*")  # no pattern, only text
    page.keyboard.press("Enter")
    assert shown(page) == 0
    page.keyboard.press("Escape")
    assert shown(page) == 7


def test_keys(open_page, trace_file):
    page = open_page(trace_file)
    seen = []
    for key in ("n", "n", "n", "p", "n", "n", "n", "p", "ArrowRight", "ArrowLeft", "Home", "End"):
        page.keyboard.press(key)
        seen.append((page.inner_text("h2").replace("step ", ""), focused_token(page)))
    one, two = "1 · prompt 0 · sample 0", "1 · prompt 0 · sample 1"
    assert seen == [
        (one, "2"),
        (one, "7"),
        (one, "10"),
        (one, "7"),
        (one, "10"),
        (two, "1"),
        ("2 · prompt 0 · sample 1", "0"),
        (two, "1"),
        (two, "2"),
        (two, "1"),
        (two, "0"),
        (two, "6"),
    ]
    page.keyboard.press("k")
    assert page.inner_text("h2") == "step 1 · prompt 0 · sample 0"
    page.focus("#rows")
    page.keyboard.press("ArrowDown")
    assert page.inner_text("h2") == "step 1 · prompt 0 · sample 1"
    active = page.get_attribute("#rows", "aria-activedescendant")
    assert page.get_attribute(f"#{active}", "aria-selected") == "true"
    page.keyboard.press("r")
    assert page.is_hidden("#text del")
    page.keyboard.press("s")
    assert page.input_value("#shade") == "kl"
    page.keyboard.press("?")
    assert page.is_visible("#help")
    page.keyboard.press("Escape")
    assert page.is_hidden("#help")


def test_a_link_opens_one_completion(open_page, trace_file):
    page = open_page(trace_file, "#trb%2Frollouts%2Fstep-000002.parquet/1/2")
    assert page.inner_text("h2") == "step 2 · prompt 0 · sample 1"
    assert "trb" in page.inner_text("#facts")
    assert focused_token(page) == "2"
    page = open_page(trace_file, "#gone.parquet/7")
    assert "Row 7 of gone.parquet, to which the link leads, is not in this page." in page.inner_text("#notes")


# Colour of text against what lies behind it, as the eye gets it: translucent layers are laid over one another.
CONTRAST = """(selector) => {
  const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const over = (layers) => {
    pen.clearRect(0, 0, 1, 1);
    for (const layer of layers) { pen.fillStyle = layer; pen.fillRect(0, 0, 1, 1); }
    return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const element = document.querySelector(selector);
  const layers = [];
  for (let each = element; each; each = each.parentElement) layers.unshift(getComputedStyle(each).backgroundColor);
  const [a, b] = [light(over(layers)), light(over([...layers, getComputedStyle(element).color]))];
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}"""
READ = (
    "h1",
    "#facts dt",
    "#text span",
    "#text ins",
    "#text del",
    "#legend .s5",
    ".row-preview",
    ".mark.right",
    ".mark.wrong",
)
READ += (
    ".mark.cut",
    "#card .faint",
    "#prompt-text span",
    ".row[aria-selected=true] .row-preview",
    "#theme",
    "#summary",
)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_both_themes(open_page, trace_file, scheme):
    page = open_page(trace_file, color_scheme=scheme)
    page.keyboard.press("n")
    found = {selector: page.evaluate(CONTRAST, selector) for selector in READ}
    assert min(found.values()) >= 4.5, found


def test_the_theme_follows_the_system_until_the_button_says_otherwise(open_page, trace_file):
    page = open_page(trace_file, color_scheme="dark")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert page.inner_text("#theme") == "Theme: light"
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark
    page.emulate_media(color_scheme="light")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == light != dark


@pytest.mark.parametrize("width", [1000, 600])
def test_a_narrow_window_shows_text_and_card(open_page, trace_file, width):
    page = open_page(trace_file)
    page.set_viewport_size({"width": width, "height": 800})
    page.keyboard.press("n")
    assert page.is_visible("#card .is-correction")
    page.wait_for_timeout(50)
    # The chosen token is in sight: nothing of the page lies over it.
    assert page.evaluate("""() => {
      const box = document.querySelector("#text .chosen").getClientRects()[0];
      return document.elementFromPoint(box.x + 3, box.y + box.height / 2).closest(".chosen") !== null;
    }""")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.slow
def test_512_completions_of_1000_tokens_open_in_three_seconds_and_page_smoothly(open_page, tmp_path, record_property):
    batch = made.long_batch(rows=512, length=1000, rate=0.05)
    trace = read_trace([made.write_step(tmp_path, 1, batch)])
    path = write_trace(tmp_path / "t.html", trace, title="t", texts=TokenTexts(made.byte_level_tokenizer()))
    page = open_page(path)
    ready = page.evaluate("performance.getEntriesByName('ready')[0].startTime")
    times = page.evaluate("""async () => {
      const times = [];
      for (let i = 0; i < 40; i++) {
        const begin = performance.now();
        document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "j", bubbles: true }));
        document.body.getBoundingClientRect();
        times.push(performance.now() - begin);
        await new Promise(requestAnimationFrame);
      }
      return times.sort((a, b) => a - b);
    }""")
    begin = page.evaluate("performance.now()")
    page.fill("#search", "mat word7")
    page.keyboard.press("Enter")
    search = page.evaluate("performance.now()") - begin
    figures = {
        "bytes": path.stat().st_size,
        "ready_ms": ready,
        "next_ms": times[20],
        "worst_ms": times[-1],
        "search_ms": search,
    }
    print(figures)
    assert ready < 3000
    assert times[20] < 100
    assert 0 < shown(page) < 512

"""The report: self-contained, escaped, honest about what is missing, and clear about what is damaged."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import matplotlib as mpl
import pytest

from saki.analysis import write_report

VOID = {"meta", "br", "img", "link", "input", "hr"}


class Outline(HTMLParser):
    """Elements, attributes and text of a page; fails on tags that do not match."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        assert not self._open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    @property
    def visible(self) -> str:
        return " ".join(" ".join(self.text).split())


def test_report_of_a_whole_run_is_one_safe_file(run_dir, hostile):
    before = dict(mpl.rcParams)
    path = write_report(run_dir, decode=lambda ids: f"{hostile}{ids}")
    assert dict(mpl.rcParams) == before
    assert path == run_dir / "report.html"
    html = path.read_text(encoding="utf-8")
    outline = Outline(html)
    assert not {"script", "img", "link", "iframe", "object", "a"} & set(outline.tags)
    assert not [name for name, _ in outline.attributes if name.startswith("on") or name == "src"]
    links = [value for name, value in outline.attributes if name in ("href", "xlink:href")]
    assert all(link.startswith("#") for link in links)
    assert "url(http" not in html
    assert "@import" not in html
    assert "default-src 'none'" in html
    # The hostile text is shown as it is: as the model's name, as a benchmark and in the samples.
    assert outline.visible.count(" ".join(hostile.split())) >= 4
    ids = [value for name, value in outline.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    for svg in re.findall(r"<svg.*?</svg>", html, re.DOTALL):
        ElementTree.fromstring(svg)
    assert html.count("<svg ") == 7
    assert not list(run_dir.glob(".*"))


def test_samples_link_into_the_trace_page_where_it_lies_beside_the_report(run_dir):
    (run_dir / "trace.html").write_text("")
    outline = Outline(write_report(run_dir).read_text(encoding="utf-8"))
    links = [value for name, value in outline.attributes if name == "href" and not value.startswith("#")]
    assert links == ["trace.html#step-000001.parquet/1", "trace.html#step-000001.parquet/2"]  # most corrected first
    assert outline.visible.count("This completion token by token") == 2


def test_report_shows_what_was_run_and_the_results(run_dir):
    text = Outline(write_report(run_dir).read_text(encoding="utf-8")).visible
    assert "Run report: saki" in text
    assert "60 steps logged, last step 60" in text
    for fact in ("0a1b2c3", "torch 2.13.0", "lab:teacher", "0.0003"):
        assert fact in text
    assert "hf_abc" not in text
    assert "training.hub_token: (hidden)" in text
    assert "sum_3 10.0 5.0 to 15.0 10.0 6.0 to 16.0 30.0 25.0 to 35.0" in text
    assert "student before: 160 samples, 25.0% of them cut" in text
    assert "Not there: teacher." in text
    assert "2 corrections in 4 tokens" in text


def test_given_results_come_before_those_of_the_file(run_dir, make_evaluation):
    (run_dir / "metrics.jsonl").unlink()
    text = Outline(write_report(run_dir, evaluation={"after": make_evaluation(0.9)}).read_text()).visible
    assert "90.0 85.0 to 95.0" in text
    assert "Not there: student before, teacher." in text


def test_metrics_that_were_not_logged_are_named_and_not_made_up(run_dir):
    (run_dir / "metrics.jsonl").write_text('{"step": 1, "loss/reverse_kl": 0.5}\n')
    html = write_report(run_dir).read_text(encoding="utf-8")
    text = Outline(html).visible
    assert "Not there: the run did not log rollout/kl_to_teacher." in text
    assert "Not there: the run did not log rollout/correction_rate, rollout/mean_tv" in text
    assert "Not logged: loss/teacher_mode." in text
    assert "Reverse KL: 0.5 at step 1." in text
    assert html.count("<svg ") == 2


def test_a_truncated_last_line_is_noted(run_dir):
    (run_dir / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2, "loss/')
    assert "line 2, the last one of metrics.jsonl, is truncated" in write_report(run_dir).read_text()


def test_parts_of_a_folder_that_are_missing_are_named(tmp_path, make_evaluation):
    (tmp_path / "evaluation.json").write_text(json.dumps({"after": make_evaluation(0.5)}))
    text = Outline(write_report(tmp_path).read_text()).visible
    assert "method not recorded" in text
    assert "Not there: config.resolved.yaml." in text
    assert "Not there: metrics.jsonl, so no chart can be drawn." in text
    assert "Not there: the run folder has no rollouts." in text
    (tmp_path / "metrics.jsonl").write_text("")
    assert "metrics.jsonl is empty" in write_report(tmp_path).read_text()


def test_missing_results_are_said(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    assert "Not there: evaluation.json holds no result for this run." in write_report(tmp_path).read_text()


def test_results_of_other_benchmarks_are_not_called_comparable(run_dir, make_evaluation):
    (run_dir / "metrics.jsonl").unlink()
    results = {"before": make_evaluation(0.1, ("sum_3",)), "after": make_evaluation(0.5)}
    text = Outline(write_report(run_dir, evaluation=results).read_text()).visible
    assert "their averages cannot be compared" in text


def test_nothing_to_report_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="no run folder at"):
        write_report(tmp_path / "absent")
    with pytest.raises(ValueError, match="neither metrics"):
        write_report(tmp_path)
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.resolved.yaml", "a: [1", "is not readable YAML"),
        ("config.resolved.yaml", "- 1", "holds list, expected a mapping"),
        ("config.resolved.yaml", "a: !!python/object:os.system {}", "is not readable YAML"),
        ("evaluation.json", "{", "is not readable JSON"),
        ("evaluation.json", "[]", "holds list, expected an object"),
        ("evaluation.json", '{"after": {"average": {}}}', "lacks or misnames 'k'"),
        ("metrics.jsonl", "oops\n" + '{"step": 1}\n', "line 1 is not a JSON object"),
    ],
)
def test_damaged_files_are_named_in_one_sentence(run_dir, name, content, message):
    (run_dir / name).write_text(content)
    with pytest.raises(ValueError, match=message) as error:
        write_report(run_dir)
    assert "\n" not in str(error.value)
    assert not (run_dir / "report.html").exists()

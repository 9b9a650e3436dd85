"""Reports of several runs and of a study: what differs is listed, curves stand side by side, nothing is made up."""

from __future__ import annotations

import pytest
import yaml

from saki.analysis.comparison_report import differing, short_names, write_comparison_report, write_study_report
from saki.analysis.side_by_side import Line, draw_side_by_side, last_values, panels_shown
from saki.analysis.style import figure_context
from tests.analysis import made_study as made
from tests.analysis.test_report import Outline

SHARE = "rollout/correction_rate"


def line(name, label="saki", seeds=(0,)):
    return Line(name, tuple(made.metric_rows(label, seed) for seed in seeds), {})


def test_two_runs_with_what_differs(run_dir, tmp_path, hostile, make_evaluation):
    other = tmp_path / "other" / "run"
    other.mkdir(parents=True)
    (other / "metrics.jsonl").write_text('{"step": 1, "loss/reverse_kl": 0.5}\n{"step": 2, "loss/')
    config = yaml.safe_load((run_dir / "config.resolved.yaml").read_text())
    config["training"] |= {"learning_rate": 1e-3, "output_dir": "elsewhere", "hub_token": "hf_other"}
    (other / "config.resolved.yaml").write_text(yaml.safe_dump(config))
    path = write_comparison_report([run_dir, other], tmp_path / "c.html")
    outline = Outline(path.read_text(encoding="utf-8"))
    text = outline.visible
    names = [f"{tmp_path.name}/run", "other/run"]
    assert f"2 runs side by side {names[0]}, {names[1]}" in text
    assert f"Settings that differ training.learning_rate {names[0]} 0.0003 {names[1]} 0.001" in text
    assert "elsewhere" not in text
    assert "hf_" not in text
    assert f"{names[0]}: 160 samples" in text
    assert f"Not there: {names[1]}." in text  # it has no evaluation
    assert "line 2, the last one of metrics.jsonl, is truncated" in text
    assert " ".join(hostile.split()) in text  # a set's name
    assert not {"script", "img", "link", "a"} & set(outline.tags)
    ids = [value for name, value in outline.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert f"{names[0]} 60 0.01667 " in text  # the last step's losses
    assert f"{names[1]} 1 0.5 - -" in text
    assert str(path.read_text()).count("<svg ") == 5  # accuracy, and nine metrics in pairs, less what neither has


def test_runs_without_configuration_or_metrics(run_dir, tmp_path):
    (run_dir / "config.resolved.yaml").unlink()
    (run_dir / "evaluation.json").unlink()
    other = tmp_path / "b"
    other.mkdir()
    with pytest.raises(ValueError, match="no metrics at"):
        write_comparison_report([run_dir, other], tmp_path / "c.html")
    (other / "metrics.jsonl").write_text('{"step": 1, "loss": 0.5}\n')
    text = Outline(write_comparison_report([run_dir, other], tmp_path / "c.html").read_text()).visible
    assert "Not there: no run has a config.resolved.yaml." in text
    assert "Not there: no run has an evaluation.json, nor one of saki eval in RUN/evaluation." in text
    with pytest.raises(ValueError, match="no run folder at"):
        write_comparison_report([run_dir, tmp_path / "absent"], tmp_path / "d.html")


def test_a_study_with_its_tables_and_curves(tmp_path, hostile):
    folder = made.make_study(tmp_path / "study", hostile=hostile)
    outline = Outline(write_study_report(folder, folder / "report.html").read_text(encoding="utf-8"))
    text = outline.visible
    assert "Study report: study lab-a, lab-b; 3 arms, compared with trb" in text
    assert "TRB, lab-a trb 3 20 0a1b2c3" in text
    assert "seed" not in text[text.index("Settings that differ") : text.index("Accuracy by step")]
    assert f"dataset method TRB, lab-a trb{' '.join(hostile.split())} trb Random-TM, lab-a" in text
    for caption in ("Mean@4 accuracy (%)", "Pass@4 accuracy (%)", "Placement of teacher-mode supervision, lab-b"):
        assert caption in text
    assert "▲ marks the best of the trained methods" in text
    assert "Shading: 95% t interval over seeds." in text
    assert "SAKI, lab-b 20 0.06 ± 0.02484" in text  # loss 1/20 + 0.01 * (0, 1, 2); t(0.975, 2) * 0.01 / sqrt(3)
    assert not {"script", "img", "link", "a"} & set(outline.tags)


def test_a_study_that_has_begun_and_one_that_has_not(tmp_path):
    folder = made.make_study(tmp_path / "study", results=False)
    for path in folder.rglob("result.json"):
        path.unlink()
    text = Outline(write_study_report(folder, folder / "report.html").read_text()).visible
    assert "Accuracy Not there: no run is finished." in text
    assert "results.parquet is not there yet: 0 finished runs are read one by one." in text
    for path in folder.rglob("metrics.jsonl"):
        path.unlink()
    with pytest.raises(ValueError, match="holds no run that has logged a step or is finished"):
        write_study_report(folder, folder / "report.html")


def test_names_are_as_short_as_tells_them_apart(tmp_path):
    assert short_names([tmp_path / "a", tmp_path / "b"]) == ["a", "b"]
    assert short_names([tmp_path / "x/a", tmp_path / "y/a"]) == ["x/a", "y/a"]
    with pytest.raises(ValueError, match="a run is named twice"):
        short_names([tmp_path / "a", tmp_path / "a"])


def test_differing_settings():
    settings = [{"t.lr": "1", "t.seed": "0", "out": "a"}, {"t.lr": "2", "t.seed": "0", "out": "b", "t.new": "x"}]
    assert differing(settings) == {"t.lr": ["1", "2"], "t.new": ["", "x"]}


def test_curves_are_means_over_seeds_and_the_bound_is_drawn_once():
    lines = [line("a", seeds=(0, 2)), line("b")]
    (panel,) = [each for each in panels_shown(lines) if each.metric == SHARE]
    with figure_context():
        figure = draw_side_by_side(lines, [panel])
    axes = figure.axes[0]
    drawn = {each.get_label(): each.get_ydata() for each in axes.lines}
    first = made.metric_rows("saki", 0)
    assert drawn["b"].tolist() == [row[SHARE] for row in first]
    expected = [row[SHARE] + (0.001 if row["rollout/trust_region_radius"] else 0) for row in first]
    assert drawn["a"].tolist() == pytest.approx(expected)
    assert list(drawn) == ["a", "b", "Pinsker bound"]
    assert axes.get_ylim()[0] == 0
    assert last_values(lines[1], [panel]) == ["0.00%"]
    assert last_values(Line("c", ([{"step": 1}],), {}), [panel]) == ["-"]


def test_panels_are_of_what_was_logged():
    rows = [{"step": 1, "eval/mean_at_4": 0.5, "loss/mine": 1.0, "rollout/mean_length": 3.0}]
    shown = panels_shown([Line("a", (rows,), {})])
    assert [panel.title for panel in shown] == ["Mean@4, evaluation prompts", "Mine loss", "Completion length"]

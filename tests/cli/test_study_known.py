"""saki study --known: runs that were finished elsewhere count, and only those of the same settings."""

from __future__ import annotations

import json

import pytest

from saki.analysis.study_results import read_results
from saki.cli.main import main
from saki.config.study import read_study
from tests.cli.test_study import finish, write_study


def elsewhere(folder, *labels, **keys):
    """results.parquet of a study with some finished runs."""
    folder.mkdir()
    path = write_study(folder, **keys)
    for run in read_study(path).runs:
        if run.label in labels:
            finish(folder / "out", run, run.max_steps)
    assert main(["study", str(path), "--out", str(folder / "out"), "--tables_only"]) == 0
    return folder / "out" / "results.parquet"


def study(capsys, *argv):
    """Exit code, and the last line as JSON or the errors."""
    code = main(["study", *map(str, argv), "--json"])
    said = capsys.readouterr()
    return code, json.loads(said.out.splitlines()[-1]) if code == 0 else said.err


def test_runs_of_two_files_enter_the_tables_and_are_not_repeated(tmp_path, capsys):
    first, second = elsewhere(tmp_path / "a", "opd"), elsewhere(tmp_path / "b", "saki", "student", "teacher")
    before = read_results(first) + read_results(second)
    capsys.readouterr()
    path, out = write_study(tmp_path), tmp_path / "out"
    code, said = study(capsys, path, "--known", f"{first}, {second}", "--out", out)  # nothing is left to be done
    assert code == 0
    assert (said["finished"], said["finished_now"]) == (6, 0)
    assert sorted(read_results(out / "results.parquet"), key=repr) == sorted(before, key=repr)
    assert "| SAKI |" in (out / "tables.md").read_text()
    assert not (out / "runs").exists()
    code, said = study(capsys, path, "--known", first, "--out", out, "--tables_only")
    assert (code, said["finished"]) == (0, 2)


def test_what_the_study_lacks_is_left_out_and_the_rest_is_run(tmp_path, capsys):
    known = elsewhere(tmp_path / "a", "opd", "saki", methods=["opd", "saki"])
    capsys.readouterr()
    path, out = write_study(tmp_path, methods=["opd"], seeds="1", baselines=False, max_steps=4), tmp_path / "out"
    code, said = study(capsys, path, "--known", known, "--out", out)
    assert (code, said["runs"], said["finished"]) == (0, 1, 1)
    assert {(s.label, s.seed) for s in read_results(out / "results.parquet")} == {("opd", 1)}


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"max_steps": 5}, "with other settings than the study's"),
        ({"overrides": {"learning_rate": 2e-3}}, "with other settings than the study's"),
    ],
)
def test_runs_of_other_settings_are_refused(tmp_path, capsys, keys, words):
    known = elsewhere(tmp_path / "a", "opd")
    capsys.readouterr()
    code, said = study(capsys, write_study(tmp_path, **keys), "--known", known, "--out", tmp_path / "out")
    assert code == 2
    assert said.count("\n") == 1
    assert words in said
    assert "lab-student/opd/seed-0" in said


def test_a_run_in_part_and_a_missing_file_are_refused(tmp_path, capsys):
    (tmp_path / "a").mkdir()
    path = write_study(tmp_path / "a", evaluate_at=[2])
    run = next(each for each in read_study(path).runs if each.label == "opd")
    finish(tmp_path / "a" / "out", run, run.max_steps)  # without its step 2
    assert main(["study", str(path), "--out", str(tmp_path / "a" / "out"), "--tables_only"]) == 0
    capsys.readouterr()
    known = tmp_path / "a" / "out" / "results.parquet"
    code, said = study(capsys, path, "--known", known, "--out", tmp_path / "out")
    assert (code, "holds lab-student/opd/seed-0 in part" in said) == (2, True)
    code, said = study(capsys, path, "--known", tmp_path / "none.parquet", "--out", tmp_path / "out")
    assert (code, f"there is no results file {tmp_path / 'none.parquet'}" in said) == (2, True)


def test_tables_compare_with_the_label_that_is_asked_for(tmp_path, capsys):
    known = elsewhere(tmp_path / "a", "opd", "saki")
    argv = [write_study(tmp_path), "--known", known, "--tables_only", "--out", tmp_path / "out"]
    for words, line in (((), "| SAKI - OPD | "), (("--reference", "saki"), "| OPD - SAKI | ")):
        assert study(capsys, *argv, *words)[0] == 0
        assert line in (tmp_path / "out" / "tables.md").read_text()
    code, said = study(capsys, *argv, "--reference", "opd,saki")
    assert (code, "reference names 'opd,saki', which is none of the study's" in said) == (2, True)

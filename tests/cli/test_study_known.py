"""saki study --known: runs that were finished elsewhere count, and only those of the same settings."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from saki.analysis.study_results import read_results, write_results
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
    written = (out / "results.parquet").read_bytes()
    for words in ((), ("--known", first)):  # what is nowhere else is not written over
        code, said = study(capsys, path, "--out", out, "--tables_only", *words)
        assert (code, "runs that are nowhere else" in said) == (2, True)
    code, said = study(capsys, path, "--known", out, "--out", out)  # a folder stands for the file in it
    assert (code, said["finished"], (out / "results.parquet").read_bytes()) == (0, 6, written)
    run = read_study(path).runs[2]
    result = finish(out, run, run.max_steps)
    result.write_text(result.read_text().replace("[0, 1, 2]", "[2, 2, 2]"))
    assert study(capsys, path, "--known", f"{first},{second}", "--out", out)[0] == 0
    mine = {(s.label, s.seed): s.num_right for s in read_results(out / "results.parquet")}
    assert mine.pop((run.label, run.seed)) == (2, 2, 2)  # a run of the folder counts as it is there
    assert set(mine.values()) == {(0, 1, 2)}


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


def rewritten(folder, known, change):
    """A copy of a results file after a change of its scores."""
    folder.mkdir()
    write_results(folder / "results.parquet", change(read_results(known)))
    return folder / "results.parquet"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda scores: scores + scores[:1], "holds lab-student/opd/seed-0 in part or twice"),
        (lambda scores: [replace(s, benchmark="gcd") for s in scores[:1]] + scores, "in part or twice"),
        (lambda scores: [replace(s, num_right=s.num_right[1:]) for s in scores], "in part or twice"),
        (lambda scores: [replace(s, step=3) for s in scores], "in part or twice"),
        (lambda scores: [replace(s, fingerprint="") for s in scores], "before it held the settings of runs"),
        (lambda scores: [replace(s, label="other") for s in scores], "holds no run of this study"),
    ],
)
def test_what_cannot_be_a_run_of_the_study_is_refused(tmp_path, capsys, change, words):
    known = rewritten(tmp_path / "b", elsewhere(tmp_path / "a", "opd"), change)
    capsys.readouterr()
    code, said = study(capsys, write_study(tmp_path), "--known", known, "--out", tmp_path / "out")
    assert (code, said.count("\n")) == (2, 1)
    assert words in said


def test_files_that_are_none(tmp_path, capsys):
    known = elsewhere(tmp_path / "a", "opd")
    capsys.readouterr()
    path = write_study(tmp_path)
    table = pq.read_table(known)
    gaps = tmp_path / "gaps.parquet"
    pq.write_table(table.set_column(0, "student", pa.array([None] * len(table), pa.string())), gaps)
    typed = tmp_path / "typed.parquet"
    pq.write_table(table.set_column(3, "seed", pa.array(["0"] * len(table))), typed)
    damaged = tmp_path / "damaged.parquet"
    damaged.write_bytes(b"PAR1")
    for value, words in (
        ("", "known holds an empty name"),
        (f"{known},", "known holds an empty name"),
        (tmp_path / "none.parquet", f"there is no results file {tmp_path / 'none.parquet'}"),
        ("n" * 300, "File name too long"),
        (gaps, "columns of other types, or with gaps"),
        (typed, "columns of other types, or with gaps"),
        (damaged, "or leave it out of --known"),  # nothing here can write it again
    ):
        code, said = study(capsys, path, "--known", value, "--out", tmp_path / "out")
        assert (code, said.count("\n")) == (2, 1)
        assert words in said


def test_files_of_before_are_read_but_not_known(tmp_path, capsys):
    known = elsewhere(tmp_path / "a", "opd")
    capsys.readouterr()
    pq.write_table(pq.read_table(known).drop_columns(["fingerprint"]), known)
    assert {score.fingerprint for score in read_results(known)} == {""}
    code, said = study(capsys, write_study(tmp_path), "--known", known, "--out", tmp_path / "out")
    assert (code, "before it held the settings" in said) == (2, True)


def test_tables_compare_with_the_label_that_is_asked_for(tmp_path, capsys):
    known = elsewhere(tmp_path / "a", "opd", "saki")
    argv = [write_study(tmp_path), "--known", known, "--tables_only", "--out", tmp_path / "out"]
    for words, line in (((), "| SAKI - OPD | "), (("--reference", "saki"), "| OPD - SAKI | ")):
        assert study(capsys, *argv, *words)[0] == 0
        assert line in (tmp_path / "out" / "tables.md").read_text()
    capsys.readouterr()
    assert main(["study", *map(str, argv), "--reference", "trb"]) == 2
    three = write_study(tmp_path, methods=["opd", "saki", "trb"])
    assert main(["study", str(three), *map(str, argv[1:]), "--reference", "trb"]) == 0
    assert "no run of trb is finished, so no difference to it is shown" in capsys.readouterr().err
    write_study(tmp_path)
    code, said = study(capsys, *argv, "--reference", "opd,saki")
    assert (code, "reference names 'opd,saki', which is none of the study's" in said) == (2, True)

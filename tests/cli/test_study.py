"""saki study: a run cut short goes on to the same answers, runs are not repeated, failures stay where they are."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

import psutil
import pytest
import yaml

from saki.analysis.study_results import RESULT, read_results
from saki.cli.main import main
from saki.cli.study import Tables
from saki.cli.study_board import Board
from saki.cli.study_files import begin, check_half_done, finished, scores
from saki.cli.study_pool import PoolState, WorkerPool
from saki.cli.study_run import execute
from saki.config.study import read_study
from saki.lab import student_path

SMALL = {
    "prompts_per_step": 4,
    "per_device_train_batch_size": 16,
    "max_completion_length": 24,
    "save_steps": 2,
    "learning_rate": 1e-3,
}


def write_study(folder, **keys):
    path = folder / "study.yaml"
    values = {"methods": ["opd", "saki"], "seeds": "0-1", "max_steps": 4, "overrides": SMALL}
    path.write_text(yaml.safe_dump({**values, "num_problems": 3, "num_samples": 2, **keys}))
    return path


def finish(out, run, *steps):
    """Leave what a finished run leaves."""
    folder = out / "runs" / run.folder
    folder.mkdir(parents=True)
    sets = {"sum_3": {"num_right": [0, 1, 2], "num_samples": 2, "truncated": 0.0}}
    facts = {"train_cpu_seconds": 1.0, "evaluation_cpu_seconds": 1.0, "steps": dict.fromkeys(map(str, steps), sets)}
    (folder / RESULT).write_text(json.dumps({"fingerprint": run.fingerprint, "run": run.to_json(), **facts}))
    return folder / RESULT


class CutError(Exception):
    """Stands for a kill."""


def test_a_run_cut_short_goes_on_to_the_same_answers(tmp_path):
    run = next(each for each in read_study(write_study(tmp_path, evaluate_at=[1])).runs if each.label == "saki")
    steps = []

    def watch(phase, done, total):
        if phase == "training":
            steps.append(done)

    def cut(phase, done, total):
        watch(phase, done, total)
        if phase == "training" and done == 3:
            raise CutError

    execute(run, tmp_path / "whole", watch)
    assert steps == [1, 2, 3, 4]
    steps.clear()
    with pytest.raises(CutError):
        execute(run, tmp_path / "cut", cut)
    assert not finished(run, tmp_path / "cut")
    before = json.loads((tmp_path / "cut" / "cpu_seconds.json").read_text())
    execute(run, tmp_path / "cut", watch)
    assert steps == [1, 2, 3, 3, 4]  # it went on from the checkpoint of step 2
    assert finished(run, tmp_path / "cut")
    whole, again = (scores(run, tmp_path / name) for name in ("whole", "cut"))
    assert [(each.step, each.benchmark, each.num_right) for each in whole] == [
        (each.step, each.benchmark, each.num_right) for each in again
    ]
    assert {each.step for each in whole} == {1, 4}
    assert not (tmp_path / "cut" / "checkpoints").exists()
    assert whole[0].train_cpu_seconds > 0
    assert again[0].train_cpu_seconds > before["train"] > 0  # both processes count
    assert again[0].evaluation_cpu_seconds > before["evaluation"] > 0
    lines = (tmp_path / "cut" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4]
    other = read_study(write_study(tmp_path, evaluate_at=[1], num_samples=3)).runs[-1]
    with pytest.raises(ValueError, match="was finished with"):
        finished(other, tmp_path / "cut")


@pytest.mark.parametrize("clock", ["{", "[1]", '{"train": 2.0}', '{"train": 2.0, "evaluation": null}'])
def test_a_damaged_clock_stops_no_run(tmp_path, caplog, clock):
    run = read_study(write_study(tmp_path)).runs[0]
    begin(run, tmp_path)
    (tmp_path / "evaluation-000000.json").write_text('{"sets": {}}')  # half done
    (tmp_path / "cpu_seconds.json").write_text(clock)
    execute(run, tmp_path, print)
    assert "cpu_seconds.json is damaged; CPU seconds are counted from here on" in caplog.text
    assert json.loads((tmp_path / RESULT).read_text())["train_cpu_seconds"] < 1.0


def test_a_half_finished_run_of_other_settings_is_refused(tmp_path, capsys):
    """Its checkpoint and evaluations must not enter the result of these settings; the refusal changes no file."""
    path = write_study(tmp_path, evaluate_at=[1])
    run, folder = read_study(path).runs[-1], tmp_path / "out" / "runs" / "lab-student" / "saki" / "seed-1"
    assert run.folder == "lab-student/saki/seed-1"
    begin(run, folder)
    changed = read_study(write_study(tmp_path, evaluate_at=[1, 2])).runs[-1]
    begin(changed, folder)  # nothing was done yet
    begin(run, folder)
    for half_done in (folder / "evaluation-000001.json", folder / "checkpoints" / "checkpoint-2"):
        half_done.mkdir(parents=True)
        assert not finished(changed, folder)
        check_half_done(run, folder)
        begin(run, folder)
        with pytest.raises(ValueError, match=r"was begun with evaluate_at = \[1\], the study now says \[1, 2\]"):
            begin(changed, folder)
        half_done.rmdir()
    half_done.mkdir()
    assert main(["study", str(path), "--out", str(tmp_path / "out"), "--tables_only"]) == 0  # it is in no table
    capsys.readouterr()
    (tmp_path / "out" / "study.yaml").write_text("as run before")
    assert main(["study", str(path), "--out", str(tmp_path / "out"), "--jobs", "1"]) == 2
    error = capsys.readouterr().err.strip()
    assert "the study now says [1, 2]; use another --out, or remove that folder" in error
    assert len(error.splitlines()) == 1
    assert (tmp_path / "out" / "study.yaml").read_text() == "as run before"
    (folder / "run.json").write_text("{")
    with pytest.raises(ValueError, match="was begun with settings that are not written down; use another --out"):
        begin(run, folder)
    half_done.rmdir()
    (folder / "cpu_seconds.json").write_text('{"train": 1000.0, "evaluation": 0.0}')
    begin(changed, folder)  # nothing is left of it but its clock, which goes
    assert sorted(each.name for each in folder.iterdir()) == ["checkpoints", "run.json"]


def test_tables_are_written_while_runs_go_on(tmp_path, monkeypatch, caplog):
    study = read_study(write_study(tmp_path, baselines=False))
    state = PoolState(deque(study.runs))
    tables = Tables(study, tmp_path, [])
    tables.refresh(state)
    finish(tmp_path, study.runs[0], 4)
    state.finished.append((study.runs[0], 1.0))
    tables.refresh(state)
    assert not (tmp_path / "tables.md").exists()  # the last time is not long ago
    monkeypatch.setattr("saki.cli.study.TABLES_SECONDS", 0.0)
    tables.refresh(state)
    assert "OPD" in (tmp_path / "tables.md").read_text()
    (tmp_path / "tables.md").unlink()
    tables.refresh(state)
    assert not (tmp_path / "tables.md").exists()  # nothing new
    result = finish(tmp_path, study.runs[1], 4)
    state.finished.append((study.runs[1], 1.0))
    result.write_text("{")
    tables.refresh(state)
    assert "the tables could not be written: " in caplog.text  # and the runs go on
    with pytest.raises(ValueError, match="is not the result of a run"):
        tables.write(state)


FAKE_WORKER = """
import json, os, sys, time
from pathlib import Path
for line in sys.stdin:
    task = json.loads(line)
    run = json.loads(task["run"])
    print(json.dumps({"event": "progress", "phase": "training", "done": 1, "total": 2}), flush=True)
    with open(sys.argv[1], "a") as log:
        log.write(f"{os.getpid()} {run['label']} {run['seed']}\\n")
    if run["seed"] == 1 and run["label"] == "opd":
        os._exit(9)
    if run["seed"] == 1 and run["label"] == "saki":
        print(json.dumps({"event": "failed", "reason": "ValueError: no"}), flush=True)
    else:
        print(json.dumps({"event": "finished"}), flush=True)
"""


@pytest.mark.parametrize("jobs", [1, 2])
def test_the_pool_reuses_processes_and_outlives_failures(tmp_path, jobs):
    study = read_study(write_study(tmp_path, seeds="0-2", baselines=False))
    log = tmp_path / "log"
    pool = WorkerPool(study.runs, tmp_path, jobs, (sys.executable, "-c", FAKE_WORKER, str(log)))
    board = Board(study.runs, [], jobs, stream=open(os.devnull, "w"))  # noqa: SIM115
    pool.carry_out(board.show)
    state = pool.state
    assert sorted((run.label, run.seed) for run, _ in state.finished) == [
        ("opd", 0),
        ("opd", 2),
        ("saki", 0),
        ("saki", 2),
    ]
    reasons = {run.label: reason for run, reason in state.failed}
    assert "ended with code 9" in reasons["opd"]
    assert reasons["saki"] == "ValueError: no"
    lines = [line.split() for line in log.read_text().splitlines()]
    assert sorted((label, int(seed)) for _, label, seed in lines) == sorted((r.label, r.seed) for r in study.runs)
    assert len({pid for pid, *_ in lines}) <= jobs + 1  # one replacement for the one that died
    last = board.lines(state)[-1]
    assert "4 of 6 runs finished, 0 running, 2 failed, 0 waiting" in last
    assert "left" in last
    board._stream.close()


def test_mistakes_are_one_sentence_and_exit_code_2(tmp_path, capsys):
    path = str(write_study(tmp_path, methods=["sakki"]))
    (tmp_path / "probing").mkdir()
    probing = str(write_study(tmp_path / "probing", overrides={"probe": str(tmp_path / "none")}))
    (tmp_path / "promptless").mkdir()
    promptless = str(write_study(tmp_path / "promptless", dataset="/none.parquet"))
    (tmp_path / "headless").mkdir()
    headless = str(write_study(tmp_path / "headless", students=["lab/student", unspoken(tmp_path / "gone")]))
    for argv, message in (
        (["study", path], "did you mean 'saki'"),
        (["study"], "needs a study file"),
        (["study", path, "--jobs", "0"], "jobs must be at least 1"),
        (["study", str(tmp_path / "none.yaml")], "there is no configuration file"),
        (["study", promptless, "--out", str(tmp_path / "study")], "there is no data set at '/none.parquet'"),
        (["study", headless, "--out", str(tmp_path / "study")], "has no tokenizer (tokenizer.json)"),
        (["study", probing, "--out", str(tmp_path / "study")], "there is no probe in"),
    ):
        assert main(argv) == 2
        error = capsys.readouterr().err
        assert message in error
        assert len(error.strip().splitlines()) == 1


def unspoken(folder):
    """The lab's student without a tokenizer."""
    shutil.copytree(student_path(), folder, ignore=shutil.ignore_patterns("tokenizer*"))
    return str(folder)


def test_a_failed_run_is_said_at_once(tmp_path, capsys):
    study = read_study(write_study(tmp_path, baselines=False))
    pool = WorkerPool(study.runs, tmp_path, 1, (sys.executable, "-c", FAKE_WORKER, str(tmp_path / "log")))
    pool.carry_out(Board(study.runs, [], 1).show)
    assert "failed: lab-student/saki/seed-1: ValueError: no" in capsys.readouterr().err


def test_tables_of_what_is_there(tmp_path, capsys):
    """The teacher alone gives none; of two students the one without any run of its own is left out."""
    path = write_study(tmp_path, students=["lab/habit", "lab/small"], evaluate_at=[1])
    argv = ["study", str(path), "--tables_only", "--json", "--out", str(tmp_path / "out")]
    runs = {run.folder: run for run in read_study(path).runs}
    finish(tmp_path / "out", runs["lab-habit/teacher/seed-0"], 0)
    assert main(argv) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["tables"] == []
    finish(tmp_path / "out", runs["lab-habit/saki/seed-1"], 1, 4)
    assert main(argv) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["finished"] == 2
    text = (tmp_path / "out" / "tables.md").read_text()
    assert "| SAKI | 50.0 | 50.0 |" in text
    assert "| SAKI | **" not in text  # one method has no best
    assert "Mean@2, step 1 | Mean@2, step 4" in text
    assert "lab-small" not in text
    assert (tmp_path / "out" / "tables" / "step-000001" / "table1_mean.csv").is_file()
    result = tmp_path / "out" / "runs" / "lab-habit" / "saki" / "seed-1" / RESULT
    whole = result.read_text()
    for damaged in ("{", "[]", whole.replace("num_right", "num_wrong")):
        result.write_text(damaged)
        assert main(argv) == 2
        assert f"{result} is not the result of a run" in capsys.readouterr().err
    result.write_text(whole)
    assert main([*argv, "--only", "opd", "--only_students", "lab/small"]) == 0
    board = capsys.readouterr().err
    assert "lab-small" in board
    assert " saki " not in board


@pytest.mark.slow
def test_a_run_that_fails_is_reported_and_the_rest_go_on(tmp_path, capsys):
    """The second student is cut short; its runs fail, the first one's finish, and a stage leaves the others open."""
    shutil.copytree(student_path(), tmp_path / "gone")
    (tmp_path / "gone" / "model.safetensors").write_bytes(b"")
    path = write_study(tmp_path, students=["lab/student", str(tmp_path / "gone")], max_steps=2, evaluate_at=[1])
    out = tmp_path / "out"
    stage = ["study", str(path), "--out", str(out), "--json", "--only", "opd", "--only_seeds", "0"]
    assert main([*stage, "--only_students", "lab/student"]) == 0
    first = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (first["finished"], first["failed"]) == (3, {})  # teacher, student, opd
    assert main(["study", str(path), "--out", str(out), "--json", "--only_seeds", "0"]) == 1
    captured = capsys.readouterr()
    second = json.loads(captured.out.splitlines()[-1])
    assert (second["finished"], second["finished_now"]) == (4, 1)
    assert set(second["failed"]) == {"gone/student/seed-0", "gone/opd/seed-0", "gone/saki/seed-0"}
    assert "failed: gone/opd/seed-0: " in captured.err
    assert "3 of 11 runs failed; start the study again to retry" in captured.err
    tables = (out / "tables.md").read_text()
    assert "SAKI" in tables
    assert "by step" in tables
    assert (out / "tables" / "step-000001" / "table1_mean.csv").is_file()
    assert (out / "runs" / "gone" / "opd" / "seed-0" / "failure.txt").is_file()


def study_process(path, out):
    return subprocess.Popen(
        [sys.executable, "-m", "saki.cli.main", "study", str(path), "--out", str(out), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src"), "OMP_NUM_THREADS": "1"},
    )


def outcome(process):
    stdout, stderr = process.communicate(timeout=600)
    assert process.returncode == 0, stderr
    return json.loads(stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_study_goes_on_and_gives_the_same_tables(tmp_path):
    path = write_study(tmp_path, max_steps=6)
    whole = outcome(study_process(path, tmp_path / "whole"))
    assert whole["finished"] == whole["finished_now"] == whole["runs"] == 6

    process = study_process(path, tmp_path / "killed")
    runs = tmp_path / "killed" / "runs"
    half_done = runs / "lab-student" / "saki" / "seed-0" / "checkpoints" / "checkpoint-4"
    deadline = time.monotonic() + 300
    while not half_done.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    workers = psutil.Process(process.pid).children()
    assert workers
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert psutil.wait_procs(workers, timeout=20)[1] == []  # a killed study leaves no worker behind
    done = {each: each.stat().st_mtime_ns for each in runs.rglob(RESULT)}
    assert 1 <= len(done) < 6
    again = outcome(study_process(path, tmp_path / "killed"))
    assert again["finished"] == 6
    assert again["finished_now"] == 6 - len(done)
    assert all(each.stat().st_mtime_ns == at for each, at in done.items())
    for name in ("tables.md", "tables/table1_mean.csv", "tables/differences.tex"):
        assert (tmp_path / "whole" / name).read_text() == (tmp_path / "killed" / name).read_text()
    assert [(s.label, s.seed, s.num_right) for s in read_results(tmp_path / "whole" / "results.parquet")] == [
        (s.label, s.seed, s.num_right) for s in read_results(tmp_path / "killed" / "results.parquet")
    ]
    third = outcome(study_process(path, tmp_path / "killed"))
    assert third["finished_now"] == 0

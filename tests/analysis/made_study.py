"""A study's folder made in code, small enough to count by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import yaml

from saki.analysis.study_results import SetScore, write_results

STUDENTS = ("lab-a", "lab-b")
ARMS = ("trb", "random_tm", "saki")
SEEDS = (0, 1, 2)
STEPS = (10, 20)
SETS = ("sum_3", "gcd")
NUM_PROBLEMS, NUM_SAMPLES = 12, 4


def right(student: str, label: str, seed: int, step: int, name: str) -> tuple[int, ...]:
    """Right samples of each problem; later steps and later arms are better, ``gcd`` of lab-b is worse with saki."""
    rng = np.random.default_rng([STUDENTS.index(student), seed, SETS.index(name)])  # the same problems for all arms
    gain = 0.12 * ARMS.index(label) * (-1 if (student, name, label) == ("lab-b", "gcd", "saki") else 1)
    share = 0.2 + step / 100 + gain
    return tuple(int(np.sum(draws < share)) for draws in rng.random((NUM_PROBLEMS, NUM_SAMPLES)))


def score(student: str, label: str, seed: int, step: int, name: str, counts: tuple[int, ...]) -> SetScore:
    method = "" if label in ("teacher", "student") else label
    return SetScore(
        student, label, method, seed, step, name, NUM_SAMPLES, counts, 0.0, 1.0, 1.0, f"{student} {label} {seed}"
    )


def scores() -> list[SetScore]:
    found = [score("lab-a", "teacher", 0, 0, name, (NUM_SAMPLES,) * NUM_PROBLEMS) for name in SETS]
    found += [score(student, "student", 0, 0, name, (1,) * NUM_PROBLEMS) for student in STUDENTS for name in SETS]
    return found + [
        score(student, label, seed, step, name, right(student, label, seed, step, name))
        for student in STUDENTS
        for label in ARMS
        for seed in SEEDS
        for step in STEPS
        for name in SETS
    ]


def metric_rows(label: str, seed: int, num_steps: int = 20) -> list[dict]:
    """The radius falls to 0 at step 11; rates of the seeds lie 0.001 apart."""
    rows = []
    for step in range(1, num_steps + 1):
        radius = 0.02 * max(0.0, 1 - (step - 1) / 10)
        bound = math.sqrt(radius / 2)
        rate = 0.0 if radius == 0 else 0.2 * bound + 0.001 * seed
        rows.append(
            {
                "step": step,
                "loss": 1 / step + 0.01 * seed,
                "loss/reverse_kl": 1 / step,
                "rollout/correction_rate": rate,
                "rollout/pinsker_bound": bound,
                "rollout/trust_region_radius": radius,
                "rollout/mean_length": 30.0 + ARMS.index(label),
                "rollout/truncated_share": 0.0,
                "time/tokens_per_s": 1000.0 + seed,
                "time/rollout_s": 0.5,
                "time/update_s": 0.25,
            }
        )
    return rows


def make_study(folder: Path, *, results: bool = True, hostile: str = "") -> Path:
    """Write it.

    Args:
        folder: Where to.
        results: Whether ``results.parquet`` is there, as after a run that came to its end.
        hostile: A setting's value.
    """
    folder.mkdir(parents=True)
    (folder / "study.yaml").write_text(yaml.safe_dump({"methods": list(ARMS), "reference": "trb"}))
    if results:
        write_results(folder / "results.parquet", scores())
    for student in STUDENTS:
        for label in ARMS:
            for seed in SEEDS:
                run = folder / "runs" / student / label / f"seed-{seed}"
                run.mkdir(parents=True)
                lines = [json.dumps(row) + "\n" for row in metric_rows(label, seed)]
                (run / "metrics.jsonl").write_text("".join(lines))
                seeds = {"seed": seed, "data_seed": seed + 100 * ARMS.index(label)}
                settings = {"method": label, **seeds, "learning_rate": 3e-4, "dataset": f"{label}{hostile}"}
                settings |= {"output_dir": str(run), "commit": "0a1b2c3"}
                (run / "config.resolved.yaml").write_text(yaml.safe_dump(settings))
                (run / "result.json").write_text(json.dumps(_result(student, label, seed)))
    return folder


def _result(student: str, label: str, seed: int) -> dict:
    steps = {
        str(step): {
            name: {"num_right": right(student, label, seed, step, name), "num_samples": NUM_SAMPLES, "truncated": 0.0}
            for name in SETS
        }
        for step in STEPS
    }
    run = {"fingerprint": f"{student} {label} {seed}", "run": {"method": label}}
    return {**run, "train_cpu_seconds": 1.0, "evaluation_cpu_seconds": 1.0, "steps": steps}

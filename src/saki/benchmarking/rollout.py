"""``saki bench rollout``: arms in turn on one workload."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import torch

from saki.benchmarking.arms import Arm, ArmRun
from saki.benchmarking.meters import Reading, measure
from saki.benchmarking.spread import spread
from saki.benchmarking.workload import Workload

PHASES = ("prefill", "draft", "verify", "bridge", "coupling", "rest")
"""What every split has; other engines may add phases of their own."""

REFERENCE = "student_only"


def bench_rollout(
    arms: Sequence[Arm],
    work: Workload,
    device: torch.device,
    *,
    repeats: int = 5,
    deadline: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Measure arms.

    Each arm does the whole workload once to warm up. Then they alternate: every repeat runs each arm once, and begins
    one arm further than the repeat before. A last run of each splits its time; its speed does not count.

    Args:
        arms: The arms, with distinct names.
        work: What each has to do.
        device: Whose queue is waited for and whose memory is read.
        repeats: Timed runs of each arm.
        deadline: Value of ``time.perf_counter`` after which no further repeat begins, the first one excepted.
        progress: Told what runs.

    Returns:
        ``{"arms": {name: ...}, "order": [[names of a repeat], ...]}``. An arm has the medians ``tokens_per_s``,
        ``tokens_per_cpu_s`` and ``ratio_to_student_only`` (of the ratios within each repeat), their ``spread``,
        ``tokens_per_wave`` (committed tokens per row and wave), ``correction_rate``, ``split`` (wall seconds),
        ``peak_bytes`` above what was held before, and how it runs. An external loop has ``overhead_ratio``; above
        :data:`saki.rollout.external_stats.HONEST_RATIO` it is slower than its parts explain, and no baseline.

    Raises:
        RuntimeError: If an arm does not produce the forced lengths.
    """
    say = progress or (lambda _: None)
    readings: dict[str, list[Reading]] = {arm.name: [] for arm in arms}
    runs: dict[str, ArmRun] = {}
    order: list[list[str]] = []
    for arm in arms:
        say(f"{arm.name}: warm-up")
        _check(arm, arm.run(work), work)
    for repeat in range(repeats):
        if deadline is not None and repeat and time.perf_counter() > deadline:
            break
        turn = [arms[(repeat + offset) % len(arms)] for offset in range(len(arms))]
        order.append([arm.name for arm in turn])
        for arm in turn:
            say(f"{arm.name}: repeat {repeat + 1} of {repeats}")
            run, reading = measure(lambda arm=arm: arm.run(work), device)  # type: ignore[misc]
            _check(arm, run, work)
            runs[arm.name] = run
            readings[arm.name].append(reading)
    results = {}
    for arm in arms:
        say(f"{arm.name}: split")
        results[arm.name] = _summary(arm, runs[arm.name], readings, work, _split(arm, work, device))
    return {"arms": results, "order": order}


def _check(arm: Arm, run: ArmRun, work: Workload) -> None:
    if run.lengths != work.lengths:
        row = next(
            index for index, pair in enumerate(zip(run.lengths, work.lengths, strict=True)) if pair[0] != pair[1]
        )
        raise RuntimeError(
            f"{arm.name} gave {run.lengths[row]} tokens in row {row}, forced were {work.lengths[row]}; "
            "its speed would not be comparable"
        )


def _split(arm: Arm, work: Workload, device: torch.device) -> dict[str, float]:
    """Seconds by phase of one more run; ``rest`` is all that no other phase has."""
    with arm.split() as parts:
        _, reading = measure(lambda: arm.run(work), device)
    named = {name: seconds for name, seconds in parts.items() if name != "rest"}
    split = dict.fromkeys(PHASES, 0.0) | named
    split["rest"] = max(0.0, reading.wall - sum(named.values()))
    return split


def _summary(
    arm: Arm, run: ArmRun, readings: dict[str, list[Reading]], work: Workload, split: dict[str, float]
) -> dict[str, Any]:
    own, tokens = readings[arm.name], work.num_tokens
    speeds = [tokens / reading.wall for reading in own]
    cpu_speeds = [tokens / max(reading.cpu, 1e-9) for reading in own]
    base = readings.get(REFERENCE, [])
    ratios = [other.wall / reading.wall for other, reading in zip(base, own, strict=True)] if base else []
    peaks = [reading.peak_bytes for reading in own if reading.peak_bytes is not None]
    return {
        "tokens_per_s": median(speeds),
        "tokens_per_cpu_s": median(cpu_speeds),
        "ratio_to_student_only": median(ratios) if ratios else None,
        "tokens_per_wave": _tokens_per_wave(arm, run, work),
        "correction_rate": None if run.corrections is None else run.corrections / tokens,
        "split": split,
        "peak_bytes": max(peaks) if peaks else None,
        "spread": {
            "tokens_per_s": spread(speeds),
            "tokens_per_cpu_s": spread(cpu_speeds),
            "ratio_to_student_only": spread(ratios) if ratios else None,
        },
        "waves": run.waves,
        "prefill_positions": run.prefill_positions,
        "bytes_moved": run.bytes_moved,
        "overhead_ratio": run.overhead_ratio,
        "block_size": arm.block_size,
        "law": arm.law,
        "execution": arm.execution,
        "differs": arm.differs,
    }


def _tokens_per_wave(arm: Arm, run: ArmRun, work: Workload) -> float | None:
    if run.waves is None or arm.block_size is None or not run.correction_rows:
        return None
    waves = sum(
        waves_of_rows(corrections, length, arm.block_size)
        for corrections, length in zip(run.correction_rows, work.lengths, strict=True)
    )
    return work.num_tokens / waves


def waves_of_rows(corrections: Sequence[int], length: int, block_size: int) -> int:
    """Waves that a row of ``length`` tokens took part in: each commits up to K of them, or through a correction.

    Args:
        corrections: Positions of its corrections, rising.
        length: Committed tokens.
        block_size: K.
    """
    waves, begin = 0, 0
    for end in [*(position + 1 for position in corrections), length]:
        waves += -(-(end - begin) // block_size)
        begin = end
    return waves


def prefill_work(arm: Arm, work: Workload) -> dict[str, Any]:
    """Prompt positions that all samples of the prompts cost, against one sample of each."""
    short = replace(work, lengths=(1,) * len(work.lengths))
    alone = replace(short, samples_per_prompt=1, lengths=(1,) * len(work.prompts))
    several, one = arm.run(short).prefill_positions, arm.run(alone).prefill_positions
    assert several is not None
    assert one is not None
    return {
        "samples_per_prompt": work.samples_per_prompt,
        "positions": several,
        "positions_of_one_sample": one,
        "ratio": several / one,
    }

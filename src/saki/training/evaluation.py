"""Measuring the student while it trains: its own rollouts of an evaluation set."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from saki.functional import request_seed
from saki.rollout import RolloutEngine
from saki.training.config import SakiConfig
from saki.training.metrics import MetricSums
from saki.training.pool_engine import SharedPool
from saki.training.ranks import Ranks
from saki.types import Prompt, RolloutBatch, RolloutRequest


def evaluate_student(
    engine: RolloutEngine,
    prompts: Sequence[Prompt],
    args: SakiConfig,
    ranks: Ranks,
    grade: Callable[[RolloutBatch, int], bool] | None = None,
    prefix: str = "eval",
) -> dict[str, float]:
    """Roll out prompts with the student alone, the same random numbers every time; each rank takes its share.

    Args:
        engine: This rank's engine, with the weights to measure.
        prompts: All prompts.
        args: The configuration.
        ranks: The processes, each of which must call this.
        grade: (batch, row) -> whether that completion is correct; None without answers.
        prefix: Prefix of the names.

    Returns:
        ``{prefix}/kl_to_teacher`` (mean sampled log p(y)/T(y), nats), ``mean_length`` (tokens), ``truncated_share``,
        ``seconds`` (of the slowest rank), and ``mean_at_n`` where there is a grader; ``{prefix}_loss`` repeats the KL
        for the library's model selection. All ranks return the same.
    """
    request = RolloutRequest(
        seed=request_seed(args.seed, "eval", 0),
        max_completion_length=args.max_completion_length,
        num_generations=args.eval_num_generations,
        behavior="student",
    )
    begin, sums = time.perf_counter(), MetricSums()
    with ranks.together():
        own = prompts[ranks.rank :: ranks.size]
        if own:  # there may be fewer prompts than ranks
            batch = engine.generate(own, request)
            mask = batch.response_mask
            kl = (batch.student_logprobs - batch.teacher_logprobs)[mask].double()
            sums.add(f"{prefix}/kl_to_teacher", kl.sum(), mask.sum())
            sums.add(f"{prefix}/mean_length", batch.lengths.sum(), len(batch))
            sums.add(f"{prefix}/truncated_share", batch.finish_reasons.count("length"), len(batch))
            if grade is not None:
                correct = sum(grade(batch, row) for row in range(len(batch)))
                sums.add(f"{prefix}/mean_at_{args.eval_num_generations}", correct, len(batch))
        elif isinstance(engine, SharedPool):
            engine.take_part(request)
        sums.maximum(f"{prefix}/seconds", time.perf_counter() - begin)
    metrics = sums.take(ranks)
    return {f"{prefix}_loss": metrics.setdefault(f"{prefix}/kl_to_teacher", math.nan), **metrics}

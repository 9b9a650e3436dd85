"""A step's rollout: the request, the engine's weights, the file, and what must be said about it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from saki.functional import request_seed
from saki.methods import Method
from saki.rollout import RolloutEngine, SyncReport, write_rollouts
from saki.training.checkpoint import list_checkpoints
from saki.training.config import SakiConfig
from saki.training.metrics import MetricSums, record_rollout
from saki.training.ranks import Ranks
from saki.training.step_clock import StepClock
from saki.training.teacher import VocabularyTeacher
from saki.types import Prompt, RolloutBatch, RolloutRequest

logger = logging.getLogger(__name__)

TRUNCATION_WARNING_SHARE = 0.5


class TrainingDivergedError(RuntimeError):
    """A loss or a score of a step is not a finite number."""


class StepRollouts:
    """Asks an engine for the completions of optimizer steps: on each rank its own engine, for the rank's own items.

    Args:
        engine: The engine.
        method: Says whose law is sampled.
        prompts: Rendered prompts; items point here.
        args: The configuration.
        sums: Where metrics go.
        ranks: The processes of the run; each must call :meth:`sync` and :meth:`roll_out` as the others do.
        clock: Where seconds go.
        teacher: Scores student rollouts in the engine's place where the losses need its laws anyway.

    Attributes:
        synced_version: Version of the weights that the engine holds, or None if unknown.
        last_sync: Report of the last weight sync.
    """

    def __init__(
        self,
        engine: RolloutEngine,
        method: Method,
        prompts: Sequence[Prompt],
        args: SakiConfig,
        sums: MetricSums,
        ranks: Ranks | None = None,
        clock: StepClock | None = None,
        teacher: VocabularyTeacher | None = None,
    ) -> None:
        self._engine, self._method, self._prompts, self._args, self._sums = engine, method, prompts, args, sums
        self._ranks = ranks or Ranks()
        self._clock = clock or StepClock(sums, self._ranks)
        self._teacher = teacher
        self.synced_version: int | None = None
        self.last_sync: SyncReport | None = None
        self._last: tuple[RolloutBatch, int] | None = None

    def sync(self, weights: Callable[[], Iterable[tuple[str, Tensor]]], version: int) -> None:
        """Give the engine these weights, unless it holds that version.

        Args:
            weights: Called once; where parameters are sharded, each tensor is gathered from all ranks as it is taken,
                so what the engine leaves is taken here.
            version: The weights' version, the same on all ranks.

        Raises:
            PeerError: If another rank's engine refused them.
        """
        if self._teacher is not None:
            self._teacher.forget()  # the losses of the last step are done
        if self.synced_version == version:
            return
        with self._clock.measure("sync"), self._ranks.together():
            stream = iter(weights())
            try:
                self.last_sync = self._engine.sync_student(stream, version)
            finally:
                for _ in stream if self._ranks.size > 1 else ():
                    pass
        self.synced_version = version
        self._sums.set("sync/probe_change", self.last_sync.probe_change)
        self._sums.set("sync/megabytes", self.last_sync.num_bytes / 1e6)

    def request(self, step: int) -> RolloutRequest:
        """What an optimizer step (1-based) asks for."""
        args = self._args
        return RolloutRequest(
            seed=request_seed(args.seed, "train", step),
            max_completion_length=args.max_completion_length,
            num_generations=args.num_generations,
            behavior=self._method.behavior,
            trust_region_radius=args.radius_at(step) if self._method.behavior == "bridge" else 0.0,
            block_size=args.block_size,
            top_k=self._method.top_k,
        )

    def roll_out(self, items: Sequence[dict[str, int]], step: int) -> RolloutBatch:
        """Roll out the completions of a step.

        Args:
            items: ``{"prompt": index, "sample": index}``, one a completion.
            step: Optimizer step, from 1.

        Returns:
            The batch; row i belongs to item i. Its file is written already.

        Raises:
            TrainingDivergedError: If the teacher's score of a committed token is NaN.
            DiskFullError: If there is no room for the file.
            PeerError: If another rank's rollout failed.
        """
        with self._ranks.together():
            batch = self._generate(items, step)
            self._last = batch, step
            if self._args.save_rollouts_steps and step % self._args.save_rollouts_steps == 0:
                self._write()
            record_rollout(self._sums, batch, bounded=self._method.behavior != "skd")
            self._check_scores(batch, step)
        self._warn(batch, step)
        return batch

    def _generate(self, items: Sequence[dict[str, int]], step: int) -> RolloutBatch:
        samples: dict[int, list[int]] = {}
        for item in items:
            samples.setdefault(item["prompt"], []).append(item["sample"])
        prompts = [replace(self._prompts[index], sample_indices=tuple(chosen)) for index, chosen in samples.items()]
        begin, before = time.perf_counter(), self._engine.stats()
        request = self.request(step)
        scorer = self._teacher if request.student_only else None
        batch = self._engine.generate(prompts, replace(request, score_teacher=scorer is None))
        seconds, after = time.perf_counter() - begin, self._engine.stats()
        score_seconds = after.seconds.get("score", 0.0) - before.seconds.get("score", 0.0)
        self._clock.add("rollout", seconds - score_seconds)
        self._clock.add("score", score_seconds)
        if self._ranks.size > 1:
            self._sums.maximum("time/slowest_rollout_s", seconds)
        # Seconds are divided, not tokens: ranks generate at the same time.
        self._sums.add("time/tokens_per_s", batch.num_valid_tokens, (seconds - score_seconds) / self._ranks.size)
        for name in ("teacher_q_forwards", "waves", "empty_residuals"):
            self._sums.total(f"rollout/{name}", getattr(after, name) - getattr(before, name))
        batch = batch.select(_rows_of(items, samples))
        if scorer is not None:
            with self._clock.measure("score"):
                return scorer.score(batch)
        return batch

    def _write(self) -> Path:
        """Write the last step's rollout, unless its file is there."""
        assert self._last is not None
        batch, step = self._last
        suffix = f"-rank{self._args.process_index}" if self._args.world_size > 1 else ""
        path = self._args.run_dir / "rollouts" / f"step-{step:06d}{suffix}.parquet"
        if not path.exists():  # files of an earlier attempt at this step are gone since the run began
            write_rollouts(path, batch, {"method": self._method.name, "step": str(step)})
        return path

    def diverged(self, what: str) -> TrainingDivergedError:
        """The error of a step that came to nothing; its rollout is on disk then, also where it was not asked for."""
        newest = next(iter(list_checkpoints(self._args.run_dir / "checkpoints")), "none, as none was saved yet")
        return TrainingDivergedError(f"{what}; its rollout is in {self._write()}, the last checkpoint is {newest}")

    def _check_scores(self, batch: RolloutBatch, step: int) -> None:
        missing = (torch.isnan(batch.teacher_logprobs) & batch.response_mask).any(dim=1)
        if bool(missing.any()):
            row = int(missing.nonzero()[0])
            raise self.diverged(f"the teacher's score of {_name(batch, row)} is NaN at step {step}")

    def _warn(self, batch: RolloutBatch, step: int) -> None:
        """What the log must know of the step's completions, said by the first rank for all."""
        broken = [_name(batch, row) for row, reason in enumerate(batch.finish_reasons) if reason == "nan"]
        of_ranks = self._ranks.gather((broken, batch.finish_reasons.count("length"), len(batch)))
        if not self._ranks.is_first:
            return
        for names, _, _ in of_ranks:
            for name in names:
                logger.warning("step %d: %s ended early because a model gave NaN", step, name)
        truncated = sum(count for _, count, _ in of_ranks) / sum(rows for _, _, rows in of_ranks)
        if step == 1 and truncated > TRUNCATION_WARNING_SHARE:
            logger.warning(
                "%.0f%% of the completions of step 1 reached max_completion_length = %d; raise it if they should end",
                100 * truncated,
                self._args.max_completion_length,
            )


def _name(batch: RolloutBatch, row: int) -> str:
    prompt, sample, length = int(batch.prompt_keys[row]), int(batch.sample_indices[row]), int(batch.lengths[row])
    return f"prompt {prompt}, sample {sample} ({length} tokens)"


def _rows_of(items: Sequence[dict[str, int]], samples: dict[int, list[int]]) -> list[int]:
    """Where each item's row lies in a batch whose prompts come in the order of ``samples``."""
    places, offset = {}, 0
    for prompt, chosen in samples.items():
        for place, sample in enumerate(chosen):
            places[prompt, sample] = offset + place
        offset += len(chosen)
    return [places[item["prompt"], item["sample"]] for item in items]

"""The trainer's engine where it is a pool: models reach replicas as folders, and one pool serves all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from saki.files import whole_folder
from saki.models import PairSpec, plain_state
from saki.rollout import EngineStats, RolloutEngine, ScoreResult, ServedModel, SyncReport, model_checksum
from saki.rollout.pool import EnginePool, PoolError, ray_pool
from saki.rollout.protocol import ProgressCallback
from saki.training.engines import frozen_copy
from saki.training.policy import base_model
from saki.training.pool_options import PoolOptions
from saki.training.ranks import PeerError, Ranks
from saki.types import Prompt, RolloutBatch, RolloutRequest


def pool_engine(
    student: nn.Module,
    teacher: nn.Module,
    spec: PairSpec,
    options: PoolOptions,
    *,
    dtype: torch.dtype,
    device: torch.device,
    max_batch_rows: int,
    folder: Path,
    ranks: Ranks | None = None,
    compiled: bool = False,
    adaptive_block_size: bool = False,
) -> RolloutEngine:
    """An :class:`saki.rollout.pool.EnginePool` for a trainer; with several ranks the first one's, shared by all.

    Replicas load both models by the names that they were loaded from here. A model without a name is written to the
    run folder first, as safetensors.

    Args:
        student: The trainable model, plain or PEFT.
        teacher: The teacher; replicas load it themselves and must come to the same checksum.
        spec: Shared vocabulary and stop set.
        options: Replicas and their settings.
        dtype: Dtype of the replicas' student.
        device: The trainer's device; on a GPU, replicas get one each where nothing else is said.
        max_batch_rows: Rows that roll out together.
        folder: The run folder.
        ranks: The processes of the run.
        compiled: Whether forwards and bridge are compiled.
        adaptive_block_size: Whether K follows the acceptance.

    Raises:
        ValueError: If ray is missing, or replicas cannot load the models or load others.
    """
    ranks = ranks or Ranks()
    pool: EnginePool | None = None
    with ranks.together():
        if ranks.is_first:
            pool = ray_pool(
                _source(student, spec, dtype, folder / "pool" / "student"),
                _source(teacher, spec, None, folder / "pool" / "teacher"),
                spec.stop_token_ids,
                options.pool_settings(batch_rows=max_batch_rows, on_gpu=device.type == "cuda"),
                student_version=-1,  # nothing has been synced yet
                compiled=compiled,
                adaptive_block_size=adaptive_block_size,
            )
            own, loaded = model_checksum(plain_state(teacher)), pool.facts.teacher_checksum
            if own != loaded:
                pool.close()
                raise ValueError(
                    f"the replicas loaded another teacher (checksum {loaded}) than this process has ({own}); give "
                    "teacher_model as a folder or hub name whose weights have not been changed since"
                )
    if ranks.size == 1:
        assert pool is not None
        return pool
    return SharedPool(pool, ranks)


def _source(model: Any, spec: PairSpec, dtype: torch.dtype | None, folder: Path) -> ServedModel:
    """Where replicas load a model from; ``folder`` is filled if it has no name."""
    plain = base_model(model)
    name = str(getattr(plain, "name_or_path", "") or "")
    dtype = dtype or next(plain.parameters()).dtype
    if not name:
        with whole_folder(folder) as unfinished:
            copy: Any = frozen_copy(model, spec, dtype=dtype, device=torch.device("cpu")).model
            copy.save_pretrained(unfinished)
        name = str(folder.absolute())
    elif Path(name).is_dir():
        name = str(Path(name).absolute())  # a replica has a folder of its own to work in
    return ServedModel(
        folder=name,
        vocab_size=spec.vocab_size,
        dtype=str(dtype).removeprefix("torch."),
        device="auto",
        # The library notes of which commit of a hub's repository a model is, and where its class comes from.
        revision=getattr(plain.config, "_commit_hash", None),
        trust_remote_code=type(plain).__module__.startswith("transformers_modules."),
    )


class PeerPoolError(PeerError, PoolError):
    """The first rank's pool cannot go on; all ranks hear it at the same place."""


class SharedPool:
    """One pool for all ranks of a run: the first asks it for the rows of all, and hands each its own.

    The rows of a step are then one request, whatever the number of ranks: units are the same, the longest of all
    begin first, and a failed replica is one process's business. Every rank must make the same calls in the same order.

    Args:
        pool: The pool on the first rank, None on the others.
        ranks: The processes.
    """

    def __init__(self, pool: RolloutEngine | None, ranks: Ranks) -> None:
        self._pool, self._ranks = pool, ranks
        self._stats = EngineStats()

    def generate(
        self, prompts: Sequence[Prompt], request: RolloutRequest, progress: ProgressCallback | None = None
    ) -> RolloutBatch:
        """Roll out this rank's prompts, together with those of the others.

        Raises:
            ValueError: On the first rank, if the ranks ask for different things or a prompt does not fit.
            PeerError: On the others; a :class:`PeerPoolError` if the pool cannot go on.
        """
        batch = self._generate(prompts, request, progress)
        assert batch is not None
        return batch

    def take_part(self, request: RolloutRequest) -> None:
        """Stand by in a rollout of the others."""
        self._generate([], request, None)

    def _generate(
        self, prompts: Sequence[Prompt], request: RolloutRequest, progress: ProgressCallback | None
    ) -> RolloutBatch | None:
        asked = self._ranks.gather((list(prompts), request))
        parts: list[Any] = [None] * self._ranks.size
        error: Exception | None = None
        if self._pool is not None:
            try:
                if any(other != request for _, other in asked):
                    raise ValueError("the ranks asked one pool for different rollouts in one step")
                everything = [prompt for own, _ in asked for prompt in own]
                batch, begin = self._pool.generate(everything, request, progress), 0
                sizes = [_num_rows(own, request) for own, _ in asked]
                for rank, size in enumerate(sizes):
                    parts[rank] = batch.select(range(begin, begin + size)) if size else None
                    begin += size
                parts = [(part, self._pool.stats()) for part in parts]
            except Exception as raised:
                error = raised
        part, stats = self._from_first(parts, error)
        # Rates and counts of a step are added up over ranks, so only one of them may have any.
        self._stats = stats if self._ranks.is_first else replace(self._stats, seconds=stats.seconds)
        return part

    def score(self, batch: RolloutBatch, model: Literal["student", "teacher"] = "teacher") -> ScoreResult:
        """Scores of this rank's rows.

        Raises:
            PeerError: If the first rank failed.
        """
        asked, parts = self._ranks.gather(batch), [None] * self._ranks.size
        error: Exception | None = None
        if self._pool is not None:
            try:
                parts = [self._pool.score(own, model) for own in asked]  # type: ignore[misc]
            except Exception as raised:
                error = raised
        scores: ScoreResult = self._from_first(parts, error)
        return scores

    def sync_student(self, weights: Iterable[tuple[str, Tensor]], version: int) -> SyncReport:
        """Send the first rank's weights to the replicas; the others take the same stream, as gathering needs them.

        Raises:
            PeerError: If the first rank failed.
        """
        report: SyncReport | None = None
        error: Exception | None = None
        stream = iter(weights)
        if self._pool is not None:
            try:
                report = self._pool.sync_student(stream, version)
            except Exception as raised:
                error = raised
        for _ in stream:
            pass
        result: SyncReport = self._from_first([report] * self._ranks.size, error)
        return result

    def student_checksum(self) -> str:
        """Checksum of the students that draft."""
        return str(self._ask("student_checksum"))

    def teacher_checksum(self) -> str | None:
        """Checksum of the teachers, or None."""
        answer: str | None = self._ask("teacher_checksum")
        return answer

    def stats(self) -> EngineStats:
        """The pool's counters on the first rank, none on the others; seconds on all."""
        return replace(self._stats)

    def close(self) -> None:
        """Close the pool."""
        if self._pool is not None:
            self._pool.close()

    def _ask(self, name: str) -> Any:
        answer, error = None, None
        if self._pool is not None:
            try:
                answer = getattr(self._pool, name)()
            except Exception as raised:
                error = raised
        return self._from_first([answer] * self._ranks.size, error)

    def _from_first(self, parts: list[Any], error: Exception | None) -> Any:
        """Each rank's part of what the first has; all learn that it failed."""
        if error is not None:
            told = _Failure(f"{type(error).__name__}: {error}", isinstance(error, PoolError))
            self._ranks.scatter([told] * self._ranks.size)
            raise error
        part = self._ranks.scatter(parts if self._ranks.is_first else None)
        if isinstance(part, _Failure):
            raise (PeerPoolError if part.of_pool else PeerError)(f"rank 0 failed: {part.what}")
        return part


class _Failure:
    """What the first rank sends instead of an answer."""

    def __init__(self, what: str, of_pool: bool) -> None:
        self.what, self.of_pool = what, of_pool


def _num_rows(prompts: Sequence[Prompt], request: RolloutRequest) -> int:
    return sum(
        request.num_generations if prompt.sample_indices is None else len(prompt.sample_indices) for prompt in prompts
    )

"""The arms of a rollout benchmark: saki's engine in several ways, the paper's external loops, and the library's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from transformers import GenerationConfig, PreTrainedModel

from saki.benchmarking.engine import MeasuredEngine, forced_engine_type
from saki.benchmarking.pairs import BenchPair
from saki.benchmarking.workload import Workload
from saki.functional import request_seed
from saki.rollout import ExternalLoop, HFDecoder, RolloutEngine, ServedModel
from saki.rollout.external_stats import ExternalStats
from saki.types import RolloutRequest


@dataclass(frozen=True)
class ArmRun:
    """What one run of an arm did.

    Attributes:
        lengths: Length of each completion.
        corrections: Number of corrected tokens; None where the arm knows no corrections.
        correction_rows: Positions of the corrections of each row, for the count of waves; none where K varies.
        waves: Verification waves; None without any.
        prefill_positions: Prompt positions that went through models; None where it is not known.
        bytes_moved: Bytes between processes; None within one.
        overhead_ratio: Wall seconds of a wave over those of its own parts, of an external loop; None for others.
    """

    lengths: tuple[int, ...]
    corrections: int | None = None
    correction_rows: tuple[tuple[int, ...], ...] = ()
    waves: int | None = None
    prefill_positions: int | None = None
    bytes_moved: int | None = None
    overhead_ratio: float | None = None


class Arm(Protocol):
    """One way to do the workload.

    Attributes:
        name: Key in results.
        block_size: Proposals a wave, K; None for arms that verify nothing.
        execution: How it runs, a few words for the table.
        differs: What differs from ``student_only`` and ``exact_q`` in what is asked or computed, or "".
    """

    name: str
    block_size: int | None
    execution: str
    differs: str

    @property
    def law(self) -> str:
        """Whose law is sampled: p, q or T."""
        ...

    def run(self, work: Workload) -> ArmRun:
        """Do the workload."""
        ...

    def split(self) -> AbstractContextManager[dict[str, float]]:
        """Context that fills a dict with seconds by phase."""
        ...


@dataclass
class EngineArm:
    """An engine of saki's, asked for one behavior."""

    name: str
    engine: RolloutEngine
    behavior: Any
    block_size: int | None
    execution: str
    differs: str = ""
    adaptive: bool = False

    @property
    def law(self) -> str:
        """Whose law is sampled."""
        return "q" if self.behavior == "bridge" else "p"

    def run(self, work: Workload) -> ArmRun:
        """Roll the workload out, without scores that the rollout itself does not need."""
        before = self.engine.stats()
        batch = self.engine.generate(
            work.prompts,
            RolloutRequest(
                seed=request_seed(work.seed, "probe", 0),
                max_completion_length=work.longest,
                num_generations=work.samples_per_prompt,
                behavior=self.behavior,
                trust_region_radius=work.radius if self.behavior == "bridge" else 0.0,
                block_size=self.block_size or 1,
                score_teacher=False,
            ),
        )
        after = self.engine.stats()
        bridge = self.behavior == "bridge"
        return ArmRun(
            lengths=tuple(batch.lengths.tolist()),
            corrections=int(batch.correction_mask.sum()) if bridge else None,
            correction_rows=()
            if self.adaptive
            else tuple(tuple(row.nonzero().flatten().tolist()) for row in batch.correction_mask),
            waves=after.waves - before.waves if bridge else None,
            prefill_positions=after.prefill_positions - before.prefill_positions,
            bytes_moved=_bytes_moved(after) - _bytes_moved(before) if not self._resident else None,
            overhead_ratio=after.overhead_ratio() if isinstance(after, ExternalStats) else None,
        )

    @property
    def _resident(self) -> bool:
        return isinstance(self.engine, MeasuredEngine)

    def split(self) -> AbstractContextManager[dict[str, float]]:
        """Seconds by phase of what runs inside."""
        return self.engine.split() if isinstance(self.engine, MeasuredEngine) else _stats_split(self.engine)


@contextmanager
def _stats_split(engine: RolloutEngine) -> Iterator[dict[str, float]]:
    before = _seconds(engine)
    parts: dict[str, float] = {}
    yield parts
    parts.update({name: seconds - before.get(name, 0.0) for name, seconds in _seconds(engine).items()})


def _seconds(engine: RolloutEngine) -> dict[str, float]:
    """Seconds by phase; of an external loop by the parts of its requests."""
    stats = engine.stats()
    return dict(stats.request_seconds) if isinstance(stats, ExternalStats) else stats.seconds


def _bytes_moved(stats: Any) -> int:
    return sum(int(value) for name, value in vars(stats).items() if name.startswith("bytes_"))


@dataclass
class GenerateArm:
    """``generate`` of transformers: sampling with its own cache, in static batches."""

    model: PreTrainedModel
    name: str = "hf_generate"
    block_size: int | None = None
    execution: str = "transformers generate, sampling, static batches"
    law: str = "p"
    differs: str = "random numbers of torch, no metadata; every sample prefills its prompt"

    def run(self, work: Workload) -> ArmRun:
        """Generate, in batches of the workload's size."""
        rows = work.row_prompts()
        lengths: list[int] = []
        for begin in range(0, len(rows), work.batch_size):
            lengths += _generate(self.model, rows[begin : begin + work.batch_size], work.longest, work.seed)
        return ArmRun(tuple(lengths))

    def split(self) -> AbstractContextManager[dict[str, float]]:
        """Nothing is known of its phases."""
        return nullcontext({})


@dataclass
class AssistedArm:
    """Assisted generation of transformers: the student drafts for the teacher. One row at a time, as it must be."""

    student: PreTrainedModel
    teacher: PreTrainedModel
    block_size: int | None = 8
    name: str = "hf_assisted"
    execution: str = "transformers assisted generation, rows one by one"
    law: str = "T"
    differs: str = "samples the teacher's law, not q; the library takes one row at a time"

    def run(self, work: Workload) -> ArmRun:
        """Generate row by row."""
        drafting = GenerationConfig(**_PLAIN, pad_token_id=0)
        drafting.num_assistant_tokens = self.block_size
        drafting.num_assistant_tokens_schedule = "constant"
        drafting.assistant_confidence_threshold = 0.0
        self.student.generation_config = drafting
        lengths = []
        for row, length in zip(work.row_prompts(), work.lengths, strict=True):
            lengths += _generate(self.teacher, [row], length, work.seed, assistant_model=self.student)
        return ArmRun(tuple(lengths))

    def split(self) -> AbstractContextManager[dict[str, float]]:
        """Nothing is known of its phases."""
        return nullcontext({})


_PLAIN = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "eos_token_id": None}


def _generate(
    model: PreTrainedModel, rows: Sequence[tuple[int, ...]], length: int, seed: int, **more: Any
) -> list[int]:
    """Sample so many tokens after each row (all of one length); returns how many came."""
    ids = torch.tensor(rows, device=model.device)
    config = GenerationConfig(**_PLAIN, pad_token_id=0, max_new_tokens=length, disable_compile=True)
    model.generation_config = GenerationConfig(**_PLAIN, pad_token_id=0)  # else its end ids would come back
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):  # generate reads the global random state
        torch.manual_seed(seed)
        out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config, **more)  # type: ignore[operator]
    return [out.shape[1] - ids.shape[1]] * len(rows)


class _NotHereError(Exception):
    """An arm cannot run on this workload or installation; its text says why."""


@dataclass
class _Bench:
    """Makes arms; models are made once and shared by those that can share them."""

    pair: BenchPair
    work: Workload
    block_size: int
    compiled: bool
    stack: ExitStack
    _decoders: tuple[HFDecoder, HFDecoder] | None = None
    _engines: dict[tuple[bool, bool], MeasuredEngine] = field(default_factory=dict)

    def engine(self, refill: bool = True, adaptive: bool = False) -> MeasuredEngine:
        if (refill, adaptive) not in self._engines:
            if self._decoders is None:
                self._decoders = self.pair.decoder("student"), self.pair.decoder("teacher")
            kind = MeasuredEngine if self.work.uniform else forced_engine_type(self.work.forced)
            self._engines[refill, adaptive] = kind(
                *self._decoders,
                (),
                max_batch_rows=self.work.batch_size,
                refill=refill,
                compiled=self.compiled,
                adaptive_block_size=adaptive,
            )
        return self._engines[refill, adaptive]

    def student_only(self) -> Arm:
        return EngineArm("student_only", self.engine(), "student", None, "resident engine, the student alone")

    def student_only_static(self) -> Arm:
        return EngineArm(
            "student_only_static", self.engine(False), "student", None, "the same, freed slots stay empty until all are"
        )

    def exact_q(self) -> Arm:
        return EngineArm("exact_q", self.engine(), "bridge", self.block_size, "resident engine, block verification")

    def exact_q_static(self) -> Arm:
        return EngineArm(
            "exact_q_static",
            self.engine(False),
            "bridge",
            self.block_size,
            "the same, freed slots stay empty until all are",
        )

    def exact_q_adaptive(self) -> Arm:
        engine = self.engine(adaptive=True)
        return EngineArm(
            "exact_q_adaptive",
            engine,
            "bridge",
            self.block_size,
            "the same, K follows the acceptance, at most --block_size",
            adaptive=True,
        )

    def token_wise(self) -> Arm:
        return EngineArm("token_wise", self.engine(), "bridge", 1, "resident engine, token-wise coupling")

    def external_k1(self) -> Arm:
        return self._external("external_k1", 1, "two processes, per-token RPC, dense logits")

    def external_k8(self) -> Arm:
        return self._external("external_k8", 8, "two processes, block RPC, dense logits")

    def _external(self, name: str, block_size: int, execution: str) -> Arm:
        self._need_uniform()
        student, teacher = (ServedModel(**self.pair.served(side)) for side in ("student", "teacher"))
        loop = ExternalLoop(student, teacher, (), token_wise=block_size == 1, max_batch_rows=self.work.batch_size)
        self.stack.callback(loop.close)
        return EngineArm(name, loop, "bridge", block_size, execution, "models in processes of their own")

    def hf_generate(self) -> Arm:
        self._need_uniform()
        return GenerateArm(self.pair.build("student"))

    def hf_assisted(self) -> Arm:
        return AssistedArm(self.pair.build("student"), self.pair.build("teacher"), self.block_size)

    def _need_uniform(self) -> None:
        if not self.work.uniform:
            raise _NotHereError("not run: it takes no forced length for each row of its own")


ARM_NAMES = (
    "student_only",
    "exact_q",
    "token_wise",
    "external_k1",
    "external_k8",
    "hf_generate",
    "hf_assisted",
    "exact_q_adaptive",
    "student_only_static",
    "exact_q_static",
)
DEFAULT_ARMS = ARM_NAMES[:-3]
STATIC_ARMS = ("student_only", "student_only_static", "exact_q", "exact_q_static")
"""Continuous against static batching."""


@contextmanager
def open_arms(
    names: Sequence[str],
    pair: BenchPair,
    work: Workload,
    *,
    block_size: int = 8,
    compiled: bool = False,
    decoders: tuple[HFDecoder, HFDecoder] | None = None,
) -> Iterator[tuple[list[Arm], dict[str, str]]]:
    """Make arms, and close them at the end.

    Args:
        names: Out of :data:`ARM_NAMES`.
        pair: The models.
        work: The workload.
        block_size: K of ``exact_q`` and drafts of ``hf_assisted``.
        compiled: Whether forwards and the bridge's passes are compiled.
        decoders: Student and teacher of the resident engine, where they are there already.

    Yields:
        The arms, and for each that cannot run its name and why.

    Raises:
        ValueError: If a name is unknown or comes twice.
    """
    unknown = next((name for name in names if name not in ARM_NAMES), None)
    if unknown is not None or len(set(names)) < len(names) or not names:
        raise ValueError(f"arms must be distinct names out of {', '.join(ARM_NAMES)}, got {', '.join(names)!r}")
    with ExitStack() as stack:
        bench = _Bench(pair, work, block_size, compiled, stack, decoders)
        arms: list[Arm] = []
        skipped: dict[str, str] = {}
        for name in names:
            make: Callable[[], Arm] = getattr(bench, name)
            try:
                arms.append(make())
            except _NotHereError as reason:
                skipped[name] = str(reason)
        yield arms, skipped

"""Building a probe with the initial student (Appendix E)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from saki.functional import kl_divergence, request_seed
from saki.models import ModelPair
from saki.probe.matching import Matching, match_positions
from saki.probe.measure import check_top_k, measures_at, read_laws, vocabulary_digest
from saki.probe.records import Positions, Probe, TeacherLaws
from saki.rollout import HFDecoder, ResidentEngine, model_checksum
from saki.rollout.protocol import ProgressCallback
from saki.types import Prompt, RolloutBatch, RolloutRequest, check_number

WHOLE_BYTES = 256 * 2**20
"""Teacher laws are kept whole where their float32 log-probs take at most this many bytes."""

NUM_KEPT = 4096
"""Else this many of the teacher's top tokens are kept, and the mass of the rest."""

NUM_RANKED = 1024
"""Tokens whose rank is kept beside whole laws: the largest top set that can be measured."""


@dataclass(frozen=True)
class ProbeSettings:
    """How to build a probe; defaults are the paper's where it names one.

    Attributes:
        num_pairs: Corrections, and as many accepted positions.
        top_k: Size of the teacher's top set (C16: 16).
        trust_region_radius: Radius of the rollout, nats.
        num_generations: Completions per prompt.
        max_completion_length: Most tokens per completion; 64 is the lab's, the paper rolls out up to 7,168.
        block_size: Proposals per verification wave; it changes no token.
        batch_rows: Completions that roll out together.
        teacher_top: Keep this many of the teacher's top tokens and the mass of the rest; 0 decides by size.
        seed: Run seed.
    """

    num_pairs: int = 1024
    top_k: int = 16
    trust_region_radius: float = 0.02
    num_generations: int = 8
    max_completion_length: int = 64
    block_size: int = 8
    batch_rows: int = 64
    teacher_top: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("num_pairs", "top_k", "num_generations", "max_completion_length", "block_size", "batch_rows"):
            check_number(name, getattr(self, name), least=1, whole=True)
        check_number("teacher_top", self.teacher_top, least=0, whole=True)
        check_number("trust_region_radius", self.trust_region_radius, positive=True)


def build_probe(
    pair: ModelPair,
    prompts: Sequence[Prompt],
    settings: ProbeSettings,
    facts: Mapping[str, Any] | None = None,
    progress: ProgressCallback | None = None,
) -> Probe:
    """Roll out the initial student, choose positions and freeze them.

    The rollout is the engine's exact-q rollout at ``trust_region_radius``; corrections and their matches are those of
    :func:`saki.probe.matching.match_positions`. Teacher laws are kept whole where they take at most
    :data:`WHOLE_BYTES`, else as top tokens and rest. The same settings, prompts, weights, device and thread count give
    the same probe.

    Args:
        pair: Student and teacher; the engine takes them over.
        prompts: Rendered prompts, all of them rolled out.
        settings: How.
        facts: What the probe says of its origin, beside the settings.
        progress: Called with (completions finished, completions in all).

    Returns:
        The probe, not yet on disk.

    Raises:
        ValueError: If there is no teacher, or the rollout has too few corrections.
    """
    if pair.teacher is None:
        raise ValueError("a probe needs a teacher; load the pair with one")
    vocab_size = pair.spec.vocab_size
    check_top_k(settings.top_k, min(settings.teacher_top or NUM_RANKED, vocab_size))
    student, teacher = HFDecoder(pair.student, vocab_size), HFDecoder(pair.teacher, vocab_size)
    engine = ResidentEngine(student, teacher, pair.spec.stop_token_ids, max_batch_rows=settings.batch_rows)
    request = RolloutRequest(
        seed=request_seed(settings.seed, "probe", 0),
        max_completion_length=settings.max_completion_length,
        num_generations=settings.num_generations,
        behavior="bridge",
        trust_region_radius=settings.trust_region_radius,
        block_size=settings.block_size,
    )
    batch = engine.generate(prompts, request, progress)
    matching = match_positions(batch, settings.num_pairs)
    sequences, positions = _freeze(batch, matching)
    laws, gap = _teacher_laws(teacher, student, sequences, positions, settings.teacher_top)
    initial = measures_at(student, sequences, positions, laws, settings.top_k)
    found = {
        "num_prompts": len(set(positions.prompt_keys.tolist())),
        "num_prompts_rolled_out": len(prompts),
        "num_completions": len(batch),
        "num_tokens": batch.num_valid_tokens,
        "num_corrections": int(batch.correction_mask.sum()),
        "num_corrections_with_own_prefix": matching.num_candidates,
        "num_matched_in_prompt": matching.num_same_prompt,
        "mean_distance_of_pairs": matching.mean_distance,
        "student_checksum": model_checksum(student.named_tensors()),
        "teacher_checksum": model_checksum(teacher.named_tensors()),
    }
    if gap is not None:
        found["largest_kl_lost_to_lumping"] = gap
    return Probe(
        sequences=sequences,
        positions=positions,
        teacher=laws,
        initial=initial,
        top_k=settings.top_k,
        vocab_size=vocab_size,
        vocabulary=vocabulary_digest(pair.tokenizer, vocab_size),
        facts={**(facts or {}), "settings": dict(vars(settings)), **found},
    )


def _freeze(batch: RolloutBatch, matching: Matching) -> tuple[tuple[tuple[int, ...], ...], Positions]:
    """Sequences, each as long as its longest prefix, and positions in pairs."""
    places = [place for pair in zip(matching.corrections, matching.accepted, strict=True) for place in pair]
    longest: dict[int, int] = {}
    for place in places:
        longest[place.row] = max(longest.get(place.row, 0), place.position)
    rows = sorted(longest, key=lambda row: (int(batch.prompt_keys[row]), int(batch.sample_indices[row])))
    sequence_of = {row: index for index, row in enumerate(rows)}
    sequences = tuple(
        tuple(batch.prompt_token_ids(row) + batch.completion_token_ids(row)[: longest[row]]) for row in rows
    )
    row = torch.tensor([place.row for place in places])
    position = torch.tensor([place.position for place in places])
    return sequences, Positions(
        sequence_ids=torch.tensor([sequence_of[place.row] for place in places]),
        prefix_lengths=batch.prompt_mask.sum(dim=1)[row] + position,
        prompt_keys=batch.prompt_keys[row],
        sample_indices=batch.sample_indices[row],
        response_positions=position,
        correction_mask=batch.correction_mask[row, position],
        proposal_ids=batch.proposal_ids[row, position],
        token_ids=batch.completion_ids[row, position],
        tv=batch.tv[row, position].double(),
    )


def _teacher_laws(
    teacher: HFDecoder,
    student: HFDecoder,
    sequences: Sequence[Sequence[int]],
    positions: Positions,
    teacher_top: int,
) -> tuple[TeacherLaws, float | None]:
    """The laws to keep, and, where tokens are lumped, the most that KL(T||S) of the initial student loses by it."""
    vocab_size = teacher.vocab_size
    whole = not teacher_top and 4 * len(positions) * vocab_size <= WHOLE_BYTES
    num = min(NUM_RANKED if whole else teacher_top or NUM_KEPT, vocab_size)
    # float32 holds what the engine sees of every model but float64 ones, to its last digit.
    dtype = torch.float64 if teacher.dtype == torch.float64 else torch.float32
    parts, order, gap = [], [], 0.0
    # Both sides cut the positions into the same chunks: the sequences and the vocabulary are the same.
    both = zip(read_laws(teacher, sequences, positions), read_laws(student, sequences, positions), strict=True)
    for (rows, log_t), (_, log_s) in both:
        kept = TeacherLaws.keep(log_t.to(dtype), num, whole)
        parts.append(TeacherLaws(kept.ranked_ids.cpu(), kept.logprobs.cpu(), whole))
        order.append(rows)
        if not whole:
            seen = kept.to(log_t.device)
            lost = kl_divergence(log_t, log_s) - kl_divergence(seen.logprobs, seen.on_same_outcomes(log_s))
            gap = max(gap, float(lost.max()))
    laws = TeacherLaws.concatenate(parts).select(torch.argsort(torch.cat(order)))
    return laws, None if whole else gap

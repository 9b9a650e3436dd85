"""A model's laws at the positions of a probe, and what is measured of them (Appendix E)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from saki.functional import entropy, kl_divergence, normalized_log_probs
from saki.probe.records import MEASURES, Measures, Positions, Probe, TeacherLaws
from saki.rollout import HFDecoder
from saki.types import check_number

TOKENS_TOGETHER = 2**15
"""Most tokens, padding included, of the sequences that run together; one sequence runs alone if it is longer."""

LOGITS_BUDGET = 256 * 2**20
"""Bytes that the float64 log-probs of one chunk of positions may take."""


def vocabulary_digest(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> str:
    """Names a vocabulary: the tokens of all real ids, as 32 hex digits."""
    digest = hashlib.blake2b(digest_size=16)
    for token, index in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1]):
        if index < vocab_size:
            digest.update(f"{index} {token}\n".encode(errors="surrogatepass"))
    return digest.hexdigest()


def measure_probe(decoder: HFDecoder, probe: Probe, top_k: int | None = None) -> Measures:
    """Measure a student at every position of a probe.

    C_1 = S(v*), C_k = S of the teacher's top k, KL(T||S), KL(S||T) and H(S) (Appendix E), in float64 of the model's
    logits. Where the probe holds the teacher's top m tokens and the rest, both divergences are of the laws with the
    other tokens lumped, a lower bound. What runs together depends on the probe alone, so that one model gives the same
    bits wherever it is measured, on one kind of device with one thread count.

    Args:
        decoder: The student.
        probe: The probe.
        top_k: Size of the teacher's top set; by default the probe's.

    Raises:
        ValueError: If the model's vocabulary is another, if the set is larger than what the probe ranks, or if a figure
            is not finite.
    """
    if decoder.vocab_size != probe.vocab_size:
        raise ValueError(
            f"the probe is over {probe.vocab_size} ids, the model has {decoder.vocab_size}; measure models of the "
            "family that it was built with"
        )
    check_length(decoder, probe.sequences)
    size = probe.top_k if top_k is None else top_k
    check_top_k(size, probe.teacher.ranked_ids.shape[1])
    return measures_at(decoder, probe.sequences, probe.positions, probe.teacher, size)


def measures_at(
    decoder: HFDecoder,
    sequences: Sequence[Sequence[int]],
    positions: Positions,
    teacher: TeacherLaws,
    top_k: int,
) -> Measures:
    """The figures of :func:`measure_probe` from a probe's parts."""
    values = {name: torch.empty(len(positions), dtype=torch.float64) for name in MEASURES}
    for rows, log_s in read_laws(decoder, sequences, positions):
        laws = teacher.select(rows).to(log_s.device)
        seen = laws.on_same_outcomes(log_s)
        top = log_s.gather(-1, laws.ranked_ids[:, :top_k]).exp()
        values["c1"][rows] = top[:, 0].cpu()
        values["c_top"][rows] = top.sum(dim=-1).cpu()
        values["kl_teacher_student"][rows] = kl_divergence(laws.logprobs, seen).cpu()
        values["kl_student_teacher"][rows] = kl_divergence(seen, laws.logprobs).cpu()
        values["entropy"][rows] = entropy(log_s).cpu()
    bad = ~torch.stack([torch.isfinite(value) for value in values.values()]).all(dim=0)
    if bool(bad.any()):
        raise ValueError(
            f"the figures of {int(bad.sum())} of {len(positions)} positions are not finite (first: position "
            f"{int(bad.nonzero()[0])}); the model gives NaN, or probability 0 to tokens that the teacher can take"
        )
    return Measures(**values)


@torch.no_grad()
def read_laws(
    decoder: HFDecoder, sequences: Sequence[Sequence[int]], positions: Positions
) -> Iterator[tuple[Tensor, Tensor]]:
    """A model's laws at the positions, some at a time.

    Each sequence runs once; only the positions asked for are projected to logits.

    Yields:
        [n] numbers of positions on the host, and their log-probs [n, V], float64, on the model's device.
    """
    device = decoder.device
    chunk = max(1, LOGITS_BUDGET // (8 * decoder.vocab_size))
    for group in _groups(sequences):
        ids = torch.zeros(len(group), max(len(sequences[index]) for index in group), dtype=torch.long)
        row_of = torch.full((len(sequences),), -1, dtype=torch.long)
        for row, index in enumerate(group):
            ids[row, : len(sequences[index])] = torch.tensor(sequences[index])
            row_of[index] = row
        features = decoder.features(ids.to(device))
        numbers = torch.nonzero(row_of[positions.sequence_ids] >= 0).flatten()
        for part in numbers.split(chunk):
            rows, last = row_of[positions.sequence_ids[part]], positions.prefix_lengths[part] - 1
            logits = decoder.project(features[rows.to(device), last.to(device)])
            yield part, normalized_log_probs(logits.double())


def check_length(decoder: HFDecoder, sequences: Sequence[Sequence[int]]) -> None:
    """Refuse sequences that a model has no positions for.

    Raises:
        ValueError: With both numbers.
    """
    longest, limit = max(map(len, sequences)), decoder.max_positions
    if limit is not None and longest > limit:
        raise ValueError(f"the probe's longest prefix has {longest} tokens, the model takes {limit}; use another probe")


def check_top_k(top_k: int, num_ranked: int) -> None:
    """Refuse a top set that is empty, or larger than what is ranked.

    Raises:
        ValueError: With both numbers.
    """
    check_number("top_k", top_k, least=1, whole=True)
    if top_k > num_ranked:
        raise ValueError(f"top_k must be at most {num_ranked}, the teacher's tokens that are ranked, got {top_k}")


def _groups(sequences: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Sequences that run together, longest first."""
    group: list[int] = []
    width = 0
    for index in sorted(range(len(sequences)), key=lambda index: (-len(sequences[index]), index)):
        if group and (len(group) + 1) * width > TOKENS_TOGETHER:
            yield group
            group = []
        width = width if group else len(sequences[index])
        group.append(index)
    if group:
        yield group

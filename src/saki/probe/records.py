"""What a fixed-prefix probe holds (Appendix E)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from saki.functional import normalized_log_probs


@dataclass(frozen=True)
class Positions:
    """N frozen positions: number 2 i is a genuine correction, number 2 i + 1 the accepted position matched to it.

    Attributes:
        sequence_ids: [N] int64, which of the probe's sequences.
        prefix_lengths: [N] int64, tokens of the sequence that are the prefix, the prompt included.
        prompt_keys: [N] int64, row of the prompt in the data set; the clusters of the statistics.
        sample_indices: [N] int64, which sample of the prompt.
        response_positions: [N] int64, position within the response, from 0.
        correction_mask: [N] bool, True where the initial student's proposal was rejected.
        proposal_ids: [N] int64, what it proposed.
        token_ids: [N] int64, what was committed.
        tv: [N] float64, TV(p, q), the probability of a correction there.
    """

    sequence_ids: Tensor
    prefix_lengths: Tensor
    prompt_keys: Tensor
    sample_indices: Tensor
    response_positions: Tensor
    correction_mask: Tensor
    proposal_ids: Tensor
    token_ids: Tensor
    tv: Tensor

    def __len__(self) -> int:
        return self.sequence_ids.shape[0]


@dataclass(frozen=True)
class TeacherLaws:
    """The teacher's next-token laws at the positions, whole or as their top m tokens and the mass of the rest.

    Attributes:
        ranked_ids: [N, m] int64, the most likely tokens, most likely first; ties go to the lower id.
        logprobs: [N, V] nats; or [N, m + 1], those of ``ranked_ids`` and, last, log of the mass of all others.
        whole: Whether ``logprobs`` covers the vocabulary.
    """

    ranked_ids: Tensor
    logprobs: Tensor
    whole: bool

    @staticmethod
    def keep(log_probs: Tensor, num_ranked: int, whole: bool) -> TeacherLaws:
        """What is kept of laws [n, V]: float32, or float64 of float64 laws."""
        ranked = torch.sort(log_probs, dim=-1, descending=True, stable=True).indices[:, :num_ranked]
        return TeacherLaws(ranked, log_probs if whole else _lump(log_probs, ranked), whole)

    @staticmethod
    def concatenate(parts: list[TeacherLaws]) -> TeacherLaws:
        """Laws of consecutive groups of positions, in one form."""
        ranked = torch.cat([part.ranked_ids for part in parts])
        return TeacherLaws(ranked, torch.cat([part.logprobs for part in parts]), parts[0].whole)

    def select(self, rows: Tensor) -> TeacherLaws:
        """The laws of some positions, in the given order."""
        return TeacherLaws(self.ranked_ids[rows], self.logprobs[rows], self.whole)

    def to(self, device: torch.device) -> TeacherLaws:
        """The same on a device, log-probs in float64 and normalised there."""
        logprobs = normalized_log_probs(self.logprobs.to(device).double())
        return TeacherLaws(self.ranked_ids.to(device), logprobs, self.whole)

    def on_same_outcomes(self, log_probs: Tensor) -> Tensor:
        """Other laws [N, V] over the outcomes of ``logprobs``: as they are, or with the same tokens lumped.

        KL of lumped laws is a lower bound of KL over the vocabulary (data processing).
        """
        return log_probs if self.whole else _lump(log_probs, self.ranked_ids)


@dataclass(frozen=True)
class Measures:
    """A student's figures at the N positions, all float64.

    Attributes:
        c1: S(v*), probability of the teacher's top token.
        c_top: Probability of the teacher's top-k set (C16 of the paper at k = 16).
        kl_teacher_student: KL(T||S), nats.
        kl_student_teacher: KL(S||T), nats.
        entropy: H(S), nats.
    """

    c1: Tensor
    c_top: Tensor
    kl_teacher_student: Tensor
    kl_student_teacher: Tensor
    entropy: Tensor


MEASURES = ("c1", "c_top", "kl_teacher_student", "kl_student_teacher", "entropy")
"""Fields of :class:`Measures`."""


@dataclass(frozen=True)
class Probe:
    """A fixed-prefix probe.

    Attributes:
        sequences: Token ids of prompt and response, each cut after the longest prefix that is asked for.
        positions: Where to measure.
        teacher: The teacher's laws there.
        initial: The initial student's figures there; conflict is its KL(T||S).
        top_k: Size of the teacher's top set in ``initial``, and the default of a measurement.
        vocab_size: Real ids.
        vocabulary: Digest of the tokenizer's vocabulary.
        facts: How the probe was made, for the reader.
        digest: Names the probe in measurements; set once it is on disk.
    """

    sequences: tuple[tuple[int, ...], ...]
    positions: Positions
    teacher: TeacherLaws
    initial: Measures
    top_k: int
    vocab_size: int
    vocabulary: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    digest: str = ""

    def __len__(self) -> int:
        return len(self.positions)


def _lump(log_probs: Tensor, ids: Tensor) -> Tensor:
    """Laws [n, V] as [n, m + 1]: the log-probs of ids [n, m] and the log of the remaining mass, -inf where none is."""
    rest = log_probs.scatter(-1, ids, -torch.inf).logsumexp(dim=-1, keepdim=True)
    return torch.cat([log_probs.gather(-1, ids), rest], dim=-1)

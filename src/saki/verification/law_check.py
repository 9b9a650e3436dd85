"""The one-step law of proposals, acceptances and residual draws on sampled prefixes, by anytime-valid e-values."""

from __future__ import annotations

import math

import torch

from saki.functional import RowKeys, Stream, keyed_uniforms
from saki.rollout.verifier import take
from saki.types import RolloutBatch
from saki.verification.evidence import EventEvidence, UniformEvidence, mean_log_e
from saki.verification.laws import RowLaws, rank_uniforms
from saki.verification.subject import Check, Rounding

ORIGINS = ("proposals", "committed tokens", "residual draws")

REJECTIONS = {
    "rare rejections": (0.0, 0.05),
    "common rejections": (0.05, 0.3),
    "likely rejections": (0.3, 1.0 + 1e-9),
}
"""Rejections by their probability: a fault in one class does not drown in the others."""

EQUAL_BEGINNINGS = "equal beginnings"


class LawEvidence:
    """Collects evidence against the law of a rollout, row by row.

    E-processes, averaged: ranks of proposals under p, of committed tokens under q, of corrections under the residual
    [q - p]+; rejections against -expm1(min(u, 0)), the rare, the common and the likely ones apart; and how often two
    samples of a prompt begin alike.

    Args:
        alpha: False-alarm rate.
        rounding: How far recomputed log-probs may be off.
        seed: Seed of the randomised ranks.
    """

    def __init__(self, alpha: float, rounding: Rounding, seed: int) -> None:
        self.alpha, self.rounding, self.seed = alpha, rounding, seed
        slack = 2 * rounding.gap
        self.ranks = {name: UniformEvidence() for name in ORIGINS}
        self.events = {name: EventEvidence(slack) for name in (*REJECTIONS, EQUAL_BEGINNINGS)}
        self.num_tokens = self.num_rows = 0
        self.impossible: list[str] = []

    def add(self, batch: RolloutBatch, laws: list[tuple[int, RowLaws]]) -> None:
        """Add a batch with the exact laws of its rows."""
        first_tokens: dict[int, int] = {}
        for row, exact in laws:
            count = exact.log_p.shape[0]
            ids, proposals = batch.completion_ids[row, :count], batch.proposal_ids[row, :count]
            corrected = batch.correction_mask[row, :count]
            noise = self._noise(count)
            p, q = exact.log_p.exp(), exact.log_q.exp()
            self.ranks["proposals"].add(rank_uniforms(p, exact.log_p, proposals, noise[:, 0]))
            self.ranks["committed tokens"].add(rank_uniforms(q, exact.log_ratio, ids, noise[:, 1]))
            self._add_residuals(exact, ids, corrected, noise[:, 2])
            rejection = -torch.expm1(take(exact.log_ratio, proposals).clamp(max=0.0))
            for name, (low, high) in REJECTIONS.items():
                chosen = (rejection >= low) & (rejection < high)
                self.events[name].add(corrected[chosen], rejection[chosen])
            prompt = int(batch.prompt_keys[row])
            if prompt in first_tokens:
                same = torch.tensor([first_tokens[prompt] == int(ids[0])])
                self.events[EQUAL_BEGINNINGS].add(same, q[0].square().sum().unsqueeze(0))
                del first_tokens[prompt]  # pairs of samples are disjoint, hence independent
            else:
                first_tokens[prompt] = int(ids[0])
            self.num_tokens += count
            self.num_rows += 1

    def _add_residuals(self, exact: RowLaws, ids: torch.Tensor, corrected: torch.Tensor, noise: torch.Tensor) -> None:
        rows = torch.nonzero(corrected).flatten()
        if not rows.numel():
            return
        u = exact.log_ratio[rows]
        if bool((take(u, ids[rows]) < -4 * self.rounding.allowed).any()):
            self.impossible.append("a correction at a token that p already covers")
        weights = torch.where(u > 0, exact.log_p[rows].exp() * torch.expm1(u.clamp(min=0.0)), 0.0)
        total = weights.sum(dim=1)
        # A residual of no more than rounding's size says nothing of its law.
        known = total > 100 * self.rounding.gap
        if bool(known.any()):
            residual = weights[known] / total[known].unsqueeze(1)
            chosen = rows[known]
            self.ranks["residual draws"].add(rank_uniforms(residual, u[known], ids[chosen], noise[chosen]))

    def _noise(self, count: int) -> torch.Tensor:
        """[count, 3] uniforms of their own stream, keyed by the row's number."""
        row = torch.tensor([self.num_rows])
        keys = RowKeys(self.seed, row, torch.zeros_like(row))
        return keyed_uniforms(keys, torch.arange(count).unsqueeze(0), Stream.PLACEMENT, 3)[0]

    @property
    def log_e(self) -> float:
        """log of the mean of the e-values."""
        if self.impossible:
            return math.inf
        return mean_log_e([part.log_e for part in self._parts().values()])

    def _parts(self) -> dict[str, UniformEvidence | EventEvidence]:
        return {**self.ranks, **self.events}

    @property
    def rejected(self) -> bool:
        """Whether the law is refused at the false-alarm rate alpha."""
        return self.log_e >= -math.log(self.alpha)

    def check(self) -> Check:
        """The verdict."""
        corrections = sum(self.events[name].num_events for name in REJECTIONS)
        expected = sum(self.events[name].expected for name in REJECTIONS)
        parts = {name: part.log_e for name, part in self._parts().items()}
        detail = (
            f"{self.num_tokens} tokens, {corrections} corrections where {expected:.1f} were "
            f"expected; log e-value {self.log_e:.1f}, refused from {-math.log(self.alpha):.1f} on"
        )
        if self.rejected:
            worst = max(parts, key=lambda name: parts[name])
            detail += f"; {self.impossible[0] if self.impossible else 'strongest against ' + worst}"
        figures = {
            "tokens": self.num_tokens,
            "completions": self.num_rows,
            "corrections": corrections,
            "expected_corrections": expected,
            "log_e": self.log_e,
            "log_e_limit": -math.log(self.alpha),
            "log_e_parts": parts,
            "counts": {name: part.num for name, part in self._parts().items()},
        }
        return Check("one-step law", not self.rejected, detail, figures)

"""Deliberate bugs of a guided rollout, each as somebody could write it. The law tests must catch every one.

Most are work units put into the engine through ``ResidentEngine.unit_type``; ``saki verify`` is tried against the same
ones. The rest replace one function of the mathematics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch

from saki.functional import RowKeys, Stream, bridge_log_ratio, keyed_uniforms, random, sampling
from saki.rollout import HFDecoder, ResidentEngine, unit, verifier
from saki.rollout.unit import WorkUnit
from saki.rollout.verifier import VerifiedBlock, take, token_log_ratio


def redrawn(unit_: WorkUnit, verified: VerifiedBlock, log_p, log_t, log_weights) -> VerifiedBlock:
    """The block with every residual draw replaced by a draw from other weights [R, K, V], metadata to match."""
    positions = unit_._positions(log_p.shape[1])
    uniforms = keyed_uniforms(unit_.keys, positions, Stream.RESIDUAL, log_p.shape[-1])
    draws = sampling.exponential_race(log_weights, uniforms)
    return with_tokens(verified, torch.where(verified.corrections, draws, verified.tokens), log_p, log_t)


def with_tokens(verified: VerifiedBlock, tokens, log_p, log_t) -> VerifiedBlock:
    """The block with other committed tokens, and their log-probs."""
    log_p_y, log_t_y = take(log_p, tokens), take(log_t, tokens)
    return replace(
        verified,
        tokens=tokens,
        student_logprobs=log_p_y,
        teacher_logprobs=log_t_y,
        behavior_logprobs=log_p_y + token_log_ratio(log_p_y, log_t_y, verified.bridge),
    )


class ResidualFromQ(WorkUnit):
    def _verify(self, log_p, log_t, block):
        verified = super()._verify(log_p, log_t, block)
        u = bridge_log_ratio(log_p, log_t, verified.bridge.beta, verified.bridge.log_partition)
        return redrawn(self, verified, log_p, log_t, torch.where(log_p > -torch.inf, log_p + u, -torch.inf))


class ResidualFromTeacher(WorkUnit):
    def _verify(self, log_p, log_t, block):
        return redrawn(self, super()._verify(log_p, log_t, block), log_p, log_t, log_t)


class ResidualWithoutProposal(WorkUnit):
    """q with the rejected token struck out, as the residual of a greedy verifier would be."""

    def _verify(self, log_p, log_t, block):
        verified = super()._verify(log_p, log_t, block)
        u = bridge_log_ratio(log_p, log_t, verified.bridge.beta, verified.bridge.log_partition)
        log_q = torch.where(log_p > -torch.inf, log_p + u, -torch.inf)
        return redrawn(self, verified, log_p, log_t, log_q.scatter(-1, block.unsqueeze(-1), -torch.inf))


class StaleSuffix(WorkUnit):
    """What was speculated behind a rejected proposal is kept."""

    def _verify(self, log_p, log_t, block):
        verified = super()._verify(log_p, log_t, block)
        return replace(verified, counts=torch.full_like(verified.counts, block.shape[1]))


class StaleCache(WorkUnit):
    """After a correction the caches still hold the rejected token."""

    def _commit(self, counts, broken, tokens, **metadata):
        before, row_ids = self.recorder.lengths.clone(), self.row_ids
        super()._commit(counts, broken, tokens, **metadata)
        taken = (self.recorder.lengths - before)[row_ids]
        at = (taken - 1).clamp(min=0)
        corrected = take_bool(metadata["correction_mask"], at) & (taken > 0)
        self.pending = torch.where(corrected, take(metadata["proposal_ids"], at), self.pending)


class UncoupledBonus(WorkUnit):
    """The last position of a fully accepted block is committed without a coupling of its own."""

    def _verify(self, log_p, log_t, block):
        verified = super()._verify(log_p, log_t, block)
        width = block.shape[1]
        bonus = (verified.counts >= width) & ~verified.corrections[:, :-1].any(dim=1) & (width > 1)
        last = torch.arange(width) == width - 1
        kept = torch.where(bonus.unsqueeze(1) & last, block, verified.tokens)
        corrections = verified.corrections & ~(bonus.unsqueeze(1) & last)
        return replace(with_tokens(verified, kept, log_p, log_t), corrections=corrections)


class AnotherStudentLaw(WorkUnit):
    """Proposals are drawn at temperature 1 and verified at temperature 1.25."""

    def _verify(self, log_p, log_t, block):
        return super()._verify(torch.log_softmax(log_p / 1.25, dim=-1), log_t, block)


class FlagMoved(WorkUnit):
    """Where a block is cut by a stop token or the cap, the flag of what was cut moves to the last token kept."""

    def _commit(self, counts, broken, tokens, **metadata):
        room = self.request.max_completion_length - self.recorder.lengths[self.row_ids]
        stops = torch.isin(tokens, self.stop_ids) & (torch.arange(tokens.shape[1]) < counts.unsqueeze(1))
        kept = torch.minimum(counts, room)
        kept = torch.where(stops.any(dim=1), torch.minimum(kept, stops.long().argmax(dim=1) + 1), kept)
        flags = metadata["correction_mask"].clone()
        cut = torch.nonzero((kept < counts) & (kept > 0)).flatten()
        flags[cut, kept[cut] - 1] |= flags[cut].any(dim=1)
        super()._commit(counts, broken, tokens, **(metadata | {"correction_mask": flags}))


class DiscardedStop(WorkUnit):
    """A stop token in the discarded part of a block ends the row."""

    def _commit(self, counts, broken, tokens, **metadata):
        proposed = torch.isin(metadata["proposal_ids"], self.stop_ids).any(dim=1)
        super()._commit(counts, broken, tokens, **metadata)
        ended = proposed & self.alive
        self._codes = torch.where(ended, unit.STOP, torch.tensor(self._codes)).tolist()
        self.alive = self.alive & ~ended


class TeacherOneOff(WorkUnit):
    """The teacher's law of the next position verifies each proposal."""

    def _teacher_block(self, teacher, block):
        log_t = super()._teacher_block(teacher, block)
        return torch.cat([log_t[:, 1:], log_t[:, -1:]], dim=1)


class LastRadius(WorkUnit):
    """The radius of the request before this one is in force."""

    seen: tuple[int, float] | None = None  # of the present request: seed and the radius that it gets

    def __init__(self, student, teacher, stop_ids, rows, request, *rest):
        kind = type(self)
        if kind.seen is None or kind.seen[0] != request.seed:
            kind.seen = (request.seed, kind.newest if kind.newest is not None else request.trust_region_radius)
            kind.newest = request.trust_region_radius
        super().__init__(student, teacher, stop_ids, rows, replace(request, trust_region_radius=kind.seen[1]), *rest)

    newest: float | None = None


class OneUniformABlock(WorkUnit):
    """One acceptance uniform serves all positions of a block."""

    def _verify(self, log_p, log_t, block):
        def shared(keys, positions, stream, num=1):
            same = positions[:, :1].expand_as(positions) if stream == Stream.ACCEPT else positions
            return keyed_uniforms(keys, same, stream, num)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(verifier, "keyed_uniforms", shared)
            return super()._verify(log_p, log_t, block)


class AcceptanceFloor(WorkUnit):
    """The likelihood ratio is clamped from below, so impossible tokens pass now and then."""

    def _verify(self, log_p, log_t, block):
        accept = verifier.accept_proposals
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(verifier, "accept_proposals", lambda u, uniforms: accept(u.clamp(min=-0.5), uniforms))
            return super()._verify(log_p, log_t, block)


class NeighbourCache(WorkUnit):
    """Compaction hands the remaining rows each other's caches."""

    def _compact(self):
        before = self.row_ids.shape[0]
        super()._compact()
        if self.row_ids.shape[0] < before:
            turned = torch.arange(self.row_ids.shape[0]).flip(0)
            for cache in self.caches:
                cache.keep_rows(turned)


class SharedRandomNumbers(WorkUnit):
    """All samples of a prompt draw the same random numbers."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        keys = self.all_keys
        self.all_keys = RowKeys(keys.seed, keys.prompt_keys, torch.zeros_like(keys.sample_indices))


class StopOneLate(WorkUnit):
    """A stop token in the middle of a block is overlooked."""

    def _commit(self, counts, broken, tokens, **metadata):
        last = torch.arange(tokens.shape[1]) == counts.unsqueeze(1) - 1
        known = self.stop_ids
        hidden = torch.where(torch.isin(tokens, known) & ~last, -2, tokens)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(unit.torch, "isin", lambda _tokens, stops: hidden_isin(hidden, stops))
            super()._commit(counts, broken, tokens, **metadata)


def hidden_isin(tokens, stops):
    return (tokens.unsqueeze(-1) == stops).any(dim=-1)


def take_bool(values, at):
    return take(values.long(), at).bool()


def _padding_sampled(patch: pytest.MonkeyPatch) -> None:
    """The decoders believe the width of the narrower model instead of the tokenizer."""
    patch.setattr(HFDecoder, "__init__", _widened(HFDecoder.__init__))


def _widened(init):
    def widened(self, model, vocab_size):
        init(self, model, vocab_size + 2)

    return widened


def float32_uniforms(patch: pytest.MonkeyPatch) -> None:
    """Uniforms as most libraries give them: on multiples of 2**-24."""
    exact = random._open_uniform
    patch.setattr(random, "_open_uniform", lambda high, low: exact(high, low).float().double())


def _in_engine(kind: type[WorkUnit]) -> Callable[[pytest.MonkeyPatch], None]:
    def apply(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(ResidentEngine, "unit_type", type(kind.__name__, (kind,), {}))  # with state of its own

    return apply


@dataclass(frozen=True)
class Mutant:
    """A bug.

    Attributes:
        name: What is wrong, in a few words.
        apply: Switches it on.
        case: Text of the case that must catch it, as ``str(Case)`` begins.
    """

    name: str
    apply: Callable[[pytest.MonkeyPatch], None]
    case: str


ENGINE_MUTANTS = (
    Mutant("residual drawn from q", _in_engine(ResidualFromQ), "joint parity K=1"),
    Mutant("residual drawn from T", _in_engine(ResidualFromTeacher), "joint parity K=1"),
    Mutant("residual is q without the proposal", _in_engine(ResidualWithoutProposal), "joint far K=3"),
    Mutant("stale suffix kept after a rejection", _in_engine(StaleSuffix), "sequence parity K=3 radius=0.3"),
    Mutant("stale cache after roll-back", _in_engine(StaleCache), "sequence parity K=3 radius=0.3"),
    Mutant("bonus position without coupling", _in_engine(UncoupledBonus), "sequence parity K=3 radius=0.3"),
    Mutant("acceptance against another p", _in_engine(AnotherStudentLaw), "sequence parity K=3 radius=0.3"),
    Mutant("flag on the wrong token at a cut", _in_engine(FlagMoved), "joint parity K=3"),
    Mutant("stop token of a discarded suffix obeyed", _in_engine(DiscardedStop), "sequence parity K=3 radius=0.3"),
    Mutant("stop token inside a block overlooked", _in_engine(StopOneLate), "sequence parity K=3 radius=0.3"),
    Mutant("teacher one position off", _in_engine(TeacherOneOff), "sequence parity K=3 radius=0.3"),
    Mutant("radius of the last request", _in_engine(LastRadius), "sequence parity K=3 radius=0.001"),
    Mutant("one acceptance uniform for a block", _in_engine(OneUniformABlock), "joint parity K=3"),
    Mutant("likelihood ratio clamped from below", _in_engine(AcceptanceFloor), "joint far K=3"),
    Mutant("compaction mixes caches of rows", _in_engine(NeighbourCache), "sequence parity K=3 radius=0.3"),
    Mutant("samples share random numbers", _in_engine(SharedRandomNumbers), "sequence parity K=3 radius=0.3"),
    Mutant("padding id sampled", _padding_sampled, "sequence qwen3 K=3"),
)
"""Bugs that live in the engine."""

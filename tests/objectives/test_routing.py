"""Placement controls: how many positions, which ones, and with what odds."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from saki.functional import RowKeys, Stream, keyed_uniforms
from saki.models import TableLM
from saki.objectives import (
    NO_FACTS,
    TokenFacts,
    route_by_entropy,
    route_by_preference,
    route_by_tv,
    route_corrections,
    route_lowest,
    route_randomly,
)
from saki.rollout import ResidentEngine, TableDecoder
from saki.types import Prompt, RolloutBatch, RolloutRequest
from tests.statistical.law import chi_square_p_value

ALPHA = 1e-4  # false-alarm rate of each law below; keys are fixed, so a pass is the same at every run


def made_batch(tv: list[float], num_corrections: int, rows: int, lengths: list[int] | None = None) -> RolloutBatch:
    """Rows with the given TV at each position and corrections at the last positions, where TV must not matter."""
    width = len(tv)
    lengths = lengths or [width] * rows
    mask = torch.arange(width) < torch.tensor(lengths).unsqueeze(1)
    corrections = torch.zeros(rows, width, dtype=torch.bool)
    corrections[:, width - num_corrections :] = True
    value = torch.tensor(tv).expand(rows, -1)
    zeros, ids = torch.zeros(rows, width), torch.zeros(rows, width, dtype=torch.long)
    return RolloutBatch(
        prompt_ids=torch.zeros(rows, 1, dtype=torch.long),
        prompt_mask=torch.ones(rows, 1, dtype=torch.bool),
        completion_ids=ids,
        response_mask=mask,
        proposal_ids=ids,
        correction_mask=corrections & mask,
        student_logprobs=zeros,
        behavior_logprobs=zeros,
        teacher_logprobs=zeros,
        teacher_mode_ids=ids,
        beta=zeros,
        kl=zeros,
        tv=torch.where(mask, value, torch.nan),
        acceptance_probability=zeros,
        proposal_logprobs=zeros,
        proposal_teacher_logprobs=zeros,
        mode_student_logprobs=zeros,
        mode_teacher_logprobs=zeros,
        prompt_keys=torch.arange(rows),
        sample_indices=torch.zeros(rows, dtype=torch.long),
        finish_reasons=("length",) * rows,
        student_version=0,
        trust_region_radius=0.1,
        seed=11,
    )


@pytest.fixture(scope="module")
def rolled():
    engine = ResidentEngine(TableDecoder(TableLM(4, seed=1)), TableDecoder(TableLM(4, seed=2, sharpness=2.0)), [0])
    request = RolloutRequest(seed=1, max_completion_length=12, trust_region_radius=0.3, num_generations=300)
    return engine.generate([Prompt(0, (1,))], request)


@pytest.mark.parametrize("route", [route_randomly, route_by_tv])
def test_each_trajectory_keeps_its_number_of_corrections(rolled, route):
    chosen = route(rolled).bool()
    assert torch.equal(chosen.sum(dim=1), rolled.correction_mask.sum(dim=1))
    assert not (chosen & ~rolled.response_mask).any()
    assert not torch.equal(chosen, route_corrections(rolled).bool())
    assert torch.equal(route(rolled), route(rolled))  # keyed: the same wherever and whenever it is asked


def test_placement_does_not_look_at_where_the_corrections_are():
    early, late = (made_batch([0.1, 0.2, 0.3, 0.4], 2, 50) for _ in range(2))
    flipped = early.correction_mask.flip(1)
    early.correction_mask.copy_(flipped)
    for route in (route_randomly, route_by_tv):
        assert torch.equal(route(early), route(late))


def sequential_law(weights: list[float], count: int) -> dict[object, float]:
    """Odds of each set of positions when drawing one after the other in proportion to the weights that are left."""
    odds: dict[object, float] = {}
    for order in itertools.permutations(range(len(weights)), count):
        left, probability = sum(weights), 1.0
        for place in order:
            probability *= weights[place] / left
            left -= weights[place]
        odds[frozenset(order)] = odds.get(frozenset(order), 0.0) + probability
    return odds


@pytest.mark.parametrize("count", [1, 2, 3])
def test_tv_weighted_placement_is_sequential_sampling_without_replacement(count):
    weights, rows = [0.4, 0.05, 0.3, 0.1], 4000
    chosen = route_by_tv(made_batch(weights, count, rows)).bool()
    counts: dict[object, int] = {}
    for row in chosen:
        places = frozenset(torch.nonzero(row).flatten().tolist())
        counts[places] = counts.get(places, 0) + 1
    assert chi_square_p_value(counts, sequential_law(weights, count), rows) > ALPHA
    assert chi_square_p_value(counts, sequential_law([0.25] * 4, count), rows) < ALPHA  # and the test can fail


def test_random_placement_is_uniform():
    rows = 4000
    chosen = route_randomly(made_batch([0.4, 0.05, 0.3, 0.0], 2, rows)).bool()
    counts: dict[object, int] = {}
    for row in chosen:
        places = frozenset(torch.nonzero(row).flatten().tolist())
        counts[places] = counts.get(places, 0) + 1
    assert chi_square_p_value(counts, sequential_law([1.0] * 4, 2), rows) > ALPHA


def test_positions_without_tv_fill_up_uniformly():
    rows = 4000
    chosen = route_by_tv(made_batch([0.0, 0.7, 0.0, 0.0], 2, rows)).bool()
    assert chosen[:, 1].all()
    counts: dict[object, int] = {}
    for row in chosen:
        other = next(i for i in torch.nonzero(row).flatten().tolist() if i != 1)
        counts[other] = counts.get(other, 0) + 1
    assert chi_square_p_value(counts, {0: 1 / 3, 2: 1 / 3, 3: 1 / 3}, rows) > ALPHA


def test_the_keys_are_those_of_appendix_d():
    batch = made_batch([0.4, 0.05, 0.3, 0.1], 1, 20, lengths=[4] * 10 + [3] * 10)
    keys = RowKeys(batch.seed, batch.prompt_keys, batch.sample_indices)
    uniforms = keyed_uniforms(keys, torch.arange(4).expand(20, -1), Stream.PLACEMENT).squeeze(-1)
    race = -uniforms.log() / batch.tv
    for row in range(20):
        valid = int(batch.lengths[row])
        expected = torch.zeros(4, dtype=torch.long)
        if batch.correction_mask[row].any():  # the correction at position 3 lies outside the shorter rows
            expected[int(race[row, :valid].argmin())] = 1
        assert torch.equal(route_by_tv(batch)[row], expected)


def test_sign_and_entropy_routes():
    batch = made_batch([0.1] * 5, 0, 2, lengths=[5, 4])
    teacher, student = torch.tensor([[-1.0, -3.0, -2.0, -1.5, -9.0]] * 2), torch.full((2, 5), -2.0)
    batch = replace(batch, teacher_logprobs=teacher, student_logprobs=student)
    assert route_by_preference(batch)[0].tolist() == [0, 1, 1, 0, 1]
    # T - p = 0.23, -0.09, 0, 0.09, -0.14
    assert route_by_preference(batch, 0.1)[0].tolist() == [0, 1, 1, 1, 1]
    assert route_by_preference(batch, -0.1)[0].tolist() == [0, 0, 0, 0, 1]
    assert not route_by_preference(batch, -1.0).any()
    certain = replace(batch, teacher_logprobs=torch.full((2, 5), -50.0), student_logprobs=torch.zeros(2, 5))
    assert route_by_preference(certain, -1.0).all()  # T(y) - p(y) is -1 itself
    assert route_by_preference(batch, 1.0).all()
    entropy = torch.arange(10.0).view(2, 5)
    entropy[1, 4] = torch.nan
    facts = TokenFacts(teacher_entropy=entropy)
    assert route_by_entropy(batch, facts, 4.5).tolist() == [[0] * 5, [1, 1, 1, 1, 0]]
    # nine valid values 0 .. 8: the 80th percentile is 7, and 8 alone lies above it
    assert route_by_entropy(batch, facts, quantile=0.8).tolist() == [[0] * 5, [0, 0, 0, 1, 0]]


def test_the_least_likely_tokens_are_those_of_the_whole_step():
    batch = made_batch([0.1] * 5, 0, 2, lengths=[5, 3])
    logprobs = -torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0], [6.0, 7.0, 8.0, 9.0, 9.0]])  # the last two are no tokens
    batch = replace(batch, student_logprobs=logprobs)
    lowest = route_lowest(batch, NO_FACTS, 0.3) == 0  # two of eight
    assert (lowest & batch.response_mask).tolist() == [[False] * 5, [False, True, True, False, False]]
    assert int((route_lowest(batch, NO_FACTS, 0.01) == 0)[batch.response_mask].sum()) == 1  # one at least
    assert not route_lowest(batch, NO_FACTS, 1.0)[batch.response_mask].any()
    elsewhere = TokenFacts(step_logprobs=-torch.arange(1.0, 17.0))  # 16 tokens, eight of them on another rank
    assert int((route_lowest(batch, elsewhere, 0.6) == 0)[batch.response_mask].sum()) == 1  # those from 8 on
    equal = replace(batch, student_logprobs=torch.full((2, 5), -1.0))
    assert not route_lowest(equal, NO_FACTS, 0.2).any()  # ties go together, whatever the order of rows
    certain = replace(batch, student_logprobs=torch.tensor([[-1.0, 0, 0, 0, 0]] * 2))
    assert (route_lowest(certain, NO_FACTS, 0.5) == 0).nonzero().tolist() == [[0, 0], [1, 0]]
    silent = replace(batch, response_mask=torch.zeros(2, 5, dtype=torch.bool))
    assert route_lowest(silent, NO_FACTS, 0.2).shape == (2, 5)

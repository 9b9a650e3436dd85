"""Units: every row once, fixed by the rows alone, longest first."""

from __future__ import annotations

import random

import torch
from hypothesis import given
from hypothesis import strategies as st

from saki.rollout.pool.units import LengthForecast, cut_units, join_units
from saki.rollout.rows import expand_rows
from saki.types import Prompt, RolloutRequest
from tests.rollout.contract import PROMPTS, STOPS, STUDENT, TEACHER, request
from tests.rollout.served import tiny_decoder

PROMPT = st.builds(
    lambda key, samples: Prompt(key, (3 + key % 5,) * (1 + key % 3), samples),
    st.integers(0, 6),
    st.one_of(st.none(), st.lists(st.integers(0, 9), min_size=1, max_size=7).map(tuple)),
)


def identity(prompt, sample):
    return prompt.key, prompt.token_ids, sample


@given(st.lists(PROMPT, min_size=1, max_size=6), st.integers(1, 9), st.randoms())
def test_every_row_is_in_one_unit_and_order_is_of_no_account(prompts, unit_rows, generator: random.Random):
    asked = RolloutRequest(seed=1, max_completion_length=4, num_generations=3)
    rows = expand_rows(prompts, 3)
    units = cut_units(prompts, asked, unit_rows)
    assert sorted(place for unit in units for place in unit.places) == list(range(len(rows)))
    for unit in units:
        assert 1 <= len(unit) <= unit_rows
        own = expand_rows(unit.prompts, 3)
        for place, row in zip(unit.places, own, strict=True):
            assert identity(row.prompt, row.sample_index) == identity(rows[place].prompt, rows[place].sample_index)
    # The same rows, one prompt each, in another order: the same units.
    single = [Prompt(row.prompt.key, row.prompt.token_ids, (row.sample_index,)) for row in rows]
    generator.shuffle(single)
    assert [unit.prompts for unit in cut_units(single, asked, unit_rows)] == [unit.prompts for unit in units]


def test_samples_of_a_prompt_stay_together_where_they_fit():
    units = cut_units(
        [Prompt(key, (3,)) for key in range(5)], RolloutRequest(seed=1, max_completion_length=4, num_generations=3), 7
    )
    assert [[prompt.key for prompt in unit.prompts] for unit in units] == [[0, 1], [2, 3], [4]]


def test_rows_come_back_in_the_order_of_the_request():
    from saki.rollout import ResidentEngine

    engine = ResidentEngine(tiny_decoder(**STUDENT), tiny_decoder(**TEACHER), STOPS)
    asked = request()
    units = cut_units(PROMPTS, asked, 4)
    joined = join_units(units, [engine.generate(unit.prompts, asked) for unit in units])
    whole = engine.generate(PROMPTS, asked)
    assert torch.equal(joined.completion_ids, whole.completion_ids)
    assert torch.equal(joined.sample_indices, whole.sample_indices)
    assert torch.equal(joined.prompt_ids, whole.prompt_ids)


def test_what_took_long_before_goes_first():
    from saki.rollout import ResidentEngine

    engine = ResidentEngine(tiny_decoder(**STUDENT), tiny_decoder(**TEACHER), STOPS)
    asked = request(num_generations=4, max_completion_length=30)
    prompts = [Prompt(key, (3 + key,)) for key in range(8)]
    units, forecast = cut_units(prompts, asked, 4), LengthForecast()
    assert forecast.longest_first(units, asked) == list(range(8))
    batch = engine.generate(prompts, asked)
    forecast.observe(batch)
    lengths = batch.lengths.view(8, 4).sum(dim=1)
    assert lengths.unique().numel() > 3
    ordered = lengths[forecast.longest_first(units, asked)]
    assert ordered.tolist() == sorted(lengths.tolist(), reverse=True)
    # A prompt that has not been seen counts as the average.
    new = cut_units([Prompt(100, (3,)), *prompts], asked, 4)
    place = forecast.longest_first(new, asked).index(8)
    assert 0 < place < 8

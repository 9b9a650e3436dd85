"""The records refuse what does not fit."""

from dataclasses import replace

import pytest
import torch

from saki.models import TableLM
from saki.rollout import ResidentEngine, TableDecoder
from saki.types import Prompt, RolloutRequest


@pytest.fixture
def batch():
    engine = ResidentEngine(TableDecoder(TableLM(4, seed=1)), TableDecoder(TableLM(4, seed=2)), [0])
    request = RolloutRequest(seed=1, max_completion_length=5, num_generations=3, trust_region_radius=0.1)
    return engine.generate([Prompt(0, (1, 2)), Prompt(1, (3,))], request)


@pytest.mark.parametrize(
    ("field", "message"),
    [("beta", "beta has shape"), ("prompt_keys", "prompt_keys has shape"), ("prompt_ids", "must agree")],
)
def test_shapes_are_checked(batch, field, message):
    with pytest.raises(ValueError, match=message):
        replace(batch, **{field: getattr(batch, field)[:-1]})
    with pytest.raises(ValueError, match="finish reasons"):
        replace(batch, finish_reasons=())


def test_rows_are_selected_in_the_given_order(batch):
    chosen = batch.select([4, 0])
    assert chosen.sample_indices.tolist() == [1, 0]
    assert chosen.completion_token_ids(0) == batch.completion_token_ids(4)
    assert chosen.prompt_token_ids(0) == [3]
    assert len(chosen) == 2
    assert int(chosen.lengths.sum()) == chosen.num_valid_tokens


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"key": -1, "token_ids": (1,)}, "prompt key"),
        ({"key": 2**32, "token_ids": (1,)}, "prompt key"),
        ({"key": 0, "token_ids": ()}, "no tokens"),
        ({"key": 0, "token_ids": (1,), "sample_indices": (-1,)}, "sample indices"),
    ],
)
def test_prompts_are_checked(arguments, message):
    with pytest.raises(ValueError, match=message):
        Prompt(**arguments)


def test_radius_zero_is_the_student_only_path():
    assert RolloutRequest(seed=0, max_completion_length=1).student_only
    assert RolloutRequest(seed=0, max_completion_length=1, behavior="student", trust_region_radius=0.1).student_only
    assert not RolloutRequest(seed=0, max_completion_length=1, trust_region_radius=1e-9).student_only
    with pytest.raises(ValueError, match="trust_region_radius"):
        RolloutRequest(seed=0, max_completion_length=1, trust_region_radius=float("nan"))


def test_fills_mark_what_is_not_there(batch):
    outside = ~batch.response_mask
    assert outside.any()
    assert torch.isnan(batch.kl[outside]).all()
    assert (batch.proposal_ids[outside] == -1).all()

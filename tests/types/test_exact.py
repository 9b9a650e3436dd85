"""Keywords that are no fields: a sampling option says why it is refused, any other names the nearest."""

import copy
import pickle
from dataclasses import replace

import pytest

from saki.types import EXACT_LAW, Prompt, RolloutRequest, check_number


def test_requests_refuse_sampling_options_and_unknown_keys():
    with pytest.raises(ValueError, match=f"top_p cannot be honoured: {EXACT_LAW}"):
        RolloutRequest(seed=0, max_completion_length=4, top_p=0.9)
    with pytest.raises(ValueError, match="unknown key 'blok_size' in RolloutRequest; did you mean 'block_size'"):
        RolloutRequest(seed=0, max_completion_length=4, blok_size=2)


def test_copies_of_a_request_stay_equal():
    request = RolloutRequest(seed=3, max_completion_length=4)
    assert copy.deepcopy(request) == pickle.loads(pickle.dumps(request)) == replace(request) == request


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1.5}, "seed must be a whole number"),
        ({"block_size": 2.0}, "block_size must be a whole number, got 2.0"),
        ({"trust_region_radius": float("nan")}, "trust_region_radius must be finite"),
        ({"trust_region_radius": -1}, "trust_region_radius must be at least 0"),
        ({"num_generations": 0}, "num_generations must be at least 1"),
    ],
)
def test_requests_check_their_numbers(changes, message):
    with pytest.raises(ValueError, match=message):
        RolloutRequest(**({"seed": 0, "max_completion_length": 4} | changes))


def test_prompts_are_ids():
    with pytest.raises(ValueError, match="the token_ids of prompt 7 must be a tuple of ints"):
        Prompt(7, "hello")


def test_numbers_have_kinds_and_limits():
    check_number("x", 0.5, least=0, below=1)
    check_number("x", 3, whole=True, positive=True)
    for value, options, message in (
        ("1", {}, "x must be a number, got '1'"),
        (True, {"whole": True}, "x must be a whole number, got True"),
        (0, {"positive": True}, "x must be above 0, got 0"),
        (1.0, {"below": 1}, "x must be below 1, got 1.0"),
        (-1, {"least": 0}, "x must be at least 0, got -1"),
        (float("inf"), {}, "x must be finite, got inf"),
    ):
        with pytest.raises(ValueError, match=message):
            check_number("x", value, **options)

"""The registry, routing, and methods from a user's own code."""

import pytest
import torch

from saki.methods import (
    REVERSE_KL,
    Branch,
    Method,
    UnknownMethodError,
    get_method,
    method_names,
    register_method,
    registry,
)
from saki.models import TableLM
from saki.objectives import route_to_first
from saki.rollout import ResidentEngine, TableDecoder
from saki.types import Prompt, RolloutRequest

OWN = Method("own", "A method of a user.", "student", route_to_first, (REVERSE_KL,))


@pytest.fixture
def batch():
    engine = ResidentEngine(TableDecoder(TableLM(4, seed=1)), TableDecoder(TableLM(4, seed=2, sharpness=2.0)), [0])
    request = RolloutRequest(seed=1, max_completion_length=6, trust_region_radius=0.2, num_generations=40)
    return engine.generate([Prompt(0, (1,))], request)


def test_paper_methods():
    assert {"opd", "trb", "saki"} <= set(method_names())
    assert get_method("opd").behavior == "student"
    assert get_method("trb").behavior == get_method("saki").behavior == "bridge"


def test_saki_routes_corrections_and_trb_does_not(batch):
    routes = get_method("saki").route(batch)
    assert torch.equal(routes == 1, batch.correction_mask)
    assert torch.equal(routes == -1, ~batch.response_mask)
    assert int(batch.correction_mask.sum()) > 0
    assert set(get_method("trb").route(batch)[batch.response_mask].tolist()) == {0}


@pytest.mark.parametrize("name", ["random_tm", "tv_weighted_tm"])
def test_controls_place_exactly_as_many_updates_as_there_are_corrections(name, batch):
    routes = get_method(name).route(batch)
    assert torch.equal((routes == 1).sum(dim=1), batch.correction_mask.sum(dim=1))
    assert len(set(batch.correction_mask.sum(dim=1).tolist())) > 2  # trajectories differ in their number
    assert not torch.equal(routes == 1, batch.correction_mask)
    assert torch.equal(routes == -1, ~batch.response_mask)


def test_unknown_names_point_to_the_nearest():
    with pytest.raises(UnknownMethodError, match="did you mean 'saki'"):
        get_method("sakki")
    with pytest.raises(UnknownMethodError, match="cannot import"):
        get_method("no.such.module:METHOD")
    with pytest.raises(UnknownMethodError, match=r"expected a saki\.methods\.Method"):
        get_method("saki.methods:get_method")


def test_own_methods_by_name_and_by_import(monkeypatch):
    monkeypatch.setattr(registry, "_METHODS", dict(registry._METHODS))
    register_method(OWN)
    register_method(OWN)
    assert get_method("own") is OWN
    with pytest.raises(ValueError, match="registered already"):
        register_method(Method("own", "Another.", "student", route_to_first, (REVERSE_KL,)))
    assert get_method("saki.methods.paper:SAKI") is get_method("saki")


def test_records_are_checked(batch):
    with pytest.raises(ValueError, match="no branches"):
        Method("empty", "", "student", route_to_first, ())
    with pytest.raises(ValueError, match="repeats"):
        Method("twice", "", "student", route_to_first, (REVERSE_KL, Branch("reverse_kl", *[None] * 2)))
    wrong = Method("wrong", "", "bridge", lambda rollout: rollout.correction_mask.long() + 1, (REVERSE_KL,))
    with pytest.raises(ValueError, match="router of method 'wrong'"):
        wrong.route(batch)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("aopd", {"top_k": 0}, "top_k"),
        ("aopd", {"aopd_threshold": 1.5}, r"aopd_threshold must lie in \[-1, 1\]"),
        ("entropy_aware", {"entropy_quantile": 1.5}, r"entropy_quantile must lie in \[0, 1\]"),
        ("entropy_aware", {"entropy_threshold": -0.1}, "entropy_threshold"),
        ("entropy_aware", {"entropy_threshold": 0.5, "entropy_quantile": 0.8}, "give one of them"),
        ("entropy_aware", {"forward_weight": -1.0}, "forward_weight"),
        ("opsa", {"token_fraction": 0.0}, r"token_fraction must lie in \(0, 1\]"),
    ],
)
def test_options_out_of_range_are_refused(name, options, words):
    with pytest.raises(ValueError, match=words):
        get_method(name, options)


def test_only_a_quantile_looks_at_the_entropies_of_the_whole_step():
    assert get_method("entropy_aware").router_needs == {"teacher_entropy"}
    quantile = get_method("entropy_aware", {"entropy_quantile": 0.8})
    assert quantile.router_needs == {"teacher_entropy", "step_entropies"}
    assert quantile.needs == {"teacher_entropy"}
    assert get_method("opsa").needs == set()

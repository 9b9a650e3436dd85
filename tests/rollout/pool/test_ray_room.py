"""What replicas ask of a Ray runtime is compared with what there is, since Ray itself would wait without a word."""

from __future__ import annotations

import sys

import pytest

from saki.rollout.pool import PoolSettings
from saki.rollout.pool.ray_runtime import RayRuntime


class FakeRay:
    """Ray with given resources, as far as a start needs it."""

    class util:  # noqa: N801  (Ray's name)
        @staticmethod
        def get_node_ip_address():
            return "127.0.0.1"

    def __init__(self, resources):
        self.resources, self.up = resources, False

    def is_initialized(self):
        return self.up

    def init(self, **options):
        self.up = True

    def shutdown(self):
        self.up = False

    def cluster_resources(self):
        return self.resources


def start(monkeypatch, there, **settings):
    fake = FakeRay({"CPU": 16.0, **there})
    monkeypatch.setitem(sys.modules, "ray", fake)
    return fake, lambda: RayRuntime(PoolSettings(**settings)).close()


@pytest.mark.parametrize(
    ("there", "settings"),
    [
        ({"GPU": 2.0}, {"replicas": 2, "gpus": 1.0}),
        ({"GPU": 1.0}, {"replicas": 10, "gpus": 0.1}),
        ({"engine": 0.1 + 0.1 + 0.1}, {"replicas": 3, "resources": {"engine": 0.1}}),
        ({}, {"replicas": 16}),
    ],
)
def test_what_fits_starts(there, settings, monkeypatch):
    fake, begin = start(monkeypatch, there, **settings)
    begin()
    assert not fake.up


@pytest.mark.parametrize(
    ("there", "settings", "message"),
    [
        ({}, {"gpus": 1.0}, "1 replicas with 1 GPU each do not fit: there is 0 GPU; lower pool_replicas"),
        ({"GPU": 4.0}, {"replicas": 5, "gpus": 1.0}, "5 replicas with 1 GPU each do not fit: there is 4 GPU"),
        # Two shares of 0.6 lie on no single GPU.
        ({"GPU": 2.0}, {"replicas": 3, "gpus": 0.6}, "3 replicas with 0.6 GPU each do not fit: there is 2 GPU"),
    ],
)
def test_what_never_fits_on_this_machine_is_refused_and_ray_ended(there, settings, message, monkeypatch):
    fake, begin = start(monkeypatch, there, **settings)
    with pytest.raises(ValueError, match=message):
        begin()
    assert not fake.up


def test_a_cluster_may_grow_so_there_it_is_a_warning(monkeypatch, caplog):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    _, begin = start(monkeypatch, {}, address="10.0.0.1:6379", resources={"engnie": 1.0})
    begin()
    assert "1 replicas with 1 engnie each do not fit: there is 0 engnie in the cluster now" in caplog.text

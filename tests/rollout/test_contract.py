"""The resident engine keeps the contract that all engines are held to."""

from saki.rollout import ResidentEngine
from tests.rollout.contract import STOPS, STUDENT, TEACHER, check_engine
from tests.rollout.served import tiny_decoder


def resident(**options):
    return ResidentEngine(tiny_decoder(**STUDENT), tiny_decoder(**TEACHER), STOPS, **options)


def test_contract():
    check_engine(resident(max_batch_rows=3), resident())

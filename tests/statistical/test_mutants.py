"""Each deliberate bug is caught, at the sizes and the alpha with which the correct engine passes.

``python -m tests.statistical.test_mutants`` prints the table of docs/proof.md.
"""

from __future__ import annotations

import pytest

from tests.statistical.cases import QUICK
from tests.statistical.mutants import ENGINE_MUTANTS, Mutant, float32_uniforms
from tests.statistical.test_sequence_law import ALPHA
from tests.statistical.tiny_rates import NUM_DRAWS, rejects_at_the_right_rate

NUM_LOOKS = 4


def case_of(mutant: Mutant):
    return next(case for case in QUICK if str(case).startswith(mutant.case))


def catch(mutant: Mutant) -> tuple[bool, int]:
    with pytest.MonkeyPatch.context() as patch:
        mutant.apply(patch)
        return case_of(mutant).reject(ALPHA / len(QUICK), NUM_LOOKS)


@pytest.mark.parametrize("mutant", ENGINE_MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_is_caught(mutant):
    caught, size = catch(mutant)
    assert caught, f"{mutant.name} passed {case_of(mutant)} with {size} samples"


def test_float32_uniforms_are_caught(monkeypatch):
    assert rejects_at_the_right_rate()
    float32_uniforms(monkeypatch)
    assert not rejects_at_the_right_rate()


if __name__ == "__main__":
    print("| deliberate bug | caught by | samples |")
    print("| --- | --- | --- |")
    for one in ENGINE_MUTANTS:
        was_caught, at = catch(one)
        print(f"| {one.name} | {case_of(one)} | {at if was_caught else f'not with {at}'} |", flush=True)
    with pytest.MonkeyPatch.context() as switched:
        float32_uniforms(switched)
        print(f"| float32 uniforms at tiny rates | rejections at rates near 1e-9 | {NUM_DRAWS} |")
        assert not rejects_at_the_right_rate()

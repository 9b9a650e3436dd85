"""Philox against the published vectors, and the address space of the keyed uniforms."""

import math

import pytest
import torch

from saki.functional import RowKeys, Stream, keyed_uniforms, philox4x32, request_seed

# Known-answer vectors of Philox4x32-10 from the Random123 distribution (kat_vectors).
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_philox_known_answers(counter, key, expected):
    words = philox4x32(tuple(torch.tensor([word]) for word in counter), key)
    assert tuple(int(word) for word in words) == expected


def keys(prompts, samples, seed=7):
    return RowKeys(seed, torch.tensor(prompts), torch.tensor(samples))


def test_uniforms_are_a_function_of_the_address_alone():
    batch = keyed_uniforms(keys([3, 5], [0, 1]), torch.tensor([[4, 9], [4, 9]]), Stream.ACCEPT, 5)
    for row, (prompt, sample) in enumerate([(3, 0), (5, 1)]):
        for column, position in enumerate([4, 9]):
            alone = keyed_uniforms(keys([prompt], [sample]), torch.tensor([position]), Stream.ACCEPT, 2)
            assert torch.equal(alone[0], batch[row, column, :2])


def test_every_part_of_the_address_matters():
    base = keyed_uniforms(keys([3], [1]), torch.tensor([4]), Stream.PROPOSAL)
    others = [
        keyed_uniforms(keys([2], [1]), torch.tensor([4]), Stream.PROPOSAL),
        keyed_uniforms(keys([3], [0]), torch.tensor([4]), Stream.PROPOSAL),
        keyed_uniforms(keys([3], [1]), torch.tensor([5]), Stream.PROPOSAL),
        keyed_uniforms(keys([3], [1]), torch.tensor([4]), Stream.RESIDUAL),
        keyed_uniforms(keys([3], [1], seed=8), torch.tensor([4]), Stream.PROPOSAL),
        keyed_uniforms(keys([3], [1], seed=7 + 2**32), torch.tensor([4]), Stream.PROPOSAL),
        keyed_uniforms(keys([3], [1]), torch.tensor([4]), Stream.PROPOSAL, 2)[..., 1:],
    ]
    values = [float(value) for value in (base, *others)]
    assert len(set(values)) == len(values)


def test_uniforms_are_uniform_open_and_finer_than_float32():
    uniforms = keyed_uniforms(keys([0], [0]), torch.tensor([0]), Stream.PROPOSAL, 200_000).flatten()
    assert float(uniforms.min()) > 0.0
    assert float(uniforms.max()) < 1.0
    # Kolmogorov-Smirnov at a false-alarm rate of 1e-6: sqrt(-ln(alpha / 2) / 2) = 2.69.
    ordered = uniforms.sort().values
    grid = torch.arange(1, len(ordered) + 1, dtype=torch.float64) / len(ordered)
    assert float((ordered - grid).abs().max()) * math.sqrt(len(ordered)) < 2.70
    assert not torch.equal(uniforms, uniforms.float().double())


def test_request_seed_separates_runs_domains_and_steps():
    seeds = {request_seed(run, domain, step) for run in (0, 1) for domain in ("train", "eval") for step in (1, 2)}
    assert len(seeds) == 8
    assert all(0 <= seed < 2**64 for seed in seeds)


@pytest.mark.parametrize("arguments", [(-1, "train", 0), (0, "test", 0), (0, "train", -1), (2**64, "train", 0)])
def test_request_seed_refuses(arguments):
    with pytest.raises(ValueError, match="must"):
        request_seed(*arguments)


def test_global_random_state_is_untouched():
    before = torch.random.get_rng_state()
    keyed_uniforms(keys([0], [0]), torch.tensor([0]), Stream.PROPOSAL, 10)
    request_seed(0, "train", 1)
    assert torch.equal(before, torch.random.get_rng_state())

import math
import random

import pytest
import torch

from saki.models import TableLM, enumerate_sequences, tiny_llama, tiny_qwen3


@pytest.mark.parametrize("order", [0, 1, 2, 3])
@pytest.mark.parametrize("use_parity", [False, True])
def test_rows_depend_on_the_last_tokens_only(order, use_parity):
    model = TableLM(3, order, seed=order, use_parity=use_parity)
    ids = torch.randint(0, 3, (4, 9), generator=torch.Generator().manual_seed(1))
    full = model.logits(ids)
    contexts = {}
    for row in range(4):
        for position in range(9):
            window = [model.begin_id] * order + ids[row, : position + 1].tolist()
            key = (tuple(window[len(window) - order :]), position % 2 if use_parity else 0)
            value = contexts.setdefault(key, full[row, position])
            assert torch.equal(value, full[row, position])
    rows = {tuple(value.tolist()) for value in contexts.values()}
    assert len(rows) == len(contexts)  # different contexts, different rows
    assert torch.equal(model.logits(ids, last=2), full[:, -2:])
    assert torch.equal(model.logits(ids[:, :5]), full[:, :5])


def test_table_is_seeded_and_forbidden_entries_are_minus_infinity():
    first = TableLM(5, 2, seed=3, forbidden=2, sharpness=4.0)
    assert torch.equal(first.table, TableLM(5, 2, seed=3, forbidden=2, sharpness=4.0).table)
    assert not torch.equal(first.table, TableLM(5, 2, seed=4, forbidden=2, sharpness=4.0).table)
    assert (torch.isneginf(first.table).sum(dim=1) == 2).all()
    assert first.table.dtype == torch.float64
    assert TableLM(5, dtype=torch.float32).table.dtype == torch.float32


@pytest.mark.parametrize("stop_ids", [(), (2,), (0, 1), (0, 1, 2)])
def test_enumerated_probabilities_sum_to_one(stop_ids):
    model = TableLM(3, 2, seed=5, sharpness=2.0)
    total = 0.0
    for completion in enumerate_sequences(3, 4, stop_ids):
        assert not any(token in stop_ids for token in completion[:-1])
        ids = torch.tensor([[0, *completion]])
        logprobs = torch.log_softmax(model.logits(ids[:, :-1]), dim=-1)
        total += math.exp(logprobs[0].gather(1, ids[0, 1:, None]).sum().item())
    assert total == pytest.approx(1.0, abs=1e-12)


def test_bad_toy_arguments_are_refused():
    with pytest.raises(ValueError, match="vocab_size"):
        TableLM(0)
    with pytest.raises(ValueError, match="forbidden"):
        TableLM(3, forbidden=3)
    with pytest.raises(ValueError, match="length"):
        enumerate_sequences(3, 0)


@pytest.mark.parametrize("build", [tiny_qwen3, tiny_llama])
def test_tiny_models_are_seeded_and_leave_global_random_state_alone(build):
    torch.manual_seed(11)
    state, python_state = torch.get_rng_state(), random.getstate()
    model = build(vocab_size=20, seed=4, dtype=torch.float64, scale=0.3)
    assert torch.equal(torch.get_rng_state(), state)
    assert random.getstate() == python_state
    torch.manual_seed(99)
    again = build(vocab_size=20, seed=4, dtype=torch.float64, scale=0.3)
    ids = torch.arange(6)[None]
    assert torch.equal(model(ids).logits, again(ids).logits)
    assert model(ids).logits.dtype == torch.float64
    assert not torch.equal(model(ids).logits, build(vocab_size=20, seed=5, dtype=torch.float64)(ids).logits)
    assert not model.training

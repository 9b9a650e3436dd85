"""What must not change a step's gradient: how it is cut, padded and spread over ranks, and rows without tokens."""

from __future__ import annotations

import pytest
import torch

from saki.rollout import HFDecoder, RolloutEngine, read_rollouts
from saki.training import SakiTrainer
from saki.training.sampler import CompletionDataset, StepSampler
from tests.tiny import tiny_pair, tiny_rows, tiny_tokenizer
from tests.training.launching import run_ranks
from tests.training.scripted import (
    EOS,
    PROMPTS,
    SAMPLES,
    ScriptedEngine,
    assert_equal_gradients,
    config,
    gradient_by_hand,
    step_gradient,
)


def step_order(num_prompts=PROMPTS):
    """(prompt, sample) of the first step, in the order in which micro-batches take them."""
    dataset = CompletionDataset(num_prompts, SAMPLES)
    return [tuple(dataset[index].values()) for index in StepSampler(dataset, PROMPTS, 3)]


def scripted(lengths, ends=False):
    """An engine whose lengths follow the order of the step: entry i is the i-th completion of the micro-batches."""
    return ScriptedEngine(dict(zip(step_order(), lengths, strict=True)), ends)


SHAPES = {
    "very unequal": [1, 48, 2, 3, 40, 1, 1, 17],
    "only the end token": [1, 1, 1, 1, 1, 1, 1, 1],
    "some without tokens": [0, 5, 0, 9, 0, 0, 30, 1],
    "half of the step without tokens": [0, 0, 0, 0, 6, 2, 12, 3],
    "one token in all": [0, 0, 0, 0, 0, 1, 0, 0],
}


def test_the_scripted_engine_is_an_engine():
    assert isinstance(scripted([1] * 8), RolloutEngine)


@pytest.mark.parametrize(
    ("shape", "num_micro_batches"),
    [("very unequal", 1), ("very unequal", 2), ("some without tokens", 8), *((shape, 2) for shape in list(SHAPES)[1:])],
)
def test_shapes_and_micro_batches(tmp_path, shape, num_micro_batches):
    """The gradient is that of Eq. 16 over the tokens that are there, N_valid over the rest of the step."""
    engine = scripted(SHAPES[shape], ends=True)
    gradient = step_gradient(tmp_path, engine, per_device_train_batch_size=8 // num_micro_batches)
    (batch,) = engine.batches
    assert batch.num_valid_tokens == sum(SHAPES[shape])
    assert_equal_gradients(gradient, gradient_by_hand(batch))


@pytest.mark.parametrize("pad_is_eos", [False, True])
def test_end_tokens_train_and_padding_does_not(tmp_path, pad_is_eos):
    """Completions of the end token alone, beside longer ones, whatever value padding has."""
    engine = scripted([1, 6, 1, 1, 9, 1, 2, 1], ends=True)
    gradient = step_gradient(tmp_path, engine, tokenizer=tiny_tokenizer(pad_is_eos))
    (batch,) = engine.batches
    assert all(batch.completion_token_ids(row)[-1] == EOS for row in range(len(batch)))
    assert_equal_gradients(gradient, gradient_by_hand(batch))


def test_a_micro_batch_without_tokens_adds_exactly_nothing(tmp_path):
    engine = scripted([0, 0, 0, 0, 6, 2, 12, 3])
    student, teacher = tiny_pair(torch.float64)
    run = SakiTrainer(
        student,
        teacher,
        config(tmp_path),
        tiny_rows(PROMPTS),
        processing_class=tiny_tokenizer(),
        engine=engine,
    )
    items = [{"prompt": prompt, "sample": sample} for prompt, sample in step_order()]
    micros, count = run.get_batch_samples(iter([items[:4], items[4:]]), 2, torch.device("cpu"))
    assert int(count) == 23
    loss = run.compute_loss(student, micros[0], num_items_in_batch=count)
    assert float(loss.detach()) == 0.0
    loss.backward()
    for name, parameter in student.named_parameters():
        assert parameter.grad is not None, name  # every rank takes part in every reduction
        assert not parameter.grad.any(), name
    assert torch.isfinite(run.compute_loss(student, micros[1], num_items_in_batch=count))


@pytest.mark.parametrize(("at", "num_micro_batches"), [("prompt", 2), ("completion", 1)])
def test_what_gave_nan_is_not_fed_again(tmp_path, at, num_micro_batches):
    """A student that is NaN after one word: 0 times NaN in the backward pass would be NaN for every weight."""
    texts = ("a b", "k a", "c k", "e") if at == "prompt" else ("a",) * 12
    student, teacher = tiny_pair(torch.float64)
    tokenizer = tiny_tokenizer()
    word = tokenizer.convert_tokens_to_ids("k")  # it is drawn now and then, too
    with torch.no_grad():
        student.model.embed_tokens.weight[word] = torch.nan
    gradient = step_gradient(
        tmp_path,
        None,
        pair=(student, teacher),
        rows=[{"prompt": text} for text in texts],
        tokenizer=tokenizer,
        per_device_train_batch_size=8 // num_micro_batches,
        max_completion_length=8,
    )
    batch, _ = read_rollouts(tmp_path / "rollouts" / "step-000001.parquet")
    broken = [row for row, reason in enumerate(batch.finish_reasons) if reason == "nan"]
    assert 0 < len(broken) < len(batch)
    without_tokens = [row for row in broken if int(batch.lengths[row]) == 0]
    assert len(without_tokens) == (2 * SAMPLES if at == "prompt" else 0)
    assert not gradient["model.embed_tokens.weight"][word].any()
    by_hand = gradient_by_hand(batch, tiny_pair(torch.float64)[0])
    assert_equal_gradients(gradient, by_hand)


THINKING = (
    "{% for m in messages %}{{ m.content }} {% endfor %}"
    "{% if enable_thinking is not defined or enable_thinking %}t{% endif %}"
)


@pytest.mark.parametrize("template", [None, THINKING])
def test_both_models_read_the_ids_that_were_rendered_once(tmp_path, template, monkeypatch):
    """With or without a chat template; one that knows ``enable_thinking`` renders without it."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    plain = tiny_rows(PROMPTS)
    rows = plain if template is None else [{"prompt": [{"role": "user", "content": row["prompt"]}]} for row in plain]
    fed = {}
    original = HFDecoder.forward

    def spy(self, token_ids, starts, cache, visible, num_logits):
        for row, start in enumerate(starts.tolist()):
            history = fed.setdefault(id(cache), {}).setdefault(row, {})
            history.update(enumerate(token_ids[row].tolist(), start=start))
        return original(self, token_ids, starts, cache, visible, num_logits)

    monkeypatch.setattr(HFDecoder, "forward", spy)
    step_gradient(tmp_path, None, tokenizer=tokenizer, rows=rows, max_completion_length=6)
    batch, _ = read_rollouts(tmp_path / "rollouts" / "step-000001.parquet")
    thought = tokenizer.convert_tokens_to_ids("t")
    expected = {key: tokenizer(row["prompt"])["input_ids"] for key, row in enumerate(plain)}
    for row in range(len(batch)):
        assert batch.prompt_token_ids(row) == expected[int(batch.prompt_keys[row])]
        assert thought not in batch.prompt_token_ids(row)
    # A prompt of n ids goes through each model once, all but its last id; the last is the first that a row is fed.
    order = list(dict.fromkeys(batch.prompt_keys.tolist()))
    prompts = {int(batch.prompt_keys[row]): batch.prompt_token_ids(row) for row in range(len(batch))}
    runs = [
        history for history in fed.values() if len(history) == len(order) and all(0 in row for row in history.values())
    ]
    assert len(runs) == 2
    for history in runs:
        for key, row in zip(order, history.values(), strict=True):
            assert [row[i] for i in range(len(prompts[key]) - 1)] == prompts[key][:-1]
    rows = [history for history in fed.values() if len(history) == len(batch)]
    assert len(rows) == 2
    for history in rows:
        for row, fed_ids in history.items():
            prompt = batch.prompt_token_ids(row)
            assert fed_ids[len(prompt) - 1] == prompt[-1]


@pytest.mark.parametrize("lengths", [[3, 7, 0, 0, 12, 1, 0, 0], [3, 7, 5, 20, 12, 1, 1, 2]], ids=["empty", "unequal"])
def test_ranks_share_one_gradient(tmp_path, lengths):
    """Two processes with gloo: rank 1 takes every second micro-batch, and in one case has no valid token."""
    engine = scripted(lengths)
    alone = step_gradient(tmp_path / "alone", engine, per_device_train_batch_size=2)
    assert_equal_gradients(alone, gradient_by_hand(engine.batches[0]))
    for rank, saved in enumerate(run_ranks(2, "scripted_step", tmp_path / "ranks", engine.lengths)):
        assert saved["tokens"] == sum(n for i, n in enumerate(lengths) if i // 2 % 2 == rank)
        assert_equal_gradients(saved["gradient"], alone)

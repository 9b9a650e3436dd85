import math
from dataclasses import replace

import pytest
import torch

from saki.data import collate_rollout
from saki.models import tiny_qwen3
from saki.types import TOKEN_FIELDS, RolloutBatch, fill_value

VOCAB, PAD = 20, 1  # the padding id is also a token that completions hold


def _batch(prompts, completions, prompt_width=None, width=None, unscored=False):
    """A rollout of given ids, with random floats inside the mask and the fills outside."""
    generator = torch.Generator().manual_seed(0)
    rows = len(prompts)
    prompt_width = prompt_width or max(map(len, prompts))
    width = width if width is not None else max(map(len, completions))
    prompt_ids = torch.full((rows, prompt_width), -1)
    mask = torch.zeros(rows, width, dtype=torch.bool)
    fields = {}
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        prompt_ids[row, prompt_width - len(prompt) :] = torch.tensor(prompt)
        mask[row, : len(completion)] = True
    for name in TOKEN_FIELDS:
        if name == "response_mask":
            fields[name] = mask
        elif name == "correction_mask":
            fields[name] = mask & (torch.rand(rows, width, generator=generator) < 0.5)
        elif name.endswith("_ids"):
            ids = torch.randint(0, VOCAB, (rows, width), generator=generator)
            if name == "completion_ids":
                for row, completion in enumerate(completions):
                    ids[row, : len(completion)] = torch.tensor(completion, dtype=torch.long)
            fields[name] = torch.where(mask, ids, -1)
        else:
            values = torch.rand(rows, width, generator=generator)
            if unscored and name == "teacher_logprobs":
                values.fill_(math.nan)
            fields[name] = torch.where(mask, values, fill_value(values.dtype))
    return RolloutBatch(
        prompt_ids=prompt_ids,
        prompt_mask=prompt_ids >= 0,
        prompt_keys=torch.arange(rows),
        sample_indices=torch.zeros(rows, dtype=torch.long),
        finish_reasons=("length",) * rows,
        student_version=0,
        trust_region_radius=0.02,
        seed=0,
        **fields,
    )


PROMPTS = [[3, 4, 5], [6], [7, 8]]
COMPLETIONS = [[PAD, 9, PAD, 10], [11, PAD], [12]]


def test_layout_masks_and_positions():
    micro = collate_rollout(_batch(PROMPTS, COMPLETIONS, prompt_width=6, width=9), [0, 1], PAD)
    assert micro["num_completion_positions"] == 4
    assert micro["input_ids"].tolist() == [[3, 4, 5, PAD, 9, PAD, 10], [PAD, PAD, 6, 11, PAD, PAD, PAD]]
    assert micro["attention_mask"].tolist() == [[1] * 7, [0, 0, 1, 1, 1, 0, 0]]
    assert micro["position_ids"].tolist() == [[0, 1, 2, 3, 4, 5, 6], [0, 0, 0, 1, 2, 2, 2]]
    assert all(micro[name].shape == (2, 4) for name in TOKEN_FIELDS)


def test_widths_follow_the_rows_in_their_order():
    micro = collate_rollout(_batch(PROMPTS, COMPLETIONS, prompt_width=6, width=9), torch.tensor([2, 1]), PAD)
    assert micro["input_ids"].tolist() == [[7, 8, 12, PAD], [PAD, 6, 11, PAD]]
    assert micro["completion_ids"].tolist() == [[12, 0], [11, PAD]]
    assert micro["response_mask"].tolist() == [[True, False], [True, True]]


def test_nothing_outside_the_mask_can_reach_a_loss_and_inside_is_untouched():
    batch = _batch(PROMPTS, COMPLETIONS, width=9)
    micro = collate_rollout(batch, range(3), PAD)
    outside = ~micro["response_mask"]
    for name in TOKEN_FIELDS:
        assert not micro[name][outside].any()
        assert torch.equal(micro[name][~outside], getattr(batch, name)[:, :4][~outside])
        assert not micro[name].isnan().any()
    unscored = collate_rollout(_batch(PROMPTS, COMPLETIONS, unscored=True), range(3), PAD)["teacher_logprobs"]
    assert unscored[~outside].isnan().all()
    assert not unscored[outside].isnan().any()


def test_rows_without_tokens_and_empty_batches():
    batch = _batch(PROMPTS, [[], [11], []], width=5)
    micro = collate_rollout(batch, [0, 2], PAD)
    assert micro["num_completion_positions"] == 0
    assert micro["input_ids"].tolist() == [[3, 4, 5], [PAD, 7, 8]]
    assert micro["kl"].shape == (2, 0)
    assert collate_rollout(batch, [0, 1], PAD)["response_mask"].tolist() == [[False], [True]]


def test_what_made_a_model_give_nan_is_not_fed_again():
    """The last id of a row that ended so, or its whole prompt; it stays a target, and nothing else changes."""
    batch = _batch(PROMPTS, [[9, 10, 11], [], [12, 13]])
    plain = collate_rollout(batch, range(3), PAD)
    broken = collate_rollout(replace(batch, finish_reasons=("nan", "nan", "length")), range(3), PAD)
    assert plain["input_ids"].tolist() == [[3, 4, 5, 9, 10, 11], [PAD, PAD, 6, PAD, PAD, PAD], [PAD, 7, 8, 12, 13, PAD]]
    assert broken["input_ids"].tolist() == [[3, 4, 5, 9, 10, PAD], [PAD] * 6, [PAD, 7, 8, 12, 13, PAD]]
    for name in ("attention_mask", "position_ids", *TOKEN_FIELDS):
        assert torch.equal(broken[name], plain[name]), name


def test_bad_arguments_are_refused():
    batch = _batch(PROMPTS, COMPLETIONS)
    with pytest.raises(ValueError, match="at least one row"):
        collate_rollout(batch, [], PAD)
    with pytest.raises(ValueError, match="pad_token_id must be at least 0"):
        collate_rollout(batch, [0], -1)


@torch.no_grad()
def test_padding_changes_no_logprob():
    """Rows of a padded micro-batch score as each row does alone, also where pad ids are real tokens."""
    model = tiny_qwen3(vocab_size=VOCAB, dtype=torch.float64)
    micro = collate_rollout(_batch(PROMPTS, COMPLETIONS, prompt_width=7, width=6), range(3), PAD)
    width = micro["num_completion_positions"]
    inputs = {name: micro[name] for name in ("input_ids", "attention_mask", "position_ids")}
    logprobs = torch.log_softmax(model(**inputs).logits[:, -width - 1 : -1], dim=-1)
    chosen = logprobs.gather(2, micro["completion_ids"][:, :, None]).squeeze(2)
    for row, (prompt, completion) in enumerate(zip(PROMPTS, COMPLETIONS, strict=True)):
        ids = torch.tensor([prompt + completion])
        alone = torch.log_softmax(model(ids).logits[0, len(prompt) - 1 : -1], dim=-1)
        expected = alone.gather(1, ids[0, len(prompt) :, None]).squeeze(1)
        torch.testing.assert_close(chosen[row, : len(completion)], expected, rtol=0.0, atol=1e-6)

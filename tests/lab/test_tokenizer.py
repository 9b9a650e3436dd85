import random

import pytest
from transformers import AutoTokenizer

from saki import lab
from saki.lab.problems import KINDS, Working
from saki.lab.tokenizer import EOS_ID, PAD_ID, VOCABULARY, build_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer()


def texts(num_per_kind: int) -> list[tuple[str, str]]:
    rng = random.Random(0)
    pairs = []
    for kind in KINDS.values():
        for index in range(num_per_kind):
            numbers = kind.draw(rng)
            trace, _ = kind.work_out(numbers, Working(rng, 0.45 if index % 2 else 0.0))
            pairs.append((kind.prompt(numbers), trace))
    return pairs


def test_vocabulary_has_36_distinct_tokens(tokenizer):
    assert len(tokenizer) == tokenizer.vocab_size == len(VOCABULARY) == len(set(VOCABULARY)) == 36
    assert tokenizer.convert_ids_to_tokens(list(range(36))) == list(VOCABULARY)


def test_special_tokens_are_distinct_and_never_added(tokenizer):
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (PAD_ID, EOS_ID)
    assert len({tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id}) == 3
    assert tokenizer.bos_token_id is None
    ids = tokenizer("Compute 1+2:")["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == ["Compute ", "1", "+", "2", ":"]
    assert not set(ids) & set(tokenizer.all_special_ids)


def test_round_trips_are_exact_and_prompts_tokenise_apart_from_completions(tokenizer):
    pairs = texts(160)  # 2,080 of them
    prompts = tokenizer([prompt for prompt, _ in pairs])["input_ids"]
    completions = tokenizer([completion for _, completion in pairs])["input_ids"]
    whole = tokenizer([prompt + completion for prompt, completion in pairs])["input_ids"]
    assert [p + c for p, c in zip(prompts, completions, strict=True)] == whole
    assert tokenizer.batch_decode(whole) == [prompt + completion for prompt, completion in pairs]
    assert not {tokenizer.unk_token_id, EOS_ID, PAD_ID} & {index for row in whole for index in row}


@pytest.mark.parametrize("text", ["", " ", "\n", "Solve 3y=15:\n", "\\boxed{4}", "7 , 8", "( 1 ) ; :"])
def test_spaces_and_line_ends_survive(tokenizer, text):
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_foreign_characters_become_unknown_one_each(tokenizer):
    assert tokenizer("1é\\")["input_ids"][1:] == [tokenizer.unk_token_id] * 2


def test_padding_is_on_the_left(tokenizer):
    batch = tokenizer(["1", "1+2"], padding=True)
    assert batch["input_ids"][0][:2] == [PAD_ID] * 2
    assert batch["attention_mask"][0] == [0, 0, 1]


def test_end_of_sequence_is_dropped_from_decoded_completions(tokenizer):
    ids = [*tokenizer("\\boxed{4}")["input_ids"], EOS_ID, PAD_ID]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "\\boxed{4}"


@pytest.mark.parametrize("folder", [lab.teacher_path(), lab.student_path()], ids=["teacher", "student"])
def test_shipped_tokenizer_is_the_built_one(tokenizer, folder):
    shipped = AutoTokenizer.from_pretrained(folder)
    assert shipped.get_vocab() == tokenizer.get_vocab()
    assert (shipped.pad_token_id, shipped.eos_token_id, shipped.bos_token_id) == (PAD_ID, EOS_ID, None)
    assert shipped.padding_side == "left"
    sample = [prompt + completion for prompt, completion in texts(20)]
    assert shipped(sample)["input_ids"] == tokenizer(sample)["input_ids"]
    assert shipped.batch_decode(shipped(sample)["input_ids"]) == sample

"""Preparation of prompts: what is kept, what is dropped and why, and what the DAPO file holds."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from saki.data import PromptError, load_prompt_dataset, prepare_prompts, render_prompts, write_prompts

DAPO = Path(__file__).parents[3] / "shared" / "data" / "dapo-math-17k-processed.parquet"
OLD = " Please reason step by step, and put your final answer within \\boxed{{}}."
NEW = " Please reason step by step, and put your final answer within \\boxed{}."


def user(text):
    return [{"role": "user", "content": text}]


def row(prompt, answer="1", **more):
    return {"prompt": prompt, "answer": answer, **more}


def test_each_row_is_dropped_for_the_first_reason_that_applies(make_tokenizer):
    rows = [
        row("a b"),
        row("  "),
        row("a c", None),
        row("求 a"),
        row("a b", "2"),
        row("求 a"),  # of two reasons the language is looked at first
        row("a b c d e f g"),
        row("a，b"),  # full-width punctuation is no letter
    ]
    found = prepare_prompts(rows, language="no_cjk", deduplicate=True, tokenizer=make_tokenizer(), max_prompt_length=5)
    assert [each["prompt"] for each in found.rows] == ["a b", "a，b"]
    assert found.dropped == {"empty": 1, "no_answer": 1, "language": 2, "duplicate": 1, "too_long": 1}
    assert (found.num_rows, found.num_unique, found.num_conflicting) == (8, 6, 1)
    assert sum(found.dropped.values()) + len(found.rows) == found.num_rows
    assert found.to_json()["kept"] == 2


@pytest.mark.parametrize("prompt", [None, "", " ", [], user(None), user(" ")])
def test_rows_without_a_prompt_are_counted(prompt):
    found = prepare_prompts([row("a") if isinstance(prompt, str | None) else row(user("a")), row(prompt)])
    assert len(found.rows) == 1
    assert found.dropped["empty"] == 1


def test_without_filters_everything_with_text_and_answer_stays_in_order():
    found = prepare_prompts([row("a"), row("a"), row("求")])
    assert [(each["prompt"], each["answer"], each["index"]) for each in found.rows] == [
        ("a", "1", "0"),
        ("a", "1", "1"),
        ("求", "1", "2"),
    ]
    assert not any(found.dropped.values())


def test_the_suffix_is_appended_or_exchanged_in_plain_and_conversational_prompts():
    plain = [row("a" + OLD), row("b")]
    assert [each["prompt"] for each in prepare_prompts(plain, suffix="!").rows] == ["a" + OLD + "!", "b!"]
    conversations = [row(user("b" + OLD)), row([{"role": "system", "content": "s" + OLD}, *user("c")])]
    for rows, expected in ((plain, ["a" + NEW, "b" + NEW]), (conversations, ["b" + NEW, "c" + NEW])):
        found = prepare_prompts(rows, suffix=NEW, strip_suffix=OLD)
        prompts = [each["prompt"] for each in found.rows]
        assert [prompt if isinstance(prompt, str) else prompt[-1]["content"] for prompt in prompts] == expected
        assert found.num_stripped == 1
    assert prompts[1][0]["content"] == "s" + OLD  # only the last user message
    assert conversations[0]["prompt"] == user("b" + OLD)  # the source is left as it is


def test_the_length_limit_counts_the_suffix_and_what_the_template_adds(make_tokenizer):
    tokenizer = make_tokenizer()
    rows = [row(user("a b"))]
    (prompt,) = render_prompts([row(user("a b c"))], tokenizer, max_prompt_length=99).prompts
    length = len(prompt.token_ids)
    assert len(prepare_prompts(rows, suffix=" c", tokenizer=tokenizer, max_prompt_length=length).rows) == 1
    with pytest.raises(PromptError, match=r"no row is left of 1 \(1 too_long\)"):
        prepare_prompts(rows, suffix=" c", tokenizer=tokenizer, max_prompt_length=length - 1)


def test_exchanged_suffixes_are_counted_among_the_rows_that_stay(make_tokenizer):
    rows = [row("a" + OLD), row("a b c d e f g h" + OLD), row("c")]
    found = prepare_prompts(rows, strip_suffix=OLD, tokenizer=make_tokenizer(), max_prompt_length=4)
    assert [each["prompt"] for each in found.rows] == ["a", "c"]
    assert found.num_stripped == 1


def test_the_order_depends_on_the_seed_alone():
    rows = [row(f"q {i}", extra_info={"index": f"uuid-{i}"}) for i in range(50)]
    first, again, other = (prepare_prompts(rows, seed=seed).rows for seed in (0, 0, 1))
    assert first == again != other
    assert sorted(map(str, first)) == sorted(map(str, other))
    assert first != prepare_prompts(rows).rows
    assert first[0]["index"] == first[0]["prompt"].replace("q ", "uuid-")  # a row stays together


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([{"question": "a"}], {}, "row 0 has no 'prompt', only .'question'.; name the column"),
        ([row("a"), {"prompt": "a"}], {}, "row 1 has no 'answer'.*--answer_column"),
        ([row(7)], {}, "the prompt of row 0 is no text and no list of messages"),
        ([row("a")], {"strip_suffix": " b"}, "no prompt ends in strip_suffix ' b' .the first ends in 'a'."),
        ([row([{"role": "system", "content": "a"}])], {"suffix": "b"}, "no user message for the suffix"),
        ([row("a")], {"language": "en"}, "language must be one of any, no_cjk, got 'en'"),
        ([row("a")], {"max_prompt_length": 9}, "max_prompt_length needs a tokenizer"),
        ([row("a"), row(user("b"))], {}, "some prompts are text and others messages"),
        ([], {}, "no row is left of 0 .the source is empty."),
    ],
)
def test_mistakes_are_one_sentence(rows, options, message):
    with pytest.raises(ValueError, match=message):
        prepare_prompts(rows, **options)


def test_prompts_without_answers_are_filtered_all_the_same(tmp_path):
    """Distillation needs no answers."""
    found = prepare_prompts([{"prompt": "a"}, {"prompt": " "}, {"prompt": "a"}, {"prompt": "b"}], deduplicate=True)
    assert found.rows == [{"prompt": "a", "index": "0"}, {"prompt": "b", "index": "3"}]
    assert (found.has_answers, found.num_conflicting) == (False, 0)
    assert found.dropped == {"empty": 1, "no_answer": 0, "language": 0, "duplicate": 1, "too_long": 0}
    write_prompts(tmp_path / "p.parquet", found, {})
    assert list(load_prompt_dataset(tmp_path / "p.parquet")) == found.rows


@pytest.mark.parametrize("prompt", ["a", user("a")])
def test_the_file_is_what_training_loads(tmp_path, prompt):
    found = prepare_prompts([row(prompt, 5), row(prompt, "6", index=9)])
    write_prompts(tmp_path / "p.parquet", found, {"suffix": None})
    loaded = load_prompt_dataset(tmp_path / "p.parquet")
    assert list(loaded) == found.rows == [row(prompt, "5", index="0"), row(prompt, "6", index="9")]
    facts = json.loads(pq.read_schema(tmp_path / "p.parquet").metadata[b"saki"])
    assert facts == {"settings": {"suffix": None}, "counts": found.to_json()}


@pytest.mark.skipif(not DAPO.exists(), reason="the DAPO file is not here")
def test_the_dapo_file():
    rows = load_prompt_dataset(DAPO)
    found = prepare_prompts(rows, language="no_cjk", deduplicate=True, suffix=NEW, strip_suffix=OLD)
    assert (found.num_rows, found.num_unique) == (17_917, 17_398)
    assert found.dropped["language"] == 3_432
    assert found.num_stripped == len(found.rows) == 17_917 - 3_432 - found.dropped["duplicate"]
    texts = [each["prompt"][0]["content"] for each in found.rows]
    assert len(set(texts)) == len(texts)
    assert all(text.endswith(NEW) and "{{}}" not in text[-60:] for text in texts)
    assert all(each["answer"].lstrip("-").isdigit() for each in found.rows)

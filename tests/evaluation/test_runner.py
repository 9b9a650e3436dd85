"""The runner with an engine that knows no model: requests, keys, grading, files, re-grading."""

from __future__ import annotations

import logging
import zlib
from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from saki.data import render_prompts
from saki.evaluation import Benchmark, evaluate_model, grade_each, prompt_key, read_samples, regrade, text_table
from saki.functional.random import request_seed


def digits(name: str, num_problems: int = 20) -> Benchmark:
    """Problem i asks for the digit i mod 10."""
    return Benchmark(
        name=name,
        prompts=tuple(f"digit {i % 10}?" for i in range(num_problems)),
        answers=tuple(str(i % 10) for i in range(num_problems)),
        grade=grade_each(lambda completion, answer: completion == answer),
        source="made up",
    )


def test_results_equal_a_count_by_hand(engine, tokenizer):
    benchmark = digits("digits")
    result = evaluate_model(engine, tokenizer, [benchmark], seed=5, num_samples=4)
    seed = request_seed(5, "eval", 0)
    drawn = [[engine.digit(seed, prompt_key("digits", i), n) for n in range(4)] for i in range(20)]
    # 8 and 9 run into the cap and repeat, so they are never equal to the answer.
    right = [[d == i % 10 and d < 8 for d in row] for i, row in enumerate(drawn)]
    assert result.sets[0].correct.tolist() == right
    assert any(map(any, right))
    cut = [d >= 8 for row in drawn for d in row]
    assert result.sets[0].truncated == sum(cut) / 80
    assert result.sets[0].num_tokens == sum(3 if c else 2 for c in cut)
    assert result.tokens_per_second > 0


def test_request_is_student_only_and_keyed_by_the_evaluation_domain(engine, tokenizer):
    evaluate_model(engine, tokenizer, [digits("a"), digits("b")], seed=3, num_samples=2, max_completion_length=9)
    for request in engine.requests:
        assert request.student_only
        assert request.behavior == "student"
        assert request.trust_region_radius == 0.0
        assert not request.score_teacher
        assert request.seed == request_seed(3, "eval", 0)
        assert request.num_generations == 2
        assert request.max_completion_length == 9
    assert len(engine.requests) == 2


def test_samples_do_not_depend_on_what_else_is_evaluated(engine, tokenizer):
    alone = evaluate_model(engine, tokenizer, [digits("b", 7)], seed=0)
    beside = evaluate_model(engine, tokenizer, [digits("a"), digits("b")], seed=0)
    assert alone.sets[0].correct.tolist() == beside.sets[1].correct[:7].tolist()


def test_key_is_stable_and_unique():
    assert prompt_key("sum_3", 0) == zlib.crc32(b"sum_3")
    assert prompt_key("sum_3", 2**32 - 1) == (zlib.crc32(b"sum_3") - 1) % 2**32
    names = ("sum_3", "sum_6", "products_3", "parentheses", "linear", "gcd", "remainder")
    assert len({prompt_key(name, i) for name in names for i in range(1000)}) == 7000


def test_shared_keys_are_refused(engine, tokenizer):
    with pytest.raises(ValueError, match="share the prompt key"):
        evaluate_model(engine, tokenizer, [digits("a"), digits("a")], seed=0)
    with pytest.raises(ValueError, match="at least one benchmark"):
        evaluate_model(engine, tokenizer, [], seed=0)


def test_k_is_refused_before_anything_is_sampled(engine, tokenizer):
    with pytest.raises(ValueError, match=r"k must lie in \[1, 4\]"):
        evaluate_model(engine, tokenizer, [digits("a")], seed=0, num_samples=4, k=5)
    assert not engine.requests


def test_progress_counts_over_all_benchmarks(engine, tokenizer):
    calls = []
    evaluate_model(
        engine, tokenizer, [digits("a"), digits("b", 10)], seed=0, num_samples=2, progress=lambda *c: calls.append(c)
    )
    assert calls == [(20, 60), (40, 60), (50, 60), (60, 60)]


def test_prompts_are_rendered_as_in_training(tokenizer, engine):
    seen = []
    generate = engine.generate
    engine.generate = lambda prompts, *rest: seen.extend(prompts) or generate(prompts, *rest)
    plain, chat = digits("plain", 1), replace(digits("chat", 1), chat=True)
    evaluate_model(engine, tokenizer, [plain, chat], seed=0, prompt_suffix="!")
    evaluate_model(engine, tokenizer, [chat], seed=0, chat_template_kwargs={"enable_thinking": True})
    texts = ["\x01digit 0?!", "[digit 0?!|False]", "[digit 0?|True]"]
    assert ["".join(map(chr, prompt.token_ids)) for prompt in seen] == texts
    assert [prompt.key for prompt in seen] == [prompt_key(name, 0) for name in ("plain", "chat", "chat")]
    same = render_prompts([{"prompt": "digit 0?"}], tokenizer, max_prompt_length=99, prompt_suffix="!")
    assert seen[0].token_ids == same.prompts[0].token_ids


def test_a_prompt_that_is_too_long_is_told_before_the_first_sample(tokenizer, engine):
    long = replace(digits("b", 3), prompts=("1?", "2" * 40, "3?"))
    engine.max_positions = 1 + 40 + 8
    evaluate_model(engine, tokenizer, [digits("a"), long], seed=0, max_completion_length=8)
    engine.asked.clear()
    sentence = (
        "problem 1 of benchmark b has 41 tokens, with max_new_tokens 9 it can grow to 50, .* takes 49; lower --max_"
    )
    with pytest.raises(ValueError, match=sentence + "new_tokens to 8 or less"):
        evaluate_model(engine, tokenizer, [digits("a"), long], seed=0, max_completion_length=9)
    assert not engine.asked


def test_empty_prompts_are_refused(tokenizer, engine):
    benchmark = replace(digits("a", 3), prompts=("1?", " ", "3?"))
    with pytest.raises(ValueError, match="problem 1 of benchmark a has an empty prompt"):
        evaluate_model(engine, tokenizer, [benchmark], seed=0)


def test_samples_that_ended_in_nan_are_counted_and_warned_of(engine, tokenizer, caplog):
    generate = engine.generate
    engine.generate = lambda *rest: replace(generate(*rest), finish_reasons=("nan",) * 160)
    with caplog.at_level(logging.WARNING):
        result = evaluate_model(engine, tokenizer, [digits("a")], seed=0)
    assert result.sets[0].failed == 160
    assert "the model gave NaN in 160 samples" in caplog.text
    assert "160 samples ended in NaN (counted as wrong)" in text_table({"after": result})


def test_files_of_samples_hold_every_sample_and_nothing_unfinished(engine, tokenizer, tmp_path):
    folder = tmp_path / "samples"
    result = evaluate_model(engine, tokenizer, [digits("a"), digits("b")], seed=0, num_samples=3, samples_path=folder)
    assert sorted(path.name for path in folder.iterdir()) == ["a.parquet", "b.parquet"]
    table = pq.read_table(folder / "a.parquet").to_pydict()
    assert list(zip(table["problem_index"], table["sample_index"], strict=True)) == [
        (problem, sample) for problem in range(20) for sample in range(3)
    ]
    assert set(table["benchmark"]) == {"a"}
    assert table["prompt"][3] == "digit 1?"
    assert table["answer"][3] == "1"
    assert all("<stop>" not in completion for completion in table["completion"])
    assert sum(table["correct"]) == result.sets[0].correct.sum()
    assert table["finish_reason"].count("length") / 60 == result.sets[0].truncated
    assert sum(table["num_tokens"]) == result.sets[0].num_tokens


def test_first_file_is_on_disk_when_a_later_benchmark_fails(engine, tokenizer, tmp_path):
    def fail(completions, answers):
        raise RuntimeError("grader down")

    with pytest.raises(RuntimeError, match="grader down"):
        evaluate_model(
            engine, tokenizer, [digits("a"), replace(digits("b"), grade=fail)], seed=0, samples_path=tmp_path
        )
    assert [path.name for path in tmp_path.iterdir()] == ["a.parquet"]


def test_gradings_out_of_time_are_counted_and_stored_as_unknown(engine, tokenizer, tmp_path, caplog):
    benchmark = replace(digits("a"), grade=lambda completions, answers: [None, True] * (len(completions) // 2))
    with caplog.at_level(logging.WARNING):
        result = evaluate_model(engine, tokenizer, [benchmark], seed=0, num_samples=4, samples_path=tmp_path)
    assert result.sets[0].timeouts == 40
    assert result.mean_at_k.value == 0.5
    assert "40 samples ran out of time" in caplog.text
    assert read_samples(tmp_path, "a").verdicts[:2] == ("timeout", "correct")


def test_many_truncated_samples_are_warned_of(engine, tokenizer, caplog, monkeypatch):
    monkeypatch.setattr(engine, "digit", lambda *key: 9)
    with caplog.at_level(logging.WARNING):
        result = evaluate_model(engine, tokenizer, [digits("a")], seed=0)
    assert result.sets[0].truncated == 1.0
    assert "100% of the completions were cut at 64 tokens; raise --max_new_tokens" in caplog.text


def test_stored_samples_give_the_same_results_without_a_model(engine, tokenizer, tmp_path):
    benchmarks = [digits("a"), digits("b")]
    sampled = evaluate_model(engine, tokenizer, benchmarks, seed=0, samples_path=tmp_path)
    again = regrade(tmp_path, benchmarks)
    assert again.sets == sampled.sets
    assert again.tokens_per_second is None
    lenient = [replace(benchmark, grade=grade_each(lambda *_: True)) for benchmark in benchmarks]
    assert regrade(tmp_path, lenient).mean_at_k.value == 1.0


def test_regrading_refuses_other_prompts_and_missing_files(engine, tokenizer, tmp_path):
    evaluate_model(engine, tokenizer, [digits("a")], seed=0, samples_path=tmp_path)
    with pytest.raises(ValueError, match="other prompts"):
        regrade(tmp_path, [digits("a", 10)])
    with pytest.raises(ValueError, match="no samples of b"):
        regrade(tmp_path, [digits("b")])


def test_damaged_sample_files_are_refused(engine, tokenizer, tmp_path):
    evaluate_model(engine, tokenizer, [digits("a")], seed=0, samples_path=tmp_path)
    path = tmp_path / "a.parquet"
    pq.write_table(pq.read_table(path).slice(1), path)
    with pytest.raises(ValueError, match="delete that file and evaluate again"):
        read_samples(tmp_path, "a")
    path.write_bytes(b"no")
    with pytest.raises(ValueError, match="delete that file and evaluate again"):
        read_samples(tmp_path, "a")


def test_samples_of_another_benchmark_are_refused(engine, tokenizer, tmp_path):
    evaluate_model(engine, tokenizer, [digits("a")], seed=0, samples_path=tmp_path)
    (tmp_path / "a.parquet").rename(tmp_path / "b.parquet")
    with pytest.raises(ValueError, match=r"b\.parquet holds samples of a, expected those of b"):
        read_samples(tmp_path, "b")


def test_grader_must_judge_every_sample(engine, tokenizer):
    benchmark = replace(digits("a"), grade=lambda completions, answers: [True])
    with pytest.raises(ValueError, match="1 verdicts for 160 completions"):
        evaluate_model(engine, tokenizer, [benchmark], seed=0)

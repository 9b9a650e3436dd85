"""Samples on disk as they come: a run that ends anywhere goes on to the same result and draws nothing twice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from saki.evaluation import evaluate_model, read_samples
from tests.evaluation.test_runner import digits


class Killed(BaseException):
    """Ends an evaluation at some moment."""


def run(engine, tokenizer, benchmarks, folder, **options):
    return evaluate_model(
        engine,
        tokenizer,
        benchmarks,
        seed=0,
        num_samples=2,
        samples_path=folder,
        **{"chunk_rows": 6, "resume": True, **options},
    )


def test_chunks_change_nothing(engine, tokenizer, tmp_path):
    benchmarks = [digits("a"), digits("b", 7)]
    chunked = run(engine, tokenizer, benchmarks, tmp_path)
    assert [len(request_prompts) for request_prompts in engine.asked] == [3] * 6 + [2] + [3, 3, 1]
    whole = evaluate_model(engine, tokenizer, benchmarks, seed=0, num_samples=2)
    assert chunked.sets == whole.sets
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.parquet", "b.parquet"]


@pytest.mark.parametrize("calls", range(1, 10))
def test_a_killed_run_goes_on_to_the_same_samples(engine, tokenizer, tmp_path, calls):
    benchmarks = [digits("a"), digits("b", 7)]
    whole = run(engine, tokenizer, benchmarks, tmp_path / "whole")
    engine.asked.clear()
    generate = engine.generate

    def killed(*arguments):
        if len(engine.asked) == calls:
            raise Killed
        return generate(*arguments)

    engine.generate = killed
    with pytest.raises(Killed):
        run(engine, tokenizer, benchmarks, tmp_path / "cut")
    engine.generate = generate
    again = run(engine, tokenizer, benchmarks, tmp_path / "cut")
    assert again.sets == whole.sets
    assert len(engine.asked) == 10  # no chunk was drawn twice
    for name in ("a", "b"):
        ours, theirs = read_samples(tmp_path / "cut", name), read_samples(tmp_path / "whole", name)
        assert replace(ours, seconds=None) == replace(theirs, seconds=None)


def test_the_time_of_earlier_runs_counts(engine, tokenizer, tmp_path):
    first = run(engine, tokenizer, [digits("a")], tmp_path)
    again = run(engine, tokenizer, [digits("a")], tmp_path)
    assert first.seconds > 0
    assert again.seconds == pytest.approx(first.seconds)
    assert again.tokens_per_second == pytest.approx(first.tokens_per_second)


def test_without_resume_samples_are_drawn_again(engine, tokenizer, tmp_path):
    run(engine, tokenizer, [digits("a")], tmp_path)
    engine.asked.clear()
    run(engine, tokenizer, [digits("a")], tmp_path, resume=False)
    assert len(engine.asked) == 7


def test_samples_of_other_problems_are_refused(engine, tokenizer, tmp_path):
    run(engine, tokenizer, [digits("a")], tmp_path)
    with pytest.raises(ValueError, match="holds 2 samples each of 20 problems, not the 10 problems"):
        run(engine, tokenizer, [digits("a", 10)], tmp_path)


def test_progress_counts_what_was_there(engine, tokenizer, tmp_path):
    run(engine, tokenizer, [digits("a")], tmp_path)
    calls = []
    run(engine, tokenizer, [digits("a"), digits("b", 3)], tmp_path, progress=lambda *call: calls.append(call))
    assert calls[0] == (40, 46)
    assert calls[-1] == (46, 46)


def test_further_graders_are_kept_and_reported(engine, tokenizer, tmp_path):
    strict = digits("a")
    benchmark = replace(strict, also=(("lenient", lambda completions, answers: ["correct"] * len(completions)),))
    result = run(engine, tokenizer, [benchmark], tmp_path)
    assert result.to_json()["benchmarks"]["a"]["lenient"]["mean_at_k"] == 1.0
    assert result.mean_at_k.value < 1.0
    assert set(read_samples(tmp_path, "a").also["lenient"]) == {"correct"}
    again = run(engine, tokenizer, [benchmark], tmp_path)
    assert again.sets == result.sets


def test_answers_that_cannot_be_read_are_counted(engine, tokenizer, tmp_path):
    benchmark = replace(digits("a"), grade=lambda completions, answers: ["unparsed"] * len(completions))
    result = run(engine, tokenizer, [benchmark], tmp_path)
    assert result.sets[0].unparsed == 40
    assert result.sets[0].timeouts == 0
    assert result.mean_at_k.value == 0.0
    with pytest.raises(ValueError, match="gave 'right'; expected True, False, None or one of"):
        run(engine, tokenizer, [replace(digits("c"), grade=lambda c, a: ["right"] * len(c))], tmp_path)

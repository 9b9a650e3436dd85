"""Evaluation of one model: sample every problem, grade, keep the samples, summarise."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saki.evaluation.benchmarks.base import Benchmark
from saki.evaluation.metrics import EvaluationResult, SetResult
from saki.evaluation.parts import PartFolder
from saki.evaluation.prompts import render_benchmarks
from saki.evaluation.samples import SampleSet, grade_samples, read_samples, regrade_samples
from saki.functional.random import request_seed
from saki.types import Prompt, RolloutBatch, RolloutRequest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from saki.rollout.protocol import ProgressCallback, RolloutEngine

TRUNCATED_WARNING_SHARE = 0.2
"""Above this share of samples cut by the length cap a warning is logged."""

_logger = logging.getLogger(__name__)


def evaluate_model(
    engine: RolloutEngine,
    tokenizer: PreTrainedTokenizerBase,
    benchmarks: Sequence[Benchmark],
    *,
    seed: int,
    num_samples: int = 8,
    k: int | None = None,
    max_completion_length: int = 64,
    prompt_suffix: str | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    progress: ProgressCallback | None = None,
    samples_path: Path | None = None,
    chunk_rows: int | None = None,
    resume: bool = False,
) -> EvaluationResult:
    """Sample the engine's student alone on every benchmark and grade it.

    No teacher takes part: to evaluate a teacher, build an engine whose student it is. Temperature is 1 unless the
    engine's decoder has another, and the stop tokens are the engine's. The random numbers are keyed by request seed,
    :func:`saki.evaluation.prompt_key`, sample index and position, so equal weights, seed and problems give equal
    samples.

    Args:
        engine: Rollout engine; only its student-only path is used.
        tokenizer: Tokenizer of the student.
        benchmarks: The benchmarks.
        seed: Run seed.
        num_samples: Samples a problem, N.
        k: The k of Mean@k and Pass@k; N if None.
        max_completion_length: Most tokens a completion, end token included.
        prompt_suffix: Text appended to every prompt. Prompts are rendered by :func:`saki.data.render_prompts`, as
            in training, so equal settings give equal ids.
        chat_template_kwargs: Variables for the chat template of benchmarks that use it; thinking is off unless
            set here.
        progress: Called with (samples finished, samples in all) over all benchmarks.
        samples_path: Folder for one parquet file of samples a benchmark.
        chunk_rows: Samples that are drawn, graded and written together; a whole benchmark if None. Fewer lose less
            when the run is killed, and keep the engine less busy.
        resume: Whether samples in ``samples_path`` are taken up instead of drawn again. The caller answers for it
            that they come from the same weights and settings; prompts and chunks are compared here.

    Returns:
        The results, benchmarks in the order given. Their time is that of all rollouts, of earlier runs as well.

    Raises:
        ValueError: If no benchmark is given, if two share a name or a key, if a prompt is empty or too long for the
            engine's ``max_positions``, if k is out of range, or if samples to take up answer other prompts. All but
            the last is found before the first sample.
    """
    prompts = render_benchmarks(
        tokenizer,
        benchmarks,
        max_completion_length=max_completion_length,
        max_positions=getattr(engine, "max_positions", None),  # an engine of one's own need not know a limit
        prompt_suffix=prompt_suffix,
        chat_template_kwargs=chat_template_kwargs,
    )
    if k is not None and not 1 <= k <= num_samples:
        raise ValueError(f"k must lie in [1, {num_samples}], the number of samples a problem, got {k}")
    request = RolloutRequest(
        seed=request_seed(seed, "eval", 0),
        max_completion_length=max_completion_length,
        num_generations=num_samples,
        behavior="student",
        trust_region_radius=0.0,
        score_teacher=False,
    )
    if chunk_rows is not None and chunk_rows < 1:
        raise ValueError(f"chunk_rows must be at least 1, got {chunk_rows}")
    num_rows = num_samples * sum(len(benchmark) for benchmark in benchmarks)
    results: list[SetResult] = []
    finished, seconds = 0, 0.0

    def draw(part: Benchmark, part_prompts: Sequence[Prompt]) -> SampleSet:
        begin = time.perf_counter()
        batch = engine.generate(part_prompts, request, _shifted(progress, finished, num_rows))
        drawn = _samples(part, part_prompts, batch, tokenizer, num_samples, time.perf_counter() - begin)
        return grade_samples(drawn, part)

    for benchmark, benchmark_prompts in zip(benchmarks, prompts, strict=True):
        folder = PartFolder(samples_path, benchmark.name, resume=resume)
        samples = folder.stored(benchmark.prompts, num_samples)
        if samples is None:
            size = len(benchmark) if chunk_rows is None else max(1, chunk_rows // num_samples)
            parts: list[SampleSet] = []
            for first in range(0, len(benchmark), size):
                part = _slice(benchmark, first, size)
                found = folder.part(first, part.prompts, num_samples)
                if found is None:
                    found = draw(part, benchmark_prompts[first : first + size])
                    if len(part) < len(benchmark):
                        folder.keep(first, found)
                elif progress is not None:
                    progress(finished + len(found.completions), num_rows)
                parts.append(found)
                finished += len(found.completions)
            samples = folder.finish(parts)
        else:
            finished += len(samples.completions)
            if progress is not None:
                progress(finished, num_rows)
        seconds += samples.seconds or 0.0
        result = samples.summarise(k)
        _warn(result, max_completion_length)
        results.append(result)
    return EvaluationResult.from_sets(results, seconds)


def regrade(samples_path: Path, benchmarks: Sequence[Benchmark], *, k: int | None = None) -> EvaluationResult:
    """Results of stored samples under the benchmarks' present answers and graders, without a model.

    Args:
        samples_path: Folder that :func:`evaluate_model` wrote samples to.
        benchmarks: The benchmarks, with the prompts that were sampled.
        k: The k of Mean@k and Pass@k; the number of stored samples if None.

    Returns:
        The results; the time of the rollouts is not known.

    Raises:
        ValueError: If a file is missing or belongs to other prompts.
    """
    stored = [regrade_samples(read_samples(samples_path, each.name), each) for each in benchmarks]
    return EvaluationResult.from_sets([samples.summarise(k) for samples in stored])


def _slice(benchmark: Benchmark, first: int, size: int) -> Benchmark:
    """Some problems of a benchmark."""
    last = first + size
    return replace(benchmark, prompts=benchmark.prompts[first:last], answers=benchmark.answers[first:last])


def _samples(
    benchmark: Benchmark,
    prompts: Sequence[Prompt],
    batch: RolloutBatch,
    tokenizer: PreTrainedTokenizerBase,
    num_samples: int,
    seconds: float,
) -> SampleSet:
    """The samples of a rollout, not graded yet."""
    expected = [(prompt.key, sample) for prompt in prompts for sample in range(num_samples)]
    assert list(zip(batch.prompt_keys.tolist(), batch.sample_indices.tolist(), strict=True)) == expected, (
        "the engine did not return every sample of every prompt, prompt-major"
    )
    completions, num_tokens = [], []
    for row, reason in enumerate(batch.finish_reasons):
        ids = batch.completion_token_ids(row)
        num_tokens.append(len(ids))
        # By position, not by value: the last token of a stopped row is its stop token.
        text_ids = ids[:-1] if reason == "stop" else ids
        text = tokenizer.decode(text_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        completions.append(text)
    return SampleSet(
        benchmark=benchmark.name,
        num_samples=num_samples,
        prompts=benchmark.prompts,
        answers=benchmark.answers,
        completions=tuple(completions),
        finish_reasons=batch.finish_reasons,
        num_tokens=tuple(num_tokens),
        verdicts=(),
        seconds=seconds,
    )


def _shifted(progress: ProgressCallback | None, finished: int, num_rows: int) -> ProgressCallback | None:
    if progress is None:
        return None
    return lambda rows, _: progress(finished + rows, num_rows)


def _warn(result: SetResult, max_completion_length: int) -> None:
    if result.truncated > TRUNCATED_WARNING_SHARE:
        _logger.warning(
            "%s: %.0f%% of the completions were cut at %d tokens; raise --max_new_tokens "
            "(max_completion_length in Python)",
            result.name,
            100 * result.truncated,
            max_completion_length,
        )
    if result.unparsed > TRUNCATED_WARNING_SHARE * result.num_problems * result.num_samples:
        _logger.warning(
            "%s: %d of %d completions hold no answer that could be read; they count as wrong",
            result.name,
            result.unparsed,
            result.num_problems * result.num_samples,
        )
    if result.failed:
        _logger.warning("%s: the model gave NaN in %d samples; they count as wrong", result.name, result.failed)
    if result.timeouts:
        _logger.warning("%s: grading of %d samples ran out of time; they count as wrong", result.name, result.timeouts)

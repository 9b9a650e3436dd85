"""The page of some made-up rollouts."""

from __future__ import annotations

import pytest

from tests.analysis.trace import made_rollouts as made


@pytest.fixture(scope="session")
def trace_batches():
    """Three steps of two methods, with every kind of token."""
    mixed = [made.THE, made.CAT, made.SAT, made.STOP_LINE, made.TAB, made.HOSTILE_ID, made.EURO_HEAD, made.EURO_TAIL]
    mixed += [made.ESCAPE, made.OVERRIDE, made.SPACES, made.NUL, made.END]
    plain = [made.THE, made.CAT, made.SAT, made.ON, made.THE, made.MAT, made.END]
    return {
        (1, "saki"): made.batch_of(
            [mixed, plain, plain[:4]],
            corrections={(0, 2): made.HOSTILE_ID, (0, 7): made.EURO_HEAD, (0, 10): made.CAT, (1, 1): made.SPACES},
            finish=["stop", "stop", "length"],
        ),
        (2, "saki"): made.batch_of([plain, plain[1:]], seed=1, corrections={(1, 0): made.OVERRIDE}),
        (2, "trb"): made.batch_of([plain[2:], plain[3:]], seed=2, finish=["nan", "stop"]),
    }


@pytest.fixture(scope="session")
def trace_file(tmp_path_factory, trace_batches):
    """The page of :func:`trace_batches`; samples 0 are right, samples 1 wrong, those of step 2 not known."""
    from saki.analysis.trace import TokenTexts, read_trace, write_trace

    folder = tmp_path_factory.mktemp("trace")
    files = [made.write_step(folder / method, step, batch, method) for (step, method), batch in trace_batches.items()]

    def judge(drawn):
        return [None if drawn.step == 2 else sample == 0 for sample in drawn.sample_indices]

    trace = read_trace(files, judge=judge, notes=[f"A note {made.HOSTILE}"])
    texts = TokenTexts(made.byte_level_tokenizer())
    return write_trace(folder / "trace.html", trace, title=f"Trace {made.HOSTILE}", texts=texts)

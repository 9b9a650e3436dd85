"""Signals during training, with the callback in this process; real ones to the command line in tests/cli."""

from __future__ import annotations

import os
import signal
import threading

import pytest
import torch
from transformers import TrainerCallback

from saki.training import StopOnSignal
from saki.training.checkpoint import list_checkpoints
from tests.training.test_trainer import assert_equal_weights, metrics, trainer, weights


@pytest.fixture(autouse=True)
def heard():
    """Handlers as a terminal gives them: a shell starts background jobs with SIGINT ignored, and it would stay so."""
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


class Raise(TrainerCallback):
    """Sends this process a signal in the middle of a step."""

    def __init__(self, signum, step, times=1):
        self.signum, self.step, self.times = signum, step, times

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        if state.global_step + 1 == self.step:
            for _ in range(self.times):
                os.kill(os.getpid(), self.signum)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_the_step_under_way_ends_with_a_checkpoint(tmp_path, capfd, signum):
    options = {"max_steps": 4, "num_rows": 9}
    whole = trainer(tmp_path / "whole", **options)
    whole.train()
    before = signal.getsignal(signum)
    stop = StopOnSignal()
    cut = trainer(tmp_path / "cut", callbacks=[stop, Raise(signum, 3)], **options)
    cut.train()
    assert stop.stopped_by == signum
    assert signal.getsignal(signum) is before
    assert signal.Signals(signum).name in capfd.readouterr().err
    # There is a checkpoint although save_strategy is "no".
    assert [path.name for path in list_checkpoints(tmp_path / "cut" / "checkpoints")] == ["checkpoint-3"]
    assert [line["step"] for line in metrics(tmp_path / "cut")] == [1, 2, 3]
    resumed = trainer(tmp_path / "cut", callbacks=[stop], **options)
    resumed.train(resume_from_checkpoint=True)
    assert stop.stopped_by is None
    assert [line["step"] for line in metrics(tmp_path / "cut")] == [1, 2, 3, 4]
    assert_equal_weights(weights(resumed), weights(whole))


def test_a_second_signal_leaves_at_once(tmp_path):
    before = signal.getsignal(signal.SIGINT)
    run = trainer(tmp_path, callbacks=[stop := StopOnSignal(), Raise(signal.SIGINT, 2, times=2)])
    with pytest.raises(KeyboardInterrupt), stop:
        run.train()
    assert signal.getsignal(signal.SIGINT) is before
    assert not list_checkpoints(tmp_path / "checkpoints")
    assert [line["step"] for line in metrics(tmp_path)] == [1]


def test_handlers_are_put_back_after_an_error(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    run = trainer(tmp_path, callbacks=[stop := StopOnSignal()])

    def failing(*args, **kwargs):
        assert signal.getsignal(signal.SIGTERM) is not before
        raise RuntimeError("odd")

    run.compute_loss = failing
    with pytest.raises(RuntimeError, match="odd"), stop:
        run.train()
    assert signal.getsignal(signal.SIGTERM) is before


def test_other_threads_and_ignored_signals_are_left_alone(tmp_path):
    stop, kept = StopOnSignal((signal.SIGTERM,)), []
    run = trainer(tmp_path, max_steps=1, callbacks=[stop])
    before = signal.getsignal(signal.SIGTERM)

    class Look(TrainerCallback):
        def on_step_begin(self, *args, **kwargs):
            kept.append(signal.getsignal(signal.SIGTERM))

    run.add_callback(Look())
    thread = threading.Thread(target=run.train)
    thread.start()
    thread.join()
    try:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        run.train()
        assert kept == [before, signal.SIG_IGN]
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def test_all_ranks_stop_at_one_step(tmp_path, monkeypatch):
    """A rank that has no signal itself stops with the one that has."""
    run = trainer(tmp_path)
    stop = StopOnSignal()
    monkeypatch.setattr(type(run.args), "world_size", 2)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda tensor, op: tensor.fill_(int(signal.SIGTERM)))
    stop.on_step_end(run.args, run.state, run.control)
    assert stop.stopped_by == signal.SIGTERM
    assert run.control.should_save
    assert run.control.should_training_stop

"""Measures a fixed-prefix probe while a run trains (Appendix E)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from saki.models import PairSpec
from saki.probe import Measurement, Probe, measure_probe, read_probe, vocabulary_digest, write_measurement
from saki.rollout import model_checksum
from saki.rollout.sync import sync_decoder
from saki.training.config import SakiConfig
from saki.training.engines import frozen_copy
from saki.training.rollouts import TrainingDivergedError

Weights = Callable[[], Iterable[tuple[str, Tensor]]]
"""The trainable model's present weights, under the names of a plain model."""

_FILE = re.compile(r"^step-(\d+)\.parquet$")


class ProbeCallback(TrainerCallback):
    """Measures a probe before the first step, after every n-th one, and after the last.

    It keeps a copy of the student of its own, in the dtype of the trainable weights, so that what it writes is what
    ``saki probe measure`` finds of a checkpoint of that step. Means go to the log as ``probe/*``, figures of all
    positions to ``probe/step-NNNNNN.parquet`` of the run folder. The first process alone measures; the others take
    part in gathering the weights, where those are sharded.

    Args:
        probe: The probe.
        student: The trainable model, plain or PEFT, still with its initial weights.
        spec: Its vocabulary.
        args: The configuration.
        weights: Gives the present weights.
        log: Takes a line of the log.
        label: What is measured, for tables: the method.
    """

    def __init__(
        self,
        probe: Probe,
        student: nn.Module,
        spec: PairSpec,
        args: SakiConfig,
        weights: Weights,
        log: Callable[[dict[str, float]], None],
        label: str,
    ) -> None:
        dtype: torch.dtype = next(student.parameters()).dtype
        is_first = args.process_index == 0
        self._decoder = frozen_copy(student, spec, dtype=dtype, device=args.device) if is_first else None
        self._probe, self._weights, self._log, self._label = probe, weights, log, label
        self._every, self._folder = args.probe_steps, args.run_dir / "probe"

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Measure the initial student; a resumed run only drops what it had measured of later steps."""
        if state.is_world_process_zero:
            drop_measurements(self._folder, state.global_step)
        if state.global_step == 0:
            self._measure(state, control)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Measure, where it is time."""
        if self._is_due(state):
            self._measure(state, control)

    def _is_due(self, state: TrainerState) -> bool:
        return state.global_step % self._every == 0 or state.global_step == state.max_steps

    def _measure(self, state: TrainerState, control: TrainerControl) -> None:
        step = state.global_step
        if self._decoder is None:
            for _ in self._weights():
                pass
            return
        sync_decoder(self._decoder, self._weights(), step)
        try:
            measures = measure_probe(self._decoder, self._probe)
        except ValueError as error:
            if step == 0:  # the probe or the student is not right
                raise
            raise TrainingDivergedError(f"the probe cannot be measured after step {step}: {error}") from error
        checksum = model_checksum(self._decoder.named_tensors())
        found = Measurement(measures, self._probe.digest, self._label, step, self._probe.top_k, checksum)
        write_measurement(self._folder / f"step-{step:06d}.parquet", found)
        # A line of the log of its own would otherwise stand for the step's line, which is still to come.
        due = control.should_log
        self._log({f"probe/{name}": value for name, value in found.means().items()})
        control.should_log = due


def load_probe(args: SakiConfig, spec: PairSpec, tokenizer: PreTrainedTokenizerBase) -> Probe | None:
    """The probe that a configuration names, or None.

    Raises:
        ValueError: If it cannot be read, or is of another vocabulary.
    """
    if args.probe is None:
        return None
    probe = read_probe(Path(args.probe))
    if probe.vocabulary != vocabulary_digest(tokenizer, spec.vocab_size):
        raise ValueError(
            f"the probe {args.probe} was built with another vocabulary ({probe.vocab_size} ids, this pair has "
            f"{spec.vocab_size}); build one with this pair"
        )
    return probe


def drop_measurements(folder: Path, step: int) -> None:
    """Remove measurements of steps after the given one, since those steps come again."""
    for path in folder.iterdir() if folder.is_dir() else ():
        match = _FILE.match(path.name)
        if match is not None and (int(match[1]) > step or step == 0):
            path.unlink()

"""The trainer: rollouts in ``get_batch_samples``, a method's losses in ``compute_loss``, the rest is the library's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback, set_seed
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from transformers.trainer_utils import TrainOutput

from saki.data import RenderedPrompts, collate_rollout, render_prompts
from saki.methods import Method, get_method
from saki.models import plain_state, resolve_pair
from saki.rollout import RolloutEngine
from saki.training.arguments import check_arguments, check_positions, load_named, note_narrow_weights
from saki.training.callbacks import ConsoleCallback, MetricsFileCallback
from saki.training.config import SakiConfig
from saki.training.engines import resident_engine
from saki.training.evaluation import evaluate_student
from saki.training.launch import check_launched, use_float32_reductions
from saki.training.loss import method_parts
from saki.training.metrics import MetricSums
from saki.training.model_card import ModelCard, RunNames
from saki.training.pool_engine import pool_engine
from saki.training.probing import ProbeCallback, load_probe
from saki.training.publishing import Publishing
from saki.training.ranks import Ranks
from saki.training.resume import adapter_facts, resume_facts, weights_facts
from saki.training.rewind import RewindCallback
from saki.training.rollouts import StepRollouts
from saki.training.sampler import CompletionDataset, StepSampler, check_enough, keep_as_list
from saki.training.step_clock import StepClock
from saki.training.student_card import named, student_card
from saki.training.whole_checkpoints import WholeCheckpoints
from saki.types import RolloutBatch

logger = logging.getLogger(__name__)

EvalGrader = Callable[[str, str], bool]
"""(completion text, reference answer) -> correct."""


class SakiTrainer(Publishing, WholeCheckpoints):
    """Distils a teacher into a student by any registered method.

    A step: the engine gets the student's weights, rolls out ``prompts_per_step`` prompts with ``num_generations``
    samples each, the method routes every token to one of its losses, and the library's loop does the update.

    Args:
        model: The student: a causal LM, or a folder or hub name to load as float32. Its generation config is given the
            pair's end ids, since it is saved with the model.
        teacher_model: The teacher: a causal LM (the engine takes it over), or a folder or hub name.
        args: The configuration.
        train_dataset: Rows with a ``prompt`` column, plain text or conversational.
        eval_dataset: Rows of the same form to roll out with the student alone; an ``answer`` column is graded
            when ``eval_grader`` is there.
        processing_class: The student's tokenizer; loaded from ``model`` when that is a name.
        teacher_processing_class: The teacher's tokenizer, to be compared; loaded from ``teacher_model`` when that
            is a name.
        method: A method record, instead of the one that ``args.method`` names.
        engine: A rollout engine of your own; by default a :class:`saki.rollout.ResidentEngine`.
        peft_config: Train an adapter of this configuration instead of the whole student.
        eval_grader: Grades completions of ``eval_dataset``.
        callbacks: More callbacks.
        optimizers: Optimizer and scheduler, as in the library.

    Raises:
        ValueError: If models, tokenizers, prompts and configuration do not fit together; one sentence says where.
    """

    def __init__(
        self,
        model: PreTrainedModel | str,
        teacher_model: PreTrainedModel | str,
        args: SakiConfig,
        train_dataset: Any,
        eval_dataset: Any = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        teacher_processing_class: PreTrainedTokenizerBase | None = None,
        method: Method | None = None,
        engine: RolloutEngine | None = None,
        peft_config: Any = None,
        eval_grader: EvalGrader | None = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
    ) -> None:
        check_arguments(model, teacher_model, args, processing_class, method, engine)
        student, teacher, tokenizer, teacher_tokenizer = load_named(
            model, teacher_model, processing_class, teacher_processing_class, args.device
        )
        self.method = method or get_method(args.method, args.method_options)  # type: ignore[arg-type]  # a dict by now
        self.pair = resolve_pair(student, teacher, tokenizer, teacher_tokenizer)
        logger.info("vocabulary: %d ids; stop ids: %s", self.pair.vocab_size, list(self.pair.stop_token_ids))
        for note in self.pair.notes:
            logger.info(note)
        if student.generation_config is not None:  # it is saved with the model, which has learnt to end at any of them
            student.generation_config.eos_token_id = list(self.pair.stop_token_ids)
        probe = load_probe(args, self.pair, tokenizer)
        if peft_config is not None:
            from peft import get_peft_model

            set_seed(args.seed)  # the adapter's first weights are drawn, on every rank the same
            student = get_peft_model(student, peft_config)
        note_narrow_weights(student)
        self._weights_given = {**weights_facts(student, teacher), **adapter_facts(student)}
        self.prompts = _render(train_dataset, tokenizer, args)
        self.eval_prompts = _render(eval_dataset, tokenizer, args) if eval_dataset is not None else None
        self.eval_grader = eval_grader
        self._eval_rows = eval_dataset
        self._completions = CompletionDataset(len(self.prompts.prompts), args.num_generations)
        check_enough(len(self.prompts.prompts), args.prompts_per_step)
        evaluated = self.eval_prompts.prompts if self.eval_prompts else []
        check_positions([*self.prompts.prompts, *evaluated], args, student, None if engine else teacher)
        self.ranks = Ranks(args.process_index, args.world_size)
        self._sums = MetricSums()
        self._clock = StepClock(self._sums, self.ranks)
        self.init_checkpoints(args.run_dir)
        self.names = RunNames(model=named(student), teacher=named(teacher))
        super().__init__(
            model=student,
            args=args,
            train_dataset=self._completions,
            eval_dataset=eval_dataset,
            processing_class=tokenizer,
            data_collator=keep_as_list,  # type: ignore[arg-type]  # micro-batches become dicts after the rollout
            callbacks=[
                self._clock,
                RewindCallback(args.run_dir),
                MetricsFileCallback(args.run_dir / "metrics.jsonl"),
                *(callbacks or []),
            ],
            optimizers=optimizers,
        )
        check_launched(self.accelerator)
        use_float32_reductions(self.accelerator)
        self.model_accepts_loss_kwargs = True
        # The library's bar prints every log line whole; here a line holds some thirty figures.
        self.remove_callback(PrinterCallback)
        self._console = ConsoleCallback()
        if self.pop_callback(ProgressCallback) is not None:
            self.add_callback(self._console)
        self.engine: RolloutEngine = engine or self._own_engine(student, teacher)
        self.facts, self.loss = method_parts(
            self.method, student, teacher, self.pair, args, self._rollout_dtype(), self._sums
        )
        self.rollouts = StepRollouts(
            self.engine,
            self.method,
            self.prompts.prompts,
            args,
            self._sums,
            self.ranks,
            self._clock,
            self.loss.teacher,
        )
        if probe is not None:
            self.add_callback(ProbeCallback(probe, student, self.pair, args, self._weights, self.log, self.method.name))

    # ---- data ----------------------------------------------------------------------------------------------------

    def _get_train_sampler(self, train_dataset: Any = None) -> StepSampler:
        args = self._args
        seed = args.data_seed if args.data_seed is not None else args.seed
        return StepSampler(self._completions, args.prompts_per_step, seed)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[dict[str, Any]], Tensor | None]:
        """One step's rollout, cut into its micro-batches, and N_valid over all ranks (Eq. 84).

        Nothing here reads or moves global random state: on resume it is restored after the first call.
        """
        if 0 < self.state.max_steps <= self.state.global_step:  # resumed from its last checkpoint, within an epoch
            self.control.should_training_stop = True
            return [], None
        self._clock.begin()
        micro_items = [next(epoch_iterator) for _ in range(num_batches)]
        step = self.state.global_step + 1
        self._sync_engine()
        batch = self.rollouts.roll_out([item for items in micro_items for item in items], step)
        num_valid, num_whole = map(sum, zip(*self.ranks.gather(_counts(batch)), strict=True))
        if num_whole == 0:
            raise self.rollouts.diverged(f"every completion of step {step} ended early because a model gave NaN")
        with self._clock.measure("facts"):
            with self.ranks.together():
                facts = self.facts.of(batch)
            columns = self.loss.step_columns(batch, self.facts.of_step(facts, batch, self.ranks))
        micro_batches, begin = [], 0
        for items in micro_items:
            rows = range(begin, begin + len(items))
            micro: dict[str, Any] = {**collate_rollout(batch, rows, self._pad_token_id)}
            width = micro["response_mask"].shape[1]
            micro.update({name: value[rows.start : rows.stop, :width] for name, value in columns.items()})
            micro_batches.append(micro)
            begin = rows.stop
        self._clock.begin_update()
        return micro_batches, torch.tensor(num_valid, device=device)

    def _sync_engine(self) -> None:
        """Give the engine the weights of the present step, unless it has them."""
        self.rollouts.sync(self._weights, self.state.global_step)

    def _weights(self) -> Iterator[tuple[str, Tensor]]:
        """The present weights under the names of a plain model, adapters merged."""
        return plain_state(self.accelerator.unwrap_model(self.model))

    # ---- loss ----------------------------------------------------------------------------------------------------

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """sum of the micro-batch's token losses / N_valid * number of processes (Eq. 16, 84).

        The factor undoes the mean that data parallelism takes over ranks. A micro-batch without a valid token
        gives 0 with a graph, so that every rank takes part in the reduction.

        Raises:
            TrainingDivergedError: If the loss is not finite.
        """
        unwrapped = self.accelerator.unwrap_model(model)
        losses, logprobs = self.loss.token_losses(model, unwrapped, inputs, self.accelerator.autocast())
        count = num_items_in_batch if num_items_in_batch is not None else inputs["response_mask"].sum()
        loss = losses.sum() / torch.as_tensor(count, device=losses.device).clamp(min=1) * self.accelerator.num_processes
        if not bool(torch.isfinite(loss)):
            raise self.rollouts.diverged(f"the loss of step {self.state.global_step + 1} is {float(loss.detach())}")
        return (loss, {"logprobs": logprobs}) if return_outputs else loss

    # ---- evaluation ----------------------------------------------------------------------------------------------

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Roll out ``eval_dataset`` with the student alone, as :func:`saki.training.evaluation.evaluate_student` does.

        Returns:
            Its metrics, the same on every rank.

        Raises:
            ValueError: If there is nothing to evaluate on.
        """
        args = self._args
        rows = eval_dataset if eval_dataset is not None else self._eval_rows
        if rows is None:
            raise ValueError("there is no eval_dataset; pass one to the trainer or to evaluate()")
        rendered = self.eval_prompts if rows is self._eval_rows else _render(rows, self._tokenizer, args)
        assert rendered is not None
        self._sync_engine()
        grade = None
        if self.eval_grader is not None and "answer" in rows[0]:
            grader = self.eval_grader

            def grade(batch: RolloutBatch, row: int) -> bool:
                return grader(self._decode(batch, row), str(rows[int(batch.prompt_keys[row])]["answer"]))

        metrics = evaluate_student(self.engine, rendered.prompts, args, self.ranks, grade, metric_key_prefix)
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(args, self.state, self.control, metrics)
        return metrics

    def _evaluate(self, trial: Any, ignore_keys_for_eval: list[str] | None, skip_scheduler: bool = False) -> Any:
        if skip_scheduler and self.state.global_step > 0:  # eval_on_start: a resumed run has done it
            return None
        return super()._evaluate(trial, ignore_keys_for_eval, skip_scheduler)

    def _decode(self, batch: RolloutBatch, row: int) -> str:
        return str(self._tokenizer.decode(batch.completion_token_ids(row), skip_special_tokens=True))

    # ---- logs and checkpoints ------------------------------------------------------------------------------------

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the step's metrics to the library's log line."""
        if "loss" in logs:
            logs = {**logs, **self._sums.take(self.ranks)}
        super().log(logs, start_time)

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Train, as :meth:`WholeCheckpoints.train` does.

        Raises:
            CheckpointError: If a named checkpoint does not fit, or none is usable; the run folder is as it was.
            TrainingDivergedError: If a step comes to no finite loss; its rollout is saved.
            DiskFullError: If there is no room; what was written before is whole.
        """
        self.rollouts.synced_version = None
        try:
            return super().train(resume_from_checkpoint, trial, ignore_keys_for_eval)
        finally:
            self._console.close()  # an error's sentence gets a line of its own

    def _load_best_model(self) -> None:
        super()._load_best_model()
        self.rollouts.synced_version = None  # the engine has the last step's weights, the model those of the best

    def resume_facts(self) -> dict[str, Any]:
        """What a resumed run must share with the one that wrote the checkpoint."""
        facts = {**resume_facts(self._args, self.method.name, self.prompts.prompts), **self.facts.resume_facts}
        return {**facts, **self._weights_given, "method_options": dict(self.method.options)}

    def model_card(self) -> ModelCard:
        """The card of the student as it is now."""
        return student_card(self._args, self.method, self.names, self.state)

    # ---- small things --------------------------------------------------------------------------------------------

    @property
    def _args(self) -> SakiConfig:
        return self.args  # type: ignore[return-value]

    @property
    def _tokenizer(self) -> PreTrainedTokenizerBase:
        return self.processing_class  # type: ignore[return-value]

    @property
    def _pad_token_id(self) -> int:
        return self.pair.pad_token_id

    def _own_engine(self, student: nn.Module, teacher: nn.Module) -> RolloutEngine:
        args = self._args
        shared: dict[str, Any] = {
            "dtype": self._rollout_dtype(),
            "device": args.device,
            "max_batch_rows": args.rollout_batch_rows,
            "compiled": args.compile_rollout,
            "adaptive_block_size": args.adaptive_block_size,
        }
        if args.engine == "pool":
            return pool_engine(student, teacher, self.pair, args, folder=args.run_dir, ranks=self.ranks, **shared)
        return resident_engine(student, teacher, self.pair, **shared)

    def _rollout_dtype(self) -> torch.dtype:
        name = self._args.rollout_dtype
        if name == "auto":
            return torch.bfloat16 if self.args.bf16 else next(self.model.parameters()).dtype  # type: ignore[union-attr]
        dtype = getattr(torch, name)
        assert isinstance(dtype, torch.dtype)
        return dtype


def _counts(batch: RolloutBatch) -> tuple[int, int]:
    """Valid tokens, and rows that did not end in NaN."""
    return batch.num_valid_tokens, sum(reason != "nan" for reason in batch.finish_reasons)


def _render(rows: Any, tokenizer: PreTrainedTokenizerBase, args: SakiConfig) -> RenderedPrompts:
    return render_prompts(
        rows,
        tokenizer,
        max_prompt_length=args.max_prompt_length,
        chat_template_kwargs=args.chat_template_kwargs,  # type: ignore[arg-type]  # a dict after __post_init__
        prompt_suffix=args.prompt_suffix,
    )

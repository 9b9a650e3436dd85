"""The card of a distilled student."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import TrainerState

from saki.methods import Method
from saki.training.config import SakiConfig
from saki.training.model_card import ModelCard, RunNames

_SETTINGS = (
    "trust_region_radius",
    "radius_schedule",
    "radius_anneal_steps",
    "block_size",
    "prompts_per_step",
    "num_generations",
    "max_prompt_length",
    "max_completion_length",
    "prompt_suffix",
    "learning_rate",
    "lr_scheduler_type",
    "weight_decay",
    "max_grad_norm",
    "bf16",
    "seed",
)
_FIGURES = {
    "loss": "Loss",
    "rollout/kl_to_teacher": "Sampled KL to the teacher, nats a token",
    "rollout/correction_rate": "Share of corrected tokens",
    "rollout/mean_length": "Mean completion length, tokens",
    "rollout/truncated_share": "Share of completions cut by the length cap",
}


def student_card(args: SakiConfig, method: Method, names: RunNames, state: TrainerState) -> ModelCard:
    """The card of the student of a run, after the steps that the state has."""
    settings: dict[str, Any] = {"method": method.name, "steps": state.global_step}
    settings |= {name: getattr(args, name) for name in _SETTINGS if getattr(args, name) is not None}
    settings["lr_scheduler_type"] = getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)
    if method.options:
        settings["method_options"] = dict(method.options)
    return ModelCard(
        title=str(args.hub_model_id or args.run_dir.absolute().name),
        summary=(
            f"A student distilled on its own rollouts by the method `{method.name}` of saki, on-policy distillation "
            f"with exact teacher-guided rollouts. {method.summary}"
        ),
        tags=("saki", "on-policy-distillation", method.name),
        names=names,
        settings=settings,
        figures=logged_figures(state, _FIGURES),
    )


def logged_figures(state: TrainerState, known: dict[str, str]) -> dict[str, Any]:
    """First and last logged values of some metrics, and the last evaluation."""
    figures: dict[str, Any] = {}
    for key, label in known.items():
        logged = [(entry["step"], entry[key]) for entry in state.log_history if key in entry]
        if logged:
            (first, before), (last, after) = logged[0], logged[-1]
            figures[label] = f"{before:.4g} at step {first}, {after:.4g} at step {last}"
    evaluated = [entry for entry in state.log_history if any(key.startswith("eval/") for key in entry)]
    for key, value in evaluated[-1].items() if evaluated else ():
        if key.startswith("eval/") and key != "eval/seconds":
            figures[f"{key} at step {evaluated[-1]['step']}"] = value
    return figures


def named(model: nn.Module | None) -> str | None:
    """Where the library loaded a model from, if it did."""
    return getattr(getattr(model, "config", None), "_name_or_path", None) or None

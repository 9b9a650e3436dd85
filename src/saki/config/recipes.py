"""Settings of the embedded lab."""

from __future__ import annotations

from typing import Any

from saki.training import SakiConfig

LAB_METHOD_OPTIONS: dict[str, dict[str, Any]] = {"skd": {"top_k": 3}}
"""Options that suit a vocabulary of 36 ids, of which the usual top 25 would leave out next to nothing."""


def lab_config(out: str, *, method: str = "saki", max_steps: int = 200, seed: int = 0, **overrides: Any) -> SakiConfig:
    """How the demo distils the embedded pair: 16 prompts x 4 completions a step, AdamW at 5e-4 decayed linearly to 0.

    Args:
        out: Run folder.
        method: Registered method.
        max_steps: Optimizer steps; the radius anneals over a quarter of them, as in the paper.
        seed: Run seed.
        **overrides: Other fields of :class:`SakiConfig`, or other values for the above; ``method_options`` join
            :data:`LAB_METHOD_OPTIONS`.
    """
    values: dict[str, Any] = {
        "output_dir": out,
        "method": method,
        "max_steps": max_steps,
        "radius_anneal_steps": max(1, max_steps // 4),
        "prompts_per_step": 16,
        "num_generations": 4,
        "per_device_train_batch_size": 64,
        "max_prompt_length": 64,
        "max_completion_length": 64,
        "learning_rate": 5e-4,
        "lr_scheduler_type": "linear",
        "save_steps": 100,
        "save_total_limit": 2,
        "rollout_batch_rows": 64,
        "use_cpu": True,
        "seed": seed,
        "report_to": "tensorboard",
        **overrides,
    }
    own = LAB_METHOD_OPTIONS.get(values["method"], {})
    values["method_options"] = {**own, **(overrides.get("method_options") or {})} or None
    return SakiConfig(**values)

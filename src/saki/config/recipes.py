"""Settings of the embedded lab."""

from __future__ import annotations

from saki.training import SakiConfig


def lab_config(out: str, *, method: str = "saki", max_steps: int = 200, seed: int = 0) -> SakiConfig:
    """How the demo distils the embedded pair: 16 prompts x 4 completions a step, AdamW at 5e-4 decayed linearly to 0.

    Args:
        out: Run folder.
        method: Registered method.
        max_steps: Optimizer steps; the radius anneals over a quarter of them, as in the paper.
        seed: Run seed.
    """
    return SakiConfig(
        output_dir=out,
        method=method,
        max_steps=max_steps,
        radius_anneal_steps=max(1, max_steps // 4),
        prompts_per_step=16,
        num_generations=4,
        per_device_train_batch_size=64,
        max_prompt_length=64,
        max_completion_length=64,
        learning_rate=5e-4,
        lr_scheduler_type="linear",
        save_steps=100,
        save_total_limit=2,
        rollout_batch_rows=64,
        use_cpu=True,
        seed=seed,
        report_to="tensorboard",
    )

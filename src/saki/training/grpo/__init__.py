"""GRPO of a teacher through TRL, an optional dependency: only ``config`` and ``trainer`` import it."""

from saki.training.grpo.rewards import Reward, batched_reward

__all__ = ["Reward", "batched_reward"]

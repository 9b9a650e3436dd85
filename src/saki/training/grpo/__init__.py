"""GRPO of a teacher through TRL, an optional dependency: only ``config`` and ``trainer`` import it."""

from saki.training.grpo.rewards import Grader, Reward, batched_reward, one_by_one

__all__ = ["Grader", "Reward", "batched_reward", "one_by_one"]

"""The trainer, on ``transformers.Trainer``."""

from saki.training.checkpoint import CheckpointError
from saki.training.config import SakiConfig
from saki.training.interruption import StopOnSignal
from saki.training.rollouts import TrainingDivergedError
from saki.training.trainer import SakiTrainer

__all__ = ["CheckpointError", "SakiConfig", "SakiTrainer", "StopOnSignal", "TrainingDivergedError"]

from .checkpoint import CheckpointError
from .config import SakiConfig
from .interruption import StopOnSignal
from .rollouts import TrainingDivergedError
from .trainer import SakiTrainer

__all__ = ["CheckpointError", "SakiConfig", "SakiTrainer", "StopOnSignal", "TrainingDivergedError"]

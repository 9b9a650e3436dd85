from .decoder import Decoder, HFDecoder, StaleCacheError, TableDecoder
from .external import ExternalLoop
from .external_errors import ExternalError
from .external_process import ServedModel
from .external_stats import ExternalStats
from .protocol import EngineStats, RolloutEngine, ScoreResult, SyncReport
from .resident import ResidentEngine
from .sequential import SequentialSampler
from .storage import (
    RolloutFacts,
    RolloutFileError,
    read_rollout_facts,
    read_rollout_table,
    read_rollouts,
    write_rollouts,
)
from .sync import WeightSyncError, model_checksum
from .tempered import TemperedDecoder

__all__ = [
    "Decoder",
    "EngineStats",
    "ExternalError",
    "ExternalLoop",
    "ExternalStats",
    "HFDecoder",
    "ResidentEngine",
    "RolloutEngine",
    "RolloutFacts",
    "RolloutFileError",
    "ScoreResult",
    "SequentialSampler",
    "ServedModel",
    "StaleCacheError",
    "SyncReport",
    "TableDecoder",
    "TemperedDecoder",
    "WeightSyncError",
    "model_checksum",
    "read_rollout_facts",
    "read_rollout_table",
    "read_rollouts",
    "write_rollouts",
]

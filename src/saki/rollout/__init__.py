"""Rollout engines: prompts in, :class:`saki.types.RolloutBatch` out."""

from saki.rollout.decoder import Decoder, HFDecoder, StaleCacheError, TableDecoder
from saki.rollout.external import ExternalLoop
from saki.rollout.external_errors import ExternalError
from saki.rollout.external_process import ServedModel
from saki.rollout.external_stats import ExternalStats
from saki.rollout.protocol import EngineStats, RolloutEngine, ScoreResult, SyncReport
from saki.rollout.resident import ResidentEngine
from saki.rollout.sequential import SequentialSampler
from saki.rollout.storage import (
    RolloutFacts,
    RolloutFileError,
    read_rollout_facts,
    read_rollout_table,
    read_rollouts,
    write_rollouts,
)
from saki.rollout.sync import WeightSyncError, model_checksum
from saki.rollout.tempered import TemperedDecoder

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

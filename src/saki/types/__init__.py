"""Records that pass between floors."""

from saki.types.batch import FINISH_REASONS, TOKEN_FIELDS, RolloutBatch, fill_value
from saki.types.request import Prompt, RolloutRequest

__all__ = ["FINISH_REASONS", "TOKEN_FIELDS", "Prompt", "RolloutBatch", "RolloutRequest", "fill_value"]

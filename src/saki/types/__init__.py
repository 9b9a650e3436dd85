"""Records that pass between floors."""

from saki.types.batch import FINISH_REASONS, TOKEN_FIELDS, RolloutBatch, fill_value
from saki.types.checks import check_number, json_object
from saki.types.exact import EXACT_LAW, REFUSED_SAMPLING, ExactOptions, unknown_option
from saki.types.request import Prompt, RolloutRequest

__all__ = [
    "EXACT_LAW",
    "FINISH_REASONS",
    "REFUSED_SAMPLING",
    "TOKEN_FIELDS",
    "ExactOptions",
    "Prompt",
    "RolloutBatch",
    "RolloutRequest",
    "check_number",
    "fill_value",
    "json_object",
    "unknown_option",
]

"""Memory and time of a run, predicted from two model configs: records in, records out, no device needed."""

from saki.planning.devices import PRESETS, Device
from saki.planning.memory import DeviceMemory, MemoryItem, device_memory
from saki.planning.plan import Plan, make_plan
from saki.planning.request import PlanRequest
from saki.planning.shapes import DTYPE_BYTES, PUBLISHED, ModelShape, shape_from_config
from saki.planning.sources import load_shape
from saki.planning.speed import StepTime, step_time, tokens_per_wave

__all__ = [
    "DTYPE_BYTES",
    "PRESETS",
    "PUBLISHED",
    "Device",
    "DeviceMemory",
    "MemoryItem",
    "ModelShape",
    "Plan",
    "PlanRequest",
    "StepTime",
    "device_memory",
    "load_shape",
    "make_plan",
    "shape_from_config",
    "step_time",
    "tokens_per_wave",
]

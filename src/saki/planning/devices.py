"""What a plan must know of a device, with presets from data sheets."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """One accelerator, or the host.

    Attributes:
        name: Preset name.
        memory_bytes: Capacity; None where the plan only reports (a host whose memory is not given).
        bytes_per_s: Peak memory bandwidth.
        flops: Peak dense matrix FLOP/s in 16 bits.
        flops_float32: The same in float32 as torch runs it by default.
        link_bytes_per_s: What one device sends to another, one way.
        runtime_bytes: What libraries, contexts and tokenizers take before any tensor.
        is_cpu: Whether the bridge gathers the rows that it solves, in groups that stay in the cache.
        bandwidth_efficiency: Share of the peak bandwidth that large reads reach.
        flops_efficiency: Share of the peak FLOP/s that large products reach.
    """

    name: str
    memory_bytes: float | None
    bytes_per_s: float
    flops: float
    flops_float32: float
    link_bytes_per_s: float
    runtime_bytes: float
    is_cpu: bool = False
    bandwidth_efficiency: float = 0.8
    flops_efficiency: float = 0.4

    def peak_flops(self, dtype_bytes: int) -> float:
        """Peak FLOP/s of products of numbers of this width."""
        return self.flops if dtype_bytes == 2 else self.flops_float32 * min(1.0, 4 / dtype_bytes)


CUDA_RUNTIME_BYTES = 0.6e9
"""Context, kernels and library workspaces of one process on one GPU (an order of magnitude)."""

CPU_RUNTIME_BYTES = 90e6
"""Modules and two tokenizers of 49,152 entries that loading a pair brings; see ``benchmarks/plan_memory.py``."""

PRESETS = {
    "h200": Device("h200", 141e9, 4.8e12, 989e12, 67e12, 450e9, CUDA_RUNTIME_BYTES),
    "h100": Device("h100", 80e9, 3.35e12, 989e12, 67e12, 450e9, CUDA_RUNTIME_BYTES),
    "a100": Device("a100", 80e9, 2.039e12, 312e12, 19.5e12, 300e9, CUDA_RUNTIME_BYTES),
    "a800": Device("a800", 80e9, 2.039e12, 312e12, 19.5e12, 200e9, CUDA_RUNTIME_BYTES),
    "cpu-1-core": Device("cpu-1-core", None, 12e9, 60e9, 60e9, 1e9, CPU_RUNTIME_BYTES, is_cpu=True),
}
"""NVIDIA's data sheets of H200 SXM, H100 SXM, A100 80GB SXM and A800 80GB SXM: memory, bandwidth, dense bfloat16
FLOP/s, float32 FLOP/s without TF32, half of NVLink's two-way bandwidth. ``cpu-1-core`` is an order of magnitude, not a
data sheet: one core with AVX2."""

"""Measures what rollouts, bridges and training steps cost: arms that alternate on one workload, medians with spread."""

from saki.benchmarking.arms import ARM_NAMES, Arm, ArmRun, open_arms
from saki.benchmarking.bridge import FullTensorBridge, bench_bridge, full_tensor_bisection
from saki.benchmarking.pairs import PRESETS, BenchPair, make_pair
from saki.benchmarking.rollout import bench_rollout, waves_of_rows
from saki.benchmarking.tables import bridge_table, rollout_table, train_table
from saki.benchmarking.training import bench_train
from saki.benchmarking.workload import Workload, lognormal_lengths, make_workload

__all__ = [
    "ARM_NAMES",
    "PRESETS",
    "Arm",
    "ArmRun",
    "BenchPair",
    "FullTensorBridge",
    "Workload",
    "bench_bridge",
    "bench_rollout",
    "bench_train",
    "bridge_table",
    "full_tensor_bisection",
    "lognormal_lengths",
    "make_pair",
    "make_workload",
    "open_arms",
    "rollout_table",
    "train_table",
    "waves_of_rows",
]

"""How far a cluster's constants may lie from its stack's: prior widths and physical bounds.

A width is the standard deviation of ``ln(constant / stack's value)``: what the fitted stacks differ
by among each other (``catalog/calibration/stacks.yaml``), at least what one library release moves it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

TIME_WIDTHS: Mapping[str, float] = {
    "gemm": 0.12, "attention": 0.25, "grouped_gemm": 0.1,
    "permute_bytes": 0.6, "score_gemm": 0.4, "score_bytes": 0.4,
    "hbm": 0.15, "elementwise": 0.5, "loss_bytes": 0.5, "floor_s": 0.5, "floor_moe": 0.3,
    "collective_latency_s": 0.5, "fast_link": 0.15, "network": 0.35, "tensor_exposed": 0.4,
    "expert_exposed": 0.3, "gather_exposed": 0.4, "transfer_exposed": 0.4,
    "update_bytes": 0.3, "straggler": 0.5, "fixed_s": 0.5,
}  # fmt: skip
MEMORY_WIDTHS: Mapping[str, float] = {
    "activation": 0.15, "base_bytes": 0.5, "context_bytes": 0.4, "reserve": 0.05,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """What the runs of a cluster may differ by from its stack, before any run is heard."""

    amplitude: float  # of the residual process, log
    noise: float  # of one run, log
    length: float  # of the residual process, features
    freedom: float  # spread of ln(amplitude) about the value above
    noise_freedom: float  # spread of ln(noise)
    trust: float = 1.0  # share of the constants' prior widths that is used


# The values that predicted left-out runs best on the open clusters; the choice is flat (half or twice
# any of them costs 0.2 points of error).
TIME_PROCESS = Process(amplitude=0.12, noise=0.03, length=1.4, freedom=0.8, noise_freedom=0.7)
MEMORY_PROCESS = Process(amplitude=0.05, noise=0.05, length=1.4, freedom=1.0, noise_freedom=1.0)

"""How far a cluster's constants may lie from its stack's, and its runs from their predictions: the prior.

A width is the standard deviation of ``ln(constant / stack's value)``: what the fitted stacks differ by
among each other (``catalog/calibration/stacks.yaml``), at least what one library release moves it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from meshwright.profiles.profile import has_experts, regimes
from meshwright.solver.configuration import FloatArray

TIME_WIDTHS: Mapping[str, float] = {
    "gemm": 0.12, "attention": 0.25, "grouped_gemm": 0.1,
    "permute_bytes": 0.6, "score_gemm": 0.4, "score_bytes": 0.4,
    "hbm": 0.15, "elementwise": 0.5, "loss_bytes": 0.5, "floor_s": 0.5, "floor_moe": 0.3,
    "floor_tensor": 0.5, "floor_across": 0.5,
    "collective_latency_s": 0.5, "fast_link": 0.15, "network": 0.35, "tensor_exposed": 0.4,
    "expert_exposed": 0.3, "gather_exposed": 0.4, "transfer_exposed": 0.4,
    "update_bytes": 0.3, "straggler": 0.5, "fixed_s": 0.5,
}  # fmt: skip
MEMORY_WIDTHS: Mapping[str, float] = {
    "activation": 0.15, "base_bytes": 0.5, "context_bytes": 0.4, "reserve": 0.05,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """Prior spread of a cluster's runs about their stack, log."""

    amplitude: float  # of the residual process
    noise: float  # of one run that no launch holds up
    length: float  # of the residual process, features
    freedom: float  # spread of ln(amplitude) about the value above
    noise_freedom: float  # spread of ln(noise)
    # Of the constants' prior widths: there the marginal likelihood of the open clusters, nothing shared, is
    # largest.
    trust: float = 0.5


# The values that predicted left-out runs best on the open clusters, with a pair of GPU and framework (or
# a whole software stack) that no constant had seen; the choice is flat: half or twice any of them costs
# 0.2 points of error.
TIME_PROCESS = Process(amplitude=0.1, noise=0.03, length=1.4, freedom=0.8, noise_freedom=0.7)
MEMORY_PROCESS = Process(amplitude=0.05, noise=0.05, length=1.4, freedom=1.0, noise_freedom=1.0)


def kinds_of(features: FloatArray) -> FloatArray:
    """Return which factors runs of these features (K, F) share: dense, experts, each regime, (K, 2 + R)."""
    experts, own = has_experts(features), regimes(features)
    of_regimes = own[:, None] == np.unique(own)[None, :]
    return np.concatenate([np.stack([~experts, experts], axis=1), of_regimes], axis=1).astype(np.float64)


def spreads_of(features: FloatArray, shared: tuple[float, float], common: float) -> FloatArray:
    """Return the standard deviation of each factor of ``kinds_of``, log, (2 + R,).

    The covariance of the runs, that of their factors' sums, is ``shared_kernel``.
    """
    _, first = np.unique(regimes(features), return_index=True)
    of_regimes = np.array(shared)[has_experts(features)[first].astype(np.int64)]
    parts = np.repeat([common, 1.0 - common], [2, len(of_regimes)])
    return np.asarray(np.sqrt(parts) * np.array([*shared, *of_regimes]))

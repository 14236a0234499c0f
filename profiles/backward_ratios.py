"""How long the parts of a backward pass take, as a multiple of the same layer's forward pass.

``catalog/operators/backward.json`` is made by ``profiles.importers.simumax`` from measured layers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from profiles.catalog import CATALOG
from profiles.cluster import GpuSpec
from profiles.errors import ProfileError
from profiles.library import find_gpu

_FILE = CATALOG / "operators" / "backward.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardRatio:
    """Seconds of a part of the backward pass over the forward pass of the same layer."""

    operator: str  # gemm, grouped_gemm, attention
    part: str  # input_gradient, weight_gradient; backward of attention
    gradient_dtype: str  # fp32, bf16: of weight gradients; empty elsewhere
    count: int  # layers measured in both passes
    median: float
    p10: float
    p90: float


def backward_ratio(operator: str, part: str, *, gpu: GpuSpec, gradient_dtype: str = "") -> float:
    """The median ratio on that GPU, on its architecture, or else the geometric mean of all measured.

    Args:
        operator: gemm, grouped_gemm or attention.
        part: input_gradient, weight_gradient; backward of attention.
        gpu: where it runs.
        gradient_dtype: fp32 or bf16, what a weight gradient is summed in; empty elsewhere.

    Raises:
        ProfileError: nobody measured that part, or the file is broken.
    """
    medians = {
        slug: ratio.median
        for slug, ratios in measured_ratios().items()
        for ratio in ratios
        if (ratio.operator, ratio.part, ratio.gradient_dtype) == (operator, part, gradient_dtype)
    }
    if not medians:
        raise ProfileError(f"no backward ratio of {operator[:40]} {part[:40]} {gradient_dtype[:20]}")
    if gpu.slug in medians:
        return medians[gpu.slug]
    alike = [value for slug, value in medians.items() if find_gpu(slug).architecture == gpu.architecture]
    return float(np.exp(np.mean(np.log(alike or list(medians.values())))))


@cache
def measured_ratios() -> Mapping[str, Sequence[BackwardRatio]]:
    """All measured ratios by GPU type.

    Raises:
        ProfileError: the file is broken.
    """
    try:
        gpus = json.loads(_FILE.read_text("utf-8"))["gpus"]
        return {gpu: tuple(BackwardRatio(**ratio) for ratio in ratios) for gpu, ratios in gpus.items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ProfileError("catalog: backward.json cannot be read") from error

"""Layers that were timed: their time beyond the cost model's own price.

A part takes what was timed where the model's shape, what is trained of it, the sequence length and the
tensor-parallel size are those of the timing, without context parallelism and in 16 bits; micro-batches
between and beyond the timed ones are read off straight lines, because a layer's time is affine in its
tokens. Every other row of that model keeps its price, times what the nearest tensor-parallel size took over
its own at as many tokens a rank: a price is off by more where launches fill a pass than where matrices do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from meshwright.solver.configuration import BoolArray, FloatArray
from meshwright.solver.cost.context import Context, PassSeconds
from meshwright.solver.cost.launches import issuing_left

if TYPE_CHECKING:
    from meshwright.profiles.measured.layers import LayerTime, MeasuredLayers
    from meshwright.solver.cost.parameters import Part

# Of ln(measured / predicted) of steps priced from one timed layer for each tensor-parallel size and
# micro-batch: 688 open single-node runs missed by 7.3 % on average and 5.4 % in the median, 80 % of them
# inside the interval that this gives (python -m benchmarks.timed_layers).
TIMED_LOG_SIGMA = 0.07
_UNTIMED = (
    "tensor_parallel", "context_parallel", "expert_parallel", "data_parallel", "pipeline_transfer",
    "optimizer",
)  # fmt: skip


def beyond_price(ctx: Context, part: Part, own: PassSeconds) -> PassSeconds:
    """Return the seconds to add to ``own``, the price, to reach the timed seconds; 0 if none were timed."""
    forward, backward = np.zeros_like(ctx.t), np.zeros_like(ctx.t)
    layers = _layers(ctx, part)
    if layers is None:
        return PassSeconds(forward=forward, backward=backward)
    nearest, exact = _nearest(ctx, layers, part), _as_timed(ctx, layers, part)
    for tp in np.unique(nearest):
        curve = layers.curve(part, int(tp))
        ratios = layers.ratios_of(part, int(tp))
        rows, others = exact & (nearest == tp), ~exact & (nearest == tp)
        for timed, over, seconds, price in (
            ([time.forward_s for time in curve], [one.forward for one in ratios], forward, own.forward),
            ([time.backward_s for time in curve], [one.backward for one in ratios], backward, own.backward),
        ):
            seconds[rows] = along(timed, curve, ctx.micro_batch[rows]) - price[rows]
            if ratios and others.any():
                # timed over priced seconds at as many tokens a rank, interpolated on a logarithmic scale;
                # beyond the smallest and the largest micro-batch their own value holds
                sizes = [one.micro_batch_size for one in ratios]
                sequences = ctx.micro_batch * ctx.seq_length / ctx.c / layers.seq_length
                ratio = np.exp(np.interp(np.log(sequences), np.log(sizes), np.log(over)))
                seconds[others] = price[others] * (ratio[others] - 1.0)
    return PassSeconds(forward=forward, backward=backward)


def is_issued(ctx: Context, part: Part) -> bool:
    """Return whether the host's time to issue the part was measured."""
    layers = _layers(ctx, part)
    return layers is not None and layers.with_issuing


def issuing_s(ctx: Context, part: Part) -> FloatArray:
    """Return the measured seconds that a host takes to issue both passes of a part, (n,)."""
    seconds = np.zeros_like(ctx.t)
    if (layers := _layers(ctx, part)) is not None:
        nearest = _nearest(ctx, layers, part)
        for tp in np.unique(nearest):
            seconds[nearest == tp] = layers.issuing_s(part, int(tp))
    return np.asarray(seconds * issuing_left(ctx, part))


def shared_out(causes: Mapping[str, FloatArray], total_s: FloatArray) -> dict[str, FloatArray]:
    """Return causes of parts that may have been timed: all but collectives is computing, none negative.

    A timed part gives its sum alone; where the priced collectives exceed it, they are scaled down.
    """
    shares = dict(causes) | {"rest": np.zeros_like(total_s), "compute": np.zeros_like(total_s)}
    others = np.asarray(sum(shares.values()))
    shares["compute"] = np.maximum(total_s - others, 0.0)
    scale = total_s / np.maximum(others + shares["compute"], np.finfo(np.float64).tiny)
    return {name: share * scale for name, share in shares.items()}


def is_timed(ctx: Context, part: Part) -> BoolArray:
    """Mark rows with a tensor-parallel size and micro-batch that were timed themselves, shape (n,)."""
    layers = _layers(ctx, part)
    rows = np.zeros(len(ctx.t), dtype=np.bool_)
    for time in layers.times if layers else ():
        same = (ctx.t == time.tensor_parallel_size) & (ctx.micro_batch == time.micro_batch_size)
        rows |= same & (time.part == part)
    return rows & _as_timed(ctx, layers, part) if layers else rows


def log_sigma_of_timed(log_sigma: float, causes_s: Mapping[str, float]) -> float:
    """Return the spread of ln(measured / predicted) of a step with timed layers.

    What was not timed keeps the spread of the profile; both may err the same way, so they add up.
    """
    step_s = sum(causes_s.values())
    untimed = sum(causes_s.get(name, 0.0) for name in _UNTIMED) / step_s
    return min(untimed * log_sigma + (1.0 - untimed) * TIMED_LOG_SIGMA, log_sigma)


def along(seconds: Sequence[float], curve: Sequence[LayerTime], micro_batch: FloatArray) -> FloatArray:
    """Return seconds at any micro-batch: straight lines through the timed ones, never falling.

    Below the smallest in proportion to the tokens; above the largest along the last line, or in
    proportion where there is one point.
    """
    x = np.array([time.micro_batch_size for time in curve], dtype=np.float64)
    y = np.maximum.accumulate(np.array(seconds, dtype=np.float64)[np.argsort(x)])
    x = np.sort(x)
    slope = (y[-1] - y[-2]) / (x[-1] - x[-2]) if len(x) > 1 else y[0] / x[0]
    inside = np.interp(micro_batch, x, y) * np.minimum(micro_batch / x[0], 1.0)
    return np.asarray(inside + slope * np.maximum(micro_batch - x[-1], 0.0))


def _layers(ctx: Context, part: Part) -> MeasuredLayers | None:
    """Return the timed layers, if they hold the part in this model's shape."""
    layers = ctx.layers
    if layers is None or ctx.low_precision or not layers.has_part(part, ctx.model):
        return None
    if not layers.trains(ctx.workload.lora_rank, ctx.workload.lora_targets):
        return None
    return layers if any(time.part == part for time in layers.times) else None


def _nearest(ctx: Context, layers: MeasuredLayers, part: Part) -> FloatArray:
    """Return the timed tensor-parallel size nearest to each row's, by ratio; the smaller of two."""
    sizes = np.array(sorted({time.tensor_parallel_size for time in layers.times if time.part == part}))
    apart = np.abs(np.log2(ctx.t)[:, None] - np.log2(sizes)[None, :])
    return np.asarray(sizes[np.argmin(apart, axis=1)], dtype=np.float64)


def _as_timed(ctx: Context, layers: MeasuredLayers, part: Part) -> BoolArray:
    """Mark rows that hold the part as timed: same split, whole sequences, experts split alike."""
    rows = (ctx.c == 1) & (_nearest(ctx, layers, part) == ctx.t) & (ctx.seq_length == layers.seq_length)
    if part == "moe":
        rows &= (ctx.e == layers.expert_parallel_size) & (ctx.et == ctx.t)
    return np.asarray(rows)

"""From the ideal step to the real one, term by term; the terms add up to the step.

Everything inside the pipeline is the mean over its ranks; what the slowest rank does beyond the mean is
``imbalance``. ``bubble`` is what remains: waiting that no other term explains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from profiles.profile import Profile
from solver.columns import FloatArray
from solver.cost.context import ACTIVATIONS_OFFLOADED
from solver.cost.price import price, straggler_share
from solver.cost.schedule import fill_share
from solver.plan import Configuration
from solver.problem import Problem
from solver.why.assembled import Assembled
from solver.why.work import work_of

# Order of the terms. ideal: the model's FLOPs at the GPU's peak. calibration: what measured runs of this
# cluster add to, or take from, the formulas. fixed: once per step whatever its size.
TERMS = (
    "ideal", "gemm_efficiency", "attention_efficiency", "memory_bound", "launch_floor", "offload",
    "recompute", "tensor_parallel", "context_parallel", "expert_parallel", "pipeline_transfer",
    "imbalance", "bubble", "data_parallel", "optimizer", "straggler", "calibration", "fixed",
)  # fmt: skip
NO_LOSS = ("ideal", "calibration")
_Mean = Callable[[FloatArray], FloatArray]


def waterfalls(
    problem: Problem, profile: Profile, configurations: Sequence[Configuration], steps_s: Sequence[float]
) -> list[dict[str, float]]:
    """The waterfall of every configuration; each sums to its step time.

    Args:
        problem: what was asked.
        profile: what prices it.
        configurations: those to explain.
        steps_s: their step times: simulated, or closed form.
    """
    if not configurations:
        return []
    found = Assembled.of(problem, profile, configurations)
    return waterfalls_of(problem, profile, found, np.asarray(steps_s, dtype=np.float64))


def waterfalls_of(
    problem: Problem, profile: Profile, found: Assembled, steps_s: FloatArray
) -> list[dict[str, float]]:
    """The same of configurations that are priced already; ``steps_s`` has shape (n,)."""
    terms = _inside(problem, profile, found)
    terms |= _tails(found)
    busy_s = found.columns.num_microbatches * _time_of_slowest(found)
    scale, fixed = found.prices.straggler, found.prices.fixed_s
    own = (steps_s - fixed) / scale  # of the rank that ends last, before stragglers and calibration
    share = straggler_share(found.columns, profile)
    terms["bubble"] = own - busy_s - terms["data_parallel_tail"] - terms["optimizer"]
    terms["data_parallel"] = terms["data_parallel"] + terms.pop("data_parallel_tail")
    terms["straggler"] = (scale - scale / share) * own
    terms["calibration"] = (scale / share - 1.0) * own
    terms["fixed"] = fixed
    columns = {name: terms[name].tolist() for name in TERMS}
    return [{name: columns[name][row] for name in TERMS} for row in range(len(steps_s))]


def _time_of_slowest(found: Assembled) -> FloatArray:
    """Forward and backward of one micro-batch on the slowest rank, shape (n,)."""
    times = found.stages.rank_time_s
    return np.asarray(np.where(found.stages.rank_valid, times, 0.0).max(axis=1))


def _inside(problem: Problem, profile: Profile, found: Assembled) -> dict[str, FloatArray]:
    """What happens inside the pipeline: the mean over ranks, and what the slowest has beyond it."""
    c, prices = found.columns, found.prices
    m, ranks = c.num_microbatches, c.pipeline_parallel_size
    parts, replayed = found.chunks.parts.sum(axis=1), found.chunks.replayed.sum(axis=1)

    def mean(value: FloatArray, counts: FloatArray = parts) -> FloatArray:
        return np.asarray(m * (counts * value).sum(axis=1) / ranks)

    work = work_of(problem, profile, c, prices)
    causes = {name: mean(value) for name, value in prices.breakdown_s.items()}
    gemm, attention = mean(work.gemm_s), mean(work.attention_s)
    spilled = _offloaded(problem, profile, found, causes["rest"], mean)
    transfers = 2.0 * m * c.virtual_pipeline_size * prices.transfer_s
    total = m * found.stages.rank_time_s.sum(axis=1) / ranks
    return {
        "ideal": work.ideal_gemm_s + work.ideal_attention_s,
        "gemm_efficiency": gemm - work.ideal_gemm_s,
        "attention_efficiency": attention - work.ideal_attention_s,
        "memory_bound": causes["compute"] - gemm - attention,
        "launch_floor": causes["rest"] - spilled,
        "offload": spilled,
        "recompute": causes["recompute"] + mean(prices.replay_s, replayed),
        "tensor_parallel": causes["tensor_parallel"],
        "context_parallel": causes["context_parallel"],
        "expert_parallel": causes["expert_parallel"],
        "data_parallel": causes["data_parallel"],
        "pipeline_transfer": transfers,
        "imbalance": m * _time_of_slowest(found) - total,
    }


def _offloaded(
    problem: Problem, profile: Profile, found: Assembled, rest_s: FloatArray, mean: _Mean
) -> FloatArray:
    """What moving activations to the host and back adds to the passes, shape (n,)."""
    c = found.columns
    away = (c.offload & ACTIVATIONS_OFFLOADED) > 0
    if not away.any():
        return np.zeros_like(rest_s)
    kept = replace(c, offload=np.where(away, c.offload - ACTIVATIONS_OFFLOADED, c.offload))
    return rest_s - mean(price(problem, kept, profile).breakdown_s["rest"])


def _tails(found: Assembled) -> dict[str, FloatArray]:
    """What follows the last micro-batch on the rank that ends last by the closed form."""
    stages, prices = found.stages, found.prices
    phi = fill_share(found.columns)
    ends = (found.columns.num_microbatches - phi)[:, None] * stages.rank_time_s + stages.rank_tail_s
    last = np.where(stages.rank_valid, ends, -1.0).argmax(axis=1)
    mine = found.chunks.valid & (found.chunks.rank == last[:, None])
    parts = (found.chunks.parts * mine[:, :, None]).sum(axis=1)
    tails = {name: (parts * value).sum(axis=1) for name, value in prices.tail_breakdown_s.items()}
    return {
        "data_parallel_tail": tails["data_parallel"] + prices.rank_tail_s,
        "optimizer": tails["optimizer"],
    }

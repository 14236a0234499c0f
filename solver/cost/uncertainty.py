"""Spread of the measured step time about the predicted one: the sigma of its logarithm.

Calibrated: the residual process's value at each configuration. Uncalibrated: the stack's own spread,
and in addition what clusters differ by most: how fast they launch kernels and how much of their network
they reach, each counted by the share of the step that depends on it, and by more if no run of the stack
shows the constant; routing to experts, likewise; a GPU without measured operators. All are fitted to
runs that were left out (``benchmarks/fit_stacks.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from meshwright.profiles.catalog import CATALOG, catalog_file
from meshwright.profiles.operators.operators import architectures_log_spread
from meshwright.profiles.operators.tables import load_operator_tables
from meshwright.profiles.profile import Profile
from meshwright.profiles.resembling import resemblance_log_spread
from meshwright.solver.configuration import BoolArray, Columns, FloatArray, IntArray
from meshwright.solver.cost.compute import flash_lookup, layer_gemms
from meshwright.solver.cost.context import context_of
from meshwright.solver.cost.price import price
from meshwright.solver.cost.residuals import features
from meshwright.solver.cost.stages import LayerLayout, RowPrices, assemble, objective_s
from meshwright.solver.problem import Problem

SPREADS_FILE = CATALOG / "calibration" / "spreads.yaml"
# Constants that shares of a step depend on, and a usual doubt of each towards slower steps, log: a step
# that launches do not bind under our floor may depend on them under a higher one.
SHARES: Mapping[str, str] = {"launch": "floor_s", "network": "network"}
SLOWER: Mapping[str, float] = {"floor_s": 0.5, "network": -0.5}
# Facts of a stack that only runs with experts show: where none does, experts are as usual.
OF_EXPERTS = "permute_bytes"


def _counted(profile: Profile) -> dict[str, str]:
    """Return those of ``SHARES`` that widen the profile's intervals: a calibrated one knows its network."""
    return {name: SHARES[name] for name in SHARES if name == "launch" or profile.residual is None}


def catalog_spreads() -> dict[str, dict[str, float]]:
    """Return the catalog's spreads by what they belong to.

    ``uncalibrated`` are the standard deviations, log, that add to a stack's own spread, as squares. Those
    of ``SHARES`` are weighted by the share. Constants that no run of the stack shows have one of their
    own, named ``unidentified_…``; so have experts where no run has any.
    """
    return catalog_file(SPREADS_FILE)  # type: ignore[no-any-return]


def shared_spreads() -> tuple[tuple[float, float], float]:
    """Return ``shared`` and ``common`` of ``shared_kernel`` for the runs of a cluster."""
    known = catalog_spreads()["shared"]
    return (known["dense"], known["experts"]), known["common"]


def log_time_sigma(
    problem: Problem,
    columns: Columns,
    splits: IntArray,
    profile: Profile,
    replayed_layers: IntArray | None = None,
    *,
    moved: RowPrices | None = None,
) -> FloatArray:
    """Return sigma of ln(measured / predicted) of each row, shape (n,).

    Args:
        problem: the problem.
        columns: configurations.
        splits: layers of their chunks, shape (n, C).
        profile: calibrated or not.
        replayed_layers: recomputed layers of the chunks, (n, C), where stages have counts of their own.
        moved: ``moved_prices`` of the rows, where they are known already.
    """
    shares = shares_of(problem, columns, splits, profile, replayed_layers, moved=moved)
    if profile.residual is not None:
        return profile.residual.sigma(features(problem, columns), shares["launch"])
    known = catalog_spreads()["uncalibrated"]
    variance = np.full(len(columns), _common_variance(problem, profile))
    for name, share in shares.items():
        doubt = f"unidentified_{name}" if SHARES[name] in profile.unidentified else name
        variance += (known[doubt] * share) ** 2
    return np.asarray(np.sqrt(variance))


def least_log_sigma(problem: Problem, profile: Profile) -> float:
    """Return what no configuration's spread is below: that of one that depends on no counted constant.

    0 where a calibrated residual or measured layers may narrow it further.
    """
    if profile.residual is not None or profile.layers is not None:
        return 0.0
    return float(np.sqrt(_common_variance(problem, profile)))


def between(problem: Problem) -> float:
    """Return the spread of clusters about their stack, log: the common error of all runs of one."""
    kind = "dense" if problem.model.moe is None else "experts"
    kind = "one_gpu" if problem.cluster.num_gpus == 1 else kind
    return float(catalog_spreads()["between"][kind])


def _common_variance(problem: Problem, profile: Profile) -> float:
    """Return the variance of every configuration, whatever it depends on: by stack, model and GPU."""
    known = catalog_spreads()["uncalibrated"]
    experts = known["unidentified_experts" if OF_EXPERTS in profile.unidentified else "experts"]
    unmeasured = 0.0 if profile.gpu_operators.measured else known["unmeasured_gpu"]
    borrowed = architectures_log_spread() if profile.borrowed else 0.0
    own = (experts**2 if problem.model.moe is not None else 0.0) + unmeasured**2 + borrowed**2
    gpu = profile.group.gpu
    own += resemblance_log_spread(gpu.slug, gpu.read_as) ** 2 if gpu.read_as else 0.0
    return profile.log_time_sigma**2 + own + between(problem) ** 2


def shares_of(
    problem: Problem,
    columns: Columns,
    splits: IntArray,
    profile: Profile,
    replayed_layers: IntArray | None = None,
    *,
    moved: RowPrices | None = None,
) -> dict[str, FloatArray]:
    """Return each row's share of the step that depends on launches, and uncalibrated on the network.

    The change of the logarithm of the step time with the constant's, over a usual doubt of it: 1 where all
    of it depends on it; shape (n,) each. Arguments as in ``log_time_sigma``.
    """
    counted = _counted(profile)
    n, layout = len(columns), LayerLayout.of(problem.model, problem.training)
    rows = np.tile(np.arange(n), len(counted) + 1)
    many = columns.take(rows)
    prices = moved_prices(problem, columns, profile) if moved is None else moved
    counts = None if replayed_layers is None else replayed_layers[rows]
    stages = assemble(prices, many, layout, splits[rows], counts, with_memory=False)
    seconds = np.log(objective_s(prices, many, stages)).reshape(len(counted) + 1, n)
    return {
        share: share_of(share, seconds[0], slower)
        for share, slower in zip(counted, seconds[1:], strict=True)
    }


def share_of(share: str, still: FloatArray, slower: FloatArray) -> FloatArray:
    """Return one of ``SHARES``, from log step times and those under the usual doubt of its constant."""
    return np.asarray(np.clip((slower - still) / abs(SLOWER[SHARES[share]]), 0.0, 1.0))


def moved_prices(problem: Problem, columns: Columns, profile: Profile) -> RowPrices:
    """Return prices of all rows unchanged, then once more for each counted constant, moved alone."""
    names, n = tuple(_counted(profile).values()), len(columns)
    moved: dict[str, Any] = {}  # constants as columns
    for index, name in enumerate(names):
        factors = np.ones(len(names) + 1)
        factors[index + 1] = np.exp(SLOWER[name])
        moved[name] = np.repeat(getattr(profile.constants, name) * factors, n)
    many = columns.take(np.tile(np.arange(n), len(names) + 1))
    return price(problem, many, replace(profile, constants=replace(profile.constants, **moved)))


def extrapolated(problem: Problem, columns: Columns, profile: Profile) -> list[tuple[str, ...]]:
    """Return names of what lies outside the measured range, for every row.

    ``operators``: nothing was measured on the GPU type itself, shares of its architecture are used.
    ``attention``, ``gemm``: a shape lies beyond the ends of the measured table.

    Raises:
        InvalidProblemError: a framework option is unknown or has a wrong value.
    """
    unmeasured = () if profile.gpu_operators.measured else ("operators",)
    ctx, beyond = context_of(problem, columns, profile), dict[str, BoolArray]()
    if ctx.operators.tables:
        layers = [(ctx.of(one), one.kind) for one in LayerLayout.of(problem.model, problem.training).kinds]
        gemm = load_operator_tables(ctx.operators.tables).find("gemm")
        plain = [g for own, kind in layers for g in layer_gemms(own, kind) if not g.grouped]
        beyond["gemm"] = np.logical_or.reduce([gemm.extrapolated(g.m, g.n, g.k) for g in plain])
        attend = [own for own, _ in layers if own.flash and own.model.mixes_tokens and not own.model.mixes]
        if attend:
            found = [flash_lookup(own) for own in attend]
            beyond["attention"] = np.logical_or.reduce([table.extrapolated(*at) for table, at in found])
    return [
        (*unmeasured, *(name for name, mask in beyond.items() if mask[row])) for row in range(len(columns))
    ]

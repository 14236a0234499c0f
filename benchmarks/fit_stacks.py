"""Fits the constants of the software stacks on the open runs and prints them as YAML.

Two levels: all stacks together round the values in ``stacks.yaml`` (global), then each stack round
the global ones. Each level is a maximum-a-posteriori fit in log space: soft-L1 loss on
``ln(predicted / measured)`` with a noise of 4 %, a log-normal prior of the width below, and every
cluster's weight capped at 60 runs. Tiny models of continuous integration are left out.

    .venv/bin/python benchmarks/fit_stacks.py              # both levels, writes stacks.yaml
    .venv/bin/python benchmarks/fit_stacks.py STACK …      # these stacks, round the global level there
    .venv/bin/python benchmarks/fit_stacks.py --held-out   # writes held_out.yaml

``--held-out`` fits each stack without one of its clusters at a time (the global level stays) and
predicts that cluster: what to expect on a cluster that was never seen.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import yaml

from profiles.frameworks import framework_facts
from profiles.profile import Constants, default_profile, stack_constants
from solver.columns import Columns, FloatArray, IntArray
from solver.cost.assemble import assemble, objective_s
from solver.cost.price import price
from solver.cost.prices import LayerLayout
from solver.problem import Problem
from solver.runs import CATALOG_RUNS, Run, read_runs

# Prior widths in log space; what is not named stays as it is.
WIDTHS = {
    "gemm": 0.12, "attention": 0.25, "grouped_gemm": 0.1,
    "permute_bytes": 0.6, "score_gemm": 0.4, "score_bytes": 0.4,
    "hbm": 0.15, "elementwise": 0.5, "loss_bytes": 0.5, "floor_s": 0.5, "floor_moe": 0.3,
    "collective_latency_s": 0.5, "fast_link": 0.15, "network": 0.35, "tensor_exposed": 0.4,
    "expert_exposed": 0.3, "gather_exposed": 0.4, "gradient_exposed": 0.4, "transfer_exposed": 0.4,
    "network_latency_s": 0.1, "update_bytes": 0.3, "straggler": 0.5, "fixed_s": 0.5,
    "network_decay": 0.5,
}  # fmt: skip
STACK_WIDTHS = WIDTHS | {"network_latency_s": 1.0}  # EFA and InfiniBand differ by far
CAPS = {
    "fast_link": 0.95, "network": 1.0, "tensor_exposed": 1.0, "expert_exposed": 1.0,
    "gather_exposed": 1.0, "gradient_exposed": 1.0, "hbm": 0.95, "score_gemm": 0.7,
    "collective_latency_s": 1.5e-4, "network_latency_s": 6e-4, "update_bytes": 60.0,
    "transfer_exposed": 1.5, "loss_bytes": 120.0,
}  # fmt: skip
UNFITTED = (
    "activation",
    "logit_bytes",
    "base_bytes",
    "context_bytes",
    "reserve",
    "log_time_sigma",
    "log_memory_sigma",
)
STACKS = CATALOG_RUNS.parent.parent / "calibration" / "stacks.yaml"
HELD_OUT = STACKS.with_name("held_out.yaml")
NOISE = 0.04
CLUSTER_WEIGHT = 60.0
LEFT_OUT = ("megatron-ci-",)
SLOW_NETWORK = "ultrascale-h100-efa"  # pipelines across its nodes: up to 5x slow, no cause published


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Runs that share a problem but for its batch: priced in one call."""

    problem: Problem
    framework: str
    columns: Columns
    splits: IntArray
    log_measured: FloatArray
    weight: FloatArray


def batches_of(runs: list[Run]) -> list[Batch]:
    """Group the runs that can be priced together."""
    per_cluster: dict[str, int] = defaultdict(int)
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        shape = run.shape
        if shape is None or run.measured.step_time_s is None or _left_out(run):
            continue
        per_cluster[run.cluster] += 1
        workload = replace(shape.problem.workload, global_batch_size=1)
        key = (run.cluster, shape.framework, replace(shape.problem, workload=workload))
        groups[repr(key) + str(shape.problem.model.name)].append(run)
    return [_batch(group, per_cluster[group[0].cluster]) for group in groups.values()]


def _left_out(run: Run) -> bool:
    """Runs that would teach something false."""
    if run.shape is None or run.cluster.startswith(LEFT_OUT):
        return True
    configuration = run.shape.configuration
    several_nodes = run.shape.problem.cluster.num_nodes > 1
    return run.cluster == SLOW_NETWORK and several_nodes and configuration.pipeline_parallel_size > 1


def _batch(runs: list[Run], in_cluster: int) -> Batch:
    """One group as arrays."""
    shapes = [run.shape for run in runs if run.shape is not None]
    configurations = [shape.configuration for shape in shapes]
    width = max(len(c.stage_layers) for c in configurations)
    rows = [(*c.stage_layers, *([0] * (width - len(c.stage_layers)))) for c in configurations]
    weight = min(1.0, CLUSTER_WEIGHT / in_cluster)
    return Batch(
        problem=shapes[0].problem,
        framework=shapes[0].framework,
        columns=Columns.of(configurations),
        splits=np.array(rows, dtype=np.int64),
        log_measured=np.log([run.measured.step_time_s or 1.0 for run in runs]),
        weight=np.full(len(runs), weight),
    )


def residuals(batches: list[Batch], constants: Constants) -> FloatArray:
    """``ln(predicted / measured)`` of every run under one set of constants."""
    parts = []
    for batch in batches:
        base = default_profile(batch.problem.cluster, batch.framework)
        profile = replace(base, constants=constants)
        prices = price(batch.problem, batch.columns, profile)
        stages = assemble(prices, batch.columns, LayerLayout.of(batch.problem.model), batch.splits)
        parts.append(np.log(objective_s(prices, batch.columns, stages)) - batch.log_measured)
    return np.concatenate(parts)


def _with(constants: Constants, names: list[str], log_values: FloatArray) -> Constants:
    """The constants with some replaced, capped where a share cannot exceed its bound."""
    values = {n: min(float(v), CAPS.get(n, np.inf)) for n, v in zip(names, np.exp(log_values), strict=True)}
    return replace(constants, **values)


def fit(
    batches: list[Batch],
    prior: Constants,
    *,
    widths: dict[str, float] = STACK_WIDTHS,
    start: Constants | None = None,
    iterations: int = 6,
) -> Constants:
    """Damped Gauss-Newton steps on the reweighted residuals, from ``start`` (else the prior) on."""
    names = list(widths)
    centre = np.log([getattr(prior, name) for name in names])
    width = np.array([widths[name] for name in names])
    weight = np.concatenate([batch.weight for batch in batches])
    x = np.log([getattr(start or prior, name) for name in names])

    def cost(log_values: FloatArray) -> tuple[float, FloatArray]:
        r = residuals(batches, _with(prior, names, log_values))
        soft = 2.0 * (np.sqrt(1.0 + (r / NOISE) ** 2) - 1.0)
        return float((weight * soft).sum() + (((log_values - centre) / width) ** 2).sum()), r

    best, r = cost(x)
    damping = 1.0
    for _ in range(iterations):
        jacobian = np.empty((len(r), len(names)))
        for column in range(len(names)):
            moved = x.copy()
            moved[column] -= 0.05
            jacobian[:, column] = (residuals(batches, _with(prior, names, moved)) - r) / -0.05
        robust = weight / (NOISE**2 * np.sqrt(1.0 + (r / NOISE) ** 2))
        left = (jacobian * robust[:, None]).T @ jacobian + np.diag(width**-2.0)
        right = (jacobian * robust[:, None]).T @ r + (x - centre) / width**2
        for _ in range(6):
            trial = x - np.linalg.solve(left + damping * np.diag(width**-2.0), right)
            value, trial_r = cost(trial)
            if value < best:
                x, r, best, damping = trial, trial_r, value, damping / 4.0
                break
            damping *= 4.0
    return _with(prior, names, x)


def _shown(values: dict[str, float]) -> dict[str, float]:
    """Three significant digits."""
    return {name: float(f"{value:.3g}") for name, value in values.items()}


def _differing(fitted: Constants, general: Constants) -> dict[str, float]:
    """The constants that moved by more than a hundredth."""
    pairs = {name: (getattr(fitted, name), getattr(general, name)) for name in WIDTHS}
    return {name: own for name, (own, base) in pairs.items() if abs(own - base) > abs(base) / 100}


def _mean_error(batches: list[Batch], constants: Constants) -> float:
    """Mean absolute relative error of the closed-form step time."""
    return float(np.abs(np.expm1(residuals(batches, constants))).mean())


def _header(path: Path) -> str:
    """The comment that opens the file."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join(line for line in lines if line.startswith("#"))


def _by_stack() -> dict[str, list[Batch]]:
    """The batches of each stack."""
    groups: dict[str, list[Batch]] = defaultdict(list)
    for batch in batches_of(list(read_runs(CATALOG_RUNS))):
        groups[framework_facts(batch.framework).stack].append(batch)
    return dict(sorted(groups.items()))


def fit_levels(wanted: list[str]) -> None:
    """Fit both levels (or only the wanted stacks) and write them to the catalog."""
    by_stack = _by_stack()
    batches = [batch for mine in by_stack.values() for batch in mine]
    levels = yaml.safe_load(STACKS.read_text(encoding="utf-8"))
    start = Constants(**{n: float(v) for n, v in levels["global"].items() if n != "fitted_on"})
    general = start if wanted else fit(batches, start, widths=WIDTHS)
    print(f"global: {_mean_error(batches, start):.1%} -> {_mean_error(batches, general):.1%}")
    levels["global"] |= _shown({name: getattr(general, name) for name in WIDTHS})
    for stack, mine in by_stack.items():
        if wanted and stack not in wanted:
            continue
        own = {n: float(v) for n, v in levels["stacks"].get(stack, {}).items() if n in UNFITTED}
        fitted = fit(mine, replace(general, **own))
        runs = sum(len(batch.log_measured) for batch in mine)
        print(f"{stack}: {runs} runs, {_mean_error(mine, general):.1%} -> {_mean_error(mine, fitted):.1%}")
        values = _differing(fitted, general)
        levels["stacks"][stack] = {"fitted_on": f"{runs} open runs", **_shown(values), **own}
    STACKS.write_text(
        _header(STACKS) + yaml.safe_dump(levels, sort_keys=False, width=100), encoding="utf-8"
    )


def held_out() -> None:
    """Predict each cluster by a fit that has not seen it, and write the errors."""
    levels = yaml.safe_load(STACKS.read_text(encoding="utf-8"))
    general = Constants(**{n: float(v) for n, v in levels["global"].items() if n != "fitted_on"})
    figures: dict[str, dict[str, float | int | str]] = {}
    for stack, mine in _by_stack().items():
        fitted = stack_constants(stack)
        for cluster in sorted({batch.problem.cluster.name for batch in mine}):
            rest = [batch for batch in mine if batch.problem.cluster.name != cluster]
            own = [batch for batch in mine if batch.problem.cluster.name == cluster]
            blind = fit(rest, general, start=fitted, iterations=3) if rest else general
            errors = np.expm1(residuals(own, blind))
            figures[cluster] = {
                "stack": stack,
                "runs": len(errors),
                "mean_percent": round(float(100 * np.abs(errors).mean()), 1),
                "bias_percent": round(float(100 * np.median(errors)), 1),
                "spread": round(float(np.percentile(np.abs(np.log1p(errors)), 80)) / 1.2816, 3),
            }
            print(cluster, figures[cluster], flush=True)
    HELD_OUT.write_text(_header(HELD_OUT) + yaml.safe_dump(figures), encoding="utf-8")


if __name__ == "__main__":
    held_out() if "--held-out" in sys.argv else fit_levels(sys.argv[1:])

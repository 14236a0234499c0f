"""Predicts measured runs and reports the errors of the predictions.

``cluster`` groups runs for calibration only. A prediction depends on the run's shape and, when its
cluster is calibrated, on the measurements of the chosen runs; on nothing else of any row.
"""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import exp, hypot, log
from typing import Any, TextIO

import numpy as np

from meshwright.profiles.calibration import Calibration
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.profile import Profile
from meshwright.profiles.units import GIB
from meshwright.solver.answer import Prediction
from meshwright.solver.calibration.calibrate import calibrate as calibrated_on
from meshwright.solver.calibration.calibrate import default_profile_of
from meshwright.solver.calibration.choose import Choice, RunCandidates, measuring_order, random_order
from meshwright.solver.calibration.credible import least_step_s
from meshwright.solver.calibration.observations import (
    Observation,
    ProfileOf,
    memory_configuration,
    predictions_of,
    seen_moments,
)
from meshwright.solver.configuration import Configuration, FloatArray
from meshwright.solver.predict import Z_80_PERCENT
from meshwright.solver.problem import problem_digest
from meshwright.solver.runs.table import Run, RunShape

# 2-byte logits, their fp32 copy, its shifted copy and softmax, and the gradient (transformers'
# loss/loss_utils.py, ForCausalLMLoss).
_FLOAT_LOSS_BYTES = 14.0

# --------------------------------------------------------------------------------------------------
# Error figures: predicted against measured values of many runs.


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """Run with prediction and measurement as it is scored; None where it was not measured."""

    cluster: str
    source: str
    rank_group: str | None
    memory_kind: str
    measured_s: float | None
    predicted_s: float
    low_s: float
    high_s: float
    measured_bytes: float | None
    predicted_bytes: float
    out_of_memory: bool | None
    out_of_memory_probability: float
    log_memory_sigma: float  # of ln(measured / predicted) peak memory


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorFigures:
    """Relative errors ``predicted / measured - 1`` in per cent."""

    n: int
    mean_absolute: float
    median_absolute: float
    p90_absolute: float
    max_absolute: float
    bias: float  # median of the signed errors


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemoryFigures:
    """Quality of the forecasts of running out of memory."""

    n: int
    accuracy: float  # share of runs judged right at probability 0.5
    false_feasible: float | None  # share of the failed runs called feasible at 0.5
    false_feasible_at_1_percent: float | None  # the same where feasible means at most 1 %


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingFigures:
    """Quality of the order of one model's configurations on one machine, mean over groups."""

    spearman: float
    top1_regret: float  # per cent that the predicted best is slower than the true best


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of one set of runs."""

    n: int
    time: ErrorFigures | None
    coverage: float | None  # share of step times inside the 80 % interval
    memory: dict[str, ErrorFigures]  # by what the measured peak counts
    out_of_memory: OutOfMemoryFigures | None
    ranking: RankingFigures | None


def error_figures(predicted: Sequence[float], measured: Sequence[float]) -> ErrorFigures | None:
    """Return figures of relative errors; None without runs."""
    if not measured:
        return None
    signed = 100.0 * (np.asarray(predicted) / np.asarray(measured) - 1.0)
    absolute = np.abs(signed)
    return ErrorFigures(
        n=len(signed),
        mean_absolute=float(absolute.mean()),
        median_absolute=float(np.median(absolute)),
        p90_absolute=float(np.percentile(absolute, 90)),
        max_absolute=float(absolute.max()),
        bias=float(np.median(signed)),
    )


def _ranks(values: FloatArray) -> FloatArray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    mean: FloatArray = (last - (counts - 1) / 2.0)[inverse]
    return mean


def spearman(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Return the rank correlation; None if one side does not vary."""
    x, y = _ranks(np.asarray(a, dtype=np.float64)), _ranks(np.asarray(b, dtype=np.float64))
    if x.std() == 0.0 or y.std() == 0.0:
        return None
    return float(np.corrcoef(x, y)[0, 1])


def _out_of_memory(runs: Sequence[Scored]) -> OutOfMemoryFigures | None:
    known = [run for run in runs if run.out_of_memory is not None]
    failed = [run for run in known if run.out_of_memory]
    if not failed:
        return None
    right = sum((run.out_of_memory_probability > 0.5) == run.out_of_memory for run in known)  # noqa: PLR2004
    return OutOfMemoryFigures(
        n=len(known),
        accuracy=right / len(known),
        false_feasible=_share_at_most(failed, 0.5),
        false_feasible_at_1_percent=_share_at_most(failed, 0.01),
    )


def _share_at_most(runs: Sequence[Scored], limit: float) -> float:
    return sum(run.out_of_memory_probability <= limit for run in runs) / len(runs)


def _ranking(runs: Sequence[Scored]) -> RankingFigures | None:
    groups: dict[str, list[Scored]] = defaultdict(list)
    for run in runs:
        if run.rank_group and run.measured_s:
            groups[run.rank_group].append(run)
    correlations, regrets = [], []
    for group in groups.values():
        measured = [run.measured_s or 0.0 for run in group]
        predicted = [run.predicted_s for run in group]
        correlation = spearman(predicted, measured) if len(group) >= 3 else None  # noqa: PLR2004
        if correlation is not None:
            correlations.append(correlation)
            regrets.append(100.0 * (measured[int(np.argmin(predicted))] / min(measured) - 1.0))
    if not correlations:
        return None
    return RankingFigures(
        spearman=float(np.mean(correlations)),
        top1_regret=float(np.mean(regrets)),
    )


def figures_of(runs: Sequence[Scored]) -> Figures:
    """Return all figures of a set of runs."""
    timed = [run for run in runs if run.measured_s]
    kinds = sorted({run.memory_kind for run in runs if run.measured_bytes})
    memory = {}
    for kind in kinds:
        mine = [run for run in runs if run.measured_bytes and run.memory_kind == kind]
        figures = error_figures([r.predicted_bytes for r in mine], [r.measured_bytes or 1.0 for r in mine])
        if figures:
            memory[kind] = figures
    covered = [run.low_s <= (run.measured_s or 0.0) <= run.high_s for run in timed]
    return Figures(
        n=len(runs),
        time=error_figures([r.predicted_s for r in timed], [r.measured_s or 1.0 for r in timed]),
        coverage=sum(covered) / len(covered) if covered else None,
        memory=memory,
        out_of_memory=_out_of_memory(runs),
        ranking=_ranking(runs),
    )


PER_RUN_COLUMNS = (
    "run_id", "predicted_step_time_s", "step_time_low_s", "step_time_high_s",
    "predicted_peak_memory_gib", "out_of_memory_probability", "predicted_oom", "used_for_calibration",
    "refused_reason",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPrediction:
    """Prediction of one row, or the reason why there is none."""

    run: Run
    prediction: Prediction | None
    predicted_peak_memory_bytes: float | None  # as the row's memory_kind and memory_rank count it
    used_for_calibration: bool
    log_memory_sigma: float = 0.0  # spread of ln(measured / predicted) peak memory
    assumed: tuple[str, ...] = ()  # what its memory is judged by beyond what its source states

    def scored(self) -> Scored | None:
        """Return the run as it is scored; None for refused and for calibration runs."""
        p, measured = self.prediction, self.run.measured
        if p is None or self.used_for_calibration or self.predicted_peak_memory_bytes is None:
            return None
        return Scored(
            cluster=self.run.cluster,
            source=self.run.source,
            rank_group=self.run.rank_group,
            memory_kind=measured.memory_kind,
            measured_s=measured.step_time_s,
            predicted_s=p.step_time_s,
            low_s=p.step_time_low_s,
            high_s=p.step_time_high_s,
            measured_bytes=measured.peak_memory_bytes,
            predicted_bytes=self.predicted_peak_memory_bytes,
            out_of_memory=measured.out_of_memory,
            out_of_memory_probability=p.out_of_memory_probability,
            log_memory_sigma=self.log_memory_sigma,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """Choice of runs to calibrate on."""

    choose: Choice
    seed: int
    profile_of: ProfileOf

    def order(self, usable: Sequence[Run]) -> Iterator[int]:
        """Yield the runs in the order in which they would be measured; no measurement is used."""
        if self.choose == "random":
            return random_order(len(usable), self.seed)
        asked = [Observation.of_shape(run.shape) for run in usable if run.shape is not None]
        return measuring_order(RunCandidates.of(asked, self.profile_of))


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Predictions of all rows and their error figures."""

    runs: tuple[RunPrediction, ...]
    overall: Figures
    clusters: dict[str, Figures]
    sources: dict[str, Figures]
    refused: dict[str, int]  # rows by reason
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the figures, without the rows."""
        return {
            "overall": asdict(self.overall),
            "clusters": {name: asdict(figures) for name, figures in self.clusters.items()},
            "sources": {name: asdict(figures) for name, figures in self.sources.items()},
            "refused": self.refused,
            "warnings": list(self.warnings),
        }

    def per_run(self) -> Iterator[dict[str, str]]:
        """Yield one row for each run, cells as text, in the order read."""
        for row in self.runs:
            cells = dict.fromkeys(PER_RUN_COLUMNS, "")
            cells["run_id"] = row.run.run_id
            cells["used_for_calibration"] = str(int(row.used_for_calibration))
            cells["refused_reason"] = row.run.refused_reason or ""
            if row.prediction is not None:
                p, peak_bytes = row.prediction, row.predicted_peak_memory_bytes or 0.0
                cells |= {
                    "predicted_step_time_s": f"{p.step_time_s:.6g}",
                    "step_time_low_s": f"{p.step_time_low_s:.6g}",
                    "step_time_high_s": f"{p.step_time_high_s:.6g}",
                    "predicted_peak_memory_gib": f"{peak_bytes / GIB:.5g}",
                    "out_of_memory_probability": f"{p.out_of_memory_probability:.4g}",
                    "predicted_oom": str(int(p.out_of_memory_probability > 0.5)),  # noqa: PLR2004 (more likely than not)
                }
            yield cells

    def write_per_run(self, handle: TextIO) -> None:
        """Write the rows as CSV."""
        writer = csv.DictWriter(handle, PER_RUN_COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.per_run())


def peak_as_measured(prediction: Prediction, one: Observation) -> int:
    """Return the measured kind of peak, of the worst rank if its rank is not known, bytes."""
    stages, moments = prediction.stages, seen_moments(one)
    ends = {"first": stages[:1], "last": stages[-1:]}
    return max(
        round(sum(shares.get(term, 1.0) * value for term, value in stage.memory_bytes.items()))
        for stage in ends.get(one.memory_rank, stages)
        for shares in moments
    )


def _chosen(runs: Sequence[Run], wanted: int, draw: Draw) -> list[Run]:
    """Choose one cluster's runs to calibrate on, by their configurations alone.

    ``wanted`` counts runs that return a time; one that ran out of memory stays chosen as a label. Where
    too few return one, half of the runs is enough. Neither the order of the rows nor their names change
    anything; among runs of one configuration the first by name is taken.
    """
    if wanted <= 0:
        return []
    usable = sorted((run for run in runs if run.shape is not None), key=_by_configuration)
    half = len(usable) // 2
    wanted = min(wanted, half)
    timed_runs = sum(run.measured.step_time_s is not None for run in usable)
    most = len(usable) if timed_runs >= wanted else half
    chosen: list[Run] = []
    timed = 0
    for index in draw.order(usable) if wanted > 0 else ():
        if timed >= wanted or len(chosen) >= most:
            break
        chosen.append(usable[index])
        timed += usable[index].measured.step_time_s is not None
    return chosen


def _by_configuration(run: Run) -> tuple[str, str, str]:
    """Return a run's sort key, which uses its name only among runs of one configuration."""
    if run.shape is None:
        return "", "", run.run_id
    problem = run.shape.problem
    nameless = replace(
        problem, model=replace(problem.model, name=""), cluster=replace(problem.cluster, name="")
    )
    return problem_digest(nameless), repr((run.shape.framework, run.shape.configuration)), run.run_id


def _with_open_switches(
    shapes: Sequence[RunShape], profile_of: ProfileOf, predictions: Sequence[Prediction]
) -> list[Prediction]:
    """Spread the times of runs that leave a recipe's switches open over both: all off, and the recipe's.

    The middle of the two is predicted, and their distance is in the interval.
    """
    found = list(predictions)
    either = [(at, shape.perhaps) for at, shape in enumerate(shapes) if shape.perhaps is not None]
    others = predictions_of([Observation.of_shape(other) for _, other in either], profile_of)
    for (at, _), other in zip(either, others, strict=True):
        found[at] = _spread_over(found[at], log(other.step_time_s / found[at].step_time_s))
    return found


def _spread_over(one: Prediction, log_ratio: float) -> Prediction:
    """Move a prediction to the middle between itself and ``exp(log_ratio)`` times its time."""
    factor = exp(log_ratio / 2.0)
    sigma = hypot(log(one.step_time_high_s / one.step_time_s) / Z_80_PERCENT, log_ratio / 2.0)
    step_s, band = one.step_time_s * factor, exp(Z_80_PERCENT * sigma)
    return replace(
        one,
        step_time_s=step_s,
        step_time_low_s=step_s / band,
        step_time_high_s=step_s * band,
        tokens_per_s_per_gpu=one.tokens_per_s_per_gpu / factor,
        mfu=one.mfu / factor,
        hfu=one.hfu / factor,
        time_breakdown_s={cause: seconds * factor for cause, seconds in one.time_breakdown_s.items()},
    )


def _with_assumed_memory(
    observations: Sequence[Observation], profile_of: ProfileOf, predictions: Sequence[Prediction]
) -> list[tuple[Prediction, tuple[str, ...]]]:
    """Predict memory under the assumed configurations, with the assumptions; times stay as stated."""
    judged = [
        replace(one, configuration=memory_configuration(one, prediction))
        for one, prediction in zip(observations, predictions, strict=True)
    ]
    found = list(predictions)
    others = [at for at, one in enumerate(observations) if judged[at].configuration != one.configuration]
    for at, memory in zip(others, predictions_of([judged[at] for at in others], profile_of), strict=True):
        found[at] = replace(
            found[at],
            stages=memory.stages,
            peak_memory_bytes=memory.peak_memory_bytes,
            heaviest_stage=memory.heaviest_stage,
            out_of_memory_probability=memory.out_of_memory_probability,
        )
    assumed = [
        _assumed(one.configuration, other.configuration)
        for one, other in zip(observations, judged, strict=True)
    ]
    found = _with_unknown_logits(judged, profile_of, found)
    return list(zip(found, assumed, strict=True))


def _with_unknown_logits(
    judged: Sequence[Observation], profile_of: ProfileOf, predictions: Sequence[Prediction]
) -> list[Prediction]:
    """Raise the risk of runs with approximated software: their logits may be whole.

    A vocabulary-parallel loss is Megatron's; a float cross entropy on gathered logits, as transformers has
    it, keeps the whole vocabulary of every token on each rank. Where it is not stated which, either is as
    likely, and the risk is the mean of both. The predicted peak stays that of the nearest software.
    """

    def whole(one: Observation) -> Profile:
        profile = profile_of(one)
        logits = max(profile.framework.logit_bytes, _FLOAT_LOSS_BYTES)
        return replace(
            profile,
            framework=replace(
                profile.framework, loss_kernel="whole", logits_sharded=False, logit_bytes=logits
            ),
        )

    found = list(predictions)
    unknown = [at for at, one in enumerate(judged) if not one.software_known]
    for at, other in zip(unknown, predictions_of([judged[at] for at in unknown], whole), strict=True):
        risks = found[at].out_of_memory_probability, other.out_of_memory_probability
        found[at] = replace(found[at], out_of_memory_probability=max(risks[0], sum(risks) / 2.0))
    return found


def _assumed(stated: Configuration, judged: Configuration) -> tuple[str, ...]:
    words = "is not stated, but the run would hardly have fit without it. Its memory is compared with"
    notes = []
    if judged.recompute_granularity != stated.recompute_granularity:
        notes.append(f"recompute {words} full recomputation")
    if judged.zero_stage != stated.zero_stage:
        notes.append(f"zero_stage {words} the optimizer's states sharded over all replicas (ZeRO-1)")
    return tuple(notes)


def _predicted(
    runs: Sequence[Run], calibration: Calibration | None, profile_of: ProfileOf, used: set[int]
) -> Iterator[RunPrediction]:
    """Yield each run with its prediction under its cluster's calibration, and the peak as measured.

    ``used`` holds the identities of the runs that the calibration is from.
    """

    def own(one: Observation) -> Profile:
        profile = profile_of(one)
        return profile if calibration is None else calibration.applied(profile)

    shapes = [run.shape for run in runs if run.shape is not None]
    blind = [Observation.of_shape(shape) for shape in shapes]
    predictions = predictions_of(blind, own)
    if calibration is None:
        predictions = _with_open_switches(shapes, own, predictions)
    found = zip(blind, _with_assumed_memory(blind, own, predictions), strict=True)
    for run in runs:
        if run.shape is None:
            yield RunPrediction(
                run=run, prediction=None, predicted_peak_memory_bytes=None, used_for_calibration=False
            )
            continue
        one, (prediction, assumed) = next(found)
        kind, rank = run.measured.memory_kind, run.measured.memory_rank
        peak = peak_as_measured(prediction, replace(one, memory_kind=kind, memory_rank=rank))
        yield RunPrediction(
            run=run,
            prediction=prediction,
            predicted_peak_memory_bytes=float(peak),
            used_for_calibration=id(run) in used,
            log_memory_sigma=own(one).log_memory_sigma,
            assumed=assumed,
        )


def _unless_too_fast(run: Run) -> Run:
    seconds = run.measured.step_time_s
    if run.shape is None or seconds is None:
        return run
    least_s = least_step_s(run.shape.problem, run.shape.configuration)
    if seconds >= least_s:
        return run
    reason = (
        f"step_time_s: {seconds:.4g} s is less than the {least_s:.4g} s that the model's FLOPs take at the "
        f"GPUs' peak; allowed: seconds, {least_s:.4g} or more"
    )
    return replace(run, shape=None, refused_reason=reason)


def validate(
    rows: Sequence[Run],
    *,
    calibrate: int = 0,
    choose: Choice = "suggested",
    seed: int = 0,
    profile_of: ProfileOf = default_profile_of,
) -> Report:
    """Predict every row that can be expressed, and score the measured ones.

    Args:
        rows: measured runs.
        calibrate: runs of each cluster (at most half of them) to calibrate it on first; they are
            not scored.
        choose: how to choose them.
        seed: of the random choice.
        profile_of: the uncalibrated profile of a run's problem and framework; sees nothing measured.
    """
    rows = [_unless_too_fast(run) for run in rows]
    by_cluster: dict[str, list[Run]] = defaultdict(list)
    for run in rows:
        by_cluster[run.cluster].append(run)
    draw = Draw(choose=choose, seed=seed, profile_of=profile_of)
    chosen: set[int] = set()
    calibrations: dict[str, Calibration] = {}
    findings: list[str] = []
    for cluster, runs in by_cluster.items():
        picked = _chosen(runs, calibrate, draw)
        chosen |= {id(run) for run in picked}
        observations = [one for one in map(Observation.of, picked) if one is not None]
        if not observations:
            continue
        try:
            calibrations[cluster] = calibrated_on(observations, cluster=cluster, profile_of=profile_of)
            findings += [f"{cluster}: {finding}" for finding in calibrations[cluster].findings]
        except InvalidProblemError as fault:
            findings.append(f"{cluster} is not calibrated: {fault.errors[0].message}")
    predicted: dict[int, RunPrediction] = {}
    for cluster, runs in by_cluster.items():
        found = _predicted(runs, calibrations.get(cluster), profile_of, chosen)
        predicted |= zip(map(id, runs), found, strict=True)
    return _report(tuple(predicted[id(run)] for run in rows), findings)


def _report(predictions: tuple[RunPrediction, ...], findings: Sequence[str]) -> Report:
    scored = [s for s in (row.scored() for row in predictions) if s is not None]
    refused: dict[str, int] = defaultdict(int)
    for row in predictions:
        if row.run.refused_reason:
            refused[row.run.refused_reason] += 1
    shapes = [(row.run.shape, row.assumed) for row in predictions if row.run.shape]
    notes = Counter(note for shape, assumed in shapes for note in (*shape.warnings, *assumed))
    return Report(
        runs=predictions,
        overall=figures_of(scored),
        clusters={
            name: figures_of([s for s in scored if s.cluster == name])
            for name in sorted({s.cluster for s in scored})
        },
        sources={
            name: figures_of([s for s in scored if s.source == name])
            for name in sorted({s.source for s in scored})
        },
        refused=dict(refused),
        warnings=(
            *(f"{note} ({count} of {len(predictions)} runs)" for note, count in sorted(notes.items())),
            *findings,
        ),
    )

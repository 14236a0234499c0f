"""Prediction of one configuration: step time with its causes, memory by stage, error band.

``step = straggler * max_r (finish_r + tail_r) + fixed``: finish_r from the event simulation of the
schedule, the rest from the prices. Causes are those of the rank that ends last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp

import numpy as np

from meshwright.profiles.optimizers import optimizer_named
from meshwright.profiles.profile import Profile, default_profile, framework_of
from meshwright.solver.answer import HostMemory, PeakMemory, Prediction, StagePrediction
from meshwright.solver.configuration import Configuration
from meshwright.solver.cost.evaluation import Evaluation, Stage, evaluate
from meshwright.solver.cost.memory import (
    gathered_bytes,
    loading_bytes,
    out_of_memory_probability,
    outside_bytes,
)
from meshwright.solver.cost.stages import ALLOCATED, LayerLayout
from meshwright.solver.problem import Problem
from meshwright.solver.space.rules import usable_host_bytes

Z_80_PERCENT = 1.2816  # half width of a normal distribution's central 80 %, in sigmas


def profile_of_variant(problem: Problem, profile: Profile) -> Profile:
    """Return the profile that prices one variant: the given one where it is of its framework."""
    if framework_of(problem.priced_as) == profile.framework.name:
        return profile
    return default_profile(problem.cluster, problem.priced_as)


# --------------------------------------------------------------------------------------------------
# The stage that ends last decides the time of a pipeline, the fullest under its own limit its memory.
# Of unlike replicas the slowest class decides, and the exchange of gradients between classes follows it.


def predicted(problem: Problem, evaluation: Evaluation) -> Prediction:
    """Return the prediction of an evaluated configuration (evaluated ``with_spread``).

    Of unlike replicas: time and causes of the slowest class with the exchange of gradients behind it;
    memory of the stages of all classes, the heaviest by its own GPU's limit.
    """
    config = evaluation.config
    slowest, causes = evaluation.slowest_class()
    band = exp(Z_80_PERCENT * slowest.log_time_sigma(causes))
    causes["data_parallel"] += evaluation.exchange_s
    step = sum(causes.values())
    stages = _stage_predictions(evaluation)
    fills = [
        one.peak_memory_bytes / stage.on.problem.memory_limit_bytes
        for one, stage in zip(stages, evaluation.stages, strict=True)
    ]
    fullest = int(np.argmax(fills))
    heaviest, on = stages[fullest], evaluation.stages[fullest].on
    limit = on.problem.memory_limit_bytes
    rate = problem.tokens_of(config) / step / config.num_gpus
    flops, peak_flops = problem.model_flops_per_token, _mean_peak_flops(evaluation)
    recomputed = max(
        _recomputed_flops_per_token(problem, pipeline.config) for pipeline in evaluation.classes
    )
    return Prediction(
        step_time_s=step,
        step_time_low_s=step / band,
        step_time_high_s=step * band,
        tokens_per_s_per_gpu=rate,
        mfu=rate * flops / peak_flops,
        hfu=rate * (flops + recomputed) / peak_flops,
        peak_flops_per_gpu=peak_flops,
        bubble_fraction=causes["bubble"] / step,
        peak_memory_bytes=heaviest.peak_memory_bytes,
        memory_limit_bytes=limit,
        heaviest_stage=heaviest.stage,
        out_of_memory_probability=out_of_memory_probability(
            heaviest.peak_memory_bytes, limit, on.profile.log_memory_sigma
        ),
        time_breakdown_s=causes,
        stages=stages,
        extrapolated=_extrapolated(evaluation),
        memory=_peak_memory(evaluation.stages[fullest], heaviest),
        host=_host_memory(evaluation.stages[fullest]),
    )


def _peak_memory(stage: Stage, seen: StagePrediction) -> PeakMemory:
    """Return the peak of a stage as tools show it, and what is allocated at each moment."""
    allocated = sum(seen.memory_bytes[name] for name in ALLOCATED)
    moment = stage.peak_moment
    return PeakMemory(
        moment=moment,
        allocated_bytes=allocated,
        reserved_bytes=allocated + seen.memory_bytes["reserve"],
        device_bytes=seen.peak_memory_bytes,
        moments_bytes={**stage.allocated_bytes(), moment: allocated},
    )


def _host_memory(stage: Stage) -> HostMemory | None:
    """Return the host memory of a node that is full of ranks of a stage; None if nothing needs any."""
    on, row = stage.on, stage.row
    ctx, nodes = on.context, on.problem.cluster.groups
    ranks = min(int(on.columns.num_gpus[row]), max(one.gpus_per_node for one in nodes))
    loading, readers = (float(found[row]) for found in loading_bytes(ctx, float(ranks)))
    offloaded = float(outside_bytes(ctx).host[row]) * ranks if on.columns.offload[row] else 0.0
    if not loading and not offloaded:
        return None
    return HostMemory(
        loading_bytes=round(loading),
        readers=round(readers),
        training_bytes=round(offloaded),
        saving_bytes=round(float(gathered_bytes(ctx)[row])),
        limit_bytes=round(usable_host_bytes(on.problem) * min(one.gpus_per_node for one in nodes)),
    )


def _mean_peak_flops(evaluation: Evaluation) -> float:
    """Return the dense bf16 peak of one of the GPUs in use, on average."""
    counts = [count for pipeline in evaluation.classes for count in pipeline.config.stage_gpus]
    peaks = [stage.on.profile.group.gpu.peak_bf16_flops for stage in evaluation.stages]
    if len(set(peaks)) == 1:
        return peaks[0]
    return sum(count * peak for count, peak in zip(counts, peaks, strict=True)) / sum(counts)


def _extrapolated(evaluation: Evaluation) -> tuple[str, ...]:
    """Return what is priced beyond the measured sizes, with its node group if there are several."""
    found = (
        f"{what} of {stage.on.name}" if stage.on.name else what
        for stage in evaluation.stages
        if not stage.on.is_timed[stage.row]
        for what in stage.on.extrapolated[stage.row]
    )
    return tuple(dict.fromkeys(found))


def _stage_predictions(evaluation: Evaluation) -> tuple[StagePrediction, ...]:
    found = list[StagePrediction]()
    for pipeline in evaluation.classes:
        for rank, stage in enumerate(pipeline.stages):
            terms = stage.memory_bytes()
            found.append(
                StagePrediction(
                    stage=len(found),
                    layers=sum(pipeline.config.layers_of_rank(rank)),
                    memory_bytes=terms,
                    peak_memory_bytes=sum(terms.values()),
                    compute_s=stage.time_s,
                    memory_limit_bytes=stage.on.problem.memory_limit_bytes if stage.on.name else None,
                )
            )
    return tuple(found)


def _recomputed_flops_per_token(problem: Problem, configuration: Configuration) -> float:
    """Return FLOPs that recomputation adds per token: whole forward passes, or the attention cores."""
    model, documents, layout = (
        problem.model,
        problem.workload.documents,
        LayerLayout.of(problem.model, problem.training),
    )
    if configuration.recompute_granularity == "selective":
        return model.num_layers * model.score_flops_per_token(documents)
    if configuration.recompute_granularity != "full":
        return 0.0
    ends = np.cumsum(configuration.stage_layers)
    starts = ends - np.array(configuration.stage_layers)
    own = configuration.stage_recompute_layers or configuration.recompute_layers
    stops = np.minimum(starts + np.array(own), ends)
    replayed = (layout.cumulative[stops] - layout.cumulative[starts]).sum(axis=0)
    return float(replayed @ np.array([model.forward_flops_of(one, documents) for one in layout.kinds]))


def is_within_risk(problem: Problem, prediction: Prediction) -> bool:
    """Return whether a run is within the accepted risk of running out of memory."""
    return prediction.out_of_memory_probability <= problem.options.max_out_of_memory_probability


def predict_all(
    problem: Problem, profile: Profile, configurations: Sequence[Configuration]
) -> list[Prediction]:
    """Return the predictions of several configurations of one problem, in their order.

    A mesh on a mixed cluster is priced as ``profile`` is: the slowest GPU and network set its pace.

    Raises:
        InvalidProblemError: a framework option of the workload is unknown or has a wrong value.
    """
    evaluations = evaluate(problem, profile, configurations, with_spread=True)
    return [predicted(problem, one) for one in evaluations]


def predict(problem: Problem, profile: Profile, configuration: Configuration) -> Prediction:
    """Return the prediction of one configuration; errors as ``predict_all``."""
    return predict_all(problem, profile, [configuration])[0]


def where_pages_lie(problem: Problem, configuration: Configuration) -> Configuration:
    """Return a run as its driver runs it: with the moments of a paged optimizer on a GPU that holds them.

    Else they are in host memory, and come for each update.

    Raises:
        InvalidProblemError: as ``predict_all``.
    """
    if not optimizer_named(problem.workload.optimizer).paged or configuration.offload != "none":
        return configuration
    seen = predict(problem, default_profile(problem.cluster, problem.priced_as), configuration)
    full = seen.peak_memory_bytes > seen.memory_limit_bytes
    return replace(configuration, offload="optimizer") if full else configuration

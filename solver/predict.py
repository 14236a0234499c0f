"""From one configuration to its prediction: step time with its causes, memory by stage, error band.

``step = straggler * max_r (finish_r + tail_r) + fixed``: finish_r from the event simulation of the
schedule, the rest from the prices. Causes are those of the rank that ends last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp

import numpy as np

from profiles.model import ModelSpec
from profiles.profile import Profile
from solver.columns import BoolArray, Columns, FloatArray, IntArray
from solver.cost.assemble import Chunks, Stages, assemble, chunks_of
from solver.cost.context import context_of
from solver.cost.layers_measured import is_timed, log_sigma_of_timed
from solver.cost.measured_range import extrapolated
from solver.cost.memory import memory_limit_bytes as limit_of
from solver.cost.memory import out_of_memory_probability
from solver.cost.price import price
from solver.cost.prices import LayerLayout, RowPrices
from solver.cost.schedule import ANY_COUNT, fill_share
from solver.plan import Configuration, Prediction, StagePrediction
from solver.problem import Problem
from solver.search.simulate import rank_finish_s
from solver.spread import log_time_sigma

Z_80_PERCENT = 1.2816  # half width of a normal distribution's central 80 %, in sigmas


@dataclass(frozen=True, slots=True, kw_only=True)
class _Priced:
    """All rows of one call, priced and assembled."""

    layout: LayerLayout
    columns: Columns
    prices: RowPrices
    chunks: Chunks
    stages: Stages
    phi: FloatArray
    log_time_sigma: FloatArray  # of each row
    layers_timed: BoolArray  # rows whose layers are priced as they were timed
    extrapolated: list[tuple[str, ...]]  # what lies outside the measured range, by row


def padded(configurations: Sequence[Configuration]) -> IntArray:
    """Splits as one array (n, C), zeros behind each row's chunks."""
    width = max(len(c.stage_layers) for c in configurations)
    rows = [(*c.stage_layers, *([0] * (width - len(c.stage_layers)))) for c in configurations]
    return np.array(rows, dtype=np.int64)


def replayed_layers(configurations: Sequence[Configuration], columns: Columns) -> IntArray | None:
    """Recomputed layers of every chunk (n, C), as ``padded``; None where none has them by stage."""
    if not any(c.stage_recompute_layers for c in configurations):
        return None
    counts = np.repeat(columns.recompute_layers[:, None], padded(configurations).shape[1], axis=1)
    for row, configuration in enumerate(configurations):
        own = configuration.stage_recompute_layers
        counts[row, : len(own)] = own
    return counts


def _priced(problem: Problem, profile: Profile, configurations: Sequence[Configuration]) -> _Priced:
    """Price and assemble every configuration."""
    layout = LayerLayout.of(problem.model)
    columns = Columns.of(configurations)
    prices = price(problem, columns, profile)
    splits, replayed = padded(configurations), replayed_layers(configurations, columns)
    return _Priced(
        layout=layout,
        columns=columns,
        prices=prices,
        chunks=chunks_of(columns, layout, splits, replayed),
        stages=assemble(prices, columns, layout, splits, replayed),
        phi=fill_share(columns),
        log_time_sigma=log_time_sigma(problem, columns, splits, profile, replayed),
        layers_timed=_layers_timed(problem, columns, profile, layout),
        extrapolated=extrapolated(problem, columns, profile),
    )


def _layers_timed(problem: Problem, columns: Columns, profile: Profile, layout: LayerLayout) -> BoolArray:
    """Rows whose every kind of layer was timed at that shard and micro-batch, shape (n,)."""
    if profile.layers is None:
        return np.zeros(len(columns), dtype=np.bool_)
    ctx = context_of(problem, columns, profile)
    return np.asarray(np.all([is_timed(ctx, kind) for kind in layout.kinds], axis=0))


def can_simulate(configuration: Configuration) -> bool:
    """Whether the micro-batches fit the groups in which the schedule's order is written."""
    c = configuration
    whole = c.virtual_pipeline_size == 1 or c.num_microbatches % c.pipeline_parallel_size == 0
    return whole or c.pipeline_schedule in ANY_COUNT


def _finish_s(priced: _Priced, row: int, configuration: Configuration) -> FloatArray:
    """When each rank ends its last pass: simulated, or by the closed form of its schedule."""
    c, pp = configuration, configuration.pipeline_parallel_size
    if can_simulate(c):
        num_chunks = len(c.stage_layers)
        finish = rank_finish_s(
            priced.stages.chunk_forward_s[row, :num_chunks].tolist(),
            priced.stages.chunk_backward_s[row, :num_chunks].tolist(),
            pp=pp,
            num_microbatches=c.num_microbatches,
            schedule=c.pipeline_schedule,
            weight_s=priced.stages.chunk_weight_s[row, :num_chunks].tolist(),
        )
        return np.array(finish)
    rank_time, phi = priced.stages.rank_time_s[row, :pp], priced.phi[row]
    closed: FloatArray = phi * rank_time.sum() + (c.num_microbatches - phi) * rank_time
    return closed


def _causes_s(priced: _Priced, row: int, rank: int, configuration: Configuration) -> dict[str, float]:
    """Seconds of one rank's step by cause, without bubble and remainder."""
    prices, chunks, m = priced.prices, priced.chunks, configuration.num_microbatches
    mine = chunks.valid[row] & (chunks.rank[row] == rank)
    parts = chunks.parts[row, mine].sum(axis=0)
    replayed = chunks.replayed[row, mine].sum(axis=0)
    causes = {name: m * float(parts @ value[row]) for name, value in prices.breakdown_s.items()}
    tails = {name: float(parts @ value[row]) for name, value in prices.tail_breakdown_s.items()}
    causes["recompute"] += m * float(replayed @ prices.replay_s[row])
    causes["pipeline_transfer"] = 2.0 * m * float(mine.sum() * prices.transfer_s[row])
    causes["data_parallel"] += tails["data_parallel"] + float(prices.rank_tail_s[row])
    causes["optimizer"] = tails["optimizer"]
    return causes


def _breakdown_s(
    priced: _Priced, row: int, configuration: Configuration, finish: FloatArray, rank: int
) -> dict[str, float]:
    """Causes of the critical rank; they sum to the step time, what is left over is ``rest``."""
    scale = float(priced.prices.straggler[row])
    ends = finish + priced.stages.rank_tail_s[row, : len(finish)]
    step = scale * float(ends[rank]) + float(priced.prices.fixed_s[row])
    causes = {n: scale * v for n, v in _causes_s(priced, row, rank, configuration).items()}
    busy = configuration.num_microbatches * float(priced.stages.rank_time_s[row, rank])
    causes["bubble"] = max(scale * (float(finish[rank]) - busy), 0.0)
    causes.pop("rest")
    causes["rest"] = step - sum(causes.values())
    return causes


def _stage_predictions(
    priced: _Priced, row: int, configuration: Configuration
) -> tuple[StagePrediction, ...]:
    """Memory by term and time of every rank."""
    stages = []
    for rank in range(configuration.pipeline_parallel_size):
        terms = {name: round(float(value[row, rank])) for name, value in priced.stages.memory_bytes.items()}
        stages.append(
            StagePrediction(
                stage=rank,
                layers=sum(configuration.layers_of_rank(rank)),
                memory_bytes=terms,
                peak_memory_bytes=sum(terms.values()),
                compute_s=float(priced.stages.rank_time_s[row, rank]),
            )
        )
    return tuple(stages)


def recomputed_flops_per_token(
    model: ModelSpec, seq_length: int, configuration: Configuration, layout: LayerLayout
) -> float:
    """FLOPs that recomputation adds per token: whole forward passes, or the attention cores."""
    if configuration.recompute_granularity == "selective":
        return model.num_layers * model.score_flops_per_token(seq_length)
    if configuration.recompute_granularity != "full":
        return 0.0
    ends = np.cumsum(configuration.stage_layers)
    starts = ends - np.array(configuration.stage_layers)
    own = configuration.stage_recompute_layers or configuration.recompute_layers
    stops = np.minimum(starts + np.array(own), ends)
    replayed = (layout.cumulative[stops] - layout.cumulative[starts]).sum(axis=0)
    flops = [model.layer_forward_flops_per_token(kind, seq_length) for kind in layout.kinds]
    return float(replayed @ np.array(flops))


def _prediction(
    problem: Problem, profile: Profile, priced: _Priced, row: int, configuration: Configuration
) -> Prediction:
    """The prediction of one assembled row."""
    finish = _finish_s(priced, row, configuration)
    rank = int(np.argmax(finish + priced.stages.rank_tail_s[row, : len(finish)]))
    breakdown = _breakdown_s(priced, row, configuration, finish, rank)
    stages = _stage_predictions(priced, row, configuration)
    heaviest = max(stages, key=lambda stage: stage.peak_memory_bytes)
    sigma = float(priced.log_time_sigma[row])
    return prediction_of(
        problem,
        configuration,
        breakdown,
        stages,
        heaviest=heaviest,
        memory_limit_bytes=limit_of(problem),
        peak_flops=profile.group.gpu.peak_bf16_flops,
        log_time_sigma=log_sigma_of_timed(sigma, breakdown) if priced.layers_timed[row] else sigma,
        log_memory_sigma=profile.log_memory_sigma,
        extrapolated=() if priced.layers_timed[row] else priced.extrapolated[row],
    )


def prediction_of(
    problem: Problem,
    configuration: Configuration,
    breakdown_s: dict[str, float],
    stages: tuple[StagePrediction, ...],
    *,
    heaviest: StagePrediction,
    memory_limit_bytes: int,
    peak_flops: float,
    log_time_sigma: float,
    log_memory_sigma: float,
    extrapolated: tuple[str, ...] = (),
) -> Prediction:
    """What a step's causes and its stages' memory come to: rates, interval and risk.

    Args:
        problem: the question.
        configuration: what is predicted.
        breakdown_s: seconds of a step by cause; they sum up to the step.
        stages: memory of every stage.
        heaviest: the stage that decides whether memory lasts.
        memory_limit_bytes: of its GPU.
        peak_flops: dense bf16 peak of a GPU, FLOP/s.
        log_time_sigma: spread of ln(measured / predicted) step time.
        log_memory_sigma: the same of peak memory.
        extrapolated: what lies outside the measured range.
    """
    step, seq = sum(breakdown_s.values()), problem.workload.seq_length
    rate = configuration.global_batch_size * seq / step / configuration.num_gpus
    flops = problem.model.model_flops_per_token(seq, frozen=problem.workload.lora_rank > 0)
    layout = LayerLayout.of(problem.model)
    again = recomputed_flops_per_token(problem.model, seq, configuration, layout)
    band = exp(Z_80_PERCENT * log_time_sigma)
    return Prediction(
        step_time_s=step,
        step_time_low_s=step / band,
        step_time_high_s=step * band,
        tokens_per_s_per_gpu=rate,
        mfu=rate * flops / peak_flops,
        hfu=rate * (flops + again) / peak_flops,
        peak_flops_per_gpu=peak_flops,
        bubble_fraction=breakdown_s["bubble"] / step,
        peak_memory_bytes=heaviest.peak_memory_bytes,
        memory_limit_bytes=memory_limit_bytes,
        heaviest_stage=heaviest.stage,
        out_of_memory_probability=out_of_memory_probability(
            heaviest.peak_memory_bytes, memory_limit_bytes, log_memory_sigma
        ),
        time_breakdown_s=breakdown_s,
        stages=stages,
        extrapolated=extrapolated,
    )


def predict_all(
    problem: Problem, profile: Profile, configurations: Sequence[Configuration]
) -> list[Prediction]:
    """The predictions of several configurations of one problem, in their order.

    Raises:
        InvalidProblemError: a framework option of the workload is unknown or has a wrong value.
    """
    if not configurations:
        return []
    priced = _priced(problem, profile, configurations)
    return [_prediction(problem, profile, priced, row, c) for row, c in enumerate(configurations)]


def predict(problem: Problem, profile: Profile, configuration: Configuration) -> Prediction:
    """The prediction of one configuration; errors as ``predict_all``."""
    return predict_all(problem, profile, [configuration])[0]

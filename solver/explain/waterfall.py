"""From the ideal step to the real one, term by term; the terms add up to the step.

Everything inside the pipeline is the mean over its ranks; what the slowest rank does beyond the mean is
``imbalance``. ``bubble`` is what remains: waiting that no other term explains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from meshwright.profiles.adapters import HEAD
from meshwright.profiles.model import LayerKind
from meshwright.profiles.profile import Profile
from meshwright.solver.configuration import Columns, Configuration, FloatArray
from meshwright.solver.cost.compute import Gemm, core_attention, gemm_seconds, linear_seconds
from meshwright.solver.cost.context import (
    WITHOUT_ACTIVATIONS,
    Context,
    PassSeconds,
    context_of,
    is_offloaded,
)
from meshwright.solver.cost.parameters import adapter_gemms
from meshwright.solver.cost.pipelines import (
    Assembled,
    GroupPrices,
    PlacedPipeline,
    PlacedStage,
    placed_pipelines,
)
from meshwright.solver.cost.price import UNEQUAL_LENGTHS, head_gemms, price, straggler_share
from meshwright.solver.cost.stages import LayerLayout, RowPrices, columns_of, end_of_step_s
from meshwright.solver.predict import groups_of
from meshwright.solver.problem import Problem, real_tokens
from meshwright.solver.schedules.schedule import fill_share

# --------------------------------------------------------------------------------------------------
# Matrix products and attention by part of the model: what they take, and what they would at peak.


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Seconds of a micro-batch by part, (n, P), and of the whole step at peak, (n,)."""

    gemm_s: FloatArray
    attention_s: FloatArray
    ideal_gemm_s: FloatArray
    ideal_attention_s: FloatArray


def work_of(problem: Problem, profile: Profile, columns: Columns, prices: RowPrices) -> Work:
    """The work of every row; where layers were timed, in the proportion of their formulas."""
    ctx, layout = context_of(problem, columns, profile), LayerLayout.of(problem.model)
    each = [(share[:, None], _products_and_attention(one, layout)) for share, one in ctx.at_lengths]
    gemm = sum((share * own for share, (own, _) in each), np.zeros(1))
    attention = sum((share * own for share, (_, own) in each), np.zeros(1))
    if profile.layers is not None:
        formula = price(problem, columns, replace(profile, layers=None)).breakdown_s["compute"]
        ratio = prices.breakdown_s["compute"] / np.maximum(formula, np.finfo(np.float64).tiny)
        gemm, attention = gemm * ratio, attention * ratio
    ideal_gemm, ideal_attention = _ideal_s(problem, ctx)
    return Work(
        gemm_s=gemm,
        attention_s=attention,
        ideal_gemm_s=ideal_gemm,
        ideal_attention_s=ideal_attention,
    )


def _products_and_attention(ctx: Context, layout: LayerLayout) -> tuple[FloatArray, FloatArray]:
    """Seconds of both for a micro-batch of one length, (n, P) each."""
    layers = [_layer(ctx.of(one), one.kind) for one in layout.kinds]
    head_gemm, head_attention = _head(ctx)
    nothing = np.zeros_like(ctx.t)
    return (
        columns_of([*(_both(gemm) for gemm, _ in layers), nothing, head_gemm]),
        columns_of([*(_both(core) for _, core in layers), nothing, head_attention]),
    )


def _both(seconds: PassSeconds) -> FloatArray:
    """Forward and backward."""
    return seconds.forward + seconds.backward


def _layer(ctx: Context, kind: LayerKind) -> tuple[PassSeconds, PassSeconds]:
    """Products and attention of one layer, as ``cost.price`` adds them up."""
    gemm = linear_seconds(ctx, kind)
    if ctx.frozen:
        gemm = gemm + gemm_seconds(ctx, adapter_gemms(ctx, kind), "bf16")
    return gemm, core_attention(ctx)


def _head(ctx: Context) -> tuple[FloatArray, FloatArray]:
    """Products and attention of the head with its multi-token-prediction layers."""
    model, depth = ctx.model, ctx.model.num_mtp_layers
    one = _both(gemm_seconds(ctx, head_gemms(ctx), "bf16", trained=ctx.trains(HEAD)))
    if not depth:
        return one, np.zeros_like(ctx.t)
    project = Gemm(m=ctx.tokens, n=model.hidden_size / ctx.t, k=2.0 * model.hidden_size)
    gemm, core = _layer(ctx.of(model.mtp_shape), model.mtp_shape.kind)
    more = _both(gemm_seconds(ctx, [project], ctx.linear_precision)) + _both(gemm) + one
    return one + depth * more, depth * _both(core)


def ideal_parts_s(ctx: Context) -> tuple[FloatArray, FloatArray]:
    """Seconds of one token on one GPU at its peak by part, (P,): products, and attention.

    By layer kind, then embedding and head; ``_ideal_s`` of one part.
    """
    model, seq, half = ctx.model, ctx.workload.documents, ctx.gpu.peak_bf16_flops
    linear, passes = ctx.gpu.peak_flops.get(ctx.linear_precision, half), (2.0 if ctx.frozen else 3.0)
    kinds, depth = LayerLayout.of(model).kinds, model.num_mtp_layers
    shaped = {one: model.shaped(one) for one in (*kinds, model.mtp_shape)}
    scores = {one: its.score_flops_per_token(seq) for one, its in shaped.items()}
    products = {
        one: its.layer_forward_flops_per_token(one.kind, seq) - scores[one] for one, its in shaped.items()
    }
    more = products[model.mtp_shape] + 4.0 * model.hidden_size**2
    head = (1 + depth) * model.head_forward_flops_per_token() * _passes(ctx) / half
    gemm = [*(passes * products[one] / linear for one in kinds), 0.0, head + passes * depth * more / linear]
    attention = [*(scores[one] / half for one in kinds), 0.0, depth * scores[model.mtp_shape] / half]
    return np.array(gemm), 3.0 * np.array(attention)


def _passes(ctx: Context) -> float:
    """Products of the head for one of its forward pass."""
    return 3.0 if ctx.trains(HEAD) else 2.0


def _ideal_s(problem: Problem, ctx: Context) -> tuple[FloatArray, FloatArray]:
    """The model's FLOPs at the peak of what each part runs in, spread over the GPUs of each row.

    Attention counts its causal half and recomputation nothing, as in MFU.
    """
    model, workload, gpu = problem.model, problem.workload, ctx.gpu
    whole, depth = problem.model_flops_per_token, model.num_mtp_layers
    scores = 3.0 * (model.num_layers + depth) * model.score_flops_per_token(workload.documents)
    head = _passes(ctx) * (1 + depth) * model.head_forward_flops_per_token()
    half = gpu.peak_bf16_flops
    linear = gpu.peak_flops.get(ctx.linear_precision, half)
    sequences = ctx.columns.data_parallel_size * ctx.columns.micro_batch_size * ctx.columns.num_microbatches
    tokens = sequences * real_tokens(problem, ctx.columns) / ctx.columns.num_gpus
    return tokens * ((whole - scores - head) / linear + head / half), tokens * scores / half


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
    own = end_of_step_s(steps_s, scale, fixed)  # before stragglers and calibration
    share = straggler_share(found.columns, profile)
    terms["bubble"] = own - busy_s - terms["data_parallel_tail"] - terms["optimizer"]
    terms["data_parallel"] = terms["data_parallel"] + terms.pop("data_parallel_tail")
    terms["straggler"] = (scale - scale / share) * own
    terms["calibration"] = (scale / share - 1.0) * own
    terms["fixed"] = fixed
    names = _names(problem)
    columns = {name: terms[name].tolist() for name in names}
    return [{name: columns[name][row] for name in names} for row in range(len(steps_s))]


def _names(problem: Problem) -> tuple[str, ...]:
    """The terms of a problem's waterfalls, in order."""
    return TERMS if problem.workload.lengths is None else (*TERMS, UNEQUAL_LENGTHS)


_Seconds = TypeVar("_Seconds", float, FloatArray)
_SAME = (
    "recompute", "tensor_parallel", "context_parallel", "expert_parallel", "data_parallel", UNEQUAL_LENGTHS,
)  # fmt: skip


def _of_causes(causes: Mapping[str, _Seconds], gemm: _Seconds, attention: _Seconds) -> dict[str, _Seconds]:
    """Return the terms that are causes of passes, or what products and attention leave of one."""
    left = {"memory_bound": causes["compute"] - gemm - attention, "launch_floor": causes["rest"]}
    return {**left, **{name: causes[name] for name in _SAME if name in causes}}


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
        if value.shape[1] < counts.shape[1]:  # of prices in which prediction layers are with the head
            counts = np.delete(counts, -3, axis=1)
        return np.asarray(m * (counts * value).sum(axis=1) / ranks)

    with_head = price(problem, c, profile) if found.layout.counts_prediction else prices
    work = work_of(problem, profile, c, with_head)
    causes = {name: mean(value) for name, value in prices.breakdown_s.items()}
    gemm, attention = mean(work.gemm_s), mean(work.attention_s)
    spilled = _offloaded(problem, profile, found, causes["rest"], mean)
    handed = (found.chunks.sent + found.chunks.returned).sum(axis=1)
    transfers = m * handed / ranks * prices.transfer_s
    total = m * found.stages.rank_time_s.sum(axis=1) / ranks
    causes["recompute"] = causes["recompute"] + mean(prices.replay_s, replayed)
    causes["rest"] = causes["rest"] - spilled
    return {
        **_of_causes(causes, gemm, attention),
        "ideal": work.ideal_gemm_s + work.ideal_attention_s,
        "gemm_efficiency": gemm - work.ideal_gemm_s,
        "attention_efficiency": attention - work.ideal_attention_s,
        "offload": spilled,
        "pipeline_transfer": transfers,
        "imbalance": m * _time_of_slowest(found) - total,
    }


def _offloaded(
    problem: Problem, profile: Profile, found: Assembled, rest_s: FloatArray, mean: _Mean
) -> FloatArray:
    """What moving activations to the host and back adds to the passes, shape (n,)."""
    c = found.columns
    if not is_offloaded(c.offload, "activations").any():
        return np.zeros_like(rest_s)
    kept = replace(c, offload=WITHOUT_ACTIVATIONS[c.offload])
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


# --------------------------------------------------------------------------------------------------
# Placed configurations with their prices, and from their ideal step to the real one, term by term.
#
# The terms are those of ``waterfall``. Inside the pipeline they are means over its stages, each of which
# has GPUs of its own; ``ideal`` is the model's FLOPs spread over all GPUs in use in proportion to each
# one's own peak, so that what another spread costs is ``imbalance``. Of unlike replicas it is the slowest
# class that is told; what the others have in common with it is the exchange of gradients, in
# ``data_parallel``.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Peak:
    """What the parts of a group's pipelines take in products and attention, and would at peak."""

    work: Work
    ideal_s: FloatArray  # (2, P) of one token on one GPU: products, attention


WorkOf = Callable[[GroupPrices], _Peak]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A configuration's pipelines: one, or that of each class of replicas."""

    config: Configuration
    classes: tuple[PlacedPipeline, ...]
    exchange_s: float  # of gradients between classes

    @property
    def objective_s(self) -> float:
        """The closed form: the slowest class's, and the exchange."""
        return max(one.objective_s for one in self.classes) + self.exchange_s

    @property
    def slowest(self) -> int:
        """The class that the others wait for."""
        return max(range(len(self.classes)), key=lambda at: self.classes[at].objective_s)

    @property
    def stages(self) -> list[PlacedStage]:
        """Of all classes, one after the other."""
        return [stage for one in self.classes for stage in one.stages]


def placed_all(problem: Problem, profile: Profile, configs: Sequence[Configuration]) -> list[Placed]:
    """Price placed configurations together, in their order."""
    classes = [config.replicas or (config,) for config in configs]
    pipelines = iter(placed_pipelines(problem, profile, [one for some in classes for one in some]))
    known, found = dict[tuple[int, ...], float](), list[Placed]()
    for config, some in zip(configs, classes, strict=True):
        own = tuple(next(pipelines) for _ in some)
        groups = groups_of(own[0].fleet, config)
        if len(groups) > 1 and groups not in known:
            known[groups] = own[0].fleet.exchange_s(groups)
        found.append(Placed(config=config, classes=own, exchange_s=known.get(groups, 0.0)))
    return found


def placed_waterfalls(placed: Sequence[Placed], steps_s: Sequence[float]) -> list[dict[str, float]]:
    """The waterfall of every configuration; each sums to its step time, simulated or closed form."""
    known = dict[int, _Peak]()

    def work(on: GroupPrices) -> _Peak:
        if id(on) not in known:
            ideal_s = np.stack(ideal_parts_s(context_of(on.problem, on.columns, on.profile)))
            own = work_of(on.problem, on.profile, on.columns, on.prices)
            known[id(on)] = _Peak(work=own, ideal_s=ideal_s)
        return known[id(on)]

    return [_waterfall(one, step, work) for one, step in zip(placed, steps_s, strict=True)]


def _waterfall(placed: Placed, step_s: float, work: WorkOf) -> dict[str, float]:
    """The terms of one configuration."""
    one, last = placed.classes[placed.slowest], placed.classes[placed.slowest].last
    scale, fixed, m = one.straggler, one.fixed_s, one.config.num_microbatches
    terms = _placed_inside(placed, one, work)
    own = end_of_step_s(step_s - placed.exchange_s, scale, fixed)
    reduced = last.tail_s - last.optimizer_s
    terms["bubble"] = own - m * max(stage.time_s for stage in one.stages) - last.tail_s
    terms["data_parallel"] += reduced + placed.exchange_s
    terms["optimizer"] = last.optimizer_s
    slow = one.slowest_nodes
    share = float(straggler_share(slow.on.columns, slow.on.profile)[slow.row])
    terms["straggler"] = (scale - scale / share) * own
    terms["calibration"] = (scale / share - 1.0) * own
    terms["fixed"] = fixed
    terms["offload"] = 0.0  # what is placed keeps everything on its GPUs
    return {name: terms[name] for name in _names(one.fleet.problem)}


def _placed_inside(placed: Placed, one: PlacedPipeline, work: WorkOf) -> dict[str, float]:
    """What happens inside the pipeline: the mean over stages, and what the slowest has beyond the ideal."""
    m, count, stages = one.config.num_microbatches, len(one.stages), one.stages
    gemm = m * sum(_at(s, work(s.on).work.gemm_s) for s in stages) / count
    attention = m * sum(_at(s, work(s.on).work.attention_s) for s in stages) / count
    causes = {
        name: m * sum(_at(stage, stage.on.prices.breakdown_s[name]) for stage in stages) / count
        for name in stages[0].on.prices.breakdown_s
    }
    causes["recompute"] += m * sum(float(s.replayed @ s.on.prices.replay_s[s.row]) for s in stages) / count
    products, scores = _placed_ideal_s(one, work)
    ideal, slowest = _shared_ideal_s(placed, work), m * max(stage.time_s for stage in stages)
    return {
        **_of_causes(causes, gemm, attention),
        "ideal": ideal,
        "gemm_efficiency": gemm - products,
        "attention_efficiency": attention - scores,
        "pipeline_transfer": 2.0 * m * sum(stage.transfer_s for stage in one.stages) / count,
        "imbalance": slowest - m * sum(s.time_s for s in one.stages) / count + products + scores - ideal,
    }


def _at(stage: PlacedStage, by_part: FloatArray) -> float:
    """What the parts of a stage come to; ``by_part`` has shape (n, P)."""
    return float(stage.parts @ by_part[stage.row])


def _placed_ideal_s(one: PlacedPipeline, work: WorkOf) -> tuple[float, float]:
    """Products and attention of a step at each stage's own peak, the mean over the stages."""
    own = np.zeros(2)
    for stage, place in zip(one.stages, one.config.stage_groups, strict=True):
        each_s = work(stage.on).ideal_s @ stage.parts * _tokens(stage)
        own += one.config.global_batch_size * each_s / place.num_gpus / len(one.stages)
    return float(own[0]), float(own[1])


def _shared_ideal_s(placed: Placed, work: WorkOf) -> float:
    """The whole step at peak where every GPU in use has a share in proportion to its own speed."""
    sequences_per_s = 0.0
    for one in placed.classes:
        parts = np.sum([stage.parts for stage in one.stages], axis=0)
        for stage, place in zip(one.stages, one.config.stage_groups, strict=True):
            each_s = float(work(stage.on).ideal_s.sum(axis=0) @ parts) * _tokens(stage)
            sequences_per_s += place.num_gpus / each_s
    return placed.config.global_batch_size / sequences_per_s


def _tokens(stage: PlacedStage) -> float:
    """Real tokens of a sequence, as the ranks of a stage pad it."""
    return float(real_tokens(stage.on.problem, stage.on.columns)[stage.row])

"""Every configuration that a request means, from its documentation alone (docs/requests.md, the glossary).

Written without the product's enumeration: every combination of sizes whose product is the number of GPUs,
every micro-batch that divides a replica's batch, every ZeRO stage and shard size, every schedule,
recomputation, order of the ranks, offload and split of the layers. Whether one of them is legal and fits
its memory is what ``meshwright.solver.check.violations_of_all`` says of a finished configuration, one
at a time; what
it takes is ``meshwright.solver.predict.predict_all``. A prefilter drops what the request or the
launcher names.

What a request weighs is written down here too: tokens per second, GPU hours with
interruptions (Young 1974, Daly 2006), and the days of a run.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, pairwise, product
from math import ceil, sqrt
from random import Random
from typing import Any

import yaml

from meshwright.profiles.capabilities import (
    Capabilities,
    lacking_facts,
    launcher_capabilities,
    launcher_names,
)
from meshwright.profiles.catalog import CATALOG
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.frameworks import framework_facts, with_options
from meshwright.profiles.optimizers import OPTIMIZERS
from meshwright.profiles.profile import Profile, framework_of
from meshwright.solver.answer import Prediction
from meshwright.solver.check import violations_of_all
from meshwright.solver.configuration import CONTEXT_MODES, Columns, Configuration
from meshwright.solver.cost.objective import weighing_of
from meshwright.solver.cost.pipelines import padded, replayed_layers
from meshwright.solver.cost.price import price
from meshwright.solver.cost.stages import LayerLayout, assemble, objective_s
from meshwright.solver.predict import predict_all
from meshwright.solver.problem import Problem

Value = int | str | bool
SCHEDULES_OF_ONE_CHUNK = ("gpipe", "1f1b", "zb_1p", "zb_2p", "zb_h1", "zb_h2")
SCHEDULES_OF_CHUNKS = ("interleaved_1f1b", "looped_bfs", "interleaved_zb")
SCHEDULES_IN_A_V = ("zb_v", "dualpipe_v")
ORDERS = ("tp-cp-dp-pp", "tp-cp-pp-dp", "tp-dp-cp-pp", "tp-dp-pp-cp", "tp-pp-cp-dp", "tp-pp-dp-cp")
OFFLOADS = (
    "none", "optimizer", "activations", "optimizer+activations", "optimizer+parameters", "parameters",
    "optimizer+parameters@nvme", "optimizer@nvme", "optimizer@nvme+parameters",
    "optimizer@nvme+parameters@nvme",
)  # fmt: skip


def divisors(n: int) -> list[int]:
    """Every divisor, ascending."""
    return [d for d in range(1, n + 1) if n % d == 0]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request says of single variables; constraints are left to the check."""

    pin: Mapping[str, Value]
    bounds: Mapping[str, tuple[int, int]]
    forbid: Mapping[str, tuple[Value, ...]]
    named: frozenset[str]

    @classmethod
    def of(cls, problem: Problem) -> "Limits":
        """Those of a problem."""
        options = problem.options
        return cls(options.pin, options.bounds, options.forbid, options.named)

    def allow(self, **values: Value) -> bool:
        """Whether no limit excludes any of these values."""
        named = self.named & values.keys()
        return not named or all(self._allows(name, values[name]) for name in named)

    def _allows(self, name: str, value: Value) -> bool:
        if name in self.pin and self.pin[name] != value:
            return False
        if name in self.bounds and not self.bounds[name][0] <= int(value) <= self.bounds[name][1]:
            return False
        return value not in self.forbid.get(name, ())


def of_each_launcher(problem: Problem) -> list[Problem]:
    """The request under every launcher, workload and switch that it means.

    ``any`` is each launcher with known limits that can express the model.
    """
    able = (launcher_capabilities(name) for name in launcher_names() if name != "none")
    names = [one.launcher for one in able if not lacking_facts(one, problem.model)]
    each = [replace(problem, launcher=name) for name in names] if problem.launcher == "any" else [problem]
    return [one for launched in each for work in of_each_workload(launched) for one in of_each_switch(work)]


def of_each_workload(problem: Problem) -> list[Problem]:
    """The request in its own precision and optimizer, and in all others that it allows (docs/requests.md).

    8 bits need GPUs and a launcher that have them; where the request names no recipe, it is the launcher's.
    """
    work, allow, able = problem.workload, problem.options.allow, launcher_capabilities(problem.launcher)
    precise = [work]
    has_fp8 = all("fp8" in group.gpu.peak_flops for group in problem.cluster.groups)
    if "fp8" in allow and has_fp8 and "fp8" in able.precisions:
        recipe = {"precision_recipe": able.fp8_recipe} if able.fp8_recipe else {}
        options = {**work.framework_options, **recipe}
        precise.append(replace(work, precision="fp8", framework_options=options))
    optimizers = dict.fromkeys([work.optimizer, *(name for name in OPTIMIZERS if name in allow)])
    return [
        replace(problem, workload=replace(one, optimizer=name)) for one in precise for name in optimizers
    ]


def of_each_switch(problem: Problem) -> list[Problem]:
    """The request in every position of the switches that it leaves open, which ``switches.yaml`` lists.

    Positions that never pay are among them; those that the launcher refuses together are not.
    """
    asked = set(problem.options.allow)
    every = "none" not in asked or "switches" in asked
    choices = [
        [{}, *(each["set"] for each in one["settings"].values() if _takes(problem, one, each))]
        for name, one in _switches().items()
        if (one["beside"] in asked if "beside" in one else name in asked or every)
    ]
    found = dict[str, Problem]()
    for some in product(*choices):
        own = problem.workload.framework_options
        options = {**own, **{name: value for each in some for name, value in each.items()}}
        workload = replace(problem.workload, framework_options=options)
        try:
            with_options(framework_facts(framework_of(problem.launcher)), options)
        except InvalidProblemError:
            continue
        if _lacks_package(asked, options):
            continue
        switched = replace(problem, workload=workload) if choices else problem
        found.setdefault(way_of(switched), switched)
    return list(found.values())


def _lacks_package(asked: set[str], options: Mapping[str, object]) -> bool:
    """Whether a stock installation lacks what the switches need, and the request does not allow it.

    DeepEP and HybridEP are libraries of their own; weight gradients that are put off are part of a CUDA
    graph of attention, which Transformer Engine captures from 2.12 on.
    """
    if "switches" in asked:
        return False
    library = options.get("moe_dispatcher") in ("deepep", "hybridep") and "moe_dispatcher" not in asked
    late = options.get("delay_wgrad") is True and "attn" in str(options.get("cuda_graph")).split("+")
    return library or (late and not {"overlap_experts", "cuda_graph"} <= asked)


@cache
def _switches() -> dict[str, Any]:
    """What ``switches.yaml`` says."""
    found: dict[str, Any] = yaml.safe_load((CATALOG / "switches.yaml").read_text(encoding="utf-8"))
    return found


def _takes(problem: Problem, switch: Mapping[str, Any], setting: Mapping[str, Any]) -> bool:
    """Whether launcher, model and GPUs take a setting of a switch."""
    moe = problem.model.moe
    there = {
        "experts": moe is not None,
        "no experts": moe is None,
        "MLPs": not problem.model.layer_pattern or bool({*problem.model.layer_pattern} & {*"-E"}),
        "dense layers": moe is None or moe.num_dense_layers > 0,
        "shared experts": moe is not None and moe.shared_ffn_hidden_size > 0,
        "latent attention": problem.model.mla is not None,
        "no latent attention": problem.model.mla is None,
        "no labels": problem.model.num_labels == 0,
        "no tower": problem.model.tower is None,
    }
    gpus, work = setting.get("gpus"), problem.workload
    if work.sample not in switch.get("samples", [work.sample]):
        return False
    if work.base_precision not in switch.get("bases", [work.base_precision]):
        return False
    able = [not gpus or {one.gpu.slug, one.gpu.architecture} & {*gpus} for one in problem.cluster.groups]
    limit_w = setting["set"].get("power_limit_w", 0.0)  # from half of a GPU's own (docs/requests.md)
    owns_w = [one.gpu.power_watts or 0.0 for one in problem.cluster.groups]
    able += [not limit_w or own_w / 2 <= limit_w <= own_w for own_w in owns_w]
    needs = [*switch.get("needs", ()), *setting.get("needs", ()), *setting.get("tried", ())]
    return problem.launcher in setting["launchers"] and all(able) and all(there[need] for need in needs)


def way_of(problem: Problem, changes: Mapping[str, str] | None = None) -> str:
    """The launcher, its precision and optimizer, and switches that differ from its own facts.

    ``changes`` are those of the workload, as a plan shows them.
    """
    facts, work = framework_facts(framework_of(problem.launcher)), problem.workload
    changed = {"precision": work.precision, "optimizer": work.optimizer, **(changes or {})}
    kinds = [changed.pop("precision"), changed.pop("optimizer")]
    words = {"true": True, "false": False}
    stated = {**work.framework_options}
    stated |= {name: words.get(value, value) for name, value in changed.items()}
    apart = sorted(f"{name}={value}" for name, value in stated.items() if getattr(facts, name) != value)
    return " ".join([problem.launcher, *kinds, *apart])


def work_of(way: str) -> tuple[str, str]:
    """The precision and the optimizer of ``way_of``, by which layouts differ."""
    _, precision, optimizer, *_ = way.split()
    return precision, optimizer


def numbers_of_gpus(problem: Problem) -> list[int]:
    """GPUs of all nodes but the spare ones, or of every number of nodes that the request leaves open."""
    options, groups = problem.options, problem.cluster.groups
    each = groups[0].gpus_per_node
    most = sum(group.num_nodes * group.gpus_per_node for group in groups) - options.reserve_nodes * each
    nodes = options.num_nodes
    if options.gpus == "fewest" and not nodes:
        nodes = tuple(range(1, most // each + 1))
    return [count * each for count in sorted(nodes) if count * each <= most] or [most]


def configurations(problem: Problem, num_gpus: int) -> Iterator[Configuration]:
    """Everything that the request may mean on so many GPUs, legal or not."""
    limits, able = Limits.of(problem), launcher_capabilities(problem.launcher)
    for mesh in _meshes(problem, limits, num_gpus):
        for states in _states(problem, able, limits, mesh):
            for run in _runs(problem, able, limits, mesh):
                for pipeline in _pipelines(problem, able, limits, mesh, run):
                    yield Configuration(**mesh, **states, **run, **pipeline)


def some_configurations(problem: Problem, random: Random, count: int) -> Iterator[Configuration]:
    """Configurations drawn at random, level by level."""
    limits, able = Limits.of(problem), launcher_capabilities(problem.launcher)
    meshes = [mesh for number in numbers_of_gpus(problem) for mesh in _meshes(problem, limits, number)]
    for _ in range(count):
        mesh = random.choice(meshes)
        states = random.choice(list(_states(problem, able, limits, mesh)))
        runs = list(_runs(problem, able, limits, mesh))
        if not runs:
            continue
        run = random.choice(runs)
        pipelines = list(_pipelines(problem, able, limits, mesh, run))
        if pipelines:
            yield Configuration(**mesh, **states, **run, **random.choice(pipelines))


def _meshes(problem: Problem, limits: Limits, num_gpus: int) -> Iterator[dict[str, Any]]:
    """Sizes of the axes: their product is the number of GPUs; experts go over the ranks of a stage."""
    moe = problem.model.moe
    experts = divisors(moe.num_experts) if moe else [1]
    for tp in divisors(num_gpus):
        for cp in divisors(num_gpus // tp):
            for pp in divisors(num_gpus // (tp * cp)):
                dp = num_gpus // (tp * cp * pp)
                sizes = {"tensor_parallel_size": tp, "context_parallel_size": cp,
                         "pipeline_parallel_size": pp, "data_parallel_size": dp}  # fmt: skip
                if pp > most_chunks(problem) or not limits.allow(**sizes):
                    continue
                for ep, etp in product(experts, divisors(tp) if moe else [1]):
                    split = {"expert_parallel_size": ep, "expert_tensor_parallel_size": etp}
                    if limits.allow(**split):
                        yield {**sizes, **split}


def _modes(problem: Problem, cp: int) -> tuple[str, ...]:
    """How ranks may share attention; both ways together where the request names the variable at all."""
    name, options = "context_parallel_mode", problem.options
    named = name in {*options.named, *options.allow} or any(name in text for text in options.constraints)
    if cp == 1:
        return ("ring",)
    return CONTEXT_MODES if named else ("ring", "all_to_all")


def _states(
    problem: Problem, able: Capabilities, limits: Limits, mesh: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Who holds weights, gradients and optimizer states; how ranks are numbered and sequences split."""
    tp = mesh["tensor_parallel_size"]
    shards = list(_shards(problem, mesh))
    modes = _modes(problem, mesh["context_parallel_size"])
    offloads = OFFLOADS if "offload" in problem.options.allow else ("none",)
    named = problem.workload.framework_options.get("offload_modules", "all") != "all"
    for held, sequence, mode, order, offload in product(
        shards, (False, True) if tp > 1 else (False,), modes, ORDERS, offloads
    ):
        zero = held["zero_stage"]
        states: dict[str, Any] = {
            **held, "sequence_parallel": sequence,
            "context_parallel_mode": mode, "rank_order": order, "offload": offload,
        }  # fmt: skip
        known = zero in able.zero_stages and mode in able.context_parallel_modes
        known = known and order in able.rank_orders and offload in able.offload
        # Megatron-Core moves the inputs of the modules that a switch names; where nothing is moved, what
        # is named changes nothing: that is the way to run without the switch.
        known = known and (not able.offloads_modules or named == ("activations" in offload))
        if known and limits.allow(**states):
            yield states


def _shards(problem: Problem, mesh: Mapping[str, Any]) -> Iterator[dict[str, int]]:
    """Weights that replicas share, of layers and of experts, and shard sets of what is left of them."""
    dp, cp = mesh["data_parallel_size"], mesh["context_parallel_size"]
    experts = mesh["expert_parallel_size"] * mesh["expert_tensor_parallel_size"]
    replicas = mesh["tensor_parallel_size"] * cp * dp // experts if problem.model.moe else 1
    open_to = "weight_shards" in problem.options.allow
    for dense, expert in product(divisors(dp), divisors(max(replicas, 1))):
        if not open_to and any(
            size > 1 and name not in problem.options.named
            for name, size in (("weight_shard_size", dense), ("expert_weight_shard_size", expert))
        ):
            continue
        ranks = dp * cp // dense
        sets = [size for size in divisors(ranks) if size > 1] or [1]
        for zero, size in [(0, 1), *product((1, 2, 3), sets)]:
            yield {"zero_stage": zero, "zero_shard_size": size,
                   "weight_shard_size": dense, "expert_weight_shard_size": expert}  # fmt: skip


def _runs(
    problem: Problem, able: Capabilities, limits: Limits, mesh: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Micro-batches, chunks and their schedule."""
    pp, dp = mesh["pipeline_parallel_size"], mesh["data_parallel_size"]
    batches = {problem.workload.global_batch_size, *problem.options.batch_sizes}
    parts = [(size, batch // dp // size) for batch in batches if batch % dp == 0
             for size in divisors(batch // dp)]  # fmt: skip
    chunked: list[tuple[int, str]] = [(1, "none")]
    if pp > 1:
        chunked = [(1, name) for name in SCHEDULES_OF_ONE_CHUNK]
        for chunks in range(2, most_chunks(problem) // pp + 1):
            chunked += [(chunks, name) for name in (*SCHEDULES_OF_CHUNKS, *SCHEDULES_IN_A_V)]
    for (size, number), (chunks, name) in product(parts, chunked):
        run: dict[str, Any] = {"micro_batch_size": size, "num_microbatches": number,
                                 "virtual_pipeline_size": chunks, "pipeline_schedule": name}  # fmt: skip
        if name in able.schedules and limits.allow(**run):
            yield run


def _pipelines(
    problem: Problem,
    able: Capabilities,
    limits: Limits,
    mesh: Mapping[str, Any],
    run: Mapping[str, Any],
) -> Iterator[dict[str, Any]]:
    """Splits of the layers, each with everything that may be recomputed."""
    pp, chunks = mesh["pipeline_parallel_size"], int(run["virtual_pipeline_size"])
    for split in splits(problem, pp, chunks, in_a_v=run["pipeline_schedule"] in SCHEDULES_IN_A_V):
        if len(set(split)) > 1 and not able.uneven_stages and not able.balances_stages:
            continue
        for word, count, own in _recomputations(problem, able, split, chunks):
            limited: dict[str, Any] = {"recompute_granularity": word, "recompute_layers": count}
            if limits.allow(**limited):
                yield {**limited, "stage_layers": split, "stage_recompute_layers": own}


def _recomputations(
    problem: Problem, able: Capabilities, split: tuple[int, ...], chunks: int
) -> Iterator[tuple[str, int, tuple[int, ...]]]:
    """Nothing, the attention cores, all layers, the first of every chunk, or a number for each stage."""
    layers = problem.model.num_layers
    found: list[tuple[str, int, tuple[int, ...]]] = [("none", 0, ()), ("selective", 0, ())]
    found.append(("full", layers, ()))
    if able.recompute_layer_counts and min(split) > 0:  # where the ends stand alone, all layers or none
        found += [("full", count, ()) for count in range(1, min(*split, max(split) - 1, layers) + 1)]
    if by_stage(problem) and chunks == 1 < len(split) and min(split) > 0:
        counts = product(*(range(size + 1) for size in split))
        found += [("full", max(own), own) for own in counts if any(own)]
    return (one for one in found if one[0] in able.recompute)


def by_stage(problem: Problem) -> bool:
    """Whether stages may each recompute their own number of layers (docs/requests.md)."""
    options = problem.options
    named = "recompute_layers" in options.named or any(
        "recompute_layers" in text for text in options.constraints
    )
    named |= options.objective == "energy_per_token"
    return launcher_capabilities(problem.launcher).recompute_per_stage and not named


def splits(problem: Problem, pp: int, chunks: int, *, in_a_v: bool) -> Iterator[tuple[int, ...]]:
    """Layers of every chunk: constraints 2 to 5 of docs/how-the-search-works.md.

    Chunks of a rank differ by one layer at most, where the model's first and last chunk may hold fewer.
    Rows with two kinds of layers and several chunks have other splits (5'), of which the even one is sure.
    """
    layers, count, given = problem.model.num_layers, pp * chunks, problem.options.stage_layers
    if given:
        yield from [given] if len(given) == count else []
        return
    kinds = len(set(problem.model.layer_kinds()))
    for split in _cut(layers, count):
        if chunks == 1 or len(set(split)) == 1 or (kinds == 1 and _alike(split, pp, in_a_v=in_a_v)):
            yield split
    if count > 1 and stand_alone(problem):
        alone = 2 if problem.model.num_mtp_layers and problem.launcher != "torchtitan" else 1
        for first, last in list(product((0, 1), range(alone + 1)))[1:]:  # prediction layers, then the head
            inner = _cut(layers, count - first - last) if first + last < count else ()
            yield from ((0,) * first + split + (0,) * last for split in inner)


def stand_alone(problem: Problem) -> bool:
    """Whether the embedding and the head may have stages of their own (docs/requests.md)."""
    able = ("megatron-lm", "megatron-bridge", "torchtitan", "none")
    asked = "standalone_stages" in problem.options.allow and problem.launcher in able
    return asked and not problem.options.stage_layers


def most_chunks(problem: Problem) -> int:
    """A layer each, beside a chunk for the embedding, one for the head and one for prediction layers."""
    predicts = problem.model.num_mtp_layers > 0 and problem.launcher != "torchtitan"
    return problem.model.num_layers + (2 + predicts) * stand_alone(problem)


def _cut(layers: int, chunks: int) -> Iterator[tuple[int, ...]]:
    """Every split into chunks of a layer or more."""
    for cut in combinations(range(1, layers), chunks - 1):
        yield tuple(end - start for start, end in pairwise((0, *cut, layers)))


def _alike(split: tuple[int, ...], pp: int, *, in_a_v: bool) -> bool:
    """Whether the chunks of every rank differ by one layer at most, but for the model's two ends."""
    last = len(split) - 1
    for rank in range(pp):
        own = [rank, 2 * pp - 1 - rank] if in_a_v else list(range(rank, len(split), pp))
        inner = [split[chunk] for chunk in own if chunk not in (0, last)]
        most = max(inner, default=None)
        if most is None:
            continue
        if most - min(inner) > 1 or any(split[chunk] > min(inner) + 1 for chunk in own):
            return False
    return True


def slowdown(problem: Problem, num_gpus: int) -> float:
    """Time of a run over the time of its steps (docs/requests.md, "GPU hours").

    An interruption every 50 700 GPU hours (419 in 54 days of 16 384 GPUs, arXiv:2407.21783), checkpoints of
    14 bytes a weight at 2 TB/s for 16 384 GPUs, a restart of 10 minutes.
    """
    between_s = 54 * 24 * 16384 / 419 * 3600 / num_gpus
    write_s = 14 * problem.model.num_parameters() / (2e12 / 16384 * num_gpus)
    interval_s = sqrt(2 * write_s * between_s)
    return 1 + write_s / interval_s + (interval_s / 2 + 600) / between_s


def run_days(problem: Problem, config: Configuration, step_s: float) -> float:
    """Days until all tokens are seen, interruptions counted."""
    steps = ceil((problem.options.total_tokens or 0) / problem.tokens_of(config))
    return steps * step_s * slowdown(problem, config.num_gpus) / 86400


def objective_value(problem: Problem, profile: Profile, config: Configuration, step_s: float) -> float:
    """What a configuration is ranked by, the smaller the better; rates as their inverse."""
    name, batch = problem.options.objective, config.global_batch_size
    gpu_s_per_token = step_s * config.num_gpus / problem.tokens_of(config)  # padding is no token
    if name == "tokens_per_s_per_gpu":
        return gpu_s_per_token
    if name == "gpu_hours_per_token":
        return gpu_s_per_token * slowdown(problem, config.num_gpus) / 3600
    if name == "energy_per_token":  # busy seconds are the cost model's
        weighing = weighing_of(problem, profile, Columns.of([config]))
        return float(weighing.scale[0] * step_s + weighing.offset[0])
    return step_s * problem.workload.global_batch_size / batch


@dataclass(frozen=True, slots=True)
class Tried:
    """One legal configuration that fits."""

    config: Configuration
    launcher: str  # with its switches, as ``way_of`` says
    step_s: float
    closed_s: float  # its closed form
    score: float  # what plans are ranked by: the smaller the better
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class Judged:
    """What the independent check says of all configurations of a request."""

    legal: int  # break no rule, whatever their memory
    fitting: list[Configuration]

    @classmethod
    def of(cls, problem: Problem, profile: Profile, some: list[Configuration]) -> "Judged":
        """Its verdict on each of ``some``."""
        faults = violations_of_all(problem, profile, some)
        legal = [(one, wrong) for one, wrong in zip(some, faults, strict=True)
                 if all(" bytes, the budget is " in fault for fault in wrong)]  # fmt: skip
        return cls(legal=len(legal), fitting=[one for one, wrong in legal if not wrong])


def tried(problem: Problem, profile: Profile, some: list[Configuration]) -> list[Tried]:
    """Configurations that are legal and fit, predicted one by one, in time or late."""
    if not some:
        return []
    found = list[Tried]()
    for config, seen, closed_s in zip(some, *_run(problem, profile, some), strict=True):
        score = objective_value(problem, profile, config, seen.step_time_s)
        found.append(
            Tried(config, way_of(problem), seen.step_time_s, closed_s, score, seen.peak_memory_bytes)
        )
    return found


def _run(
    problem: Problem, profile: Profile, some: list[Configuration]
) -> tuple[list[Prediction], list[float]]:
    """Predictions of configurations, and their closed forms."""
    columns = Columns.of(some)
    prices, counts = price(problem, columns, profile), replayed_layers(some, columns)
    stages = assemble(prices, columns, LayerLayout.of(problem.model), padded(some), counts)
    return predict_all(problem, profile, some), objective_s(prices, columns, stages).tolist()

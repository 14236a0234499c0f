"""What one would run without a search, priced by the same cost model: a recipe, or a rule of thumb.

A recipe counts where it is of the same model, program and kind of training, and its mesh divides the GPUs.
Else the rule of thumb of the launcher's kind. Both are priced under the launcher's own switches: what a
search finds beyond them is its gain.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import log
from typing import Any

import numpy as np

from meshwright.profiles.capabilities import Capabilities, launcher_capabilities
from meshwright.profiles.catalog import CATALOG
from meshwright.profiles.library import catalog_name
from meshwright.profiles.profile import Profile
from meshwright.solver.answer import Answer, Plan, Reference
from meshwright.solver.check import violations, violations_of_all
from meshwright.solver.clock import look
from meshwright.solver.configuration import Configuration
from meshwright.solver.cost.objective import is_plain
from meshwright.solver.explain.alternatives import settle
from meshwright.solver.predict import predict, predict_all, profile_of_variant
from meshwright.solver.problem import (
    Problem,
    SearchOptions,
    are_named,
    gpu_counts,
    per_node_of,
    with_changes,
)
from meshwright.solver.space.request_rules import counts_kept


def reference_of(problem: Problem, profile: Profile, answer: Answer) -> Reference | None:
    """Return what one would run today, with its time for each token over the first plan's.

    None where plans are not ranked by their step, where stages are placed on unlike nodes, and where
    nothing can be priced: a person has no rule there.

    Args:
        problem: the request.
        profile: its costs.
        answer: its plans.
    """
    ranked = answer.ranking
    if not ranked or not is_plain(problem) or problem.cluster.differs or problem.model.diffusion:
        return None
    first = ranked[0]
    own = problem.under(first.launchers[0]) if first.launchers else problem
    if own.places_stages or first.config.is_placed:
        return None
    gpus, switches = _gpus_of(problem, first), switches_of(first)
    work = own.workload
    ways = [own]
    if switches:
        options = {**work.framework_options, **with_changes(work, switches).framework_options}
        ways.append(replace(own, workload=replace(work, framework_options=options)))
    found = [one for way in ways if (one := _reference(way, profile, gpus)) is not None]
    least = min(found, key=lambda one: (bool(one.problems), one.prediction.step_time_s), default=None)
    if least is None:
        return None
    then, now = (
        one.step_time_s / problem.tokens_of(each)
        for one, each in ((least.prediction, least.config), (first.prediction, first.config))
    )
    return replace(least, speedup=then / now)


def switches_of(plan: Plan) -> dict[str, str]:
    """Return the launcher's switches that a plan has, without its other changes of the workload."""
    return {name: value for name, value in plan.workload.items() if name not in ("precision", "optimizer")}


def _reference(problem: Problem, profile: Profile, gpus: int) -> Reference | None:
    """Return the recipe, or the rule of thumb where that cannot run; the former if neither can.

    Neither knows the pins of the request: who pins a slower mesh sees what that costs.
    """
    costs = profile_of_variant(problem, profile)
    free = replace(problem, options=_without_limits(problem.options, gpus))
    found = list[Reference]()
    for choose in (_published, _rule_of_thumb):
        one = choose(free, costs, gpus)
        if one is None:
            continue
        name, source, config = one
        seen = predict(free, costs, config)
        if config.global_batch_size == (batch := problem.workload.global_batch_size):
            faults = tuple(violations(free, costs, config))
        else:
            faults = (f"no usual layout divides a batch of {batch} over {gpus} GPUs",)
        priced = Reference(
            name=name, source=source, config=config, prediction=seen, speedup=1.0, problems=faults
        )
        if not faults:
            return priced
        found.append(priced)
    return found[0] if found else None


def usual_meshes(problem: Problem, gpus: int) -> list[Configuration]:
    """Return the meshes that a person would try on so many GPUs, whatever of them is legal or fits."""
    able = launcher_capabilities(problem.launcher)
    groups = [*_sharded(problem, able, gpus)]
    if len(able.schedules) > 1 and gpus > 1:
        groups += [*_megatron(problem, able, gpus)][:_SPREADS]
    return list(dict.fromkeys(config for configs in groups for config in configs))


_SPREADS = 2  # numbers of GPUs that share experts


def _gpus_of(problem: Problem, first: Plan) -> int:
    """Return all GPUs, or the most named ones, whole nodes or halves of one, that limits leave.

    The first plan's where the request wants few, or leaves no such number.
    """
    own = first.config.num_gpus
    if problem.options.gpus == "fewest":
        return own
    (every, *fewer), each = gpu_counts(problem), per_node_of(problem)
    if not are_named(problem):
        halves = (each >> bit for bit in range(1, each.bit_length()))
        fewer = [*range((every - 1) // each * each, 0, -each), *halves]
    counts = np.array([every, *fewer])
    return next(iter(counts[counts_kept(problem, counts)].tolist()), own)


def _without_limits(options: SearchOptions, gpus: int) -> SearchOptions:
    """Return the options without what the request pins: a rule of thumb is chosen by memory alone."""
    return SearchOptions(
        num_gpus=(gpus,),
        reserve_nodes=options.reserve_nodes,
        max_out_of_memory_probability=options.max_out_of_memory_probability,
    )


Found = tuple[str, str, Configuration]  # its name, its source, the configuration


# --------------------------------------------------------------------------------------------------
# Published recipes: of Megatron-Bridge, for launchers that run the same Megatron-Core, and of torchtitan.


_FOLDER = CATALOG / "recipes"
# Recipes of another precision, GPU or optimizer, or of a variant that few start with.
_OTHER = re.compile(r"fp8|nvfp4|low_precision|_gb\d+_|muon|deterministic|mock|fsdp|dora|hybridep|minimal")
_UNKNOWN = "?"  # what a recipe computes


@cache
def _recipes(name: str) -> tuple[str, Mapping[str, Mapping[str, Any]]]:
    raw = json.loads((_FOLDER / f"{name}.json").read_text("utf-8"))
    return raw["source"], raw["recipes"]


def _published(problem: Problem, profile: Profile, gpus: int) -> Found | None:
    """Return the recipe for the model of the nearest sequence length whose mesh divides the GPUs."""
    if problem.workload.precision != "bf16" or problem.workload.frozen or problem.model.tower is not None:
        return None
    if launcher_capabilities(problem.launcher).framework == "megatron-core" or problem.launcher in _CORE:
        return _of_bridge(problem, gpus)
    if problem.launcher == "torchtitan" and not problem.workload.lora_rank:
        return _of_titan(problem, profile, gpus)
    return None


_CORE = ("megatron-bridge",)


def _of_bridge(problem: Problem, gpus: int) -> Found | None:
    source, recipes = _recipes("megatron_bridge")
    kind = "peft" if problem.workload.lora_rank else "pretrain"
    own = {
        name: one
        for name, one in recipes.items()
        if f"_{kind}_" in name
        and not _OTHER.search(name)
        and catalog_name(one["hub_id"]) == problem.model.name
    }
    for name in sorted(own, key=lambda one: (_distance(problem, own[one]), len(one), one)):
        config = _bridge_configuration(problem, own[name], gpus)
        if config is not None and config.global_batch_size == problem.workload.global_batch_size:
            return "Megatron-Bridge's recipe", f"{name} ({source})", config
    return None


def _distance(problem: Problem, recipe: Mapping[str, Any]) -> float:
    """Return how far a recipe's sequence length is from the request's; unknown ones are far."""
    length = recipe.get("model.seq_length", _UNKNOWN)
    return abs(log(length / problem.workload.seq_length)) if isinstance(length, int) else 99.0


def _bridge_configuration(problem: Problem, recipe: Mapping[str, Any], gpus: int) -> Configuration | None:
    def size(name: str) -> int:
        value = recipe.get(f"model.{name}", 1)
        return value if isinstance(value, int) else 1

    tensor = size("tensor_model_parallel_size")
    granularity = recipe.get("model.recompute_granularity") or "none"
    raw = Configuration(
        tensor_parallel_size=tensor,
        pipeline_parallel_size=size("pipeline_model_parallel_size"),
        virtual_pipeline_size=size("virtual_pipeline_model_parallel_size"),
        context_parallel_size=size("context_parallel_size"),
        expert_parallel_size=size("expert_model_parallel_size"),
        expert_tensor_parallel_size=size("expert_tensor_parallel_size"),
        micro_batch_size=recipe["train.micro_batch_size"],
        recompute_granularity=granularity,
        recompute_layers=problem.model.num_layers if granularity == "full" else 0,
    )
    return _on(problem, raw, gpus)


def _of_titan(problem: Problem, profile: Profile, gpus: int) -> Found | None:
    source, recipes = _recipes("torchtitan")
    name_of_model = _plain(problem.model.name.replace("llama-3.1", "llama-3"))
    for name, one in recipes.items():
        named = _plain(f"{one.get('model.name', '')}{one['model.flavor']}")
        if named != name_of_model or _OTHER.search(name):
            continue
        raw = Configuration(
            tensor_parallel_size=one.get("parallelism.tensor_parallel_degree", 1),
            expert_parallel_size=one.get("parallelism.expert_parallel_degree", 1),
            zero_stage=3,
            recompute_granularity=one.get("activation_checkpoint.mode") or "none",
        )
        if raw.recompute_granularity == "full":
            raw = replace(raw, recompute_layers=problem.model.num_layers)
        if raw.recompute_granularity not in launcher_capabilities("torchtitan").recompute:
            continue
        configs = _largest_first(problem, raw, gpus, most=one["training.local_batch_size"])
        (config,) = _first_able(problem, profile, [configs])
        if config is not None:
            return "torchtitan's recipe", f"{name} ({source})", config
    return None


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


# --------------------------------------------------------------------------------------------------
# Rules of thumb.


_MEGATRON = (
    "Megatron's rule: micro-batch 1; tensor parallelism within a node, then pipeline stages, no more of "
    "either than memory needs; experts over as many GPUs as run fastest; the other GPUs are data parallel; "
    "whole layers are recomputed only where nothing else fits (arXiv:2104.04473, section 3)"
)
_SHARDED = (
    "what the launchers' examples do: gradient checkpointing; whole replicas where they fit, else ZeRO "
    "over all GPUs; the largest micro-batch up to 8 that fits (transformers: perf_train_gpu_one, fsdp)"
)
_MOST_SEQUENCES = 8
_RULE = "the usual rule of thumb"
_STAGED = ("nanotron", "none")  # without a usual launch in the catalog that shards states
_SHARDS_WEIGHTS = 3


def _rule_of_thumb(problem: Problem, profile: Profile, gpus: int) -> Found | None:
    """Return the rule's fastest configuration that can run; with another batch where that divides badly."""
    able, work = launcher_capabilities(problem.launcher), problem.workload
    staged = gpus > 1 and (able.usual_zero_stages[0] == 1 or problem.launcher in _STAGED)
    ways, source = (_megatron, _MEGATRON) if staged else (_sharded, _SHARDED)
    for batch in dict.fromkeys((work.global_batch_size, -(-work.global_batch_size // gpus) * gpus)):
        own = replace(problem, workload=replace(work, global_batch_size=batch))
        look()
        found = [one for one in _first_able(own, profile, [*ways(own, able, gpus)]) if one is not None]
        if found:
            seen = predict_all(own, profile, found)
            fastest = min(range(len(found)), key=lambda at: seen[at].step_time_s)
            return _RULE, source, found[fastest]
    return None


def _first_able(
    problem: Problem, profile: Profile, lists: Sequence[Sequence[Configuration]]
) -> list[Configuration | None]:
    """Return the first configuration of each list that can run; None: none can."""
    found: list[Configuration | None] = [None] * len(lists)
    for start in range(0, max(map(len, lists), default=0), _AT_ONCE):
        left = [at for at, one in enumerate(found) if one is None]
        if not (tried := [(at, one) for at in left for one in lists[at][start : start + _AT_ONCE]]):
            break
        faults = violations_of_all(problem, profile, [one for _, one in tried])
        for (at, config), broken in zip(tried, faults, strict=True):
            if not broken and found[at] is None:
                found[at] = config
    return found


_AT_ONCE = 8  # configurations of a list that are priced together


def _megatron(problem: Problem, able: Capabilities, gpus: int) -> Iterator[list[Configuration]]:
    """Yield, for each number of GPUs that share experts, meshes: those that split the model least first."""
    node, layers = min(per_node_of(problem), gpus), problem.model.num_layers
    powers = [1 << power for power in range(gpus.bit_length())]
    most = problem.model.moe.num_experts if problem.model.moe and able.expert_parallel else 1
    meshes = [
        (t, p)
        for p in powers
        for t in powers
        if p <= layers and t <= node and gpus % (t * p) == 0 and (most > 1 or p == 1 or 2 * t > node)
    ]
    meshes.sort(key=lambda mesh: (mesh[0] * mesh[1], mesh[0]))
    kinds = [one for one in ("selective", "full") if one in able.recompute]
    for size in [size for size in powers if min(node, most) <= size <= most]:
        meshed = (_mesh(problem, mesh, kind, experts=size, gpus=gpus) for kind in kinds for mesh in meshes)
        yield [config for config in meshed if config is not None]


def _mesh(
    problem: Problem, mesh: tuple[int, int], kind: str, *, experts: int, gpus: int
) -> Configuration | None:
    tensor, stages = mesh
    raw = Configuration(
        tensor_parallel_size=tensor,
        pipeline_parallel_size=stages,
        expert_parallel_size=experts,
        zero_stage=int(1 in launcher_capabilities(problem.launcher).zero_stages),
        recompute_granularity=kind,
        recompute_layers=problem.model.num_layers if kind == "full" else 0,
    )
    return _on(problem, raw, gpus)


def _sharded(problem: Problem, able: Capabilities, gpus: int) -> Iterator[list[Configuration]]:
    """Yield the ZeRO stages of the launcher's usual launch, those that shard least first."""
    usual, kind = able.usual_zero_stages[0], "full" if "full" in able.recompute else able.recompute[-1]
    every = able.zero_stages if problem.launcher == "deepspeed" else (0, _SHARDS_WEIGHTS)
    stages = [one for one in ((usual,) if usual else every) if one in able.zero_stages and gpus > 1]
    raw = Configuration(
        recompute_granularity=kind, recompute_layers=problem.model.num_layers if kind == "full" else 0
    )
    yield [
        config
        for stage in stages or [0]
        for config in _largest_first(problem, replace(raw, zero_stage=stage), gpus, most=_MOST_SEQUENCES)
    ]


def _largest_first(problem: Problem, raw: Configuration, gpus: int, *, most: int) -> list[Configuration]:
    """Return the configuration with the largest micro-batch first, of those that the batch has."""
    sizes = range(most, 0, -1)
    found = (_on(problem, replace(raw, micro_batch_size=size), gpus) for size in sizes)
    batch = problem.workload.global_batch_size
    fitting = [one for one in found if one is not None]
    return [one for one in fitting if one.global_batch_size == batch] or fitting[-1:]


def _on(problem: Problem, raw: Configuration, gpus: int) -> Configuration | None:
    """Return a configuration on all GPUs, those that are left data parallel; None: they do not divide."""
    able = launcher_capabilities(problem.launcher)
    model = raw.tensor_parallel_size * raw.pipeline_parallel_size * raw.context_parallel_size
    if gpus % model:
        return None
    zero = raw.zero_stage or able.usual_zero_stages[raw.pipeline_parallel_size > 1]
    replicas = gpus // model
    full = replace(
        raw,
        data_parallel_size=replicas,
        sequence_parallel=raw.tensor_parallel_size > 1 and able.sequence_parallel,
        zero_stage=zero if replicas * raw.context_parallel_size > 1 else 0,
    )
    return settle(problem, full)

"""Independent check of a plan, recomputed from the problem alone, without the search.

Counts and divisions are written out again here in plain integers; times and memory come from the cost
model, priced anew for the one configuration. Every plan of an answer has passed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace

from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.cluster import host_of, power_of
from meshwright.profiles.optimizers import optimizer_named
from meshwright.profiles.profile import Profile, default_profile
from meshwright.solver.answer import HostMemory, PeakMemory, Plan, Prediction, StagePrediction
from meshwright.solver.configuration import (
    PLACED_ONLY,
    RANK_ORDERS,
    RECOMPUTE,
    Columns,
    Configuration,
    alike,
    holds_layers,
    plain_order,
    plan_id_of,
)
from meshwright.solver.cost.evaluation import ROUNDED_BYTES, evaluate
from meshwright.solver.predict import predicted
from meshwright.solver.problem import Problem, lacking_gpus, meshes_of, problem_digest, usable_gpus
from meshwright.solver.space.expressions import term_of
from meshwright.solver.space.launcher_rules import is_a_row, own_faults
from meshwright.solver.space.request_rules import constraint_of, holds_for, names_of
from meshwright.solver.space.rule import ACROSS_ISLANDS
from meshwright.solver.space.rules import host_rules


def _broken(faults: Mapping[str, object]) -> Iterator[str]:
    """Yield the sentences with conditions that hold."""
    return (words for words, holds in faults.items() if holds)


# --------------------------------------------------------------------------------------------------
# The independent verdict on what a launcher cannot express.


def launcher_faults(problem: Problem, config: Configuration) -> Iterator[str]:
    """Yield the settings that the launcher cannot express."""
    yield from _setting_faults(problem, config)
    yield from _host_faults(problem, [config])[0]


def _setting_faults(problem: Problem, config: Configuration) -> Iterator[str]:
    """Yield the same, without what hosts cannot hold (``_host_faults``, for many configurations)."""
    yield from _pipeline_faults(problem, config)
    yield from _parallel_faults(problem, config)
    yield from _offload_faults(problem, config)
    if config.weight_shard_size > 1 or config.expert_weight_shard_size > 1:
        yield from _weight_shard_faults(problem, config)
    yield from _rank_order_faults(problem, config)
    if problem.workload.framework_options.get("dynamic_context_parallel"):
        yield from _dynamic_faults(config)
    if problem.launcher in ("deepspeed", "none"):
        yield from _zero_option_faults(problem, config)


def _pipeline_faults(problem: Problem, config: Configuration) -> Iterator[str]:
    """Check the schedule, the layers of its stages, and what they recompute."""
    able = launcher_capabilities(problem.launcher)
    name, schedule, again = able.launcher, config.pipeline_schedule, config.recompute_granularity
    recomputes_some = 0 < config.recompute_layers < max(config.stage_layers, default=0)
    yield from _broken(
        {
            f"{name} has no schedule {schedule}": schedule not in able.schedules,
            f"{name} has no stages of different size": (
                len(set(config.stage_layers)) > 1 and not able.uneven_stages
            ),
            f"{name} has no recomputation {again}": again not in able.recompute,
            f"{name} recomputes every layer or none": recomputes_some and not able.recompute_layer_counts,
            f"{name} recomputes the same number of layers on every stage": (
                config.stage_recompute_layers and not able.recompute_per_stage
            ),
        }
    )


def _parallel_faults(problem: Problem, config: Configuration) -> Iterator[str]:
    """Check each parallel dimension, and ZeRO's shards, against what the launcher has."""
    able, model, zero = launcher_capabilities(problem.launcher), problem.model, config.zero_stage
    name, cp, mode = able.launcher, config.context_parallel_size, config.context_parallel_mode
    has_stages = config.pipeline_parallel_size > 1
    largest_zero = able.max_zero_stage_with_pipeline if has_stages else max(able.zero_stages)
    replicas = config.data_parallel_size * cp // config.weight_shard_size
    without_sequence_parallel = config.tensor_parallel_size > 1 and not config.sequence_parallel
    more_than_causal = model.attention_sinks or model.sliding_window is not None
    yield from _broken(
        {
            f"{name} cannot run zero_stage = {zero} here": (
                zero not in able.zero_stages or zero > largest_zero
            ),
            f"{name} shards over all data-parallel ranks or none": (
                zero and config.zero_shard_size != replicas and not able.hybrid_sharding
            ),
            f"{name} has no context parallelism": cp > 1 and not able.context_parallel,
            f"{name} has no context parallelism by {mode}": mode not in able.context_parallel_modes,
            f"{name} runs sliding windows and attention sinks without a ring only": (
                able.rings_are_plain and more_than_causal and cp > 1 and mode != "all_to_all"
            ),
            f"{name} has no expert parallelism": (
                config.expert_parallel_size > 1 and not able.expert_parallel
            ),
            f"{name} has no tensor parallelism of experts": (
                config.expert_tensor_parallel_size > 1 and not able.expert_tensor_parallel
            ),
            f"{name} needs sequence_parallel for experts with tensor parallelism": (
                without_sequence_parallel and model.moe is not None and able.experts_need_sequence_parallel
            ),
        }
    )


def _rank_order_faults(problem: Problem, config: Configuration) -> Iterator[str]:
    """Check that the launcher numbers ranks so, and that no plainer order numbers them alike."""
    able, order = launcher_capabilities(problem.launcher), config.rank_order
    name, known = able.launcher, order in able.rank_orders
    plainest = plain_order(config) if known else order
    has_experts = problem.model.moe is not None
    attention_ranks = config.context_parallel_size * (config.tensor_parallel_size if has_experts else 1)
    yield from _broken(
        {
            f"{name} does not number ranks by {order}": not known,
            f"rank_order = {order} numbers the ranks as {plainest} does": plainest != order,
            f"{name} needs equal numbers of expert and attention replicas with {order}": (
                able.data_parallel_alike
                and order != RANK_ORDERS[0]
                and config.expert_ranks != attention_ranks
            ),
        }
    )


def _zero_option_faults(problem: Problem, config: Configuration) -> Iterator[str]:
    """Check DeepSpeed's options on shards, gradients and updates of offloaded states."""
    work, model, ranks = problem.workload, problem.model, config.data_parallel_size
    options, whole_states = work.framework_options, config.offload == "optimizer"
    size, shards_weights = int(options.get("secondary_shard_size", 1)), config.zero_stage == _LARGEST_STAGE
    projected = model.hidden_size * model.head_dim
    matrices = [projected * heads for heads in (model.num_attention_heads, *model.kv_head_counts)]
    matrices.append(model.hidden_size * model.ffn_hidden_size)
    uneven = any(one % ranks or one // ranks % 2 for one in matrices)
    shared = options.get("optimizer_offload_fraction", 1.0) != 1.0
    under, steps = options.get("super_offload", False), options.get("cpu_update_interval", 1)
    plain = work.optimizer == "adamw" and not work.lora_rank and not (under and steps != 1)
    node = min(group.gpus_per_node for group in problem.cluster.groups)
    yield from _broken(
        {
            f"{ranks} ranks cannot be split into groups of {size}": (
                shards_weights and 1 < size < ranks and ranks % size
            ),
            "a second set of shards cannot be combined with offloaded weights": (
                shards_weights and size > 1 and "parameters" in config.offload
            ),
            f"4-bit gradients need ZeRO-3 and matrix sizes divisible by {2 * ranks}": (
                options.get("quantized_reductions") and (not shards_weights or uneven)
            ),
            "4-bit gradients of several nodes need whole nodes": (
                options.get("quantized_reductions")
                and config.num_gpus > node
                and config.num_gpus % node > 0
            ),
            "offloading a share of the states needs ZeRO-3 and host memory (not NVMe)": (
                problem.launcher == "deepspeed"
                and shared
                and "optimizer" in config.offload
                and (not shards_weights or "optimizer@nvme" in config.offload)
            ),
            "SuperOffload needs ZeRO-3 and AdamW's states in host memory": (
                under and not (plain and whole_states and shards_weights)
            ),
            "ZenFlow needs ZeRO-2 and all of AdamW's states in host memory": (
                steps != 1
                and not (plain and whole_states and not shared and config.zero_stage == _LARGEST_STAGE - 1)
            ),
            f"ZenFlow cannot add up the gradients of {config.num_microbatches} micro-batches": (
                steps != 1 and config.num_microbatches > 1
            ),
        }
    )


def _dynamic_faults(config: Configuration) -> Iterator[str]:
    cp, mode, name = (
        config.context_parallel_size,
        config.context_parallel_mode,
        "dynamic context parallelism",
    )
    sizes = (config.pipeline_parallel_size, config.expert_parallel_size, config.micro_batch_size)
    yield from _broken(
        {
            f"{name} has no groups of cp = {cp} by {mode}": (
                cp not in {2**power for power in range(1, 31)} or mode != "ring"
            ),
            f"{name} excludes pp, ep, micro-batch {sizes} and ZeRO {config.zero_stage}": (
                sizes != (1, 1, 1) or config.zero_stage not in (0, 1)
            ),
        }
    )


def _weight_shard_faults(problem: Problem, config: Configuration) -> Iterator[str]:
    """Check ranks that share weights: their numbers, and what Megatron-Core refuses next to them."""
    able, model, work = launcher_capabilities(problem.launcher), problem.model, problem.workload
    dense, expert = config.weight_shard_size, config.expert_weight_shard_size
    stage = config.tensor_parallel_size * config.context_parallel_size * config.data_parallel_size
    replicas = stage // max(config.expert_ranks, 1)
    options, own = work.framework_options, default_profile(problem.cluster, problem.priced_as).framework
    held_low = options.get("low_precision_weights", own.low_precision_weights)
    recipe = options.get("precision_recipe", own.precision_recipe)
    sets, every = config.zero_shard_size * dense, config.data_parallel_size * config.context_parallel_size
    megatron = problem.launcher in ("megatron-lm", "megatron-bridge")
    biased = model.tied_embeddings or model.qkv_bias or (model.mlp_bias and model.attention_output_bias)
    yield from _broken(
        {
            f"weight_shard_size = {dense} does not divide data_parallel_size": (
                config.data_parallel_size % dense
            ),
            f"expert_weight_shard_size = {expert} does not divide the {replicas} replicas of an expert": (
                expert > 1 and (model.moe is None or replicas % expert)
            ),
            f"{able.launcher} has no ranks that share weights": not able.weight_shards,
            "ranks that share weights go with ZeRO 0 and 1, without adapters, in bf16, fp16 or fp8": (
                config.zero_stage > 1 or work.lora_rank or work.precision == "fp32"
            ),
            f"ranks that share weights cannot hold 16-bit weights under {recipe}": (
                recipe == "nvfp4" or (recipe == "mxfp8" and not held_low)
            ),
            f"{able.launcher} cannot share the weights of a model with biases or tied embeddings": (
                megatron and biased
            ),
            f"{able.launcher} does not offload the optimizer of shared weights": (
                megatron and "optimizer" in config.offload
            ),
            f"{able.launcher} has one set of shards where ranks share weights": (
                megatron and config.zero_stage and sets != every
            ),
        }
    )


def _offload_faults(problem: Problem, config: Configuration) -> Iterator[str]:
    able = launcher_capabilities(problem.launcher)
    options = problem.workload.framework_options
    named = options.get("offload_modules", "all") != "all"
    layers = able.offloaded_layer_constraints and options.get("offload_layers")
    if optimizer_named(problem.workload.optimizer).paged:
        if config.offload not in ("none", "optimizer"):
            yield f"pages of the optimizer leave the GPU, and nothing else: {config.offload}"
    elif config.offload not in able.offload:
        yield f"{able.launcher} does not offload {config.offload}"
    elif "activations" in config.offload and able.offloads_modules and not (named or layers):
        yield f"{able.launcher} offloads only activations of named modules or of some layers"
    if config.offload != "none" and "offload" not in problem.options.allow:
        yield "offload is not allowed"
    yield from _reading_faults(problem, config)


def _host_faults(problem: Problem, configs: Sequence[Configuration]) -> list[list[str]]:
    """Return, for each configuration, the faults of offloaded parts that hosts and drives cannot hold."""
    found: list[list[str]] = [[] for _ in configs]
    offloaded = [at for at, one in enumerate(configs) if one.offload != "none" and is_a_row(one)]
    if not offloaded or "offload" not in problem.options.allow:
        return found
    rows = Columns.of([configs[at] for at in offloaded])
    for rule in host_rules(problem):
        for at, broken in zip(offloaded, rule.violated(rows).tolist(), strict=True):
            if broken:
                found[at].append(f"{rule.name}: {rule.reason}")
    for at in offloaded:
        found[at] += _room_faults(problem, configs[at])
    return found


def _reading_faults(problem: Problem, config: Configuration) -> Iterator[str]:
    """Check that a node holds the copies that its ranks make as they read the weights.

    Files in bf16 are mapped and take none. A copy is one to fp32, or of experts, which are merged.
    """
    work = problem.workload
    facts = default_profile(problem.cluster, problem.priced_as).framework
    few_bits = work.lora_rank and work.base_precision not in ("bf16", "fp32")
    if few_bits or facts.weights_read_by == "nobody":
        return
    narrow = (
        work.base_precision == "bf16" if work.lora_rank else not optimizer_named(work.optimizer).fp32_copy
    )
    each = 2 if narrow else int(facts.weight_bytes)
    if each == 2 and problem.model.moe is None:  # noqa: PLR2004 - bytes of bf16, as stored
        return
    first = {"first": 3, "one-of-a-node": 2}[facts.weights_read_by]
    for group in problem.cluster.groups:
        readers = 1 if config.zero_stage >= first else min(config.num_gpus, group.gpus_per_node)
        needed = readers * each * problem.model.num_parameters()
        room = host_of(group).usable_memory_bytes * group.gpus_per_node
        if needed > room:
            yield f"host memory of {room:.0f} bytes cannot hold {needed} bytes of weights that ranks read"


def _room_faults(problem: Problem, config: Configuration) -> Iterator[str]:
    """Check the least that hosts and drives must hold, in plain numbers: weights and AdamW's states.

    Every copy of the model has 12 bytes of states (fp32 weight, two moments; fewer where the framework
    keeps no such copy or moments in bf16) and 2 of weights for each parameter, wherever its ranks lie; all
    nodes together have so much memory and so many drives.
    """
    work = problem.workload
    if work.optimizer != "adamw" or work.lora_rank or config.zero_stage == 0:
        return
    copies = config.replicating_ranks // config.zero_shard_size
    share = float(work.framework_options.get("optimizer_offload_fraction", 1.0))
    framework = default_profile(problem.cluster, problem.priced_as).framework
    needed = {"": 0, "nvme": 0}
    for part in config.offload.split("+"):
        name, _, drive = part.partition("@")
        each = {"optimizer": min(12.0, framework.optimizer_bytes) * share, "parameters": 2}.get(name, 0)
        needed[drive] += round(each * problem.model.num_parameters() * copies)
    hosts = [host_of(group) for group in problem.cluster.groups]
    rooms = {
        "": min(host.usable_memory_bytes for host in hosts),
        "nvme": min(host.usable_nvme_bytes for host in hosts),
    }
    for drive, words in (("", "host memory"), ("nvme", "NVMe")):
        room = rooms[drive] * config.num_gpus
        if needed[drive] > room:
            yield f"{words} of {room:.0f} bytes cannot hold {needed[drive]} bytes of offloaded states"


# --------------------------------------------------------------------------------------------------
# The independent verdict on what a request asked for: pins, prohibitions, bounds, constraints.


def request_faults(problem: Problem, config: Configuration) -> Iterator[str]:
    """Check pins, forbidden values, bounds and constraints of the request."""
    options = problem.options
    own = {name: getattr(config, name) for name in (*options.pin, *options.forbid, *options.bounds)}
    yield from _broken(
        {
            **{f"{name} is pinned to {value}": value != own[name] for name, value in options.pin.items()},
            "stage_layers is pinned to another split": (
                options.stage_layers and config.stage_layers != options.stage_layers
            ),
            **{
                f"{name} = {own[name]} is forbidden": own[name] in values
                for name, values in options.forbid.items()
            },
            **{
                f"{name} must be {low} to {high}": not low <= int(own[name]) <= high
                for name, (low, high) in options.bounds.items()
            },
        }
    )
    for text in options.constraints:
        if any(map(term_of, names_of((text,)))):
            continue  # ``group_faults``
        named = {name: getattr(config, name) for name in names_of((text,))}
        if not holds_for(constraint_of(text), named):
            yield f"the constraint {text} does not hold"


def group_faults(problem: Problem, config: Configuration) -> Iterator[str]:
    """Check the constraints on node groups; its other variables are those of each stage."""
    for text in problem.options.constraints:
        terms = {name: term for name in names_of((text,)) if (term := term_of(name))}
        if not terms:
            continue
        if not {group for _, group in terms.values()} <= problem.cluster.group_named.keys():
            yield f"the constraint {text} names a node group that the cluster lacks"
            continue
        if not config.stage_groups:
            yield f"the constraint {text} does not hold without node groups"
            continue
        taken = {name: _taken(problem, config, *term) for name, term in terms.items()}
        plain = names_of((text,)) - terms.keys()
        sizes = {one.tensor_parallel_size for one in config.stage_groups}
        stages = [{name: getattr(alike(config, size), name) for name in plain} for size in sorted(sizes)]
        if not all(holds_for(constraint_of(text), {**one, **taken}) for one in stages):
            yield f"the constraint {text} does not hold"


def _power_faults(problem: Problem, config: Configuration) -> Iterator[str]:
    """Add up the watts of a configuration's GPUs while all of them compute."""
    most_kw = problem.options.max_power_kw
    if most_kw is None:
        return
    busy_w = {
        name: power_of(group.gpu, problem.power_limit_w).busy_w
        for name, group in problem.cluster.group_named.items()
    }
    stages = [stage for one in (config.replicas or (config,)) for stage in one.stage_groups]
    drawn_w = sum(stage.num_gpus * busy_w[stage.group] for stage in stages)
    if not stages:
        drawn_w = config.num_gpus * max(busy_w.values())
    if drawn_w > most_kw * 1e3 + 1e-3:
        drawn = f"{config.num_gpus} GPUs draw {drawn_w / 1e3:.4g} kW while they compute"
        yield f"{drawn}, {most_kw:g} are allowed"


def _taken(problem: Problem, config: Configuration, term: str, group: str) -> int | bool:
    held = [
        n for one, n in zip(config.stage_groups, config.stage_layers, strict=True) if one.group == group
    ]
    if term in ("first", "last"):
        return config.stage_groups[0 if term == "first" else -1].group == group
    if term in ("stages", "layers"):
        return len(held) if term == "stages" else sum(held)
    gpus = sum(one.num_gpus for one in config.stage_groups if one.group == group)
    nodes = problem.cluster.group_named[group]
    return gpus if term == "gpus" else (nodes.num_gpus - gpus) // nodes.gpus_per_node


# --------------------------------------------------------------------------------------------------
# The independent verdict on a configuration: counts of GPUs, layers, sequences and bytes, no search.


def _placement_faults(problem: Problem, config: Configuration) -> Iterator[str]:
    able = launcher_capabilities(problem.launcher)
    if not able.places_stages:
        yield f"{problem.launcher} cannot place stages on node groups"
        return
    if config.replicas and not able.unlike_replicas:
        yield f"{problem.launcher} has no replicas of different sizes"
    for one in config.classes:
        yield from _class_faults(problem, one)
    ends = {one.tensor_parallel_size for one in (*config.stage_groups[:1], *config.stage_groups[-1:])}
    shares = problem.model.tied_embeddings or problem.model.num_mtp_layers > 0
    if able.placed_ends_alike and shares and len(ends) > 1:
        yield (
            f"{problem.launcher} gives the first and the last stage one tensor_parallel_size, "
            f"not {sorted(ends)}"
        )
    if config.data_parallel_size != sum(one.data_parallel_size for one in config.classes):
        yield "data_parallel_size is not the number of replicas"


def _class_faults(problem: Problem, config: Configuration) -> Iterator[str]:
    groups, stages = problem.cluster.group_named, config.stage_groups
    if config.replicas or not len(stages) == config.pipeline_parallel_size == len(config.stage_layers):
        yield f"{len(stages)} stages are placed, but pipeline_parallel_size differs"
    elif not {stage.group for stage in stages} <= groups.keys():
        yield f"stages are on {', '.join(sorted(groups))}"
    elif min(config.stage_layers) < 1:
        yield "stage_layers has a stage without a layer"
    for name, only in PLACED_ONLY.items():
        if getattr(config, name) != only:
            yield f"{name} is {only} on node groups"
    for number, stage in enumerate(stages):
        needed = stage.tensor_parallel_size * config.context_parallel_size * config.data_parallel_size
        nodes = needed / groups[stage.group].gpus_per_node if stage.group in groups else stage.num_nodes
        if stage.num_gpus != needed or not math.isclose(stage.num_nodes, nodes):
            yield f"stage {number} takes {needed} GPUs, not {stage.num_gpus}"


_RELATIVE = 1e-9  # sums of the same numbers in another order
_ENDS_OF_A_V = 2
_LARGEST_STAGE = 3  # highest ZeRO stage there is


def violations(problem: Problem, profile: Profile, plan: Plan | Configuration) -> Iterator[str]:
    """Yield a sentence on everything that is wrong with a plan or configuration."""
    yield from violations_of_all(problem, profile, [plan])[0]


def violations_of_all(
    problem: Problem, profile: Profile, plans: Sequence[Plan | Configuration]
) -> list[list[str]]:
    """Return the sentences on each plan; those with a right configuration are priced together."""
    configs = [plan.config if isinstance(plan, Plan) else plan for plan in plans]
    found = rule_faults(problem, configs)
    right = [at for at, faults in enumerate(found) if not faults]
    predicts = any(isinstance(plan, Plan) for plan in plans)
    evaluations = evaluate(problem, profile, [configs[at] for at in right], with_spread=predicts)
    digest = problem_digest(problem) if predicts else ""
    for at, one in zip(right, evaluations, strict=True):
        for number, stage in enumerate(one.stages):
            used, budget = sum(stage.memory_bytes().values()), stage.on.budget_bytes
            if used > budget + ROUNDED_BYTES:
                found[at].append(f"stage {number} needs {used} bytes, the budget is {budget:.0f}")
        if isinstance(plan := plans[at], Plan):
            found[at] += _plan_faults(digest, plan, predicted(problem, one), one.objective_s)
    return found


def closest_violations(problem: Problem, profile: Profile, plan: Plan) -> list[str]:
    """Return what is wrong with a plan that is shown as the closest: all but that it does not fit.

    Its risk is worked out once more: ``Phi(ln(peak / limit) / sigma)`` of its fullest stage.
    """
    found = rule_faults(problem, [plan.config])[0]
    if found:
        return found
    (one,) = evaluate(problem, profile, [plan.config], with_spread=True)
    found += _plan_faults(
        problem_digest(problem), replace(plan, rank=1), predicted(problem, one), one.objective_s
    )
    fills = []
    for stage in one.stages:
        fill = sum(stage.memory_bytes().values()) / stage.on.problem.memory_limit_bytes
        fills.append((fill, stage.on.profile.log_memory_sigma))
    fill, sigma = max(fills)
    risk = 0.5 * math.erfc(-math.log(fill) / sigma / math.sqrt(2.0)) if sigma else float(fill > 1.0)
    stated = plan.prediction.out_of_memory_probability
    if not math.isclose(stated, risk, rel_tol=1e-6, abs_tol=1e-12):
        found.append(f"the stated risk is {stated}, a peak of {fill:.4f} of the memory has {risk}")
    if plan.rank or plan.ranked:
        found.append("a plan that does not fit is not ranked")
    return found


def rule_faults(problem: Problem, configs: Sequence[Configuration]) -> list[list[str]]:
    """Return the sentences on each configuration but for its memory, which takes prices."""
    found: list[list[str]] = []
    meshes = dict[int, tuple[Problem, list[tuple[int, Configuration]]]]()
    for at, config in enumerate(configs):
        # Sizes of 0 divide whatever else is asked.
        faults = [f"{name} must be at least 1" for one in config.classes for name in _COUNTS
                  if getattr(one, name) < 1]  # fmt: skip
        found.append(faults)
        if config.is_placed:
            faults += _placement_faults(problem, config)
        if faults:
            continue
        faults += _whole_faults(problem, config)
        for on, mesh in meshes_of(problem, config):
            faults += _size_faults(on, mesh)
            faults += _split_faults(on, mesh)
            faults += _setting_faults(on, mesh)
            faults += request_faults(on, mesh)
            meshes.setdefault(id(on), (on, []))[1].append((at, mesh))
    able = launcher_capabilities(problem.launcher)
    for on, some in meshes.values():
        own = [mesh for _, mesh in some]
        judged = zip(some, own_faults(on, able, own), _host_faults(on, own), strict=True)
        for (at, _), of_rows, of_hosts in judged:
            found[at] += [*of_rows, *of_hosts]
    return found


_COUNTS = [one.name for one in fields(Configuration) if one.name.endswith(("_size", "num_microbatches"))]


def _whole_faults(problem: Problem, config: Configuration) -> Iterator[str]:
    yield from group_faults(problem, config)
    yield from _power_faults(problem, config)
    lacking, usable = lacking_gpus(problem, config), usable_gpus(problem)
    batches = {problem.workload.global_batch_size, *problem.options.batch_sizes}
    yield from _broken(
        {
            f"{config.num_gpus} GPUs are needed, the cluster has {usable}": config.num_gpus > usable,
            **{
                f"{used} GPUs of {name} are needed, there are {have}": True
                for name, (used, have) in lacking.items()
            },
            f"data_parallel_size * micro_batch_size * num_microbatches is not {max(batches)}": (
                config.global_batch_size not in batches
            ),
        }
    )


def _size_faults(problem: Problem, config: Configuration) -> Iterator[str]:
    """Check what the parallel sizes divide."""
    yield from _tensor_size_faults(problem, config)
    yield from _context_size_faults(problem, config)
    yield from _expert_size_faults(problem, config)
    yield from _shard_size_faults(config)


def _leave_islands(problem: Problem, config: Configuration, ranks: int) -> bool:
    """Return whether groups of neighbouring ranks cross islands of some node group."""
    islands = [group.island_gpus for group in problem.cluster.groups]
    return any(island % ranks and config.num_gpus > island for island in islands)


def _tensor_size_faults(problem: Problem, config: Configuration) -> Iterator[str]:
    """Check heads and widths over tensor-parallel ranks, and what stages would have to pass on."""
    model, tp, base = problem.model, config.tensor_parallel_size, problem.workload.base_precision
    name, zero, attentions = f"tensor_parallel_size = {tp}", config.zero_stage, model.attentions()
    able = launcher_capabilities(problem.launcher)
    tower, packed = None if able.whole_towers else model.tower, base in able.cuts_quantized
    reuses_keys = model.indexer is not None and model.indexer.reusing_layers
    yield from _broken(
        {
            "stages cannot pass on per-layer embeddings, shared keys or a selection of keys": (
                config.pipeline_parallel_size > 1
                and (model.layer_embedding_size or model.borrowing_layers or reuses_keys)
            ),
            f"{name} does not divide the heads and the MLP width": any(
                shape.num_attention_heads % tp or shape.ffn_hidden_size % tp for shape in attentions
            ),
            f"{name} does not divide the heads and the MLP width of the tower": (
                tower and (tower.num_attention_heads % tp or tower.ffn_hidden_size % tp)
            ),
            f"{name} does not divide the width of the shared experts": (
                model.moe and model.moe.shared_ffn_hidden_size % tp
            ),
            **{
                f"{name} does not go with {heads} key/value heads": heads % tp and tp % heads
                for heads in {shape.num_kv_heads for shape in attentions}
            },
            f"{name} does not divide the GPUs of an island ({ACROSS_ISLANDS.name} is not offered)": (
                _leave_islands(problem, config, tp)
            ),
            f"a {base} model is split by tp = {tp} or ZeRO-{zero}": (
                base not in ("bf16", "fp32") and (tp > 1 or (zero >= _LARGEST_STAGE and not packed))
            ),
            "sequence_parallel goes with tensor_parallel_size > 1": config.sequence_parallel and tp == 1,
        }
    )


def _context_size_faults(problem: Problem, config: Configuration) -> Iterator[str]:
    """Check tokens and heads over context-parallel ranks."""
    model, tp, cp = problem.model, config.tensor_parallel_size, config.context_parallel_size
    mode, seq = config.context_parallel_mode, problem.workload.seq_length
    exchange, ring, _ = mode.partition("+")  # such as all_to_all_2+ring
    without_ring = cp if mode == "all_to_all" else 1
    exchanging = int(exchange.rpartition("_")[2]) if ring else without_ring  # ranks that exchange heads
    heads = (*model.head_counts, *model.kv_head_counts)
    yield from _broken(
        {
            f"all_to_all cannot exchange {heads[0]} heads over tp = {tp} and cp = {exchanging}": (
                mode != "ring" and (cp == 1 or any(count % (tp * exchanging) for count in heads))
            ),
            f"cp = {cp} is too small for {mode}": cp % exchanging or (cp == exchanging and ring),
            f"{seq} tokens cannot be split over tp = {tp} and cp = {cp}": (
                seq % (cp * (tp if config.sequence_parallel else 1))
                or (cp > 1 and mode != "all_to_all" and seq % (2 * cp))
            ),
        }
    )


def _expert_size_faults(problem: Problem, config: Configuration) -> Iterator[str]:
    """Check experts and their width over the ranks of a stage."""
    ep, etp, moe = config.expert_parallel_size, config.expert_tensor_parallel_size, problem.model.moe
    experts, width = (moe.num_experts, moe.ffn_hidden_size) if moe else (1, 1)
    ranks = config.data_parallel_size * config.context_parallel_size * config.tensor_parallel_size
    yield from _broken(
        {
            f"expert_parallel_size = {ep} does not divide {experts} experts and {ranks} ranks of a stage": (
                experts % ep or ranks % (ep * etp)
            ),
            f"expert_tensor_parallel_size = {etp} does not divide the width {width} of an expert": (
                width % etp
            ),
            f"expert_tensor_parallel_size = {etp} does not divide the GPUs of an island": _leave_islands(
                problem, config, etp
            ),
        }
    )


def _shard_size_faults(config: Configuration) -> Iterator[str]:
    """Check ZeRO's shards over the ranks that hold the same weights."""
    zero, shards = config.zero_stage, config.zero_shard_size
    every_rank = config.data_parallel_size * config.context_parallel_size
    replicas = every_rank // config.weight_shard_size
    expert_ranks = config.expert_ranks * config.expert_weight_shard_size
    expert_replicas = every_rank * config.tensor_parallel_size // expert_ranks
    yield from _broken(
        {
            "zero_stage must be 0 to 3": not 0 <= zero <= _LARGEST_STAGE,
            "zero_shard_size must be 1 without ZeRO": zero == 0 and shards != 1,
            f"zero_shard_size = 1 shards nothing over {replicas} ranks": (
                zero and shards == 1 and replicas > 1
            ),
            f"zero_shard_size = {shards} does not divide the ranks that share weights": (
                zero and (replicas % shards or expert_replicas % max(replicas // shards, 1))
            ),
        }
    )


def _split_faults(problem: Problem, config: Configuration) -> Iterator[str]:
    """Check the layers of each chunk, the schedule that runs the chunks, and what they recompute."""
    pp, vpp, split = config.pipeline_parallel_size, config.virtual_pipeline_size, config.stage_layers
    if len(split) != pp * vpp:
        yield f"stage_layers has {len(split)} entries, not pp * vpp = {pp * vpp}"
        return
    able, layers = launcher_capabilities(problem.launcher), problem.model.num_layers
    alone, held = able.alone(problem.model), list(split)
    while able.idle_stages and vpp == 1 and held[-2:] == [0, 0]:  # the head, and behind it nothing
        held.pop()
    name, kind, own = config.pipeline_schedule, config.recompute_granularity, config.stage_recompute_layers
    chunked = name in ("interleaved_1f1b", "looped_bfs", "interleaved_zb")
    shaped_as_v = name in ("zb_v", "dualpipe_v")
    splits_backward = name.startswith("zb_") or name in ("interleaved_zb", "dualpipe_v")
    again, layers_split = config.recompute_layers, sum(split)
    most_again = min([max(split) - 1, *filter(None, split)])
    counts_fit = len(own) == len(split) and all(0 <= k <= n for k, n in zip(own, split, strict=True))
    yield from _broken(
        {
            f"stage_layers holds {layers_split} layers, the model has {layers}": layers_split != layers,
            "stage_layers has a chunk without a layer": not holds_layers(held, alone),
            "virtual_pipeline_size > 1 needs pipeline stages": vpp > 1 and pp == 1,
            f"pipeline_schedule {name} does not go with {pp} stages": (name == "none") != (pp == 1),
            f"{name} has two chunks on every stage": pp > 1 and shaped_as_v and vpp != _ENDS_OF_A_V,
            f"pipeline_schedule {name} does not go with virtual_pipeline_size = {vpp}": (
                pp > 1 and name != "none" and not shaped_as_v and chunked != (vpp > 1)
            ),
            "num_microbatches must be a multiple of pipeline_parallel_size when chunks interleave": (
                name in ("interleaved_1f1b", "interleaved_zb") and config.num_microbatches % pp
            ),
            "dualpipe_v needs two micro-batches for each stage": (
                name == "dualpipe_v" and config.num_microbatches < 2 * pp
            ),
            f"{name} splits the backward pass: whole layers are not recomputed": (
                splits_backward and kind == "full"
            ),
            "recompute_granularity is unknown": kind not in RECOMPUTE,
            "recompute_layers must be 0 unless whole layers are recomputed": (
                kind in RECOMPUTE and kind != "full" and again
            ),
            "recompute_layers must fit every chunk and leave at least one layer, or equal the "
            "model's layers": (
                kind == "full" and not own and again != layers_split and not 1 <= again <= most_again
            ),
            "stage_recompute_layers needs full recomputation, and recompute_layers must be its "
            "largest value, above 0": (own and (kind != "full" or again != max(own) or not again)),
            "stage_recompute_layers needs one count per chunk, at most the layers of the chunk": (
                own and not counts_fit
            ),
        }
    )


def _plan_faults(digest: str, plan: Plan, expected: Prediction, seconds: float) -> Iterator[str]:
    yield from _broken(
        {
            "plan_id does not name this configuration": plan.plan_id != plan_id_of(digest, plan.config),
            "rank must be at least 1": plan.rank < 1,
            "certified_by names an unknown method": not set(plan.certified_by) <= {"exact-dp", "cp-sat"},
        }
    )
    yield from _differences("objective_s", plan.objective_s, seconds)
    yield from _differences("prediction", plan.prediction, expected)
    step_s, limit = plan.prediction.step_time_s, plan.prediction.memory_limit_bytes
    stages = plan.prediction.stages
    yield from _broken(
        {
            "the interval does not hold the step time": (
                not plan.prediction.step_time_low_s <= step_s <= plan.prediction.step_time_high_s
            ),
            "times and rates must be positive": step_s <= 0.0
            or plan.prediction.tokens_per_s_per_gpu <= 0.0,
            "time_breakdown_s does not sum to the step time": (
                not math.isclose(sum(plan.prediction.time_breakdown_s.values()), step_s, rel_tol=1e-6)
            ),
            **{
                f"memory of stage {stage.stage} does not sum to its peak": (
                    sum(stage.memory_bytes.values()) != stage.peak_memory_bytes
                )
                for stage in stages
            },
            "the peak memory is not the peak of the fullest stage": (
                plan.prediction.peak_memory_bytes / limit
                != max(stage.peak_memory_bytes / (stage.memory_limit_bytes or limit) for stage in stages)
            ),
        }
    )


def _differences(name: str, found: object, expected: object) -> Iterator[str]:
    if isinstance(found, Prediction | StagePrediction | PeakMemory | HostMemory):
        for one in fields(found):
            yield from _differences(
                f"{name}.{one.name}", getattr(found, one.name), getattr(expected, one.name)
            )
    elif isinstance(found, Mapping) and isinstance(expected, Mapping) and found.keys() == expected.keys():
        for key in expected:
            yield from _differences(f"{name}.{key}", found[key], expected[key])
    elif isinstance(found, tuple) and isinstance(expected, tuple) and len(found) == len(expected):
        for at, (one, other) in enumerate(zip(found, expected, strict=True)):
            yield from _differences(f"{name}[{at}]", one, other)
    elif isinstance(found, int | float) and isinstance(expected, int | float):
        if not math.isfinite(found) or not math.isclose(found, expected, rel_tol=_RELATIVE, abs_tol=1e-12):
            yield f"{name} is {found}, should be {expected}"
    elif found != expected:
        yield f"{name} should be another"

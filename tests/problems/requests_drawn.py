"""Random requests of every kind, small enough that all their configurations can be priced one by one."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from random import Random

from meshwright.profiles.capabilities import lacking_facts, launcher_capabilities, launcher_names
from meshwright.profiles.cluster import ClusterSpec, GpuSpec, LinkSpec, NodeGroup
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.model_parts import MoeSpec
from meshwright.profiles.profile import default_profile
from meshwright.profiles.sequences import BATCHINGS, SequenceLengths
from meshwright.profiles.switches import switches
from meshwright.profiles.units import GB, GIB, MICROSECOND_S
from meshwright.solver.check import violations_of_all
from meshwright.solver.configuration import INTEGER_VARIABLES, VARIABLES, Configuration
from meshwright.solver.predict import predict
from meshwright.solver.problem import Objective, Problem, SearchOptions, Workload, usable_gpus
from tests.builders import a_gpu, a_model
from tests.property.meaning import (
    configurations,
    numbers_of_gpus,
    of_each_launcher,
    run_days,
    some_configurations,
)

MOST_CONFIGURATIONS = 300  # of a request, legal or not: pins are added until there are no more
ETHERNET = LinkSpec(kind="ethernet", bytes_per_s=3 * GB, latency_s=30 * MICROSECOND_S)
OBJECTIVES: tuple[Objective, ...] = (
    "step_time",
    "step_time",
    "tokens_per_s_per_gpu",
    "gpu_hours_per_token",
    "energy_per_token",
)
CONSTRAINTS = (
    "tensor_parallel_size * context_parallel_size <= 4",
    "zero_stage >= 1 => pipeline_parallel_size == 1",
    "not (recompute_granularity == 'full' and micro_batch_size == 1)",
    "num_microbatches % 2 == 0",
    "zero_stage == 0 or zero_shard_size < data_parallel_size * context_parallel_size",
    "data_parallel_size // tensor_parallel_size >= 1",
    "sequence_parallel or tensor_parallel_size == 1",
)
SHAPES = (  # nodes, GPUs of one, GPUs of its island
    (1, 4, 4), (1, 8, 8), (2, 1, 1), (2, 2, 2), (2, 4, 4), (2, 4, 2), (3, 2, 2), (4, 1, 1), (4, 2, 2),
    (6, 1, 1), (2, 3, 3), (8, 1, 1), (8, 2, 2), (12, 1, 1), (16, 1, 1), (1, 6, 6), (2, 8, 8),
)  # fmt: skip


def a_drawn_model(random: Random) -> ModelSpec:
    """2 to 5 layers: dense, of experts, or the first ones dense and the others of experts."""
    layers = random.randint(2, 5)
    hidden, heads = random.choice([(1024, 8), (2048, 16), (3072, 12), (4096, 32)])
    moe = None
    if random.randint(0, 2) == 0:
        moe = MoeSpec(
            num_experts=random.choice([4, 6, 8]), top_k=2,
            ffn_hidden_size=random.choice([1024, 1536]),
            num_dense_layers=random.randint(0, 1),
        )  # fmt: skip
    return a_model(
        num_layers=layers, hidden_size=hidden, ffn_hidden_size=4 * hidden, num_attention_heads=heads,
        num_kv_heads=random.choice([heads, heads // 2, 4]), head_dim=hidden // heads,
        vocab_size=random.choice([32000, 128256]), moe=moe,
    )  # fmt: skip


def _group(gpu: GpuSpec, shape: tuple[int, int, int], network: LinkSpec) -> NodeGroup:
    """Nodes of one kind."""
    nodes, each, island = shape
    return NodeGroup(gpu=gpu, num_nodes=nodes, gpus_per_node=each, island_gpus=island,
                     intra_node=gpu.intra_node, inter_node=network)  # fmt: skip


def a_drawn_cluster(random: Random, *, mixed: bool) -> ClusterSpec:
    """2 to 16 GPUs on fast or slow networks, with much or little memory; of one kind or two."""
    shape = random.choice(SHAPES)
    gpu = a_gpu(memory_bytes=random.choice([8, 16, 24, 79, 79]) * GIB, power_watts=700.0)
    network = random.choice([gpu.inter_node, ETHERNET])
    groups = [_group(gpu, shape, network)]
    if mixed:
        slow = replace(gpu, slug="a100-sxm-80gb", display_name="A100", hbm_bytes_per_s=2000.0 * GB,
                       peak_flops={"bf16": 312e12, "fp16": 312e12}, architecture="ampere")  # fmt: skip
        groups.append(_group(slow, (random.randint(1, 2), shape[1], shape[2]), network))
    return ClusterSpec(name="drawn", groups=tuple(groups))


def a_drawn_request(random: Random) -> Problem:
    """A request of any launcher, model, cluster, objective and limits with few configurations."""
    return _limited(random, an_unlimited_request(random))


def a_hostile_request(random: Random) -> Problem:
    """A drawn request made awkward: odd sizes, memory that a configuration just fits, pins that clash.

    One in three may take any pin: mostly nothing is legal then, or nothing fits.
    """
    problem = _oddly(random, an_unlimited_request(random))
    anchor = _anchor(random, problem)[1]
    problem = _limited(random, problem, anchor)
    if random.randint(0, 2) > 0:
        problem = _just_enough(random, problem, anchor)
    if random.randint(0, 2) == 0:
        others = [name for name in INTEGER_VARIABLES if name not in problem.options.named]
        for name in random.sample(others, min(random.randint(1, 2), len(others))):
            problem = with_limit(problem, "pin", name, random.choice([1, 2, 3, 4, 6]))
    return problem


def _oddly(random: Random, problem: Problem) -> Problem:
    """3, 5 or 7 layers, odd numbers of experts, a vocabulary and GPUs that nothing divides."""
    model, cluster = replace(problem.model, num_layers=random.choice([3, 5, 7])), problem.cluster
    if model.moe is not None:
        experts, dense = random.choice([3, 5, 7, 9, 15]), random.randint(0, 2)
        moe = replace(model.moe, num_experts=experts, top_k=random.randint(1, 3), num_dense_layers=dense)
        model = replace(model, moe=moe)
    model = replace(model, vocab_size=random.choice([model.vocab_size, 50257, 32003]))
    if len(cluster.groups) == 1 and random.randint(0, 2) == 0:
        shape = random.choice([(1, 3, 3), (1, 5, 5), (1, 7, 7), (3, 3, 3), (5, 1, 1), (1, 9, 3), (3, 1, 1)])
        group = cluster.groups[0]
        odd = _group(group.gpu, shape, group.inter_node)
        cluster = replace(cluster, groups=(odd,))
        problem = _with(problem, num_nodes=(), reserve_nodes=0)
    batch = random.choice([problem.workload.global_batch_size, 3, 5, 9, 15, 21])
    workload = replace(problem.workload, global_batch_size=batch)
    return replace(_with(problem, batch_sizes=()), model=model, cluster=cluster, workload=workload)


def with_memory(problem: Problem, memory_bytes: int) -> Problem:
    """The problem on GPUs of so much memory."""
    groups = tuple(
        replace(group, gpu=replace(group.gpu, memory_bytes=memory_bytes))
        for group in problem.cluster.groups
    )
    return replace(problem, cluster=replace(problem.cluster, groups=groups))


def _just_enough(random: Random, problem: Problem, config: Configuration) -> Problem:
    """GPUs of the least memory that a configuration fits, if it is legal, or of a little less or more.

    The check allows a few bytes for rounding, the search none: it is a KiB more than the check needs, or
    less.
    """
    low, high = 0, 256 * GIB

    def fits(memory_bytes: int) -> bool:
        there = with_memory(problem, memory_bytes)
        return not violations_of_all(there, default_profile(there.cluster, there.launcher), [config])[0]

    if not fits(high):
        return problem
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return with_memory(problem, random.choice([high + 1024, high + 1024, high - 1024, high * 21 // 20]))


def an_open_request(random: Random, kind: str) -> Problem:
    """One of ``OPEN_KINDS``, with few configurations; of those that may, a quarter under any launcher.

    On unlike nodes one launcher that may be any places stages, which other tests judge.
    """
    under_any = kind == "any" or random.randint(0, 3) == 0
    problem = an_unlimited_request(random)
    while (kind.endswith("fewest") or under_any) and not is_alone(problem):
        problem = an_unlimited_request(random)
    if under_any:
        problem = replace(problem, launcher="any")
    return _limited(random, OPEN_KINDS[kind](random, problem))


def _with(problem: Problem, **options: object) -> Problem:
    """The problem with other search options."""
    return replace(problem, options=replace(problem.options, **options))  # type: ignore[arg-type]


def _as_it_is(_random: Random, problem: Problem) -> Problem:
    """Nothing more is asked."""
    return problem


def _fewest(random: Random, problem: Problem) -> Problem:
    """On the fewest nodes, of some or of all numbers, now and then before a deadline."""
    nodes = problem.cluster.num_nodes
    some = tuple(sorted(random.sample(range(1, nodes + 1), random.randint(1, nodes))))
    spare = 0 if nodes == 1 else random.choice([0, 0, 1])
    counts = random.choice([(), (), some]) if spare == 0 else ()
    problem = _with(problem, gpus="fewest", num_nodes=counts, reserve_nodes=spare)
    return _with_deadline(random, problem) if random.randint(0, 2) == 0 else problem


def _with_deadline(random: Random, problem: Problem) -> Problem:
    """Tokens to be seen before a deadline: some share of what one of the configurations takes."""
    if problem.options.gpus == "all" and problem.cluster.num_nodes > 1 and is_alone(problem):
        counts = tuple(range(1, problem.cluster.num_nodes + 1))
        problem = _with(problem, num_nodes=random.choice([counts, ()]), reserve_nodes=0)
    problem = _with(problem, total_tokens=random.choice([10**7, 10**9, 10**11]))
    one, config = _anchor(random, problem)
    step_s = predict(one, default_profile(one.cluster, one.launcher), config).step_time_s
    share = random.choice([0.3, 0.7, 1 - 1e-6, 1 + 1e-6, 1.3, 3.0])
    return _with(problem, deadline_days=share * run_days(problem, config, step_s))


def is_alone(problem: Problem) -> bool:
    """Whether all nodes are of one kind."""
    return len(problem.cluster.groups) == 1


def _with_front(random: Random, problem: Problem) -> Problem:
    """The front of step time and peak memory, on one or several numbers of nodes."""
    if problem.cluster.num_nodes > 1 and is_alone(problem) and random.randint(0, 2) == 0:
        problem = _with(problem, num_nodes=(1, problem.cluster.num_nodes), reserve_nodes=0)
    return _with(problem, pareto=True)


def _switched(random: Random, problem: Problem) -> Problem:
    """Some switches of Megatron-Core's launchers, or all of them, are open."""
    launcher = random.choice(["megatron-lm", "megatron-lm", "megatron-bridge", "ms-swift"])
    some = random.sample(sorted(switches()), random.randint(1, 2))
    named = tuple(dict.fromkeys(switches()[name].beside or name for name in some))
    allow = random.choice([("switches",), (), (*named, "none")])
    return _with(replace(problem, launcher=launcher), allow=allow)


def _standing_alone(random: Random, problem: Problem) -> Problem:
    """The embedding and the head may have stages of their own."""
    launcher = random.choice(["megatron-lm", "megatron-bridge", "torchtitan"])
    model = problem.model
    if lacking_facts(launcher_capabilities(launcher), model):
        model = replace(model, moe=None)
    vocabulary = random.choice([model.vocab_size, 512_000])  # as heavy as several layers
    model = replace(model, vocab_size=vocabulary, num_mtp_layers=random.choice([0, 1]))
    if lacking_facts(launcher_capabilities(launcher), model):
        model = replace(model, num_mtp_layers=0)
    problem = replace(problem, launcher=launcher, model=model)
    return _with(problem, allow=(*problem.options.allow, "standalone_stages"))


def _exchanging(random: Random, problem: Problem) -> Problem:
    """Context-parallel ranks may exchange heads and pass keys and values round rings as well."""
    launcher = random.choice(["megatron-lm", "megatron-bridge", "none"])
    heads = {"num_attention_heads": 8, "num_kv_heads": random.choice([4, 8])}
    problem = replace(problem, launcher=launcher, model=replace(problem.model, **heads))  # type: ignore[arg-type]
    if lacking_facts(launcher_capabilities(launcher), problem.model):
        problem = replace(problem, model=replace(problem.model, moe=None))
    return _with(problem, allow=("context_parallel_mode", "none"))


def _sharing(random: Random, problem: Problem) -> Problem:
    """Data-parallel ranks may share weights, which each gathers for its products."""
    launcher = random.choice(["megatron-lm", "megatron-bridge", "none"])
    model = replace(problem.model, tied_embeddings=False, qkv_bias=False)
    if lacking_facts(launcher_capabilities(launcher), model):
        model = replace(model, moe=None)
    return _with(replace(problem, launcher=launcher, model=model), allow=("weight_shards", "none"))


def _trained_otherwise(random: Random, problem: Problem) -> Problem:
    """8 bits and one or two optimizers are open, next to what the request states."""
    some = random.sample(["adamw-bf16", "adamw-8bit", "muon", "sgd-momentum"], random.randint(1, 2))
    allow = random.choice([("fp8",), ("fp8", *some), (*some,)])
    return _with(problem, allow=(*problem.options.allow, *allow))


def _powered(random: Random, problem: Problem) -> Problem:
    """Power limits are open, for least energy or within a budget that not all GPUs keep at their own."""
    problem = _with(problem, allow=(*problem.options.allow, "power_limit_w"))
    if random.randint(0, 2) == 0:
        return _with(problem, objective="energy_per_token")
    gpus = usable_gpus(problem)
    each_w = random.choice([350.0, 420.0, 500.0, 574.0])  # of 700 W, of which 574 are drawn
    return _with(problem, max_power_kw=max(gpus * each_w + random.choice([-1.0, 1.0]), 575.0) / 1e3)


def _powered_on_fewest(random: Random, problem: Problem) -> Problem:
    """Power limits are open on the fewest nodes, on which a pinned mesh may leave GPUs idle."""
    return _fewest(random, _powered(random, problem))


def _held_by_hosts(random: Random, problem: Problem) -> Problem:
    """DeepSpeed's hosts may hold and update some or all of the states, under passes or between them."""
    ways = ["optimizer_offload_fraction", "super_offload", "cpu_update_interval"]
    some = random.sample(ways, random.randint(1, 2))
    problem = replace(problem, launcher="deepspeed", model=replace(problem.model, moe=None))
    pin: dict[str, int | str] = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1}
    if random.randint(0, 3):
        pin["offload"] = "optimizer"  # else replicas that hold all are faster
    return _with(problem, allow=("offload", *some, "none"), pin=pin)


def _projected(random: Random, problem: Problem) -> Problem:
    """GaLore's optimizers are open under the launchers that have them."""
    launcher = random.choice(["trl", "axolotl", "llama-factory-accelerate"])
    able = launcher_capabilities(launcher)
    if lacking_facts(able, problem.model):
        problem = replace(problem, model=replace(problem.model, moe=None))
    names = [name for name in able.optimizers if name.startswith("galore")]
    some = random.sample(names, random.randint(1, 3))
    return _with(replace(problem, launcher=launcher), allow=(*problem.options.allow, *some))


def _of_documents(random: Random, problem: Problem) -> Problem:
    """Sequences are made of documents: packed, padded, or padded to the longest of a micro-batch."""
    seq = problem.workload.seq_length
    percentiles = random.choice([((50.0, seq // 4), (100.0, seq)), ((10.0, 64), (90.0, 500), (100.0, 512))])
    batching = random.choice(BATCHINGS)
    able = [name for name in launcher_names() if batching in launcher_capabilities(name).batchings]
    launcher = random.choice(["none", *able] if is_alone(problem) else able)
    if lacking_facts(launcher_capabilities(launcher), problem.model):
        problem = replace(problem, model=replace(problem.model, moe=None))
    lengths = SequenceLengths(batching=batching, percentiles=percentiles)
    work = replace(problem.workload, lengths=lengths)
    return replace(problem, launcher=launcher, workload=work)


def _front_of_documents(random: Random, problem: Problem) -> Problem:
    """The front of sequences that are made of documents."""
    return _with_front(random, _of_documents(random, problem))


def _front_of_workloads(random: Random, problem: Problem) -> Problem:
    """One front of several precisions and optimizers."""
    return _with_front(random, _trained_otherwise(random, problem))


# What a request may ask beside the ranking of one launcher's plans, and how it is drawn.
OPEN_KINDS = {
    "any": _as_it_is,
    "fewest": _fewest,
    "deadline": _with_deadline,
    "front": _with_front,
    "front of documents": _front_of_documents,
    "front of workloads": _front_of_workloads,
    "switches": _switched,
    "standalone": _standing_alone,
    "exchange": _exchanging,
    "weight shards": _sharing,
    "workloads": _trained_otherwise,
    "documents": _of_documents,
    "power": _powered,
    "power on the fewest": _powered_on_fewest,
    "hosts": _held_by_hosts,
    "projections": _projected,
}


def an_unlimited_request(random: Random) -> Problem:
    """A request without limits on single variables."""
    launcher = random.choice([*launcher_names(), "none", "accelerate", "torchtitan", "megatron-lm"])
    mixed = not launcher_capabilities(launcher).places_stages and random.randint(0, 5) == 0
    model, cluster = a_drawn_model(random), a_drawn_cluster(random, mixed=mixed)
    if lacking_facts(launcher_capabilities(launcher), model):
        model = replace(model, moe=None)
    objective = random.choice(OBJECTIVES)
    batch = random.choice([4, 6, 8, 12, 16, 24, 30])
    sizes = random.choice([(), (), (), (batch * 2,), (batch // 2,)])
    batch, *others = sorted({batch, *sizes}, reverse=True)  # as requests are read
    options = SearchOptions(
        top_k=random.randint(1, 5), certify="none", time_limit_s=600.0, objective=objective,
        allow=("offload", "none") if random.random() < 0.2 else ("none",),
        batch_sizes=tuple(others),
        constraints=tuple(random.sample(CONSTRAINTS, random.randint(0, 1))),
    )  # fmt: skip
    nodes = cluster.num_nodes
    if nodes > 1 and not mixed:
        wanted = random.randint(0, 5)
        options = replace(options, reserve_nodes=int(wanted == 1),
                          num_nodes=(1, nodes) if wanted == 2 else ())  # fmt: skip
    options = replace(options, diverse=options.top_k % 2 == 0 or batch % 4 == 0)
    seq = random.choice([512, 1024, 1536, 2048, 4096, 8192])
    return Problem(model=model, cluster=cluster, launcher=launcher, options=options,
                   workload=Workload(global_batch_size=batch, seq_length=seq))  # fmt: skip


def _limited(random: Random, problem: Problem, anchor: Configuration | None = None) -> Problem:
    """The problem with limits around one of its configurations, until few are left."""
    anchor = anchor or _anchor(random, problem)[1]
    values = {name: getattr(anchor, name) for name in VARIABLES}
    unlike = len(set(problem.model.layer_kinds())) > 1 or "standalone_stages" in problem.options.allow
    if unlike:  # splits into chunks of unlike layers, or of layers and ends, are not all offered
        problem = with_limit(problem, "pin", "virtual_pipeline_size", 1)
        values["virtual_pipeline_size"] = 1
    if random.randint(0, 7) == 0:
        problem = replace(problem, options=replace(problem.options, stage_layers=anchor.stage_layers))
    names = list(VARIABLES)
    counted: list[tuple[Problem, bool]] = []  # most names leave the problem as it is

    def has_few(problem: Problem) -> bool:
        if not counted or counted[-1][0] is not problem:
            counted.append((problem, has_at_most(problem, MOST_CONFIGURATIONS)))
        return counted[-1][1]

    for name in random.sample(names, len(names)):
        some = random.randint(0, 9) == 0
        if not some and has_few(problem):
            continue
        forms = ["pin", "pin", "pin", "forbid", "constraint"]
        forms += ["bounds", "bounds"] if name in INTEGER_VARIABLES else []
        problem = with_limit(problem, random.choice(forms), name, values[name])
    for name in names:
        if not has_few(problem):
            problem = with_limit(problem, "pin", name, values[name])
    return problem


def _anchor(random: Random, problem: Problem) -> tuple[Problem, Configuration]:
    """A configuration of the problem under one launcher that it means, a legal one if one of a few is."""
    one = random.choice(of_each_launcher(problem))
    few = list(some_configurations(one, random, 12))
    faults = violations_of_all(one, default_profile(one.cluster, one.launcher), few)
    nothing = Configuration(stage_layers=(problem.model.num_layers,))  # where no batch divides: not legal
    right = (config for config, wrong in zip(few, faults, strict=True) if not wrong)
    return one, next(right, (*few, nothing)[0])


def with_limit(problem: Problem, form: str, name: str, value: int | str | bool) -> Problem:
    """The problem with one more limit on a variable, which ``value`` keeps."""
    options = problem.options
    if name in options.named:
        return problem
    if form == "pin":
        options = replace(options, pin={**options.pin, name: value})
    elif form == "bounds":
        options = replace(options, bounds={**options.bounds, name: (int(value), int(value))})
    elif form == "constraint":
        said = repr(value) if isinstance(value, str) else str(value)
        text = f"{name} == {said}"
        if isinstance(value, bool):
            text = name if value else f"not {name}"
        options = replace(options, constraints=(*options.constraints, text))
    else:
        others = _others(name, value)
        options = replace(options, forbid={**options.forbid, name: others}) if others else options
    return replace(problem, options=options)


def _others(name: str, value: int | str | bool) -> tuple[int | str | bool, ...]:
    """Values of a variable that are forbidden beside ``value``."""
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, str):
        return ()
    lowest = 0 if name in ("zero_stage", "recompute_layers") else 1
    return tuple(number for number in range(lowest, value + 4) if number != value)


def has_at_most(problem: Problem, most: int) -> bool:
    """Whether a request means so few configurations."""
    return len(list(islice(of_all_counts(problem), most + 1))) <= most


def of_all_counts(problem: Problem) -> Iterable[Configuration]:
    """Configurations of every launcher on every number of GPUs that is open."""
    return (
        config
        for one in of_each_launcher(problem)
        for count in numbers_of_gpus(problem)
        for config in configurations(one, count)
    )

"""Every placement on unlike node groups that a request means, from its documentation alone.

docs/how-the-search-works.md ("Mixed clusters") and docs/requests.md say what it is: pipelines whose
replicas are all alike, every stage on one group, the stages of a group neighbours with one tensor-parallel
size (or, beyond the documentation, at both ends), any number of layers of each recomputed; or classes of
replicas, each on one group of its own with as many as fit and all or none recomputed, that share the batch.
Written without the product's enumeration, models or bounds. Whether one is legal and fits its memory is
what ``meshwright.solver.check`` says, what it takes is ``meshwright.solver.predict``.
"""

from ast import literal_eval
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, islice, pairwise, permutations, product
from random import Random
from typing import Any

from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.cluster import NodeGroup
from meshwright.profiles.model_parts import MoeSpec
from meshwright.profiles.profile import Profile
from meshwright.profiles.units import GB
from meshwright.solver.check import violations_of_all
from meshwright.solver.configuration import Configuration, StageGroup, joined, settled_on_groups
from meshwright.solver.cost.evaluation import evaluate
from meshwright.solver.predict import predict
from meshwright.solver.problem import Problem
from tests.problems.mixed_clusters import SLOW, a_group, a_mixed_problem
from tests.property.meaning import Limits, divisors

MOST = 100  # placements of a request, legal or not: limits are added until there are no more
LIMITED = ("zero_stage", "recompute_granularity", "micro_batch_size", "context_parallel_size",
           "pipeline_parallel_size", "tensor_parallel_size", "expert_parallel_size")  # fmt: skip
OF_ALL_REPLICAS = (
    "data_parallel_size"  # a limit on it leaves no unlike classes (docs/how-the-search-works.md)
)
FORMS = ("pin", "constraint", "forbid", "bounds")
OPTIMIZERS = ("adamw", "adamw-bf16", "adamw-8bit", "sgd-momentum", "muon")
OPTIONS: tuple[dict[str, str | float | bool], ...] = (
    {}, {}, {"loss_fused": True}, {"dropout": True}, {"overlap_gradients": False}, {"layer_launch_s": 1e-4},
    {"overlap_transfer": False}, {"gradient_dtype": "bf16"}, {"recompute_modules": "mlp"},
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Placed:
    """One legal placement that fits."""

    config: Configuration
    step_s: float
    objective_s: float  # the closed form; of classes of replicas their step


def a_placed_request(random: Random, *, varied: bool = False) -> Problem:
    """Two or three unlike groups of one to four GPUs, a small model, and limits around one placement.

    ``varied``: under some launcher, precision, optimizer and framework options, with limits of every form.
    """
    groups = tuple(
        a_group(
            speed=random.choice([0.2, 0.5, 1.0, 1.7]),
            memory_gib=random.choice([4.0, 5.0, 6.0, 8.0, 79.0]),
            nodes=random.randint(1, 2),
            gpus=random.choice([1, 2]),
            slug=f"gpu-{at}",
        )
        for at in range(random.choice([2, 2, 3]))
    )
    layers, batch = random.randint(2, 4), random.choice([2, 4, 6, 8])
    between = replace(SLOW, bytes_per_s=random.choice([0.1, 3.0, 100.0]) * GB)
    problem = a_mixed_problem(
        groups, num_layers=layers, batch=batch, between=between,
        certify="none", top_k=random.randint(1, 4), time_limit_s=600.0,
    )  # fmt: skip
    kind = random.choice(["experts", "prediction layer", "plain"])
    if kind == "experts":
        moe = MoeSpec(num_experts=2, top_k=1, ffn_hidden_size=2048, num_dense_layers=random.randint(0, 1))
        problem = replace(problem, model=replace(problem.model, moe=moe))
    elif kind == "prediction layer":
        problem = replace(problem, model=replace(problem.model, num_mtp_layers=random.randint(1, 2)))
    return _limited(random, _varied(random, problem)) if varied else _limited(random, problem)


def _varied(random: Random, problem: Problem) -> Problem:
    """The problem in one of the ways that a request states and no search chooses on unlike groups."""
    launcher = random.choice(["none", "flagscale"])
    optimizer = random.choice(launcher_capabilities(launcher).optimizers or OPTIMIZERS)
    options, lora_rank = random.choice(OPTIONS), random.choice([0, 0, 0, 8]) * (launcher == "none")
    work = replace(
        problem.workload, optimizer=optimizer, precision=random.choice(["bf16", "fp16"]),
        seq_length=random.choice([1024, 4096]), framework_options=options, lora_rank=lora_rank,
    )  # fmt: skip
    name, form = random.choice([OF_ALL_REPLICAS, "num_microbatches"]), random.choice(FORMS)
    return with_limit(replace(problem, launcher=launcher, workload=work), form, name, random.choice([1, 2]))


def with_limit(problem: Problem, form: str, name: str, value: int | str) -> Problem:
    """The problem with a limit on a variable that leaves it this value alone."""
    options = problem.options
    if form == "pin":
        options = replace(options, pin={**options.pin, name: value})
    elif form == "bounds" and isinstance(value, int):
        options = replace(options, bounds={**options.bounds, name: (value, value)})
    elif form == "forbid":
        others = tuple(other for other in range(9) if other != value)
        options = replace(options, forbid={**options.forbid, name: others})
    else:
        options = replace(options, constraints=(*options.constraints, f"{name} == {value!r}"))
    return replace(problem, options=options)


# Constraints on node groups g and h with a number k, as a request writes them and as Python does.
ON_GROUPS = (
    ("idle_nodes({g}) >= 1", "idle_nodes({g}) >= 1"),
    ("gpus({g}) <= {k}", "gpus({g}) <= {k}"),
    ("stages({g}) == {k}", "stages({g}) == {k}"),
    ("stages({g}) + stages({h}) <= {k}", "stages({g}) + stages({h}) <= {k}"),
    ("stages({g}) == 0 or stages({h}) == 0", "stages({g}) == 0 or stages({h}) == 0"),
    ("layers({g}) >= {k}", "layers({g}) >= {k}"),
    ("layers({g}) == {k}", "layers({g}) == {k}"),
    ("first({g}) => layers({g}) < layers({h})", "not first({g}) or layers({g}) < layers({h})"),
    ("not last({g}) and stages({g}) > 0", "not last({g}) and stages({g}) > 0"),
    ("last({g}) == first({h})", "last({g}) == first({h})"),
    ("layers({g}) // stages({g}) >= {k}", "layers({g}) // stages({g}) >= {k}"),
    ("(layers({g}) - layers({h})) % 2 == 1", "(layers({g}) - layers({h})) % 2 == 1"),
    ("stages({g}) * layers({h}) <= {k}", "stages({g}) * layers({h}) <= {k}"),
    ("data_parallel_size > 1 => idle_nodes({g}) == 0", "dp <= 1 or idle_nodes({g}) == 0"),
    ("tensor_parallel_size > 1 => stages({g}) > 0", "tp <= 1 or stages({g}) > 0"),
    ("stages({g}) > 0 => tensor_parallel_size == {k}", "stages({g}) == 0 or tp == {k}"),
    ("pipeline_parallel_size > stages({g}) + {k}", "pp > stages({g}) + {k}"),
)


def on_groups(random: Random, problem: Problem) -> tuple[str, str]:
    """A constraint on two of the groups, as a request writes it and as Python does."""
    g, h = random.sample(problem.cluster.group_names, 2)
    one = {"g": repr(g), "h": repr(h), "k": random.randint(1, 3)}
    written, python = random.choice(ON_GROUPS)
    return written.format(**one), python.format(**one)


def keeps(problem: Problem, config: Configuration, python: str) -> bool:
    """Whether Python finds a constraint on node groups true of every stage; undefined: no."""
    groups = problem.cluster.group_named
    stages = list(zip(config.stage_groups, config.stage_layers, strict=True))

    def idle_nodes(group: str) -> int:
        """Nodes of a group that no stage takes a GPU of, the stages packed together."""
        free = groups[group].num_gpus - gpus(group)
        return free // groups[group].gpus_per_node

    def gpus(group: str) -> int:
        return sum(stage.num_gpus for stage, _ in stages if stage.group == group)

    scope: dict[str, object] = {
        "__builtins__": {},
        "gpus": gpus,
        "idle_nodes": idle_nodes,
        "stages": lambda group: sum(stage.group == group for stage, _ in stages),
        "layers": lambda group: sum(layers for stage, layers in stages if stage.group == group),
        "first": lambda group: stages[0][0].group == group,
        "last": lambda group: stages[-1][0].group == group,
        "dp": config.data_parallel_size,
        "pp": len(stages),
    }
    try:
        return all(
            eval(python, {**scope, "tp": stage.tensor_parallel_size})  # noqa: S307 - text of ``ON_GROUPS``
            for stage, _ in stages
        )
    except ZeroDivisionError:
        return False


def _limited(random: Random, problem: Problem) -> Problem:
    """Limits that one of the first placements keeps, until there are few."""
    few = list(islice(placements(problem), 2000))
    if not few:
        return problem
    anchor = random.choice(few)
    one = anchor.replicas[0] if anchor.replicas else anchor
    for name in random.sample(LIMITED, len(LIMITED)):
        if len(list(islice(placements(problem), MOST + 1))) <= MOST:
            break
        problem = with_limit(problem, random.choice(["pin", "pin", "constraint"]), name, getattr(one, name))
    return problem


def placements(problem: Problem) -> Iterator[Configuration]:
    """Everything that the request may mean, legal or not, without what its limits exclude."""
    batch = problem.workload.global_batch_size
    groups = dict(zip(problem.cluster.group_names, problem.cluster.groups, strict=True))
    yield from _pipelines(problem, groups, batch)
    if OF_ALL_REPLICAS in _fixed(problem) or OF_ALL_REPLICAS in problem.options.named:
        return
    for size in range(2, len(groups) + 1):
        for some in combinations(groups, size):
            for cut in combinations(range(1, batch), size - 1):
                parts = [end - start for start, end in pairwise((0, *cut, batch))]
                classes = [
                    list(_pipelines(problem, {name: groups[name]}, part, fill=True))
                    for name, part in zip(some, parts, strict=True)
                ]
                yield from map(joined, product(*classes))


def _pipelines(
    problem: Problem, groups: dict[str, NodeGroup], batch: int, *, fill: bool = False
) -> Iterator[Configuration]:
    """Pipelines with all their replicas on these groups; ``fill``: as many as there is room for."""
    gpus = {name: group.num_gpus for name, group in groups.items()}
    for stages in _stages(problem, gpus):
        needed = {name: sum(tp for one, tp in stages if one == name) for name in gpus}
        for cp in divisors(max(gpus.values())):
            most = min(gpus[name] // (cp * count) for name, count in needed.items() if count)
            for dp in range(1, most + 1) if not fill else range(most, most + 1):
                for run in _runs(problem, dp, cp, batch):
                    yield from _splits(problem, stages, {"data_parallel_size": dp, **run}, batch)


def _stages(problem: Problem, gpus: dict[str, int]) -> Iterator[list[tuple[str, int]]]:
    """A group and a tensor-parallel size for each stage; those of a group are neighbours.

    Or the first and last stages are of one group: such plans are not sought, yet what is proved holds.
    """
    around = ((one, other, one) for one, other in permutations(gpus, 2))
    for orders in (*(permutations(gpus, count) for count in range(1, len(gpus) + 1)), around):
        for order in orders:
            for sizes in product(*(divisors(gpus[name]) for name in order)):
                rooms = [range(1, gpus[name] // tp + 1) for name, tp in zip(order, sizes, strict=True)]
                for runs in product(*rooms):
                    pp = sum(runs)
                    allowed = all(_allows(problem, tensor_parallel_size=tp) for tp in sizes)
                    if (
                        pp <= problem.model.num_layers
                        and allowed
                        and _allows(problem, pipeline_parallel_size=pp)
                    ):
                        stages = zip(order, sizes, runs, strict=True)
                        yield [(name, tp) for name, tp, run in stages for _ in range(run)]


def _fixed(problem: Problem) -> dict[str, Any]:
    """What the request pins or constrains to one value."""
    said = (text.split(" == ") for text in problem.options.constraints)
    return {**problem.options.pin, **{name: literal_eval(value) for name, value in said}}


def _allows(problem: Problem, **values: int | str) -> bool:
    """Whether the request's limits keep these values."""
    fixed = _fixed(problem)
    kept = all(fixed.get(name, value) == value for name, value in values.items())
    return kept and Limits.of(problem).allow(**values)


def _runs(problem: Problem, dp: int, cp: int, batch: int) -> Iterator[dict[str, Any]]:
    """Micro-batches, experts, ZeRO and recomputation of all layers or none."""
    experts = divisors(problem.model.moe.num_experts) if problem.model.moe else [1]
    if dp < 1 or batch % dp:
        return
    for size, ep, zero, word in product(
        divisors(batch // dp), experts, (0, 1, 2, 3) if dp * cp > 1 else (0,), ("none", "selective", "full")
    ):
        run: dict[str, Any] = {
            "micro_batch_size": size, "expert_parallel_size": ep, "zero_stage": zero,
            "recompute_granularity": word, "context_parallel_size": cp,
        }  # fmt: skip
        if _allows(problem, **run, data_parallel_size=dp, num_microbatches=batch // dp // size):
            yield run


def _splits(
    problem: Problem, stages: list[tuple[str, int]], sizes: dict[str, Any], batch: int
) -> Iterator[Configuration]:
    """Every split of the layers over the stages."""
    layers = problem.model.num_layers
    groups = tuple(
        StageGroup(group=name, num_gpus=0, num_nodes=0, tensor_parallel_size=size) for name, size in stages
    )
    for cut in combinations(range(1, layers), len(stages) - 1):
        split = tuple(end - start for start, end in pairwise((0, *cut, layers)))
        one = Configuration(**sizes, stage_layers=split, stage_groups=groups)
        yield settled_on_groups(problem.cluster, one, batch)


def _recomputed_by_stage(one: Configuration) -> Iterator[Configuration]:
    """A pipeline as it is, and with every number of recomputed layers on every stage, one at least."""
    yield one
    if one.recompute_granularity != "full" or len(one.stage_layers) == 1 or one.replicas:
        return
    for counts in product(*(range(layers + 1) for layers in one.stage_layers)):
        if any(counts) and counts != one.stage_layers:
            yield replace(one, recompute_layers=max(counts), stage_recompute_layers=counts)


def all_placed(problem: Problem, profile: Profile) -> list[Placed]:
    """All placements that are legal and fit, each with its predicted step."""
    every = [counted for one in placements(problem) for counted in _recomputed_by_stage(one)]
    faults = violations_of_all(problem, profile, every)
    right = [config for config, wrong in zip(every, faults, strict=True) if not wrong]
    found = []
    for config, one in zip(right, evaluate(problem, profile, right), strict=True):
        step_s = predict(problem, profile, config).step_time_s
        found.append(Placed(config, step_s, step_s if config.replicas else one.objective_s))
    return found

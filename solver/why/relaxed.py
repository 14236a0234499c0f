"""Changes of a problem that has no plan: what is asked less, done otherwise, or run on more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

from profiles.capabilities import launcher_capabilities, launcher_names
from profiles.cluster import ClusterSpec, GpuSpec, NodeGroup
from profiles.library import find_gpu, gpu_names
from profiles.profile import Profile, default_profile
from solver.cost.memory import memory_limit_bytes, out_of_memory_probability
from solver.explain import correction_masks
from solver.options import SearchOptions
from solver.plan import Configuration, Prediction, Remedy, Shortfall
from solver.problem import Problem
from solver.request_rules import request_rules
from solver.space import Space, refuted_space, with_whole

LARGEST_RISK = 0.25  # chance to run out of memory that is still worth offering
_ROUNDING = 1e-6  # in tenths of a per cent: a peak is rounded to bytes
_SMALLEST = "adamw-8bit"
CUT = "the time limit came before all changes were tried: there may be others, and cheaper ones"
_OPEN = "some changes could not be searched whole: whether they have a plan is not known"
NODE_FACTORS = (1.5, 2, 3, 4, 6, 8, 12, 16)
_SHORTEST = 1024  # tokens of a sequence that is still offered
_MOST_GPUS = 6  # sizes of memory that are tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A changed problem with the profile that prices it."""

    words: str
    problem: Problem
    profile: Profile
    last_resort: bool = False  # of no interest where a smaller change is enough


def missing(*, complete: bool, judged: bool) -> tuple[str, ...]:
    """What is said where not all changes were tried, or not all of those could be judged."""
    return (*(() if judged else (_OPEN,)), *(() if complete else (CUT,)))


def asked_less(problem: Problem, profile: Profile, shortfall: Shortfall | None) -> Iterator[Change]:
    """The request's own limits given up: alone where that is enough, else the fewest together."""
    if shortfall is not None:
        limit = float(memory_limit_bytes(problem))
        risk = out_of_memory_probability(shortfall.needed_bytes, limit, profile.log_memory_sigma)
        if problem.options.max_out_of_memory_probability < risk <= LARGEST_RISK:
            accepted = ceil(risk * 1000 + _ROUNDING) / 1000  # never rounded down
            options = replace(problem.options, max_out_of_memory_probability=accepted)
            words = f"an out-of-memory risk of {accepted * 100:.1f} %"
            yield Change(words=words, problem=replace(problem, options=options), profile=profile)
    space = with_whole(problem, refuted_space(problem))
    request = sum(1 << bit for bit, rule in enumerate(space.rules) if rule.of_request)
    for mask in correction_masks(problem, profile, space):
        if mask and mask & ~request == 0:
            names = _names(space, mask)
            words = "without " + " and ".join(names)
            yield Change(words=words, problem=without_limits(problem, names), profile=profile)


def _names(space: Space, mask: int) -> list[str]:
    """Names of the rules in a mask."""
    return [rule.name for bit, rule in enumerate(space.rules) if mask >> bit & 1]


def without_limits(problem: Problem, names: Sequence[str]) -> Problem:
    """The problem without those of its own limits, named as its rules are."""
    given = [rule.name for rule in request_rules(problem)]
    kept = [name not in names for name in given]
    options = problem.options
    parts = iter(kept)
    pin = {name: value for name, value in sorted(options.pin.items()) if next(parts)}
    forbid = {name: values for name, values in sorted(options.forbid.items()) if next(parts)}
    bounds = {name: ends for name, ends in sorted(options.bounds.items()) if next(parts)}
    keeps_split = bool(options.stage_layers) and next(parts)
    split = options.stage_layers if keeps_split else ()
    constraints = tuple(text for text in options.constraints if next(parts))
    changed = replace(
        options, pin=pin, forbid=forbid, bounds=bounds, stage_layers=split, constraints=constraints
    )
    return replace(problem, options=changed)


def done_otherwise(problem: Problem, profile: Profile) -> Iterator[Change]:
    """The same training with less memory: smaller states, states on the host, another launcher."""
    yield from lighter(problem, profile)
    for name in launcher_names():
        if name not in (problem.launcher, "any"):
            other = replace(problem, launcher=name)
            words = "no launcher's limits (launcher none)" if name == "none" else f"launcher {name}"
            own = _profile(other, profile)
            yield Change(words=words, problem=other, profile=own)
            for change in lighter(other, own):
                yield replace(change, words=f"{words} and {change.words}", last_resort=True)


def lighter(problem: Problem, profile: Profile, *, offload: bool = True) -> Iterator[Change]:
    """Smaller gradients, states, and states on the host: one after the other, then all together."""
    together, words = problem, list[str]()
    for change in (_gradients, _states, *((_offloaded,) if offload else ())):
        alone, joined = change(problem), change(together)
        if alone is not None and joined is not None:
            yield Change(words=alone[0], problem=alone[1], profile=profile)
            together = joined[1]
            words.append(alone[0])
    if len(words) > 1:
        yield Change(words=" and ".join(words), problem=together, profile=profile, last_resort=True)


def _gradients(problem: Problem) -> tuple[str, Problem] | None:
    """Gradients in two bytes."""
    work = problem.workload
    if work.framework_options.get("gradient_dtype", "fp32") != "fp32":
        return None
    options = {**work.framework_options, "gradient_dtype": "bf16"}
    return "gradients in bf16", replace(problem, workload=replace(work, framework_options=options))


def _states(problem: Problem) -> tuple[str, Problem] | None:
    """Optimizer states in one byte each."""
    work = problem.workload
    if work.optimizer not in ("adamw", "adamw-bf16"):
        return None
    return f"optimizer {_SMALLEST}", replace(problem, workload=replace(work, optimizer=_SMALLEST))


def _offloaded(problem: Problem) -> tuple[str, Problem] | None:
    """Optimizer states or activations in host memory, where the launcher can."""
    able = launcher_capabilities(problem.launcher).offload
    if "offload" in problem.options.allow or len(able) == 1:
        return None
    options = replace(problem.options, allow=(*problem.options.allow, "offload"))
    return "offload to the host", replace(problem, options=options)


def less_work(problem: Problem, profile: Profile) -> Iterator[Change]:
    """A batch that the pinned sizes divide; shorter sequences."""
    batch, pin = problem.workload.global_batch_size, problem.options.pin
    unit = int(pin.get("data_parallel_size", 1)) * int(pin.get("micro_batch_size", 1))
    unit *= int(pin.get("num_microbatches", 1))
    for near in (batch // unit * unit, -(-batch // unit) * unit):
        if unit > 1 and near not in (0, batch):
            work = replace(problem.workload, global_batch_size=near)
            words = f"a global batch of {near}"
            yield Change(words=words, problem=replace(problem, workload=work), profile=profile)
    seq = problem.workload.seq_length // 2
    while seq >= _SHORTEST:
        work = replace(problem.workload, seq_length=seq)
        yield Change(
            words=f"sequences of {seq} tokens", problem=replace(problem, workload=work), profile=profile
        )
        seq //= 2


def remedy_of(words: str, config: Configuration, prediction: Prediction, *, tokens: int) -> Remedy:
    """A change in words with its plan; ``tokens`` are those of a step."""
    return Remedy(
        change=words,
        config=config,
        step_time_s=prediction.step_time_s,
        num_gpus=config.num_gpus,
        gpu_s_per_token=prediction.step_time_s * config.num_gpus / tokens,
        peak_memory_bytes=prediction.peak_memory_bytes,
    )


def on_nodes(problem: Problem, profile: Profile, nodes: int) -> Change:
    """The problem on so many nodes, all of which may be used; several groups grow alike."""
    now = problem.cluster.num_nodes

    def grown_group(group: NodeGroup) -> NodeGroup:
        return replace(group, num_nodes=-(-group.num_nodes * nodes // now))

    cluster = replace(problem.cluster, groups=tuple(map(grown_group, problem.cluster.groups)))
    larger, wider = _on(problem, cluster), replace(profile, group=grown_group(profile.group))
    return Change(words=f"{cluster.num_nodes} nodes", problem=larger, profile=wider)


def more_hardware(problem: Problem, profile: Profile) -> Iterator[Change]:
    """More nodes, fewest first."""
    now = problem.cluster.num_nodes
    for factor in NODE_FACTORS:
        yield on_nodes(problem, profile, ceil(now * factor))


def other_gpus(problem: Problem) -> Iterator[Change]:
    """The same number of nodes with GPUs of more memory on a link of the same kind, the smallest first."""
    for gpu in larger_gpus(problem.cluster.groups[0]):
        groups = tuple(with_gpu(group, gpu) for group in problem.cluster.groups)
        changed = _on(problem, replace(problem.cluster, groups=groups))
        words = f"{gpu.display_name} instead"
        yield Change(
            words=words, problem=changed, profile=default_profile(changed.cluster, changed.launcher)
        )


def with_gpu(group: NodeGroup, gpu: GpuSpec) -> NodeGroup:
    """As many nodes with other GPUs and their links."""
    return replace(group, gpu=gpu, intra_node=gpu.intra_node, inter_node=gpu.inter_node)


def larger_gpus(group: NodeGroup) -> list[GpuSpec]:
    """GPUs of more memory on a link of the same kind: one of each size, the smallest first."""
    every = {gpu.slug: gpu for gpu in map(find_gpu, gpu_names())}.values()
    alike = [
        gpu
        for gpu in every
        if gpu.memory_bytes > group.gpu.memory_bytes and gpu.intra_node.kind == group.intra_node.kind
    ]
    sizes = {gpu.memory_bytes: gpu for gpu in sorted(alike, key=lambda gpu: gpu.slug, reverse=True)}
    larger = [sizes[size] for size in sorted(sizes)]
    return larger[:_MOST_GPUS]


def _on(problem: Problem, cluster: ClusterSpec) -> Problem:
    """The problem on another cluster, all of whose nodes may be used."""
    options: SearchOptions = replace(problem.options, num_nodes=())
    return replace(problem, cluster=cluster, options=options)


def _profile(problem: Problem, profile: Profile) -> Profile:
    """The profile of a changed launcher: the same where its framework is."""
    other = default_profile(problem.cluster, problem.launcher)
    return profile if other.framework.name == profile.framework.name else other

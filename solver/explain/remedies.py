"""Changes that make an infeasible request fit, each with its best plan, cheapest of each kind first.

A change is offered only after its own space was searched and its best plan has passed the independent
check; it costs the GPU seconds of a token. Changes of the request and of its methods come before adapters,
which train another thing, these before less work, and that before hardware.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, combinations
from math import ceil, inf
from typing import Any, Literal

from meshwright.profiles.capabilities import launcher_capabilities, launcher_names, launchers_of
from meshwright.profiles.cluster import MAX_GPUS, ClusterSpec, NodeGroup, power_of
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.inline import UNNAMED, cluster_from_mapping, cluster_of_words
from meshwright.profiles.library import is_gpu_name, larger_gpus, with_gpu
from meshwright.profiles.optimizers import UNPAGED
from meshwright.profiles.profile import Profile, default_profile
from meshwright.profiles.storage import BasePrecision
from meshwright.profiles.switches import otherwise
from meshwright.solver.answer import (
    Answer,
    Infeasibility,
    Plan,
    Prediction,
    Remedy,
    Shortfall,
    remedies_in_order,
    remedy_of,
)
from meshwright.solver.check import violations
from meshwright.solver.clock import Watch, look
from meshwright.solver.configuration import Configuration
from meshwright.solver.cost.memory import out_of_memory_probability
from meshwright.solver.cost.objective import outlook_of
from meshwright.solver.cost.pipelines import NodeGroups
from meshwright.solver.explain.infeasible import (
    LARGEST_RISK,
    ROUNDING,
    Lack,
    ProblemLimits,
    accepted_words,
    closest_plan,
    correction_masks,
    droppable_limits,
    explained,
    limits_of,
    nearest_lack,
)
from meshwright.solver.predict import predict_all, profile_of_variant
from meshwright.solver.problem import (
    Problem,
    SearchOptions,
    Workload,
    are_named,
    batch_sizes,
    gpu_counts,
    may_use_fewer,
    on_gpus,
    under_last_setting,
    usable_gpus,
    with_batch,
)
from meshwright.solver.search.feasible import none_fits
from meshwright.solver.search.fewer_gpus import score_of_s, waves
from meshwright.solver.search.frontier import Frontier
from meshwright.solver.search.priced_space import have_room, priced_space
from meshwright.solver.space.enumerate import (
    Space,
    enumerate_space,
    is_too_large,
    refuted_space,
    with_whole,
)
from meshwright.solver.space.request_rules import with_group_renamed, without_limits

# --------------------------------------------------------------------------------------------------
# Changes of a problem that has no plan: lower demands, other methods, or more hardware.


_SMALLEST = "adamw-8bit"
CUT = "the time limit came before every change was tried. There may be others, also cheaper ones"
_OPEN = "some changes have too many configurations to search completely. They may have a plan"
NODE_FACTORS = (1.5, 2, 3, 4, 6, 8, 12, 16)
_MOST_TIMES_NODES = 64  # times as many nodes that are still tried
_DIGITS = 4  # of a number of nodes, in binary: up to 16 every one is tried, then 18, 20, …
_SHORTEST = 1024  # tokens of a sequence that is still offered


@dataclass(frozen=True, slots=True)
class ProblemChange:
    """A changed problem with the profile that prices it."""

    # risk, power, limits, switch, precision, optimizer, offload, launcher, lora, qlora, batch, sequence,
    # group, nodes, gpus_per_node or gpus
    kind: str
    words: str
    problem: Problem
    profile: Profile
    last_resort: bool = False  # of no interest where a smaller change, or another of its kind, is enough
    once: bool = False  # of no interest where another of its kind is enough
    settings: Mapping[str, Any] = field(default_factory=dict)  # values by their paths in the request


def asked_less(problem: Problem, profile: Profile, shortfall: Shortfall | None) -> Iterator[ProblemChange]:
    """Drop the request's own limits: alone if that is enough, else the fewest together."""
    if shortfall is not None:
        limit = float(problem.memory_limit_bytes)
        risk = out_of_memory_probability(shortfall.needed_bytes, limit, profile.log_memory_sigma)
        yield from _accepted(problem, profile, risk)
    yield from _more_power(problem, profile)
    space = with_whole(problem, refuted_space(problem))
    for names in droppable_limits(space, correction_masks(problem, profile, space)):
        yield ProblemChange(
            "limits", f"without {' and '.join(names)}", without_limits(problem, names), profile
        )


def _more_power(problem: Problem, profile: Profile) -> Iterator[ProblemChange]:
    """Raise the power budget to what few GPUs draw that have room, and to more of them if need be.

    Numbers of GPUs are those that a request names, or rounded up to four binary digits.
    """
    most_kw, group = problem.options.max_power_kw, problem.cluster.groups[0]
    if most_kw is None or not problem.cluster.is_homogeneous:
        return
    each_kw, usable = power_of(group.gpu, problem.power_limit_w).busy_w / 1e3, usable_gpus(problem)

    def under(gpus: int) -> Problem:
        kw = ceil(gpus * each_kw * 10) / 10  # never rounded down
        return on_gpus(replace(problem, options=replace(problem.options, max_power_kw=kw)), (gpus,))

    def fits(gpus: int) -> bool:
        look()
        return have_room(under(gpus), profile)

    now = int(most_kw / each_kw)
    rounded = {min(_round(gpus, 0), usable) for gpus in range(now + 1, usable + 1)}
    counts = sorted(gpus for gpus in (gpu_counts(problem) if are_named(problem) else rounded) if gpus > now)
    for gpus in counts[bisect_left(counts, True, key=fits) :]:
        changed = under(gpus)
        kw = changed.options.max_power_kw
        yield ProblemChange(
            "power", f"max_power_kw = {kw:g}", changed, profile,
            settings={"search.max_power_kw": kw}, once=True,
        )  # fmt: skip


def _accepted(problem: Problem, profile: Profile, risk: float) -> Iterator[ProblemChange]:
    if problem.options.max_out_of_memory_probability < risk <= LARGEST_RISK:
        accepted = ceil(risk * 1000 + ROUNDING) / 1000  # never rounded down
        options = replace(problem.options, max_out_of_memory_probability=accepted)
        settings = {"search.max_out_of_memory_probability": accepted}
        yield ProblemChange(
            "risk",
            accepted_words(accepted),
            replace(problem, options=options),
            profile,
            settings=settings,
        )


def done_otherwise(
    problem: Problem, profile: Profile, plain: Problem | None = None
) -> Iterator[ProblemChange]:
    """Train the same with less memory: other switches, smaller states, another launcher.

    ``plain``: the problem without the switches that its own launcher alone may have.
    """
    yield from _switched(problem, profile)
    yield from lighter(problem, profile)
    others = [name for name in launcher_names() if name not in (problem.launcher, "any", "none")]
    plain = plain or problem
    for name in others:
        yield _under(plain, profile, name)
    for name in others:
        first = _under(plain, profile, name)
        for change in lighter(first.problem, first.profile):
            words = f"{change.words} under {name}"
            settings = {**first.settings, **change.settings}
            yield replace(change, words=words, last_resort=True, settings=settings)
    if problem.launcher != "none":
        free = _under(plain, profile, "none")
        yield replace(free, words="without any launcher's limits (no launch files)", last_resort=True)
        for change in lighter(free.problem, free.profile):
            both = {**free.settings, **change.settings}
            words = f"{change.words} (no launcher here supports it)"
            yield replace(change, words=words, last_resort=True, settings=both)


def _under(problem: Problem, profile: Profile, launcher: str) -> ProblemChange:
    other, settings = problem.under(launcher), {"launcher": launcher}
    own = profile_of_variant(other, profile)
    return ProblemChange("launcher", f"launcher {launcher}", other, own, settings=settings)


_RANK = 16  # of the adapters that are offered: peft's and Megatron-Bridge's examples begin there
_LIGHTER: Mapping[BasePrecision, tuple[BasePrecision, ...]] = {"fp32": ("bf16", "nf4"), "bf16": ("nf4",)}


def adapted(problem: Problem, profile: Profile) -> Iterator[ProblemChange]:
    """Train adapters of frozen weights, LoRA and then QLoRA, under the first launcher that fits them.

    A request with adapters keeps them, and its frozen weights get fewer bits. Nothing further is tried if
    16 bits fit under its own launcher. Trained layers go with no adapters, and no option takes them back.
    """
    work, own = problem.workload, problem.launcher
    frozen = (work.language_frozen and not work.lora_rank) or work.trained_layers
    if frozen or problem.model.diffusion is not None:
        return
    others = [name for name in launchers_of("any") if name not in (own, "none")]
    named = others if own == "any" else [own, *others]
    names = [name for name in named if launcher_capabilities(name).adapters]
    bases = _LIGHTER.get(work.base_precision, ()) if work.lora_rank else ("bf16", "nf4")
    for base in bases:
        for name in names:
            one = _with_adapters(problem, name, base)
            kind = "qlora" if base != "bf16" else "lora"
            rotates = work.framework_options.get("oft")
            size = f"{'OFT with blocks of' if rotates else 'LoRA of rank'} {one.workload.lora_rank}"
            method = f"{'Q' * (kind == 'qlora')}{size}"
            stays = bool(work.lora_rank) and base == "bf16"
            yield ProblemChange(
                kind,
                f"{'frozen weights in bf16' if stays else method} under {name}",
                one,
                profile_of_variant(one, profile),
                last_resort=not (stays and name == own),
                settings=_settings_of_adapters(work, one),
            )


def _with_adapters(problem: Problem, launcher: str, base: BasePrecision) -> Problem:
    """Return the problem with frozen weights in ``base``, and usual adapters where it has none."""
    work, able = problem.workload, launcher_capabilities(launcher)
    known = able.adapter_optimizers or able.optimizers
    optimizer = work.optimizer if work.optimizer in known else "adamw"
    changed = replace(work, base_precision=base, optimizer=optimizer)
    if not work.lora_rank:
        changed = replace(changed, lora_rank=_RANK, lora_targets=able.default_targets(problem.model))
    return replace(problem, launcher=launcher, workload=changed)


def _settings_of_adapters(work: Workload, changed: Problem) -> dict[str, Any]:
    names = ("lora_rank", "base_precision", "optimizer")
    values = {name: getattr(changed.workload, name) for name in names}
    moved = {f"workload.{name}": one for name, one in values.items() if one != getattr(work, name)}
    return {**moved, "launcher": changed.launcher}


def _switched(problem: Problem, profile: Profile) -> Iterator[ProblemChange]:
    work, gpus = problem.workload, [group.gpu for group in problem.cluster.groups]
    only, facts = str(problem.options.pin.get("recompute_granularity")), profile.framework
    stated = work.framework_options
    for words, options in otherwise(problem.launcher, facts, stated, problem.model, gpus, recompute=only):
        other = replace(problem, workload=replace(work, framework_options=options))
        yield ProblemChange("switch", words, other, profile)


def lighter(problem: Problem, profile: Profile, *, offload: bool = True) -> Iterator[ProblemChange]:
    """Try smaller gradients, states, and states on the host: one after the other, then together."""
    together, words = problem, list[str]()
    ways = (
        ("switch", _loss), ("switch", _experts), ("precision", _gradients), ("optimizer", _states),
        ("offload", _offloaded),
    )  # fmt: skip
    allowed, every = list[str](), dict[str, Any]()
    for kind, change in ways if offload else ways[:-1]:
        alone, joined = change(problem), change(together)
        if alone is not None and joined is not None:
            yield ProblemChange(kind, alone[0], alone[1], profile, settings=alone[2])
            together = joined[1]
            words.append(alone[0])
            allowed += alone[2].get("search.allow", [])
            every |= alone[2] | ({"search.allow": allowed} if allowed else {})
    if offload and (paged := _paged(problem)) is not None:
        yield ProblemChange("offload", paged[0], paged[1], profile, settings=paged[2])
    if len(words) > 1:
        both = " and ".join(words)
        yield ProblemChange("precision", both, together, profile, last_resort=True, settings=every)


_Lighter = tuple[str, Problem, dict[str, Any]]  # words, the changed problem, its settings


def _loss(problem: Problem) -> _Lighter | None:
    """Make a part of the logits at a time, where the launcher has such a loss."""
    found = under_last_setting(problem, "loss_kernel")
    if found is None:
        return None
    return "loss without whole logits", found, {"search.allow": ["loss_kernel"]}


def _experts(problem: Problem) -> _Lighter | None:
    """Quantize experts as well, under QLoRA."""
    found = under_last_setting(problem, "quantizes_experts")
    if found is None:
        return None
    return "experts in 4 bits", found, {"search.allow": ["quantizes_experts"]}


def _gradients(problem: Problem) -> _Lighter | None:
    work = problem.workload
    if work.framework_options.get("gradient_dtype", "fp32") != "fp32":
        return None
    options = {**work.framework_options, "gradient_dtype": "bf16"}
    changed = replace(problem, workload=replace(work, framework_options=options))
    stated = "gradient_dtype" in work.framework_options  # then what is allowed changes nothing
    return "gradients in bf16", changed, {} if stated else {"search.allow": ["gradient_dtype"]}


def _states(problem: Problem) -> _Lighter | None:
    work = problem.workload
    if work.optimizer not in ("adamw", "adamw-bf16"):
        return None
    changed = replace(problem, workload=replace(work, optimizer=_SMALLEST))
    return f"optimizer {_SMALLEST}", changed, {"workload.optimizer": _SMALLEST}


def _offloaded(problem: Problem) -> _Lighter | None:
    if "offload" in problem.options.allow or len(launcher_capabilities(problem.launcher).offload) == 1:
        return None
    options = replace(problem.options, allow=(*problem.options.allow, "offload"))
    return "CPU offload", replace(problem, options=options), {"search.allow": ["offload"]}


def _paged(problem: Problem) -> _Lighter | None:
    """Let states leave the GPU where it is full, and come back for updates on it."""
    work, able = problem.workload, launcher_capabilities(problem.launcher)
    known = (able.adapter_optimizers if work.lora_rank else ()) or able.optimizers
    for name, plain in UNPAGED.items():
        if plain == work.optimizer and name in known:
            changed = replace(problem, workload=replace(work, optimizer=name))
            return f"optimizer {name}", changed, {"workload.optimizer": name}
    return None


def less_work(problem: Problem, profile: Profile) -> Iterator[ProblemChange]:
    """Try a batch that the pinned sizes divide, and shorter sequences."""
    batch, pin = problem.workload.global_batch_size, problem.options.pin
    unit = int(pin.get("data_parallel_size", 1)) * int(pin.get("micro_batch_size", 1))
    unit *= int(pin.get("num_microbatches", 1))
    for near in (batch // unit * unit, -(-batch // unit) * unit):
        if unit > 1 and near not in (0, batch):
            work = replace(problem.workload, global_batch_size=near)
            words, settings = f"a global batch of {near}", {"workload.global_batch_size": near}
            yield ProblemChange("batch", words, replace(problem, workload=work), profile, settings=settings)
    seq = problem.workload.seq_length // 2
    while seq >= _SHORTEST and problem.workload.lengths is None:
        work = replace(problem.workload, seq_length=seq)
        words, settings = f"sequences of {seq} tokens", {"workload.seq_length": seq}
        yield ProblemChange("sequence", words, replace(problem, workload=work), profile, settings=settings)
        seq //= 2


def _hardware(cluster: ClusterSpec, changed: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of other hardware; none where no option states unlike groups.

    GPUs that were counted by their type alone are stated in full: what is left of the count that was typed
    would mean other numbers (``--gpus 2xh100 --num-nodes 2`` are two GPUs).
    """
    if not cluster.is_homogeneous:
        return {}
    group = cluster.groups[0]
    sizes = {"num_nodes": cluster.num_nodes, "gpus_per_node": group.gpus_per_node}
    (plain,) = cluster_from_mapping({"groups": [{"gpu": group.gpu.slug, **sizes}]}).groups
    links = (group.intra_node, group.inter_node, group.island_gpus)
    if cluster.name != UNNAMED or links != (plain.intra_node, plain.inter_node, plain.island_gpus):
        return changed
    return {"cluster.groups": group.gpu.slug, **{f"cluster.{name}": one for name, one in sizes.items()}}


def on_nodes(problem: Problem, profile: Profile, nodes: int) -> ProblemChange:
    """Return the problem on so many nodes, all of which may be used; several groups grow alike."""
    now = problem.cluster.num_nodes

    def grown_group(group: NodeGroup) -> NodeGroup:
        return replace(group, num_nodes=-(-group.num_nodes * nodes // now))

    cluster = replace(problem.cluster, groups=tuple(map(grown_group, problem.cluster.groups)))
    larger, wider = _on(problem, cluster), replace(profile, group=grown_group(profile.group))
    settings = _hardware(cluster, {"cluster.num_nodes": cluster.num_nodes})
    return ProblemChange("nodes", f"{cluster.num_nodes} nodes", larger, wider, settings=settings)


_USUAL_GPUS = 8  # of a node


def wider_nodes(problem: Problem, profile: Profile) -> Iterator[ProblemChange]:
    """Try nodes with twice as many GPUs on the same link, up to 8, where they have fewer."""
    if not problem.cluster.is_homogeneous or problem.cluster.differs:
        return
    (group,) = problem.cluster.groups
    each = 2 * group.gpus_per_node
    while each <= _USUAL_GPUS and group.island_gpus == group.gpus_per_node:
        wide = replace(group, gpus_per_node=each, island_gpus=each, measured=None)
        changed = _on(problem, replace(problem.cluster, groups=(wide,)))
        words = f"{each} GPUs in {'the' if group.num_nodes == 1 else 'each'} node"
        settings = _hardware(changed.cluster, {"cluster.gpus_per_node": each})
        own = replace(profile, group=wide)
        yield ProblemChange("gpus_per_node", words, changed, own, settings=settings)
        for name in launchers_of("any"):
            if name != problem.launcher:
                one = _under(changed, own, name)
                both = {**settings, **one.settings}
                yield replace(one, kind="gpus_per_node", words=f"{words} under {name}", settings=both)
        each *= 2


def groups_alone(problem: Problem, profile: Profile) -> Iterator[ProblemChange]:
    """Yield each of unlike node groups alone: a mesh over all goes at the pace of the slowest GPU.

    Nothing where stages are placed on groups, some of which may stay idle.
    """
    cluster = problem.cluster
    for group in () if problem.places_stages or cluster.is_homogeneous else cluster.distinct_groups:
        changed = _on(problem, ClusterSpec(name=group.gpu.slug, groups=(group,)))
        counted = f"{group.num_nodes}x{group.gpus_per_node}x{group.gpu.slug}"
        named = is_gpu_name(group.gpu.slug)  # options state a type of the catalog on its usual links
        usual = cluster_from_mapping(cluster_of_words(counted)).groups if named else ()
        own = next((one for one in profile.by_group if one.group == group), None)
        yield ProblemChange(
            "group",
            f"{group.num_gpus} × {group.gpu.display_name} alone",
            changed,
            own or default_profile(changed.cluster, changed.priced_as),
            settings={"cluster": {"name": counted}} if usual == (group,) else {},
        )


def more_hardware(problem: Problem, profile: Profile) -> Iterator[ProblemChange]:
    """Try more nodes: the fewest that were found to fit, then more of them.

    Up to 16 times as many, and up to 64 times if none of these fit, where what fits is halved: round
    numbers, which split well. They need not fit from one number on, so that fewer may do as well.
    """
    now, spare = problem.cluster.num_nodes, problem.options.reserve_nodes
    one_each = sum(group.gpus_per_node for group in problem.cluster.groups)  # where a share is rounded up
    most = now * (MAX_GPUS - one_each) // problem.cluster.num_gpus
    near, far = (min(times * now, most) for times in (NODE_FACTORS[-1], _MOST_TIMES_NODES))

    def fits(count: int) -> bool:
        look()
        change = on_nodes(problem, profile, count)
        return have_room(change.problem, change.profile) and not _is_refuted(change.problem, change.profile)

    def fewest(low: int, high: int) -> list[int]:
        """Return the fewest nodes above ``low`` that were found to fit, if any do."""
        rounded = {_round(count, spare) for count in range(low + 1, high + 1)}
        counts = sorted(count for count in rounded if count <= high)
        return counts[bisect_left(counts, True, key=fits) :][:1]

    found = fewest(now, near) or fewest(near, far)
    more = (ceil(now * factor) for factor in NODE_FACTORS)
    for count in (*found, *(one for one in more if max(found, default=now) < one <= near)):
        yield on_nodes(problem, profile, count)


def other_gpus(problem: Problem) -> Iterator[ProblemChange]:
    """Try as many nodes with larger GPUs on a link of the same kind, smallest first."""
    for gpu in larger_gpus(problem.cluster.groups[0]):
        groups = tuple(with_gpu(group, gpu) for group in problem.cluster.groups)
        changed = _on(problem, replace(problem.cluster, groups=groups))
        words, first = f"{gpu.display_name} instead", groups[0]
        settings = {"cluster.groups": gpu.slug, "cluster.gpus_per_node": first.gpus_per_node}
        costs = default_profile(changed.cluster, changed.priced_as)
        yield ProblemChange("gpus", words, changed, costs, settings=_hardware(changed.cluster, settings))


def _on(problem: Problem, cluster: ClusterSpec) -> Problem:
    options: SearchOptions = replace(problem.options, num_nodes=(), num_gpus=())
    return replace(problem, cluster=cluster, options=options)


_MOST, _ENOUGH = 8, 2  # changes; of the kinds where each further one only goes further

Fastest = tuple[Configuration, Prediction] | Literal["unknown"] | None
Judge = Callable[[ProblemChange], Fastest]
Settle = Callable[[ProblemChange, Remedy], Remedy]  # a change with the plan that its command gives


Changes = tuple[Iterator[ProblemChange], int]  # of one kind, and how many with a plan are enough


def changes_of_kinds(
    problem: Problem, profile: Profile, nearest: Shortfall | None, plain: Problem | None = None
) -> list[Changes]:
    """Return the changes of a request on equal nodes: free ones, less work, and hardware by kind.

    ``plain``: as ``done_otherwise``.
    """
    plain = plain or problem
    return [
        (chain(asked_less(problem, profile, nearest), done_otherwise(problem, profile, plain)), _MOST),
        (adapted(plain, profile), _ENOUGH),
        (less_work(problem, profile), _ENOUGH),
        (groups_alone(plain, profile), _ENOUGH),
        (wider_nodes(plain, profile), 1),
        (more_hardware(problem, profile), 1),
        (other_gpus(problem), 1),
    ]


def with_remedies(
    found: Infeasibility, kinds: Sequence[Changes], watch: Watch, judge: Judge, settle: Settle | None = None
) -> Infeasibility:
    """Add verified changes to the reasons, as many as were found before the time was over.

    ``settle``: searches those that are listed as their commands do.
    """
    groups, change_of = [list[Remedy]() for _ in kinds], dict[int, ProblemChange]()
    complete, judged = False, True
    with watch.cut():
        for group, (changes, enough) in zip(groups, kinds, strict=True):
            judged &= _add_fitting(group, changes, enough, judge, change_of)
        complete = True
    missing = [*([] if judged else [_OPEN]), *([] if complete else [CUT])]
    found = replace(found, reasons=(*found.reasons, *missing))
    remedies = _in_list(groups)
    if settle is not None:
        settled = {id(one): replace(one, at_least=True) for one in remedies}
        with watch.cut():
            for one in remedies:
                look()
                settled[id(one)] = settle(change_of[id(one)], one)
        remedies = _in_list([[settled[id(one)] for one in group if id(one) in settled] for group in groups])
    if not remedies:
        return found
    return replace(found, remedies=remedies, changes=tuple(remedy.change for remedy in remedies))


def _in_list(groups: Sequence[Sequence[Remedy]]) -> tuple[Remedy, ...]:
    """Return the changes to list, those of software first."""
    cheap, adapters, work, *hardware = groups
    machines = remedies_in_order([*chain(*hardware)], most=_MOST)
    return (*remedies_in_order(cheap, adapters, work, most=_MOST - len(machines)), *machines)


def with_accepted(problem: Problem, profile: Profile, found: Infeasibility) -> Infeasibility:
    """Return the reasons with the fastest plan of the risk that is offered as the closest, if one is."""
    accepted = (remedy for remedy in found.remedies if remedy.kind == "risk")
    plans = (closest_plan(problem, profile, remedy.config) for remedy in accepted)
    return replace(found, closest=next((plan for plan in plans if plan is not None), found.closest))


def _add_fitting(
    group: list[Remedy], changes: Iterator[ProblemChange], enough: int, judge: Judge,
    change_of: dict[int, ProblemChange],
) -> bool:  # fmt: skip
    """Add changes with a plan until there are ``enough``; return whether all tried were judged."""
    judged, enough_alone = True, False
    for change in changes:
        if len(group) == enough:
            break
        look()
        alike = any(one.kind == change.kind for one in group)
        if (change.once and alike) or (change.last_resort and (enough_alone or alike)):
            continue
        if group and change.settings.get("launcher") == "none":  # some launcher runs another change
            continue
        best = judge(change)
        if best is None or best == "unknown":
            judged &= best is None
            continue
        enough_alone |= not change.last_resort
        group.append(remedy_of(change.problem, change.kind, change.words, *best, settings=change.settings))
        change_of[id(group[-1])] = change
    return judged


def problem_of_remedy(
    problem: Problem, profile: Profile, remedy: Remedy, nearest: Shortfall | None
) -> Problem | None:
    """Return the problem that a remedy of ``problem`` proposes to search; None: it is not known any more.

    Args:
        problem: the infeasible one.
        profile: its costs.
        remedy: one of its answer.
        nearest: of the same answer.
    """
    changes: Iterator[ProblemChange]
    groups = range(len(problem.cluster.distinct_groups))  # a group's words begin with those of all
    if remedy.kind == "nodes":
        nodes = int(remedy.change.partition(" ")[0])
        one = (on_nodes_of(problem, profile, group, nodes) for group in groups)
        changes = chain(one, (on_nodes(problem, profile, nodes),))
    elif remedy.kind == "gpus":
        several = (_larger_gpus(problem, profile, group) for group in groups)
        changes = chain(*several, other_gpus(problem))
    elif remedy.kind in ("batch", "sequence"):
        changes = less_work(problem, profile)
    elif remedy.kind == "group":
        changes = groups_alone(problem, profile)
    elif remedy.kind == "gpus_per_node":
        changes = wider_nodes(problem, profile)
    elif remedy.kind in ("lora", "qlora"):
        changes = adapted(problem, profile)
    elif remedy.kind in ("risk", "power", "limits"):
        changes = asked_less(problem, profile, nearest)
    else:
        changes = done_otherwise(problem, profile)
    alike = (one for one in changes if remedy.change.startswith(one.words))
    found = max(alike, key=lambda one: len(one.words), default=None)  # not a part of another one
    return None if found is None else found.problem


def fastest(problem: Problem, profile: Profile) -> Fastest:
    """Return the fastest plan on at most all GPUs; None: nothing fits on all of them (proved)."""
    best = fastest_on_all(problem, profile)
    if best is None or best == "unknown" or not may_use_fewer(problem):
        return best
    return _fastest_on_fewer(problem, profile, best)


def fastest_on_all(problem: Problem, profile: Profile) -> Fastest:
    """Return the first of ``first_plans``; None: nothing fits (proved)."""
    found = first_plans(problem, profile, 1)
    return found if found == "unknown" else next(iter(found), None)


def _fastest_on_fewer(
    problem: Problem, profile: Profile, best: tuple[Configuration, Prediction]
) -> tuple[Configuration, Prediction]:
    """Return the fastest plan on at most all GPUs, ``best`` unless one on fewer is faster."""

    def score_s() -> float:
        return score_of_s(problem, *best)

    for fewer in waves(problem, profile, score_s, best[0].num_gpus):
        found = _first_within(fewer, profile, score_s())
        best = min([best, *found], key=lambda plan: score_of_s(problem, *plan))
    return best


def _first_within(
    problem: Problem, profile: Profile, limit_s: float
) -> list[tuple[Configuration, Prediction]]:
    """Return a problem's first plan if it is within a score; none where configurations are too many."""
    for wide in (False, True):
        several = len(problem.options.num_gpus) > 1  # usual candidates of which are few together
        if (wide or not several) and is_too_large(problem, wide=wide):
            break
        space = enumerate_space(problem, legal_only=True, wide=wide)
        frontier = _run(problem, profile, space, 1, limit_s)
        if frontier.ranked:
            found = _checked(problem, profile, frontier)
            return [] if found == "unknown" else found
        if frontier.fits or space.every or _is_refuted(problem, profile):  # what fits is slower
            break
    return []


def first_plans(
    problem: Problem, profile: Profile, most: int, *, wide: bool = False
) -> list[tuple[Configuration, Prediction]] | Literal["unknown"]:
    """Return a problem's first plans by closed form, proved and checked, without reasons.

    Of the usual candidates and, where none of them fits, of all (``wide``), as the search itself. Unknown:
    there are too many configurations to search them all.

    Raises:
        OutOfTime: the clock that this runs under was over first.
    """
    if not have_room(problem, profile):
        return []
    if is_too_large(problem, wide=wide):
        return "unknown"
    space = enumerate_space(problem, legal_only=True, wide=wide)
    if not wide and none_fits(problem, profile, space.rows) and _is_refuted(problem, profile):
        return []
    frontier = _run(problem, profile, space, most)
    if not frontier.ranked:
        return [] if space.every else first_plans(problem, profile, most, wide=True)
    return _checked(problem, profile, frontier)


def _run(problem: Problem, profile: Profile, space: Space, most: int, limit_s: float = inf) -> Frontier:
    frontier = Frontier.of(priced_space(problem, profile, space.rows), most, limit_s)
    frontier.run(lambda _: False)
    look()  # a frontier ends in silence where the time is over
    return frontier


def _checked(
    problem: Problem, profile: Profile, frontier: Frontier
) -> list[tuple[Configuration, Prediction]] | Literal["unknown"]:
    found = []
    for ranked in frontier.ranked:
        (config,) = frontier.rows.take([ranked.row]).configurations([ranked.split])
        if any(violations(problem, profile, config)):
            return "unknown"
        found.append(config)
    return list(zip(found, predict_all(problem, profile, found), strict=True))


def _is_refuted(problem: Problem, profile: Profile) -> bool:
    pinned = {"micro_batch_size", "recompute_granularity", "recompute_layers"} & problem.options.named
    limited = problem.options.constraints or problem.options.max_power_kw
    tied = bool(limited) or "num_microbatches" in problem.options.named
    if tied or pinned or problem.options.stage_layers:  # the lightest rows decide nothing
        return False
    pin = {**problem.options.pin, "micro_batch_size": 1}
    light = replace(problem, options=replace(problem.options, pin=pin))
    if is_too_large(light, wide=True):
        return False
    return none_fits(problem, profile, enumerate_space(light, legal_only=True, wide=True).rows)


# --------------------------------------------------------------------------------------------------
# A deadline that no plan meets: how long the fastest takes, and the nearest changes that meet it.
#
# Each is verified: a later deadline by the plan that meets it, more nodes by a search on them.


_TRIES = 8  # numbers of nodes that are searched
_SEARCH_S = 10.0  # for each of them


@dataclass(frozen=True, slots=True, kw_only=True)
class More:
    """Nodes of which there may be more."""

    nodes: int  # that there are
    grow: Callable[[int], ProblemChange]  # the problem on so many, in words


def fastest_run(problem: Problem, profile: Profile, ways: Sequence[Problem] = ()) -> Plan | None:
    """Return the plan of fewest days, whatever the deadline; None if nothing fits.

    With one batch on one number of GPUs that is the plan of the shortest step. More GPUs are interrupted
    more often, and a batch of a shorter step may take more of them, so that each has its own search.
    """
    options = replace(
        problem.options, deadline_days=None, objective="step_time", top_k=1, certify="none", gpus="all"
    )
    runs = list[Plan]()
    for batch in batch_sizes(problem):
        one = with_batch(replace(problem, options=options), batch)
        for nodes in problem.options.num_nodes or (None,):
            counts = () if nodes is None else (nodes,)
            here = replace(one, options=replace(one.options, num_nodes=counts))
            run = _first_run(here, profile, [with_batch(way, batch) for way in ways])
            runs += [] if run is None else [run]
    return min(runs, key=lambda run: run.days, default=None)


def _first_run(problem: Problem, profile: Profile, ways: Sequence[Problem] = ()) -> Plan | None:
    from meshwright.solver.search.search import search  # noqa: PLC0415 - the API prices remedies, it never searches

    plans = search(problem, profile, ways=ways).plans
    if not plans:
        return None
    outlook = outlook_of(problem, profile, plans[0].config, plans[0].prediction)
    return replace(plans[0], outlook=outlook)


def too_late(problem: Problem, soonest: Plan, more: Sequence[More], watch: Watch) -> Infeasibility:
    """Return the reason, and changes that meet the deadline: a later one, more nodes.

    Args:
        problem: the request.
        soonest: its plan of fewest days, which misses the deadline.
        more: nodes of which there may be more.
        watch: its time is that of the search for what meets the deadline.
    """
    asked, days, gpus = problem.options.deadline_days or 0.0, soonest.days, soonest.config.num_gpus
    reason = f"deadline: the fastest plan takes {days:.1f} days on {gpus} GPUs, {asked:g} are allowed"
    later = ceil(days * 10) / 10  # never rounded down
    words, settings = f"a deadline of {later:.1f} days", {"search.deadline_days": later}
    remedies = [
        remedy_of(problem, "deadline", words, soonest.config, soonest.prediction, settings=settings)
    ]
    complete = False
    with watch.cut():
        for one in more:
            look()
            count = _enough_nodes(days, asked, one, problem.options.reserve_nodes)
            if count is not None:
                remedies += _as_asked(one.grow(count))
        complete = True
    changes = tuple(one.change for one in remedies)
    return Infeasibility(
        reasons=(reason, *(() if complete else (CUT,))), changes=changes, remedies=tuple(remedies)
    )


def _enough_nodes(days: float, asked: float, more: More, spare: int) -> int | None:
    """Return the fewest nodes that were found to meet the deadline; ``days``: those of the current ones.

    A number is guessed from the last one as if speed grew with nodes, then what lies between the most that
    miss it and the fewest that meet it is halved; of large numbers round ones are tried, which split well.
    """
    low, high = more.nodes, 0
    for _ in range(_TRIES):
        needed = ceil((low - spare) * days / asked) + spare
        guess = _round((low + high) // 2 if high else max(low + 1, needed), spare)
        look()
        if guess > _MOST_TIMES_NODES * more.nodes or (high and not low < guess < high):
            break
        try:
            change = more.grow(guess)
        except InvalidProblemError:  # more GPUs than a request may have
            break
        options = replace(change.problem.options, time_limit_s=_SEARCH_S)
        found = fastest_run(replace(change.problem, options=options), change.profile)
        if found is not None and found.days <= asked:
            high = guess
        else:
            low, days = guess, found.days if found is not None else days
    return high or None


def _round(nodes: int, spare: int) -> int:
    """Return the next number of four binary digits, then zeros, after spare nodes are put aside."""
    unit = 1 << max((nodes - spare).bit_length() - _DIGITS, 0)
    return -(-(nodes - spare) // unit) * unit + spare


def _as_asked(change: ProblemChange) -> list[Remedy]:
    options = replace(change.problem.options, top_k=1, certify="none", gpus="all", time_limit_s=_SEARCH_S)
    problem = replace(change.problem, options=options)
    run = _first_run(problem, change.profile)
    if run is None or run.days > (problem.options.deadline_days or 0.0):
        return []
    words = f"{change.words} ({run.days:.1f} days)"
    return [remedy_of(problem, change.kind, words, run.config, run.prediction, settings=change.settings)]


# --------------------------------------------------------------------------------------------------
# Nothing fits on a mixed cluster: the nearest changes that do, each with its best plan.
#
# A change is offered only after its own space was searched and its best plan passed the independent
# check.


def placed_infeasibility(problem: Problem, profile: Profile, watch: Watch) -> Infeasibility:
    """Return reasons, minimal conflicts, nearest configuration and verified changes.

    Those that were found before the time was over; the reasons state what was cut.
    """
    lack = nearest_lack(problem, profile, watch)
    limits = limits_of(problem, profile)
    kinds: list[Changes] = [
        (_free_placed(limits, lack), _MOST),
        (iter(()), 0),  # no launcher that places stages trains adapters
        (less_work(problem, profile), _ENOUGH),
        *(
            (changes(problem, profile, group), 1)
            for group in range(len(problem.cluster.distinct_groups))
            for changes in (_more_nodes, _larger_gpus)
        ),
    ]
    found = with_remedies(explained(limits, lack, watch), kinds, watch, _fastest_placed)
    return with_accepted(problem, profile, found)


def _free_placed(limits: ProblemLimits, lack: Lack | None) -> Iterator[ProblemChange]:
    problem, profile = limits.problem, limits.profile
    if lack is not None:
        fleet = NodeGroups.of(problem, profile)
        limit = float(fleet.problems[fleet.names.index(lack.group)].memory_limit_bytes)
        risk = out_of_memory_probability(lack.shortfall.needed_bytes, limit, lack.log_memory_sigma)
        yield from _accepted(problem, profile, risk)
    yield from _asked_less(limits)
    yield from lighter(problem, profile, offload=False)


def _asked_less(limits: ProblemLimits) -> Iterator[ProblemChange]:
    names = [name for name in limits.names if name != limits.memory]
    every, dropped = frozenset(limits.names), list[set[str]]()
    for size in range(1, len(names) + 1):
        for some in combinations(names, size):
            known = any(one <= set(some) for one in dropped)
            if known or not limits.leave_a_plan(every - set(some)):
                continue
            dropped.append(set(some))
            problem = without_limits(limits.problem, some)
            yield ProblemChange("limits", f"without {' and '.join(some)}", problem, limits.profile)


def _more_nodes(problem: Problem, profile: Profile, group: int) -> Iterator[ProblemChange]:
    now = problem.cluster.distinct_groups[group].num_nodes
    for nodes in sorted({ceil(now * factor) for factor in NODE_FACTORS} - {now}):
        yield on_nodes_of(problem, profile, group, nodes)


def on_nodes_of(problem: Problem, profile: Profile, group: int, nodes: int) -> ProblemChange:
    """Return the problem with so many nodes of one of its distinct groups."""
    larger = replace(problem.cluster.distinct_groups[group], num_nodes=nodes)
    words = f"{nodes} nodes of {problem.cluster.group_names[group]}"
    return _with_group(problem, profile, group, larger, ("nodes", words))


def _larger_gpus(problem: Problem, profile: Profile, group: int) -> Iterator[ProblemChange]:
    own, name = problem.cluster.distinct_groups[group], problem.cluster.group_names[group]
    for gpu in larger_gpus(own):
        words = f"{gpu.display_name} instead of {name}"
        yield _with_group(problem, profile, group, with_gpu(own, gpu), ("gpus", words))


def _with_group(
    problem: Problem, profile: Profile, at: int, group: NodeGroup, kind_and_words: tuple[str, str]
) -> ProblemChange:
    groups = (*problem.cluster.distinct_groups[:at], group, *problem.cluster.distinct_groups[at + 1 :])
    cluster = replace(problem.cluster, groups=groups)
    names = cluster.group_names if len(cluster.group_names) == len(groups) else problem.cluster.group_names
    kept = with_group_renamed(problem.options.constraints, problem.cluster.group_names[at], names[at])
    options = replace(problem.options, constraints=kept)
    changed = replace(problem, cluster=cluster, options=options)
    fresh = default_profile(changed.cluster, changed.priced_as)
    if len(fresh.by_group) == len(groups):
        same_gpu = profile.by_group[at].group.gpu == group.gpu
        own = replace(profile.by_group[at], group=group) if same_gpu else fresh.by_group[at]
        fresh = replace(fresh, by_group=(*profile.by_group[:at], own, *profile.by_group[at + 1 :]))
    return ProblemChange(*kind_and_words, changed, fresh)


def quick_search(
    problem: Problem, profile: Profile, limit_s: float, *, deadline_days: float | None = None
) -> Answer:
    """Search for one plan, without a certificate; the request's deadline does not count."""
    from meshwright.solver.search.search import search  # noqa: PLC0415 - the API prices and explains, it never searches

    options = replace(problem.options, top_k=1, certify="none", pareto=False, deadline_days=deadline_days,
                      time_limit_s=limit_s)  # fmt: skip
    return search(replace(problem, options=options), profile)


def _fastest_placed(change: ProblemChange) -> Fastest:
    answer = quick_search(change.problem, change.profile, _SEARCH_S)
    if not answer.plans:
        return None if answer.status == "infeasible" else "unknown"
    return answer.plans[0].config, answer.plans[0].prediction

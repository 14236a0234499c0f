"""Why each node group has its stages, what it waits for, and what one more of its nodes would bring."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from meshwright.profiles.profile import Profile
from meshwright.solver.answer import Plan
from meshwright.solver.clock import Watch
from meshwright.solver.configuration import Configuration
from meshwright.solver.cost.evaluation import evaluate
from meshwright.solver.cost.pipelines import NodeGroups
from meshwright.solver.explain.remedies import on_nodes_of, quick_search
from meshwright.solver.predict import predicted
from meshwright.solver.problem import Problem

SEARCH_S = 5.0  # of each search with one more node, and of the one without that it is compared with


@dataclass(frozen=True, slots=True, kw_only=True)
class OneMoreNode:
    """Best plan that a search with one more node of a group found."""

    step_time_s: float | None  # None: it found none
    saves_s: float  # of the best plan without that node; 0 where none faster was found
    proved: bool  # its closed form is the least, to 1 %


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupUse:
    """What a plan does with the nodes of one group."""

    group: str
    num_nodes: int
    num_gpus_used: int
    stages: int
    layers: int
    compute_s: float  # in a step, of its busiest stage; 0 where the group is idle
    waits_s: float  # the rest of the step
    memory_share: float  # of its fullest stage, of all memory of a GPU
    layer_more_s: float | None  # change of the step with a layer more; None: it has no memory for one
    one_more_node: OneMoreNode | None = None  # None: not searched


def group_uses(problem: Problem, profile: Profile, plan: Plan) -> list[GroupUse]:
    """Return what a plan on unlike node groups does with each group, in the order of the cluster."""
    names, step_s = NodeGroups.of(problem, profile).names, plan.prediction.step_time_s
    places = [
        (stage, one, layers)
        for one in plan.config.classes
        for stage, layers in zip(one.stage_groups, one.stage_layers, strict=True)
    ]
    found = list[GroupUse]()
    for name, group in zip(names, problem.cluster.distinct_groups, strict=True):
        own = [
            (stage, one, layers, seen)
            for (stage, one, layers), seen in zip(places, plan.prediction.stages, strict=True)
            if stage.group == name
        ]
        compute_s = max((seen.compute_s * one.num_microbatches for _, one, _, seen in own), default=0.0)
        found.append(
            GroupUse(
                group=name,
                num_nodes=group.num_nodes,
                num_gpus_used=sum(stage.num_gpus for stage, *_ in own),
                stages=len(own),
                layers=sum(layers for _, _, layers, _ in own),
                compute_s=compute_s,
                waits_s=max(step_s - compute_s, 0.0),
                memory_share=max(
                    (seen.peak_memory_bytes / group.gpu.memory_bytes for *_, seen in own), default=0.0
                ),
                layer_more_s=_layer_more_s(problem, profile, plan, name),
            )
        )
    return found


def _layer_more_s(problem: Problem, profile: Profile, plan: Plan, group: str) -> float | None:
    evaluations = evaluate(problem, profile, list(_with_layer_more(plan.config, group)), with_spread=True)
    fitting = [one for one in evaluations if max(one.short_bytes()) <= 0.0]
    steps = [predicted(problem, one).step_time_s for one in fitting]
    return min(steps) - plan.prediction.step_time_s if steps else None


def _with_layer_more(config: Configuration, group: str) -> Iterator[Configuration]:
    for source, one in enumerate(config.stage_groups):
        for target, other in enumerate(config.stage_groups):
            if one.group == group or other.group != group or config.stage_layers[source] <= 1:
                continue
            moved = [(target == at) - (source == at) for at in range(len(config.stage_layers))]
            layers = tuple(map(sum, zip(config.stage_layers, moved, strict=True)))
            again = config.stage_recompute_layers
            if again and again[source] == config.stage_layers[source]:  # the layer is replayed there, too
                again = tuple(map(sum, zip(again, moved, strict=True)))
            yield replace(config, stage_layers=layers, stage_recompute_layers=again)


def with_one_more_node(
    problem: Problem, profile: Profile, best_s: float, uses: list[GroupUse], watch: Watch
) -> list[GroupUse]:
    """Add to each group what the best plan with one more of its nodes takes.

    Every number is that of a search of its own, ``SEARCH_S`` at most. The cluster itself is searched
    again for as long, so that a longer search does not count as a gain of the node.

    Args:
        problem: the request.
        profile: its prices.
        best_s: the step of the best plan that is known.
        uses: of each group.
        watch: those that have no time left are not searched.
    """
    found = list(uses)
    with watch.cut():
        now_s, _ = _searched(problem, profile)
        now_s = min(best_s, best_s if now_s is None else now_s)
        for at, one in enumerate(uses):
            changed = on_nodes_of(problem, profile, at, one.num_nodes + 1)
            step_s, proved = _searched(changed.problem, changed.profile)
            more = OneMoreNode(
                step_time_s=step_s,
                saves_s=0.0 if step_s is None else max(now_s - step_s, 0.0),
                proved=proved,
            )
            found[at] = replace(one, one_more_node=more)
    return found


def _searched(problem: Problem, profile: Profile) -> tuple[float | None, bool]:
    answer = quick_search(problem, profile, SEARCH_S)
    step_s = answer.plans[0].prediction.step_time_s if answer.plans else None
    return step_s, answer.status == "optimal"

"""The independent verdict on a placed plan: counts of GPUs, layers and bytes by node group, no search."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace

from profiles.cluster import ClusterSpec, NodeGroup
from profiles.profile import PLACING_LAUNCHER, Profile
from solver.columns import Columns
from solver.digest import problem_digest
from solver.mixed.pipeline import alike, placed_pipeline
from solver.mixed.replicas import objective_of, predict_mixed, share_of
from solver.plan import Configuration, Plan, StageGroup, plan_id_of
from solver.problem import Problem
from solver.rules import rules_of, violation_masks

_RELATIVE = 1e-9  # sums of the same numbers in another order
_ROUNDED_BYTES = 16


def placed_violations(problem: Problem, profile: Profile, plan: Plan | Configuration) -> Iterator[str]:
    """Sentences on everything that is wrong with a placed plan; none: it is right."""
    config = plan.config if isinstance(plan, Plan) else plan
    faults = list(_configuration_faults(problem, config))
    yield from faults
    if faults:
        return
    yield from broken_on_groups(problem, config)
    for one in config.replicas or (config,):
        yield from _memory_faults(share_of(problem, one), profile, one)
    if isinstance(plan, Plan):
        yield from _plan_faults(problem, profile, plan)


def _configuration_faults(problem: Problem, config: Configuration) -> Iterator[str]:
    """Everything that needs no prices."""
    classes = config.replicas or (config,)
    if problem.launcher != PLACING_LAUNCHER:
        yield f"{problem.launcher} cannot place stages on node groups"
        return
    if not all(isinstance(one, Configuration) for one in classes):
        yield "replicas must be configurations"
        return
    for one in classes:
        yield from _class_faults(problem, one)
    if config.global_batch_size != problem.workload.global_batch_size:
        yield f"the replicas do not process {problem.workload.global_batch_size} sequences"
    if config.replicas and config.data_parallel_size != sum(c.data_parallel_size for c in classes):
        yield "data_parallel_size is not the number of replicas"


def _class_faults(problem: Problem, config: Configuration) -> Iterator[str]:
    """One pipeline: its stages stand somewhere and hold all layers."""
    stages, names = config.stage_groups, set(problem.cluster.group_names)
    if config.replicas or not len(stages) == config.pipeline_parallel_size == len(config.stage_layers):
        yield f"{len(stages)} stages are placed, not pipeline_parallel_size of them"
    elif not {stage.group for stage in stages} <= names:
        yield f"stages stand on {', '.join(sorted(names))}"
    elif sum(config.stage_layers) != problem.model.num_layers or min(config.stage_layers) < 1:
        yield f"stage_layers does not hold the model's {problem.model.num_layers} layers"
    elif problem.options.stage_layers and config.stage_layers != problem.options.stage_layers:
        yield "stage_layers is pinned to another split"
    elif config.virtual_pipeline_size > 1:
        yield "chunks do not interleave on a mixed cluster"
    else:
        groups = _groups(problem)
        for number, stage in enumerate(stages):
            needed = stage.tensor_parallel_size * config.context_parallel_size * config.data_parallel_size
            nodes = needed / groups[stage.group].gpus_per_node
            if stage.num_gpus != needed or not math.isclose(stage.num_nodes, nodes):
                yield f"stage {number} takes {needed} GPUs, not {stage.num_gpus}"


def _groups(problem: Problem) -> Mapping[str, NodeGroup]:
    """The node groups by name."""
    return dict(zip(problem.cluster.group_names, problem.cluster.distinct_groups, strict=True))


def _gpu_faults(problem: Problem, stages: list[StageGroup]) -> Iterator[str]:
    """No group gives more GPUs than it has."""
    groups, used = _groups(problem), Counter[str]()
    for stage in stages:
        used[stage.group] += stage.num_gpus
    for name, count in used.items():
        if name in groups and count > groups[name].num_gpus:
            yield f"{count} GPUs of {name} are needed, there are {groups[name].num_gpus}"


def broken_on_groups(problem: Problem, config: Configuration) -> Iterator[str]:
    """Rules of the model, the batch and the request that a stage breaks on its own group; GPUs it lacks."""
    classes = config.replicas or (config,)
    yield from _gpu_faults(problem, [stage for one in classes for stage in one.stage_groups])
    for one in classes:
        yield from _rule_faults(share_of(problem, one), one)


def _rule_faults(problem: Problem, config: Configuration) -> Iterator[str]:
    """The same of one class without its GPUs."""
    groups = _groups(problem)
    for stage in dict.fromkeys(config.stage_groups):
        group = groups[stage.group]
        alone = ClusterSpec(name=group.gpu.slug, groups=(group,))
        rules = rules_of(replace(problem, cluster=alone))
        columns = Columns.of([alike(config, stage.tensor_parallel_size)])
        mask = int(violation_masks(rules, columns)[0])
        yield from (f"{stage.group}: {rule.name}" for bit, rule in enumerate(rules) if mask >> bit & 1)


def _memory_faults(problem: Problem, profile: Profile, config: Configuration) -> Iterator[str]:
    """Every stage stays within the budget of its own GPU."""
    pipeline = placed_pipeline(problem, profile, config)
    budgets = pipeline.budgets_bytes()
    for number, (stage, budget) in enumerate(zip(pipeline.stages, budgets, strict=True)):
        used = sum(stage.memory_bytes().values())
        if used > budget + _ROUNDED_BYTES:
            yield f"stage {number} needs {used} bytes, the budget is {budget:.0f}"


def _plan_faults(problem: Problem, profile: Profile, plan: Plan) -> Iterator[str]:
    """Name, rank, objective and prediction."""
    if plan.plan_id != plan_id_of(problem_digest(problem), plan.config):
        yield "plan_id does not name this configuration"
    if plan.rank < 1:
        yield "rank must be at least 1"
    expected = objective_of(problem, profile, plan.config)
    if not math.isclose(plan.objective_s, expected, rel_tol=_RELATIVE):
        yield f"objective_s is {plan.objective_s}, should be {expected}"
    found, right = asdict(plan.prediction), asdict(predict_mixed(problem, profile, plan.config))
    for name, value in right.items():
        exact = not isinstance(value, float)
        if (found[name] != value) if exact else not math.isclose(found[name], value, rel_tol=_RELATIVE):
            yield f"prediction.{name} should be another"

"""The independent verdict on a placed plan: counts of GPUs, layers and bytes by node group, no search."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from profiles.profile import PLACING_LAUNCHER, Profile
from solver.columns import Columns
from solver.digest import problem_digest
from solver.mixed.fleet import Fleet
from solver.mixed.predict import alike, budgets_bytes, placed_pipeline, predict_placed
from solver.plan import Configuration, Plan, plan_id_of
from solver.problem import Problem
from solver.rules import rules_of, violation_masks

_RELATIVE = 1e-9  # sums of the same numbers in another order
_ROUNDED_BYTES = 16


def placed_violations(problem: Problem, profile: Profile, plan: Plan | Configuration) -> Iterator[str]:
    """Sentences on everything that is wrong with a placed plan; none: it is right."""
    config = plan.config if isinstance(plan, Plan) else plan
    faults = list(_placement_faults(problem, config))
    yield from faults
    if faults:
        return
    yield from _rule_faults(Fleet.of(problem, profile), config)
    yield from _memory_faults(problem, profile, config)
    if isinstance(plan, Plan):
        yield from _plan_faults(problem, profile, plan)


def _placement_faults(problem: Problem, config: Configuration) -> Iterator[str]:
    """Stages, layers and GPUs add up, and every group has the GPUs that it is asked for."""
    stages = config.stage_groups
    if problem.launcher != PLACING_LAUNCHER:
        yield f"{problem.launcher} cannot place stages on node groups"
    if not len(stages) == config.pipeline_parallel_size == len(config.stage_layers):
        yield f"{len(stages)} stages are placed, not pipeline_parallel_size of them"
    elif unknown := {stage.group for stage in stages} - set(problem.cluster.group_names):
        yield f"the cluster has no node group {min(unknown)[:60]}"
    else:
        yield from _count_faults(problem, config)
        yield from _gpu_faults(problem, config)


def _count_faults(problem: Problem, config: Configuration) -> Iterator[str]:
    """Layers and sequences are conserved."""
    if sum(config.stage_layers) != problem.model.num_layers or min(config.stage_layers) < 1:
        yield f"stage_layers does not hold the model's {problem.model.num_layers} layers"
    if config.global_batch_size != problem.workload.global_batch_size:
        yield f"the replicas do not process {problem.workload.global_batch_size} sequences"
    if config.virtual_pipeline_size > 1:
        yield "chunks do not interleave on a mixed cluster"


def _gpu_faults(problem: Problem, config: Configuration) -> Iterator[str]:
    """Every stage takes tp * cp * dp GPUs of its group, and no group gives more than it has."""
    groups = dict(zip(problem.cluster.group_names, problem.cluster.distinct_groups, strict=True))
    used = Counter[str]()
    for number, stage in enumerate(config.stage_groups):
        needed = stage.tensor_parallel_size * config.context_parallel_size * config.data_parallel_size
        nodes = needed / groups[stage.group].gpus_per_node
        if stage.num_gpus != needed or not math.isclose(stage.num_nodes, nodes):
            yield f"stage {number} takes {needed} GPUs, not {stage.num_gpus}"
        used[stage.group] += stage.num_gpus
    for name, count in used.items():
        if count > groups[name].num_gpus:
            yield f"{count} GPUs of {name} are needed, there are {groups[name].num_gpus}"


def _rule_faults(fleet: Fleet, config: Configuration) -> Iterator[str]:
    """Every stage keeps the rules of the model, the batch and the request on its own group."""
    for stage in dict.fromkeys(config.stage_groups):
        rules = rules_of(fleet.problems[fleet.names.index(stage.group)])
        columns = Columns.of([alike(config, stage.tensor_parallel_size)])
        mask = int(violation_masks(rules, columns)[0])
        yield from (f"{stage.group}: {rule.name}" for bit, rule in enumerate(rules) if mask >> bit & 1)


def _memory_faults(problem: Problem, profile: Profile, config: Configuration) -> Iterator[str]:
    """Every stage stays within the budget of its own GPU."""
    pipeline = placed_pipeline(problem, profile, config)
    budgets = budgets_bytes(pipeline)
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
    expected = placed_pipeline(problem, profile, plan.config).objective_s
    if not math.isclose(plan.objective_s, expected, rel_tol=_RELATIVE):
        yield f"objective_s is {plan.objective_s}, should be {expected}"
    prediction = predict_placed(problem, profile, plan.config)
    if not math.isclose(plan.prediction.step_time_s, prediction.step_time_s, rel_tol=_RELATIVE):
        yield f"step_time_s is {plan.prediction.step_time_s}, should be {prediction.step_time_s}"
    if plan.prediction.stages != prediction.stages:
        yield "the prediction of the stages should be another"

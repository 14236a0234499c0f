"""Plans carried over to a changed question: replicas follow the GPUs, micro-batches the batch.

Each is checked without the solver; a few milliseconds each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import groupby
from math import gcd
from operator import attrgetter

from meshwright.profiles.errors import PlannerError
from meshwright.service.what_if.changes import WhatIfQuestion
from meshwright.solver.answer import Plan, Prediction
from meshwright.solver.check import violations
from meshwright.solver.configuration import Configuration, joined
from meshwright.solver.predict import predict_all, profile_of_variant
from meshwright.solver.problem import Problem, with_changes


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedConfiguration:
    """A configuration with the parts of the question that it settles."""

    configuration: Configuration
    launcher: str
    workload: tuple[tuple[str, str], ...] = ()  # what is not as asked for, as a plan names it

    def asks(self, question: WhatIfQuestion) -> WhatIfQuestion:
        """Return the question as the candidate settles it."""
        asked = question.problem
        workload = with_changes(asked.workload, dict(self.workload))
        problem = replace(asked, workload=workload).under(self.launcher)
        return WhatIfQuestion(problem=problem, profile=profile_of_variant(problem, question.profile))


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfPlan:
    """The best plan of a changed question."""

    candidate: CarriedConfiguration
    prediction: Prediction

    @property
    def rate(self) -> float:
        """Return tokens per second of all GPUs."""
        return self.prediction.tokens_per_s_per_gpu * self.candidate.configuration.num_gpus


def candidate_of(plan: Plan, problem: Problem) -> CarriedConfiguration:
    """Return a listed plan."""
    return CarriedConfiguration(
        configuration=plan.config,
        launcher=plan.launchers[0] if problem.launcher == "any" and plan.launchers else problem.launcher,
        workload=tuple(sorted(plan.workload.items())),
    )


def carried_over(
    asked: WhatIfQuestion, changed: WhatIfQuestion, candidates: Iterable[CarriedConfiguration]
) -> WhatIfPlan | None:
    """Return the fastest candidate that the changed question allows; None where it allows none."""
    carried = dict[CarriedConfiguration, None]()  # in their order, each once
    for one in candidates:
        config = scaled(one.configuration, asked.problem, changed.problem)
        if config is not None:
            carried[replace(one, configuration=config)] = None
    for found in sorted(_priced(changed, list(carried)), key=lambda one: -one.rate):
        own = found.candidate.asks(changed)
        if not list(violations(own.problem, own.profile, found.candidate.configuration)):
            return found
    return None


def _priced(changed: WhatIfQuestion, candidates: Sequence[CarriedConfiguration]) -> Iterator[WhatIfPlan]:
    """Yield candidates that can be priced; those that settle a question alike in one go."""
    settling = attrgetter("launcher", "workload")
    for _, some in groupby(sorted(candidates, key=settling), key=settling):
        alike = list(some)
        own = alike[0].asks(changed)
        try:
            seen = predict_all(own.problem, own.profile, [one.configuration for one in alike])
        except PlannerError:  # an option that this launcher lacks
            continue
        yield from (
            WhatIfPlan(candidate=one, prediction=prediction)
            for one, prediction in zip(alike, seen, strict=True)
        )


def scaled(config: Configuration, asked: Problem, changed: Problem) -> Configuration | None:
    """Return the plan with as many replicas as the GPUs hold and micro-batches as the batch needs."""
    gpus = Fraction(changed.cluster.num_gpus, config.claimed(asked.cluster.num_gpus))
    batch = Fraction(changed.workload.global_batch_size, asked.workload.global_batch_size)
    classes = [_scaled_class(one, gpus, batch) for one in config.classes]
    whole = [one for one in classes if one is not None]
    return joined(whole) if len(whole) == len(classes) else None


def _scaled_class(config: Configuration, gpus: Fraction, batch: Fraction) -> Configuration | None:
    """Return the same of one class of replicas: all node groups grow alike."""
    replicas = config.data_parallel_size * gpus
    if replicas.denominator > 1:
        return None
    stages = tuple(
        replace(one, num_gpus=round(one.num_gpus * gpus), num_nodes=float(one.num_nodes * gpus))
        for one in config.stage_groups
    )
    found = _with_replicas(config, int(replicas), config.global_batch_size * batch)
    return None if found is None else replace(found, stage_groups=stages)


def _with_replicas(config: Configuration, replicas: int, batch: Fraction) -> Configuration | None:
    """Return a layout of so many replicas that share out the batch; shard sets of all stay such."""
    own = batch / replicas
    if own.denominator > 1:
        return None
    micro_batch = gcd(config.micro_batch_size, int(own))  # smaller where a replica has less to do
    shards, shared = config.zero_shard_size, config.weight_shard_size
    if replicas % shared:
        return None
    if config.zero_stage and shards == config.replicating_ranks:
        shards = replicas * config.context_parallel_size // shared
    return replace(
        config,
        data_parallel_size=replicas,
        micro_batch_size=micro_batch,
        num_microbatches=int(own) // micro_batch,
        zero_shard_size=shards,
    )

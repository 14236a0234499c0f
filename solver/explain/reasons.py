"""Reasons of plans: the waterfall of a step, its largest losses, the limits that bind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.frameworks import FrameworkFacts, with_options
from meshwright.profiles.profile import Profile
from meshwright.profiles.switches import switches
from meshwright.profiles.units import GIB
from meshwright.solver.answer import Limit, Loss, Plan, Why
from meshwright.solver.check import violations_of_all
from meshwright.solver.clock import Watch, look
from meshwright.solver.configuration import Configuration, predicts_alone
from meshwright.solver.cost.evaluation import evaluate
from meshwright.solver.explain.alternatives import (
    Alternative,
    alternatives_of,
    splits_with_ends_alone,
)
from meshwright.solver.explain.waterfall import NO_LOSS, waterfalls
from meshwright.solver.predict import predict_all, predicted
from meshwright.solver.problem import Problem

# --------------------------------------------------------------------------------------------------
# What might lower each loss of a step: changes to try, with the words for those that turn out to.


_WIDE_HEAD = 128  # attention kernels reach their best rate from this head size on
_RECOMPUTATION = ("recompute_granularity", "recompute_layers")
_LIGHT_STATES = "adamw-8bit"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeToTry:
    """One change to try, of the problem (identified by ``name``) or of the configuration."""

    words: str
    problem: Problem
    configuration: Configuration
    name: str = ""


@dataclass(frozen=True, slots=True)
class _AdviceStart:
    term: str
    problem: Problem
    facts: FrameworkFacts
    configuration: Configuration
    moves: Sequence[Alternative]

    def moved(self, words: str, name: str, sign: int) -> list[ChangeToTry]:
        """Return the legal change of a size in one direction that lowers the term most, in closed form."""
        own, keep = self.configuration, () if name in _RECOMPUTATION else _RECOMPUTATION
        batch = self.problem.workload.global_batch_size
        able = [
            one
            for one in self.moves
            if one.is_feasible
            and one.move.configuration.global_batch_size == batch
            and sign * (getattr(one.move.configuration, name) - getattr(own, name)) > 0
            and all(getattr(one.move.configuration, field) == getattr(own, field) for field in keep)
        ]
        if not able:
            return []
        best = min(able, key=lambda one: one.waterfall_s[self.term])
        return [ChangeToTry(words=words, problem=self.problem, configuration=best.move.configuration)]

    def option(self, words: str, name: str, value: str | bool = True) -> list[ChangeToTry]:
        """Change a fact of the software; empty if it is so already, or another fact conflicts."""
        if getattr(self.facts, name) == value:
            return []
        options = {**self.problem.workload.framework_options, name: value}
        try:
            with_options(self.facts, options)
        except InvalidProblemError:
            return []
        return [self._worked(f"{words} ({name})", f"{name}={value}", framework_options=options)]

    def worked(self, words: str, name: str, value: str) -> list[ChangeToTry]:
        """Change precision or optimizer; empty if it is so already."""
        same = getattr(self.problem.workload, name) == value
        return [] if same else [self._worked(words, f"{name}={value}", **{name: value})]

    def set(self, words: str, **values: object) -> list[ChangeToTry]:
        """Change parts of the configuration; empty if they are so already."""
        changed = replace(self.configuration, **values)  # type: ignore[arg-type]
        same = changed == self.configuration
        return [] if same else [ChangeToTry(words=words, problem=self.problem, configuration=changed)]

    def _worked(self, words: str, name: str, **values: object) -> ChangeToTry:
        workload = replace(self.problem.workload, **values)  # type: ignore[arg-type]
        problem = replace(self.problem, workload=workload)
        return ChangeToTry(words=words, problem=problem, configuration=self.configuration, name=name)


def ways_of(
    term: str,
    problem: Problem,
    facts: FrameworkFacts,
    configuration: Configuration,
    moves: Sequence[Alternative],
) -> list[ChangeToTry]:
    """Return changes worth trying against one term of the waterfall; not all of them help."""
    found = _WAYS.get(term)
    return found(_AdviceStart(term, problem, facts, configuration, moves)) if found else []


def _gemm(start: _AdviceStart) -> list[ChangeToTry]:
    able = all("fp8" in group.gpu.peak_flops for group in start.problem.cluster.groups)
    eighth = able and start.facts.precision_recipe == "none"
    return [
        *start.moved("a smaller tp", "tensor_parallel_size", -1),
        *start.moved("a larger micro-batch", "micro_batch_size", 1),
        *(start.worked("fp8", "precision", "fp8") if eighth else ()),
    ]


def _attention(start: _AdviceStart) -> list[ChangeToTry]:
    model = start.problem.model
    ways = [] if start.facts.flash else start.option("flash attention", "attention_kernel", "flash2")
    factor = _WIDE_HEAD // model.head_dim
    apart = model.mla or model.local_attention
    if factor < 2 or apart or model.num_kv_heads % factor or _WIDE_HEAD % model.head_dim:  # noqa: PLR2004
        return ways
    heads, kv_heads = model.num_attention_heads // factor, model.num_kv_heads // factor
    wide = replace(model, head_dim=_WIDE_HEAD, num_attention_heads=heads, num_kv_heads=kv_heads)
    if heads % start.configuration.tensor_parallel_size:
        return ways
    words = f"heads of {_WIDE_HEAD} instead of {model.head_dim}"
    problem = replace(start.problem, model=wide)
    return [*ways, ChangeToTry(words=words, problem=problem, configuration=start.configuration, name=words)]


def _tensor(start: _AdviceStart) -> list[ChangeToTry]:
    able = start.problem.launcher in ("none", *switches()["overlap_tensor"].takers)
    hidden = start.option("collectives under the products", "overlap_tensor") if able else []
    return [
        *start.moved("a smaller tp", "tensor_parallel_size", -1),
        *(hidden if start.configuration.sequence_parallel else ()),
    ]


_WAYS: Mapping[str, Callable[[_AdviceStart], list[ChangeToTry]]] = {
    "gemm_efficiency": _gemm,
    "attention_efficiency": _attention,
    "memory_bound": lambda start: [
        *start.option("fused element-wise operators", "elementwise_fused"),
        *start.option("fused norms", "norm_fused"),
        *start.set("sequence parallelism", sequence_parallel=start.configuration.tensor_parallel_size > 1),
    ],
    "launch_floor": lambda start: [
        *start.option("CUDA graphs", "cuda_graph", "layer"),
        *start.moved("a larger micro-batch", "micro_batch_size", 1),
    ],
    "offload": lambda start: start.set(
        "activations kept on the GPU",
        offload="optimizer" if "optimizer" in start.configuration.offload else "none",
    ),
    "recompute": lambda start: [
        *start.moved("fewer recomputed layers", "recompute_layers", -1),
        *start.set("no recomputation", recompute_granularity="none", recompute_layers=0),
    ],
    "tensor_parallel": _tensor,
    "context_parallel": lambda start: start.moved("a smaller cp", "context_parallel_size", -1),
    "expert_parallel": lambda start: [
        *start.moved("a smaller ep", "expert_parallel_size", -1),
        *start.option("all-to-alls under computing", "overlap_experts"),
    ],
    "pipeline_transfer": lambda start: [
        *start.moved("fewer chunks a rank", "virtual_pipeline_size", -1),
        *start.moved("fewer stages", "pipeline_parallel_size", -1),
        *start.option("transfers under computing", "overlap_transfer"),
    ],
    "imbalance": lambda start: start.moved("fewer stages", "pipeline_parallel_size", -1),
    "bubble": lambda start: [
        *start.moved("a smaller micro-batch", "micro_batch_size", -1),
        *start.moved("a smaller dp", "data_parallel_size", -1),
        *start.moved("more chunks a rank (vpp)", "virtual_pipeline_size", 1),
        *start.moved("fewer stages", "pipeline_parallel_size", -1),
    ],
    "data_parallel": lambda start: [
        *start.option("reduction under the backward pass", "overlap_gradients"),
        *start.option("gradients reduced in bf16", "reduced_gradient_dtype", "bf16"),
    ],
    "optimizer": lambda start: [
        *start.moved("a higher ZeRO stage", "zero_stage", 1),
        *start.worked("states in 8 bits", "optimizer", _LIGHT_STATES),
    ],
    "fixed": lambda start: start.option("CUDA graphs", "cuda_graph", "layer"),
}

Outcome = tuple[float, dict[str, float]]  # the step and its waterfall
_LOSSES = 3
_MOST_LIMITS = 4
_LOWERED = 0.1  # of a term: what a change must take off it
_NOTICEABLE = 1e-3  # of the step: the least cost of a limit that counts as binding
_TOGETHER = 16  # plans explained between two looks at the clock
_TRIED = 2  # changes that are simulated for each loss or limit, the best by the closed form


def reasons_of(
    problem: Problem, profile: Profile, configurations: Sequence[Configuration], steps_s: Sequence[float]
) -> list[Why]:
    """Return the reasons of every configuration under its step time.

    What might be changed is chosen by the closed form; reported effects are simulated.
    """
    if not configurations:
        return []
    facts = with_options(profile.framework, problem.workload.framework_options)
    falls = waterfalls(problem, evaluate(problem, profile, configurations), steps_s)
    others = alternatives_of(problem, profile, configurations)
    starts = [
        _ExplainedConfiguration(problem, facts, one, float(step), fall, tuple(some))
        for one, step, fall, some in zip(configurations, steps_s, falls, others, strict=True)
    ]
    advised = [way for start in starts for way in start.advised()]
    tried = _Tried.of(profile, advised, [way for start in starts for way in start.hindered()])
    return [
        Why(waterfall_s=start.fall_s, losses=tuple(_losses(start, tried)), limits=_limits(start, tried))
        for start in starts
    ]


@dataclass(frozen=True, slots=True)
class _ExplainedConfiguration:
    problem: Problem
    facts: FrameworkFacts
    configuration: Configuration
    step_s: float
    fall_s: dict[str, float]
    others: Sequence[Alternative]

    def terms(self) -> list[str]:
        lost = {name: value for name, value in self.fall_s.items() if name not in NO_LOSS and value > 0.0}
        return sorted(lost, key=lambda name: -lost[name])[:_LOSSES]

    def advice(self, term: str) -> list[ChangeToTry]:
        return ways_of(term, self.problem, self.facts, self.configuration, self.others)

    def lowering(self, term: str) -> list[Alternative]:
        """Return legal changes that lower the term noticeably, and cost the step least."""
        able = [
            one
            for one in self.others
            if one.is_feasible
            and one.start_waterfall_s[term] - one.waterfall_s[term] > _LOWERED * one.start_waterfall_s[term]
        ]
        return sorted(able, key=lambda one: one.step_s)[:_TRIED]

    def stopped(self) -> dict[str, list[Alternative]]:
        """Return the fastest changes that one limit alone stops, by the limit."""
        found = dict[str, list[Alternative]]()
        for one in sorted(self.others, key=lambda one: one.step_s):
            name = _stopped_by(one)
            if name is not None and one.step_s < one.start_s:
                found.setdefault(name.partition(":")[0], []).append(one)
        return {key: some[:_TRIED] for key, some in found.items()}

    def advised(self) -> Iterator[ChangeToTry]:
        for term in self.terms():
            yield from self.advice(term)
            yield from map(self.way, self.lowering(term))

    def hindered(self) -> Iterator[ChangeToTry]:
        for some in self.stopped().values():
            yield from map(self.way, some)

    def way(self, one: Alternative) -> ChangeToTry:
        return ChangeToTry(words=one.move.words, problem=self.problem, configuration=one.move.configuration)


@dataclass(frozen=True, slots=True)
class _Tried:
    """Results of all simulated ways, for the whole global batch."""

    outcomes: Mapping[tuple[str, Configuration], Outcome]
    right: frozenset[tuple[str, Configuration]]  # of those to be advised: past the independent check

    @classmethod
    def of(
        cls, profile: Profile, advised: Sequence[ChangeToTry], hindered: Iterable[ChangeToTry]
    ) -> _Tried:
        problems = dict[str, Problem]()
        wanted = dict[str, dict[Configuration, None]]()
        checked = {(way.name, way.configuration) for way in advised}
        for way in (*advised, *hindered):
            problems[way.name] = way.problem
            wanted.setdefault(way.name, {})[way.configuration] = None
        found, right = dict[tuple[str, Configuration], Outcome](), set[tuple[str, Configuration]]()
        for name, some in wanted.items():
            problem, batch = problems[name], problems[name].workload.global_batch_size
            evaluated = evaluate(problem, profile, list(some), with_spread=True)
            steps = [predicted(problem, one).step_time_s for one in evaluated]
            for one, step, fall in zip(some, steps, waterfalls(problem, evaluated, steps), strict=True):
                found[name, one] = (step * batch / one.global_batch_size, fall)
            asked = [one for one in some if (name, one) in checked]
            faults = violations_of_all(problem, profile, asked)
            right |= {(name, one) for one, wrong in zip(asked, faults, strict=True) if not wrong}
        return cls(found, frozenset(right))

    def is_right(self, way: ChangeToTry) -> bool:
        return (way.name, way.configuration) in self.right

    def step_s(self, way: ChangeToTry) -> float:
        return self.outcomes[way.name, way.configuration][0]

    def saved_s(self, way: ChangeToTry, start: _ExplainedConfiguration, term: str) -> float:
        return start.fall_s[term] - self.outcomes[way.name, way.configuration][1][term]


def with_reasons(
    problem: Problem, profile: Profile, plans: Sequence[Plan], watch: Watch
) -> tuple[Plan, ...]:
    """Add reasons to plans, the first of them as far as the time of ``watch`` goes."""
    found = list[Plan]()
    with watch.cut():
        for start in range(0, len(plans), _TOGETHER):
            look()
            some = plans[start : start + _TOGETHER]
            steps = [plan.prediction.step_time_s for plan in some]
            whys = reasons_of(problem, profile, [plan.config for plan in some], steps)
            found += [replace(plan, why=why) for plan, why in zip(some, whys, strict=True)]
    return (*found, *plans[len(found) :])


def unsaid(plans: Sequence[Plan], *, odds: bool) -> tuple[str, ...]:
    """Report what time cut from the explanations; ``odds``: whether odds were due."""
    explained, warnings = sum(plan.why is not None for plan in plans), list[str]()
    if explained < len(plans):
        number = f"{len(plans) - explained} of {len(plans)} plans"
        warnings.append(f"{number} could not be explained within the time limit")
    if odds and any(plan.odds is None for plan in plans):
        warnings.append("the time limit left no time to compute the plans' odds")
    return tuple(warnings)


def _losses(start: _ExplainedConfiguration, tried: _Tried) -> Iterator[Loss]:
    for term in start.terms():
        seconds = start.fall_s[term]
        ways = filter(tried.is_right, start.advice(term))
        words = [way.words for way in ways if tried.saved_s(way, start, term) > 0.0]
        loss = Loss(
            term=term,
            seconds=seconds,
            share=seconds / sum(start.fall_s.values()),
            lowered_by=", ".join(dict.fromkeys(words)),
        )
        moves = filter(tried.is_right, map(start.way, start.lowering(term)))
        able = [way for way in moves if tried.saved_s(way, start, term) > _LOWERED * seconds]
        best = min(able, key=tried.step_s, default=None)
        if best is not None:
            change_s = tried.step_s(best) - start.step_s
            saved_s = tried.saved_s(best, start, term)
            loss = replace(loss, change=best.words, saves_s=saved_s, step_change_s=change_s)
        yield loss


def _limits(start: _ExplainedConfiguration, tried: _Tried) -> tuple[Limit, ...]:
    binding = []
    for some in start.stopped().values():
        one = min(some, key=lambda one: tried.step_s(start.way(one)))
        gain_s = start.step_s - tried.step_s(start.way(one))
        if gain_s >= _NOTICEABLE * start.step_s:
            binding.append(Limit(name=_stopped_by(one) or "", change=one.move.words, gain_s=gain_s))
    return tuple(sorted(binding, key=lambda limit: -limit.gain_s)[:_MOST_LIMITS])


def _stopped_by(one: Alternative) -> str | None:
    if one.short_bytes and not one.broken:
        stage, short = one.heaviest_stage, one.short_bytes / GIB
        where = f"{one.largest_term} of stage {stage}{one.place}"
        return f"memory: {where}, {short:.1f} GiB over the usable memory"
    return one.broken[0] if len(one.broken) == 1 and not one.short_bytes else None


# --------------------------------------------------------------------------------------------------
# What stages without layers would be worth, where a request leaves them closed.


WORTH_SAYING = 0.02  # of what is minimised: a smaller gain is not reported
_FIRST = 3  # plans with layouts that are tried


def first_layouts(plans: Sequence[Plan]) -> list[Configuration]:
    """Return the first plans' layouts with as many GPUs and sequences a step as the very first."""
    alike = (plans[0].config.num_gpus, plans[0].config.global_batch_size)
    some = (plan.config for plan in plans[:_FIRST])
    return [one for one in some if (one.num_gpus, one.global_batch_size) == alike]


def stages_left_closed(opened: Problem, profile: Profile, plans: Sequence[Plan]) -> tuple[str, ...]:
    """Report that the first plans are faster with an end of the model on a stage of its own.

    ``opened`` is the problem in which it may; tried are even splits of what is left, so that a search of
    them finds at least as good a plan. Empty: nothing noticeable is found.
    """
    first = plans[0]
    tried = [
        replace(one, stage_layers=split)
        for one in first_layouts(plans)
        if not one.stage_recompute_layers and one.recompute_layers in (0, sum(one.stage_layers))
        for split in splits_with_ends_alone(opened, one)
    ]
    if not tried:
        return ()
    steps = [found.step_time_s for found in predict_all(opened, profile, tried)]
    limit_s = first.prediction.step_time_s * (1.0 - WORTH_SAYING)
    faster = sorted((step, at) for at, step in enumerate(steps) if step < limit_s)
    faults = violations_of_all(opened, profile, [tried[at] for _, at in faster])
    for (step_s, at), found in zip(faster, faults, strict=True):
        if not found:
            split = tried[at].stage_layers
            ends = {
                "the embedding": split[0] == 0,
                "the prediction layers": predicts_alone(split),
                "the head": split[-1] == 0,
            }
            names = " and ".join(name for name, alone in ends.items() if alone)
            closed = "stages without layers are not searched (search.allow: standalone_stages)"
            steps_s = f"{step_s:.3g} s instead of {first.prediction.step_time_s:.3g} s"
            return (f"{closed}; with one for {names} a layout of these meshes takes {steps_s}",)
    return ()

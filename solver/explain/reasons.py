"""Reasons of plans: the waterfall of a step, its largest losses, the limits that bind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.figures import gib
from meshwright.profiles.frameworks import FrameworkFacts, with_options
from meshwright.profiles.profile import Profile
from meshwright.profiles.switches import switches
from meshwright.solver.answer import Limit, Loss, Plan, Why
from meshwright.solver.check import violations_of_all
from meshwright.solver.clock import Watch, look
from meshwright.solver.configuration import Configuration
from meshwright.solver.cost.evaluation import evaluate
from meshwright.solver.explain.alternatives import Alternative, alternatives_of
from meshwright.solver.explain.waterfall import NO_LOSS, waterfalls
from meshwright.solver.problem import Problem

# --------------------------------------------------------------------------------------------------
# What might lower each loss of a step: changes to try, with the words for those that turn out to.


_WIDE_HEAD = 128  # attention kernels reach their best rate from this head size on
_RECOMPUTATION = ("recompute_granularity", "recompute_layers")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeToTry:
    """One change to try, of the problem (identified by ``name``) or of the configuration."""

    words: str
    problem: Problem
    configuration: Configuration
    name: str = ""

    @classmethod
    def of(cls, problem: Problem, judged: Alternative) -> ChangeToTry:
        """Return the change that a judged move makes."""
        return cls(words=judged.words, problem=problem, configuration=judged.configuration)


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
            and one.configuration.global_batch_size == batch
            and sign * (getattr(one.configuration, name) - getattr(own, name)) > 0
            and all(getattr(one.configuration, field) == getattr(own, field) for field in keep)
        ]
        if not able:
            return []
        best = min(able, key=lambda one: one.waterfall_s[self.term])
        return [ChangeToTry(words=words, problem=self.problem, configuration=best.configuration)]

    def option(self, words: str, name: str, value: str | bool = True) -> list[ChangeToTry]:
        """Change a fact of the software; empty if it is so already, or another fact conflicts."""
        if getattr(self.facts, name) == value:
            return []
        options = {**self.problem.workload.framework_options, name: value}
        try:
            with_options(self.facts, options)
        except InvalidProblemError:
            return []
        return self.worked(f"{words} ({name})", f"{name}={value}", framework_options=options)

    def worked(self, words: str, name: str, **values: object) -> list[ChangeToTry]:
        """Change parts of the workload; empty if they are so already."""
        workload = replace(self.problem.workload, **values)  # type: ignore[arg-type]
        if workload == self.problem.workload:
            return []
        problem = replace(self.problem, workload=workload)
        return [ChangeToTry(words=words, problem=problem, configuration=self.configuration, name=name)]

    def set(self, words: str, **values: object) -> list[ChangeToTry]:
        """Change parts of the configuration; empty if they are so already."""
        changed = replace(self.configuration, **values)  # type: ignore[arg-type]
        same = changed == self.configuration
        return [] if same else [ChangeToTry(words=words, problem=self.problem, configuration=changed)]


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
        *(start.worked("fp8", "precision=fp8", precision="fp8") if eighth else ()),
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
    hidden = start.option("collectives overlapped with matrix products", "overlap_tensor") if able else []
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
        *start.option("all-to-alls overlapped with compute", "overlap_experts"),
    ],
    "pipeline_transfer": lambda start: [
        *start.moved("fewer chunks per rank", "virtual_pipeline_size", -1),
        *start.moved("fewer stages", "pipeline_parallel_size", -1),
        *start.option("transfers overlapped with compute", "overlap_transfer"),
    ],
    "imbalance": lambda start: start.moved("fewer stages", "pipeline_parallel_size", -1),
    "bubble": lambda start: [
        *start.moved("a smaller micro-batch", "micro_batch_size", -1),
        *start.moved("a smaller dp", "data_parallel_size", -1),
        *start.moved("more chunks per rank (vpp)", "virtual_pipeline_size", 1),
        *start.moved("fewer stages", "pipeline_parallel_size", -1),
    ],
    "data_parallel": lambda start: [
        *start.option("gradient reduction overlapped with the backward pass", "overlap_gradients"),
        *start.option("gradients reduced in bf16", "reduced_gradient_dtype", "bf16"),
    ],
    "optimizer": lambda start: [
        *start.moved("a higher ZeRO stage", "zero_stage", 1),
        *start.worked("8-bit optimizer states", "optimizer=adamw-8bit", optimizer="adamw-8bit"),
    ],
    "fixed": lambda start: start.option("CUDA graphs", "cuda_graph", "layer"),
}

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

    What might be changed is chosen by the closed form; reported seconds are simulated.
    """
    if not configurations:
        return []
    facts = with_options(profile.framework, problem.workload.framework_options)
    falls = waterfalls(problem, evaluate(problem, profile, configurations), steps_s)
    others = alternatives_of(problem, profile, configurations)
    starts = [
        _explained(problem, facts, one, (float(step), fall), some)
        for one, step, fall, some in zip(configurations, steps_s, falls, others, strict=True)
    ]
    advised = [way for start in starts for ways in start.ways.values() for way in chain(*ways)]
    hindered = [way for start in starts for some in start.stopped.values() for _, way in some]
    of_bubbles = [way for start in starts for way in start.ways.get("bubble", ([],))[0]]
    moves = [way for start in starts for _, some in start.ways.values() for way in some]
    tried = _outcomes(profile, advised, hindered, timed=[*moves, *hindered, *of_bubbles])
    return [
        Why(waterfall_s=start.fall_s, losses=tuple(_losses(start, tried)), limits=_limits(start, tried))
        for start in starts
    ]


@dataclass(frozen=True, slots=True)
class _Explained:
    """A step with the changes that are tried against its largest losses and its limits."""

    step_s: float
    fall_s: dict[str, float]
    # by loss: advice, and moves that lower it
    ways: Mapping[str, tuple[list[ChangeToTry], list[ChangeToTry]]]
    # by limit: the fastest changes that it alone stops
    stopped: Mapping[str, list[tuple[str, ChangeToTry]]]


def _explained(
    problem: Problem,
    facts: FrameworkFacts,
    configuration: Configuration,
    step: tuple[float, dict[str, float]],
    others: Sequence[Alternative],
) -> _Explained:
    step_s, fall_s = step
    fastest = sorted(others, key=lambda one: one.step_s)
    falling = sorted(fall_s, key=lambda name: -fall_s[name])
    losses = [name for name in falling if name not in NO_LOSS and fall_s[name] > 0.0]
    ways = dict[str, tuple[list[ChangeToTry], list[ChangeToTry]]]()
    for term in losses[:_LOSSES]:
        lowering = [
            one
            for one in fastest
            if one.is_feasible
            and one.start_waterfall_s[term] - one.waterfall_s[term] > _LOWERED * one.start_waterfall_s[term]
        ]
        advice = ways_of(term, problem, facts, configuration, others)
        ways[term] = (advice, [ChangeToTry.of(problem, one) for one in lowering[:_TRIED]])
    stopped = dict[str, list[tuple[str, ChangeToTry]]]()
    for one in fastest:
        if one.short_bytes and not one.broken:
            where = f"{one.largest_term} of stage {one.heaviest_stage}{one.place}"
            name = f"memory: {where}, {gib(one.short_bytes)} GiB over the usable memory"
        else:
            name = one.broken[0] if len(one.broken) == 1 and not one.short_bytes else ""
        if name and one.step_s < one.start_s:
            some = stopped.setdefault(name.partition(":")[0], [])
            if len(some) < _TRIED:
                some.append((name, ChangeToTry.of(problem, one)))
    return _Explained(step_s, fall_s, ways, stopped)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """One change that was tried."""

    step_s: float  # for the whole global batch; the closed form where it is not simulated
    fall_s: dict[str, float]
    is_right: bool  # it was to be advised, and the independent check finds nothing wrong


_Outcomes = Mapping[tuple[str, Configuration], _Outcome]  # by ``ChangeToTry.name`` and its configuration


def _outcomes(
    profile: Profile,
    advised: Sequence[ChangeToTry],
    hindered: Sequence[ChangeToTry],
    timed: Sequence[ChangeToTry],
) -> _Outcomes:
    """Try changes: check those to be advised, and simulate those of which a bubble or a step is read."""
    problems, wanted = dict[str, Problem](), dict[str, dict[Configuration, None]]()
    checked, simulated = ({(way.name, way.configuration) for way in some} for some in (advised, timed))
    for way in (*advised, *hindered):
        problems[way.name] = way.problem
        wanted.setdefault(way.name, {})[way.configuration] = None
    found = dict[tuple[str, Configuration], _Outcome]()
    for name, some in wanted.items():
        problem, batch = problems[name], problems[name].workload.global_batch_size
        evaluated = evaluate(problem, profile, list(some))
        steps = [one.step_s() if (name, one.config) in simulated else one.objective_s for one in evaluated]
        falls = waterfalls(problem, evaluated, steps)
        asked = [one for one in some if (name, one) in checked]
        faults = violations_of_all(problem, profile, asked)
        right = {one for one, wrong in zip(asked, faults, strict=True) if not wrong}
        for one, step, fall in zip(some, steps, falls, strict=True):
            found[name, one] = _Outcome(step * batch / one.global_batch_size, fall, one in right)
    return found


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


def unsaid(plans: Sequence[Plan], watch: Watch, *, odds: bool) -> tuple[str, ...]:
    """Report what the end of the time cut from the explanations; ``odds``: whether odds were due."""
    explained, warnings = sum(plan.why is not None for plan in plans), list[str]()
    if explained < len(plans):
        number = f"{len(plans) - explained} of {len(plans)} plans"
        warnings.append(f"{watch.ended_by}: {number} have no explanation")
    if odds and any(plan.odds is None for plan in plans):
        warnings.append(f"{watch.ended_by}: no plan's chance of being fastest was computed")
    return tuple(warnings)


def _losses(start: _Explained, tried: _Outcomes) -> Iterator[Loss]:
    for term, ways in start.ways.items():
        seconds = start.fall_s[term]
        advice, moves = ([(way, tried[way.name, way.configuration]) for way in some] for some in ways)
        words = [way.words for way, now in advice if now.is_right and seconds - now.fall_s[term] > 0.0]
        loss = Loss(
            term=term,
            seconds=seconds,
            share=seconds / sum(start.fall_s.values()),
            lowered_by=", ".join(dict.fromkeys(words)),
        )
        lower = [
            (way, now)
            for way, now in moves
            if now.is_right and seconds - now.fall_s[term] > _LOWERED * seconds
        ]
        if lower:
            way, now = min(lower, key=lambda one: one[1].step_s)
            change_s, saved_s = now.step_s - start.step_s, seconds - now.fall_s[term]
            loss = replace(loss, change=way.words, saves_s=saved_s, step_change_s=change_s)
        yield loss


def _limits(start: _Explained, tried: _Outcomes) -> tuple[Limit, ...]:
    """Return the limits that one change alone would lift, and what it would gain, largest gain first."""
    binding = []
    for some in start.stopped.values():
        gains = [
            (start.step_s - tried[way.name, way.configuration].step_s, name, way) for name, way in some
        ]
        gain_s, name, way = max(gains, key=lambda gain: gain[0])
        if gain_s >= _NOTICEABLE * start.step_s:
            binding.append(Limit(name=name, change=way.words, gain_s=gain_s))
    return tuple(sorted(binding, key=lambda limit: -limit.gain_s)[:_MOST_LIMITS])

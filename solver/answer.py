"""Answers: one configuration, its prediction, ranked plans, and the certificate of the search."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import Any, Literal

from meshwright.profiles.expected_errors import Kind, expected_errors
from meshwright.profiles.figures import gib
from meshwright.profiles.profile import Profile
from meshwright.solver.configuration import (
    Configuration,
    mesh_of,
    record_from_json,
)
from meshwright.solver.problem import Problem, with_changes

# --------------------------------------------------------------------------------------------------
# Explanation of a plan: where its time goes, which limits keep it from going faster, how sure its rank is.
#
# Plain records; ``meshwright.solver.explain.reasons`` fills them, answers carry them.


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Time between the ideal step and the real one that has one cause."""

    term: str  # a key of the waterfall
    seconds: float
    share: float  # of the step
    lowered_by: str  # changes that make it smaller, each simulated; empty: none that was tried does
    change: str | None = None  # the legal single change that lowers it most, if any does
    saves_s: float | None = None  # of this loss, simulated
    step_change_s: float | None = None  # of the whole step with it, simulated; below 0: faster


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Single obstacle between a plan and a faster neighbour."""

    name: str  # of the rule, or memory with its stage and largest term
    change: str  # what would be faster without it
    gain_s: float  # by how much, simulated


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """Reasons of one plan."""

    waterfall_s: Mapping[str, float]  # from the ideal step to the real one; sums to step_time_s
    losses: tuple[Loss, ...]  # the three largest
    limits: tuple[Limit, ...]  # that bind; the costliest first


@dataclass(frozen=True, slots=True, kw_only=True)
class Odds:
    """Remaining doubt about a rank under the cost model's error band, among an answer's plans."""

    best_probability: float  # that this plan is the fastest of them
    regret_p90: float  # 90th percentile of step / fastest step - 1


Status = Literal["optimal", "feasible", "infeasible", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePrediction:
    """Prediction of one pipeline rank of one plan."""

    stage: int
    layers: int
    memory_bytes: Mapping[str, int]  # by term: weights, gradients, optimizer, activations, …
    peak_memory_bytes: int  # sum of the terms
    compute_s: float  # forward and backward of one micro-batch on this rank
    memory_limit_bytes: int | None = None  # of its own GPU, where GPUs differ


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakMemory:
    """The peak of the heaviest stage's rank as tools show it, in bytes, and when it occurs."""

    moment: str  # of the peak, a key of ``moments_bytes``
    allocated_bytes: int  # in tensors: torch.cuda.max_memory_allocated
    reserved_bytes: int  # with pieces that the allocator can't give back: torch.cuda.max_memory_reserved
    device_bytes: int  # with driver, libraries and communicators: nvidia-smi; ``peak_memory_bytes``
    moments_bytes: Mapping[str, int]  # allocated at each moment of a step


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Bytes of host memory on the node that takes most, and when."""

    loading_bytes: int  # of weights, by the ranks that read them before any GPU has them
    readers: int  # those ranks
    training_bytes: int  # of what is offloaded
    saving_bytes: int  # of weights that one rank gathers from all
    limit_bytes: int  # that may be filled

    @property
    def peak_bytes(self) -> int:
        """Return the most that is needed at once."""
        return max(self.loading_bytes, self.training_bytes + self.saving_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Prediction of the cost model for one configuration."""

    step_time_s: float
    step_time_low_s: float  # 80 % interval
    step_time_high_s: float
    tokens_per_s_per_gpu: float
    mfu: float  # model FLOPs / time / dense bf16 peak
    hfu: float  # recomputation counted, whole forward passes
    peak_flops_per_gpu: float
    bubble_fraction: float
    peak_memory_bytes: int  # of the heaviest stage
    memory_limit_bytes: int
    heaviest_stage: int
    out_of_memory_probability: float
    time_breakdown_s: Mapping[str, float]  # sums to step_time_s
    stages: tuple[StagePrediction, ...]
    extrapolated: tuple[str, ...] = ()  # what lies outside the measured range
    memory: PeakMemory | None = None  # None: of an answer of an older release
    host: HostMemory | None = None  # None: it takes none, or as ``memory``


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """Forecast of the whole run under a plan, interruptions counted."""

    num_gpus: int
    goodput: float  # time of the steps / time of the run
    checkpoint_interval_s: float  # that loses least
    gpu_hours_per_token: float
    energy_per_token_j: float | None  # of the GPUs; None where their power is not known
    days: float | None  # for all tokens, where the request counts them
    cost: float | None  # of all GPU hours, where the request prices them
    co2_kg: float | None = None  # of the GPUs' energy in those days, where the request states the grid's


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveClaim:
    """Proved facts about the objective that plans are ranked by."""

    name: str
    unit: str
    value: float | None  # of the first plan
    bound: float | None  # no configuration's is better
    gap: float | None  # between the two, relative; of rates, of their inverse


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOrder:
    """Node of every node rank of a plan, where links between nodes differ."""

    order: tuple[int, ...]  # the node of each rank, by its number in the cluster
    hosts: tuple[str, ...]  # their names; empty: the cluster names none
    listed_step_time_s: float  # in the order in which the cluster lists its nodes
    bound_step_time_s: float  # in no order is this plan's step shorter
    gap: float  # between its step and that bound, relative
    slowest_bytes_per_s: Mapping[str, float]  # link of each kind of group that crosses nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One ranked answer."""

    plan_id: str
    rank: int
    config: Configuration
    prediction: Prediction
    objective_s: float  # the closed-form objective that the search proved minimal
    certified_by: tuple[str, ...] = ()
    outlook: Outlook | None = None  # where the request looks beyond one step
    why: Why | None = None  # its time, its losses, its limits
    odds: Odds | None = None  # of being the fastest of its answer
    workload: Mapping[str, str] = field(default_factory=dict)  # where it differs from the request's
    launchers: tuple[str, ...] = ()  # that can run it, where the request leaves that open
    bound_step_time_s: float | None = None  # no plan that could have this rank steps faster
    gap: float | None = None  # between its objective and the best that its rank could have, relative
    needs: tuple[str, ...] = ()  # packages that a stock installation of its launcher lacks
    ranked: bool = True  # False: faster than the first, but the request does not allow what it needs
    hosts: HostOrder | None = None  # where links between nodes differ
    deciding: str | None = None  # the measurement that decides between it and #1, of robust plans

    @property
    def days(self) -> float:
        """Return the days of the whole run, 0 if they are not counted."""
        return 0.0 if self.outlook is None or self.outlook.days is None else self.outlook.days

    def to_json(self) -> dict[str, Any]:
        """Return the plan as the API shows it."""
        return _shown(asdict(self))


def _shown(plan: dict[str, Any]) -> dict[str, Any]:
    """Leave out what only some requests ask for: the order of hosts, what decides, CO2."""
    for name in ("hosts", "deciding"):
        if plan[name] is None:
            del plan[name]
    _shown_outlook(plan["outlook"])
    return plan


def _shown_outlook(outlook: dict[str, Any] | None) -> None:
    if outlook is not None and outlook["co2_kg"] is None:
        del outlook["co2_kg"]


def ranked_plans(plans: Iterable[Plan]) -> tuple[Plan, ...]:
    """Return the plans that the request allows, without those that are listed behind them."""
    return tuple(plan for plan in plans if plan.ranked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Client's own configuration, listed with the plans."""

    plan_id: str
    config: Configuration
    prediction: Prediction
    outlook: Outlook
    rank: int | None  # among the plans by the objective; None: behind all of them, or it cannot run
    gap_to_best: float | None  # (its objective - the first plan's) / its own; below 0: it is better
    problems: tuple[str, ...]  # rules that it breaks, memory that it lacks


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferentPlans:
    """The best plan of each combination of values of some variables, near the first plan."""

    names: tuple[str, ...]  # variables of which any two of the plans differ in at least one
    within: float  # of the first plan's objective: no plan is worse by more
    plans: tuple[Plan, ...]  # best first; the first is the answer's
    worse: tuple[float, ...]  # by how much each is worse, of the first plan's objective
    complete: bool  # proved: no other combination has a plan within it


@dataclass(frozen=True, slots=True, kw_only=True)
class ParetoPoint:
    """One plan of a front."""

    plan: Plan
    budget_bytes: int  # the plan is the fastest that needs no more memory


@dataclass(frozen=True, slots=True, kw_only=True)
class ParetoFront:
    """Plans of which none is both slower and heavier than another, on more GPUs at that."""

    points: tuple[ParetoPoint, ...]  # fastest first
    complete: bool  # down to the smallest memory that has a plan
    memory_step: float  # the front is known to within this share of memory
    claim: str  # what is proved, in words


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """Nearest configuration to an infeasible request, and what it lacks."""

    config: Configuration
    stage: int
    needed_bytes: int
    limit_bytes: int
    memory_bytes: Mapping[str, int]  # the stage's terms
    lacks_outside: Mapping[str, int] = field(
        default_factory=dict
    )  # bytes for each GPU of "host memory" or "NVMe" beyond what may be filled

    @property
    def lacks_bytes(self) -> int:
        """Return the missing bytes of each GPU and of its share of the host."""
        return max(self.needed_bytes - self.limit_bytes, 0) + sum(self.lacks_outside.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A change of an infeasible problem, with the best plan that it then has."""

    change: str
    config: Configuration
    step_time_s: float
    num_gpus: int
    gpu_s_per_token: float  # what changes are ordered by
    peak_memory_bytes: int
    kind: str = ""  # risk, limits, switch, precision, offload, launcher, batch, nodes, gpus, …
    settings: Mapping[str, Any] = field(default_factory=dict)  # by paths in the request; lists add to it
    at_least: bool = False  # a search may find a better plan: a gain is at least, a step at most this


def remedy_of(
    problem: Problem,
    kind: str,
    change: str,
    config: Configuration,
    prediction: Prediction,
    *,
    settings: Mapping[str, Any] | None = None,
    at_least: bool = False,
) -> Remedy:
    """Return a change to ``problem`` with the best plan of that problem."""
    return Remedy(
        kind=kind,
        change=change,
        config=config,
        step_time_s=prediction.step_time_s,
        num_gpus=config.num_gpus,
        gpu_s_per_token=prediction.step_time_s * config.num_gpus / problem.tokens_of(config),
        peak_memory_bytes=prediction.peak_memory_bytes,
        settings=settings or {},
        at_least=at_least,
    )


def remedies_in_order(*groups: Sequence[Remedy], most: int) -> tuple[Remedy, ...]:
    """Return the cheapest change of each kind, group after group, then others up to ``most`` in all."""
    every = [one for group in groups for one in sorted(group, key=lambda one: one.gpu_s_per_token)]
    firsts = dict[str, Remedy]()
    for one in every:
        firsts.setdefault(one.kind, one)
    others = [one for one in every if firsts[one.kind] is not one]
    return (*firsts.values(), *others[: max(most - len(firsts), 0)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever(Remedy):
    """A change that the user may decide, and that is better by the objective than the first plan."""

    saves: float  # share of the first plan's time per token; of its energy, or nodes, where these are asked
    effect: str = ""  # what it changes; behind a colon: numerics or results. Empty: neither


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What one would run without a search, priced by the same cost model."""

    name: str  # "Megatron-Bridge's recipe", "the usual rule of thumb"
    source: str  # where it is published; of a rule, what the rule is
    config: Configuration
    prediction: Prediction
    speedup: float  # its time for each token / the first plan's, on all GPUs that were asked for
    problems: tuple[str, ...] = ()  # why it cannot run: rules that it breaks, memory that it lacks


@dataclass(frozen=True, slots=True, kw_only=True)
class Infeasibility:
    """Reasons of a proved infeasible answer."""

    reasons: tuple[str, ...]  # sentences: which limit, which stage, how many GiB
    conflicts: tuple[tuple[str, ...], ...] = ()  # minimal sets of limits that cannot hold together
    nearest: Shortfall | None = None
    changes: tuple[str, ...] = ()  # smallest changes that were verified to fit
    remedies: tuple[Remedy, ...] = ()  # the same with their plans, the cheapest of each kind first
    # Nearest to fitting, with a risk that the request does not accept; of a missed deadline, the soonest.
    closest: Plan | None = None
    verdict: str = ""  # the answer in one sentence: what is allowed, and how near the closest plan comes


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedLauncher:
    """A launcher without a plan in the answer to a request for any launcher."""

    launcher: str
    reasons: tuple[str, ...]  # facts of the model or workload that it cannot express, or why nothing fits


# The note of an answer that a longer search would not change: all of the sample was searched.
SAMPLE = {
    "sample": "there are too many configurations to search them all: only a sample was searched, completely"
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFloors:
    """Lower bounds of the scores of a mesh's or layout's configurations, of those that may be ranked.

    Seconds of the objective; keyed by what distinguishes meshes, or layouts.
    """

    known: bool = False  # else there are none, whatever else may be ranked
    meshes: Mapping[tuple[object, ...], float] = field(default_factory=dict)
    layouts: Mapping[tuple[object, ...], float] = field(default_factory=dict)

    def of_ranks(self, plans: int, meshes: int) -> list[float]:
        """Return a lower bound of the k-th score of so many plans, of so many meshes, k from 1.

        At most k - 1 floors are less than the k-th one, so at most as many layouts score less than that.
        Where meshes are fewer than plans, only so many plans are of other layouts; the ranks behind as
        many are bounded by the floors of meshes as well.
        """
        by_mesh, by_layout = sorted(self.meshes.values()), sorted(self.layouts.values())
        if not by_layout:
            return by_mesh[:plans]
        others = plans - meshes if by_mesh else plans
        return [
            max(by_layout[min(at, len(by_layout) - 1)], by_mesh[at - others] if at >= others else 0.0)
            for at in range(plans)
        ]

    def below(self, score_s: float) -> RankFloors:
        """Return the floors of the meshes and layouts that may score less than ``score_s``."""
        meshes, layouts = (
            {key: floor for key, floor in floors.items() if floor < score_s}
            for floors in (self.meshes, self.layouts)
        )
        return replace(self, meshes=meshes, layouts=layouts)


@cache
def version_of(distribution: str) -> str:
    """Return an installed version, "0" if there is none, without importing it; looking it up takes 8 ms."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - loads in 20 ms

    try:
        return version(distribution)
    except PackageNotFoundError:
        return "0"


def versions(profile: Profile) -> dict[str, str]:
    """Return the versions of the software in use; OR-Tools is named without being loaded."""
    return {
        "profile": profile.version,
        "meshwright": version_of("meshwright"),
        "solver": version_of("ortools"),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Ranked plans with their certificate."""

    status: Status
    plans: tuple[Plan, ...]
    certified_by: tuple[str, ...]
    # The next two are of the search that found the first plan, among its numbers of GPUs.
    objective_gap: float | None  # (least closed form known - bound on all) / the former; 0: it is proved
    objective_excess: float | None  # (objective of the first plan - least objective) / the former
    bound_step_time_s: float | None  # no step on the GPUs and sequences of the first plan is shorter
    gap: float | None  # (best step - bound) / best step
    space_size: int  # rows enumerated
    legal: int  # rows that break no rule
    fit: int  # legal rows not refuted by memory so far: top_k and time decide how many are looked at
    explored: int  # rows settled: bounded away, refuted or solved
    counts: Mapping[str, int]  # priced, pruned, solved, certified, …
    elapsed_s: float
    seed: int
    versions: Mapping[str, str]
    warnings: tuple[str, ...] = ()
    infeasible: Infeasibility | None = None
    num_gpus_used: int | None = None
    peak_flops: float | None = None
    notes: Mapping[str, str] = field(default_factory=dict)  # ``profile``; of a sample alone SAMPLE
    objective: ObjectiveClaim | None = None
    baseline: Baseline | None = None  # where the request gives its own configuration
    pareto: ParetoFront | None = None  # where the request asks for it
    different: DifferentPlans | None = None  # where the request asks for it
    # What chose the first plan: CP-SAT, among all rows that bounds leave, or the search alone.
    decided_by: Literal["exact-dp", "cp-sat"] = "exact-dp"
    space: Literal["usual", "every"] = "usual"  # candidates that rows, bound and proof are of
    skipped_launchers: tuple[SkippedLauncher, ...] = ()  # where the request leaves the launcher open
    model: Mapping[str, str | int] | None = None  # its name and exact counts of parameters
    levers: tuple[Lever, ...] = ()  # changes that the user may decide and that train faster, the best first
    reference: Reference | None = None  # what one would run without a search
    floors: RankFloors = field(default_factory=RankFloors, compare=False)  # of ranks' gaps; not shown
    choices: tuple[Any, ...] = field(default=(), compare=False, repr=False)  # until CP-SAT has decided

    @property
    def ranking(self) -> tuple[Plan, ...]:
        """Return the plans that the request allows, best first."""
        return ranked_plans(self.plans)

    @property
    def is_optimal(self) -> bool:
        """Return whether nothing that the answer lists as searched is better by more than OPTIMAL_GAP."""
        gap = self._gap
        return self.status == "optimal" and bool(self.plans) and gap is not None and gap <= OPTIMAL_GAP

    @property
    def certainty(self) -> str:
        """Return how good the first plan is, in the words of ``certainty_words``; why there is none."""
        if self.status == "infeasible" and self.infeasible is not None and self.infeasible.verdict:
            return self.infeasible.verdict
        proved = certainty_words(
            status=self.status,
            found=bool(self.plans),
            gap=self._gap,
            searched=(self.explored, self.space_size),
            objective="step_time" if self.objective is None else self.objective.name,
        )
        return f"{proved} {error_words(self)}" if self.plans else proved

    @property
    def _gap(self) -> float | None:
        """Return the gap of the objective, which is the step time unless it is named."""
        return self.gap if self.objective is None else self.objective.gap

    def to_json(self) -> dict[str, Any]:
        """Return the answer as the command line and the API show it; finite numbers only.

        Its ``status`` and ``certainty`` agree: without a proof to within OPTIMAL_GAP, even a complete
        ranking is ``feasible``.
        """
        shown = asdict(replace(self, floors=RankFloors(), choices=()))
        del shown["floors"], shown["choices"]
        if shown["different"] is None:
            del shown["different"]
        points = [] if shown["pareto"] is None else shown["pareto"]["points"]
        others = shown["different"]["plans"] if "different" in shown else []
        for plan in (*shown["plans"], *others, *(point["plan"] for point in points)):
            _shown(plan)
        if shown["infeasible"] is not None and shown["infeasible"]["closest"] is not None:
            _shown(shown["infeasible"]["closest"])
        if shown["baseline"] is not None:
            _shown_outlook(shown["baseline"]["outlook"])
        if self.status == "optimal" and not self.is_optimal:
            shown["status"] = "feasible"
        return {"certainty": self.certainty, **shown}


# --------------------------------------------------------------------------------------------------
# How sure an answer is, in words.


OPTIMAL_GAP = 0.01 + 1e-9  # relative; rounding counted
OBJECTIVE_NAMES = {
    "tokens_per_s_per_gpu": "tokens per second and GPU",
    "gpu_hours_per_token": "GPU hours per token, including interruptions",
    "energy_per_token": "energy per token",
    "robust": "the 90th-percentile step time",
}


def certainty_words(
    *,
    status: Status,
    found: bool,
    gap: float | None,
    searched: tuple[int, int],
    objective: str = "step_time",
) -> str:
    """Return one sentence on what was searched and what is proved of it.

    Args:
        status: of the answer.
        found: whether it has a plan.
        gap: between the first plan's objective and the proved bound, relative.
        searched: configurations settled, and all of them.
        objective: its name.
    """
    seen, size = map(_counted, searched)
    which = size if searched[0] >= searched[1] else f"{seen} of {size}"
    by = f"by {OBJECTIVE_NAMES[objective]}, " if objective in OBJECTIVE_NAMES else ""
    best_found = f"Best found: {by}among {which} configurations"
    if status == "infeasible":
        return (
            f"Nothing fits: each of {size} configurations breaks a rule or a limit, under our cost model."
        )
    if not found:
        return f"No plan was found in {which} configurations, and nothing is proved."
    if gap is None:
        return f"{best_found}. How far it is from the best possible is unknown."
    if status == "optimal" and gap <= OPTIMAL_GAP:
        words = f"Optimal under our cost model: {by}the best of {size} configurations, proved to within "
        return f"{words}{at_most(gap)}."
    return f"{best_found}, within {at_most(gap)} of the best possible under our cost model."


MEASURED_RUNS = "measured_runs"  # the note that counts the runs that the profile of an answer learnt from
_UNUSUAL = 2.0  # times the usual band
_AFTER = (1, 16)  # measured runs whose error a new cluster is told


@dataclass(frozen=True, slots=True)
class ExpectedError:
    """How far off to expect step times, in whole per cent rounded up."""

    runs: int  # measured runs of this cluster that the profile learnt from
    low: int
    high: int
    after: tuple[int, ...]  # a new cluster's after one measured run and after sixteen; empty: unknown

    @property
    def span(self) -> str:
        """Return ``11 to 21``, or ``up to 21`` where both ends are one figure."""
        return f"{self.low} to {self.high}" if self.low < self.high else f"up to {self.high}"


def expected_error(answer: Answer) -> ExpectedError:
    """Return how far off to expect the step times of an answer with plans.

    It follows from the first plan and the profile, never from how many plans are listed. What it says of
    today is no tighter than the band of the first plan.
    """
    known, seen = expected_errors(), answer.plans[0].prediction
    step_s = seen.step_time_s
    band = 100.0 * max(seen.step_time_high_s / step_s - 1.0, 1.0 - seen.step_time_low_s / step_s)
    runs = int(answer.notes.get(MEASURED_RUNS, 0))
    if runs:
        after = _whole(max(known.after(runs), band))
        return ExpectedError(runs, after, after, ())
    kind = _kind_of_model(answer.model)
    low, high = (_whole(max(one[kind], band)) for one in (known.nothing_shared, known.first_sight))
    measured_alike = band <= _UNUSUAL * known.width  # else no cluster of the figures has such a GPU
    after_runs = tuple(_whole(known.after(count)) for count in _AFTER) if measured_alike else ()
    return ExpectedError(0, low, high, after_runs)


def error_words(answer: Answer) -> str:
    """Return how far off to expect the step times of an answer with plans, in one sentence."""
    error = expected_error(answer)
    if error.runs:
        return f"Calibrated on {_runs(error.runs)} of this cluster: expect {error.span} % off."
    if not error.after:
        return f"New cluster: expect {error.span} % off (measured runs of your own narrow that)."
    one, sixteen = error.after
    after = f"after one measured run {one} %, after sixteen {sixteen} %"
    return f"New cluster: expect {error.span} % off ({after})."


def _kind_of_model(model: Mapping[str, str | int] | None) -> Kind:
    if model is None:
        return "all"
    active, every = (model.get(name) for name in ("num_active_parameters", "num_parameters"))
    return "dense" if active == every else "experts"


def _runs(number: int) -> str:
    return "one measured run" if number == 1 else f"{number} measured runs"


def _whole(percent: float) -> int:
    """Return per cent rounded up, so that it still bounds."""
    return math.ceil(percent - 1e-6)


def _counted(number: int) -> str:
    return f"{number:,}".replace(",", " ")


def words_of_none(problem: Problem, answer: Answer) -> str:
    """Return an infeasible answer in one sentence.

    That no plan exists is said only where no configuration is legal, so that none could run at any risk.

    Args:
        problem: the request.
        answer: its answer.
    """
    size, closest = _counted(answer.space_size), answer.infeasible and answer.infeasible.closest
    if not closest:
        return _words_without_closest(problem, answer)
    seen, allowed = closest.prediction, problem.options.max_out_of_memory_probability
    risk, deadline = seen.out_of_memory_probability, problem.options.deadline_days
    if accepts_risk(problem, closest.prediction) and deadline is not None:
        late = f"the fastest of {size} configurations takes {closest.days:.1f} days"
        return f"No plan meets the deadline of {deadline:g} days; {late}, under our cost model."
    if risk <= _AS_LIKELY_AS_NOT:
        within = f"{_NOTHING} within an out-of-memory risk of {allowed * 100:g} %"
        return f"{within}; the closest of {size} configurations fits with {_chance(1.0 - risk)}."
    needed, limit = (
        gib(value).removesuffix(".0") for value in (seen.peak_memory_bytes, seen.memory_limit_bytes)
    )
    sizes = f"{needed} of {limit} GiB"
    short = f"even the closest of {size} configurations needs {sizes}"
    return f"{_NOTHING}; {short}, an out-of-memory risk of {_chance(risk)}."


def _words_without_closest(problem: Problem, answer: Answer) -> str:
    size = _counted(answer.space_size)
    if answer.legal:
        return f"{_NOTHING}: each of {size} configurations breaks a rule or a limit, under our cost model."
    named = problem.launcher not in ("any", "none")
    none = f"{problem.launcher} has no plan" if named else "No plan exists"
    rule = "one of its rules" if named else "a rule"
    return f"{none}: each of {size} configurations breaks {rule} or a limit that you set."


_NOTHING = "Nothing fits"
_AS_LIKELY_AS_NOT = 0.5
_STATED_RISK = 1.0 + 1e-6  # a risk that is larger only by rounding is accepted


def accepts_risk(problem: Problem, prediction: Prediction) -> bool:
    """Return whether a request accepts the risk with which a plan runs out of memory."""
    accepted = problem.options.max_out_of_memory_probability
    return prediction.out_of_memory_probability <= accepted * _STATED_RISK


def status_of_all(found: Sequence[Status]) -> Status:
    """Return the status of several searches together: proved where each of them is."""
    if all(status == "infeasible" for status in found):
        return "infeasible"
    proved = all(status in ("optimal", "infeasible") for status in found)
    some = any(status in ("optimal", "feasible") for status in found)
    return "optimal" if proved else "feasible" if some else "unknown"


def _chance(share: float) -> str:
    """Return ``97 %``, with a digit more where that is ``98.9 %``; never 100 % of what is uncertain."""
    percent = 100.0 * share
    if percent > _ALL_BUT_SURE:
        return f"over {_ALL_BUT_SURE:g} %"
    return f"{percent:.0f} %" if percent < _NEARLY_ALL else f"{percent:.1f} %"


_NEARLY_ALL, _ALL_BUT_SURE = 97.5, 99.9  # per cent


def at_most(share: float) -> str:
    """Return ``3.1 %``: rounded up, so that it still bounds."""
    return f"{max(math.ceil(share * 1e3 - 1e-6), 1) / 10:.1f} %"


def with_gaps(
    plans: Sequence[Plan],
    scores: Sequence[float],
    floors: RankFloors,
    least: float | None,
    *,
    of_steps: bool,
) -> tuple[Plan, ...]:
    """Add to ranked plans the gap of each rank, and the bound on its step.

    Args:
        plans: best first.
        scores: what each is ranked by, s.
        floors: what no mesh, or layout, scores less than.
        least: what no configuration scores less than, s; None: not known.
        of_steps: whether scores are step times.
    """
    asked = ("precision", "optimizer")  # keep plans of one mesh apart
    meshes = {(mesh_of(plan.config), *map(plan.workload.get, asked)) for plan in plans}
    found, ranks = [], floors.of_ranks(len(plans), len(meshes))
    for at, (plan, score) in enumerate(zip(plans, scores, strict=True)):
        known = [floor for floor in (*(ranks[at : at + 1] if at else ()), least) if floor is not None]
        bound = min(max(known), score) if known else None
        gap = None if bound is None else (score - bound) / score
        found.append(replace(plan, gap=gap, bound_step_time_s=bound if of_steps else None))
    return tuple(found)


def plan_from_json(raw: Mapping[str, Any]) -> Plan:
    """Return the Plan that ``Plan.to_json`` wrote."""
    return record_from_json(Plan, raw)


def settled_problem(plan: Plan, problem: Problem) -> Problem:
    """Return the problem as the plan settled it: batch, workload, launcher, order of nodes."""
    workload = with_changes(problem.workload, plan.workload)
    if problem.options.batch_sizes:
        workload = replace(workload, global_batch_size=plan.config.global_batch_size)
    launcher = plan.launchers[0] if problem.launcher == "any" and plan.launchers else problem.launcher
    cluster = problem.cluster if plan.hosts is None else problem.cluster.in_order(plan.hosts.order)
    return replace(problem, workload=workload, cluster=cluster).under(launcher)

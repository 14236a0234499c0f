"""The search over edited texts: every set of edits is read back, and what is read back is priced.

Level by level: all single moves first, then the best sets with each of the best moves. What a set would
read as is foreseen from its parts, so that only the sets which look best are read back. A set counts where
the files that it makes read as the same model and training on the same GPUs, with nothing more unread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from itertools import product, takewhile
from typing import Any

from meshwright.launchers.editing.edits import TextEdit, Texts
from meshwright.launchers.reading.base import Overrides, Source
from meshwright.launchers.reading.commands import (
    commands_beside,
    program_of,
    readable_script,
    world_of,
)
from meshwright.launchers.reading.preferences import trls_kind
from meshwright.launchers.reading.registry import launcher_of
from meshwright.launchers.table import over_trl
from meshwright.profiles.errors import PlannerError
from meshwright.profiles.profile import Profile
from meshwright.service.fixing.moves import OF_SWIFT, SAME_RESULTS, Arguments, Move
from meshwright.service.requests.launch_files import Own
from meshwright.solver.configuration import Configuration
from meshwright.solver.cost.evaluation import evaluate
from meshwright.solver.explain.alternatives import RuleJudge
from meshwright.solver.problem import Problem, ShouldStop

Read = Callable[[Source], Own]
_FASTEST, _SMALLEST = 8, 4  # sets of a level that the next one starts from: by time, and by memory
_MOVES_BY_TIME, _MOVES_BY_MEMORY = 20, 8  # that later levels try
_WAYS = 4  # to state a number of micro-batches that are tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A set of edits, read back and priced."""

    moves: tuple[Move, ...]
    texts: Mapping[str, str]
    own: Own
    step_s: float = 0.0  # closed form
    short_bytes: float = 0.0  # beyond the memory budget; below 0: what is left of it
    broken: tuple[str, ...] = ()  # rules that the run before does not break

    @property
    def names(self) -> frozenset[str]:
        """Return the arguments that it changes."""
        return frozenset().union(*(move.names for move in self.moves))

    @property
    def number_of_changes(self) -> int:
        """Return the number of arguments that it changes."""
        return sum(len(move.changes) for move in self.moves)

    @property
    def is_feasible(self) -> bool:
        """Return whether it fits and breaks no rule that was kept before."""
        return not self.broken and self.short_bytes <= 0


State = tuple[Configuration, tuple[tuple[str, object], ...]]


def state_of(own: Own) -> State:
    """Return all that edits may change of a run."""
    return own.configuration, tuple(sorted(_of_workload(own).items()))


_BASE = "base_precision"


def _of_workload(own: Own) -> dict[str, object]:
    """Return what edits may change of a workload: its options, and what frozen weights are loaded in."""
    return {**own.problem.workload.framework_options, _BASE: own.problem.workload.base_precision}


class Bench:
    """Launch files whose edited texts are read and priced."""

    def __init__(
        self,
        source: Source,
        texts: Texts,
        *,
        own: Own,
        read: Read,
        profile: Profile,
        overrides: Overrides,
        base: str | None = None,
    ) -> None:
        """Take launch files; ``base``: what frozen weights may be loaded in instead (``LOADED``)."""
        self.source, self.texts, self.own, self.base = source, texts, own, base
        self._overrides = replace(overrides, num_gpus=own.configuration.num_gpus)
        self._started = _started(source, self._overrides)
        self.launchers = _launchers(source, texts, own)
        swift = base is not None and _starts_swift(source)
        further = [*["ms-swift"] * swift, "trl"] if base else []  # these have the arguments for it
        self.arguments = Arguments(
            [*self.launchers, *further],
            texts,
            base=base,
            takes_base=_starts_trl(source) or swift,
            beside=OF_SWIFT if swift else None,
        )
        self._read, self._profile = read, profile
        self._broken: tuple[str, ...] | None = None

    def attempt(self, moves: Sequence[Move]) -> Trial | None:
        """Return some moves together, read back; None where they don't read as the same training."""
        edits = [edit for move in moves for edit in move.edits]
        for follow in self._followers(moves):
            found = self._reread([*edits, *(edit for move in follow for edit in move.edits)])
            if found is not None and _is_same_training(self.own, found[1], self.base):
                changes = tuple(change for move in follow for change in move.changes)
                more = tuple(edit for move in follow for edit in move.edits)
                last = moves[-1]
                joined = replace(last, changes=(*last.changes, *changes), edits=(*last.edits, *more))
                return Trial(moves=(*moves[:-1], joined), texts=found[0], own=found[1])
        return None

    def _followers(self, moves: Sequence[Move]) -> Iterator[tuple[Move, ...]]:
        """Yield what may have to follow: nothing, the data-parallel ranks, the micro-batches, both."""
        yield ()
        ranks, micro = Fraction(1), Fraction(self.own.configuration.num_microbatches)
        for move in moves:
            ranks *= move.ranks
            micro *= move.micro
        replicas = list(self.arguments.replicas(ranks)) if ranks != 1 else []
        yield from ((one,) for one in replicas)
        if micro == self.own.configuration.num_microbatches or micro.denominator != 1:
            return
        batches = list(self.arguments.accumulations(int(micro)))[:_WAYS]
        batches += list(self.arguments.accumulations_everywhere(int(micro)))
        batches += list(self.arguments.factors(micro / self.own.configuration.num_microbatches))[:_WAYS]
        yield from ((one,) for one in batches)
        yield from product(replicas, batches)

    def _reread(self, edits: Sequence[TextEdit]) -> tuple[dict[str, str], Own] | None:
        texts = self.texts.edited(edits)
        if texts is None:
            return None
        edited = with_texts(self.source, texts)
        try:
            own = self._read(edited)
        except PlannerError:
            return None
        return (texts, own) if _started(edited, self._overrides) == self._started else None

    def priced(self, trials: Sequence[Trial]) -> list[Trial]:
        """Return trials with their seconds, memory and broken rules; none that cannot be priced."""
        groups = dict[tuple[tuple[str, object], ...], list[Trial]]()
        for one in trials:
            groups.setdefault(state_of(one.own)[1], []).append(one)
        return [priced for some in groups.values() for priced in self._priced(some)]

    def _priced(self, trials: list[Trial]) -> Iterator[Trial]:
        problem = trials[0].own.problem
        try:
            seen = evaluate(problem, self._profile, [one.own.configuration for one in trials])
        except (PlannerError, ValueError, ArithmeticError):
            if len(trials) > 1:  # one of them has no price
                yield from (priced for one in trials for priced in self._priced([one]))
            return
        judge = RuleJudge(problem)
        for one, found in zip(trials, seen, strict=True):
            broken = tuple(name for name in judge.broken(found) if name not in self.broken_before)
            yield replace(
                one, step_s=found.objective_s, short_bytes=max(found.short_bytes()), broken=broken
            )

    @property
    def broken_before(self) -> tuple[str, ...]:
        """Return the rules that the run breaks as it stands."""
        if self._broken is None:
            problem: Problem = self.own.problem
            found = evaluate(problem, self._profile, [self.own.configuration])[0]
            self._broken = RuleJudge(problem).broken(found)
        return self._broken


def _launchers(source: Source, texts: Texts, own: Own) -> list[str]:
    """Return the launchers that read some of the files, and the one that the run is planned as."""
    files = [replace(source, name=name, text=text) for name, text in texts.files.items()]
    found = [name for one in files if (name := launcher_of(one)) is not None]
    return list(dict.fromkeys((*found, *([own.launcher] if own.launcher else []))))


def _starts_trl(source: Source) -> bool:
    """Return whether all programs that the scripts start have TRL's arguments; a person's own may not."""
    found = [program_of(words) for _, words in commands_beside(source)]
    return all(
        trls_kind(one.program) or any(row.kind_of(one.program) for row in over_trl())
        for one in found
        if one is not None
    )


def _starts_swift(source: Source) -> bool:
    found = [program_of(words) for _, words in commands_beside(source)]
    return any(one is not None and one.program.startswith("swift ") for one in found)


def with_texts(source: Source, texts: Mapping[str, str]) -> Source:
    """Return the source with other texts of some of its files."""
    return replace(
        source,
        text=texts.get(source.name, source.text),
        files={name: texts.get(name, text) for name, text in source.files.items()},
        include=lambda name: texts[name] if name in texts else source.include(name),
    )


def _started(source: Source, overrides: Overrides) -> list[tuple[int | None, int | None, int | None]]:
    """Return the nodes and processes that each script states; edits keep them."""
    worlds = [world_of(one.text, readable_script(one, overrides)) for one in source.scripts()]
    return [(one.num_nodes, one.gpus_per_node, one.processes) for one in worlds]


def _is_same_training(before: Own, now: Own, base: str | None) -> bool:
    """Return whether only the plan and options with the same results differ, and no more is unread.

    Frozen weights may be loaded in ``base`` instead, and what is on the host may stay on the GPUs.
    """
    old, new = before.problem.workload, now.problem.workload
    if new.base_precision == base:
        old = replace(old, base_precision=new.base_precision)
    options = {**old.framework_options}, {**new.framework_options}
    changed = {
        name
        for name in options[0].keys() | options[1].keys()
        if options[0].get(name) != options[1].get(name)
    }
    return (
        changed <= SAME_RESULTS
        and replace(old, framework_options={}) == replace(new, framework_options={})
        and before.problem.model == now.problem.model
        and before.configuration.num_gpus == now.configuration.num_gpus
        and before.stated_gpus == now.stated_gpus
        and now.configuration.offload in ("none", before.configuration.offload)
        and before.launcher == now.launcher
        and before.problem.launcher == now.problem.launcher
        and set(now.unread) <= set(before.unread)
    )


@dataclass(slots=True, kw_only=True)
class Levels:
    """The best sets of each number of edits, and the single moves that they are made of."""

    best: dict[int, list[Trial]] = field(default_factory=dict)  # fastest first
    moves: list[Trial] = field(default_factory=list)
    lightest: list[Trial] = field(default_factory=list)  # of each number, the one that lacks least memory


def search(
    bench: Bench,
    start_s: float,
    wanted: Mapping[str, Sequence[str]],
    *,
    most: int,
    worth: float,
    should_stop: ShouldStop,
) -> Levels:
    """Return the fastest sets of edits by their number.

    Args:
        bench: the files.
        start_s: closed form of the run as it stands.
        wanted: further values by argument.
        most: the largest number of edits.
        worth: the share of the step that another edit must save; two levels below it end the search.
        should_stop: whether to end early with the sets so far.
    """
    found = Levels()
    singles = _distinct(bench.priced(list(_until(should_stop, _singles(bench, wanted)))))
    found.moves = _promising(singles)
    found.best[1] = _feasible(singles)
    found.lightest += _lightest(singles)
    level, before_s, idle = _kept(singles), min(_best_s(found, 1), start_s), 0
    known = {state_of(bench.own)} | {state_of(one.own) for one in singles}
    for number in range(2, most + 1):
        tried = list(_until(should_stop, _joined(bench, level, found.moves, known)))
        priced = _distinct(bench.priced(tried))
        found.best[number] = _feasible(priced)
        found.lightest += _lightest(priced)
        if not priced:
            break
        best_s = _best_s(found, number)
        idle = idle + 1 if best_s > before_s - worth * start_s else 0
        if idle > 1:
            break
        before_s, level = min(before_s, best_s), _kept(priced)
    return found


def _until(should_stop: ShouldStop, trials: Iterator[Trial | None]) -> Iterator[Trial]:
    """Yield the trials that read as the same training until it is time to stop."""
    yield from (one for one in takewhile(lambda _: not should_stop(), trials) if one is not None)


def _singles(bench: Bench, wanted: Mapping[str, Sequence[str]]) -> Iterator[Trial | None]:
    start, seen = state_of(bench.own), set[frozenset[TextEdit]]()
    for setting in bench.arguments.settings(wanted):
        for move in bench.arguments.moves(setting):
            if frozenset(move.edits) in seen:  # two names of one argument
                continue
            seen.add(frozenset(move.edits))
            trial = bench.attempt([move])
            if trial is not None and state_of(trial.own) != start:
                yield trial
                break
            yield None


def _joined(
    bench: Bench, level: Sequence[Trial], moves: Sequence[Trial], known: set[State]
) -> Iterator[Trial | None]:
    """Yield the sets of a level with one more move that look best, read back; None: of no new run."""

    def read_back(joined: Trial) -> Trial | None:
        trial = bench.attempt(joined.moves)
        if trial is None or state_of(trial.own) in known:
            return None
        known.add(state_of(trial.own))
        return trial

    foreseen = list[Trial]()
    for base, one in _pairs(level, moves):
        if not _is_whole(*(own.configuration for own in (bench.own, base.own, one.own))):
            continue
        own = _foreseen(bench.own, base.own, one.own)
        joined = replace(base, moves=(*base.moves, one.moves[0]), own=own or base.own)
        if own is None:
            yield read_back(joined)
        elif state_of(own) not in known:
            foreseen.append(joined)
    for order, most in _orders(_distinct(bench.priced(foreseen))):
        found = 0
        for one in order:
            if found < most and state_of(one.own) not in known:
                trial = read_back(one)
                found += trial is not None
                yield trial


def _pairs(level: Iterable[Trial], moves: Iterable[Trial]) -> Iterator[tuple[Trial, Trial]]:
    """Yield each set with each move of other arguments, every union once."""
    tried = set[frozenset[Move]]()
    for base in level:
        for one in moves:
            key = frozenset((*base.moves, *one.moves))
            if not one.names & base.names and key not in tried:
                tried.add(key)
                yield base, one


def _is_whole(start: Configuration, base: Configuration, move: Configuration) -> bool:
    """Return whether a set and a move leave whole numbers of ranks and micro-batches."""
    return all(getattr(base, name) * getattr(move, name) % getattr(start, name) == 0 for name in _PRODUCTS)


def _foreseen(start: Own, base: Own, move: Own) -> Own | None:
    """Return what a set and a move should read as together, by what each reads as; None: it is not clear.

    What one of them changes is changed. Numbers of ranks and micro-batches follow from several arguments,
    so their factors are multiplied.
    """
    owns = (start, base, move)
    config = _together(
        *({one.name: getattr(own.configuration, one.name) for one in _FIELDS} for own in owns)
    )
    options = _together(*map(_of_workload, owns))
    stages = {own.configuration.zero_stage for own in owns}
    if config is None or options is None or len(stages) > 1:  # how many share a shard follows from it
        return None
    for name in _PRODUCTS:
        config[name] = (
            config[name] * getattr(move.configuration, name) // getattr(start.configuration, name)
        )
    loaded, work = options.pop(_BASE), replace(base.problem.workload, framework_options=options)
    problem = replace(base.problem, workload=replace(work, base_precision=loaded))
    return replace(base, configuration=Configuration(**config), problem=problem)


_FIELDS = fields(Configuration)
_PRODUCTS = ("data_parallel_size", "zero_shard_size", "num_microbatches")


def _together(
    start: Mapping[str, Any], base: Mapping[str, Any], move: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the values after two changes, products as the first leaves them; None: both change one."""
    found = dict(base)
    for name in (start.keys() | base.keys() | move.keys()) - set(_PRODUCTS):
        old, mine, other = (one.get(name) for one in (start, base, move))
        if other not in (old, mine) and mine != old:
            return None
        if mine == old:
            found[name] = other
    return {name: value for name, value in found.items() if value is not None}


def _distinct(trials: Iterable[Trial]) -> list[Trial]:
    """Return one trial of each run, the one that changes the fewest arguments."""
    by_state = dict[State, Trial]()
    for one in trials:
        other = by_state.get(state_of(one.own))
        if other is None or one.number_of_changes < other.number_of_changes:
            by_state[state_of(one.own)] = one
    return list(by_state.values())


def _feasible(trials: Iterable[Trial]) -> list[Trial]:
    return sorted(
        (one for one in trials if one.is_feasible), key=lambda one: (one.step_s, one.number_of_changes)
    )


def _lightest(trials: Iterable[Trial]) -> list[Trial]:
    legal = [one for one in trials if not one.broken]
    return sorted(legal, key=lambda one: (one.short_bytes, one.step_s))[:1]


def _best_s(found: Levels, number: int) -> float:
    return min((one.step_s for one in found.best[number]), default=float("inf"))


def _promising(trials: Sequence[Trial]) -> list[Trial]:
    """Return the moves that later sets are made of: those that save time, and those that free memory."""
    by_time = sorted(trials, key=lambda one: one.step_s)[:_MOVES_BY_TIME]
    by_memory = sorted(trials, key=lambda one: one.short_bytes)[:_MOVES_BY_MEMORY]
    return _unique((*by_time, *by_memory))


def _kept(trials: Sequence[Trial]) -> list[Trial]:
    """Return the sets that the next level starts from, those that do not fit or break a rule, too."""
    return _unique(one for order, wanted in _orders(trials) for one in order[:wanted])


def _orders(trials: Sequence[Trial]) -> list[tuple[list[Trial], int]]:
    """Return the orders in which sets are worth a look, and how many of each are kept."""
    others = sorted((one for one in trials if not one.is_feasible), key=lambda one: one.step_s)
    smallest = sorted(trials, key=lambda one: one.short_bytes)
    return [(_feasible(trials), _FASTEST), (others, _FASTEST), (smallest, _SMALLEST)]


def _unique(trials: Iterable[Trial]) -> list[Trial]:
    return list({id(one): one for one in trials}.values())

"""Rows of one problem under several ways of switches, priced together as far as the ways agree.

A term of the price reads few of the facts that switches change. The context of all rows has the facts in
which their ways agree; where a term reads another one, it is found for each value of that fact apart
(``each_way``), and so is the context itself (``priced_together``). Every price is that of its way alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, wraps
from operator import attrgetter
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

import numpy as np

from meshwright.profiles.collectives.collectives import Blocks, Group
from meshwright.profiles.frameworks import FrameworkFacts
from meshwright.profiles.profile import Profile
from meshwright.solver.configuration import Columns, IntArray
from meshwright.solver.cost.context import Context, PassSeconds, Placement, facts_as_run
from meshwright.solver.cost.sharding import Sharding
from meshwright.solver.cost.stages import RowPrices
from meshwright.solver.problem import Problem


class DisputedFactError(Exception):
    """A fact was read in which the ways of a context differ."""

    def __init__(self, fact: str) -> None:
        super().__init__(fact)
        self.fact = fact


class AgreedFacts(FrameworkFacts):
    """The facts in which ways agree. The first use of another one raises ``DisputedFactError``."""

    @classmethod
    def of(cls, facts: Sequence[FrameworkFacts]) -> AgreedFacts:
        """Return what is equal in all: facts, and what is derived from them, even from unequal ones.

        Raises:
            DisputedFactError: a fact with a default differs.
        """
        agreed = object.__new__(cls)
        known = vars(agreed)
        facts = [each for one in facts for each in (vars(one)["_of"] if isinstance(one, cls) else (one,))]
        known["_of"] = facts
        for name, *values in zip(_COMPARED, *map(_compared_of, facts), strict=True):
            if values.count(values[0]) == len(values):
                known[name] = values[0]
            elif name in _DEFAULTS:  # the default would be read instead
                raise DisputedFactError(name)
        return agreed

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - of any fact
        first, *others = (getattr(one, name) for one in vars(self)["_of"])
        if any(one != first for one in others):
            raise DisputedFactError(name)
        vars(self)[name] = first
        return first


_DEFAULTS = tuple(one.name for one in fields(FrameworkFacts) if one.name in vars(FrameworkFacts))
_DERIVED = tuple(name for name, one in vars(FrameworkFacts).items() if isinstance(one, cached_property))
_COMPARED = (*_DEFAULTS, *_DERIVED)  # which the class would give otherwise
_compared_of = attrgetter(*_COMPARED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """One problem under several switches, and which of them each row is under.

    Where each row is under each of the w ways, terms are (n,) where the ways agree, else (w, n).
    """

    problems: tuple[Problem, ...]
    facts: tuple[FrameworkFacts, ...]  # of each problem, or those that it has in common with others
    of_row: IntArray | None  # (n,) index of each row's problem; None: each row is under each

    @classmethod
    def of_each_row(cls, problems: Sequence[Problem], profile: Profile) -> Ways:
        """Return the ways of rows that are all under each of them."""
        facts = tuple(facts_as_run(one, profile) for one in problems)
        return cls(problems=tuple(problems), facts=facts, of_row=None)

    def under(self, of_row: IntArray) -> Ways:
        """Return those among the ways of each row that some rows are under, by their numbers (n,)."""
        return self._among(np.flatnonzero(np.bincount(of_row)).tolist(), of_row)

    @property
    def agreed(self) -> FrameworkFacts:
        """Return the facts that all ways have.

        Raises:
            DisputedFactError: a fact with a default differs.
        """
        return self.facts[0] if len(self.facts) == 1 else AgreedFacts.of(self.facts)

    def take(self, index: IntArray) -> Ways:
        """Return the ways of the rows at ``index``, in that order."""
        return self if self.of_row is None else replace(self, of_row=self.of_row.take(index))

    def by(self, fact: str) -> Iterator[tuple[IntArray, Ways]]:
        """Yield the rows with each value of a fact, or the numbers of the ways, and their ways."""
        return self._split([getattr(one, fact) for one in self.facts])

    def one_by_one(self) -> Iterator[tuple[IntArray, Ways]]:
        """Yield the rows of each way."""
        return self._split(range(len(self.facts)))

    def _split(self, values: Sequence[Hashable]) -> Iterator[tuple[IntArray, Ways]]:
        for value in dict.fromkeys(values):
            numbers = [at for at, one in enumerate(values) if one == value]
            if self.of_row is None:
                yield np.array(numbers), self._among(numbers, None)
                continue
            chosen = np.zeros(len(values), dtype=np.bool_)
            chosen[numbers] = True
            rows = np.flatnonzero(chosen[self.of_row])
            yield rows, self._among(numbers, self.of_row[rows])

    def _among(self, numbers: list[int], of_row: IntArray | None) -> Ways:
        """Return some of the ways, and which of them, by their numbers here, rows are under."""
        place = np.zeros(len(self.facts), dtype=np.int64)
        place[numbers] = np.arange(len(numbers))
        return Ways(
            problems=tuple(self.problems[at] for at in numbers),
            facts=tuple(self.facts[at] for at in numbers),
            of_row=None if of_row is None else place[of_row],
        )


class Pricing(Protocol):
    """A function that prices rows of one problem, or of several ways of it."""

    def __call__(
        self, problem: Problem, columns: Columns, profile: Profile, *, ways: Ways | None = None
    ) -> RowPrices:
        """Return the prices of the rows."""


def are_priced_apart(problem: Problem, profile: Profile) -> bool:
    """Return whether ways are priced one by one.

    In fp32 facts change the profile, and a residual reads the problem.
    """
    calibrated = profile.residual is not None or profile.memory_residual is not None
    return calibrated or problem.workload.precision == "fp32"


def priced_together(pricing: Pricing, ways: Ways, columns: Columns, profile: Profile) -> RowPrices:
    """Return the prices of rows, each under the problem of its way, without their breakdown.

    Raises:
        DisputedFactError: a fact is read that one of the ways doesn't have in common with others.
    """
    problem = ways.problems[0]
    if len(ways.problems) == 1 and not isinstance(ways.facts[0], AgreedFacts):
        return pricing(problem, columns, profile)
    if are_priced_apart(problem, profile):
        apart = [*ways.one_by_one()]
    else:
        try:
            return pricing(problem, columns, profile, ways=ways)
        except DisputedFactError as disputed:
            apart = [*ways.by(disputed.fact)]
    parts = [priced_together(pricing, own, columns.take(rows), profile) for rows, own in apart]
    return RowPrices.concatenate(parts).take(np.argsort(np.concatenate([rows for rows, _ in apart])))


Args = ParamSpec("Args")
Found = TypeVar("Found")


def each_way(
    term: Callable[Concatenate[Context, Args], Found],
) -> Callable[Concatenate[Context, Args], Found]:
    """Compute a term of a context's rows for all ways at once, or for each value of a disputed fact.

    Arguments and results are arrays of shape (n,), dataclasses of such, and what rows have in common.
    """

    @wraps(term)
    def found(ctx: Context, /, *args: Args.args, **kwargs: Args.kwargs) -> Found:
        try:
            return term(ctx, *args, **kwargs)
        except DisputedFactError as disputed:
            fact = disputed.fact
        if fact not in ctx.kept_ways:
            ctx.kept_ways[fact] = [*_apart(ctx, fact)]
        shape, parts = _shape_of(ctx), list[tuple[IntArray, Any]]()
        for rows, own in ctx.kept_ways[fact]:
            few = [_taken(one, rows, shape) for one in args]
            named = {name: _taken(one, rows, shape) for name, one in kwargs.items()}
            parts.append((rows, found(own, *few, **named)))
        return cast("Found", _joined(parts, shape))

    return found


def _apart(ctx: Context, fact: str) -> Iterator[tuple[IntArray, Context]]:
    """Yield the rows with each value of a fact, and their context."""
    if ctx.ways is None:
        raise DisputedFactError(fact)
    for rows, ways in ctx.ways.by(fact):
        own = object.__new__(_PartialContext)
        vars(own).update(facts=ways.agreed, ways=ways, _whole=ctx, _rows=rows)
        yield rows, own


class _PartialContext(Context):
    """The context of some rows, or ways, of another one; what is read of it is taken at its first use."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - of any field
        known = vars(self)
        if name not in _OF_CONTEXT or "_whole" not in known:
            raise AttributeError(name)
        whole = known["_whole"]
        value = _taken(getattr(whole, name), known["_rows"], _shape_of(whole))
        known[name] = value = replace(value, facts=self.facts) if name == "sharding" else value
        return value


_OF_CONTEXT = frozenset(one.name for one in fields(Context))


def _shape_of(ctx: Context) -> tuple[int, ...]:
    """Return the shape of a term in which the ways of a context differ."""
    ways = ctx.ways
    return (len(ctx.t),) if ways is None or ways.of_row is not None else (len(ways.facts), len(ctx.t))


_OF_ROWS = (PassSeconds, Placement, Blocks, Sharding)  # dataclasses with an entry for each row


def _taken(value: Any, rows: IntArray, shape: tuple[int, ...]) -> Any:  # noqa: ANN401 - of any type
    """Return what some rows, or ways, have of a value of all."""
    if isinstance(value, np.ndarray):
        return value.take(rows, 0) if value.shape[: len(shape)] == shape else value
    if isinstance(value, Group | Columns):
        return value.take(rows) if len(shape) == 1 else value
    if isinstance(value, _OF_ROWS):
        each = {one.name: getattr(value, one.name) for one in fields(value)}
        return replace(value, **{name: _taken(one, rows, shape) for name, one in each.items()})
    return value


def _joined(parts: Sequence[tuple[IntArray, Any]], shape: tuple[int, ...]) -> Any:  # noqa: ANN401 - of any type
    """Return the value of all rows, or ways, from those of some each."""
    first = parts[0][1]
    if isinstance(first, _OF_ROWS):
        each = {
            of.name: _joined([(rows, getattr(one, of.name)) for rows, one in parts], shape)
            for of in fields(first)
        }
        return replace(first, **each)
    values = [np.asarray(one) for _, one in parts]
    found = np.empty(shape, np.result_type(*values))
    for (rows, _), value in zip(parts, values, strict=True):
        found[rows] = value
    return found

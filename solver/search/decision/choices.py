"""Rows that the bounds of a search leave, with their values: CP-SAT chooses among them.

A row's value is its score where the search has simulated it, else a bound that its score is not below. So
what CP-SAT chooses is proved least if its value is a score, and is priced and decided again if not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.profile import Profile
from meshwright.solver.configuration import VARIABLE_OF, WORDS, IntArray
from meshwright.solver.problem import DERIVED_VARIABLES, Problem
from meshwright.solver.search.decision.question import PART, Limit, Tree, names_in
from meshwright.solver.search.frontier import Frontier
from meshwright.solver.search.splits import Split
from meshwright.solver.space.expressions import Node
from meshwright.solver.space.request_rules import (
    coded,
    column_of,
    constraint_of,
    power_texts,
)
from meshwright.solver.space.rules import launch_rules

NEAR = 1.1  # times the best score: rows with a bound up to that are choices
MOST = 2048  # of them, those with the least bounds, and all with a bound that is not above the best score
MOST_AT_ALL = 20_000  # more of those are too many to decide in a second
_UNITS, _LARGEST = 1e9, 2.0**40  # of the best score, in which values are counted
ON_TIME = "on_time"  # variable: the plan meets the deadline


@dataclass(slots=True, kw_only=True)
class Choices:
    """Rows of one search that its bounds leave."""

    problem: Problem
    profile: Profile
    frontier: Frontier
    index: IntArray  # rows of the frontier, (n,)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Return the problem under the switches of each part of the space."""
        by = self.frontier.rows.by_kind
        return by.problems if by else (self.problem,)

    def parts(self) -> IntArray:
        """Return every row's part, (n,)."""
        return self.frontier.rows.parts_of(self.index.tolist())

    def columns(self) -> Mapping[str, IntArray]:
        """Return every variable of the rows, (n,), as a request means it."""
        rows, layers = self.frontier.rows.take(self.index).columns, self.problem.model.num_layers
        names = [*(one.name for one in VARIABLE_OF.values()), *DERIVED_VARIABLES]
        return {name: column_of(rows, name, layers) for name in names}

    def priced(self, at: int) -> tuple[float, Split]:
        """Return a row's score and its split."""
        return self.frontier.score(int(self.index[at]))


def choices_of(problem: Problem, profile: Profile, frontier: Frontier) -> Choices | None:
    """Return the rows that the bounds of a finished search leave; None where it proves too little."""
    if not frontier.finished or not frontier.covers_all:
        return None
    best_s = min([frontier.limit_s, *(one.score_s for one in frontier.ranked[:1])])
    if best_s == np.inf:
        return Choices(
            problem=problem, profile=profile, frontier=frontier, index=np.zeros(0, dtype=np.int64)
        )
    index = frontier.bound_s.below(np.nextafter(NEAR * best_s, np.inf))
    order = index[np.lexsort((index, frontier.bound_s[index]))]
    needed = int((frontier.bound_s[order] <= best_s).sum())
    if needed > MOST_AT_ALL:
        return None
    return Choices(problem=problem, profile=profile, frontier=frontier, index=order[: max(MOST, needed)])


@dataclass(slots=True, kw_only=True)
class Table:
    """The choices of all searches of a request, row by row."""

    of: Sequence[Choices]
    search: IntArray  # of each row, (n,)
    at: IntArray  # and its place there, (n,)
    columns: dict[str, list[int]]
    limits: list[Limit]
    values_s: list[float]
    exact: list[bool]

    @classmethod
    def of_all(cls, asked: Problem, searches: Sequence[Choices]) -> Table:
        """Return the rows of all searches, and what the request and the launchers ask of them."""
        some = [one for one in searches if len(one.index)]
        sizes = [len(one.index) for one in some]
        parts, first = list[Problem](), list[IntArray]()
        for one in some:
            first.append(one.parts() + len(parts))
            parts += one.problems
        own = [one.columns() for one in some]
        columns = {name: _joined(each[name] for each in own) for name in (own[0] if own else ())}
        columns |= _of_switches(parts, part := _joined(first))
        found = [one.frontier.least_score_s(row) for one in some for row in one.index.tolist()]
        values_s, late = [value for value, _ in found], _joined(map(_latest, some), float)
        columns |= {PART: part, ON_TIME: [int(v <= most) for v, most in zip(values_s, late, strict=True)]}
        limits = [*_of_request(asked), *_of_parts(asked, parts, {*part})]
        limits += [_one("deadline_days", ["name", ON_TIME])] * (asked.options.deadline_days is not None)
        return cls(
            of=some, search=np.repeat(np.arange(len(some)), sizes),
            at=np.concatenate([np.arange(size) for size in [*sizes, 0]]),
            columns=columns, limits=limits, values_s=values_s, exact=[is_score for _, is_score in found],
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.values_s)

    def named(self) -> dict[str, list[int]]:
        """Return the columns that differ between rows, and those that a limit names."""
        names = {name for limit in self.limits for name in names_in(limit.tree)}
        return {
            name: column for name, column in self.columns.items() if name in names or len({*column}) > 1
        }

    def whole_values(self, best_s: float) -> list[int]:
        """Return the values in units of the best score; of equal ones a score is before a bound."""
        shares, exact = np.array(self.values_s) * (_UNITS / best_s), np.array(self.exact)
        whole = 2.0 * np.where(exact, np.rint(shares), np.floor(shares)) + ~exact
        return np.minimum(whole, _LARGEST).astype(np.int64).tolist()  # type: ignore[no-any-return]

    def price(self, row: int) -> Split:
        """Replace a bound by the score, and return the split that has it."""
        of, at = self.of[int(self.search[row])], int(self.at[row])
        score_s, split = of.priced(at)
        self.values_s[row], self.exact[row] = score_s, True
        latest = of.frontier.rows.latest(of.index[[at]])
        self.columns[ON_TIME][row] = int(bool(np.all(score_s <= latest)))
        return split


def _joined(arrays: Iterable[IntArray], kind: type = int) -> list[int]:
    return [kind(value) for one in arrays for value in np.asarray(one).tolist()]


def _latest(choices: Choices) -> IntArray:
    return np.broadcast_to(choices.frontier.rows.latest(choices.index), len(choices.index))


def _of_switches(parts: Sequence[Problem], part: Sequence[int]) -> dict[str, list[int]]:
    """Return a variable for each of launcher, precision, optimizer and options that parts differ in."""
    facts = [
        {
            "launcher": one.launcher,
            "precision": one.workload.precision,
            "optimizer": one.workload.optimizer,
            "standalone_stages": one.options.standalone_stages,
            **one.workload.framework_options,
        }
        for one in parts
    ]
    names = {name: None for some in facts for name in some}
    found = dict[str, list[int]]()
    for name in names:
        words = [str(some.get(name)) for some in facts]
        if len({*words}) > 1:
            codes = {word: code for code, word in enumerate(dict.fromkeys(words))}
            found[name] = [codes[words[each]] for each in part]
    return found


def _one(name: str, tree: Tree, parts: tuple[int, ...] = ()) -> Limit:
    return Limit(name=name, tree=tree, parts=parts)


def _of_request(asked: Problem) -> Iterator[Limit]:
    """Yield the limits of the request, from its own words."""
    options = asked.options
    for name, value in sorted(options.pin.items()):
        yield _one(f"pin {name} = {value}", _compared(name, "==", coded(name, value)))
    for name, values in sorted(options.forbid.items()):
        said = ", ".join(map(str, values))
        unlike = [_compared(name, "!=", coded(name, value)) for value in values]
        yield _one(f"forbid {name} = {said}", unlike[0] if len(unlike) == 1 else ["and", *unlike])
    for name, (low, high) in sorted(options.bounds.items()):
        tree = ["compare", ["<=", "<="], [["number", low], ["name", name], ["number", high]]]
        yield _one(f"bounds {low} <= {name} <= {high}", tree)
    if options.stage_layers:
        chunks = ["*", ["name", "pipeline_parallel_size"], ["name", "virtual_pipeline_size"]]
        count = len(options.stage_layers)
        tree = ["compare", ["=="], [chunks, ["number", count]]]
        yield _one(f"pin stage_layers with {count} chunks", tree)
    for text in options.constraints:
        yield _one(f"constraint {text}", tree_of(constraint_of(text)))


def _of_parts(asked: Problem, parts: Sequence[Problem], used: set[int]) -> Iterator[Limit]:
    """Yield what launchers and switches ask of the rows of some parts."""
    of_text = dict[tuple[str, bool], list[int]]()
    kinds = dict[tuple[str, ...], list[int]]()
    for at, one in enumerate(parts):
        if at in used:
            own = [text for text in one.options.constraints if text not in asked.options.constraints]
            able = launcher_capabilities(one.launcher)
            for text in dict.fromkeys([*own, *power_texts(one)]):
                of_text.setdefault((text, True), []).append(at)
            forms = (text for rule in launch_rules(one, able) for text in rule.form)
            for text in dict.fromkeys(forms):
                of_text.setdefault((text, False), []).append(at)
            if one.options.recompute_kinds:
                kinds.setdefault(one.options.recompute_kinds, []).append(at)
    for (text, of_request), some in of_text.items():
        where = () if len(some) == len(used) else tuple(some)
        tree = tree_of(constraint_of(text))
        yield Limit(name=text, tree=tree, parts=where, of_request=of_request)
    for words, some in kinds.items():
        name = "recompute_granularity"
        alike = [_compared(name, "==", coded(name, word)) for word in words]
        yield _one(f"recomputation is {' or '.join(words)}", ["or", *alike], tuple(some))


def _compared(name: str, sign: str, value: int) -> Tree:
    return ["compare", [sign], [["name", name], ["number", value]]]


def tree_of(node: Node, word_of: str = "") -> Tree:
    """Return a checked constraint as a tree; a word is a number of the variable next to it."""
    if node.sign == "name":
        return ["name", str(node.value)]
    if node.sign == "word":
        return ["number", WORDS[word_of].index(str(node.value))]
    if not node.operands:
        return ["number", int(node.value)]
    named = next((str(one.value) for one in node.operands if one.sign == "name"), "")
    operands = [tree_of(one, named) for one in node.operands]
    return ["compare", [*node.signs], operands] if node.sign == "compare" else [node.sign, *operands]

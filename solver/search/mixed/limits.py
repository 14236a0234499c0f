"""Constraints of a request on node groups: in CP-SAT's models, and as limits of every row.

A term counts what a plan takes of one group: ``gpus``, ``idle_nodes`` (whole nodes without a stage),
``stages``, ``layers``, and the logical ``first`` and ``last`` (whether the group holds that stage). All
are linear in the numbers of stages, but for idle nodes, a rounded quotient. Every other variable of a
constraint is the row's, or a stage's tensor-parallel size: it then holds for every size of a stage.

Before any row is bounded, a small model without times and memory is solved for each class of rows with
the same room and the same variables: rows that cannot keep the constraints are left out, and of the others
it is known how many GPUs and layers a group may have. Both enter the bound of ``bounds``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np

from meshwright.solver.clock import look
from meshwright.solver.configuration import BoolArray, Columns, IntArray
from meshwright.solver.cost.pipelines import NodeGroups
from meshwright.solver.problem import Problem
from meshwright.solver.search.cp_sat import solver_within, without_pandas
from meshwright.solver.search.expressions import (
    BeyondModelError,
    Expression,
    ExpressionWriter,
    Number,
)
from meshwright.solver.search.mixed.rows import MixedRows, StageOption, with_tensor_parallel
from meshwright.solver.space.expressions import names_in, term_of, written_term
from meshwright.solver.space.request_rules import (
    broken_by,
    column_of,
    constraint_of,
    group_constraints,
    names_of,
    names_unknown_group,
)

_OF_STAGE = {"tensor_parallel_size", "sequence_parallel", "num_gpus"}  # variables of one stage


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCounts:
    """What the stages of a model take of one group: linear expressions."""

    gpus: Expression
    stages: Expression
    layers: Expression
    first: Expression
    last: Expression


class GroupLimits(ExpressionWriter):
    """Adds a row's constraints on node groups to a model of CP-SAT."""

    def __init__(self, api: ModuleType, model: Expression, rows: MixedRows, row: int) -> None:
        super().__init__(api, model)
        self._rows, self._row = rows, row

    def add(
        self, counts: Mapping[int, GroupCounts], stages: Expression, has_size: Mapping[int, Expression]
    ) -> None:
        """Add every constraint.

        Args:
            counts: of each group that may have stages.
            stages: how many there are.
            has_size: by tensor-parallel size, a literal that is true where some stage has it.
        """
        fleet, layers = self._rows.fleet, self._rows.layout.num_layers
        for text in group_constraints(fleet.problem):
            if names_unknown_group(fleet.problem, text):
                self._model.add_bool_or([])
                return
            names, node = names_of((text,)), constraint_of(text)
            self.names = {
                name: self._term(counts, *term) for name in names if (term := term_of(name)) is not None
            }
            self.names["pipeline_parallel_size"] = Number(stages, 2, layers)
            whole = names.isdisjoint(_OF_STAGE)
            for size, literal in list(has_size.items())[: 1 if whole else None]:
                self._of_row(names, size, stages)
                try:
                    holds = self.literal(node)
                except BeyondModelError:
                    continue
                self._model.add(holds == 1).only_enforce_if([] if whole else literal)

    def _of_row(self, names: frozenset[str], size: int, stages: Expression) -> None:
        rows = self._rows
        columns = with_tensor_parallel(rows.columns(self._row, 2), size)
        for name in names - {"pipeline_parallel_size", "num_gpus"}:
            if term_of(name) is None:
                value = int(column_of(columns, name, rows.layout.num_layers)[0])
                self.names[name] = Number.constant(value)
        each = size * int(rows.sizes[self._row, 0] * rows.sizes[self._row, 1])
        self.names["num_gpus"] = Number(each * stages, 2 * each, each * rows.layout.num_layers)

    def _term(self, counts: Mapping[int, GroupCounts], term: str, name: str) -> Number:
        rows = self._rows
        group = rows.fleet.names.index(name)
        nodes, own = rows.fleet.groups[group], counts.get(group)
        most = {"gpus": nodes.num_gpus, "idle_nodes": nodes.num_nodes, "stages": nodes.num_gpus,
                "layers": rows.layout.num_layers}.get(term, 1)  # fmt: skip
        if own is None:
            return Number.constant(most if term == "idle_nodes" else 0)
        if term != "idle_nodes":
            return Number(getattr(own, term), 0, most)
        left = Number(nodes.num_gpus - own.gpus, 0, nodes.num_gpus)
        return self.divided(left, Number.constant(nodes.gpus_per_node))[0]


# --------------------------------------------------------------------------------------------------
# What the constraints leave of every row.


def limited(rows: MixedRows) -> MixedRows:
    """Return the rows with the GPUs and layers that the constraints leave each group.

    Rows of two or more stages that cannot keep them are not allowed any more.
    """
    if not group_constraints(rows.fleet.problem) or not len(rows):
        return rows
    gpus, most, least = rows.gpus.copy(), rows.most_layers.copy(), rows.least_layers.copy()
    allowed = rows.allowed.copy()
    for some in _classes(rows):
        look()
        found = _Counts(rows, int(some[0])).ends()
        if found is None:
            allowed[some, 2:] = False
            continue
        for group, ends in found.items():
            gpus[group, some], least[group, some], most[group, some] = ends
    each = np.maximum(rows.gpus_of_stage, 1)
    room = np.where(allowed[:, 2:].any(axis=1), np.minimum(rows.room, gpus[rows.group_of] // each), 0)
    return replace(rows, allowed=allowed, room=room, gpus=gpus, most_layers=most, least_layers=least)


def _classes(rows: MixedRows) -> Iterator[IntArray]:
    """Yield rows that are alike for the constraints and have two or more stages."""
    texts = group_constraints(rows.fleet.problem)
    plain = sorted(name for name in names_of(texts) if term_of(name) is None)
    able = np.flatnonzero(rows.allowed[:, 2:].any(axis=1))
    columns = rows.every_columns.take(able)
    values = [column_of(columns, name, rows.layout.num_layers) for name in plain]
    shared = rows.sizes[able, 0] * rows.sizes[able, 1]
    table = np.column_stack([shared, rows.room[:, able].T, rows.allowed[able], *values])
    _, which = np.unique(table, axis=0, return_inverse=True)
    for at in range(int(which.max(initial=-1)) + 1):
        yield able[which.ravel() == at]


class _Counts:
    """A row's model without times, memory and places: stages of each option, layers of each group."""

    def __init__(self, rows: MixedRows, row: int) -> None:
        self.api, self.rows, self.row = without_pandas(), rows, row
        self.model = model = self.api.CpModel()
        layers, able = rows.layout.num_layers, np.flatnonzero(rows.room[:, row] > 0).tolist()
        count = {at: model.new_int_var(0, int(rows.room[at, row]), "") for at in able}
        self.counts = dict[int, GroupCounts]()
        for group in sorted({int(rows.group_of[at]) for at in able}):
            own = [at for at in able if rows.group_of[at] == group]
            stages, held = sum(count[at] for at in own), model.new_int_var(0, layers, "")
            first, last = model.new_bool_var(""), model.new_bool_var("")
            gpus = sum(int(rows.gpus_of_stage[at, row]) * count[at] for at in own)
            model.add(gpus <= rows.fleet.groups[group].num_gpus)
            model.add(held >= stages)
            model.add(held <= layers * stages)
            model.add(stages >= 1).only_enforce_if(first)
            model.add(stages >= 1).only_enforce_if(last)
            model.add(sum(count.values()) == stages).only_enforce_if(first, last)
            self.counts[group] = GroupCounts(gpus=gpus, stages=stages, layers=held, first=first, last=last)
        for read in ("first", "last"):
            model.add(sum(getattr(one, read) for one in self.counts.values()) == 1)
        model.add(sum(one.layers for one in self.counts.values()) == layers)
        self.sum = sum(count.values())
        legal = self.api.Domain.from_values(rows.legal_stages(row).tolist())
        model.add_linear_expression_in_domain(self.sum, legal)
        has_size = sizes_in(model, rows, {at: [count[at]] for at in able})
        GroupLimits(self.api, model, rows, row).add(self.counts, self.sum, has_size)

    def ends(self) -> dict[int, tuple[int, int, int]] | None:
        """Return (most GPUs, least layers, most layers) of each named group; None: no plan keeps them."""
        texts = group_constraints(self.rows.fleet.problem)
        named = {term[1] for name in names_of(texts) if (term := term_of(name)) is not None}
        groups = [at for at in self.counts if self.rows.fleet.names[at] in named]
        self.model.clear_objective()
        if self._solved()[0] == int(self.api.INFEASIBLE):
            return None
        found = dict[int, tuple[int, int, int]]()
        for group in groups:
            own = self.counts[group]
            most_gpus, least, most = (
                self._best(sign, of) for sign, of in ((-1, own.gpus), (1, own.layers), (-1, own.layers))
            )
            found[group] = (
                self.rows.fleet.groups[group].num_gpus if most_gpus is None else -most_gpus,
                0 if least is None else least,
                self.rows.layout.num_layers if most is None else -most,
            )
        return found

    def _best(self, sign: int, of: Expression) -> int | None:
        """Return the least of an expression times a sign; None: unknown."""
        self.model.minimize(sign * of)
        status, bound = self._solved()
        return round(bound) if status == self.api.OPTIMAL else None

    def _solved(self) -> tuple[int, float]:
        look()
        solver = solver_within(self.api, 0.2)
        parameters = solver.parameters
        parameters.cp_model_probing_level, parameters.cp_model_presolve = 0, True
        return int(solver.solve(self.model)), float(solver.best_objective_bound)


def sizes_in(model: Expression, rows: MixedRows, counts: Mapping[int, list[Expression]]) -> dict[int, Any]:
    """Return a literal for each tensor-parallel size that is true where some stage has it.

    ``counts``: numbers of stages by option.
    """
    by_size = dict[int, list[Expression]]()
    for option, own in counts.items():
        by_size.setdefault(rows.options[option].tensor_parallel_size, []).extend(own)
    found = dict[int, Any]()
    for size, own in sorted(by_size.items()):
        found[size] = model.new_bool_var("")
        model.add(sum(own) == 0).only_enforce_if(~found[size])
    return found


def keep_alone(fleet: NodeGroups, columns: Columns, option: StageOption) -> BoolArray:
    """Return which rows of one stage on an option keep the constraints on node groups, (n,)."""
    problem, kept = fleet.problem, np.ones(len(columns), dtype=np.bool_)
    there = with_tensor_parallel(columns, option.tensor_parallel_size)
    gpus = there.tensor_parallel_size * there.context_parallel_size * there.data_parallel_size
    for text in group_constraints(problem):
        if names_unknown_group(problem, text):
            return np.zeros(len(columns), dtype=np.bool_)
        terms = dict[str, IntArray]()
        for term, name in filter(None, map(term_of, names_in(constraint_of(text)))):
            group = fleet.names.index(name)
            own = gpus if group == option.group else np.zeros_like(gpus)
            here = np.full_like(gpus, int(group == option.group))
            nodes = fleet.groups[group]
            terms[written_term(term, name)] = {
                "gpus": own, "idle_nodes": (nodes.num_gpus - own) // nodes.gpus_per_node,
                "layers": here * problem.model.num_layers,
            }.get(term, here)  # fmt: skip
        kept &= ~broken_by(constraint_of(text), there, problem.model.num_layers, terms)
    return np.asarray(kept)


def count_layers(problem: Problem) -> bool:
    """Return whether a constraint counts layers, so that not every split of a line keeps it."""
    names = names_of(group_constraints(problem))
    return any(term[0] == "layers" for term in map(term_of, names) if term is not None)

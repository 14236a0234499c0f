"""A dialect: how rows of a program's ``flags.yaml`` are read from its file, and written to it.

A row that states ``priced: FIELD`` is decoded by one function and encoded by its inverse. A YAML template
next to the program is the exported file: ``$`` marks each value that a row, or the exporter, fills in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from meshwright.launchers.flags import Flag, FlagNames, flags_of
from meshwright.launchers.reading.fields import Fields
from meshwright.launchers.target import Target
from meshwright.launchers.templates import data

HOLE = "$"  # of a template
Values = dict[str, Any]


def rows_of(program: str, record: str, section: str = "") -> Iterator[tuple[str, str, Flag]]:
    """Yield argument, field and row of what sets a record: ``plan``, ``model``, ``workload``, ``option``.

    ``section`` is the beginning of the arguments' names.
    """
    for name, row in flags_of(program).items():
        owner, _, field = row.sets.rpartition(".")
        if owner == record and name.startswith(section):
            yield name, field, row


def decoded(fields: Fields, name: str, row: Flag) -> Any:  # noqa: ANN401 - the type of the row's field
    """Return the field's value that a file gives an argument, else its default."""
    if row.type == "bool":
        stated = fields.flag(name)
        return row.priced_as.get(stated, stated)
    if row.kind == "word" and not row.priced_as:
        return fields.choice(name)
    if row.priced_as:
        usual = next(iter(row.priced_as.values()))
        return row.priced_as.get(fields.choice(name), usual)
    if isinstance(row.default, float):
        return fields.number(name, row.default)
    if row.type.endswith("None"):
        return fields.optional(name)
    return fields.integer(name, row.default if isinstance(row.default, int) else row.least)


def encoded(row: Flag, value: object) -> object:
    """Return what a file gives the argument for a field's value: the first word that means it.

    Raises:
        KeyError: no word of the row means the value.
    """
    words: dict[Any, Any] = {}
    for word, meaning in row.priced_as.items():
        words.setdefault(meaning, word)
    return words[value] if words else value


def meanings(program: str, sets: str) -> tuple[Any, ...]:
    """Return the values of a field that a program has words for."""
    rows = (row for row in flags_of(program).values() if row.sets == sets)
    return tuple(dict.fromkeys(meaning for row in rows for meaning in row.priced_as.values()))


def stated(
    fields: Fields, program: str, record: str, section: str = "", *, without: Collection[str] = ()
) -> Values:
    """Return a record's fields, each read by the row that sets it, ``without`` those that code reads."""
    rows = rows_of(program, record, section)
    return {field: decoded(fields, name, row) for name, field, row in rows if field not in without}


def written(programs: Sequence[str], target: Target, names: Iterable[str]) -> Values:
    """Return what a plan's file gives some arguments, each by its row in the first table that has it."""
    records = {
        "plan": target.config, "model": target.model, "workload": target.workload, "option": target.facts,
    }  # fmt: skip
    rows = {name: next(row for table in programs if (row := flags_of(table).get(name))) for name in names}
    places = {name: row.sets.rpartition(".") for name, row in rows.items()}
    return {
        name: encoded(rows[name], getattr(records[owner], field))
        for name, (owner, _, field) in places.items()
    }


def named(known: FlagNames, values: Mapping[str, Any], section: str = "") -> Values:
    """Return a file's values by its program's own names, where a relation's are given."""
    found = Values()
    for name, value in values.items():
        inner = isinstance(value, Mapping) and value
        own = named(known, value, f"{section}{name}.") if inner else {known.spelled(section + name): value}
        found |= own
    return found if section else _tree(found)


def _tree(values: Mapping[str, Any]) -> Values:
    """Return values of dotted names as sections."""
    tree = Values()
    for name, value in values.items():
        *parents, last = name.split(".")
        place = tree
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return tree


def filled(file: str, program: str, target: Target, own: Mapping[str, Any]) -> Values:
    """Return the values of a template, with those of the plan.

    Args:
        file: the template by its path in this package: ``nanotron/plan.yaml``.
        program: the table whose rows fill the holes.
        target: the plan, the model and the workload that rows take their values from.
        own: values by the argument's name, where they depend on more than one field.
    """

    def with_values(tree: Mapping[str, Any], section: str = "") -> Values:
        return {name: value_of(f"{section}{name}", found) for name, found in tree.items()}

    def value_of(name: str, found: Any) -> Any:  # noqa: ANN401 - what a document holds
        if isinstance(found, Mapping):
            return with_values(found, f"{name}.")
        if found != HOLE:
            return found
        return own[name] if name in own else written((program,), target, [name])[name]

    return with_values(data(file))

"""Constraints of a request on roles, in the language of ``search.constraints``.

A constraint is on roles (``rollout.num_nodes <= 2``, ``mode == 'async' => steps_off <= 1``), which CP-SAT
keeps, or on the layout of training alone (``training.tp <= 4``), which its search keeps. With several
layouts of engines a constraint on ``rollout.tp`` holds for each of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import ModuleType

from meshwright.solver.post_training.problem import MODES
from meshwright.solver.search.expressions import BeyondModelError, Expression, ExpressionWriter, Number
from meshwright.solver.space.expressions import ROLE_TERMS, ExpressionError, Node, names_in, parse, term_of
from meshwright.solver.space.request_rules import Vocabulary, constraint_of

TP = "rollout.tensor_parallel_size"
ROLES = Vocabulary(
    names=(
        "mode", "steps_off", "training.num_gpus", "training.num_nodes", "rollout.num_gpus",
        "rollout.num_nodes", "rollout.engines", "reward.num_gpus", "critic.num_gpus", TP,
    ),
    words={"mode": MODES},
    number_terms=ROLE_TERMS,
    long_names={"rollout.tp": TP},
)  # fmt: skip
_TRAINING = "training."


@lru_cache(maxsize=256)
def layout_text(text: str) -> str | None:
    """Return a constraint on training's layout as its search reads it; None: the constraint is on roles.

    Raises:
        ExpressionError: it is not an expression, or names what is unknown.
    """
    names = names_in(parse(text))
    of_layout = {name for name in names if name.startswith(_TRAINING) and not _is_of_roles(name)}
    if not of_layout:
        constraint_of(text, ROLES)
        return None
    if names != of_layout:
        other = min(names - of_layout)
        raise ExpressionError(
            1, f"{min(of_layout)} is of training's layout and {other} is of roles: write two constraints"
        )
    try:
        constraint_of(text.replace(_TRAINING, ""))
    except ExpressionError as fault:
        near = None if fault.nearest is None else _TRAINING + fault.nearest
        raise ExpressionError(fault.at, fault.reason, allowed=fault.allowed, nearest=near) from None
    return text.replace(_TRAINING, "")


def _is_of_roles(name: str) -> bool:
    return name in ROLES.names or term_of(name) is not None


def role_constraint(text: str) -> Node:
    """Return the tree of a constraint on roles."""
    return constraint_of(text, ROLES)


def constants_of(texts: tuple[str, ...]) -> set[int]:
    """Return the numbers that constraints compare with, and those next to them."""
    return {
        value + step
        for text in texts
        for value in _numbers(role_constraint(text))
        for step in (-1, 0, 1)
        if value + step > 0
    }


def _numbers(node: Node) -> Iterator[int]:
    if node.sign == "number":
        yield int(node.value)
    for one in node.operands:
        yield from _numbers(one)


def add_limits(
    api: ModuleType,
    model: Expression,
    texts: tuple[str, ...],
    names: Mapping[str, Number],
    sizes: Mapping[int, Expression],
) -> None:
    """Add constraints on roles to a model.

    Args:
        api: OR-Tools' CP-SAT.
        model: of the roles.
        texts: the constraints.
        names: what their variables and terms are in the model.
        sizes: by tensor-parallel size, a literal that is true where engines have it.
    """
    for text in texts:
        node = role_constraint(text)
        every = TP in names_in(node)
        for size, literal in list(sizes.items())[: None if every else 1]:
            writer = ExpressionWriter(api, model, ROLES.words)
            writer.names.update({**names, TP: Number.constant(size)})
            for name in names_in(node) - set(writer.names):  # of a node group that the pool lacks
                writer.names[name] = Number.constant(0)
            try:
                holds = writer.literal(node)
            except BeyondModelError:
                model.add_bool_or([])
                return
            model.add(holds == 1).only_enforce_if(literal if every else [])

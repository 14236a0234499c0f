"""One limit of the space."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from meshwright.solver.configuration import BoolArray, Columns, IntArray


@dataclass(frozen=True, slots=True)
class Limit:
    """A deliberate limit: what runs somewhere, and is not offered."""

    name: str  # as answers call it
    reason: str


# Every deliberate limit. What runs and is refused by a rule without one is a fault of the rule
# (``tests/unit/solver/space/test_witnesses.py``). What this leaves out: ``make bench ARGS=across-islands``.
ACROSS_ISLANDS = Limit(
    name="tensor parallelism across islands",
    reason="its all-reduces in every layer would cross the network",
)
LIMITS = (ACROSS_ISLANDS,)

Violated = Callable[[Columns], BoolArray]
OF_CHUNKS = ("virtual_pipeline_size", "recompute", "recompute_layers", "pipeline_schedule")
OfChunkings = Callable[[Columns, IntArray], BoolArray]  # rows (o,), chunkings (c, 4) as OF_CHUNKS -> (o, c)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One limit of the space."""

    name: str  # in words, as explanations print it
    reason: str  # one line: why the limit exists
    violated: Violated  # columns -> which rows break it
    # Columns that decide it: rows that agree in them break it together or not. A fault names the last one
    # that can repair it alone.
    reads: tuple[str, ...]
    concerns: Violated | None = None  # rows that may break it, whatever their chunks; None: all
    of_chunkings: OfChunkings | None = None  # ``violated`` for every row with every chunking, where quicker
    of_host: bool = False  # host memory or drives are too small, which other hosts would lift
    stops_start: bool = False  # no process gets past it: the launcher or the first step raises an error
    of_request: bool = False  # the request set it, so the request can drop it
    limit: Limit | None = None  # the deliberate limit that it is
    # The same as constraints in a request's language, which CP-SAT states; (): its rows alone keep it.
    form: tuple[str, ...] = ()


def among(name: str, values: Iterable[int | str], sign: str = "==") -> str:
    """Return the constraint that a variable has one of these values; with ``!=``, none of them."""
    join = " or " if sign == "==" else " and "
    return join.join(f"{name} {sign} {value!r}" for value in values) or f"{name} != {name}"

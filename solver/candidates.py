"""Which candidates a search goes through: all of them where that costs little, else the usual ones.

Rows are bounded by kind, so that the many more of all candidates are mostly refuted together. They are
searched wherever the usual ones have few legal rows, and while those are not very many where the request
limits a variable that the usual ones narrow. An answer names which they were (``Answer.space``).
"""

from __future__ import annotations

from collections.abc import Callable

from solver.constraints import names_of
from solver.objective import is_plain
from solver.problem import Problem
from solver.space import Space, enumerate_space, is_too_large

# Variables that have more candidates in ``enumerate_space(wide=True)``.
NARROWED = frozenset(
    {
        "context_parallel_size",
        "micro_batch_size",
        "num_microbatches",
        "expert_tensor_parallel_size",
        "zero_shard_size",
        "sequence_parallel",
    }
)
_FEW = 200_000  # legal rows among the usual candidates; all of them are 2 to 250 times as many, most by few
_NAMED = 1_000_000  # the same where the request limits a narrowed variable
_WRITTEN = 10  # so many times fewer where rows are weighed one by one


def searched_space(
    problem: Problem,
    stopped: Callable[[], bool] = lambda: False,
    *,
    legal_only: bool = False,
    tick: Callable[[], object] = lambda: None,
    one_by_one: bool = False,
) -> Space:
    """The space that a search covers; ``Space.every`` says whether of all candidates.

    ``one_by_one``: its rows are written down, which costs more than refuting them by kind.
    Other arguments and errors as ``enumerate_space``.
    """
    usual = enumerate_space(problem, stopped, legal_only=legal_only, tick=tick)
    if usual.every or stopped() or usual.num_legal > _most(problem, one_by_one):
        return usual
    if is_too_large(problem, wide=True):
        return usual
    return enumerate_space(problem, stopped, legal_only=legal_only, tick=tick, wide=True)


def _most(problem: Problem, one_by_one: bool) -> int:
    """Legal rows of the usual candidates up to which all are searched."""
    named = NARROWED & (problem.options.named | names_of(problem.options.constraints))
    most = _NAMED if named else _FEW
    return most // _WRITTEN if one_by_one or not is_plain(problem) else most

"""Answers without reasons, remedies and odds: searches of their own, which other tests judge."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from meshwright.solver.answer import Infeasibility

# each returns its third argument
ADDED = ("with_remedies", "_too_late", "with_reasons", "with_odds")


@contextmanager
def unexplained() -> Iterator[None]:
    """Searches that say what is best, or that nothing fits, and no more."""
    with ExitStack() as undone:
        for name in ADDED:
            undone.enter_context(patch(f"meshwright.solver.planner.plan.{name}", lambda *given: given[2]))
        nothing = Infeasibility(reasons=())
        undone.enter_context(patch("meshwright.solver.search.search._reasons", lambda *_given: nothing))
        yield

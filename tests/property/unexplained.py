"""Answers without reasons, remedies and odds: searches of their own, which other tests judge."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from meshwright.solver.answer import Infeasibility

ADDED = {
    "no_plan.with_remedies": 0,
    "no_plan.run_too_late": 1,
    "plan.with_reasons": 2,
    "plan.with_odds": 2,
}  # what each returns of its arguments


@contextmanager
def unexplained() -> Iterator[None]:
    """Searches that say what is best, or that nothing fits, and no more."""
    with ExitStack() as undone:
        for name, at in ADDED.items():
            undone.enter_context(
                patch(f"meshwright.solver.planner.{name}", lambda *given, at=at: given[at])
            )
        nothing = Infeasibility(reasons=())
        undone.enter_context(
            patch("meshwright.solver.planner.no_plan.reasons_of_none", lambda *_given: nothing)
        )
        yield

"""Errors of the solver; the tree is drawn in profiles/errors.py."""

from __future__ import annotations

from profiles.errors import InternalError


class ProofMismatchError(InternalError):
    """Two exact methods disagree on the same problem: a bug, never a choice."""

    code = "proof_mismatch"


class InvalidPlanError(InternalError):
    """The independent check refused a plan that the search was about to return."""

    code = "invalid_plan"

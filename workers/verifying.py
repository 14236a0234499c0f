"""Verifications as a worker runs them: one at a time, each in a process of its own with its own limits."""

from __future__ import annotations

import logging

from meshwright.profiles.errors import InvalidProblemError, PlannerError, RefusedExportError
from meshwright.service.stores.verifications import Verifications, not_built

_log = logging.getLogger(__name__)


def verify_next(store: Verifications, *, memory_bytes: int, time_s: float) -> bool:
    """Put the plan that waits longest before its launcher; False: none waits."""
    asked = store.claim()
    if asked is None:
        return False
    from meshwright.service.verify.verify import verify  # noqa: PLC0415 - all launchers: a worker starts without them

    try:
        found = verify(asked.plan, asked.problem, memory_bytes=memory_bytes, time_s=time_s).to_json()
    except PlannerError as fault:
        faulty = isinstance(fault, InvalidProblemError | RefusedExportError)
        reasons = [one.sentence() for one in fault.errors] if faulty else [str(fault)]  # type: ignore[attr-defined]
        found = not_built(*reasons)
    except Exception as fault:  # noqa: BLE001 - searches beside it go on, and it is not tried for ever
        _log.exception("plan %s could not be verified", asked.plan_id)
        found = not_built(f"an error of our own, {type(fault).__name__}: {fault}")
    _log.info("plan %s: %s", asked.plan_id, found["verdict"])
    store.settle(asked.tenant, asked.plan_id, found)
    return True

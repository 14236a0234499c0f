"""Verifications as a worker runs them: one at a time, each in a process of its own with its own limits.

The claim is renewed while the launcher builds; a worker that is asked to leave stops the launcher and gives
the plan back, and one that has lost its claim stops it as well.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from meshwright.profiles.errors import InvalidProblemError, PlannerError, RefusedExportError, StoppedError
from meshwright.service.db.database import DATABASE_AWAY
from meshwright.service.stores.verifications import ClaimedPlan, Verifications, not_built
from meshwright.workers.outage import OUTAGE

_log = logging.getLogger(__name__)


def verify_next(
    store: Verifications, *, memory_bytes: int, time_s: float, leaving: threading.Event
) -> bool:
    """Put the plan that waits longest before its launcher; False: none waits, or this worker leaves."""
    if leaving.is_set():
        return False
    asked = store.claim()
    if asked is None:
        return False
    from meshwright.service.verify.verify import verify  # noqa: PLC0415 - all launchers: a worker starts without them

    lost = threading.Event()
    began_s = _cpu_s()
    try:
        with _kept(store, asked, lost):
            found = verify(
                asked.plan, asked.problem, memory_bytes=memory_bytes, time_s=time_s,
                stop=lambda: leaving.is_set() or lost.is_set(),
            ).to_json()  # fmt: skip
    except StoppedError:
        store.spent(asked, _cpu_s() - began_s)
        if store.give_back(asked):
            return False
        _log.warning("another worker has taken plan %s", asked.plan_id)
        return True
    except PlannerError as fault:
        faulty = isinstance(fault, InvalidProblemError | RefusedExportError)
        reasons = [one.sentence() for one in fault.errors] if faulty else [str(fault)]  # type: ignore[attr-defined]
        found = not_built(*reasons)
    except Exception as fault:  # noqa: BLE001 - other searches go on, and it is not tried for ever
        _log.exception("plan %s could not be verified", asked.plan_id)
        found = not_built(f"an internal error, {type(fault).__name__}: {fault}")
    store.spent(asked, _cpu_s() - began_s)
    said = found["verdict"] if store.settle(asked, found) else "another worker's by now"
    _log.info("plan %s: %s", asked.plan_id, said)
    return True


def _cpu_s() -> float:
    """Return the CPU seconds of the launchers that have ended, which build in processes of their own."""
    spent = os.times()
    return spent.children_user + spent.children_system


@contextmanager
def _kept(store: Verifications, asked: ClaimedPlan, lost: threading.Event) -> Iterator[None]:
    """Renew the claim three times a lease until this ends; ``lost`` is set when it is another worker's.

    A database that is away is asked again.
    """
    ended = threading.Event()

    def renew() -> None:
        while not (lost.is_set() or ended.wait(store.lease_s / 3.0)):
            try:
                if not store.keep(asked):
                    lost.set()
                OUTAGE.over()
            except DATABASE_AWAY as fault:
                OUTAGE.noticed(fault)

    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()

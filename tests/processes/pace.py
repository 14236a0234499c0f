"""CPU seconds as the machine would count them on which the limits of tests were written.

A limit in seconds says how much work something may be. A slower machine takes longer for the same work, and
for what is repeated here as well: what is measured is divided by how much longer that takes. Neighbours on
a processor slow down additions little, and new objects, which need its caches, a lot: the slower counts.
"""

import time
from collections.abc import Callable
from functools import cache
from statistics import median


def _adds() -> None:
    total = 0
    for number in range(500_000):
        total += number


def _makes_objects() -> None:
    made = {}
    for number in range(30_000):
        made[number, 7 * number] = [number, str(number)]


# CPU seconds of CPython 3.11, on that machine
_WORK_S: dict[Callable[[], None], float] = {_adds: 0.028, _makes_objects: 0.017}


def _slowed(work: Callable[[], None], usual_s: float) -> float:
    began_s = time.process_time()
    work()
    return (time.process_time() - began_s) / usual_s


def pace_now() -> float:
    """How many times as long this machine takes at this moment; 1 where it is no slower."""
    slowed = (median(_slowed(*one) for _ in range(3)) for one in _WORK_S.items())
    return max(*slowed, 1.0)


@cache
def pace() -> float:
    """How many times as long this machine takes, measured once a process; 1 where it is no slower."""
    return pace_now()


def work_s() -> float:
    """The CPU seconds of this process, as that machine would count them."""
    return time.process_time() / pace()

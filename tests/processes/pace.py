"""CPU seconds as the machine would count them on which the limits of tests were written.

A limit in seconds says how much work something may be. A slower machine takes longer for the same work, and
for a loop of additions as well: what is measured is divided by how much longer the loop takes.
"""

import time
from functools import cache
from statistics import median

_ADDITIONS = 500_000
_LOOP_S = 0.028  # of CPython 3.11 for so many, on that machine


def _loop_s() -> float:
    began_s, total = time.process_time(), 0
    for number in range(_ADDITIONS):
        total += number
    return time.process_time() - began_s


def pace_now() -> float:
    """How many times as long this machine takes at this moment; 1 where it is no slower."""
    return max(median(_loop_s() for _ in range(5)) / _LOOP_S, 1.0)


@cache
def pace() -> float:
    """How many times as long this machine takes, measured once a process; 1 where it is no slower."""
    return pace_now()


def work_s() -> float:
    """The CPU seconds of this process, as that machine would count them."""
    return time.process_time() / pace()

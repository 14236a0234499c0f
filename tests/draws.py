"""How many random requests a property is held against: few in ``make test``, more in ``make fuzz``."""

import os

TIMES = int(os.environ.get("MESHWRIGHT_TEST_DRAWS", "1"))


def draws(of_every_day: int) -> int:
    """So many; ``MESHWRIGHT_TEST_DRAWS=30`` makes thirty times as many of them."""
    return of_every_day * TIMES

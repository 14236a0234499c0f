"""How many random requests a property is held against: few in ``make test``, more in ``make fuzz``."""

import os

TIMES = int(os.environ.get("MESHWRIGHT_TEST_DRAWS", "1"))


def draws(of_every_day: int, *, of_more: int = 0) -> int:
    """So many; ``MESHWRIGHT_TEST_DRAWS=30`` makes thirty times as many of them, or of ``of_more``.

    Draws that take seconds each are one or two every day, and as many as ever where more is drawn.
    """
    return of_every_day if TIMES == 1 else max(of_every_day, of_more) * TIMES

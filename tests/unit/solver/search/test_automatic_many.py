"""Orders made for many times at once are those made one by one."""

import numpy as np
import pytest

from meshwright.solver.schedules.orders import automatic_finish_of_many_s, automatic_finish_s, candidates
from meshwright.solver.schedules.schedule import AUTOMATIC


@pytest.mark.parametrize(("schedule", "pp", "micros"), [("zb_1p", 2, 3), ("zb_1p", 4, 9), ("zb_2p", 3, 8)])
def test_orders_made_side_by_side_end_when_those_made_one_by_one_do(
    schedule: str, pp: int, micros: int
) -> None:
    forward, inputs, weight = np.random.default_rng(7).uniform(0.5, 1.5, (3, 20, pp))
    found = automatic_finish_of_many_s(forward, inputs, weight, num_microbatches=micros, schedule=schedule)
    passes = forward.tolist(), inputs.tolist(), weight.tolist()
    limits = candidates(pp, micros, AUTOMATIC[schedule] * pp)
    alone = [
        [
            automatic_finish_s(tuple(f), tuple(i), tuple(w), limit)[0]
            for f, i, w in zip(*passes, strict=True)
        ]
        for limit in limits
    ]
    assert found.tolist() == alone

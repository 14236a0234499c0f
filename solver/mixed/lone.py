"""The pipelines of one node group under the bounds of placed stages, (H) among them."""

from __future__ import annotations

import numpy as np

from solver.mixed.field import Field
from solver.mixed.fleet import Berth, Fleet
from solver.mixed.outer import Outer
from solver.mixed.reach import Reach
from solver.search.rows import Rows


def may_step_within(fleet: Fleet, rows: Rows, step_s: float) -> bool:
    """Whether some row has a split that the bounds leave within a time; *no* is a proof.

    Each row is a field with room for all of its stages on one berth, which no transfer leaves.
    """
    outer = Outer(
        fleet=fleet,
        columns=rows.columns,
        berths=(Berth(group=0, tensor_parallel_size=1),),  # named by no price
        rows=(rows,),
        room=rows.p[None, :],
        sent_bytes=np.zeros((1, len(rows))),
    )
    fields = (Field(outer=outer, row=row, berths=(0,)) for row in range(len(rows)))
    return any(Reach(field).can_beat(step_s) for field in fields)

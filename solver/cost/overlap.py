"""What is seen of collectives that run beside computing."""

from __future__ import annotations

import numpy as np

from solver.columns import FloatArray

# What overlapped communication slows computing by: 1.126 on 2 x 8 A100 (Galvatron, overlap_coefficient),
# 1.15 (Sailor, arXiv:2504.17096).
OVERLAP_SLOWDOWN = 0.13


def exposed_s(seconds: FloatArray, hiding_s: FloatArray, least: FloatArray | float) -> FloatArray:
    """What is seen of a collective that runs beside ``hiding_s`` of computing.

    ``max(x - h, 0)`` is left over. Of what runs at the same time at least a share is seen as well: both
    use the GPU's multiprocessors and memory, so computing goes slower meanwhile.
    """
    beside = np.minimum(seconds, hiding_s)
    return np.asarray(seconds - beside + least * beside)

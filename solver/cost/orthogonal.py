"""Muon over shards of matrices: what ranks exchange to orthogonalise whole ones, and how long that takes.

As many matrices of one shape as there are ranks are dealt out, one to each. The last ones of a shape are
padded. Ranks send each matrix's owner their rows in bf16, and get the rows of the update back
(axolotl-contribs-mit 0.0.6 ``muon/dist_muon.py:383``, ``:402``, ``dion/opt_utils.py create_param_batches``,
``pad_batch``). Routed experts are cut between matrices, and each rank has whole ones (``:246``).
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

import numpy as np

from meshwright.profiles.adapters import single_layers
from meshwright.profiles.collectives.collectives import Group, all_to_all_s
from meshwright.profiles.model import ModelSpec
from meshwright.solver.configuration import FloatArray

ITERATIONS = 5.0
_BYTES = 2.0  # of an element, bf16


@lru_cache(maxsize=64)
def matrices(model: ModelSpec) -> tuple[tuple[int, int, int], ...]:
    """Return inputs, outputs and number of the matrices of all layers, without routed experts."""
    found = Counter[tuple[int, int]]()
    for shape in model.layer_shapes():
        layers = single_layers(model.shaped(shape), shape.kind).values()
        found.update((one.inputs, one.outputs) for one in layers)
    return tuple((*sizes, count) for sizes, count in found.items())


def dealt_s(model: ModelSpec, group: Group, flops_per_s: float) -> FloatArray:
    """Return the seconds of exchanges and iterations of all layers, by the ranks that share the matrices.

    Args:
        model: its layers' matrices are dealt out.
        group: ranks that share them, shape (n,).
        flops_per_s: of a product in bf16.
    """
    seconds = np.zeros_like(group.size)
    for inputs, outputs, count in matrices(model):
        short, long = sorted((inputs, outputs))
        flops = ITERATIONS * (4.0 * short**2 * long + 2.0 * short**3)
        sent_s = all_to_all_s(np.full_like(group.size, _BYTES * inputs * outputs), group)
        each_s = flops / flops_per_s + np.where(group.size > 1, 2.0 * sent_s, 0.0)
        seconds = seconds + np.ceil(count / group.size) * each_s
    return np.asarray(seconds)

"""Moments in unified memory, which pages in and out: bitsandbytes' paged optimizers.

They are memory of the GPU until it is full. Then the driver evicts what moved there longest ago, and an
update brings each tensor's moments back before its kernel (bitsandbytes 0.50 ``optim/optimizer.py
prefetch_state``). Updates go through all tensors in one order. Where the moments do not all fit, the oldest
page is the one that is needed next, and each of them leaves and returns in every step.
"""

from __future__ import annotations

from functools import lru_cache

from meshwright.profiles.adapters import (
    adapted_layers,
    copied_parameters,
    rotation_weights,
    tower_adapters,
)
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.optimizers import PAGED_ELEMENTS

# Copies of a page in a step: out and in, one after the other. bitsandbytes' documentation expects half of
# the link's rate for what is evicted (docs/source/explanations/optimizers.mdx: 1 GB over 16 GB/s: 125 ms).
PAGE_COPIES = 2.0


@lru_cache(maxsize=64)
def trained_tensors(
    model: ModelSpec,
    targets: tuple[str, ...],
    rank: int,
    modules: tuple[str, ...],
    *,
    rotates: bool = False,
) -> tuple[int, ...]:
    """Return the elements of each matrix of adapters, and of modules trained next to them; else none."""
    if not rank:
        return ()
    layers = [
        (layer, max(layer.experts, 1))
        for shape in model.layer_shapes()
        for layer in adapted_layers(model.shaped(shape), shape.kind, targets)
    ]
    of_tower = [(layer, 1) for layer, count in tower_adapters(model, targets) for _ in range(count)]
    adapters = (
        side * count
        for layer, count in (*layers, *of_tower)
        for side in (
            (rotation_weights(layer.inputs, rank),)
            if rotates
            else (rank * layer.inputs, rank * layer.outputs)
        )
    )
    return (*adapters, *(copied_parameters(model, name) for name in modules))


def paged_share(
    model: ModelSpec,
    targets: tuple[str, ...],
    rank: int,
    modules: tuple[str, ...],
    *,
    rotates: bool = False,
) -> float:
    """Return the share of trained weights in tensors that are paged: of ``PAGED_ELEMENTS`` or more.

    1 without adapters: norms and biases are smaller, and few.
    """
    sizes = trained_tensors(model, targets, rank, modules, rotates=rotates)
    return sum(size for size in sizes if size >= PAGED_ELEMENTS) / sum(sizes) if sizes else 1.0

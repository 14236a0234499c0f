"""Splits of interleaved rows: which ones the space offers, and the regular ones among them."""

from __future__ import annotations

import numpy as np

Split = tuple[int, ...]


def windows(
    num_layers: int, chunks: int, *, first: int, last: int, smallest: int, starts: int
) -> list[Split]:
    """Splits into q and q + 1 layers whose larger chunks follow one another.

    Args:
        num_layers: of the model.
        chunks: pp * vpp.
        first: layers that the model's first chunk lacks.
        last: layers that its last chunk lacks.
        smallest: least number of layers of a chunk.
        starts: how many beginnings of the window are tried, evenly spaced.
    """
    each, more = divmod(num_layers + first + last, chunks)
    begins = np.unique(np.linspace(0, chunks - more, starts).astype(np.int64)) if more else np.zeros(1)
    found = []
    for begin in begins.astype(np.int64).tolist():
        sizes = [each + int(begin <= chunk < begin + more) for chunk in range(chunks)]
        sizes[0] -= first
        sizes[-1] -= last
        if min(sizes) >= smallest:
            found.append(tuple(sizes))
    return found


def balanced(split: Split, pp: int) -> list[Split]:
    """The layers of each rank of ``split`` laid out as evenly as can be, larger chunks first or last."""
    vpp = len(split) // pp
    ranks = [divmod(sum(split[rank::pp]), vpp) for rank in range(pp)]
    orders = (range(vpp), range(vpp)[::-1])
    return [
        tuple(each + int(order[chunk] < more) for chunk in range(vpp) for each, more in ranks)
        for order in orders
    ]

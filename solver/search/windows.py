"""Splits of interleaved rows: which ones the space offers, and the regular ones among them."""

from __future__ import annotations

from functools import lru_cache
from itertools import product

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


@lru_cache(maxsize=256)
def balanced(split: Split, ranks: tuple[int, ...]) -> list[Split]:
    """The layers of each rank of ``split`` laid out as evenly as can be, larger chunks first or last.

    Args:
        split: layers of each chunk.
        ranks: the rank that holds each chunk.
    """
    chunks = [[c for c, own in enumerate(ranks) if own == rank] for rank in range(max(ranks) + 1)]
    found = []
    for larger_first in (True, False):
        sizes = [0] * len(split)
        for own in chunks:
            each, more = divmod(sum(split[c] for c in own), len(own))
            for number, chunk in enumerate(own if larger_first else reversed(own)):
                sizes[chunk] = each + int(number < more)
        found.append(tuple(sizes))
    return found


def ends_in_a_v(split: Split, smallest: int, places: int) -> list[Split]:
    """``split`` with the layers of a V's first rank moved between its chunks, the model's first and last.

    Args:
        split: layers of each chunk.
        smallest: least number of layers of a chunk.
        places: how many sizes of the first chunk are tried, evenly spaced up to half of the rank's layers.
    """
    own = split[0] + split[-1]
    first = np.unique(np.linspace(smallest, max(own // 2, smallest), places).astype(np.int64)).tolist()
    return [(size, *split[1:-1], own - size) for size in first]


@lru_cache(maxsize=256)
def tapers(num_layers: int, pp: int, *, smallest: int, places: int) -> list[Split]:
    """Splits of a pipeline without chunks whose first and last ranks hold fewer layers than those between.

    A pipeline that is not much shorter than its step has few micro-batches in flight at its ends: they
    wait for what is between, whatever they hold. So the ends hold one layer less than an even share, or as
    many as its whole layers, and what that leaves over is spread between them, larger ranks first, last, or
    evenly strewn.

    Args:
        num_layers: of the model.
        pp: ranks.
        smallest: least number of layers of a rank.
        places: how many lengths of either end are tried, evenly spaced up to half the ranks.
    """
    share = num_layers // pp
    ends = np.unique(np.linspace(0, pp // 2, places).astype(np.int64)).tolist()
    found: dict[Split, None] = {}
    for few, first, last in product((share - 1, share), ends, ends):
        between = pp - first - last
        rest = num_layers - few * (first + last)
        if few < smallest or between < 1 or rest < between * max(few, smallest):
            continue
        for middle in _laid_out(rest, between):
            found[(few,) * first + middle + (few,) * last] = None
    return list(found)


def _laid_out(layers: int, ranks: int) -> list[Split]:
    """Layers on neighbouring ranks as evenly as can be: larger ranks first, last, and evenly strewn."""
    each, more = divmod(layers, ranks)
    strewn = ((rank + 1) * more // ranks - rank * more // ranks for rank in range(ranks))
    orders = ([1] * more + [0] * (ranks - more), [0] * (ranks - more) + [1] * more, strewn)
    return [tuple(each + extra for extra in order) for order in orders]

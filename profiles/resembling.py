"""GPU types that the catalog lacks, read as the type whose name is nearest, and how far off that may be.

A name tells the type and the form of a card, not its figures. What they are off by is measured on the
catalog: each of its types is read once as if the catalog lacked it.
"""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache
from math import log
from statistics import NormalDist

import numpy as np

from meshwright.profiles.cluster import GpuSpec
from meshwright.profiles.gpu_words import words_of
from meshwright.profiles.library import MAX_NAME, find_gpu, gpu_names

_LIKENESS = 0.55  # of names, as difflib counts it: h100-nvl-94gb is like h100-sxm-80gb
_HELD = 0.8  # of the readings; the spread is that of a normal distribution that holds as many
_Z = NormalDist().inv_cdf(0.5 + _HELD / 2.0)


def resembling_gpu(name: str, without: str = "") -> GpuSpec | None:
    """Return the GPU type whose name is nearest, of the same type if there is one; None: none resembles it.

    Args:
        name: of a GPU that the catalog lacks.
        without: a GPU type to leave out.
    """
    name = name.lower()[:MAX_NAME]
    names = [known for known in gpu_names() if not without or find_gpu(known).slug != without]
    of_type = [known for known in names if _type_of(known) == _type_of(name)]
    near = get_close_matches(name, of_type or names, n=1, cutoff=0.0 if of_type else _LIKENESS)
    return find_gpu(near[0]) if near else None


def resemblance_log_spread(name: str, read_as: str) -> float:
    """Return the standard deviation of ln(figure read / figure of the card), of peaks and of bandwidths.

    Cards of one type in another form or with another memory differ less than two types.
    """
    return _spreads()[_type_of(name) == _type_of(read_as)]


def _type_of(name: str) -> str:
    words = words_of(name)
    return words.type if words else name


@cache
def _spreads() -> dict[bool, float]:
    """Return the spreads of readings of another type, and of the same."""
    off: dict[bool, list[float]] = {True: [], False: []}
    for slug in sorted({find_gpu(name).slug for name in gpu_names()}):
        gpu, near = find_gpu(slug), resembling_gpu(slug, without=slug)
        if near is not None:
            peaks = abs(log(near.peak_bf16_flops / gpu.peak_bf16_flops))
            rates = abs(log(near.hbm_bytes_per_s / gpu.hbm_bytes_per_s))
            off[_type_of(slug) == _type_of(near.slug)].append(max(peaks, rates))
    return {alike: float(np.quantile(sizes, _HELD)) / _Z for alike, sizes in off.items()}

"""GPU types that the catalog lacks, read as the type whose name is nearest, and how far off that may be.

A name begins with its generation and says then the class, the form and the memory: B100 is nearer to B200
than to V100. It does not tell the figures. What they are off by is measured on the catalog: each of its
types is read once as if the catalog lacked it.
"""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from functools import cache
from itertools import takewhile
from math import log
from statistics import NormalDist

import numpy as np

from meshwright.profiles.cluster import GpuSpec
from meshwright.profiles.gpu_words import spaced, words_of
from meshwright.profiles.library import MAX_NAME, find_gpu, gpu_names

_HELD = 0.8  # of the readings; the spread is that of a normal distribution that holds as many
_Z = NormalDist().inv_cdf(0.5 + _HELD / 2.0)


def resembling_gpu(name: str, without: str = "") -> GpuSpec | None:
    """Return the GPU type whose name is nearest; None: none begins with the same letters.

    Of the generation that the name states, as in RTX 3000 Ada. Of the same type if there is one, else with
    the longest common beginning of the types (h100 and h200, rtx2070 and rtx2080ti), then with the most
    similar name.

    Args:
        name: of a GPU that the catalog lacks.
        without: a GPU type to leave out.
    """
    name = name.lower()[:MAX_NAME]
    type_, stated = _type_of(name), _architectures() & {*spaced(name).split()}
    best: tuple[int, bool, float] = (0, False, 0.0)
    nearest = None
    for known in gpu_names():
        types = [one for one in _types_of(known) if _letters(one) == _letters(type_)]
        gpu = find_gpu(known)
        if not types or gpu.slug == without or (stated and gpu.architecture not in stated):
            continue
        begins = max(_common(type_, one) for one in types)
        alike = (begins, type_ in types, SequenceMatcher(None, name, known).ratio())
        if alike > best:
            best, nearest = alike, gpu
    return nearest


def resemblance_log_spread(name: str, read_as: str) -> float:
    """Return the standard deviation of ln(figure read / figure of the card), of peaks and of bandwidths.

    Cards of one type in another form or with another memory differ less than two types.
    """
    return _spreads()[_type_of(name) == _type_of(read_as)]


@cache
def _architectures() -> frozenset[str]:
    return frozenset(find_gpu(name).architecture for name in gpu_names())


def _type_of(name: str) -> str:
    words = words_of(name)
    return words.type if words else name


@cache
def _types_of(known: str) -> frozenset[str]:
    """Return the type of a name of the catalog, and without its family: rtxa6000 and a6000."""
    words = words_of(known)
    return words.types if words else frozenset({known})


def _common(one: str, other: str) -> int:
    """Return how many characters two types begin with in common."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _letters(type_: str) -> str:
    """Return what a type begins with, which is its family: b of b200, mi of mi300x."""
    return re.match(r"[a-z]*", type_)[0]  # type: ignore[index]  # an empty match is a match


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

"""Lengths of training documents: how they fill sequences, and the cost of unequal work.

*Packing* puts whole documents into sequences of ``seq_length`` tokens, each attending to itself alone;
*padding* fills up the sequence of every single document; *padding to the longest* fills it up to the
longest document of its micro-batch alone, so that lengths differ. A step that packs waits for whoever
has the longest documents: attention's work grows with the sum of squared lengths, all else with the tokens,
which are equal (Wang et al. 2025, WLB-LLM, arXiv:2503.17924, section 3).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from math import isfinite
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from meshwright.profiles.documents import pointer, shown
from meshwright.profiles.errors import UNKNOWN_FIELD, FieldError, InvalidProblemError

Batching = Literal["packing", "padding", "padding_to_longest"]
BATCHINGS: tuple[Batching, ...] = get_args(Batching)
Documents = tuple[tuple[float, float], ...]  # (tokens of a document, share of all tokens in such ones)
FloatArray = NDArray[np.float64]

MAX_ENTRIES = 1024  # of a histogram, or percentiles
_TOLERANCE = 1e-6  # of shares that sum up to 1
_WHOLE = 100.0  # percent
_FEWEST, _MOST = 4096, 32_768  # documents that are packed to see how sequences fill up
_SEQUENCES = 256  # of packed documents, where that many documents fill them
_KINDS = 8  # lengths that attention is priced at
_ATOMS, _APART = 192, 64  # values of a sequence's work: groups of equal size, and the longest one by one
_FEW_LENGTHS = 256  # that a list of lengths is stated by one by one
_DRAWN = 4096  # micro-batches that are drawn to estimate their longest documents
_RATIO, _STEPS = 1.6, 7  # lengths that a micro-batch is priced at: the longest and shorter ones
_CELLS = 2048  # of a distribution
_RAMP = 2.0  # slots at either end of a pipeline, for each stage but one
_SPREADS = 10.0  # standard deviations to either side that it reaches


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceLengths:
    """A distribution of lengths: percentiles, linear in between, or a histogram."""

    batching: Batching = "packing"
    percentiles: tuple[tuple[float, int], ...] = ()  # (percent of the documents, tokens at most), growing
    histogram: tuple[tuple[int, float], ...] = ()  # (tokens, share of the documents), growing

    @classmethod
    def equal(cls, tokens: int) -> SequenceLengths:
        """Return the distribution in which every document has that many tokens."""
        return cls(percentiles=((0.0, tokens), (_WHOLE, tokens)))

    @property
    def longest(self) -> int:
        """Return the tokens of the longest document."""
        return self.percentiles[-1][1] if self.percentiles else self.histogram[-1][0]

    def at(self, shares: FloatArray) -> FloatArray:
        """Return the least length that these shares of documents do not exceed, in tokens, shape (n,)."""
        if self.percentiles:
            percents, tokens = np.array(self.percentiles).T
            return np.asarray(np.interp(shares * _WHOLE, percents, tokens))
        tokens, each = np.array(self.histogram).T
        last = len(tokens) - 1
        return np.asarray(tokens[np.minimum(np.searchsorted(np.cumsum(each), shares), last)])

    def to_mapping(self) -> dict[str, object]:
        """Return the mapping of a request; ``lengths_from_mapping`` reads it."""
        if self.percentiles:
            return {
                "batching": self.batching,
                "percentiles": {f"p{percent:.15g}": tokens for percent, tokens in self.percentiles},
            }
        histogram = [{"length": tokens, "share": share} for tokens, share in self.histogram]
        return {"batching": self.batching, "histogram": histogram}


# --------------------------------------------------------------------------------------------------
# How documents fill sequences.


@dataclass(frozen=True, kw_only=True, eq=False)
class FilledSequences:
    """Documents as they lie in sequences."""

    real_share: float  # of all tokens: the others are padding
    documents: Documents  # of the real tokens; the shares sum up to 1
    lengths: FloatArray  # of documents as they were packed, (k,)
    sequence: NDArray[np.int64]  # that each of them lies in, (k,)

    def work(self, work_of: Callable[[float], float]) -> Work:
        """Return the work of sequences that hold documents with the work ``work_of(tokens)``."""
        tokens, which = np.unique(self.lengths, return_inverse=True)
        each = np.array([work_of(float(length)) for length in tokens])[which.ravel()]
        return Work.of(np.bincount(self.sequence, weights=each).astype(np.float64))

    def longest(self, size: int) -> FloatArray:
        """Return the tokens of the longest of ``size`` documents in equally likely draws, ascending."""
        tokens = np.sort(self.lengths)
        return tokens[(_middles(_DRAWN) ** (1.0 / size) * len(tokens)).astype(np.int64)]

    @cached_property
    def grid(self) -> FloatArray:
        """Return a few lengths, ascending from the shortest document's to the longest one's."""
        shortest, longest = float(self.lengths.min()), float(self.lengths.max())
        grid = longest / _RATIO ** np.arange(_STEPS, -1, -1)
        return np.asarray(np.append(shortest, grid[grid > shortest]) if shortest < longest else grid[-1:])

    def at_grid(self, size: int) -> FloatArray:
        """Return the share of micro-batches of ``size`` documents at each length of the grid.

        A length between two of them is shared out among both, so that tokens are exact.
        """
        longest, grid = self.longest(size), self.grid
        if len(grid) == 1:
            return np.ones(1)
        at = np.clip(np.searchsorted(grid, longest) - 1, 0, len(grid) - 2)
        upper = (longest - grid[at]) / (grid[at + 1] - grid[at])
        found = np.bincount(at, weights=1.0 - upper, minlength=len(grid))
        found += np.bincount(at + 1, weights=upper, minlength=len(grid))
        return np.asarray(found / len(longest))


@lru_cache(maxsize=64)
def filled(lengths: SequenceLengths, seq_length: int) -> FilledSequences:
    """Return how documents of these lengths lie in sequences of ``seq_length`` tokens.

    The documents are quantiles in the middle of equal shares, so that no chance is in it. Packed, each goes
    into the sequence that it fills best, longest first (best-fit decreasing; TRL's ``bfd``; Axolotl,
    ms-swift and LLaMA-Factory pack by kin of it), and sequences come in any order.
    """
    mean = float(lengths.at(_middles(_FEWEST)).mean())
    number = int(np.clip(_SEQUENCES * seq_length / mean, _FEWEST, _MOST))
    tokens = np.maximum(np.rint(lengths.at(_middles(number))), 1.0)
    if lengths.batching != "packing":
        share, sequence = float(tokens.mean()) / seq_length, np.arange(number)
    else:
        tokens = tokens[::-1]
        sequence = _best_fit_decreasing(tokens, seq_length)
        share = float(tokens.sum()) / (seq_length * (int(sequence.max()) + 1))
    return FilledSequences(
        real_share=share,
        documents=_kinds_of(np.sort(tokens)),
        lengths=tokens,
        sequence=np.asarray(sequence, dtype=np.int64),
    )


@lru_cache(maxsize=256)
def packed_share(lengths: SequenceLengths, seq_length: int, multiple: int) -> float:
    """Return the share of all tokens that is real where each packed document is filled up to a multiple.

    What fills documents up may have lain idle at the ends of sequences, so they are packed anew; where it
    did not, a document of s tokens loses (multiple - 1) / 2 of them on the mean.
    """
    found = filled(lengths, seq_length)
    if multiple == 1:
        return found.real_share
    longer = np.ceil(found.lengths / multiple) * multiple
    taken = _sequences_taken(longer, _best_fit_decreasing(longer, seq_length), seq_length)
    return found.real_share * min(_sequences_taken(found.lengths, found.sequence, seq_length) / taken, 1.0)


def _sequences_taken(tokens: FloatArray, sequence: NDArray[np.int64], seq_length: int) -> float:
    """Return the sequences that documents take; the emptiest counts by the share that is filled."""
    full = np.bincount(sequence, weights=tokens) / seq_length
    return float(len(full) - 1 + full.min())


def _middles(number: int) -> FloatArray:
    return (np.arange(number) + 0.5) / number


def _best_fit_decreasing(tokens: FloatArray, seq_length: int) -> NDArray[np.int64]:
    """Return each document's sequence, longest first: the fullest one with room, else a new one."""
    rooms: list[tuple[int, int]] = []  # (free tokens, number of the sequence), ascending
    found, count = np.zeros(len(tokens), dtype=np.int64), 0
    for at, length in enumerate(tokens.astype(np.int64).tolist()):
        place = bisect_left(rooms, (length, 0))
        if place < len(rooms):
            free, number = rooms.pop(place)
        else:
            free, number, count = seq_length, count, count + 1
        found[at] = number
        if free > length:
            insort(rooms, (free - length, number))
    return found


def _kinds_of(tokens: FloatArray) -> Documents:
    """Return a few lengths that represent documents in ascending order, each for as many tokens.

    Their mean over all tokens is that of the documents, so that causal work without windows is exact.
    """
    ends = np.cumsum(tokens) / tokens.sum()
    kinds = np.minimum((ends * _KINDS - 1e-9).astype(np.int64), _KINDS - 1)
    found = []
    for kind in np.unique(kinds):
        those = tokens[kinds == kind]
        found.append((float((those**2).sum() / those.sum()), float(those.sum() / tokens.sum())))
    return tuple(found)


# --------------------------------------------------------------------------------------------------
# What a step waits for: the expected maximum of unequal work.


@dataclass(frozen=True, eq=False)
class Work:
    """The distribution of one sequence's work; its mean is 1."""

    values: FloatArray  # ascending, (a,)
    shares: FloatArray  # (a,)

    @classmethod
    def of(cls, each: FloatArray) -> Work:
        """Return equally likely sequences; the longest are kept apart, the others in groups."""
        ordered = np.sort(each) / each.mean()
        groups = np.array_split(ordered[:-_APART], min(_ATOMS, max(len(ordered) - _APART, 0)) or 1)
        apart = np.array_split(ordered[-_APART:], len(ordered[-_APART:]))
        kept = [group for group in (*groups, *apart) if len(group)]
        shares = np.array([len(group) for group in kept]) / len(ordered)
        return cls(np.array([group.mean() for group in kept]), shares)

    def expected_maximum(self, ranks: float, sequences: float) -> float:
        """Return the busiest rank's expected work over the mean, of ``ranks`` with ``sequences`` each.

        ``E[max] = sum x (F(x)^k - F(x-)^k)`` with F of the sum of n sequences by inverting its
        characteristic function ``phi(t)^n`` on a lattice (sequences are drawn independently of each other).
        """
        if ranks <= 1.0 or self.values[-1] - self.values[0] < _TOLERANCE:
            return 1.0
        found = _most(self, float(ranks), max(round(sequences), 1))
        return max(found, 1.0)

    def waited(self, together: float, stages: float, replicas: float, m: float, size: float) -> float:
        """Return waiting over work, of m micro-batches of ``size`` sequences that replicas begin together.

        Of a pipeline's slots, which m micro-batches fill on p stages, m / (m + 2 (p - 1)) wait for the
        slowest of the p micro-batches in flight: simulated 1F1B pipelines with unequal micro-batches wait
        that long (``tests/unit/solver/cost/test_sequences.py``).
        """
        each = self.expected_maximum(together, size)
        in_flight = self.expected_maximum(together * stages, size)
        at_end = self.expected_maximum(replicas / together, m * size)
        return each + (in_flight - each) * m / (m + _RAMP * (stages - 1.0)) + at_end - 2.0


@lru_cache(maxsize=4096)
def _most(work: Work, ranks: float, sequences: int) -> float:
    points, sums = _sums(work, sequences)
    below = sums**ranks
    return float((points * np.diff(below, prepend=0.0)).sum() / sequences)


@lru_cache(maxsize=256)
def _sums(work: Work, sequences: int) -> tuple[FloatArray, FloatArray]:
    """Return the sum of so many sequences' work: points on a lattice, and cumulative probabilities."""
    low, high = float(work.values[0]), float(work.values[-1])
    spread = float(np.sqrt((work.shares * (work.values - 1.0) ** 2).sum() * sequences))
    reach = _SPREADS * spread + 2.0 * (high - low)
    start = max(sequences * low, sequences - reach)
    width = min(sequences * high, sequences + reach) - start
    cell = width / (_CELLS * 7 / 8)  # room at both ends for the neighbourhood of a point
    start -= cell * _CELLS / 16
    turns = 2.0 * np.pi * np.arange(_CELLS // 2 + 1) / (_CELLS * cell)
    phases = np.exp(-1j * turns[:, None] * (work.values - start / sequences)[None, :])
    smooth = np.exp(-0.5 * (turns * cell) ** 2)  # a spread of one cell: values next to a point do not ring
    spectrum = (phases @ work.shares) ** sequences * smooth
    mass = np.maximum(np.fft.irfft(spectrum, _CELLS), 0.0)
    mass /= mass.sum()
    points = np.asarray(start + cell * np.arange(_CELLS), dtype=np.float64)
    sums = np.minimum(np.cumsum(mass), 1.0).astype(np.float64)
    return points + (sequences - float((points * mass).sum())), sums


# --------------------------------------------------------------------------------------------------
# From a request, or from a list of lengths.


def mapping_of_counts(counts: Mapping[int, int]) -> dict[str, object]:
    """Return documents by their tokens for a request: a histogram, or half percents of many lengths."""
    tokens = sorted(counts)
    number = np.array([counts[length] for length in tokens], dtype=np.float64)
    if len(tokens) <= _FEW_LENGTHS:
        shares = (number / number.sum()).tolist()
        return {
            "histogram": [
                {"length": one, "share": share} for one, share in zip(tokens, shares, strict=True)
            ]
        }
    percents = np.append(np.arange(0.0, _WHOLE, 0.5), [99.9, _WHOLE])
    least = np.searchsorted(np.cumsum(number) / number.sum(), percents / _WHOLE - _TOLERANCE)
    least[-1] = len(tokens) - 1  # however few are as long
    return {
        "percentiles": {
            f"p{one:g}": tokens[at] for one, at in zip(percents.tolist(), least.tolist(), strict=True)
        }
    }


def lengths_from_mapping(raw: Mapping[str, Any], at: tuple[str, ...]) -> SequenceLengths:
    """Read the lengths of a request.

    Args:
        raw: ``batching``, and either ``percentiles`` (``{"p50": 900, "p100": 8192}``) or ``histogram``
            (``[{"length": 900, "share": 0.5}, …]``).
        at: position of ``raw`` in the request.

    Raises:
        InvalidProblemError: something is missing, unknown, out of range or contradictory.
    """
    for name in raw:
        if name not in ("batching", "percentiles", "histogram"):
            raise InvalidProblemError.of(
                pointer(*at, name), UNKNOWN_FIELD, allowed="batching, percentiles, histogram"
            )
    batching = raw.get("batching", "packing")
    if batching not in BATCHINGS:
        raise InvalidProblemError.of(
            pointer(*at, "batching"), f"{shown(str(batching))} is not a way to batch documents",
            allowed=", ".join(BATCHINGS), nearest=BATCHINGS[0],
        )  # fmt: skip
    given = [name for name in ("percentiles", "histogram") if raw.get(name) is not None]
    if len(given) != 1:
        found = "both are given" if given else f"batching={batching} requires document lengths"
        allowed = "one of percentiles, histogram (--lengths p50=900,p100=8192)"
        raise InvalidProblemError.of(pointer(*at), found, allowed=allowed)
    if given == ["percentiles"]:
        return SequenceLengths(
            batching=batching, percentiles=_percentiles(raw["percentiles"], (*at, "percentiles"))
        )
    return SequenceLengths(batching=batching, histogram=_histogram(raw["histogram"], (*at, "histogram")))


def _percentiles(raw: object, at: tuple[str, ...]) -> tuple[tuple[float, int], ...]:
    """Return percentiles in ascending order, the shortest document (p0, 1 token unless stated) first."""
    if not isinstance(raw, Mapping) or not 1 <= len(raw) <= MAX_ENTRIES:
        raise InvalidProblemError.of(
            pointer(*at), "must be an object of percentiles", allowed='{"p50": 900, …, "p100": 8192}'
        )
    found = sorted((_percent(name, at), name, _tokens(value, (*at, name))) for name, value in raw.items())
    for (one, _, shorter), (other, name, longer) in pairwise(found):
        if one == other:
            raise InvalidProblemError.of(pointer(*at, name), f"p{one:g} is given twice")
        if longer < shorter:
            raise InvalidProblemError.of(
                pointer(*at, name), f"{longer} is less than p{one:g}, {shorter}",
                allowed=f"{shorter} or more", nearest=str(shorter),
            )  # fmt: skip
    if found[-1][0] != _WHOLE:
        raise InvalidProblemError.of(
            pointer(*at, "p100"), "is required: the length of the longest document",
            allowed=f"{found[-1][2]} to seq_length",
        )  # fmt: skip
    first = () if found[0][0] == 0.0 else ((0.0, 1),)
    return (*first, *((percent, tokens) for percent, _, tokens in found))


def _percent(name: str, at: tuple[str, ...]) -> float:
    try:
        value = float(name.removeprefix("p")) if name.startswith("p") else -1.0
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= _WHOLE:
        raise InvalidProblemError.of(pointer(*at, name), "is not a percentile", allowed="p0 to p100")
    return value


def _histogram(raw: object, at: tuple[str, ...]) -> tuple[tuple[int, float], ...]:
    if not isinstance(raw, list | tuple) or not 1 <= len(raw) <= MAX_ENTRIES:
        raise InvalidProblemError.of(
            pointer(*at), "must be a list of lengths with their shares",
            allowed=f'1 to {MAX_ENTRIES} of {{"length": 900, "share": 0.5}}',
        )  # fmt: skip
    found: list[tuple[int, float]] = []
    for index, one in enumerate(raw):
        here = (*at, str(index))
        if not isinstance(one, Mapping) or set(one) != {"length", "share"}:
            raise InvalidProblemError.of(
                pointer(*here), "must be a length with its share", allowed='{"length": 900, "share": 0.5}'
            )
        found.append((_tokens(one["length"], (*here, "length")), _share(one["share"], (*here, "share"))))
    seen = dict[int, int]()
    for index, (tokens, _) in enumerate(found):
        if seen.setdefault(tokens, index) != index:
            raise InvalidProblemError.of(pointer(*at, index, "length"), f"{tokens} is given twice")
    total = sum(share for _, share in found)
    if abs(total - 1.0) > _TOLERANCE:
        shares = ", ".join(f"{share / total:.4g}" for _, share in found[:8]) if total else "1"
        raise InvalidProblemError.of(
            pointer(*at), f"the shares add up to {total:.6g}", allowed="a sum of 1",
            nearest=shares + (", …" if len(found) > 8 else ""),  # noqa: PLR2004 - as many as are shown
        )  # fmt: skip
    return tuple(sorted(found))


def _tokens(value: object, at: tuple[str, ...]) -> int:
    if type(value) is not int:
        raise InvalidProblemError.of(pointer(*at), "must be an integer", allowed="1 to seq_length")
    if value < 1:
        raise InvalidProblemError.of(
            pointer(*at), f"{value} is out of range", allowed="1 to seq_length", nearest="1"
        )
    return value


def _share(value: object, at: tuple[str, ...]) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise InvalidProblemError.of(pointer(*at), "must be a number", allowed="from 0 to 1")
    if not 0.0 <= value <= 1.0:
        raise InvalidProblemError.of(
            pointer(*at),
            f"{value:g} is out of range",
            allowed="from 0 to 1",
            nearest=f"{min(max(value, 0.0), 1.0):g}",
        )
    return float(value)


def beyond(lengths: SequenceLengths, most: int, what: str, at: tuple[str, ...]) -> list[FieldError]:
    """Return every length that exceeds ``most`` tokens, which are ``what``."""
    if lengths.percentiles:
        stated = [(pointer(*at, "percentiles", f"p{p:g}"), tokens) for p, tokens in lengths.percentiles]
    else:
        stated = [
            (pointer(*at, "histogram", index, "length"), tokens)
            for index, (tokens, _) in enumerate(lengths.histogram)
        ]
    return [
        FieldError(
            pointer=where,
            message=f"{tokens} is longer than {what}",
            allowed=f"1 to {most}",
            nearest=str(most),
        )
        for where, tokens in stated
        if tokens > most
    ]

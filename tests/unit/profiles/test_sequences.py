from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest

from meshwright.profiles.errors import FieldError, InvalidProblemError
from meshwright.profiles.sequences import (
    SequenceLengths,
    Work,
    beyond,
    filled,
    lengths_from_mapping,
    mapping_of_counts,
    packed_share,
)

AT = ("workload", "lengths")
half = {"length": 5, "share": 0.5}


def read(**raw: object) -> SequenceLengths:
    return lengths_from_mapping(raw, AT)


def fault_of(raw: Mapping[str, Any]) -> FieldError:
    with pytest.raises(InvalidProblemError) as caught:
        lengths_from_mapping(raw, AT)
    return caught.value.errors[0]


def test_percentiles_are_joined_by_straight_lines_from_one_token_on() -> None:
    # from 1 at p0 to 901 at p50: 451 at p25; from 901 to 8101 at p100: 4501 at p75
    lengths = read(percentiles={"p50": 901, "p100": 8101})
    assert lengths.at(np.array([0.25, 0.5, 0.75])) == pytest.approx([451, 901, 4501])
    assert lengths.longest == 8101


def test_a_histogram_has_its_lengths_alone() -> None:
    lengths = read(histogram=[{"length": 4096, "share": 0.25}, {"length": 512, "share": 0.75}])
    assert lengths.at(np.array([0.1, 0.74, 0.76, 1.0])).tolist() == [512, 512, 4096, 4096]


@pytest.mark.parametrize(
    "given",
    [
        {"batching": "padding", "percentiles": {"p0": 16, "p50": 900, "p99.9": 8000, "p100": 8192}},
        {
            "batching": "packing",
            "histogram": [{"length": 512, "share": 0.75}, {"length": 4096, "share": 0.25}],
        },
    ],
)
def test_lengths_are_written_as_they_were_read(given: dict[str, Any]) -> None:
    assert lengths_from_mapping(given, AT).to_mapping() == given


@pytest.mark.parametrize(
    ("raw", "pointer", "words", "nearest"),
    [
        ({}, "", "packing requires document lengths", None),
        ({"percentiles": {"p100": 9}, "histogram": []}, "", "both are given", None),
        ({"percentile": {"p100": 9}}, "/percentile", "unknown field", None),
        ({"percentiles": {"p100": 9}, "batching": "pack"}, "/batching", "pack is not a way", "packing"),
        ({"percentiles": {}}, "/percentiles", "must be an object", None),
        ({"percentiles": {"p50": 900, "p90": 400, "p100": 500}}, "/percentiles/p90", "400 is less", "900"),
        ({"percentiles": {"p50": 900}}, "/percentiles/p100", "is required", None),
        ({"percentiles": {"p101": 900, "p100": 9}}, "/percentiles/p101", "not a percentile", None),
        ({"percentiles": {"p50": -3, "p100": 9}}, "/percentiles/p50", "-3 is out of range", "1"),
        ({"percentiles": {"p50": 1.5, "p100": 9}}, "/percentiles/p50", "must be an integer", None),
        ({"percentiles": {"p50": 3, "p50.0": 3, "p100": 9}}, "/percentiles/p50.0", "given twice", None),
        ({"histogram": []}, "/histogram", "must be a list", None),
        ({"histogram": [half, {"length": 9, "share": 0.3}]}, "/histogram", "up to 0.8", "0.625, 0.375"),
        ({"histogram": [{"length": 5, "share": -0.5}]}, "/histogram/0/share", "-0.5 is out of range", "0"),
        ({"histogram": [{"length": 0, "share": 1.0}]}, "/histogram/0/length", "0 is out of range", "1"),
        ({"histogram": [half, half]}, "/histogram/1/length", "given twice", None),
        ({"histogram": [{"length": 5}]}, "/histogram/0", "must be a length with its share", None),
    ],
)  # fmt: skip
def test_a_bad_distribution_is_refused_where_it_is_bad(
    raw: dict[str, Any], pointer: str, words: str, nearest: str | None
) -> None:
    found = fault_of(raw)
    assert found.pointer == "/workload/lengths" + pointer
    assert words in found.message
    assert found.nearest == nearest


def test_documents_longer_than_a_sequence_are_named_with_the_longest_that_fits() -> None:
    lengths = read(percentiles={"p50": 900, "p90": 5000, "p100": 9000})
    found = beyond(lengths, 4096, "seq_length 4096", AT)
    assert [(one.pointer, one.nearest) for one in found] == [
        ("/workload/lengths/percentiles/p90", "4096"),
        ("/workload/lengths/percentiles/p100", "4096"),
    ]


def test_padding_trains_on_the_mean_length_of_every_sequence() -> None:
    # a quarter of 4096 and three quarters of 512: 1408 of 8192 tokens are real
    lengths = read(
        batching="padding", histogram=[{"length": 512, "share": 0.75}, {"length": 4096, "share": 0.25}]
    )
    assert filled(lengths, 8192).real_share == pytest.approx(1408 / 8192)


def test_packing_fills_sequences_as_far_as_whole_documents_go() -> None:
    # 3 documents of 2500 fill 7500 of 8192; with one of 600 in four they would fill up
    alone = read(histogram=[{"length": 2500, "share": 1.0}])
    assert filled(alone, 8192).real_share == pytest.approx(7500 / 8192, rel=1e-3)
    beside = read(histogram=[{"length": 2500, "share": 0.75}, {"length": 600, "share": 0.25}])
    assert filled(beside, 8192).real_share == pytest.approx(8100 / 8192, rel=2e-3)


def test_what_fills_documents_up_costs_nothing_where_it_lay_idle_anyway() -> None:
    # of 2500 filled up to 2512 three still fit into 8192; of 2700 filled up to 2816 only two
    alone = read(histogram=[{"length": 2500, "share": 1.0}])
    assert packed_share(alone, 8192, 16) == pytest.approx(packed_share(alone, 8192, 1), rel=1e-5)
    assert packed_share(read(histogram=[{"length": 2700, "share": 1.0}]), 8192, 256) == pytest.approx(
        2 * 2700 / 8192, rel=1e-2
    )


@pytest.mark.parametrize("multiple", [4, 16, 64])
@pytest.mark.parametrize("percentiles", [{"p50": 120, "p90": 400, "p100": 4096}, {"p0": 300, "p100": 5000}])
def test_packed_documents_lose_what_fills_them_up(percentiles: dict[str, int], multiple: int) -> None:
    """Against drawn documents, each filled up as Megatron-LM does it: while the pack is no multiple."""
    lengths, stated = read(percentiles=percentiles), tuple(percentiles.items())
    found = packed_share(lengths, 32_768, multiple) / packed_share(lengths, 32_768, 1)
    real = really_packed(stated, multiple) / really_packed(stated, 1)
    assert found == pytest.approx(real, abs=4e-3)  # a sequence of 250 more or less


@cache
def really_packed(percentiles: tuple[tuple[str, int], ...], step: int) -> float:
    """The share of packs of 32,768 tokens that drawn documents fill, each filled up to a multiple."""
    percents, tokens = zip(*sorted((float(name[1:]), at) for name, at in percentiles), strict=True)
    percents, tokens = ((0.0, *percents), (1, *tokens)) if percents[0] else (percents, tokens)
    drawn = np.interp(np.random.default_rng(5).random(30_000) * 100, percents, tokens).round().clip(1)
    free, held = np.full(30_000, 32_768), 0
    for length in np.sort(drawn)[::-1].astype(int).tolist():
        padded = length
        while padded % step:
            padded += 1
        at = int(np.argmax(free[: held + 1] >= padded))
        free[at] -= padded
        held = max(held, at + 1)
    return float(drawn.sum() / (held * 32_768))


def test_the_few_lengths_that_are_priced_have_the_work_of_all_documents() -> None:
    # causal work of a document of s tokens is s (s + 1) / 2; over all tokens the mean of (s + 1) / 2
    found = filled(read(percentiles={"p50": 900, "p90": 4000, "p100": 32768}), 32768)
    mean = (found.lengths * (found.lengths + 1) / 2).sum() / found.lengths.sum()
    assert sum(share * (length + 1) / 2 for length, share in found.documents) == pytest.approx(mean)
    assert sum(share for _, share in found.documents) == pytest.approx(1.0)


@pytest.mark.parametrize(("ranks", "sequences"), [(2, 1), (8, 1), (8, 4), (64, 16), (512, 64)])
def test_the_expected_maximum_is_that_of_drawn_sequences(ranks: int, sequences: int) -> None:
    work = Work(np.array([0.5, 5.5]), np.array([0.9, 0.1]))  # a mean of 1, far from a bell
    drawn = np.random.default_rng(7).random((4000 if ranks < 64 else 150, ranks, sequences)) < 0.1
    busiest = (0.5 + 5.0 * drawn.mean(axis=2)).max(axis=1)
    error = busiest.std() / len(busiest) ** 0.5
    assert work.expected_maximum(ranks, sequences) == pytest.approx(busiest.mean(), abs=4 * error)


def test_equal_sequences_wait_for_nobody() -> None:
    lengths = read(histogram=[{"length": 4096, "share": 1.0}])
    assert filled(lengths, 8192).work(lambda tokens: tokens**2).expected_maximum(64, 2) == 1.0


def test_a_list_of_many_lengths_becomes_percentiles_of_equal_mean() -> None:
    tokens = np.random.default_rng(3).lognormal(6.5, 1.0, 20_000).astype(int).clip(1, 32768)
    counts = dict(zip(*(part.tolist() for part in np.unique(tokens, return_counts=True)), strict=True))
    lengths = lengths_from_mapping(mapping_of_counts(counts), AT)
    found = filled(SequenceLengths(batching="padding", percentiles=lengths.percentiles), 32768)
    assert lengths.longest == tokens.max()
    assert found.lengths.mean() == pytest.approx(tokens.mean(), rel=0.02)

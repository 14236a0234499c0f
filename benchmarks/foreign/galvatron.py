"""Reads the JSON files of Galvatron's profilers (github.com/PKU-DAIR/Hetu-Galvatron).

Units, from ``galvatron/core/profiler`` and the nccl-tests that it starts: computation in ms, memory in
MiB, sizes ``1MB`` = 2**20 bytes, ``sp_time`` in ms, bandwidths are average bus bandwidths in GB/s.
``layertype_N`` times are of one layer and one sequence, ``layernum[L]`` times of the whole pass.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from benchmarks.foreign.records import (
    ForwardPass,
    GalvatronCollectives,
    GroupBandwidth,
    LayerMemory,
    LayerProfile,
    LayerRecord,
    MemoryProfile,
    RankMemory,
)
from meshwright.profiles.importers.foreign_file import (
    MAX_BYTES_PER_S,
    MAX_COUNT,
    MAX_PAYLOAD_BYTES,
    MAX_SECONDS,
    ForeignFile,
)
from meshwright.profiles.measurements import CollectiveTable
from meshwright.profiles.reading import shown
from meshwright.profiles.units import GB, MIB, MILLISECOND_S

# --------------------------------------------------------------------------------------------------
# Reads Galvatron's memory profiles: short runs by layout, and what it distilled from them.
#
# Keys of runs are ``PP_TP_DP`` with the flags ``vtp`` (vocabulary split), ``c`` (recompute) and ``sp``
# (sequence parallel); ``ms`` are model states, ``act`` activations, in MiB.


_LAYOUT = re.compile(r"(\d{1,6})_(\d{1,6})_(\d{1,6})((?:_vtp|_c|_sp)*)")
_FIGURE = re.compile(r"layernum\[(\d{1,6})\]_bsz(\d{1,6})_seq(\d{1,9})_rank(\d{1,6})_(ms|act|act_peak)")
_MEMORY_LAYER = re.compile(r"layertype_(\d{1,3})(?:_sp)?")
_MEMORY_OUTSIDE = re.compile(r"other_memory_pp_(off|on_first|on_last)(?:_sp)?")
_PARTS = {"off": "outside", "on_first": "outside_first_stage", "on_last": "outside_last_stage"}
_FIGURES = {"ms", "act", "act_peak"}
_RECOMPUTED = "checkpoint"

_Run = tuple[int, ...]  # layers, batch, sequence, rank


def looks_like_memory(entries: Mapping[str, object]) -> bool:
    """Whether the first field is a layout with an object of figures."""
    key, value = next(iter(entries.items()))
    patterns = (_LAYOUT, _MEMORY_LAYER, _MEMORY_OUTSIDE)
    return isinstance(value, dict) and any(pattern.fullmatch(key) for pattern in patterns)


def read_memory(file: ForeignFile, entries: Mapping[str, object]) -> MemoryProfile:
    """A memory profile from its JSON object.

    Raises:
        ProfileError: an unknown field, a missing figure, or a number out of range.
    """
    ranks: list[RankMemory] = []
    parts: list[LayerMemory] = []
    for key, value in entries.items():
        figures = file.mapping(value, shown(key))
        layout, layer, outside = (
            pattern.fullmatch(key) for pattern in (_LAYOUT, _MEMORY_LAYER, _MEMORY_OUTSIDE)
        )
        if layout:
            ranks += _ranks(file, layout, figures)
        elif layer:
            parts += [_layer(file, int(layer[1]), key, entry) for entry in figures.items()]
        elif outside:
            parts += [_outside(file, _PARTS[outside[1]], key, entry) for entry in figures.items()]
        else:
            raise file.fault(shown(key), "expected a layout PP_TP_DP, layertype_N or other_memory_…")
    return MemoryProfile(ranks=tuple(ranks), parts=tuple(parts))


def _bytes(file: ForeignFile, value: object, where: str) -> int:
    """A size in MiB as bytes."""
    return round(file.number(value, where, high=MAX_PAYLOAD_BYTES / MIB) * MIB)


def _ranks(file: ForeignFile, layout: re.Match[str], figures: Mapping[str, object]) -> list[RankMemory]:
    """The ranks of the runs of one layout."""
    runs: dict[_Run, dict[str, int]] = {}
    for key, value in figures.items():
        where = f"{layout[0]}, {shown(key)}"
        match = _FIGURE.fullmatch(key)
        if match is None:
            raise file.fault(where, "expected layernum[L]_bszB_seqS_rankR_ms, …_act or …_act_peak")
        run = tuple(int(match[i]) for i in (1, 2, 3, 4))
        runs.setdefault(run, {})[match[5]] = _bytes(file, value, where)
    return [_rank(file, layout, run, found) for run, found in runs.items()]


def _rank(file: ForeignFile, layout: re.Match[str], run: _Run, found: Mapping[str, int]) -> RankMemory:
    """One rank of one run."""
    where = f"{layout[0]}, rank {run[3]}"
    if set(found) != _FIGURES:
        raise file.fault(where, f"expected the figures {', '.join(sorted(_FIGURES))}")
    flags = layout[4].split("_")
    pp, tp, dp = (file.whole(layout[i], where) for i in (1, 2, 3))
    return RankMemory(
        pipeline_parallel_size=pp,
        tensor_parallel_size=tp,
        data_parallel_size=dp,
        sequence_parallel="sp" in flags,
        full_recompute="c" in flags,
        vocabulary_parallel="vtp" in flags,
        num_layers=run[0],
        global_batch_size=run[1],
        seq_length=run[2],
        rank=run[3],
        model_states_bytes=found["ms"],
        activation_bytes=found["act"],
    )


def _by_size(file: ForeignFile, value: object, where: str) -> dict[int, int]:
    """Bytes by tensor-parallel size."""
    entries = file.mapping(value, where)
    return {file.whole(key, where): _bytes(file, size, where) for key, size in entries.items()}


def _layer(file: ForeignFile, kind: int, key: str, entry: tuple[str, object]) -> LayerMemory:
    """One layer for one sequence length."""
    where = shown(key)
    values = file.mapping(entry[1], where)
    activations = dict(file.mapping(values.get("tp_activation_per_bsz_dict"), where))
    recomputed = activations.pop(_RECOMPUTED, None)
    return LayerMemory(
        part="layer",
        layer_type=kind,
        seq_length=file.whole(entry[0], where, high=2**31 - 1),
        weight_bytes=_bytes(file, values.get("parameter_size"), f"{where}, parameter_size"),
        model_states_bytes={},
        activation_bytes=_by_size(file, activations, where),
        recomputed_activation_bytes=None if recomputed is None else _bytes(file, recomputed, where),
    )


def _outside(file: ForeignFile, part: str, key: str, entry: tuple[str, object]) -> LayerMemory:
    """Embedding, head and loss for one sequence length."""
    where = shown(key)
    values = file.mapping(entry[1], where)
    return LayerMemory(
        part=part,
        layer_type=0,
        seq_length=file.whole(entry[0], where, high=2**31 - 1),
        weight_bytes=None,
        model_states_bytes=_by_size(file, values.get("model_states"), f"{where}, model_states"),
        activation_bytes=_by_size(file, values.get("activation"), f"{where}, activation"),
        recomputed_activation_bytes=None,
    )


_PASS = re.compile(r"layernum\[(\d{1,6})\]_bsz(\d{1,6})_seq(\d{1,9})")
_LAYER = re.compile(r"layertype_(\d{1,3})_bsz(\d{1,6})_seq(\d{1,9})")
_OUTSIDE = re.compile(r"layertype_other_bsz(\d{1,6})_seq(\d{1,9})")
_GROUP = re.compile(r"allreduce_size_(\d{1,6})_consec_([01])")
_PIPELINE = re.compile(r"pp_size_(\d{1,6})")
_TIMED = re.compile(r"(allreduce|all2all)_size_(\d{1,6})_(\d{1,6})MB_time")
_OVERLAP = "overlap_coe"
_NAMES = {"allreduce": "all_reduce", "all2all": "all_to_all"}
# bytes that one rank sends over the payload: nccl-tests, doc/PERFORMANCE.md
_BUS_FACTOR = {"all_reduce": 2.0, "all_to_all": 1.0}


def _matches(entries: Mapping[str, object], *patterns: re.Pattern[str]) -> bool:
    """Whether the first field is of one of these kinds."""
    return any(pattern.fullmatch(next(iter(entries))) for pattern in patterns)


def _computation(file: ForeignFile, entries: Mapping[str, object]) -> LayerProfile:
    """Forward times: of passes of few layers, and of single layers."""
    passes: list[ForwardPass] = []
    layers: list[LayerRecord] = []
    for key, value in entries.items():
        seconds = file.positive(value, shown(key), high=MAX_SECONDS / MILLISECOND_S) * MILLISECOND_S
        whole, layer = _PASS.fullmatch(key), _LAYER.fullmatch(key)
        if whole:
            num_layers, batch, seq = (_count(file, whole[i], key) for i in (1, 2, 3))
            passes.append(
                ForwardPass(num_layers=num_layers, micro_batch_size=batch, seq_length=seq, seconds=seconds)
            )
        elif layer:
            batch, seq = (_count(file, layer[i], key) for i in (2, 3))
            record = LayerRecord(
                layer=int(layer[1]),
                tensor_parallel_size=1,
                micro_batch_size=batch,
                seq_length=seq,
                forward_s=seconds * batch,
            )
            layers.append(record)
        elif not _OUTSIDE.fullmatch(key):
            raise file.fault(shown(key), "expected layernum[L]_bszB_seqS or layertype_N_bszB_seqS")
    return LayerProfile(gpu=None, model=None, layers=tuple(layers), passes=tuple(passes))


def _count(file: ForeignFile, text: str, key: str) -> int:
    """A number inside a field's name."""
    return file.whole(text, shown(key), high=2**31 - 1)


def _averages(file: ForeignFile, entries: Mapping[str, object]) -> GalvatronCollectives:
    """Average bandwidths by kind of group."""
    averages = []
    for key, value in entries.items():
        group, pipeline = _GROUP.fullmatch(key), _PIPELINE.fullmatch(key)
        match = group or pipeline
        if match is None:
            raise file.fault(shown(key), "expected allreduce_size_N_consec_0|1 or pp_size_N")
        average = GroupBandwidth(
            collective="all_reduce" if group else "point_to_point",
            num_ranks=file.whole(match[1], shown(key), low=2),
            consecutive=group[2] == "1" if group else None,
            bus_bytes_per_s=file.positive(value, shown(key), high=MAX_BYTES_PER_S / GB) * GB,
        )
        averages.append(average)
    return GalvatronCollectives(averages=tuple(averages))


def _timed(file: ForeignFile, entries: Mapping[str, object]) -> GalvatronCollectives:
    """Times by collective, ranks and size."""
    found: dict[tuple[str, int], dict[int, float]] = {}
    for key, value in entries.items():
        match = _TIMED.fullmatch(key)
        if match is None:
            raise file.fault(shown(key), "expected allreduce_size_N_MMB_time or all2all_size_N_MMB_time")
        num_ranks = file.whole(match[2], shown(key), low=2)
        payload_bytes = file.whole(match[3], shown(key), high=MAX_COUNT) * MIB
        seconds = file.positive(value, shown(key), high=MAX_SECONDS / MILLISECOND_S) * MILLISECOND_S
        found.setdefault((_NAMES[match[1]], num_ranks), {})[payload_bytes] = seconds
    tables = [_table(name, ranks, samples) for (name, ranks), samples in found.items()]
    return GalvatronCollectives(tables=tuple(tables))


def _table(collective: str, num_ranks: int, samples: Mapping[int, float]) -> CollectiveTable:
    """One collective on one number of ranks."""
    factor = _BUS_FACTOR[collective] * (num_ranks - 1) / num_ranks
    ordered = sorted(samples.items())
    return CollectiveTable(
        collective=collective,
        num_ranks=num_ranks,
        num_nodes=None,
        in_place=False,
        payload_bytes=tuple(payload for payload, _ in ordered),
        seconds=tuple(seconds for _, seconds in ordered),
        bus_bytes_per_s=tuple(factor * payload / seconds for payload, seconds in ordered),
    )


def read_galvatron(path: Path | str) -> LayerProfile | MemoryProfile | GalvatronCollectives:
    """A computation or memory profile, bandwidths, times of collectives, or the overlap coefficient.

    Raises:
        ProfileError: no JSON object, an unknown field, or a number out of range.
    """
    file = ForeignFile.open(path)
    entries = file.json()
    if looks_like_memory(entries):
        return read_memory(file, entries)
    if _matches(entries, _PASS, _LAYER, _OUTSIDE):
        return _computation(file, entries)
    if _matches(entries, _GROUP, _PIPELINE):
        return _averages(file, entries)
    if _matches(entries, _TIMED):
        return _timed(file, entries)
    if set(entries) == {_OVERLAP}:
        slowdown = file.number(entries[_OVERLAP], _OVERLAP, low=1.0, high=100.0)
        return GalvatronCollectives(compute_slowdown=slowdown)
    raise file.fault(shown(next(iter(entries))), "is not a field of any of Galvatron's profiles")

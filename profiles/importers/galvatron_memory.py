"""Reads Galvatron's memory profiles: short runs by layout, and what it distilled from them.

Keys of runs are ``PP_TP_DP`` with the flags ``vtp`` (vocabulary split), ``c`` (recompute) and ``sp``
(sequence parallel); ``ms`` are model states, ``act`` activations, in MiB.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from profiles.importers.foreign_file import MAX_PAYLOAD_BYTES, ForeignFile
from profiles.measurements import LayerMemory, MemoryProfile, RankMemory
from profiles.reading import shown
from profiles.units import MIB

_LAYOUT = re.compile(r"(\d{1,6})_(\d{1,6})_(\d{1,6})((?:_vtp|_c|_sp)*)")
_FIGURE = re.compile(r"layernum\[(\d{1,6})\]_bsz(\d{1,6})_seq(\d{1,9})_rank(\d{1,6})_(ms|act|act_peak)")
_LAYER = re.compile(r"layertype_(\d{1,3})(?:_sp)?")
_OUTSIDE = re.compile(r"other_memory_pp_(off|on_first|on_last)(?:_sp)?")
_PARTS = {"off": "outside", "on_first": "outside_first_stage", "on_last": "outside_last_stage"}
_FIGURES = {"ms", "act", "act_peak"}
_RECOMPUTED = "checkpoint"

_Run = tuple[int, ...]  # layers, batch, sequence, rank


def looks_like_memory(entries: Mapping[str, object]) -> bool:
    """Whether the first field is a layout with an object of figures."""
    key, value = next(iter(entries.items()))
    patterns = (_LAYOUT, _LAYER, _OUTSIDE)
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
        layout, layer, outside = (pattern.fullmatch(key) for pattern in (_LAYOUT, _LAYER, _OUTSIDE))
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
        peak_activation_bytes=found["act_peak"],
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

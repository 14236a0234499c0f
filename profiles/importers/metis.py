"""Reads one profile of Metis: ``DeviceType.A100_tp1_bs1.json``.

Format: github.com/SamsungLabs/Metis, README, "Profile Data Structure": times in ms, layer memory in
MB (of torch, so 2**20 bytes), parameters in bytes. GPU, tensor-parallel size and micro-batch stand in
the file's name only. ``layer_compute_total_ms`` is forward and backward together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from meshwright.profiles.importers.foreign_file import MAX_PAYLOAD_BYTES, MAX_SECONDS, ForeignFile
from meshwright.profiles.measurements import LayerProfile, LayerRecord
from meshwright.profiles.units import MIB, MILLISECOND_S

MAX_LAYERS = 10_000
_NAME = re.compile(r"DeviceType\.([A-Za-z0-9_-]{1,32}?)_tp(\d{1,4})_bs(\d{1,6})\.json")
_SECTIONS = ("model", "execution_time", "execution_memory")


def _list(file: ForeignFile, section: Mapping[str, object], name: str, count: int) -> list[object]:
    """A list with one entry for each layer."""
    values = file.entries(section.get(name), name)
    if len(values) != count:
        raise file.fault(name, f"expected {count} entries (num_layers), found {len(values)}")
    return values


def _optional_list(file: ForeignFile, section: Mapping[str, object], name: str, count: int) -> list[object]:
    """The same, or as many times None where the list does not name every layer.

    Metis's own samples leave a layer's memory out, and which one is not to be told.
    """
    values = file.entries(section.get(name), name)
    return values if len(values) == count else [None] * count


def looks_like(file: ForeignFile) -> bool:
    """Whether the text has the sections of such a profile."""
    start = file.text.lstrip()
    return start.startswith("{") and all(f'"{name}"' in start for name in _SECTIONS)


def read_metis(path: Path | str) -> LayerProfile:
    """Forward and backward time, weights and memory of each layer, and the optimizer's share.

    The optimizer is timed for the whole model; a layer gets the share that its weights have.

    Raises:
        ProfileError: a missing section, lists of unequal length, or a name that Metis would not find.
    """
    file = ForeignFile.open(path)
    name = _NAME.fullmatch(Path(path).name)
    if name is None:
        raise file.fault("", "expected a name such as DeviceType.A100_tp1_bs1.json, which says what it is")
    raw = file.json()
    model, times, memory = (file.mapping(raw.get(section), section) for section in _SECTIONS)
    count = file.whole(model.get("num_layers"), "num_layers", high=MAX_LAYERS)
    parameters = file.mapping(model.get("parameters"), "parameters")
    seconds = [
        file.positive(value, "layer_compute_total_ms", high=MAX_SECONDS / MILLISECOND_S) * MILLISECOND_S
        for value in _list(file, times, "layer_compute_total_ms", count)
    ]
    weights = [
        file.whole(value, "parameters_per_layer_bytes", low=0, high=MAX_PAYLOAD_BYTES)
        for value in _list(file, parameters, "parameters_per_layer_bytes", count)
    ]
    sizes = [
        None if value is None else round(file.number(value, "layer_memory_total_mb", high=2**30) * MIB)
        for value in _optional_list(file, memory, "layer_memory_total_mb", count)
    ]
    update_s = file.number(times.get("optimizer_time_ms"), "optimizer_time_ms", high=1e9) * MILLISECOND_S
    total = sum(weights)
    layers = [
        LayerRecord(
            layer=layer,
            tensor_parallel_size=file.whole(name[2], "tp in the file's name"),
            micro_batch_size=file.whole(name[3], "bs in the file's name"),
            forward_backward_s=seconds[layer],
            update_s=update_s * weights[layer] / total if total else None,
            weight_bytes=weights[layer],
            memory_bytes=sizes[layer],
        )
        for layer in range(count)
    ]
    title = model.get("model_name")
    known = title if isinstance(title, str) and title.isprintable() and len(title) <= MAX_LAYERS else None
    return LayerProfile(gpu=name[1], model=known, layers=tuple(layers))

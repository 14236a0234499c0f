"""Reads Sailor's files (github.com/eth-easl/sailor): layer profiles and links between GPUs.

``layer_profiles/MODEL/GPU/profile.json`` is {micro-batch: {tensor parallel size: {layer: [forward,
backward, update]}}} in seconds. A link is [coefficients, peak], nested by GPU type and number of GPUs
(and zones); ``LinkCurve`` says how the coefficients are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.foreign.records import LayerProfile, LayerRecord, LinkCurve, LinkEnd, LinkTable
from meshwright.profiles.importers.foreign_file import MAX_BYTES_PER_S, MAX_SECONDS, ForeignFile
from meshwright.profiles.reading import shown

MAX_COEFFICIENTS = 16
MAX_COEFFICIENT = 1e6
_TIMES = 3  # forward, backward, update
# What Sailor's folders and link files call the entries of our catalog.
CATALOG_NAMES = {
    "A100-40": "a100-sxm-40gb",
    "A100-80": "a100-sxm-80gb",
    "V100-16": "v100-sxm-16gb",
    "OPT-350": "opt-350m",
    "OPT-30": "opt-30b",
    "GPT-Neo-2.7": "gpt-neo-2.7b",
    "LLAMA-3-8": "llama-3.1-8b",
}
_SCOPES = {"intra": "intra_node", "inter": "inter_node"}


def _deep(value: object) -> tuple[int, object]:
    """How many objects are nested along the first entries, and what lies below."""
    depth = 0
    while isinstance(value, dict) and value:
        value = next(iter(value.values()))
        depth += 1
    return depth, value


def _is_curve(value: object) -> bool:
    """Whether a value has the form of a link: [[…], peak]."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], list)


def _curve(file: ForeignFile, value: object, where: str) -> tuple[tuple[float, ...], float]:
    """Coefficients and peak of one link."""
    if not isinstance(value, list) or [isinstance(part, list) for part in value] != [True, False]:
        raise file.fault(where, "expected [[coefficients], peak bytes a second]")
    entries = file.entries(value[0], where)
    if not 1 <= len(entries) <= MAX_COEFFICIENTS:
        raise file.fault(where, f"expected 1 to {MAX_COEFFICIENTS} coefficients")
    coefficients = [file.number(c, where, low=-MAX_COEFFICIENT, high=MAX_COEFFICIENT) for c in entries]
    return tuple(coefficients), file.positive(value[1], f"{where}, peak", high=MAX_BYTES_PER_S)


def _ends(file: ForeignFile, value: object, where: str) -> Iterator[tuple[LinkEnd, object]]:
    """GPU types and counts of one level, with what lies below each."""
    for gpu, counts in file.mapping(value, where).items():
        for count, below in file.mapping(counts, f"{where}/{shown(gpu)}").items():
            num_gpus = file.whole(count, f"{where}/{shown(gpu)}")
            yield LinkEnd(gpu=gpu, num_gpus=num_gpus), below


def _alike(file: ForeignFile, value: object, scope: str, where: str) -> Iterator[LinkCurve]:
    """Links between GPUs of one type."""
    for end, below in _ends(file, value, where):
        at = f"{where}/{shown(end.gpu)}/{end.num_gpus}"
        coefficients, peak = _curve(file, below, at)
        yield LinkCurve(
            scope=scope, sender=end, receiver=end, coefficients=coefficients, peak_bytes_per_s=peak
        )


def _between_zones(file: ForeignFile, entries: Mapping[str, object]) -> Iterator[LinkCurve]:
    """Links between zones, types and numbers of GPUs."""
    for zone, senders in entries.items():
        for sender, zones in _ends(file, senders, shown(zone)):
            where = f"{shown(zone)}/{shown(sender.gpu)}/{sender.num_gpus}"
            for other, receivers in file.mapping(zones, where).items():
                for receiver, below in _ends(file, receivers, f"{where}/{shown(other)}"):
                    at = f"{where}/{shown(other)}/{shown(receiver.gpu)}/{receiver.num_gpus}"
                    coefficients, peak = _curve(file, below, at)
                    yield LinkCurve(
                        scope="inter_node",
                        sender=LinkEnd(gpu=sender.gpu, num_gpus=sender.num_gpus, zone=zone),
                        receiver=LinkEnd(gpu=receiver.gpu, num_gpus=receiver.num_gpus, zone=other),
                        coefficients=coefficients,
                        peak_bytes_per_s=peak,
                    )


def _layers(file: ForeignFile, entries: Mapping[str, object]) -> Iterator[LayerRecord]:
    """Layers by micro-batch and tensor-parallel size."""
    for batch, sizes in entries.items():
        micro_batch_size = file.whole(batch, "micro-batch")
        for size, layers in file.mapping(sizes, f"micro-batch {micro_batch_size}").items():
            tp = file.whole(size, f"micro-batch {micro_batch_size}, tensor parallel size")
            where = f"micro-batch {micro_batch_size}, tp {tp}"
            for layer, times in file.mapping(layers, where).items():
                yield _layer(file, (micro_batch_size, tp), layer, times)


def _layer(file: ForeignFile, at: tuple[int, int], layer: str, times: object) -> LayerRecord:
    """One layer; an update time of 0 was not measured."""
    where = f"micro-batch {at[0]}, tp {at[1]}, layer {shown(layer)}"
    values = file.entries(times, where)
    if len(values) != _TIMES:
        raise file.fault(where, f"expected {_TIMES} times (forward, backward, update)")
    forward, backward, update = (file.number(value, where, high=MAX_SECONDS) for value in values)
    return LayerRecord(
        layer=file.whole(layer, where, low=0),
        tensor_parallel_size=at[1],
        micro_batch_size=at[0],
        forward_s=forward,
        backward_s=backward,
        update_s=update or None,
    )


def read_sailor(path: Path | str) -> LayerProfile | LinkTable:
    """A layer profile, or links inside nodes, between nodes, or between zones.

    GPU and model of a layer profile are the names of its folders, which Sailor puts them in.

    Raises:
        ProfileError: no JSON object, another nesting, or a number out of range.
    """
    file = ForeignFile.open(path)
    entries = file.json()
    depth, below = _deep(entries)
    if not _is_curve(below):
        if depth != _TIMES:
            raise file.fault("", "expected {micro-batch: {tp: {layer: [seconds]}}} or links")
        folders = [shown(part)[1:-1] for part in Path(path).parts[-3:-1]]
        model, gpu = folders if len(folders) == len(("model", "gpu")) else (None, None)
        return LayerProfile(gpu=gpu, model=model, layers=tuple(_layers(file, entries)))
    return LinkTable(links=tuple(_links(file, entries)))


def _links(file: ForeignFile, entries: Mapping[str, object]) -> Iterator[LinkCurve]:
    """The links of any of the three kinds of files."""
    scopes = set(entries) & set(_SCOPES)
    if scopes:
        for key, value in entries.items():
            if key not in _SCOPES:
                raise file.fault(shown(key), "expected intra or inter")
            yield from _alike(file, value, _SCOPES[key], key)
    elif _is_curve(_deep(entries)[1]) and _deep(entries)[0] == len(("gpu", "count")):
        yield from _alike(file, entries, "intra_node", "")
    else:
        yield from _between_zones(file, entries)

"""The comment on top of exported files: what the launcher's own file has no place for.

The inverse of ``service.launchers.header``. The values of the file itself count before it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from profiles.documents import read_json
from profiles.errors import InvalidProblemError
from profiles.model import ModelSpec
from profiles.shape import model_from_shape

_MAX_HEADER = 20_000  # characters
_MARK = re.compile(
    r"(?:^# |\")[^\n\"]{1,80}, plan ([0-9a-zA-Z]{1,64}) \(rank \d+\), by Meshwright", re.MULTILINE
)
_WORLD = re.compile(r"World size (\d{1,9}): tp (\d{1,9}) \* cp (\d{1,9}) \* pp (\d{1,9}) \* dp (\d{1,9})")
_BATCHES = re.compile(r"Micro-batches: (\d{1,9}) of (\d{1,9})")
_NODES = re.compile(r"Nodes: (\d{1,9}) of (\d{1,9}) ")
_SEQUENCE = re.compile(r", (\d{1,9}) tokens a sequence")
_SHAPE = re.compile(r"(?:^# |\")Model shape: (\{.*\})", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What an exported file says in its comment; None and empty: nothing."""

    plan_id: str | None = None
    num_nodes: int | None = None
    gpus_per_node: int | None = None
    model: ModelSpec | None = None
    values: tuple[tuple[str, int], ...] = ()  # of configuration and workload, by glossary name

    def value(self, name: str) -> int | None:
        """One of the values."""
        return dict(self.values).get(name)


def header_of(text: str) -> Header:
    """The header of a file; an empty one where there is none."""
    top = text[:_MAX_HEADER]
    mark = _MARK.search(top)
    if mark is None:
        return Header()
    values: dict[str, int] = {}
    if (world := _WORLD.search(top)) is not None:
        names = ("num_gpus", "tensor_parallel_size", "context_parallel_size", "pipeline_parallel_size",
                 "data_parallel_size")  # fmt: skip
        values |= {name: int(number) for name, number in zip(names, world.groups(), strict=True)}
    if (batches := _BATCHES.search(top)) is not None:
        values |= {"num_microbatches": int(batches[1]), "micro_batch_size": int(batches[2])}
    if (sequence := _SEQUENCE.search(top)) is not None:
        values["seq_length"] = int(sequence[1])
    nodes = _NODES.search(top)
    return Header(
        plan_id=mark[1],
        num_nodes=int(nodes[1]) if nodes else None,
        gpus_per_node=int(nodes[2]) if nodes else None,
        model=_model(top),
        values=tuple(values.items()),
    )


def _model(text: str) -> ModelSpec | None:
    """The shape that stands in a header; None where there is none, or none that can be."""
    found = _SHAPE.search(text)
    if found is None:
        return None
    shape = found[1]
    try:
        if '\\"' in shape:  # the header is a text of JSON
            shape = json.loads(f'"{shape}"')
        return model_from_shape(read_json(shape))
    except (InvalidProblemError, ValueError):
        return None

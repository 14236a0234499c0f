"""Which layers each stage of torchtitan holds: its list of modules, or its own split."""

from __future__ import annotations

import re

from profiles.model import ModelSpec
from service.launchers.reading.fields import Fields
from service.launchers.reading.split import first_larger

_LAYER = re.compile(r"layers\.(\d{1,5})")
_NAME = "parallelism.module_fqns_per_model_part"
_EACH = "parallelism.pipeline_parallel_layers_per_stage"
_LESS = "parallelism.pipeline_parallel_{}_stage_less_layers"
_ENDS = ("tok_embeddings", "norm", "output", "lm_head")
_TWO_CHUNKS = ("zb_v", "dualpipe_v")
_LOOPED = ("interleaved_1f1b", "looped_bfs", "interleaved_zb")


def split_of(fields: Fields, model: ModelSpec, pp: int, schedule: str) -> tuple[int, ...]:
    """Layers of each stage in model order; faults are left in ``fields``."""
    if pp == 1:
        return (model.num_layers,)
    parts = fields.raw(_NAME)
    if parts is None:
        return _own(fields, model, pp, schedule)
    names = parts if isinstance(parts, list) and all(isinstance(part, list) for part in parts) else []
    layers = [[_layer(name) for name in part if name not in _ENDS] for part in names]
    flat = [layer for part in layers for layer in part]
    if not names or len(names) % pp:
        fields.fault(_NAME, f"{len(names)} stages, which {pp} pipeline ranks do not share evenly")
    elif flat != list(range(model.num_layers)):
        fields.fault(
            _NAME,
            f"the stages do not hold layers.0 to layers.{model.num_layers - 1} once each and in order; "
            "torchtitan would not notice",
        )
    elif not all(layers):
        fields.fault(_NAME, "a stage without a layer is not priced")
    else:
        return tuple(len(part) for part in layers)
    fields.stop()
    return ()


def _layer(name: object) -> int:
    """The number of ``layers.7``; -1 for anything else."""
    match = _LAYER.fullmatch(name) if isinstance(name, str) else None
    return int(match[1]) if match else -1


def _own(fields: Fields, model: ModelSpec, pp: int, schedule: str) -> tuple[int, ...]:
    """Its own split: embedding and head count as some layers each, first stages take what is left over.

    Source: torchtitan 0.3.0, distributed/pipeline_parallel.py:194-264 ``_get_pipeline_metadata`` and
    :367-430 ``_generate_llm_fqn_per_model_part``, which raises where this leaves a fault.
    """
    first, last = (fields.integer(_LESS.format(end), 1, low=0) for end in ("first", "last"))
    counted = model.num_layers + first + last
    each = fields.optional(_EACH)
    several = schedule in (*_TWO_CHUNKS, *_LOOPED)
    stages = -(-counted // each) if each else pp * (2 if several else 1)
    if stages % pp or (stages > pp) != several:
        fields.fault(
            _EACH,
            f"makes {stages} stages of {counted} layers, embedding and head counted as {first} and {last}, "
            f"for {pp} ranks",
            allowed=f"a multiple of {pp} stages, {'2 or more' if several else '1'} a rank",
            nearest=str(-(-counted // (pp * (2 if several else 1)))),
        )
        fields.stop()
    split = list(first_larger(counted, stages, field="parallelism.pipeline_parallel_degree"))
    for weight, end, name in ((first, 0, "first"), (last, -1, "last")):
        if weight > counted // stages:
            message = f"{weight} exceeds the {counted // stages} layers of a stage"
            most = str(counted // stages)
            fields.fault(_LESS.format(name), message, allowed=f"0 to {most}", nearest=most)
        split[end] -= weight
    fields.note(f"no list of modules: torchtitan splits the layers {' '.join(map(str, split))}")
    if min(split) < 1:
        fields.fault("parallelism.pipeline_parallel_degree", "leaves a stage without a layer: not priced")
    fields.stop()
    return tuple(split)

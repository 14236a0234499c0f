"""Layers of each torchtitan stage in model order, and those that are recomputed.

Sources: torchtitan 0.2.2 and 0.3.0, distributed/pipeline_parallel.py and activation_checkpoint.py.
"""

from __future__ import annotations

import re

from meshwright.launchers.reading.fields import Fields, first_larger
from meshwright.profiles.model import ModelSpec
from meshwright.solver.configuration import holds_layers

# --------------------------------------------------------------------------------------------------
# Layers of each stage of torchtitan: its list of modules, or its own split.


_LAYER = re.compile(r"layers\.(\d{1,5})")
_NAME = "parallelism.module_fqns_per_model_part"
_EACH = "parallelism.pipeline_parallel_layers_per_stage"
_LESS = "parallelism.pipeline_parallel_{}_stage_less_layers"
_FIRST, _LAST = ("vision_encoder", "tok_embeddings"), ("norm", "output", "lm_head")
_ENDS = (*_FIRST, *_LAST)
_TWO_CHUNKS = ("zb_v", "dualpipe_v")
_LOOPED = ("interleaved_1f1b", "looped_bfs", "interleaved_zb")
_ALONE = (1, 1)  # the embedding, and the head with what follows it


def split_of(fields: Fields, model: ModelSpec, pp: int, schedule: str) -> tuple[int, ...]:
    """Return the layers of each stage in model order; faults are left in ``fields``."""
    if pp == 1:
        fields.pass_over(_NAME, _EACH, "parallelism.pipeline_parallel_split_points")
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
    elif any(set(part) & {*_FIRST} for part in names[1:]) or any(
        set(part) & {*_LAST} for part in names[:-1]
    ):
        fields.fault(
            _NAME,
            "tok_embeddings belongs to the first stage, norm and output to the last: others are not "
            "supported",
        )
    elif not holds_layers([len(part) for part in layers], _ALONE):
        fields.fault(_NAME, "a stage without a layer between the first and the last is not supported")
    else:
        return tuple(len(part) for part in layers)
    fields.stop()
    return ()


def _layer(name: object) -> int:
    """Return the number of ``layers.7``; -1 for anything else."""
    match = _LAYER.fullmatch(name) if isinstance(name, str) else None
    return int(match[1]) if match else -1


def _own(fields: Fields, model: ModelSpec, pp: int, schedule: str) -> tuple[int, ...]:
    """Return torchtitan's split: embedding and head count as layers, the first stages take the remainder.

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
    if not holds_layers(split, _ALONE):
        fields.fault(
            "parallelism.pipeline_parallel_degree", "leaves a stage without a layer: not supported"
        )
    fields.stop()
    return tuple(split)


# --------------------------------------------------------------------------------------------------
# Recomputed layers.


_OPTION = "activation_checkpoint.selective_ac_option"
_EVERY = 2  # its default where there is one, torchtitan 0.2.2, config/job_config.py: ActivationCheckpoint


def recomputation_of(
    fields: Fields, split: tuple[int, ...], pp: int, schedule: str, *, is_module: bool
) -> tuple[str, tuple[int, ...]]:
    """Return none, selective or full, and the layers of each chunk that are fully recomputed.

    Memory budgets are not priced. torchtitan 0.2 is selective by operators, or by layers: it recomputes
    each n-th of a rank, 0 meaning all; 0.3 by operators alone.
    """
    mode = fields.choice("activation_checkpoint.mode")
    if not fields.has("activation_checkpoint.mode"):
        fields.note("activation_checkpoint.mode is not given: selective is torchtitan's default")
    option = fields.raw(_OPTION)
    if option not in (None, "op") and not str(option).isdecimal():
        fields.fault(_OPTION, "is unknown", allowed='"op", or every how many layers', nearest="op")
        return mode, ()
    if mode != "selective" or option == "op" or (option is None and is_module):
        return mode, split if mode == "full" else ()
    if option is None:
        fields.note(f"{_OPTION} is not given: every second layer is recomputed, torchtitan 0.2's default")
    replayed = _each_of_a_rank(split, pp, schedule, fields.integer(_OPTION, _EVERY, low=0) or 1)
    return ("full", replayed) if any(replayed) else ("none", ())


def _each_of_a_rank(split: tuple[int, ...], pp: int, schedule: str, every: int) -> tuple[int, ...]:
    """Return the layers of each chunk with a number on their rank that ``every`` divides.

    Source: torchtitan 0.2.2, distributed/activation_checkpoint.py ``_apply_layer_sac``, which counts on
    from one chunk of a rank to its next.
    """
    built, found = [0] * pp, []
    for chunk, layers in enumerate(split):
        rank = 2 * pp - 1 - chunk if schedule in _TWO_CHUNKS and chunk >= pp else chunk % pp
        found.append((built[rank] + layers) // every - built[rank] // every)
        built[rank] += layers
    return tuple(found)

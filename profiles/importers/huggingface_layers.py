"""Which layers have experts and which attend locally, by each Hugging Face family's own rule.

ModelSpec knows two patterns: experts in every n-th layer after some dense ones, and every n-th
layer global. What fits neither is refused.
"""

from __future__ import annotations

from profiles.errors import UnsupportedModelError
from profiles.reading import FieldReader

_GLOBAL, _LOCAL = "full_attention", "sliding_attention"
_ALTERNATING = {
    "gemma2": 2,
    "gpt_oss": 2,
    "gemma3_text": 6,
    "olmo3": 4,
    "cohere2": 4,
}  # every n-th layer is global
_ALWAYS_LOCAL = ("mistral", "mixtral", "phi3", "phimoe", "starcoder2", "ministral")
_SWITCHED = ("qwen2", "qwen3", "qwen2_moe", "qwen3_moe")  # use_sliding_window, max_window_layers


def moe_placement(reader: FieldReader, num_layers: int) -> tuple[int, int] | None:
    """Leading dense layers and frequency of the MoE layers after them; None: no MoE layer.

    Raises:
        UnsupportedModelError: the MoE layers are not evenly spaced.
    """
    step = reader.integer("decoder_sparse_step", default=1, high=10_000)
    every = reader.value("moe_layer_freq")
    frequency = 1 if isinstance(every, list) else reader.integer("moe_layer_freq", default=1, high=10_000)
    leading = reader.integer("first_k_dense_replace", low=0, default=0, high=10_000)
    dense = _dense_layers(reader)
    listed = every if isinstance(every, list) else [1] * num_layers
    moe = [
        layer
        for layer in range(num_layers)
        if (layer + 1) % step == 0 and layer >= leading and layer % frequency == 0
        if layer not in dense and layer < len(listed) and listed[layer]
    ]
    if not moe:
        return None
    spacing = moe[1] - moe[0] if len(moe) > 1 else num_layers
    if moe != list(range(moe[0], num_layers, spacing)):
        raise UnsupportedModelError.field(
            "mlp_only_layers" if dense else "moe_layer_freq", "MoE layers that are not evenly spaced"
        )
    return moe[0], spacing


def _dense_layers(reader: FieldReader) -> frozenset[int]:
    layers = reader.value("mlp_only_layers") or []
    if not isinstance(layers, list) or not all(type(layer) is int for layer in layers):
        reader.fault("mlp_only_layers", "must be a list of layer numbers")
        return frozenset()
    return frozenset(layers)


def sliding_window(reader: FieldReader, model_type: str, num_layers: int) -> tuple[int | None, int]:
    """The window of the local layers and the distance of the global ones (1: all are local).

    Raises:
        UnsupportedModelError: the global layers are not evenly spaced, or a layer is neither.
    """
    window = reader.optional_integer("sliding_window")
    local = _local_layers(reader, model_type, num_layers)
    if window is None or not any(local):
        return None, 1
    if all(local):
        return window, 1
    every = local.index(False) + 1
    if local != [(layer + 1) % every != 0 for layer in range(num_layers)]:
        field = "layer_types" if reader.has("layer_types") else "max_window_layers"
        raise UnsupportedModelError.field(field, "global layers that are not evenly spaced")
    return window, every


def _local_layers(reader: FieldReader, model_type: str, num_layers: int) -> list[bool]:
    """Whether each layer attends only within the window."""
    kinds = reader.value("layer_types")
    reader.value("_sliding_window_pattern")
    reader.value("sliding_window_pattern")
    reader.value("use_sliding_window")
    if kinds is not None:
        return _stated(reader, kinds, num_layers)
    pattern = reader.first(("sliding_window_pattern", "_sliding_window_pattern"))
    reader.value("sliding_window_pattern")
    every = reader.integer(pattern, default=_ALTERNATING.get(model_type, 0), low=0, high=10_000)
    if every:
        return [(layer + 1) % every != 0 for layer in range(num_layers)]
    switched = reader.flag("use_sliding_window", default=False)
    if model_type in _SWITCHED or reader.has("use_sliding_window"):
        if not switched:
            return [False] * num_layers
        first = reader.integer("max_window_layers", low=0, default=0)
        return [layer >= first for layer in range(num_layers)]
    return [model_type in _ALWAYS_LOCAL] * num_layers


def _stated(reader: FieldReader, kinds: object, num_layers: int) -> list[bool]:
    if not isinstance(kinds, list) or len(kinds) < num_layers:
        reader.fault("layer_types", f"must be a list of {num_layers} kinds of layers")
        return [False] * num_layers
    if not all(kind in (_GLOBAL, _LOCAL) for kind in kinds):
        raise UnsupportedModelError.field("layer_types", f"only {_GLOBAL} and {_LOCAL} are understood")
    return [kind == _LOCAL for kind in kinds[:num_layers]]


def no_rotary_every(reader: FieldReader, num_layers: int) -> int:
    """Every n-th layer has no positions; 0: all have (SmolLM3, ``no_rope_layers``: 1 where there are).

    Raises:
        UnsupportedModelError: the layers without positions are not evenly spaced.
    """
    every = reader.integer("no_rope_layer_interval", low=0, default=0, high=10_000)
    stated = reader.value("no_rope_layers")
    if isinstance(stated, list) and stated:
        layers = [index + 1 for index, rotates in enumerate(stated) if not rotates]
        every = layers[0] if layers else 0
        if layers != [layer for layer in range(1, num_layers + 1) if every and layer % every == 0]:
            raise UnsupportedModelError.field("no_rope_layers", "layers that are not evenly spaced")
    return every

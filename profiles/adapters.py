"""Low-rank adapters on a frozen model, modules trained in full next to them, and bytes of frozen weights.

LoRA (Hu et al. 2021, arXiv:2106.09685): a linear layer of ``inputs`` to ``outputs`` gets ``A`` (rank by
inputs) and ``B`` (outputs by rank), the only trained weights. QLoRA (Dettmers et al. 2023,
arXiv:2305.14314): the layers themselves are kept in few bits (``profiles/storage.py``). OFT (Qiu et al.
2025, arXiv:2506.19847): blocks of a layer's inputs are each multiplied by an orthogonal matrix, the only
trained weights being the halves above the diagonals of skew-symmetric ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import gcd
from typing import Literal, get_args

from meshwright.profiles.layer_names import class_name
from meshwright.profiles.layers.operators import Matrix, Operator
from meshwright.profiles.model import MIXER_LAYER, LayerKind, ModelSpec
from meshwright.profiles.storage import BasePrecision, storage_of
from meshwright.profiles.tower_modules import (
    PROJECTOR,
    TOWER_TARGETS,
    modules_of,
    tower_layers_of,
)

# What may be adapted: the fused layers of Megatron-Core, routed experts among them, or transformers' single
# ones, by the names that Llama's have; ``gate`` is the router. All of the latter together are every linear
# layer of the class, whatever its name ("all-linear").
FUSED_TARGETS = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
SINGLE_TARGETS = (
    "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "gate",
)  # fmt: skip
EXPERT_TARGETS = ("w1", "w2", "w3")  # gate, down and up of Mixtral's experts, for peft converts these names
# Of mixers and gates, as the classes that have them call them: Mamba's, gated delta nets' (Qwen3-Next and
# Qwen3.5), Kimi's; the gates of attention and of shared experts.
MIXER_INPUTS = (
    "in_proj", "in_proj_qkvz", "in_proj_ba", "in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a",
    "g_proj", "a_proj", "b_proj", "f_a_proj",
)  # fmt: skip
# Layers that are several of Llama's in one.
_FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"), "kv_proj": ("k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}  # fmt: skip
_QKV, _KV, _GATE_UP = JOINED_TARGETS = tuple(_FUSED)
# ``router``: one that is a linear layer of the class.
CLASS_TARGETS = (*JOINED_TARGETS, *MIXER_INPUTS, "f_b_proj", "out_proj", "shared_expert_gate", "router")
# Experts' weights that lie in one tensor of the class, by its names (peft's ``target_parameters``).
GATE_UP_PARAMETER, DOWN_PARAMETER = PARAMETER_TARGETS = ("experts.gate_up_proj", "experts.down_proj")
ATTENTION_TARGETS = FUSED_TARGETS[:2]
# Of shared experts alone, where a class has other MLPs with the same last names.
SHARED_TARGETS = tuple(f"shared_expert.{name}" for name in ("gate_proj", "up_proj", "down_proj"))
# Modules that can be trained in full next to adapters, by Llama's names (peft's ``modules_to_save``): a
# copy of each, because the frozen original stays; ``norm`` is every norm, since peft compares the ends of
# names.
TrainedModule = Literal["embed_tokens", "lm_head", "norm"]
EMBEDDING, HEAD, NORMS = TRAINED_MODULES = get_args(TrainedModule)
LORA_TARGETS = (
    *FUSED_TARGETS, *SINGLE_TARGETS, *EXPERT_TARGETS, *CLASS_TARGETS, *SHARED_TARGETS, *PARAMETER_TARGETS,
    *TOWER_TARGETS,
)  # fmt: skip
# Every linear layer, under whatever names a launcher has for them (``bound_targets``).
ALL_LINEAR = ("all-linear",)
# Those that read one tensor.
ATTENTION_INPUT = (
    "linear_qkv", "q_proj", "k_proj", "v_proj", _QKV, _KV, "q_a_proj", "kv_a_proj_with_mqa",
    *MIXER_INPUTS,
)  # fmt: skip
MLP_INPUT = (
    "linear_fc1", "gate_proj", "up_proj", _GATE_UP, "w1", "w3", GATE_UP_PARAMETER,
    "shared_expert_gate", "router", *SHARED_TARGETS[:2],
)  # fmt: skip
MLP_INNER = ("linear_fc2", "down_proj", "w2", DOWN_PARAMETER, SHARED_TARGETS[2])
_LAYERS = (*SINGLE_TARGETS, *JOINED_TARGETS)  # of attention and MLPs
_CONVERTED = ("gate_up", "w1_w3")  # ExpertAdapters of tensors that peft adapts
_OF_EXPERTS = ("gate_proj", "up_proj", "down_proj", "g_proj")


def unadaptable(model: ModelSpec) -> str:
    """Return the linear layer that can't have adapters, so that "all-linear" fails; empty: each can.

    peft refuses ``out_proj`` in Mamba, Mamba 2, Falcon-H1 and Nemotron-H: their kernels read its weights
    themselves (peft 0.21, tuners/tuners_utils.py, ``_check_lora_target_modules_mamba``): here, the models
    that have layers with a mixer alone. Routers of Llama 4 and PhiMoE are linear layers that return several
    tensors, but peft reads the dtype of one (tuners/lora/layer.py, ``Linear.forward``).
    """
    moe = model.moe
    if MIXER_LAYER in model.layer_pattern or model.paired is not None:
        return "out_proj"
    several = moe is not None and (moe.runs_every_expert or moe.router_score == "sparsemixer")
    return "router" if several and moe is not None and moe.linear_router else ""


def fused_layers(model: ModelSpec, kind: LayerKind) -> Mapping[str, tuple[Matrix, ...]]:
    """Return the linear layers of one transformer layer of Megatron-Core, by the name of a target.

    Matrices that read the same are one layer. Those of latent attention each have one of their own.
    """
    found = dict[str, tuple[Matrix, ...]]()
    for one in model.layer(kind).operators:
        if one.target:
            found[one.target] = (*found.get(one.target, ()), _joined(one))
    return found


def _joined(operator: Operator) -> Matrix:
    first, width = operator.matrices[0], sum(one.outputs for one in operator.matrices)
    return replace(first, outputs=width)


def single_layers(model: ModelSpec, kind: LayerKind) -> dict[str, Matrix]:
    """Return the linear layers of one transformers layer except routed experts, by Llama's names.

    Layers that the class fuses have a name of their own.
    """
    found = {one.name: one for one in model.layer(kind).linear()}
    fused = {"qkv_proj": model.fused_qkv, "kv_proj": model.fused_kv, "gate_up_proj": model.fused_gate_up}
    for one, several in _FUSED.items():
        if fused[one]:
            joined = [found.pop(name) for name in several if name in found]
            width = sum(each.outputs for each in joined)
            found |= {one: replace(joined[0], name=one, outputs=width)} if width else {}
    return found


def single_blocks(model: ModelSpec) -> list[dict[str, Matrix]]:
    """Return the ``single_layers`` of each kind of layer of a model."""
    return [single_layers(model.shaped(shape), shape.kind) for shape in model.shapes()]


def matrix_rows(model: ModelSpec) -> int:
    """Return the greatest number that divides the rows of every matrix of the layers, routers' too."""
    rows = [one.outputs for block in single_blocks(model) for one in block.values()]
    return gcd(*rows, model.moe.num_experts if model.moe else 0)


def single_names(model: ModelSpec) -> frozenset[str]:
    """Return the names of a model's single layers, in any kind of layer."""
    return frozenset(name for block in single_blocks(model) for name in block)


def _experts(model: ModelSpec, kind: LayerKind) -> dict[str, Matrix]:
    """Return routed experts, and their router if it is a linear layer, as peft adapts them.

    Of a fused gate and up of twice the rank half of the adapter is counted for each.
    """
    moe = model.moe
    if moe is None or kind == "dense" or moe.expert_adapters == "none":
        return {}
    converted = moe.expert_adapters in _CONVERTED
    found = {one.name: one for one in model.layer(kind).matrices if one.experts}
    if converted:
        halves = [one for one in found.values() if one.split == "outputs"]
        found |= {one.name: replace(one, outputs=one.outputs * len(halves)) for one in halves}
        if not moe.linear_router:
            (router,) = (one for one in model.layer(kind).matrices if one.name == "router")
            found["gate"] = router
    return found


def _parameters(model: ModelSpec, kind: LayerKind) -> dict[str, Matrix]:
    """Return experts' weights that lie in one tensor, gate and up together, by ``PARAMETER_TARGETS``."""
    if model.moe is None or kind == "dense" or model.moe.expert_adapters == "linear":
        return {}
    matrices = [one for one in model.layer(kind).matrices if one.experts]
    gate_up = [one for one in matrices if one.split == "outputs"]
    (down,) = (one for one in matrices if one.split == "inputs")
    found = {DOWN_PARAMETER: replace(down, name=DOWN_PARAMETER)}
    if model.gated_mlp:
        width = sum(one.outputs for one in gate_up)
        found[GATE_UP_PARAMETER] = replace(gate_up[0], name=GATE_UP_PARAMETER, outputs=width)
    return found


def names_every(targets: tuple[str, ...]) -> bool:
    """Return whether targets are every linear layer of the class."""
    return {*ALL_LINEAR} <= {*targets} or {*SINGLE_TARGETS} <= {*targets}


def adapted_layers(model: ModelSpec, kind: LayerKind, targets: tuple[str, ...]) -> Iterator[Matrix]:
    """Yield the linear layers of one transformer layer that have adapters.

    Where peft converts the names of experts they mean these alone, not a layer without experts, the shared
    ones, or a gate of attention of that name.
    """
    every, experts = names_every(targets), _experts(model, kind)
    converted = model.moe is not None and model.moe.expert_adapters == "gate_up"
    single = single_layers(model, kind)
    for name, layer in (*single.items(), *experts.items()):
        of_others = converted and name in _OF_EXPERTS and layer is not experts.get(name)
        if (every or name in targets) and not of_others:
            yield layer
    apart = (name for name in shared_targets(model) if kind == "moe" and name in targets)
    for name in (name.rpartition(".")[2] for name in apart):
        if name in single and name not in targets:
            yield single[name]
    for name, layers in fused_layers(model, kind).items():
        yield from layers if name in targets else ()
    for name, layer in _parameters(model, kind).items():
        if name in targets:
            yield layer


def shared_targets(model: ModelSpec) -> tuple[str, ...]:
    """Return the layers of shared experts that peft tells from others, as it does not where it converts.

    Llama 4, Qwen's with a gate and remote code have shared experts of linear layers under such a name.
    """
    moe = model.moe
    if moe is None or not moe.shared_ffn_hidden_size or moe.expert_adapters in _CONVERTED:
        return ()
    named = moe.shared_expert_gate or moe.runs_every_expert or has_linear_experts(model)
    return SHARED_TARGETS if named else ()


def layers_outside(
    model: ModelSpec, targets: tuple[str, ...]
) -> tuple[tuple[Matrix, ...], tuple[Matrix, ...]]:
    """Return adapted linear layers between embedding and first layer, and between last layer and head."""
    h, size, width = model.hidden_size, model.embedding_size, model.layer_embedding_size
    if not names_every(targets):
        return (), ()
    first, last = [], []
    if size:
        first.append(_whole(size, h))
        last.append(_whole(h, size))
    if width:
        first.append(_whole(h, model.num_layers * width))
    further = model.streams.count - 1 if model.streams else 0
    first += [_whole(h, h)] * further
    last += [_whole(h, h)] * (further + int(model.head_transform))
    return tuple(first), tuple(last)


def tower_of(model: ModelSpec, targets: Iterable[str]) -> ModelSpec:
    """Return the tower's layers as a model; targets tell whether queries, keys and values are one layer."""
    return replace(model.tower_layers, fused_qkv=_QKV in tower_layers_of(targets))


def tower_adapters(model: ModelSpec, targets: tuple[str, ...]) -> Iterator[tuple[Matrix, int]]:
    """Yield the linear layers of a tower and its projector that have adapters, and how many there are."""
    if (tower := model.tower) is None:
        return
    for layer in adapted_layers(tower_of(model, targets), "dense", tower_layers_of(targets)):
        yield layer, tower.num_layers
    if PROJECTOR in targets:
        for layer in model.projector_layers:
            yield layer, tower.num_projectors


def tower_targets(model: ModelSpec) -> tuple[str, ...]:
    """Return the names of the linear layers of a model's tower, which adapters may have; () if unknown."""
    known = modules_of(model.tower)
    return known.targets if known else ()


def _whole(inputs: int, outputs: int) -> Matrix:
    return Matrix(name="", inputs=inputs, outputs=outputs, split="nothing")


LEAST_BLOCK = 2  # inputs of one of OFT's blocks: one input has nothing to turn with


def block_of(inputs: int, size: int) -> int:
    """Return the size of OFT's blocks of a layer: the divisor of its inputs next to the one asked for.

    peft 0.21, tuners/oft/layer.py, ``adjust_oft_parameters``: of two as near the smaller one.
    """
    if size >= inputs:
        return inputs
    near = (one for far in range(inputs) for one in (size - far, size + far))
    return next(one for one in near if one > 0 and inputs % one == 0)


def adapter_parameters(
    model: ModelSpec, rank: int, targets: tuple[str, ...], *, norms: bool = False, rotates: bool = False
) -> int:
    """Return trained weights of all adapters; multi-token prediction and the output head have none.

    Those outside of layers, a few thousandths where there are any, are counted here and priced nowhere.
    ``norms``: DoRA's, one of each output. ``rotates``: OFT's, of blocks of ``rank`` inputs.
    """
    first, last = layers_outside(model, targets)
    inside = (
        layer
        for shape in model.layer_shapes()
        for layer in adapted_layers(model.shaped(shape), shape.kind, targets)
    )
    each = [(layer, max(layer.experts, 1)) for layer in (*first, *inside, *last)]
    return sum(
        (
            rotation_weights(layer.inputs, rank)
            if rotates
            else rank * (layer.inputs + layer.outputs) + layer.outputs * norms
        )
        * count
        for layer, count in (*each, *tower_adapters(model, targets))
    )


def rotation_weights(inputs: int, size: int) -> int:
    """Return the trained weights of OFT's blocks of one layer."""
    return inputs * (block_of(inputs, size) - 1) // 2


def copied_parameters(model: ModelSpec, module: str) -> int:
    """Return the weights of the copies of one of ``TRAINED_MODULES``; of a tied head, too (peft 0.21)."""
    if module == NORMS:
        layers = sum(model.shaped(one).layer(one.kind).norms for one in model.layer_shapes())
        ends = int(model.embedding_norm) + int(model.head_transform)
        return (
            layers + model.final_norm_parameters + ends * model.norm_weights() + model.layer_embedding_size
        )
    rows = model.head_outputs if module == HEAD else model.vocab_size
    return rows * (model.embedding_width + int(model.head_bias and module == HEAD))


def target_fault(model: ModelSpec, targets: tuple[str, ...]) -> str | None:
    """Return why peft refuses to adapt a model's layers of these names; None where it does not."""
    named = model.moe.expert_adapters if model.moe is not None else "none"
    first = {"gate_up": ("gate_proj", "up_proj"), "w1_w3": ("w1", "w3")}.get(named, ())
    halves, others = set(first) & set(targets), set(EXPERT_TARGETS) & set(targets)
    if model.gated_mlp and len(halves) == 1 and not names_every(targets):
        return f"only {halves.pop()}: peft adapts the experts' fused gate and up projections together"
    if others and named != "w1_w3":
        return f"{min(others)}: only Mixtral's experts have layers with this name"
    if why := _parameter_fault(model, targets) or _tower_fault(model, targets):
        return why
    if not targets:
        return f"is required: the default adapts attention, and {model.title} has none"
    if not adapter_parameters(model, 1, targets):
        return f"{model.title} has no layer with this name that peft can adapt"
    return None


def _parameter_fault(model: ModelSpec, targets: tuple[str, ...]) -> str | None:
    there, said = _parameters(model, "moe"), {*PARAMETER_TARGETS} & {*targets}
    if lacking := [name for name in PARAMETER_TARGETS if name in targets and name not in there]:
        return f"{lacking[0]}: {model.title} has no experts in one tensor of this name"
    every = names_every(targets)
    if said and any(
        one.experts for name, one in _experts(model, "moe").items() if every or name in targets
    ):
        return f"{min(said)}: other names mean the same experts"
    return None


def _tower_fault(model: ModelSpec, targets: tuple[str, ...]) -> str | None:
    said, there = [name for name in TOWER_TARGETS if name in targets], tower_targets(model)
    lacking = next((name for name in said if name not in there), None)
    if lacking is None:
        return None
    if model.tower is None:
        return f"{lacking}: {model.title} has no vision tower"
    if not there:
        return f"{lacking}: Meshwright doesn't know the linear layers of {model.title}'s tower"
    return f"{lacking}: the targets in {model.title}'s tower are {', '.join(there)}"


def parted(targets: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the targets that are layers, and those that are weights without a layer of their own."""
    layers = tuple(name for name in targets if name not in PARAMETER_TARGETS)
    return layers, tuple(name for name in targets if name in PARAMETER_TARGETS)


def class_targets(model: ModelSpec, targets: tuple[str, ...]) -> tuple[str, ...]:
    """Return single layers and whole modules by the names that peft finds them under in the class.

    Remote code with experts of linear layers has DeepSeek's ``shared_experts`` (modeling_deepseek.py).
    """
    remote = model.moe is not None and model.moe.expert_adapters == "linear"
    shared = {name: name.replace(".", "s.") if remote else name for name in SHARED_TARGETS}
    return tuple(
        dict.fromkeys(shared.get(target) or class_name(model.layer_names, target) for target in targets)
    )


_NAMES = {
    "fused": FUSED_TARGETS,
    "single": (
        *SINGLE_TARGETS,
        *EXPERT_TARGETS,
        *CLASS_TARGETS,
        *SHARED_TARGETS,
        *PARAMETER_TARGETS,
        *TOWER_TARGETS,
    ),
}
ALIKE = {  # a fused layer, and the single ones of a Llama that it stands for
    "linear_qkv": ("q_proj", "k_proj", "v_proj"), "linear_proj": ("o_proj",),
    "linear_fc1": ("gate_proj", "up_proj"), "linear_fc2": ("down_proj",),
}  # fmt: skip


def _alike(model: ModelSpec) -> dict[str, tuple[str, ...]]:
    """Return the single layers that each fused one stands for in the model's class."""
    qkv = ("qkv_proj",) if model.fused_qkv else ("q_proj", "kv_proj") if model.fused_kv else None
    found = ALIKE | ({"linear_qkv": qkv} if qkv else {})
    return found | ({"linear_fc1": ("gate_up_proj",)} if model.fused_gate_up else {})


# Targets that all-linear leaves out: layers of towers, tensors of experts, names of other classes.
BESIDE_LINEAR = (*FUSED_TARGETS, *EXPERT_TARGETS, *PARAMETER_TARGETS, *TOWER_TARGETS)


def bound_targets(
    model: ModelSpec, targets: tuple[str, ...], adapters: tuple[str, ...], *, listed: bool = False
) -> tuple[str, ...]:
    """Return targets by the names that a launcher has; as they are where it has none for them.

    Args:
        model: what has the layers.
        targets: by any launcher's names, or all linear layers.
        adapters: the kinds of layers that the launcher adapts, of "fused" and "single".
        listed: it lists the class's linear layers itself (``linear_names``).
    """
    if {*ALL_LINEAR} < {*targets}:
        every = bound_targets(model, ALL_LINEAR, adapters, listed=listed)
        alike = FUSED_TARGETS if "fused" not in adapters else ()  # Megatron's names of what is in it
        beside = {*targets}.difference(every, alike)
        return (*every, *(name for name in BESIDE_LINEAR if name in beside))
    fused = {"fused", "single"} <= {*adapters} and adapter_parameters(model, 1, FUSED_TARGETS) > 0
    named, parts = {name for kind in adapters for name in _NAMES[kind]}, _alike(model)
    if targets != ALL_LINEAR and {*targets} <= named:
        return targets
    if adapters == ("fused",):
        there = tuple(name for name in FUSED_TARGETS if {*parts[name]} <= {*targets})
        whole = {single for name in there for single in parts[name]} == {*targets}
        return FUSED_TARGETS if names_every(targets) else there if whole else targets
    if targets == ALL_LINEAR and adapters:
        return FUSED_TARGETS if fused else _every_single(model, listed=listed)
    if {*targets} <= {*FUSED_TARGETS} and adapters:
        return tuple(name for name in LORA_TARGETS if any(name in parts[one] for one in targets))
    return targets


def without_other_names(
    model: ModelSpec, targets: tuple[str, ...], adapters: tuple[str, ...]
) -> tuple[str, ...]:
    """Return targets without other launchers' names of layers that this one's names among them adapt.

    ``adapters``: as in ``bound_targets``.
    """
    own = {*targets} & {name for kind in adapters for name in _NAMES[kind]}
    adapted = {*own}
    for fused, parts in _alike(model).items():
        adapted |= {*parts} if fused in own else {fused} if {*parts} <= own else set()
    return tuple(name for name in targets if name in own or name not in adapted)


def _every_single(model: ModelSpec, *, listed: bool) -> tuple[str, ...]:
    """Return every linear layer of the class; its attention's and its MLPs' where peft takes no others."""
    if not unadaptable(model):
        return linear_names(model) if listed else SINGLE_TARGETS
    there = single_names(model)
    return tuple(name for name in _LAYERS if name in there) or SINGLE_TARGETS


def usual_targets(
    model: ModelSpec, usual: tuple[str, ...], adapters: tuple[str, ...], *, listed: bool = False
) -> tuple[str, ...]:
    """Return the layers that a launcher adapts by default.

    Where the model lacks single layers of these names in some block, peft has no default of its own, or one
    that requests cannot name: all linear layers are adapted instead.

    Args:
        model: what has the layers.
        usual: the launcher's default for most models.
        adapters: the kinds of layers that it adapts.
        listed: as ``bound_targets``.
    """
    there = all(name in block for block in single_blocks(model) for name in usual)
    return (
        usual
        if usual != ALL_LINEAR and there
        else bound_targets(model, ALL_LINEAR, adapters, listed=listed)
    )


def linear_names(model: ModelSpec) -> tuple[str, ...]:
    """Return the targets of trainers that list the linear layers of the class before they call peft.

    Experts that are not linear layers are not among them; the names of other MLPs then mean experts where
    peft converts them. LLaMA-Factory 0.9.5, ``find_all_linear_modules``; Axolotl 0.19,
    ``find_all_linear_names``.
    """
    moe = model.moe
    if moe is None or moe.expert_adapters not in _CONVERTED:
        return SINGLE_TARGETS
    there = single_names(model)
    return tuple(name for name in _LAYERS if name in there)


def adapts_every(model: ModelSpec, targets: tuple[str, ...]) -> bool:
    """Return whether targets adapt as many layers as ``linear_names``, some of which a model may lack."""
    every = linear_names(model)
    return layers_outside(model, targets) == layers_outside(model, every) and all(
        [*adapted_layers(shaped, shape.kind, targets)] == [*adapted_layers(shaped, shape.kind, every)]
        for shape in model.shapes()
        for shaped in (model.shaped(shape),)
    )


def language_names(model: ModelSpec) -> tuple[str, ...]:
    """Return the single layers of a model by name, without a router: what names all but mixers' layers."""
    there = single_names(model)
    return tuple(name for name in _LAYERS if name in there and name != "gate")


def of_linear_experts(model: ModelSpec, rank: int) -> int:
    """Return the weights of the adapters of every expert that peft converts, if each is a linear layer.

    They are in transformers 4, where ``all`` includes them; in transformers 5 they are one tensor.
    """
    moe = model.moe
    if moe is None or moe.expert_adapters not in _CONVERTED:
        return 0
    each = model.mlp_matrices * (model.hidden_size + moe.ffn_hidden_size)
    return rank * each * moe.num_experts * model.layer_kinds().count("moe")


def has_linear_experts(model: ModelSpec) -> bool:
    """Return whether every routed expert is of linear layers, which bitsandbytes quantises."""
    return model.moe is not None and model.moe.expert_adapters in ("linear", "listed")


def quantized_layers(model: ModelSpec, kind: LayerKind, *, experts: bool = False) -> Iterator[Matrix]:
    """Yield the linear layers of one layer that bitsandbytes replaces, experts where they are such.

    ``experts``: those in one tensor are quantised, too (Axolotl's ``quantize_moe_experts``).
    """
    yield from single_layers(model, kind).values()
    if has_linear_experts(model):
        yield from _experts(model, kind).values()
    elif experts:
        yield from stacked_experts(model, kind)


def stacked_experts(model: ModelSpec, kind: LayerKind) -> Iterator[Matrix]:
    """Yield the matrices of one layer's experts that lie in one tensor."""
    if kind == "moe" and not has_linear_experts(model):
        yield from (one for one in model.layer(kind).matrices if one.experts)


def saves_input(
    model: ModelSpec,
    layers: Iterable[str],
    targets: Iterable[str],
    precision: BasePrecision,
    *,
    routed: bool,
) -> bool:
    """Return whether the input of frozen ``layers`` is saved: for their adapters, or by their own product.

    ``routed``: the layers of routed experts are meant.
    """
    targets, linear = tuple(targets), has_linear_experts(model)
    storage = storage_of(precision)
    if storage is not None and storage.saves_input and (linear or not routed):
        return True
    adapted = adapted_layers(model, "moe", targets) if routed else ()
    return bool(set(layers) & set(targets)) and (not routed or any(layer.experts for layer in adapted))


def base_bytes(layer: Matrix, precision: BasePrecision) -> int:
    """Return the bytes of one frozen matrix with all that belongs to it."""
    storage = storage_of(precision)
    if storage is None:
        return (2 if precision == "bf16" else 4) * layer.inputs * layer.outputs
    return storage.matrix_bytes(layer.inputs, layer.outputs)


def scale_bytes(layer: Matrix, precision: BasePrecision) -> float:
    """Return the bytes of a quantised matrix besides its weights."""
    storage = storage_of(precision)
    weights = 0.0 if storage is None else storage.cut_bytes * layer.inputs * layer.outputs
    return base_bytes(layer, precision) - weights

"""Adapters of peft and quantised frozen weights, by the trainers' names.

Names and defaults: transformers' BitsAndBytesConfig, TRL 1.16.0 (ModelConfig), LLaMA-Factory 0.9.5
(hparams/model_args.py), ms-swift 4 (arguments/base_args), Axolotl 0.19 (loaders/model.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

from meshwright.launchers.reading.base import Options
from meshwright.launchers.reading.fields import Fields
from meshwright.launchers.reading.patterns import is_pattern, targets_in
from meshwright.profiles.adapters import (
    ALIKE,
    ATTENTION_TARGETS,
    CLASS_TARGETS,
    DOWN_PARAMETER,
    EMBEDDING,
    FUSED_TARGETS,
    HEAD,
    LEAST_BLOCK,
    LORA_TARGETS,
    NORMS,
    PARAMETER_TARGETS,
    SHARED_TARGETS,
    SINGLE_TARGETS,
    TRAINED_MODULES,
    class_targets,
    linear_names,
    names_every,
    of_linear_experts,
    shared_targets,
    single_blocks,
    single_names,
)
from meshwright.profiles.documents import shown
from meshwright.profiles.layer_names import CLASS_WORDS, layers_called
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.storage import BasePrecision
from meshwright.profiles.stored import checkpoint_base, stored_in_name
from meshwright.profiles.tower_modules import TOWER_TARGETS, modules_of, tower_modules

# --------------------------------------------------------------------------------------------------
# Adapters.


# How names select layers of a vision tower: not at all, by the ends of paths in the whole model (peft
# 0.21.2, tuners/tuners_utils.py check_target_module_exists), or as the trainer's own switches have it.
TowerNames = Literal["", "ends", "switches"]
FREEZE = "freeze"
_KINDS = ("finetuning_type", "tuner_type", "train_type", "sft_type")
# What arguments of adapters set, which do nothing where none train
OF_ADAPTERS = (
    "workload.lora_rank", "workload.lora_targets", "workload.trained_modules", "option.adapter_dropout",
)  # fmt: skip
_OFT = "oft"
_UNPRICED = {
    _OFT: ": such rotations of every layer's input are priced under LLaMA-Factory",
}
_WHOLE_SWITCHES = ("full_finetuning", "full_finetune")  # of Chinese-LLaMA-Alpaca's and QLoRA's scripts
_SWITCHES = ("use_peft", "use_peft_lora", "use_lora", "peft_enabled", "lora_enable", "enable_lora")


def adapters_of(
    fields: Fields,
    usual: str,
    model: ModelSpec,
    *,
    pefts: bool,
    rotates: bool = False,
    strange: bool = False,
    program: str = "",
    supplied: object = None,
    freezes: bool = False,
    tower: TowerNames = "",
) -> tuple[int, tuple[str, ...]]:
    """Return rank and targets of LoRA, if the run trains it.

    Args:
        fields: the trainer's arguments.
        usual: the default of the trainer, ``full`` or ``lora``.
        model: what has the layers.
        pefts: whether its adapters default to peft's own.
        rotates: whether it has OFT, whose size of blocks is the rank then.
        strange: whether the script is unknown, with defaults of its own.
        program: the started program; its name may show that it trains adapters.
        supplied: a rank that the user supplies; it overrides the arguments.
        freezes: whether it can train some layers in full, and freeze the others.
        tower: how names select layers of a vision tower.
    """
    whole = any(fields.flag(name) for name in _WHOLE_SWITCHES)
    kind = _kind_of(fields, usual, program, pefts=pefts and not whole)
    if kind == _OFT and rotates:
        return _rotations(fields), adapted(fields, model, pefts=pefts, tower=tower)
    if kind not in ("full", "lora", FREEZE if freezes else ""):
        fields.fault(
            next(name for name in _KINDS if fields.has(name)),
            f"{kind} is not supported{_UNPRICED.get(kind, '')}",
            allowed=", ".join(("full", "lora", *[_OFT] * rotates, *[FREEZE] * freezes)),
        )
    if kind != "lora":
        if pefts and not whole:
            _refuse_silent_rank(fields, program)
        fields.take_setting(*OF_ADAPTERS)
        return 0, ATTENTION_TARGETS
    if fields.raw("lora_config"):
        fields.fault(
            "lora_config", "adapters in a separate file can't be read", allowed="lora_r next to it"
        )
    refuse_uncounted(fields)
    fastchats = _FASTCHATS.search(program) is not None
    rank = fields.integer("lora_rank", fields.integer("lora_r", 16 if pefts and not fastchats else 8))
    rank = supplied if isinstance(supplied, int) and supplied > 0 else rank
    said = supplied or fields.has("lora_rank") or fields.has("lora_r")
    if strange and not fastchats and not said:
        fields.fault(
            "lora_r",
            "is not given, and the script's default is unknown",
            allowed="lora_r, in the script or next to it (--set lora_rank=…)",
        )
    if str(fields.raw("adapter") or "lora") not in ("lora", "qlora"):
        fields.fault(
            "adapter", f"{shown(str(fields.raw('adapter')))} is not supported", allowed="lora, qlora"
        )
    if strange and not fastchats and _bits(fields) and not any(fields.raw(name) for name in _TARGETS):
        why = (
            "is not given, and scripts on weights of few bits often adapt all linear layers, not peft's two"
        )
        fields.fault("lora_target_modules", why, allowed="it next to lora_r")
    _note_continued(fields)
    return rank, adapted(fields, model, pefts=pefts, tower=tower)


def _kind_of(fields: Fields, usual: str, program: str, *, pefts: bool) -> str:
    """Return what is trained; ``pefts``: a script whose adapters a switch or its name may turn on."""
    kind = next((fields.word(name) for name in _KINDS if fields.has(name)), usual)
    if any(fields.flag(name) for name in _SWITCHES):
        kind = "lora"
    if (
        pefts
        and kind == "full"
        and (
            # transformers never trains 4- or 8-bit weights in full
            (_bits(fields) and (fields.raw("lora_rank") or fields.raw("lora_r")))
            or _is_of_lora(fields, program)
        )
    ):
        kind = "lora"
    return kind


# Names besides rank, targets and modules that change how many weights peft trains (LoraConfig, 0.21), by
# its own names, Axolotl's and ms-swift's; every value of a trainer's ``lora_bias`` but none adds weights.
UNCOUNTED = re.compile(
    r"(?:\w+\.)?(?:peft_|lora_)?(?:bias|rank_pattern|layers_to_transform|layers_pattern|exclude_modules|"
    r"layer_replication|trainable_token_indices|use_(?:qalora|bdlora))(?:\..+)?|target_regex"
)
WHY_UNCOUNTED = "changes which weights are trained. That is not supported"


_DORA = ("use_dora", "peft_use_dora")  # peft's, and Axolotl's
_DROPOUTS = ("lora_dropout", "lora_dropout_p", "lora_droppout")


_BLOCK, _BLOCKS, _OWN_TARGETS = "oft_block_size", "oft_rank", "oft_target"


def _rotations(fields: Fields) -> int:
    """Return the size of OFT's blocks (LLaMA-Factory 0.9.5, model/adapter.py:243).

    Its layers are those of ``lora_target`` (:207).
    """
    blocks = fields.integer(_BLOCKS, 0)
    if blocks:
        fields.take(_BLOCK)
        fields.fault(
            _BLOCKS,
            "so many blocks of each layer, whatever their size, are not supported",
            allowed=f"0, with {_BLOCK}",
            nearest="0",
        )
    if fields.has(_OWN_TARGETS) and fields.raw(_OWN_TARGETS) != "all":
        fields.note(f"{_OWN_TARGETS} does nothing: lora_target names the layers of either kind")
    _note_continued(fields)
    return 32 if blocks else fields.integer(_BLOCK, 32, low=LEAST_BLOCK)


def options_of(fields: Fields, *, usual: float = 0.0) -> Options:
    """Return the options of adapters: dropout on their inputs, and DoRA; ``usual``: the default dropout."""
    if any(fields.word(name) == _OFT for name in _KINDS if fields.has(name)):
        return {"oft": True}
    name = next((name for name in _DROPOUTS if fields.has(name)), _DROPOUTS[0])
    found: Options = {"adapter_dropout": True} if fields.number(name, usual) > 0.0 else {}
    return found | ({"dora": True} if any(fields.flag(one) for one in _DORA) else {})


def refuse_uncounted(fields: Fields) -> None:
    """Record a fault for a name of peft's that changes the number of trained weights."""
    if (name := fields.named(UNCOUNTED)) is not None:
        fields.fault(name, WHY_UNCOUNTED, allowed=f"none, or --ignore {name} for adapters without it")


_CONTINUED = ("adapter_name_or_path", "adapters", "peft_path", "lora_model_dir", "lora_weight_path")


def _note_continued(fields: Fields) -> None:
    """Note the assumptions on adapters that were trained before."""
    name = next((name for name in _CONTINUED if fields.has(name)), None)
    if name is not None:
        fields.note(f"{name}: assuming that existing adapters have this rank and these targets")


_OF_ADAPTERS = re.compile(r"(?:\w+_)?(?:lora|qlora|peft|adapters?)(?:_\w+)?")
_KINDS_OF_THEM = (
    "lora", "qlora", "dora", "rslora", "adalora", "ia3", "peft", "adapter", "freeze", "bitfit",
)  # fmt: skip
_OF_LORA = re.compile(r"(?:^|[-_/])(?:q?lora|with_peft)(?=[-_.])", re.IGNORECASE)
# FastChat's, and its forks': rank 8 of q_proj and v_proj by default.
_FASTCHATS = re.compile(r"fastchat/train/train_(?:\w+_)?lora\.py$")


def _is_of_lora(fields: Fields, program: str) -> bool:
    """Return whether a program's name contains LoRA, and only its arguments are known."""
    if _FASTCHATS.search(program):
        return True
    said = [any(fields.raw(name) for name in names) for names in (("lora_rank", "lora_r"), _TARGETS)]
    return bool(_OF_LORA.search(program.rpartition("/")[2])) and all(said)


def _refuse_silent_rank(fields: Fields, program: str) -> None:
    """Record a fault for words of adapters without a switch: only some scripts train adapters with them."""
    said = any(fields.has(name) for name in _SWITCHES)
    rank = ("lora_rank", "lora_r", "trainable")
    name = next((name for name in rank if fields.raw(name)), fields.named(_OF_ADAPTERS))
    name = name or fields.valued(lambda text: text.lower() in _KINDS_OF_THEM)
    base = program.rpartition("/")[2]
    if name is not None and not said:
        fields.fault(
            name,
            "of adapters, and nothing states whether the script trains them",
            allowed=f"use_peft true or false, or --ignore {name} for training all weights",
        )
    elif not said and re.search(r"(?:^|_)(?:q?lora|peft|p_?tuning|prefix|adapters?)(?=_|\.)", base):
        fields.fault(
            "lora_r",
            f"{shown(base)} trains adapters by its name, and no argument names them",
            allowed="lora_r with lora_target_modules, or use_peft true or false",
        )


_TARGETS = ("lora_target", "target_modules", "lora_target_modules", "lora_modules", "trainable")
_FUSED = {  # of models that are not known; GPT-2 has two with one name
    **dict.fromkeys(("query_key_value", "c_attn", "W_pack"), ("linear_qkv",)),
    **dict.fromkeys(("dense", "attn.c_proj"), ("linear_proj",)),
    **dict.fromkeys(("dense_h_to_4h", "c_fc"), ("linear_fc1",)),
    **dict.fromkeys(("dense_4h_to_h", "mlp.c_proj"), ("linear_fc2",)),
    "c_proj": ("linear_proj", "linear_fc2"),
}
_ADAPTED_AS_THEY_ARE = ("target_parameters", "lora_target_parameters")  # peft's, without a layer's name
_WHOLE_LAYERS = ("modules_to_save", "lora_modules_to_save", "additional_target")  # peft's, by the trainers
_WHOLE = {  # modules trained in full, by the names of transformers' classes
    **dict.fromkeys(("embed_tokens", "wte", "word_embeddings", "embed_in", "tok_embeddings"), EMBEDDING),
    **dict.fromkeys(("lm_head", "embed_out"), HEAD), "norm": NORMS,
}  # fmt: skip
_PEFTS_OWN = ("q_proj", "v_proj")  # TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING (peft, constants.py)


_MLP_NAMES = ("gate_proj", "up_proj", "down_proj")
_OF_ATTENTION = {*SINGLE_TARGETS} - {*_MLP_NAMES, "gate"}
_OF_MIXERS = {name for name in CLASS_TARGETS if name.startswith("in_proj_")} | {"out_proj"}


def _plain(word: object, model: ModelSpec | None) -> object:
    """Return a target without the module that has it, where it means the same.

    No other module of the model has that name, or peft looks at its end alone: it takes any ``gate_proj``
    for the experts' where it converts their names (0.21.2, utils/transformers_weight_conversion.py:460).
    """
    parent, _, name = str(word).rpartition(".")
    moe = model.moe if model else None
    experts = moe.expert_adapters if moe else ""
    dense = model is None or "dense" in model.layer_kinds()
    shared = name in _MLP_NAMES and (experts == "gate_up" or (experts == "listed" and not dense))
    alone = {
        "self_attn": name in _OF_ATTENTION,
        "linear_attn": name in _OF_MIXERS,
        "mlp": model is not None and moe is None and name in _MLP_NAMES,
        **dict.fromkeys(("shared_expert", "mlp.shared_expert"), shared),
    }
    return name if alone.get(parent) else word


def adapted(
    fields: Fields, model: ModelSpec | None, *, pefts: bool = True, tower: TowerNames = ""
) -> tuple[str, ...]:
    """Return LoRA's targets, those of a vision tower too; by default peft's own, or all linear layers.

    Args:
        fields: the trainer's arguments.
        model: what has the layers; None: unknown.
        pefts: whether its adapters default to peft's own.
        tower: how names select layers of the model's tower.
    """
    name = next((name for name in _TARGETS if fields.raw(name)), _TARGETS[0])
    parameters = _adapted_parameters(fields)
    alone = bool(parameters) and pefts and not fields.raw(name)
    layers = () if alone else _adapted_layers(fields, name, model, pefts=pefts, tower=tower)
    seen = adapted_by_name(fields, model) if model is not None and tower == "ends" else ()
    return (*layers, *seen, *parameters)


def of_megatron(fields: Fields, model: ModelSpec | None = None) -> tuple[str, ...]:
    """Return LoRA's targets by Megatron-Core's names, which are those of any ``model``."""
    del model
    name = next((name for name in _TARGETS if fields.raw(name)), _TARGETS[0])
    words = words_of(fields.raw(name) or [*FUSED_TARGETS])
    if others := [word for word in words if word not in FUSED_TARGETS]:
        fields.fault(
            name, f"{shown(others[0])} is no layer that is priced", allowed=", ".join(FUSED_TARGETS)
        )
    return tuple(one for one in FUSED_TARGETS if one in words)


def _adapted_parameters(fields: Fields) -> tuple[str, ...]:
    """Return the experts' weights that peft adapts by the ends of their names."""
    name = next((name for name in _ADAPTED_AS_THEY_ARE if fields.raw(name)), None)
    if name is None:
        return ()
    said = fields.raw(name)
    words = [str(word) for word in said] if isinstance(said, list) else [str(said)]
    found = [
        next((one for one in PARAMETER_TARGETS if f".{word}".endswith(f".{one}")), "") for word in words
    ]
    if not all(found):
        fields.fault(
            name, f"{shown(words[found.index('')])} is not a weight that is priced",
            allowed=", ".join(PARAMETER_TARGETS),
        )  # fmt: skip
    return tuple(one for one in PARAMETER_TARGETS if one in found)


def _adapted_layers(
    fields: Fields, name: str, model: ModelSpec | None, *, pefts: bool, tower: TowerNames
) -> tuple[str, ...]:
    if pefts and not fields.raw(name):
        fields.note("lora_target_modules is not given: q_proj and v_proj, peft's own for most models")
        return _PEFTS_OWN
    said = fields.raw(name) or "all"
    if isinstance(said, list) and len(said) == 1:  # which TRL hands on as a word (trainer/utils.py)
        said = str(said[0])
    if isinstance(said, str) and is_pattern(said):
        return _of_pattern(fields, name, said, model)
    words = [_plain(word, model) for word in words_of(said)]
    every = [str(word) for word in words if str(word).lower() in ("all", "all-linear")]  # ms-swift 2: ALL
    beside = [word for word in words if str(word) not in every]
    if every and pefts and beside:  # a name as any other (peft's _maybe_include_all_linear_layers)
        listed, allowed = ", ".join(map(str, beside)), f"{every[0]} alone, or names of layers without it"
        fields.fault(name, f"{every[0]} next to {shown(listed)} selects no further layers", allowed=allowed)
    further = [_targets_of(str(word), model) for word in beside] if every else []
    if every and all(further):  # ms-swift adds them up (arguments/tuner_args.py, get_target_modules)
        either = {*SINGLE_TARGETS}.union(*further)
        return tuple(one for one in LORA_TARGETS if one in either)
    words = _of_language(fields, beside, model, tower)
    for word, instead in _unmatched(words, model):
        fields.fault(name, f"{word} matches no module of transformers' classes", allowed=instead)
        return ATTENTION_TARGETS
    known = [_targets_of(str(word), model) for word in words]
    if model is not None and any(known):  # a list for several models
        others = [
            str(word) for word, found in zip(words, known, strict=True) if not found and word in CLASS_WORDS
        ]
        if others:
            fields.note(f"no layer of {model.title} is called {', '.join(others)}: peft passes over it")
        words = [word for word in words if word not in others]
        known = [_targets_of(str(word), model) for word in words]
    if not all(known):
        strange = str(words[known.index(())])
        fields.fault(name, f'"{strange[:40]}" is not a layer that is priced', allowed=", ".join(_NAMES))
        return ATTENTION_TARGETS
    return tuple(one for one in LORA_TARGETS if any(one in several for several in known))


# A tower's are Meshwright's own, fused ones Megatron-Core's, and parameters no modules.
_NAMES = tuple(
    name for name in LORA_TARGETS if name not in {*TOWER_TARGETS, *FUSED_TARGETS, *PARAMETER_TARGETS}
)


def _unmatched(words: Sequence[object], model: ModelSpec | None) -> Iterator[tuple[str, str]]:
    """Yield the names of other launchers' layers and of weights, and what peft has instead of each."""
    for word in map(str, words):
        if word in FUSED_TARGETS:
            yield word, f"{', '.join(ALIKE[word])}: {word} is Megatron-Core's name"
        elif word in PARAMETER_TARGETS and not _is_converted(word, model):
            yield word, f"{word} in {_ADAPTED_AS_THEY_ARE[0]}: it is a weight of experts in one tensor"


def _is_converted(word: str, model: ModelSpec | None) -> bool:
    """Return whether peft takes a name for a parameter's: one that experts of transformers 4 had, too."""
    moe = model.moe if model else None
    return moe is not None and moe.expert_adapters == "gate_up" and word == DOWN_PARAMETER


def words_of(said: object) -> list[str]:
    """Return the names of a list, or of a text with commas or blanks between them."""
    return [str(one) for one in said] if isinstance(said, list) else str(said).replace(",", " ").split()


def _of_language(
    fields: Fields, words: Sequence[object], model: ModelSpec | None, tower: TowerNames
) -> list[object]:
    """Return the names without those that only a tower's layers have, which are looked for there."""
    if model is None:
        return list(words)
    if tower:
        own = names_in_tower(words, model, shared=False)
        return [word for word in words if word not in own]
    if shared := names_in_tower(words, model, shared=True):
        fields.note(f"{', '.join(shared)}: priced in the language model alone, not in the vision tower")
    return list(words)


def names_in_tower(words: Sequence[object], model: ModelSpec, *, shared: bool) -> list[str]:
    """Return the names that layers of a tower have, and of the language model, too, or none (``shared``).

    Megatron-Core's are no layers of transformers' classes, so a tower's alone.
    """
    seen = [str(word) for word in words if any(_has(path, str(word)) for path in _tower_paths(model))]
    return [word for word in seen if shared != ({*_targets_of(word, model)} <= {*FUSED_TARGETS})]


def _targets_of(word: str, model: ModelSpec | None) -> tuple[str, ...]:
    """Return the targets that a name means in the class of the model."""
    if model is None:
        return (word,) if word in _NAMES else _FUSED.get(word, ())
    if _is_converted(word, model):
        return (word,)
    shared = tuple(one for one in shared_targets(model) if class_targets(model, (one,))[0] == _shared(word))
    named = (word,) if word in _NAMES and word not in SHARED_TARGETS else ()
    return layers_called(model.layer_names, word, single_names(model)) or shared or named


def _shared(word: str) -> str:
    """Return a layer of shared experts without the MLP that has them."""
    return word.removeprefix("mlp.").removeprefix("feed_forward.")


def with_layers_apart(fields: Fields, model: ModelSpec) -> ModelSpec:
    """Return a model whose own code has queries, keys and values apart, where its adapters name them.

    Conversions for adapters are such: LnL-AI/dbrx-base-converted-v2 (Axolotl 0.19,
    examples/archived/dbrx/README.md). transformers' class has no layers with these names, so peft would
    adapt none.
    """
    said = next((fields.peek(name) for name in _TARGETS if fields.peek(name)), None)
    named = isinstance(said, list) and {*_PEFTS_OWN, "k_proj"} <= {str(word) for word in said}
    if not (named and model.fused_qkv and str(fields.peek("trust_remote_code")).lower() == "true"):
        return model
    fields.note(
        f"assuming that the checkpoint's own code has q_proj, k_proj and v_proj apart: {model.title} of "
        "transformers has them in one layer"
    )
    return replace(model, fused_qkv=False)


def of_peft(fields: Fields, targets: tuple[str, ...], model: ModelSpec) -> tuple[str, ...]:
    """Return peft's own targets where none are named and a class has queries, keys and values in one layer.

    peft 0.21.2, utils/constants.py: ``c_attn`` of GPT-2 (:71), ``query_key_value`` of Falcon and GPT-NeoX.
    """
    if targets != _PEFTS_OWN or any(fields.raw(name) for name in _TARGETS):
        return targets
    fused = all("qkv_proj" in block and "gate_up_proj" not in block for block in single_blocks(model))
    return ("qkv_proj",) if fused else targets


def _of_pattern(fields: Fields, name: str, text: str, model: ModelSpec | None) -> tuple[str, ...]:
    try:
        found, paths = targets_in(text)
    except ValueError:
        found, paths = (), ()
    if paths:
        found = (*found, *of_tower_paths(fields, name, paths, model))
    elif not found:
        fields.fault(
            name,
            f"{shown(text)} names no layer that is priced",
            allowed=f"a list of {', '.join(_NAMES)}",
        )
    return found or ATTENTION_TARGETS


def of_tower_paths(
    fields: Fields, name: str, paths: tuple[str, ...], model: ModelSpec | None
) -> tuple[str, ...]:
    """Return the targets that paths are in the class of a tower; some of a target's paths are a fault."""
    known = modules_of(model.tower) if model else None
    if known is None:
        fields.fault(
            name,
            f"adapts {paths[0]}: Meshwright doesn't know the linear layers of this model's tower",
            allowed=f"layers of the language model, or a model of type {', '.join(tower_modules())}",
        )
        fields.stop()
        return ()
    of = {path: target for target in known.targets for path in known.paths(target)}
    found = tuple(target for target in known.targets if {*known.paths(target)} <= {*paths})
    read = {path for target in found for path in known.paths(target)}
    if others := [path for path in paths if path not in read]:
        is_part = others[0] in of
        whole = " and ".join(known.paths(of[others[0]])) + " together" if is_part else ", ".join(of)
        why = "is only a part of the projector" if is_part else "is no linear layer of the tower"
        fields.fault(name, f"{others[0]} {why}", allowed=whole)
    return found


def _tower_paths(model: ModelSpec) -> tuple[str, ...]:
    """Return the paths of the linear layers of a tower's class; () where they are not known."""
    known = modules_of(model.tower)
    return tuple(path for target in known.targets for path in known.paths(target)) if known else ()


_ANY_LAYER = re.compile(r"\.0(?=\.)")  # which stands for every number


def _has(path: str, word: str) -> bool:
    """Return whether a name is the end of a path of a tower in every layer, as peft compares them."""
    return _ANY_LAYER.sub(".*", f".{path}").endswith(f".{word}")


def adapted_by_name(fields: Fields, model: ModelSpec) -> tuple[str, ...]:
    """Return the layers of a tower that names of layers mean, too: peft compares the ends of paths.

    Axolotl's ``lora_target_linear`` is a list of the last names of all linear layers (0.18,
    loaders/adapter.py:54 ``find_all_linear_names``).
    """
    paths, name = _tower_paths(model), next((one for one in _TARGETS if fields.raw(one)), _TARGETS[0])
    said, every = fields.raw(name), fields.flag("lora_target_linear")
    if isinstance(said, str) and is_pattern(said) and not every:
        return ()
    words = words_of(said or "")
    if every:
        words = [path.rpartition(".")[2] for path in paths]
        if numbers := ", ".join(dict.fromkeys(word for word in words if word.isdigit())):
            why = f"selects modules called {numbers}, and peft stops at those that aren't linear layers"
            allowed = "false, with lora_target_modules: [q_proj, v_proj]"
            fields.fault("lora_target_linear", why, allowed=allowed)
    hit = tuple(path for path in paths if any(_has(path, word) for word in words))
    return of_tower_paths(fields, name, hit, model) if hit else ()


def trained_whole(fields: Fields) -> tuple[str, ...]:
    """Return the modules trained in full next to adapters, of ``TRAINED_MODULES``.

    LLaMA-Factory trains embedding and head if it extends the vocabulary (model/adapter.py).
    """
    name = next((name for name in _WHOLE_LAYERS if fields.raw(name)), None)
    if name is None:
        return (EMBEDDING, HEAD) if fields.flag("resize_vocab") else ()
    said = fields.raw(name)
    words = [str(word) for word in said] if isinstance(said, list) else str(said).replace(",", " ").split()
    other = next((word for word in words if word.rpartition(".")[2] not in _WHOLE), None)
    if other is not None:
        fields.fault(
            name, f"{shown(other)} trained whole is not supported", allowed=", ".join(TRAINED_MODULES)
        )
    found = {_WHOLE.get(word.rpartition(".")[2]) for word in words}
    return tuple(module for module in TRAINED_MODULES if module in found)


def of_trainer(
    fields: Fields, targets: tuple[str, ...], model: ModelSpec, rank: int = 0
) -> tuple[str, ...]:
    """Return the targets of a trainer that lists a class's linear layers itself if all are requested.

    ``rank``: rank of a trainer that also runs on transformers 4, with experts as linear layers.
    """
    if not names_every(targets):
        return targets
    if more := of_linear_experts(model, rank):
        fields.note(
            "all linear layers are those of transformers 5, which leave out experts; under "
            f"transformers 4 adapters stand next to each expert, too: {more} weights more, which are "
            "not supported"
        )
    return (*linear_names(model), *(name for name in targets if name in TOWER_TARGETS))


# --------------------------------------------------------------------------------------------------
# Quantised frozen weights, as bitsandbytes stores them.


_SWITCHED_BITS = ("q_lora", "use_qlora")  # FastChat's, open-instruct's: 4 bits, trained by adapters
_NESTED_BITS = ("bits", "load_in_kbits")
_NESTED_TOO = (*_NESTED_BITS, *_SWITCHED_BITS)  # scales are quantised, too, by default
_BITS = ("quantization_bit", "quant_bits", *_NESTED_BITS)
_WHOLE_BITS = "16"  # of load_in_kbits, and bits
_METHODS = ("quantization_method", "quant_method")
_TYPES = ("quantization_type", "bnb_4bit_quant_type", "quant_type")
_NESTED = (
    "double_quant", "double_quantization", "bnb_4bit_use_double_quant", "use_bnb_nested_quant",
    "use_nested_quant", "bnb_config_kwargs.bnb_4bit_use_double_quant",
)  # fmt: skip
_FLAGS = {  # of TRL, Axolotl, and scripts after peft's examples
    "load_in_4bit": 4, "load_in_8bit": 8, "use_4bit_quantization": 4, "use_8bit_quantization": 8,
    **dict.fromkeys(_SWITCHED_BITS, 4),
}  # fmt: skip
_WHY = "is not supported from launch files yet"
_SHARDED = 3  # ZeRO-3


_STORED = re.compile(
    r"[-_](awq|gptq|aqlm|int[48]|[48]bits?|bnb|gguf|(?:nv|mx)?fp[48])(?=$|[-_/])", re.IGNORECASE
)


# A checkpoint that bitsandbytes stored: its own configuration counts, whatever the arguments say
# (transformers 5.17, quantizers/auto.py:236 merge_quantization_configs), and its weights are QLoRA's.
_STORED_AS_QLORA = re.compile(r"[-_]bnb[-_](?:4bit|nf4)(?=$|[-_/])", re.IGNORECASE)
_OF_MODELS = ("model_name_or_path", "base_model", "model", "model_id_or_path", "model_id")


def stored_as_qlora(fields: Fields) -> str:
    """Return the argument of a model that bitsandbytes stored in 4 bits, by its name; empty without one."""
    stored = (name for name in _OF_MODELS if _STORED_AS_QLORA.search(str(fields.peek(name) or "")))
    return next(stored, "")


def refuse_stored(fields: Fields, name: str, *, frozen: bool = False, packed: bool = False) -> None:
    """Record a fault for a model with a name that states a quantised checkpoint.

    ``frozen``: the trainer loads GPTQ, AWQ and AQLM as the base of adapters (``stored_base``). ``packed``:
    it loads experts in NVFP4 so, too.
    """
    text = str(fields.raw(name) or "")
    stored = stored_in_name(text)
    if (frozen and checkpoint_base(stored)) or (packed and stored == "nvfp4"):
        return
    if _STORED.search(_STORED_AS_QLORA.sub("", text)):
        fields.fault(name, f"{shown(text)} is stored quantised: such a model {_WHY}")


def stored_base(fields: Fields, model: ModelSpec, rank: int) -> BasePrecision | None:
    """Return the type of frozen weights that the model's checkpoint has in few bits; None: it has not."""
    base = checkpoint_base(model.stored_as)
    if base is None:
        return None
    name = next((name for name in _OF_MODELS if fields.has(name)), _OF_MODELS[0])
    if not rank:
        fields.fault(name, f"weights in {base} are frozen: nothing would be trained", allowed="with LoRA")
    bits = next((bits for bits in _BITS if fields.has(bits)), None)
    if bits:
        fields.note(f"{bits} does nothing: the checkpoint is stored in {base}")
    return base


# LLaMA-Factory 0.9.5, model/model_utils/quantization.py:95
_ITS_REFUSAL = "LLaMA-Factory refuses them under ZeRO-3 and FSDP"


def require_replicas(fields: Fields, base: BasePrecision, *, shards: bool, why: str = _ITS_REFUSAL) -> None:
    """Refuse a checkpoint of few bits under ZeRO-3 and FSDP; ``why``: what the trainer does."""
    if shards:
        name = next((name for name in _OF_MODELS if fields.has(name)), _OF_MODELS[0])
        fields.fault(
            name,
            f"weights in {base} are not cut over ranks: {why}",
            allowed="without ZeRO-3 and FSDP",
        )
        fields.stop()


_IN_LOADING = ("bnb", "hqq", "eetq", "quanto", "fp8")  # ms-swift's methods that quantise what they load


def base_of(fields: Fields, *, nested: bool) -> BasePrecision:
    """Return the type of the frozen weights; ``nested``: whether scales are quantised, too, by default."""
    bits, stored = _bits(fields), stored_as_qlora(fields)
    for names, right in ((_METHODS, ("bnb", "bitsandbytes")), (_TYPES, ("nf4", "fp4"))):
        name = next((name for name in names if fields.has(name)), None)
        if bits and name and fields.word(name) not in right:
            fields.fault(name, f"{shown(str(fields.raw(name)))} {_WHY}", allowed=right[0], nearest=right[0])
    if not bits and fields.raw("quant_method") in _IN_LOADING:
        why = "without quant_bits loads weights of 8 bits, or stops (ms-swift 4.6, quant_args.py)"
        fields.fault("quant_method", f"{fields.raw('quant_method')} {why}", allowed="bnb and quant_bits")
    double = next((name for name in _NESTED if fields.has(name)), _NESTED[0])
    nested = bool(stored) or nested or any(fields.has(name) for name in _NESTED_TOO)
    nested = fields.flag(double, default=nested)
    if stored and not fields.has(double):
        fields.note(f"{stored} is stored in 4 bits by bitsandbytes: priced with scales quantised as well")
    if bits == 0:
        return "bf16"
    return "int8" if bits == 8 else "nf4-double" if nested else "nf4"  # noqa: PLR2004 - bits


def whole_base(fields: Fields, precision: str) -> BasePrecision:
    """Return the type of frozen weights that are not quantised: as loaded."""
    name = next((name for name in ("torch_dtype", "dtype") if fields.has(name)), None)
    said = str(fields.raw(name)).removeprefix("torch.") if name else ""
    if said in ("bfloat16", "auto") or (said == "float16" and precision == "fp16"):
        return "bf16"
    if name is None:
        fields.note(
            "no argument sets the type that frozen weights are loaded in: float32, 4 bytes each; dtype "
            "bfloat16 takes 2"
        )
    return "fp32"


def _bits(fields: Fields) -> int:
    """Return 4 or 8, or 0 for weights that are not quantised."""
    number = next(
        (name for name in _BITS if fields.has(name) and str(fields.raw(name)) != _WHOLE_BITS), None
    )
    on = [name for name in _FLAGS if fields.flag(name)]
    if stored_as_qlora(fields):
        return 4
    found = [*([fields.integer(number, 4)] if number else []), *(_FLAGS[name] for name in on)]
    if any(bits not in (4, 8) for bits in found):
        fields.fault(number or _BITS[0], f"{found[0]} {_WHY}", allowed="4, 8", nearest="4")
    if len(set(found)) > 1:
        fields.fault(on[-1], "weights are of 4 bits or of 8, not both", allowed="one of them")
    return found[0] if found else 0


_STORAGE = (
    "bnb_4bit_quant_storage",
    "bnb_4bit_quant_storage_dtype",
    "bnb_config_kwargs.bnb_4bit_quant_storage",
)
# accelerate 1.15.0, utils/fsdp_utils.py (fsdp2_prepare_model), ``ignored_params``.
_WHOLE_ON_RANKS = "FSDP2 leaves integers of bitsandbytes whole on every rank, FSDP1 stops at them"


def _stored_in_floats(fields: Fields) -> bool:
    """Return whether 4-bit weights are stored in floating-point tensors, which FSDP can shard."""
    said = (str(fields.raw(name)).removeprefix("torch.") for name in _STORAGE)
    return any(one in ("bfloat16", "float16", "float32") for one in said)


def require_whole_weights(fields: Fields, zero: int, rank: int, *, packs: bool = False) -> None:
    """Refuse quantised weights that are trained themselves, or that ranks cannot share.

    ``packs``: whether the trainer itself stores 4-bit weights in floating-point tensors.
    """
    said = (name for name in (*_BITS, *_FLAGS) if fields.raw(name) not in (None, False))
    name = next(said, stored_as_qlora(fields))
    bits = f"weights of {_bits(fields)} bits"
    if not rank:
        fields.fault(name, f"{bits} are frozen: nothing would be trained", allowed="with LoRA")
    packed = _bits(fields) == 4 and (_stored_in_floats(fields) or packs)  # noqa: PLR2004 - bits
    if zero == _SHARDED and not packed:
        fields.fault(
            name,
            f"{bits} cut over ranks are not supported: {_WHOLE_ON_RANKS}",
            allowed="4 bits with bnb_4bit_quant_storage bfloat16, or without ZeRO-3 and FSDP",
        )
    elif zero == _SHARDED:
        fields.note("4-bit weights lie packed in 16-bit tensors, which ranks share: their scales are whole")
    fields.stop()

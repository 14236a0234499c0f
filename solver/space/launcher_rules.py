"""Limits of a launcher, as rules of the space."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import ceil, gcd

import numpy as np

from meshwright.profiles.adapters import (
    CLASS_TARGETS,
    EMBEDDING,
    EXPERT_TARGETS,
    FUSED_TARGETS,
    HEAD,
    PARAMETER_TARGETS,
    SHARED_TARGETS,
    SINGLE_TARGETS,
    TRAINED_MODULES,
    adapted_layers,
    has_linear_experts,
    matrix_rows,
    unadaptable,
)
from meshwright.profiles.advice import advice_on_experts
from meshwright.profiles.attention import HYBRID, SDPA, asked_kernel
from meshwright.profiles.capabilities import (
    ANY_MIXER,
    APART,
    Capabilities,
    judged_versions,
    lacking_facts,
    launcher_capabilities,
    launchers_of,
    launchers_stating,
    model_facts,
)
from meshwright.profiles.cluster import GpuSpec
from meshwright.profiles.documents import pointer
from meshwright.profiles.errors import FieldError, InvalidProblemError
from meshwright.profiles.frameworks import (
    FORMATS,
    MERGED,
    TERNARY,
    FrameworkFacts,
    framework_facts,
    with_options,
)
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.optimizers import OPTIMIZERS, WITHOUT_COPY, optimizer_named
from meshwright.profiles.profile import framework_of
from meshwright.profiles.storage import WHOLE_PRECISIONS, BasePrecision, is_checkpoints, is_of_experts
from meshwright.profiles.stored import STORED, StoredKind
from meshwright.profiles.switches import NEEDS, clashes, switch_faults, switches
from meshwright.profiles.tower_modules import TOWER_TARGETS
from meshwright.profiles.towers import FROZEN_PARTS, TOWER_PARTS
from meshwright.profiles.trained_layers import FIRST, count_of
from meshwright.profiles.units import GIB
from meshwright.profiles.vendors import vendor_of
from meshwright.solver.answer import Plan
from meshwright.solver.configuration import (
    ALL_LAYERS,
    ALL_TO_ALL,
    CONTEXT_MODES,
    OFFLOAD,
    PER_STAGE,
    RANK_ORDERS,
    RECOMPUTE,
    SCHEDULES,
    BoolArray,
    Columns,
    Configuration,
    IntArray,
    is_one_of,
)
from meshwright.solver.cost.context import DEFAULT, overlap_limits
from meshwright.solver.cost.sharding import SHARD_GRADIENTS, SHARD_WEIGHTS
from meshwright.solver.problem import (
    STANDALONE_STAGES,
    Problem,
    Workload,
    can_start,
    per_node_of,
    with_changes,
)
from meshwright.solver.space.file_rules import file_faults
from meshwright.solver.space.request_rules import broken_by, columns_named, constraint_of, names_of
from meshwright.solver.space.rule import Rule, among
from meshwright.solver.space.tower_rules import tower_adapter_faults
from meshwright.solver.splits import Prescribed, launcher_split

# --------------------------------------------------------------------------------------------------
# What one launcher asks beyond schedules, ZeRO stages and axes: its data as rules of the search.
#
# The same rules judge one finished configuration (``meshwright.solver.check`` and the exporters), so that
# what the search finds for a launcher can be exported for it.


def problem_faults(problem: Problem, able: Capabilities) -> Iterator[FieldError]:
    """Yield faults that keep the launcher's files from being written, whatever the configuration."""
    yield from workload_faults(problem, able)
    yield from model_faults(problem.model, able)
    yield from chip_faults(problem, able)


def workload_faults(problem: Problem, able: Capabilities) -> Iterator[FieldError]:
    """Yield parts of a workload that the launcher cannot train with any model."""
    yield from _word_faults(problem.workload, able)
    yield from _ends_faults(problem.workload)
    yield from _redrawn_faults(problem, able)
    yield from _adapter_faults(problem, able)
    yield from _layer_faults(problem, able)
    yield from _sample_faults(problem.workload, able)
    yield from _frozen_faults(problem, able)
    yield from batching_faults(problem, able)
    yield from _overlap_faults(problem, able)
    yield from option_faults(problem, able)
    yield from file_faults(problem, able, _facts(problem, able))
    yield from _host_faults(problem.workload, able)
    model, seq = problem.model, problem.workload.seq_length
    positions = model.max_position_embeddings or seq
    if model.learned_position_embeddings and seq > positions:
        yield FieldError(
            pointer="/workload/seq_length",
            message=f"{seq} is longer than the {positions} learned positions",
            allowed=f"1 to {positions}, or your config.json that states more (n_positions)",
            nearest=str(positions),
        )


def _host_faults(workload: Workload, able: Capabilities) -> Iterator[FieldError]:
    """Yield a number of layers on the hosts under a launcher that sends none by their number."""
    layers = float(workload.framework_options.get("offload_layers", 0))
    if layers and not able.offloaded_layer_constraints and able.launcher != "none":
        others = {name: launcher_capabilities(name) for name in launchers_of("any")}
        takers = [name for name, one in others.items() if one.offloaded_layer_constraints]
        yield FieldError(
            pointer="/workload/framework_options/offload_layers",
            message=f"{layers:g}, but {able.launcher} has no setting for it",
            allowed=f"absent, or 0 (launchers that take a number: {', '.join(takers)})",
            nearest="0",
        )


def _adapter_faults(problem: Problem, able: Capabilities) -> Iterator[FieldError]:
    """Yield what the launcher cannot adapt, train next to adapters, or hold frozen under them."""
    name, workload = able.launcher, problem.workload
    if not workload.lora_rank:
        return
    if not able.adapters:
        others = [one for one in launchers_of("any") if launcher_capabilities(one).adapters]
        yield FieldError(
            pointer="/workload/lora_rank",
            message=f"{name} can't train LoRA adapters",
            allowed=f"the launchers {', '.join(others)}",
        )
        return
    if problem.model.compression is not None:
        yield FieldError(
            pointer="/workload/lora_rank",
            message=f"adapters of {problem.model.title}, whose keys are compressed, are not supported yet",
            allowed="0, which trains all weights",
            nearest="0",
        )
    parameters = PARAMETER_TARGETS if able.adapts_parameters else ()
    towers = TOWER_TARGETS if able.adapts_towers else ()
    single = (*SINGLE_TARGETS, *EXPERT_TARGETS, *CLASS_TARGETS, *SHARED_TARGETS, *parameters, *towers)
    targets_of = {"fused": FUSED_TARGETS, "single": single}
    targets = [target for kind in able.adapters for target in targets_of[kind]]
    modules = TRAINED_MODULES if "single" in able.adapters else ()  # peft's, as single layers are
    for field, known in (("lora_targets", targets), ("trained_modules", modules)):
        if unknown := [named for named in getattr(workload, field) if named not in known]:
            yield FieldError(
                pointer=f"/workload/{field}",
                message=f"{name} has no modules called {' or '.join(unknown)}",
                allowed=", ".join(known) or "[]",
            )
    named = {*workload.lora_targets}
    all_linear = able.adapters == ("single",) and {*SINGLE_TARGETS} <= named
    lacking = unadaptable(problem.model)
    if lacking and (all_linear or lacking in named):
        yield FieldError(
            pointer="/workload/lora_targets",
            message=f"peft can't adapt {lacking} of {problem.model.title}, one of its linear layers",
            allowed=f"some of {', '.join(SINGLE_TARGETS)}",
            nearest=json.dumps(SINGLE_TARGETS[:4]),
        )
    if workload.base_precision not in able.base_precisions:
        yield FieldError(
            pointer="/workload/base_precision",
            message=f"{name} doesn't support frozen weights in {workload.base_precision}",
            allowed=", ".join(able.base_precisions),
            nearest=able.base_precisions[0],
        )
    yield from tower_adapter_faults(problem, able)
    yield from _parameter_faults(workload)
    yield from _rotation_faults(problem, able, name)
    yield from _checkpoint_faults(problem)
    if (
        workload.framework_options.get("dora")
        and "single" not in able.adapters
        and not able.decomposes_fused
    ):
        yield FieldError(
            pointer="/workload/framework_options/dora",
            message=f"{name} has no such adapters",
            allowed="false",
            nearest="false",
        )


def _rotation_faults(problem: Problem, able: Capabilities, name: str) -> Iterator[FieldError]:
    """Yield what does not go with OFT: other launchers, fused layers, experts, and what LoRA alone has."""
    workload = problem.workload
    if not workload.framework_options.get("oft"):
        return
    routed = any(one.experts for one in adapted_layers(problem.model, "moe", workload.lora_targets))
    others = [one for one in launchers_of("any") if launcher_capabilities(one).rotates_inputs]
    fused = {*FUSED_TARGETS} & {*workload.lora_targets}
    lacking = {
        f"{name} has no such adapters": (not able.rotates_inputs, "false", f"--launcher {others[0]}"),
        "experts are not rotated": (routed, "false, or lora_targets without experts", ""),
        "fused layers of Megatron-Core are not rotated": (
            fused and able.rotates_inputs and not routed,
            "false, or lora_targets of transformers' layers (q_proj)",
            "--lora-target q_proj",
        ),
        "DoRA and dropout are LoRA's": (
            any(workload.framework_options.get(one) for one in ("dora", "adapter_dropout")), "false", "",
        ),
    }  # fmt: skip
    for message, (holds, allowed, tip) in lacking.items():
        if holds:
            yield FieldError(
                pointer="/workload/framework_options/oft", message=message, allowed=allowed,
                nearest="" if tip else "false", tip=tip,
            )  # fmt: skip


def _parameter_faults(workload: Workload) -> Iterator[FieldError]:
    """Yield what peft refuses next to adapted weights without a layer of their own.

    peft 0.21, tuners/lora/layer.py ``ParamWrapper.__init__``.
    """
    for option in ("dora", "adapter_dropout"):
        if {*PARAMETER_TARGETS} & {*workload.lora_targets} and workload.framework_options.get(option):
            yield FieldError(
                pointer=f"/workload/framework_options/{option}",
                message=f"peft has none next to {' or '.join(PARAMETER_TARGETS)}",
                allowed="false",
                nearest="false",
            )


def _beyond_checkpoints(model: ModelSpec) -> str:
    """Return the part of a model that is not predicted on a quantised checkpoint; empty: there is none."""
    return "experts" if model.moe else "images" if model.tower else ""


def _is_predicted(model: ModelSpec, base: BasePrecision, *, scatters: bool = False) -> bool:
    """Return whether frozen weights of a precision are predicted of a model; ``scatters``: ScatterMoE's."""
    if is_of_experts(base) and scatters:
        return model.moe is not None and not has_linear_experts(model)
    if is_of_experts(base):
        return model.moe is not None and model.moe.dispatched and model.tower is None
    return not (is_checkpoints(base) and _beyond_checkpoints(model))


def _checkpoint_faults(problem: Problem) -> Iterator[FieldError]:
    """Yield what does not go with a base that only a quantised checkpoint has.

    peft 0.18 and 0.21 refuse DoRA (``tuners/lora/gptq.py``, ``awq.py``, ``aqlm.py``). transformers' GPTQ
    loads text alone (``quantizer_gptq.py``), and releases don't agree which experts are quantised.
    """
    base, model = problem.workload.base_precision, problem.model
    if not (problem.workload.lora_rank and is_checkpoints(base)):
        return
    if is_of_experts(base):
        yield from _packed_experts_faults(problem)
    lacking = {
        "/workload/framework_options/dora": problem.workload.framework_options.get("dora") and "DoRA",
        "/workload/base_precision": "" if is_of_experts(base) else _beyond_checkpoints(model),
    }
    for path, what in lacking.items():
        if what:
            yield FieldError(
                pointer=path,
                message=f"{what} with frozen weights in {base} can't be predicted",
                allowed="false" if what == "DoRA" else "bf16",
                nearest="false" if what == "DoRA" else "bf16",
            )


def _packed_experts_faults(problem: Problem) -> Iterator[FieldError]:
    """Yield models and GPUs on which experts in NVFP4 are not multiplied, or not as priced: in 16 bits.

    Axolotl 0.19, integrations/kernels: plugin.py:29 (SonicMoE), libs/sonicmoe/fp4_cute.py:57 (Blackwell
    with HBM), nvfp4_lora.py ``grouped_moe_reference_forward`` (in 16 bits for adapters that are merged).
    """
    work, model = problem.workload, problem.model
    merged = work.framework_options.get("fake_quantization") == MERGED
    scatters = work.framework_options.get("wraps_experts") is False
    if not _is_predicted(model, work.base_precision, scatters=scatters):
        where = "" if scatters else " and no vision tower"
        yield FieldError(
            pointer="/workload/base_precision",
            message=f"{work.base_precision} is for models with experts in one tensor{where}, "
            f"unlike {model.title}",
            allowed="bf16, or a model like qwen3-30b-a3b",
            nearest="bf16",
        )
    if scatters and problem.cluster.num_gpus > 1:  # marlin_w4a16/backend.py _cached_prep
        yield FieldError(
            pointer="/cluster",
            message=f"ScatterMoE's experts in {work.base_precision} are priced on one GPU: on "
            f"{problem.cluster.num_gpus} Axolotl converts all of them in every pass, which is not priced",
            allowed="1 GPU, or framework_options.wraps_experts: true, which stands for SonicMoE",
        )
    for gpu in {group.gpu.slug: group.gpu for group in problem.cluster.groups}.values():
        if scatters and (gpu.architecture not in _MARLIN or gpu.generation == "blackwell"):
            yield FieldError(
                pointer="/cluster",
                message=f"ScatterMoE's experts in {work.base_precision} are priced only where Marlin "
                f"multiplies them in 16 bits, not on {gpu.display_name}",
                allowed="GPUs of Ampere, Ada or Hopper, or GeForce and RTX PRO cards of Blackwell",
            )
        elif scatters:
            continue
        elif gpu.architecture not in _SONIC:
            yield FieldError(
                pointer="/cluster",
                message=f"SonicMoE, which multiplies experts in {work.base_precision}, doesn't run on "
                f"{gpu.display_name}",
                allowed="GPUs of Hopper or Blackwell, or --base-precision bf16",
            )
        elif gpu.generation == "blackwell" and not merged:
            yield FieldError(
                pointer="/workload/base_precision",
                message=f"on {gpu.display_name} SonicMoE multiplies experts in 4 bits, which is not priced",
                allowed=f"bf16, or framework_options.fake_quantization: {MERGED}, which multiplies in 16",
                nearest="bf16",
            )


_SONIC = ("hopper", "blackwell")
# libs/scattermoe_lora/grouped_train.py:65 _auto_backend: on B200 DeepGEMM's products in 8 bits come first
_MARLIN = ("ampere", "ada", "hopper", "blackwell")


def pin_faults(problem: Problem, able: Capabilities) -> Iterator[FieldError]:
    """Yield pinned values that the launcher runs in no configuration."""
    pins = problem.options.pin
    stages = [
        stage
        for stage in able.zero_stages
        if stage <= able.max_zero_stage_with_pipeline or pins.get("pipeline_parallel_size", 1) == 1
    ]
    offers: Mapping[str, Sequence[int | str]] = {
        "pipeline_schedule": able.schedules,
        "recompute_granularity": able.recompute,
        "zero_stage": stages,
    }
    for name, values in offers.items():
        if name in pins and pins[name] not in values:
            where = " with a pipeline" if pins[name] in able.zero_stages else ""
            yield FieldError(
                pointer=pointer("search", "pin", name),
                message=f"{able.launcher} cannot run {name} = {pins[name]} (pinned){where}",
                allowed=", ".join(map(str, values)),
            )


def _sample_faults(workload: Workload, able: Capabilities) -> Iterator[FieldError]:
    """Reject samples or a reference that the launcher has no trainer for."""
    if workload.sample_word in able.samples or workload.sample_word == "unpaired":  # the request's fault
        return
    known = any(one.partition("/")[0] == workload.sample for one in able.samples)
    what = f"{workload.sample_kind.words} with {_REFERENCES[workload.reference]}"
    beside = " next to adapters" if workload.lora_rank else ""
    names = ("trl", *(one for one in launchers_of("any") if one != "trl"))
    others = [one for one in names if workload.sample_word in launcher_capabilities(one).samples]
    yield FieldError(
        pointer=f"/workload/{'reference' if known else 'sample'}",
        message=(f"{able.launcher} can't" if others else "no launcher can") + f" train {what}{beside}",
        allowed=f"the launchers {', '.join(others)}" if others else _other_references(workload),
        tip=f"--launcher {others[0]}" if others else "",
    )


def _other_references(workload: Workload) -> str:
    """Return the references with which some launcher trains the samples."""
    words = [one.partition("/") for one in launcher_capabilities("any").samples]
    found = [reference or "none" for sample, _, reference in words if sample == workload.sample]
    without = {"frozen": "frozen with lora_rank 0"} if workload.lora_rank else {}
    return f"reference {', or '.join(without.get(one, one) for one in found if '+' not in one)}"


_REFERENCES = {
    "none": "no reference", "frozen": "a frozen reference", "adapters-off": "adapters turned off",
}  # fmt: skip


def _layer_faults(problem: Problem, able: Capabilities) -> Iterator[FieldError]:
    """Reject trained layers that the launcher's files can't name, or that an optimizer doesn't train."""
    work = problem.workload
    first = work.trained_layers == FIRST and not work.trained_modules
    if optimizer_named(work.optimizer).by_block and not first:
        yield FieldError(
            pointer="/workload/trained_layers",
            message=f"{work.optimizer} trains one layer after another, and is priced at the first, where "
            "gradients pass all others",
            allowed=f"{FIRST}, and no trained_modules",
            nearest=FIRST,
            tip=f"--trained-layers {FIRST}",
        )
    if _trains_layers(problem, able):
        return
    own = "train these layers alone" if able.freezes_layers else "freeze some layers"
    counted = "the first or the last layers, " if able.freezes_layers else ""
    others = [one for one in launchers_of("any") if _trains_layers(problem, launcher_capabilities(one))]
    yield FieldError(
        pointer="/workload/trained_layers",
        message=f"plans for {able.launcher} can't {own}",
        allowed=f"{counted}all layers",
        tip=f"--launcher {others[0]}",
    )


def _trains_layers(problem: Problem, able: Capabilities) -> bool:
    """Return whether a launcher's files can name the trained layers."""
    layers, kind = problem.workload.trained_layers, able.freezes_layers
    if not layers or kind != "counted":
        return not layers or kind == "any"
    return count_of(layers, problem.model.num_layers) is not None


def _frozen_faults(problem: Problem, able: Capabilities) -> Iterator[FieldError]:
    tower, workload = problem.model.tower, problem.workload
    if tower is None or not {tower.model_type, "any"} & {*able.towers}:
        return
    frozen, kind, both = set(workload.frozen_parts), tower.model_type, {*TOWER_PARTS}
    own = "+".join(workload.frozen) or "none"
    if not {own, "any"} & {*able.frozen_sets}:
        others = [one for one in able.frozen_sets if one != "none"]
        yield FieldError(
            pointer="/workload/frozen",
            message=f"{able.launcher} freezes {' or '.join(others) or 'no part'} of a model with a tower",
            allowed=f"{', '.join(able.frozen_sets)}, or the launchers llama-factory-accelerate, ms-swift",
            nearest="[]",
        )
    if kind in able.frozen_together and len(frozen & both) == 1:
        yield FieldError(
            pointer="/workload/frozen",
            message=f"{able.launcher} freezes vision and projector of {kind} together or not at all",
            allowed="both vision and projector, or neither",
            nearest=json.dumps([part for part in FROZEN_PARTS if part in frozen | both]),
        )
    if kind in able.projector_trained and "projector" in frozen:
        yield FieldError(
            pointer="/workload/frozen",
            message=f"{able.launcher} always trains the projectors of {kind}'s inner layers",
            allowed="vision, language",
            nearest=json.dumps([part for part in workload.frozen if part != "projector"]),
        )
    if workload.lora_rank and "single" not in able.adapters and workload.lora_targets != FUSED_TARGETS:
        yield FieldError(
            pointer="/workload/lora_targets",
            message=f"{able.launcher} also adapts the vision tower if you name lora_targets one by one",
            allowed=f"all of {', '.join(FUSED_TARGETS)}",
        )


def batching_faults(problem: Problem, able: Capabilities) -> Iterator[FieldError]:
    """Reject a way to make sequences of documents that the launcher does not have."""
    lengths = problem.workload.lengths
    if lengths is not None and lengths.batching not in able.batchings:
        why = f": {able.batching_note}" if able.batching_note else ""
        yield FieldError(
            pointer="/workload/lengths/batching",
            message=f"{able.launcher} doesn't support {lengths.batching}{why}",
            allowed=", ".join(able.batchings) or "launchers that pack or pad whole documents",
            nearest=next(iter(able.batchings), None),
        )


def packing_faults(work: Workload) -> Iterator[FieldError]:
    """Reject packed answers: each is a sequence of its own."""
    if work.sample != "sequence" and work.lengths is not None and work.lengths.batching == "packing":
        yield FieldError(
            pointer="/workload/lengths/batching",
            message=f"{work.sample_kind.words} are not packed: each answer is a sequence of its own",
            allowed="padding, padding_to_longest",
            nearest="padding_to_longest",
        )


def option_faults(problem: Problem, able: Capabilities) -> Iterator[FieldError]:
    """Reject framework options that the launcher does not start with, whatever the configuration."""
    yield from stated_faults(problem)
    yield from _own_option_faults(problem, able)
    yield from _mixed_attention_faults(problem, able)
    if facts := _facts(problem, able):
        yield from switch_faults(
            able.launcher, problem.workload.framework_options, facts=facts, model=problem.model,
            precision=problem.workload.precision, gpus=[group.gpu for group in problem.cluster.groups],
            pinned=problem.options.pin.get("recompute_granularity"),
        )  # fmt: skip


def stated_faults(problem: Problem) -> Iterator[FieldError]:
    """Reject framework options that contradict the request under every launcher."""
    yield from dynamic_faults(problem)
    yield from selection_faults(problem)
    yield from fake_quantization_faults(problem)
    yield from _whole_loss_faults(problem)
    yield from _tile_faults(problem)


def _own_option_faults(problem: Problem, able: Capabilities) -> Iterator[FieldError]:
    """Reject options, or words of them, that some launchers have and this one lacks."""
    for named in own_options_stated(problem.workload):
        if named not in able.own_options:
            others = [one for one in launchers_of("any") if named in launcher_capabilities(one).own_options]
            yield FieldError(
                pointer=f"/workload/framework_options/{named.partition(' ')[0]}",
                message=f"{able.launcher} has no setting for {named}",
                allowed=f"the launchers {', '.join(others)}",
            )


def own_options_stated(workload: Workload) -> Iterator[str]:
    """Yield what a workload states of the options that not every launcher has."""
    for named in launcher_capabilities("any").own_options:
        option, _, word = named.partition(" ")
        value = workload.framework_options.get(option)
        if value == word if word else value:
            yield named


def _mixed_attention_faults(problem: Problem, able: Capabilities) -> Iterator[FieldError]:
    if problem.workload.framework_options.get("attention_kernel") != HYBRID:
        return
    whose = "" if able.mixes_attention else able.launcher
    if able.mixes_attention and problem.model.local_attention is None:
        whose = f"{able.launcher} with {problem.model.title}, whose layers have heads alike,"
    if whose:
        yield FieldError(
            pointer="/workload/framework_options/attention_kernel",
            message=f"{whose} doesn't support {HYBRID}",
            allowed=f"flash2, {SDPA}",
            nearest="flash2",
        )


def _facts(problem: Problem, able: Capabilities) -> FrameworkFacts | None:
    try:
        own = framework_facts(framework_of(problem.stack or able.launcher))
        return with_options(own, problem.workload.framework_options)
    except InvalidProblemError:
        return None


def _word_faults(workload: Workload, able: Capabilities) -> Iterator[FieldError]:
    name = able.launcher
    recipe = str(workload.framework_options.get("precision_recipe", "none"))
    rounded = str(workload.framework_options.get("fake_quantization", "none"))
    no_8_bits = bool(able.precisions) and "fp8" not in able.precisions
    recipes = able.recipes or (("none",) if no_8_bits else ())
    optimizers = (able.adapter_optimizers if workload.lora_rank else ()) or able.optimizers
    low = recipe if recipe in FORMATS and workload.precision == "fp8" else workload.precision
    if low != workload.precision and no_8_bits:
        recipes = ()  # reported for the precision
    if workload.precision == "fp8" and able.fp8_recipe and recipe == "none":
        yield FieldError(
            pointer="/workload/framework_options/precision_recipe",
            message=f"{name} needs an fp8 recipe",
            allowed=", ".join(one for one in able.recipes if one != "none"),
            nearest=able.fp8_recipe,
        )
    elif _deals_low_weights(workload, able):
        yield FieldError(
            pointer="/workload/framework_options/low_precision_weights",
            message="true, but muon has no shards of Adam's, which weights in 8 bits need",
            allowed="false",
            nearest="false",
        )
    elif _halves_differ(workload, able):
        yield FieldError(
            pointer="/workload/precision",
            message=f"{name} trains weights in the precision: {workload.optimizer} is of bf16",
            allowed="bf16, or an optimizer with an fp32 copy",
            nearest="bf16",
        )
    for field, word, value, words in (
        ("precision", workload.precision, low, able.precisions),
        ("optimizer", workload.optimizer, workload.optimizer, optimizers),
        ("framework_options/precision_recipe", recipe, recipe, recipes),
        ("framework_options/fake_quantization", rounded, rounded, able.fake_quantizations),
    ):
        if words and word not in words:
            projects = word in OPTIMIZERS and OPTIMIZERS[word].low_rank
            why = f": {able.galore_note}" if projects and able.galore_note else ""
            yield FieldError(
                pointer=f"/workload/{field}",
                message=f"{name} doesn't support {value[:40]}{why}",
                allowed=", ".join(words),
                nearest=next((one for one in (WITHOUT_COPY.get(word),) if one in words), words[0]),
            )


def _ends_faults(workload: Workload) -> Iterator[FieldError]:
    """Yield fp32 embedding, head and norms where all trained weights have an fp32 copy anyway."""
    copies = workload.lora_rank or optimizer_named(workload.optimizer).fp32_copy
    if copies and workload.framework_options.get("fp32_ends"):
        beside = "adapters" if workload.lora_rank else f"{workload.optimizer}'s fp32 copy of all weights"
        yield FieldError(
            pointer="/workload/framework_options/fp32_ends",
            message=f"true changes nothing next to {beside}",
            allowed="false, or an optimizer of bf16 weights alone, such as adamw-pure-bf16",
            nearest="false",
        )


def _redrawn_faults(problem: Problem, able: Capabilities) -> Iterator[FieldError]:
    """Yield layers that are drawn anew where none are, or where embedding and head are frozen (LISA)."""
    work = problem.workload
    if not work.framework_options.get("redraws_layers"):
        return
    ends = {EMBEDDING, HEAD} <= {*work.trained_modules}
    if able.freezes_layers != "any" or not work.trained_layers or not ends:
        yield FieldError(
            pointer="/workload/framework_options/redraws_layers",
            message="true is of Axolotl's LISA, whose layers change next to a trained embedding and head",
            allowed=f"false, or launcher axolotl with trained_layers and {EMBEDDING}, {HEAD} trained too",
            nearest="false",
        )


def _halves_differ(workload: Workload, able: Capabilities) -> bool:
    """Return whether weights of bf16 alone would multiply in fp16, where no autocast makes them."""
    alone = workload.optimizer in able.optimizers and not OPTIMIZERS[workload.optimizer].fp32_copy
    return (
        alone
        and workload.precision == "fp16"
        and not framework_facts(framework_of(able.launcher)).autocasts
    )


def with_recipe(workload: Workload, precision: str, able: Capabilities) -> Workload:
    """Return the workload in a precision; in 8 bits with the launcher's recipe if none is stated.

    Muon keeps weights in 16 bits then, as NVIDIA's recipes of Kimi-K2 do (Megatron-Bridge 0.5.0,
    ``scripts/performance/configs/kimi set_kimi_k2_common_configs``).
    """
    changed, options = replace(workload, precision=precision), dict(workload.framework_options)
    if precision == "fp8" and able.fp8_recipe and options.get("precision_recipe", "none") == "none":
        options["precision_recipe"] = able.fp8_recipe
    if "low_precision_weights" not in options and _deals_low_weights(changed, able):
        options["low_precision_weights"] = False
    return replace(changed, framework_options=options)


def _deals_low_weights(workload: Workload, able: Capabilities) -> bool:
    """Return whether Muon, which deals out whole matrices, meets weights in 8 bits under Megatron-Core."""
    recipe = workload.framework_options.get("precision_recipe", "none")
    eight_bits = recipe != "nvfp4" and (workload.precision == "fp8" or recipe != "none")
    if not eight_bits or workload.optimizer != "muon" or "muon" not in able.optimizers:
        return False
    usual = framework_facts(framework_of(able.launcher)).low_precision_weights
    return bool(workload.framework_options.get("low_precision_weights", usual))


def beyond_positions(problem: Problem) -> tuple[str, ...]:
    """Warn of a sequence longer than the positions that the model's config states."""
    seq, most = problem.workload.seq_length, problem.model.max_position_embeddings
    if most is None or seq <= most:
        return ()
    return (f"seq_length {seq} is longer than the {most} positions of {problem.model.title}",)


def left_out(problem: Problem) -> tuple[str, ...]:
    """State layers of the published model that the launcher's classes lack."""
    if not problem.omitted_prediction:
        return ()
    what = f"{problem.model.title}'s multi-token prediction"
    return (f"{what} is left out: {problem.launcher}'s class of it has no such layers",)


def unwritten(problem: Problem) -> tuple[str, ...]:
    """Warn that the request's launcher cannot express the model or run on a chip: no files are written."""
    name = problem.launcher
    if name == "any":
        return ()
    able, judged = (
        launcher_capabilities(name),
        next((f" {one.version}" for one in judged_versions(name)), ""),
    )
    lacking = lacking_facts(able, problem.model)
    found = [(f"{name}{judged} cannot express {', '.join(lacking)}", launchers_stating(problem.model))]
    found = found if lacking else []
    chips = [fault.message for fault in chip_faults(problem, able)]
    found += [(", and ".join(chips), tuple(_with_files_for_chips(problem)))] if chips else []
    return tuple(
        f"{why}: you get predictions but no launch files"
        + (f". Launchers that can: {', '.join(others)}" if others else "")
        for why, others in found
    )


def unstarted(problem: Problem, plans: Sequence[Plan]) -> Iterator[str]:
    """Warn of plans that launch files cannot start, by their numbers of GPUs."""
    if problem.launcher == "none" or problem.places_stages:
        return
    ranks = dict[int, list[str]]()
    for plan in plans:
        if not can_start(problem, plan.config.num_gpus):
            ranks.setdefault(plan.config.num_gpus, []).append(f"#{plan.rank}")
    sizes = sorted({group.gpus_per_node for group in problem.cluster.groups})
    who = "launchers start" if problem.launcher == "any" else f"{problem.launcher} starts"
    last = " but the last" * launcher_capabilities(problem.launcher).short_last_node
    why = f"you get predictions but no launch files: {who} the same number of ranks on every node{last}"
    for num_gpus, named in ranks.items():
        unequal = f"{num_gpus} GPUs don't fill nodes of {sizes[0]}"
        if len(sizes) > 1:
            unequal = f"nodes have {' and '.join(map(str, sizes))} GPUs"
        yield f"{', '.join(named)}: {why}, and {unequal}"


def stored_notes(problem: Problem) -> tuple[str, ...]:
    """State which weights are trained where the published ones are quantised."""
    model, work = problem.model, problem.workload
    kind, base = STORED.get(model.stored_as), work.base_precision
    if work.lora_rank and kind is not None and base in kind.base:
        return ()
    if work.lora_rank and is_checkpoints(base):
        named = f"a checkpoint of {model.title} that is stored in {base}"
        return (f"The plan freezes {named}: name it in the launch files",)
    if kind is None:
        return ()
    own, obstacle = _base_as_stored(problem, kind)
    start = "16-bit weights"
    start += f" (transformers: {kind.dequantize})" if kind.dequantize else " of the unquantized model"
    said = f"the weights of {model.title} are stored in {kind.words}"
    if not work.lora_rank:
        cannot = "" if kind.dequantize else ". They can't be trained in full"
        few = f"--lora-rank 16 --base-precision {own or 'nf4'}"
        return (f"{said}{cannot}. The plan trains {start}. For QLoRA, add {few}",)
    if base in WHOLE_PRECISIONS:
        few = f". To freeze them as they are stored, add --base-precision {own}" if own else f": {obstacle}"
        return (f"{said}. The plan freezes {start}{few}",)
    again = "" if kind.base else ": transformers can't quantize a checkpoint twice"
    return (f"{said}. The plan quantizes {start} to {base}{again}",)


def _base_as_stored(problem: Problem, kind: StoredKind) -> tuple[BasePrecision | None, str]:
    """Return the base that a request may add to freeze a checkpoint as it is stored, else why none."""
    ables = [launcher_capabilities(name) for name in launchers_of(problem.launcher)]
    obstacle = f"adapters on {kind.words} can't be predicted"
    for base in kind.base:
        work = replace(problem.workload, lora_rank=problem.workload.lora_rank or 1, base_precision=base)
        fault = next(_checkpoint_faults(replace(problem, workload=work)), None)
        if fault is not None:
            obstacle = fault.message
        elif any(base in able.base_precisions for able in ables):
            return base, ""
        else:
            obstacle = f"{problem.launcher} doesn't support frozen weights in {base}"
    return None, obstacle


def model_faults(model: ModelSpec, able: Capabilities) -> Iterator[FieldError]:
    """Yield model facts that the launch file cannot state, with launchers that state all of them."""
    lacking = lacking_facts(able, model)
    if lacking:
        yield FieldError(
            pointer="/model",
            message=f"{able.launcher} cannot express {', '.join(lacking)}",
            allowed=f"the launchers {', '.join((*launchers_stating(model), 'none'))}",
        )


def chip_faults(problem: Problem, able: Capabilities) -> Iterator[FieldError]:
    """Yield chips that the launcher has no files for, with launchers that have, or that share no mesh."""
    for gpu in {group.gpu.slug: group.gpu for group in problem.cluster.groups}.values():
        if not _runs_on(able, gpu):
            yield FieldError(
                pointer="/cluster",
                message=f"{able.launcher} is not known to run on {gpu.display_name}",
                allowed=f"the launchers {', '.join((*_launchers_on(gpu), 'none'))}",
            )
    vendors = dict.fromkeys(filter(None, (vendor_of(group.gpu) for group in problem.cluster.groups)))
    if len(vendors) > 1 and not problem.places_stages:  # each has a library of collectives of its own
        yield FieldError(
            pointer="/cluster/groups",
            message=f"GPUs of {' and '.join(vendors)} have no collectives in common for one mesh",
            allowed="nodes of one vendor, or the launcher none, which places stages on node groups",
        )


def _with_files_for_chips(problem: Problem) -> list[str]:
    every = ((name, replace(problem, launcher=name)) for name in launchers_of("any"))
    return [
        name for name, own in every if next(chip_faults(own, launcher_capabilities(name)), None) is None
    ]


def _launchers_on(gpu: GpuSpec) -> tuple[str, ...]:
    return tuple(name for name in launchers_of("any") if _runs_on(launcher_capabilities(name), gpu))


def _runs_on(able: Capabilities, gpu: GpuSpec) -> bool:
    vendor = vendor_of(gpu)
    return not vendor or "any" in able.vendors or vendor in able.vendors


def _overlap_faults(problem: Problem, able: Capabilities) -> Iterator[FieldError]:
    """Check requested overlapped experts: the launcher has them, and some configuration may use them.

    The same limits judge each configuration
    (``meshwright.solver.cost.context.experts_overlap``); one that is
    beyond them is neither priced nor written with overlapped experts.
    """
    asked, model, pins = problem.workload.framework_options, problem.model, problem.options.pin
    experts = (
        (not able.overlaps_experts, f"{able.launcher} does not overlap the all-to-alls of experts"),
        (model.moe is None, "a model without experts has none to overlap"),
        (bool(model.layer_pattern), "layers of one block do not overlap the all-to-alls of experts"),
        (model.num_mtp_layers > 1, f"{model.num_mtp_layers} multi-token-prediction layers, beyond 1"),
        (pins.get("expert_parallel_size") == 1, "expert_parallel_size 1 (pinned) has no all-to-alls"),
        (pins.get("recompute_granularity") == "full", "recompute_granularity full (pinned) excludes it"),
        (
            pins.get("pipeline_parallel_size", 1) != 1 and pins.get("virtual_pipeline_size") == 1,
            "pipeline stages (pinned) need virtual_pipeline_size above 1",
        ),
    )
    for broken, reason in experts:
        if broken and asked.get("overlap_experts"):
            yield FieldError(
                pointer="/workload/framework_options/overlap_experts",
                message=reason,
                allowed="false",
                nearest="false",
            )


def overlap_obstacles(problem: Problem, config: Configuration) -> tuple[str, ...]:
    """Return the rules that keep a configuration from overlapping its experts where the option is on."""
    if not problem.workload.framework_options.get("overlap_experts"):
        return ()
    found = dict[str, None]()
    for one in config.classes:
        if is_a_row(one):
            limits = overlap_limits(Columns.of([one]), problem.model)
            found |= dict.fromkeys(rule for rule, broken in limits.items() if broken[0])
    return tuple(found)


def overlap_notes(problem: Problem, config: Configuration) -> tuple[str, ...]:
    """Return the same as a sentence; none where experts overlap, or the option is off."""
    rules = overlap_obstacles(problem, config)
    words = f"overlap_experts is on, but the experts' all-to-alls don't overlap: {'; '.join(rules)}"
    return (words,) if rules else ()


def overlap_warnings(problem: Problem, plans: Sequence[Plan]) -> tuple[str, ...]:
    """Return the plans that cannot overlap their experts although the option is on, with the broken rules.

    The request states the option, or the search chose it for a plan.
    """
    stated = problem.workload.framework_options.get("overlap_experts")
    chosen = "overlap_experts is requested" if stated else "the search chose overlap_experts"
    ranks: dict[tuple[str, ...], list[str]] = {}
    for plan in plans:
        settled = replace(problem, workload=with_changes(problem.workload, plan.workload))
        ranks.setdefault(overlap_obstacles(settled, plan.config), []).append(f"#{plan.rank}")
    return tuple(
        f"{chosen}, but {', '.join(which)} can't overlap the experts' all-to-alls and "
        f"{'runs' if len(which) == 1 else 'run'} without: {'; '.join(rules)}"
        for rules, which in ranks.items()
        if rules
    )


def advice_warnings(problem: Problem, plans: Sequence[Plan]) -> tuple[str, ...]:
    """Return what maintainers advise against in plans of a model with experts, each with its source."""
    moe, said = problem.model.moe, dict[str, list[str]]()
    if moe is None:
        return ()
    layer = moe.num_experts * problem.model.expert_parameters() * _BF16_BYTES / GIB
    for plan in plans:
        launcher = plan.launchers[0] if plan.launchers else problem.launcher
        if plan.config.zero_shard_size == 1 or plan.config.expert_parallel_size > 1:
            continue
        for row in advice_on_experts(launcher, plan.config.zero_stage):
            size = f" ({layer:.2g} GiB)" if row.bytes else ""
            instead = f" (tip: {row.instead})" if row.instead else ""
            said.setdefault(f"{row.says}{size}{instead}. Source: {row.source}", []).append(f"#{plan.rank}")
    return tuple(f"{', '.join(which)}: {text}" for text, which in said.items())


_BF16_BYTES = 2.0
_FULL = RECOMPUTE.index("full")


def own_rules(problem: Problem, able: Capabilities) -> Iterator[Rule]:
    """Yield the rules that this launcher has and others lack: each is one bit of a row's mask."""
    name, faults = able.launcher, tuple(workload_faults(problem, able))
    if faults:
        yield Rule(
            name=f"{name} does not train this workload",
            reason="; ".join(fault.message for fault in faults),
            reads=(),
            violated=lambda c: np.ones(len(c), dtype=np.bool_),
            form=(_NEVER,),
        )
    yield from _own_sequence_rules(problem, able)
    yield from switch_rules(problem, able)
    if able.balances_stages:
        yield Rule(
            name=f"{name} gives every stage a layer and the last one the output head",
            reason="it splits the layers itself, weighing layers and the output head",
            reads=Prescribed.READS,
            violated=Prescribed(balanced=problem.model).lacking,
        )
    for text, where in constraints_of(problem, able).items():
        yield _needed(name, text, where, problem.model.num_layers)
    for text in able.stage_recompute_constraints:
        rule = _needed(name, text, "with lists of recomputed layers", problem.model.num_layers)
        yield replace(
            rule,
            name=f"{rule.name} where stages recompute different numbers of layers",
            reads=(*rule.reads, "recompute_layers"),
            violated=partial(_broken_by_stage, rule),
            form=(),
        )


def _own_sequence_rules(problem: Problem, able: Capabilities) -> Iterator[Rule]:
    """Yield how the launcher splits heads and sequences otherwise than the rules for all launchers say."""
    name, model, seq = able.launcher, problem.model, problem.workload.seq_length
    kv_heads = gcd(*model.kv_head_counts)
    if able.heads_whole_on_ranks:
        yield Rule(
            name=f"{name} splits the key/value heads",
            reason=f"it can't copy the {kv_heads} key/value heads",
            reads=("tensor_parallel_size",),
            violated=lambda c: kv_heads % c.tensor_parallel_size != 0,
            form=(f"{kv_heads} % tp == 0",),
        )
    if able.rings_are_plain and (model.attention_sinks or model.sliding_window):
        yield Rule(
            name=f"{name} runs sliding windows and attention sinks without a ring only",
            reason="context parallelism of sliding windows and learned softmax offsets is all_to_all only",
            reads=("context_parallel_size", "context_parallel_mode"),
            violated=lambda c: (c.context_parallel_size > 1) & (c.context_parallel_mode != ALL_TO_ALL),
            form=("cp == 1 or context_parallel_mode == 'all_to_all'",),
        )
    if able.halves_on_ranks:
        yield Rule(
            name=f"{name} splits the sequence",
            reason="tensor_parallel_size * 2 * context_parallel_size divides the sequence",
            reads=("tensor_parallel_size", "context_parallel_size"),
            violated=lambda c: (
                # a ring gives each rank two slices, one early and one late
                seq
                % (c.tensor_parallel_size * c.context_parallel_size * (1 + (c.context_parallel_size > 1)))
                != 0
            ),
            form=(f"cp == 1 and {seq} % tp == 0 or cp > 1 and {seq} % (2 * tp * cp) == 0",),
        )
    if not able.sequence_parallel:
        yield Rule(
            name=f"{name} has no sequence parallelism",
            reason="tensor-parallel ranks hold whole sequences between their products",
            reads=("sequence_parallel",),
            violated=lambda c: c.sequence_parallel != 0,
            form=("not sequence_parallel",),
        )


def _casts_ends(problem: Problem, able: Capabilities) -> bool:
    """Return whether replicas cast embeddings and head to bf16 (``casts_ends_for_flash``).

    loaders/model.py:462 (FlashAttention), :478 (a cut loss).
    """
    facts = _facts(problem, able)
    if facts is None or facts.loss_kernel == "cut":
        return True
    kernel = asked_kernel(facts.attention_kernel, problem.model, facts.transformers_release)
    return kernel.startswith("flash")


def _broken_by_stage(rule: Rule, columns: Columns) -> BoolArray:
    return np.asarray(rule.violated(columns) & (columns.recompute_layers == PER_STAGE))


def _needed(name: str, text: str, where: str, num_layers: int) -> Rule:
    constraint = constraint_of(text)
    return Rule(
        name=f"{name} needs {text}",
        reason=where,
        reads=columns_named(names_of((text,))),
        violated=lambda c: broken_by(constraint, c, num_layers=num_layers),
        form=(text,),
    )


# Megatron-LM d98e8a64: ``training/arguments.py:1444`` (no pipeline, no Megatron-FSDP), groups of powers of
# two (``parallel_state.py:1040``). Ranks run unlike numbers of passes, so they cannot exchange tokens.
_DYNAMIC_LIMITS: Mapping[str, Callable[[IntArray], BoolArray]] = {
    "context_parallel_size": lambda c: (c == 1) | (c & (c - 1) != 0),
    "context_parallel_mode": lambda mode: mode != CONTEXT_MODES.index("ring"),
    "pipeline_parallel_size": lambda p: p != 1,
    "expert_parallel_size": lambda e: e != 1,
    "zero_stage": lambda zero: zero > 1,
    "micro_batch_size": lambda size: size != 1,
}


def dynamic_faults(problem: Problem) -> Iterator[FieldError]:
    """Refuse dynamic context parallelism without packed documents, or where a layer does not attend."""
    name, lengths = "dynamic_context_parallel", problem.workload.lengths
    option = f"/workload/framework_options/{name}"
    stated = problem.workload.framework_options.get(name)
    if problem.workload.framework_options.get("dynamic_context_packing"):
        yield from _packing_faults(problem.launcher, bool(stated))
    if stated and problem.launcher == "none" and not NEEDS["self-attention alone"](problem.model):
        yield FieldError(
            pointer=option,
            message="true: it needs a model that has only self-attention layers",
            allowed="false",
            nearest="false",
        )
    if lengths is not None and lengths.batching == "packing":
        return
    found = "none are stated" if lengths is None else f"batching is {lengths.batching}"
    asked = {option: stated, "/search/allow": name in problem.options.allow}
    for at in (where for where, is_asked in asked.items() if is_asked):
        yield FieldError(
            pointer=at,
            message=f"{name} needs the lengths of packed documents, and {found}",
            allowed="workload.lengths with batching packing (--lengths p50=900,p100=8192)",
        )


def _packing_faults(launcher: str, dynamic: bool) -> Iterator[FieldError]:
    pointer = "/workload/framework_options/dynamic_context_packing"
    if launcher not in ("none", "any"):
        yield FieldError(
            pointer=pointer,
            message=f"true: {launcher} can't pack passes, only Megatron-LM's dev branch can",
            allowed="false, or true with launcher none",
            nearest="false",
        )
    elif not dynamic:
        yield FieldError(
            pointer=pointer,
            message="true: it does nothing without dynamic_context_parallel",
            allowed="false, or true with dynamic_context_parallel: true",
            nearest="false",
        )


def selection_faults(problem: Problem) -> Iterator[FieldError]:
    """Refuse a share of gradients that GPUs apply between updates on the host, without such updates."""
    name, every, work = "selected_gradient_share", "cpu_update_interval", problem.workload
    if name in work.framework_options and every not in {*work.framework_options, *problem.options.allow}:
        yield FieldError(
            pointer=f"/workload/framework_options/{name}",
            message=f"{work.framework_options[name]}: it does nothing without {every}",
            allowed=f"absent, or with {every} stated or in search.allow",
        )


def _whole_loss_faults(problem: Problem) -> Iterator[FieldError]:
    """Refuse a loss of whole logits without what it reads: a reference's logits, or masked tokens."""
    work, kernel = problem.workload, problem.workload.framework_options.get("loss_kernel")
    lacks = {
        "compared": (
            work.sample != "sequence" or work.reference == "none",
            "it compares the logits of sequences to a reference's",
            "sample sequence and a reference, or whole",
            f"--reference {'adapters-off' if work.lora_rank else 'frozen'}",
        ),
        "masked": (
            problem.model.causal,
            "it predicts masked tokens from all others, and the model attends to earlier ones alone",
            "a model with causal: false, or whole",
            "",
        ),
    }
    lacking, why, allowed, tip = lacks.get(str(kernel), (False, "", "", ""))
    if lacking:
        yield FieldError(
            pointer="/workload/framework_options/loss_kernel",
            message=f"{kernel}: {why}",
            allowed=allowed,
            nearest="whole",
            tip=tip,
        )


def _tile_faults(problem: Problem) -> Iterator[FieldError]:
    """Refuse MLPs in tiles but those of dense layers, whose whole weights are trained."""
    work, model = problem.workload, problem.model
    unlike = model.moe or model.tower or model.layer_pattern or work.language_frozen
    if unlike and work.framework_options.get("mlp_tile_tokens"):
        yield FieldError(
            pointer="/workload/framework_options/mlp_tile_tokens",
            message="MLPs in tiles are priced of whole weights of dense language models",
            allowed="0, which takes each MLP whole",
            nearest="0",
        )


def fake_quantization_faults(problem: Problem) -> Iterator[FieldError]:
    """Refuse fake quantisers where a model has layers of which they are not priced, or can't round some."""
    model, work, option = problem.model, problem.workload, "/workload/framework_options/fake_quantization"
    options = work.framework_options
    word, group = options.get("fake_quantization", "none"), int(options.get("fake_quantized_group", 32))
    if word == "none":
        return
    if word == MERGED:
        if not (work.lora_rank and is_of_experts(work.base_precision)):
            yield FieldError(
                pointer=option,
                message=f"{word} is of adapters on frozen weights in nvfp4",
                allowed="none, or lora_rank and base_precision nvfp4",
                nearest="none",
            )
        return
    widths = {
        matrix.inputs
        for shape in model.layer_shapes()
        for one in model.shaped(shape).layer(shape.kind).operators
        for matrix in one.matrices
        if one.is_priced and matrix.is_linear and not matrix.experts
    }
    faults = {
        "next to adapters it is not priced": ("lora_rank 0", bool(work.lora_rank)),
        "a vision tower's layers would be rounded, too, which is not priced": (
            "a model without a tower",
            model.tower is not None,
        ),
        "it rounds a head that multiplies, which is not priced": (
            "loss_kernel liger or cut, which read its weight alone",
            word != TERNARY and options.get("loss_kernel") not in ("liger", "cut"),
        ),
        f"groups of {group} weights do not divide {', '.join(map(str, sorted(widths)))} inputs": (
            "fake_quantized_group that divides all of them",
            word not in ("fp8-fp8", TERNARY) and any(width % group for width in widths),
        ),
    }
    for why, (instead, holds) in faults.items():
        if holds:
            yield FieldError(pointer=option, message=f"{word}: {why}", allowed=f"none, or {instead}")


def switch_rules(problem: Problem, able: Capabilities) -> Iterator[Rule]:
    """Yield the conditions of single switch positions, if the launcher has the switch.

    Megatron-LM d98e8a64: ``transformer_config.py:2808`` (CUDA graphs of parts of a step exclude full
    recomputation), ``moe/token_dispatcher.py:1836`` (DeepEP). Others limit no row: a configuration that
    cannot overlap its experts runs without (``overlap_limits``).
    """
    options, known = problem.workload.framework_options, switches()
    graph = str(options.get("cuda_graph", "layer" if options.get("cuda_graphs") else "none"))
    if graph not in ("none", "full_iteration") and able.launcher in known["cuda_graph"].launchers:
        yield Rule(
            name=f"{able.launcher} captures CUDA graphs while it recomputes",
            reason=f"cuda_graph {graph} excludes full recomputation (only full_iteration allows it)",
            reads=("recompute",),
            violated=lambda c: c.recompute == _FULL,
            form=("recompute_granularity != 'full'",),
        )
    facts = _facts(problem, able)
    refused = (
        [] if facts is None else clashes(able.launcher, facts, problem.model, problem.workload.precision)
    )
    # an option against all kinds of recomputation is a fault of the request, not of a row
    stated = [clash for clash in refused if clash.recompute != RECOMPUTE and clash.option(options)]
    if stated:
        kinds = {RECOMPUTE.index(kind) for clash in stated for kind in clash.recompute}
        yield Rule(
            name=f"{able.launcher} recomputes with these options",
            reason="; ".join(clash.against for clash in stated),
            reads=("recompute",),
            violated=lambda c: is_one_of(c.recompute, kinds),
            form=(among("recompute_granularity", [RECOMPUTE[kind] for kind in sorted(kinds)], "!="),),
        )
    if (
        facts is not None
        and facts.low_precision_weights
        and facts.precision_recipe not in ("none", "fp8-delayed")
        and able.launcher in known["optimizer_offload_fraction"].launchers
    ):
        yield Rule(
            name=f"{able.launcher} offloads the optimizer of 8-bit weights",  # arguments.py:1808
            reason="--fp8-param-gather with --optimizer-cpu-offload needs delayed scaling",
            reads=("offload",),
            violated=lambda c: is_one_of(c.offload, _STATES_AWAY),
            form=(_offloads_none_of(_STATES_AWAY),),
        )
    if options.get("dynamic_context_parallel"):
        yield Rule(
            name="dynamic_context_parallel deals out documents one by one",
            reason="it needs context_parallel_size 2, 4, 8, … by a ring, pipeline_parallel_size 1, "
            "expert_parallel_size 1, zero_stage 0 or 1 and micro_batch_size 1",
            reads=tuple(_DYNAMIC_LIMITS),
            violated=lambda c: np.logical_or.reduce(
                [broken(getattr(c, name)) for name, broken in _DYNAMIC_LIMITS.items()]
            ),
            form=(
                among("cp", [1 << power for power in range(1, problem.cluster.num_gpus.bit_length())]),
                "context_parallel_mode == 'ring' and pp * ep * mbs == 1 and zero_stage <= 1",
            ),
        )
    if able.launcher in (*known["secondary_shards"].launchers, "none"):
        yield from _zero_rules(problem, able)
    if options.get("moe_dispatcher") == "deepep" and able.launcher in known["moe_dispatcher"].launchers:
        yield Rule(
            name=f"{able.launcher} dispatches tokens by DeepEP",
            reason="it asks for tensor_parallel_size * expert_parallel_size above 1",
            reads=("tensor_parallel_size", "expert_parallel_size"),
            violated=lambda c: c.tensor_parallel_size * c.expert_parallel_size == 1,
            form=("tp * ep > 1",),
        )


_AWAY = [code for code, word in enumerate(OFFLOAD) if "parameters" in word]
_STATES_AWAY = [code for code, word in enumerate(OFFLOAD) if "optimizer" in word]
_STATES_ALONE = OFFLOAD.index("optimizer")
_NEVER = "num_gpus < 1"  # no row keeps it
_STATES_ON_DRIVES = [code for code, word in enumerate(OFFLOAD) if "optimizer@nvme" in word]


def _zero_rules(problem: Problem, able: Capabilities) -> Iterator[Rule]:
    """Yield what DeepSpeed 0.19.8 requires for options on shards and offload, as far as they are priced.

    ``utils/groups.py _create_zero_param_parallel_group``, ``comm/coalesced_collectives.py
    all_to_all_quant_reduce`` (other sizes travel whole), ``zero/config.py offload_ratio_check``.
    """
    options, model = problem.workload.framework_options, problem.model
    near = int(options.get("secondary_shard_size", 1))
    if near > 1:
        yield Rule(
            name=f"{able.launcher} keeps a second set of shards on {near} ranks",
            reason=f"secondary_shard_size = {near} divides the ranks, and weights stay on GPUs",
            reads=("zero_stage", "data_parallel_size", "offload"),
            violated=lambda c: (c.zero_stage == SHARD_WEIGHTS) & (
                (c.data_parallel_size % np.minimum(near, c.data_parallel_size) != 0)
                | is_one_of(c.offload, _AWAY)
            ),
            form=(
                f"zero_stage == 3 => dp <= {near} or dp % {near} == 0",
                f"zero_stage == 3 => {_offloads_none_of(_AWAY)}",
            ),
        )  # fmt: skip
    if options.get("quantized_reductions"):
        heads = {model.num_attention_heads, *model.kv_head_counts}
        widths = {model.ffn_hidden_size, *(count * model.head_dim for count in heads)}
        yield Rule(
            name=f"{able.launcher} sums gradients in 4 bits",
            reason="it needs zero_stage 3 and matrix sizes divisible by twice the number of ranks",
            reads=("zero_stage", "data_parallel_size"),
            violated=lambda c: (c.zero_stage != SHARD_WEIGHTS) | np.logical_or.reduce(
                [model.hidden_size * width % (2 * c.data_parallel_size) != 0 for width in widths]
            ),
            form=("zero_stage == 3",
                  *(f"{model.hidden_size} * {width} % (2 * dp) == 0" for width in sorted(widths))),
        )  # fmt: skip
    each = per_node_of(problem)
    if options.get("quantized_reductions") and problem.cluster.num_nodes > 1:
        # DeepSpeed 0.19, runtime/comm/coalesced_collectives.py: num_nodes = world // device_count()
        yield Rule(
            name=f"{able.launcher} sums gradients in 4 bits on whole nodes",
            reason=f"the ranks of several nodes are a multiple of {each}",
            reads=(
                "tensor_parallel_size", "context_parallel_size", "pipeline_parallel_size",
                "data_parallel_size",
            ),
            violated=lambda c: (c.num_gpus > each) & (c.num_gpus % each != 0),
            form=(f"num_gpus <= {each} or num_gpus % {each} == 0",),
        )  # fmt: skip
    if _offloads_share(problem) and able.launcher != "none":
        yield Rule(
            name=f"{able.launcher} offloads a share of the optimizer's states",
            reason="it needs zero_stage 3 and host memory, not drives",
            reads=("zero_stage", "offload"),
            violated=lambda c: is_one_of(c.offload, _STATES_AWAY) & (
                (c.zero_stage != SHARD_WEIGHTS) | is_one_of(c.offload, _STATES_ON_DRIVES)
            ),
            form=(
                f"zero_stage == 3 or ({_offloads_none_of(_STATES_AWAY)})",
                _offloads_none_of(_STATES_ON_DRIVES),
            ),
        )  # fmt: skip
    yield from _host_update_rules(problem, able)


def _offloads_none_of(codes: Sequence[int]) -> str:
    return among("offload", [OFFLOAD[code] for code in codes], "!=")


def _offloads_share(problem: Problem) -> bool:
    return float(problem.workload.framework_options.get("optimizer_offload_fraction", 1.0)) != 1.0


def _host_update_rules(problem: Problem, able: Capabilities) -> Iterator[Rule]:
    """Yield what DeepSpeed's two ways to update states on the host under other work require.

    SuperOffload and ZenFlow copy states for AdamW alone: ``runtime/superoffload/superoffload_stage3.py``
    (stage 3), ``runtime/zenflow/zenflow_stage_1_and_2.py _configure_zenflow`` (offload),
    ``runtime/zenflow/engine.py configure_zenflow`` (the interval replaces gradient accumulation).
    """
    workload = problem.workload
    options, shares = workload.framework_options, _offloads_share(problem)
    super_offload = bool(options.get("super_offload"))
    zen_flow = float(options.get("cpu_update_interval", 1.0)) > 1.0
    unlike = workload.optimizer != "adamw" or workload.lora_rank > 0 or (super_offload and zen_flow)
    if super_offload:
        yield Rule(
            name=f"{able.launcher} updates offloaded states under the backward pass",
            reason="SuperOffload needs zero_stage 3, AdamW without adapters, and states in host memory",
            reads=("zero_stage", "offload"),
            violated=lambda c: (c.zero_stage != SHARD_WEIGHTS) | (c.offload != _STATES_ALONE) | unlike,
            form=("zero_stage == 3", "offload == 'optimizer'", *(_NEVER,) * unlike),
        )
    if zen_flow:
        yield Rule(
            name=f"{able.launcher} updates offloaded states every few steps",
            reason="ZenFlow needs zero_stage 2, one micro-batch, AdamW without adapters, and all states "
            "in host memory",
            reads=("zero_stage", "offload", "num_microbatches"),
            violated=lambda c: (c.zero_stage != SHARD_GRADIENTS) | (c.offload != _STATES_ALONE)
            | (c.num_microbatches != 1) | unlike | shares,
            form=("zero_stage == 2", "offload == 'optimizer'", "num_microbatches == 1",
                  *(_NEVER,) * (unlike or shares)),
        )  # fmt: skip


def cuts_base(problem: Problem, able: Capabilities) -> bool:
    """Return whether a launcher cuts the quantised base of a problem over ranks."""
    return problem.workload.base_precision in able.cuts_quantized


ON_EVERY_PLAN = "with every model and training"


def constraints_of(problem: Problem, able: Capabilities) -> dict[str, str]:
    """Return the constraints on every plan, with what each is for: launcher, training or model.

    ``{hidden_size}`` and ``{vocab_size}`` in a launcher's own constraints mean the model's.
    ``{matrix_rows}`` is the greatest number that divides the rows of every matrix of its layers,
    ``{gpus_per_node}`` the cluster's.
    """
    workload, model, base = problem.workload, problem.model, problem.workload.base_precision
    sizes = {"hidden_size": model.hidden_size, "vocab_size": model.vocab_size}
    sizes["matrix_rows"], sizes["gpus_per_node"] = matrix_rows(model), per_node_of(problem)
    usual = framework_facts(framework_of(able.launcher))
    names = {key.partition(" ")[0] for key, _ in able.option_constraints}
    values = {name: getattr(usual, name) for name in sorted(names)} | {**workload.framework_options}
    batching = "" if workload.lengths is None else workload.lengths.batching
    words = [f"{name} {value}" for name, value in values.items()]
    options = [*words, *(f"{word}, {batching}" for word in words)]
    biased = able.biased_experts_whole and bool(model.expert_bias_parameters())
    of_optimizer = dict(able.optimizer_constraints).get(workload.optimizer, ())
    groups: list[tuple[str, Sequence[str]]] = [
        (ON_EVERY_PLAN, [text.format(**sizes) for text in able.constraints]),
        (
            "with stages of the embedding or the head alone",
            able.standalone_constraints * problem.counts_ends,
        ),
        ("with stages on different node groups", able.placed_constraints * problem.among_unlike),
        ("with adapters", able.adapter_constraints * bool(workload.lora_rank)),
        (
            "without FlashAttention or a cut loss, where replicas keep embedding and head in fp32",
            ("zero_stage > 0",) * (able.casts_ends_for_flash and not _casts_ends(problem, able)),
        ),
        (f"with {workload.optimizer}", [text.format(**sizes) for text in of_optimizer]),
        *((f"with {option}", dict(able.option_constraints).get(option, ())) for option in options),
        *(
            (f"on chips of {vendor}", texts)
            for vendor, texts in able.vendor_constraints
            if vendor in {vendor_of(group.gpu) for group in problem.cluster.groups}
        ),
        (f"with {batching}", dict(able.batching_constraints).get(batching, ())),
        ("with layers on the host", able.offloaded_layer_constraints * sends_layers(problem, able)),
        (  # of bitsandbytes' tensors
            f"with {base} weights",
            ("tensor_parallel_size == 1", "zero_stage <= 2")[: 1 if cuts_base(problem, able) else 2]
            * (base not in WHOLE_PRECISIONS),
        ),
        # libs/sonicmoe/experts.py:205
        (f"with {base} experts", ("expert_parallel_size == 1",) * is_of_experts(base)),
        *((f"with {fact}", texts) for fact, texts in constraints_of_model(model, able)),
        ("with biases of experts", ("expert_tensor_parallel_size == 1",) * biased),
        ("with inner outputs of the tower", list(_room_for_inner_outputs(problem, able))),
    ]
    found = dict[str, str]()
    for where, texts in groups:
        found |= {text: where for text in texts if text not in found}
    return found


def _room_for_inner_outputs(problem: Problem, able: Capabilities) -> Iterator[str]:
    """Yield what leaves the first chunk as many layers as the tower has inner outputs.

    They are added behind layers of the chunk that embeds the images. A split gives a stage as many layers
    fewer as images take the time of, for which twice their FLOPs are taken, as narrow products are slower;
    of several chunks it may take all from the first.
    """
    tower, model = problem.model.tower, problem.model
    if tower is None or not tower.inner_outputs or tower.model_type not in able.towers:
        return
    work = problem.workload
    images = model.image_flops(work.images(tower), work.frozen_parts, work.adapted_parts)
    whole = problem.model_flops_per_token * problem.workload.tokens_per_sequence
    as_layers = ceil(2.0 * images / ((whole - images) / model.num_layers))
    ranks = "tensor_parallel_size * context_parallel_size" if able.whole_towers else "1"
    least = f"({tower.inner_outputs} + {as_layers} * {ranks})"
    yield "virtual_pipeline_size == 1"
    yield f"pipeline_parallel_size == 1 or pipeline_parallel_size * {least} <= {model.num_layers}"


def constraints_of_model(model: ModelSpec, able: Capabilities) -> list[tuple[str, list[str]]]:
    """Return the constraints on plans of a model, by its facts; ``{num_experts}`` and the like are sizes.

    ``expert_width`` divides both sides of an expert's matrices.
    """
    moe, mixer = model.moe, model.mixer
    apart = moe is not None and not moe.dispatched
    own = model_facts(model) | ({ANY_MIXER} if mixer else set()) | ({APART} if apart else set())
    sizes = (moe.num_experts, gcd(moe.ffn_hidden_size, model.hidden_size)) if moe else (1, 1)
    groups = mixer.num_key_heads if mixer else 1
    named = {"num_experts": sizes[0], "expert_width": sizes[1], "state_groups": groups}
    return [
        (fact, [text.format(**named) for text in texts])
        for fact, texts in able.model_constraints
        if fact in own
    ]


def standing_alone(problem: Problem) -> list[Problem]:
    """Return the problem with splits that may give embedding and head stages of their own."""
    options, alone = problem.options, launcher_capabilities(problem.launcher).alone(problem.model)
    if STANDALONE_STAGES not in options.allow or not any(alone) or options.stage_layers:
        return []
    several = (*options.constraints, "pipeline_parallel_size > 1")
    return [replace(problem, options=replace(options, standalone_stages=True, constraints=several))]


def is_a_row(config: Configuration) -> bool:
    """Return whether columns can hold the configuration: its words are known and it has a split."""
    return bool(
        config.stage_layers
        and config.pipeline_schedule in SCHEDULES
        and config.recompute_granularity in RECOMPUTE
        and config.offload in OFFLOAD
        and config.context_parallel_mode in CONTEXT_MODES
        and config.rank_order in RANK_ORDERS
    )


def own_faults(problem: Problem, able: Capabilities, configs: Sequence[Configuration]) -> list[list[str]]:
    """Return that for several configurations, as sentences, and a split that is not its own."""
    found: list[list[str]] = [[] for _ in configs]
    for faults, config in zip(found, configs, strict=True):
        own = launcher_split(problem, config)
        if own and own != config.stage_layers:
            faults.append(f"{able.launcher} splits the layers itself, as {' '.join(map(str, own))}")
    rows = [
        at for at, config in enumerate(configs) if is_a_row(config)
    ]  # other words are refused elsewhere
    columns = Columns.of([configs[at] for at in rows])
    for rule in own_rules(problem, able) if rows else ():
        for row in np.flatnonzero(rule.violated(columns)):
            found[rows[row]].append(f"{rule.name}: {rule.reason}")
    return found


PAGED = ("none", "optimizer")  # states on the GPU, or pages that come for an update and leave again


def offloads(problem: Problem, able: Capabilities) -> tuple[str, ...]:
    """Return what the launcher can keep in host memory: some activations, if modules are named.

    Of a paged optimizer, its pages.
    """
    if optimizer_named(problem.workload.optimizer).paged:
        return PAGED
    options = problem.workload.framework_options
    named = options.get("offload_modules", "all") != "all" or sends_layers(problem, able)
    if able.offloads_modules and not named:
        return tuple(word for word in able.offload if "activations" not in word)
    return able.offload


def sends_layers(problem: Problem, able: Capabilities) -> bool:
    """Return whether activations that are offloaded are those of a stated number of whole layers."""
    stated = bool(problem.workload.framework_options.get("offload_layers"))
    return stated and bool(able.offloaded_layer_constraints)


def launcher_rules(problem: Problem, able: Capabilities) -> Iterator[Rule]:
    """Yield every limit of a launcher."""
    yield from _step_rules(able)
    yield from _mesh_rules(problem, able)
    yield from _shard_rules(problem, able)
    yield _offload_rule(problem, able)
    yield from own_rules(problem, able)


def _step_rules(able: Capabilities) -> Iterator[Rule]:
    """Yield the launcher's limits on how the passes of a step run: schedule, ZeRO, recomputation."""
    name = able.launcher
    schedules = [SCHEDULES.index(word) for word in able.schedules]
    kinds = [RECOMPUTE.index(word) for word in able.recompute]
    yield Rule(
        name=f"{name} supports the schedule",
        reason=f"it runs {', '.join(able.schedules)}",
        reads=("pipeline_schedule",),
        violated=lambda c: ~is_one_of(c.pipeline_schedule, schedules),
        form=(among("pipeline_schedule", able.schedules),),
    )
    yield Rule(
        name=f"{name} supports the ZeRO stage",
        reason=f"stages {able.zero_stages}; up to {able.max_zero_stage_with_pipeline} with pipeline stages",
        reads=("pipeline_parallel_size", "zero_stage"),
        violated=lambda c: (
            ~is_one_of(c.zero_stage, able.zero_stages)
            | ((c.pipeline_parallel_size > 1) & (c.zero_stage > able.max_zero_stage_with_pipeline))
        ),
        form=(
            among("zero_stage", able.zero_stages),
            f"pp == 1 or zero_stage <= {able.max_zero_stage_with_pipeline}",
        ),
    )
    yield Rule(
        name=f"{name} supports the recomputation",
        reason=f"it offers {', '.join(able.recompute)}",
        reads=("recompute", "recompute_layers"),
        violated=lambda c: (
            ~is_one_of(c.recompute, kinds)
            | (
                (c.recompute == _FULL)
                & (c.recompute_layers < ALL_LAYERS)
                & (not able.recompute_layer_counts)
            )
            | ((c.recompute_layers == PER_STAGE) & (not able.recompute_per_stage))
        ),
        form=(among("recompute_granularity", able.recompute),),
    )


def _mesh_rules(problem: Problem, able: Capabilities) -> Iterator[Rule]:
    """Yield the launcher's limits on the axes of the mesh, the size of stages, and the order of ranks."""
    name, layers = able.launcher, problem.model.num_layers
    modes = [CONTEXT_MODES.index(word) for word in able.context_parallel_modes]
    orders = [RANK_ORDERS.index(word) for word in able.rank_orders]
    yield Rule(
        name=f"{name} supports the parallel axes",
        reason="context or expert parallelism that the launcher lacks",
        reads=("context_parallel_size", "expert_parallel_size", "context_parallel_mode"),
        violated=lambda c: (
            ((c.context_parallel_size > 1) & (not able.context_parallel))
            | ((c.expert_parallel_size > 1) & (not able.expert_parallel))
            | ~is_one_of(c.context_parallel_mode, modes)
        ),
        form=(
            *(("cp == 1",) * (not able.context_parallel)),
            *(("ep == 1",) * (not able.expert_parallel)),
            among("context_parallel_mode", able.context_parallel_modes),
        ),
    )
    yield Rule(
        name=f"{name} has stages of one size alone",
        reason="it has no stages of different size",
        reads=("pipeline_parallel_size", "virtual_pipeline_size"),
        violated=lambda c: (
            (layers % (c.pipeline_parallel_size * c.virtual_pipeline_size) != 0) & (not able.uneven_stages)
        ),
        form=() if able.uneven_stages else (f"{layers} % (pp * vpp) == 0",),
    )
    yield Rule(
        name=f"{name} numbers the ranks so",
        reason=f"its orders of the mesh axes are {', '.join(able.rank_orders)}",
        reads=("rank_order",),
        violated=lambda c: ~is_one_of(c.rank_order, orders),
        form=(among("rank_order", able.rank_orders),),
    )
    if able.data_parallel_alike:
        yield Rule(
            name=f"{name} has equal numbers of expert and attention replicas",
            reason="with pp before dp, experts are split over tp * cp ranks, and a dense model has no cp",
            reads=(
                "tensor_parallel_size",
                "context_parallel_size",
                "expert_parallel_size",
                "expert_tensor_parallel_size",
                "rank_order",
            ),
            violated=lambda c: (c.rank_order != DEFAULT) & ~equally_replicated(problem, c),
            form=(
                f"rank_order == '{RANK_ORDERS[DEFAULT]}' or ep * etp == "
                + ("tp * cp" if problem.model.moe is not None else "cp"),
            ),
        )


_SHARDED_WHOLE = (
    "zero_stage == 0 or dp * cp < ws and zero_shard_size == 1 or zero_shard_size == dp * cp // ws"
)


def _shard_rules(problem: Problem, able: Capabilities) -> Iterator[Rule]:
    """Yield the launcher's limits on what ranks share: ZeRO's shards, weights, experts, tokens."""
    name = able.launcher
    needs_sequence_parallel = able.experts_need_sequence_parallel and problem.model.moe is not None
    yield Rule(
        name=f"{name} supports the shard sets",
        reason="shards inside groups and replicas across them, if the launcher has that",
        reads=(
            "context_parallel_size",
            "data_parallel_size",
            "weight_shard_size",
            "zero_stage",
            "zero_shard_size",
        ),
        violated=lambda c: (
            (c.zero_stage > 0) & (c.zero_shard_size != c.replicating_ranks) & (not able.hybrid_sharding)
        ),
        form=() if able.hybrid_sharding else (_SHARDED_WHOLE,),
    )
    yield from _weight_shard_rules(problem, able)
    yield Rule(
        name=f"{name} supports the split of experts and sequences",
        reason="expert tensor parallelism, and experts without sequence parallelism, if the launcher "
        "has them",
        reads=("tensor_parallel_size", "sequence_parallel", "expert_tensor_parallel_size"),
        violated=lambda c: (
            ((c.expert_tensor_parallel_size > 1) & (not able.expert_tensor_parallel))
            | ((c.tensor_parallel_size > 1) & (c.sequence_parallel == 0) & needs_sequence_parallel)
        ),
        form=(
            *(("etp == 1",) * (not able.expert_tensor_parallel)),
            *(("tp == 1 or sequence_parallel",) * needs_sequence_parallel),
        ),
    )


def _offload_rule(problem: Problem, able: Capabilities) -> Rule:
    words = offloads(problem, able)
    places = [OFFLOAD.index(word) for word in words]
    note = "" if words is PAGED else able.offload_note
    return Rule(
        name=f"{able.launcher} offloads so",
        reason=f"it has {', '.join(words)}" + (note and f"; {note}"),
        reads=("offload",),
        violated=lambda c: ~is_one_of(c.offload, places),
        form=(among("offload", words),),
    )


def _weight_shard_rules(problem: Problem, able: Capabilities) -> Iterator[Rule]:
    obstacle = weight_shard_obstacle(problem, able)
    allowed = able.weight_shard_constraints
    where, layers = "with ranks that share weights", problem.model.num_layers
    broken = [_needed(able.launcher, text, where, layers) for text in allowed]
    reads = {name for rule in broken for name in rule.reads}
    yield Rule(
        name=f"{able.launcher} shares weights among data-parallel ranks",
        reason=obstacle or "; ".join(allowed) or "matrices are gathered for each product",
        reads=tuple(sorted({"weight_shard_size", "expert_weight_shard_size", *reads})),
        violated=lambda c: (
            (c.weight_shard_size * c.expert_weight_shard_size > 1)
            & np.logical_or.reduce(
                [np.full(len(c), bool(obstacle)), *(rule.violated(c) for rule in broken)]
            )
        ),
        form=("ws * ews == 1",) if obstacle else tuple(f"ws * ews == 1 or ({text})" for text in allowed),
    )


def weight_shard_obstacle(problem: Problem, able: Capabilities) -> str:
    """Return why no plan of a problem may share weights among data-parallel ranks; empty if one may.

    MXFP8 needs weights that are held in 8 bits alone, NVFP4 weights in 4, which no exporter writes
    (Megatron-LM 0.19.2 ``arguments.py validate_args``: "GTP + mxfp8 requires --fp8-param-gather").
    """
    facts, work = _facts(problem, able), problem.workload
    recipe = facts.precision_recipe if facts is not None else "none"
    lacking = [fact for fact in able.weight_shards_without if fact in model_facts(problem.model)]
    if not able.weight_shards:
        return "the launcher has no shards of single weights"
    if work.lora_rank:
        return "adapters can't be combined with it"
    if recipe == "nvfp4" or work.precision == "fp32":
        return f"{recipe if recipe == 'nvfp4' else 'fp32'} can't be combined with it"
    if recipe == "mxfp8" and facts is not None and not facts.low_precision_weights:
        return "mxfp8 needs low_precision_weights (--fp8-param-gather)"
    return f"its release cannot shard {', '.join(lacking)}" if lacking else ""


def equally_replicated(problem: Problem, columns: Columns) -> BoolArray:
    """Mark rows with as many data-parallel ranks for experts as for attention, shape (n,).

    Megatron-Core forms groups for experts in a dense model too, of the tensor-parallel size.
    """
    tensor = columns.tensor_parallel_size if problem.model.moe is not None else 1
    return np.asarray(columns.expert_ranks == tensor * columns.context_parallel_size)

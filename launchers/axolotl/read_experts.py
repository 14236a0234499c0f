"""Axolotl's experts: ranks that share them, and checkpoints that have them in 4 bits.

DeepEP carries tokens, and FSDP2 shards experts over the other ranks of the mesh. Axolotl 0.19.0,
integrations/expert_parallel (plugin.py, shard.py, experts_fn.py, buffer.py),
monkeypatch/accelerate (parallelism_config.py:56, fsdp2.py:702) and utils/distributed.py:332.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.launchers.reading.base import Options
from meshwright.launchers.reading.fields import Fields
from meshwright.launchers.transformers.export import EXPERTS
from meshwright.launchers.transformers.read_ranks import products_of
from meshwright.profiles.adapters import has_linear_experts
from meshwright.profiles.frameworks import MERGED, framework_facts
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.storage import BasePrecision, is_of_experts, is_packed
from meshwright.solver.configuration import Configuration

SIZE = "expert_parallel_size"
_BUFFER = "expert_parallel_num_nvl_bytes"
_NODE = 8  # GPUs of a node that DeepEP's kernels without RDMA reach (NUM_MAX_NVL_PEERS)
_PLUGIN = "expertparallel"


def expert_ranks(fields: Fields, model: ModelSpec) -> int:
    """Return the ranks that share experts, or record a fault for what they are not cut or started with."""
    ranks = fields.integer(SIZE, 1)
    if ranks == 1:
        return 1
    moe, named = model.moe, str(fields.raw("plugins") or "").lower().replace("_", "")
    if moe is None:
        fault = f"{model.title} has no experts", "1"
    elif not moe.dispatched:  # shard.py:122 _detect_experts_modules
        fault = f"the experts of {model.title} are in no tensor that Axolotl could cut", "1"
    elif moe.num_experts % ranks:
        fault = f"its trainer refuses {ranks} ranks for {moe.num_experts} experts", "divisors of it"
    elif ranks > _NODE:
        fault = "DeepEP's kernels over several nodes are not priced under Axolotl", f"1 to {_NODE}"
    elif fields.integer("tensor_parallel_size", 1) > 1:
        fault = "its trainer refuses it next to tensor ranks", "1, or tensor_parallel_size: 1"
    else:
        if _PLUGIN not in named:
            fields.note(
                "plugins doesn't list ExpertParallelPlugin, which Axolotl 0.19 needs for expert ranks"
            )
        fields.note(
            "expert ranks are priced with the package deep_ep; without it Axolotl 0.19 warns, and runs none"
        )
        return ranks
    fields.fault(SIZE, fault[0], allowed=fault[1])
    return 1


def require_ranks_of_experts(fields: Fields, found: Configuration, shards: int | None) -> None:
    """Record a fault for sizes next to expert ranks that its trainer stops at."""
    ranks = found.expert_parallel_size
    if ranks == 1:
        return
    own, rings = shards or 1, found.context_parallel_size
    if ranks * own * rings != found.num_gpus:  # plugin.py:283
        fields.fault(
            SIZE,
            f"its trainer refuses {ranks} × shard {own} × cp {rings} of {found.num_gpus} ranks",
            allowed=f"sizes with the product {found.num_gpus}, dp_shard_size stated",
        )
    if own > 1 and not found.zero_stage:  # utils/distributed.py:359
        fields.fault("dp_shard_size", "its trainer refuses it without an fsdp_config", allowed="1")


def experts_options(fields: Fields, found: Configuration, tuned: Mapping[str, Any]) -> Options:
    """Return how tokens reach experts of other ranks, and which rows these multiply.

    ScatterMoE and the loop skip what is not there (experts_fn.py:86, :136); grouped products do not (:126),
    and stand for batched ones, too (plugin.py:214).
    """
    if found.expert_parallel_size == 1:
        return {}
    base = tuned.get("base_precision")
    if fields.flag("quantize_moe_experts") or (base is not None and not is_packed(base)):
        fields.fault(SIZE, "next to experts of fewer bits is not priced", allowed="1, or adapter: lora")
    options, buffer = Options(moe_dispatcher="deepep"), fields.integer(_BUFFER)
    if buffer != framework_facts("axolotl").dispatch_buffer_bytes:
        options["dispatch_buffer_bytes"] = float(buffer)
    if expert_backend(fields) == SCATTERS:
        options["multiplies_absent"] = False
    elif fields.peek("experts_implementation") == "batched_mm":
        options["grouped_gemm"] = "grouped"
    fields.stop()
    return options


_MERGES, _STARTS = "nvfp4_merge_aware", "nvfp4_merge_aware_start_step"
_GROUPED, _PRODUCTS = "dsv4_fp4_grouped_mode", "moe_grouped_backend"
_IMPLEMENTATION, _BACKEND = "experts_implementation", "expert_backend"
SCATTERS, SONIC = "scattermoe", "sonicmoe"
_FLAGS = {SCATTERS: "use_scattermoe", SONIC: "use_sonicmoe"}
# integrations/kernels/args.py:113: they multiply without the layers that round sums
_FUSED = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel")


def _has_kernels(fields: Fields) -> bool:
    return "kernelsplugin" in str(fields.raw("plugins") or "").lower()


def expert_backend(fields: Fields) -> str:
    """Return the kernels of a plugin that multiply experts, ``SCATTERS`` or ``SONIC``; empty: none of them.

    A flag and a word mean the same (integrations/kernels/args.py _canonicalize_expert_backend).
    """
    named = str(fields.raw(_BACKEND) or "").lower()
    asked = [one for one, flag in _FLAGS.items() if fields.flag(flag) or named == one]
    return asked[0] if asked and _has_kernels(fields) else ""


def products_options(fields: Fields, model: ModelSpec, launcher: str) -> Options:
    """Return how experts and fp32 multiply, or record a fault for kernels that exclude each other.

    With KernelsPlugin, experts are multiplied one by one unless the file says otherwise, and also where
    experts_implementation names kernels that no flag turns on (args.py check_experts_implementation).
    Kernels that are on replace what experts_implementation says (plugin.py:149 and :179).
    """
    kernels, said = expert_backend(fields), fields.peek(_IMPLEMENTATION)
    if not _has_kernels(fields):
        for name in (*_FLAGS.values(), _BACKEND):
            if fields.raw(name):
                fields.note(f"{name} does nothing: plugins doesn't list KernelsPlugin")
        return products_of(fields, launcher)
    named = fields.word(_BACKEND, allowed=(*_FLAGS, "eager", "builtin"))
    on = [one for one, flag in _FLAGS.items() if fields.flag(flag)]
    for one in on:
        if one != (named or on[0]):
            other = f"{_BACKEND}: {named}" if named else f"{_FLAGS[on[0]]}: true"
            fields.fault(_FLAGS[one], f"its trainer refuses it next to {other}", allowed="false")
    if kernels and said not in (None, kernels):
        fields.note(f"{_IMPLEMENTATION} does nothing: {kernels} is on, and replaces it")
    elif said in _FLAGS:
        fields.note(f"{_IMPLEMENTATION} needs {_FLAGS[str(said)]}: true; experts are multiplied one by one")
    words = {**EXPERTS, **dict.fromkeys(_FLAGS, "loop")}
    if kernels:
        words = dict.fromkeys(words, "grouped")
    return products_of(fields, launcher, words, default="eager" if model.moe else "")


def packed_base(fields: Fields, model: ModelSpec, kind: str) -> BasePrecision | None:
    """Return the type of frozen experts that ModelOpt stored in NVFP4; None: the checkpoint is none of its.

    0.19 integrations/kernels/adapters/nvfp4_moe.py; other layers of it are loaded in bf16.
    """
    if model.stored_as != "nvfp4":
        return None
    moe, stacked = model.moe, model.moe is not None and not has_linear_experts(model)
    # runtime.py:77 takes the word as it is written, and other cases of it stop the first step
    scatters = expert_backend(fields) == SCATTERS and fields.raw(_GROUPED) == "nvfp4"
    sonic = expert_backend(fields) == SONIC
    products = str(fields.raw(_PRODUCTS) or "auto").lower() if scatters else "auto"
    said = fields.raw("lora_target_parameters")
    both = isinstance(said, list) and len({str(one).rpartition(".")[2] for one in said}) > 1
    faults = {
        "is stored in NVFP4, of which experts in one tensor are priced: under SonicMoE, if the model has "
        "no tower": (
            not (stacked and (scatters or (moe and moe.dispatched and not model.tower))), "another model"
        ),
        "is stored in NVFP4: its experts are priced under SonicMoE or ScatterMoE's grouped products": (
            not (sonic or scatters),
            f"{_BACKEND}: {SONIC}, or {SCATTERS} and {_GROUPED}: nvfp4. Both need KernelsPlugin",
        ),
        f"is stored in NVFP4: its experts are not priced under {_PRODUCTS}: {products}": (
            products not in ("auto", "marlin"), f"{_PRODUCTS}: marlin"
        ),
        "is stored in NVFP4: ScatterMoE's grouped products need adapters on both tensors of experts": (
            scatters and not both, "lora_target_parameters: [experts.gate_up_proj, experts.down_proj]"
        ),
        "is stored in NVFP4, whose weights are frozen": (kind != "lora", "adapter: lora"),
    }  # fmt: skip
    for why, (holds, allowed) in faults.items():
        if holds:
            fields.fault("base_model", why, allowed=allowed)
            break
    if scatters:
        fields.note("rows that Marlin pads to 64 for each expert are not priced")
    elif not fields.flag(_MERGES):
        fields.note("experts in NVFP4 are priced in 16 bits; Blackwell with HBM multiplies them in 4")
    return "nvfp4"


def merged_options(fields: Fields, tuned: Mapping[str, Any]) -> Options:
    """Return whether adapters are trained as they will be merged into weights in NVFP4.

    0.19 integrations/kernels/args.py:98; docs/nvfp4_lora.qmd: under FSDP a rank has no grid to round to.
    """
    if not fields.flag(_MERGES):
        return {}
    fused = next((name for name in _FUSED if fields.flag(name)), "")
    without = f"without {_FLAGS[SONIC]} of KernelsPlugin"
    if expert_backend(fields) != SONIC or fused:
        fields.fault(
            _MERGES,
            f"its trainer refuses it {f'next to {fused}' if fused else without}",
            allowed="false",
            nearest="false",
        )
    if not is_of_experts(tuned.get("base_precision", "bf16")):
        fields.note(f"{_MERGES} does nothing: the checkpoint's experts are not in NVFP4")
        return {}
    if fields.raw(_STARTS):
        fields.note(f"steps before {_STARTS} round nothing, and are shorter than predicted")
    fields.note(
        f"{_MERGES}: assuming that the checkpoint has all adapted linear layers in NVFP4, too, as "
        "Qwen3-30B-A3B-NVFP4 has those of attention; sums of others are not rounded"
    )
    return {"fake_quantization": MERGED}

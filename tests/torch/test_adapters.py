"""LoRA, weights of 4 bits and 8-bit Adam: our counts beside the tensors of peft and bitsandbytes."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import gc
import itertools
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import bitsandbytes
import pytest
import torch
import transformers
from bitsandbytes import functional
from peft import LoraConfig, get_peft_model
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.profiler import ProfilerActivity
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from meshwright.launchers.reading.adapters import adapted
from meshwright.launchers.reading.base import Overrides
from meshwright.launchers.reading.documents import LocatedValue
from meshwright.launchers.reading.fields import Fields
from meshwright.profiles.adapters import (
    CLASS_TARGETS,
    EXPERT_TARGETS,
    LORA_TARGETS,
    SINGLE_TARGETS,
    TRAINED_MODULES,
    adapter_parameters,
    base_bytes,
    class_targets,
    copied_parameters,
    quantized_layers,
    single_blocks,
    target_fault,
    unadaptable,
)
from meshwright.profiles.importers.huggingface import model_from_config
from meshwright.profiles.importers.huggingface_families import families
from meshwright.profiles.library import find_cluster
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.optimizers import optimizer_named
from meshwright.profiles.profile import default_profile
from meshwright.profiles.storage import BasePrecision
from meshwright.solver.configuration import Configuration
from meshwright.solver.predict import predict
from meshwright.solver.problem import Problem, Workload
from tests.draws import some_of
from tests.torch.drawn_configs import LAYERS, NEEDED_BY_TYPE, needed, on_meta

pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::UserWarning", "ignore::RuntimeWarning"
)  # of peft and transformers

SMALL = {"num_hidden_layers": 3, "vocab_size": 1000}
HEADS = {"hidden_size": 256, "intermediate_size": 640, "num_attention_heads": 8, "num_key_value_heads": 2}
EXPERTS = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96}
LATENT = {"kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 24}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **HEADS},
    "qwen3": {"model_type": "qwen3", **HEADS, "head_dim": 64},
    "gemma3_text": {"model_type": "gemma3_text", **HEADS, "head_dim": 64},
    "starcoder2": {"model_type": "starcoder2", **HEADS, "use_bias": True},
    "gemma4_text": {"model_type": "gemma4_text", **HEADS, "head_dim": 32, "global_head_dim": 64,
                    "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0},
    "glm4_moe": {"model_type": "glm4_moe", **HEADS, **EXPERTS, "head_dim": 32, "n_shared_experts": 1,
                 "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "pad_token_id": 0},
    "qwen3_moe": {"model_type": "qwen3_moe", **HEADS, "num_local_experts": 4, "moe_intermediate_size": 96,
                  "num_experts_per_tok": 2},
    "deepseek_v3": {"model_type": "deepseek_v3", **HEADS, **EXPERTS, **LATENT, "q_lora_rank": 48,
                    "num_key_value_heads": 8, "n_shared_experts": 2, "first_k_dense_replace": 1,
                    "n_group": 1, "topk_group": 1},
}  # fmt: skip
FUSED = {
    "phi3": ({"model_type": "phi3", **HEADS, "pad_token_id": 0},
             {"qkv_proj": "linear_qkv", "o_proj": "linear_proj", "gate_up_proj": "linear_fc1",
              "down_proj": "linear_fc2"}),
    "gpt_neox": ({"model_type": "gpt_neox", "hidden_size": 256, "intermediate_size": 640,
                  "num_attention_heads": 8},
                 {"query_key_value": "linear_qkv", "dense": "linear_proj", "dense_h_to_4h": "linear_fc1",
                  "dense_4h_to_h": "linear_fc2"}),
}  # fmt: skip


def built(config: dict[str, Any]) -> tuple[ModelSpec, Any]:
    """Our model, and that of transformers on torch's meta device."""
    whole = {**config, **SMALL}
    ours = model_from_config(whole, name="small")
    options = {name: value for name, value in whole.items() if name != "model_type"}
    made = transformers.AutoConfig.for_model(config["model_type"], **options)
    return ours, on_meta(lambda: transformers.AutoModelForCausalLM.from_config(made))


TYPES = sorted(set(families()) & set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))


@pytest.mark.parametrize("model_type", some_of(TYPES, each=4))
def test_peft_trains_all_linear_layers_of_every_type_and_copies_its_embedding_head_and_norms(
    model_type: str,
) -> None:
    """Copies of those that have Llama's names."""
    config, model = small(model_type)
    ours = model_from_config({"model_type": model_type, **config}, name="small")
    written = {class_targets(ours, (name,))[0]: name for name in ("embed_tokens", "lm_head")}
    there = {
        path.rsplit(".", 1)[-1]
        for path, one in model.named_modules()
        if isinstance(one, torch.nn.Embedding | torch.nn.Linear)  # ModernBERT has another lm_head
    }
    normed = all(
        path.endswith("norm") for path, one in model.named_modules() if "Norm" in type(one).__name__
    )
    whole = unadaptable(ours) != "out_proj"  # of other mixers peft refuses a layer
    names = {*written} & there | ({"norm"} if normed else set())
    options = {"r": 6, "target_modules": "all-linear" if whole else ["in_proj"], "task_type": "CAUSAL_LM"}
    with torch.device("meta"):
        adapted = get_peft_model(copy.deepcopy(model), LoraConfig(**options, modules_to_save=sorted(names)))
    copies, adapters = dict.fromkeys(names, 0), 0
    for path, one in adapted.named_parameters(remove_duplicate=False):
        module, copied, _ = path.partition(".modules_to_save.")
        adapters += one.numel() * (".lora_" in path)
        for name in names:
            if copied and module.endswith(name):
                copies[name] += one.numel()
    assert copies == {name: copied_parameters(ours, written.get(name, name)) for name in names}
    if ours.compression is not None:  # refused by ``launcher_rules``: adapters of it are not counted
        return
    if whole:
        assert adapter_parameters(ours, 6, SINGLE_TARGETS) == adapters
    if ours.moe:  # whose experts peft adapts together; other layers are named alone below
        mlp = ("o_proj", "gate_proj", "up_proj", "down_proj")
        with contextlib.suppress(ValueError):  # other names than Llama's
            assert adapter_parameters(ours, 6, mlp) == trained(model, [*mlp], 6)


SMALL_LLAMA = {**CONFIGS["llama"], "num_hidden_layers": 2, "vocab_size": 2048, "tie_word_embeddings": False}


@pytest.mark.parametrize("modules", [(), ("lm_head",), TRAINED_MODULES])
@pytest.mark.parametrize(
    ("launcher", "base"), [("trl", "bf16"), ("trl", "fp32"), ("llama-factory-accelerate", "bf16")]
)
def test_peft_keeps_as_many_bytes_of_frozen_weights_adapters_and_copies_as_are_priced(
    launcher: str, base: BasePrecision, modules: tuple[str, ...]
) -> None:
    model = adapted_llama(base, modules)
    if launcher == "llama-factory-accelerate":  # model/adapter.py
        for one in model.parameters():
            one.data = one.data.float() if one.requires_grad else one.data
    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(trained)
    for one in trained:
        one.grad = torch.randn_like(one)
    optimizer.step()
    states = [one for state in optimizer.state.values() for name, one in state.items() if name != "step"]
    priced = priced_llama(launcher, base, modules)
    kept = {"gradients": [one.grad for one in trained] * 2, "optimizer": states}  # and in buckets
    bases, casts = list(model.parameters()), bytes_of(casts_saved(model)) if base == "fp32" else 0
    if base == "fp32" and modules[:1] != ("embed_tokens",):
        casts += 2 * 256 * (256 + 64 + 64)  # of the first layer's q, k, v: nothing before them is trained
    found = sum(map(bytes_of, kept.values())) + bytes_of(bases) + casts
    whole = sum(priced[name] for name in ("weights", "gradients", "optimizer"))
    assert whole == pytest.approx(found, abs=8)


def bytes_of(tensors: Iterable[torch.Tensor | None]) -> int:
    """Bytes of tensors."""
    return sum(one.numel() * one.element_size() for one in tensors if one is not None)


def adapted_llama(base: BasePrecision, modules: tuple[str, ...]) -> torch.nn.Module:
    """A small Llama with adapters of rank 8 on every linear layer, and copies of modules beside them."""
    options = {name: value for name, value in SMALL_LLAMA.items() if name != "model_type"}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**options))
    model = model.to(torch.float32 if base == "fp32" else torch.bfloat16)
    adapters = LoraConfig(
        r=8, target_modules="all-linear", modules_to_save=list(modules) or None, task_type="CAUSAL_LM"
    )
    return get_peft_model(model, adapters)


def casts_saved(model: torch.nn.Module) -> list[torch.Tensor]:
    """Casts of frozen matrices that autocast leaves behind a forward pass."""
    frozen = {tuple(one.shape) for one in model.parameters() if one.ndim > 1 and not one.requires_grad}
    saved = dict[int, torch.Tensor]()

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        whole = tensor if tensor._base is None else tensor._base
        if whole.dtype == torch.bfloat16 and tuple(whole.shape) in frozen:
            saved[whole.data_ptr()] = whole
        return tensor

    tokens = torch.arange(7)[None]
    with (
        torch.autocast("cpu", torch.bfloat16),
        torch.autograd.graph.saved_tensors_hooks(keep, lambda one: one),
    ):
        model(input_ids=tokens)
    return list(saved.values())


def priced_llama(launcher: str, base: BasePrecision, modules: tuple[str, ...]) -> Mapping[str, float]:
    """Bytes of memory of the same on one GPU of eight, by what they are."""
    cluster = find_cluster("dgx-h100", num_nodes=1)
    workload = Workload(
        global_batch_size=8, seq_length=128, lora_rank=8, lora_targets=SINGLE_TARGETS, base_precision=base,
        trained_modules=modules,
    )  # fmt: skip
    ours = model_from_config(SMALL_LLAMA, name="small")
    problem = Problem(model=ours, cluster=cluster, workload=workload, launcher=launcher)
    alone = Configuration(data_parallel_size=8, num_microbatches=1, stage_layers=(2,))
    return predict(problem, default_profile(cluster, launcher), alone).stages[0].memory_bytes


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_replicas_under_autocast_keep_at_their_peak_what_is_priced_of_fp32_weights(
    recompute: str, micro_batches: int
) -> None:
    """4 bytes a weight, 4 of its gradient, 4 in a bucket, 8 of moments; 2 of casts where gradients stand.

    The casts of the first micro-batch go where gradients come. Layers that are replayed save none, but
    autocast's cache holds them until the loss is there.
    """
    options = {name: value for name, value in DEEP_LLAMA.items() if name != "model_type"}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**options))
    traced = bytes_of(model.parameters()) + traced_peak(model, recompute, micro_batches)
    cluster = find_cluster("dgx-h100", num_nodes=1)
    problem = Problem(
        model=model_from_config(DEEP_LLAMA, name="small"), cluster=cluster, launcher="trl",
        workload=Workload(global_batch_size=8 * micro_batches, seq_length=TOKENS),
    )  # fmt: skip
    found = Configuration(
        data_parallel_size=8,
        num_microbatches=micro_batches,
        stage_layers=(8,),
        recompute_granularity=recompute,
    )
    priced = predict(problem, default_profile(cluster, "trl"), found).stages[0].memory_bytes
    kept = sum(priced[name] for name in ("weights", "gradients", "optimizer", "activations", "workspace"))
    assert kept == pytest.approx(traced, rel=0.02)
    matrices = sum(one.weight.numel() for one in model.modules() if isinstance(one, torch.nn.Linear))
    weights = sum(one.numel() for one in model.parameters())
    assert kept == pytest.approx(20 * weights + 2 * matrices * (micro_batches - 1), rel=0.02)


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_replicas_keep_at_their_peak_what_is_priced_of_fp32_ends_next_to_bf16_matrices(
    recompute: str, micro_batches: int
) -> None:
    """As Axolotl casts a model without FSDP: 2 bytes a matrix's weight, 2 of its gradient and bucket, 4 of
    moments, and twice as much of embedding and head, of which the head has a cast of 2.
    """
    config = {**DEEP_LLAMA, "vocab_size": 4096, "num_hidden_layers": 2}
    options = {name: value for name, value in config.items() if name != "model_type"}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**options)).bfloat16()
    for name, one in model.named_modules():
        if "norm" in name or name.endswith(("embed_tokens", "lm_head")):
            one.float()
    traced = bytes_of(model.parameters()) + traced_peak(model, recompute, micro_batches)
    cluster = find_cluster("dgx-h100", num_nodes=1)
    own = {"fp32_ends": True}
    problem = Problem(
        model=model_from_config(config, name="small"), cluster=cluster, launcher="trl",
        workload=Workload(
            global_batch_size=8 * micro_batches, seq_length=TOKENS, optimizer="adamw-pure-bf16",
            framework_options=own,
        ),
    )  # fmt: skip
    found = Configuration(
        data_parallel_size=8, num_microbatches=micro_batches, stage_layers=(2,),
        recompute_granularity=recompute,
    )  # fmt: skip
    priced = predict(problem, default_profile(cluster, "trl"), found).stages[0].memory_bytes
    kept = sum(priced[name] for name in ("weights", "gradients", "optimizer", "activations", "workspace"))
    assert kept == pytest.approx(traced, rel=0.005)


DEEP_LLAMA, TOKENS = (
    {**SMALL_LLAMA, "num_hidden_layers": 8, "intermediate_size": 1024, "vocab_size": 128},
    2,
)


def traced_peak(model: torch.nn.Module, recompute: str, micro_batches: int) -> int:
    """Return the most bytes that a replica's third step holds at a time, run as accelerate runs it.

    The second step builds its buckets anew. Gloo sends nothing, for one rank has nothing to send: where a
    thread of its own is the last to release a tensor, the profiler does not see that memory freed. An
    earlier replica, kept by its own ``forward``, goes first: else its memory is taken from this one's.
    What a product takes for itself and frees before it ends is left out: CPUs without products in bf16 sum
    them up in fp32.
    """
    gc.collect()
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    if recompute == "full":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    model.forward = torch.autocast("cpu", torch.bfloat16)(model.forward)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tokens = torch.arange(TOKENS)[None]
    try:
        with torch.profiler.profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            replica = torch.nn.parallel.DistributedDataParallel(model, init_sync=False)
            replica.register_comm_hook(None, noop_hook)
            for _ in range(3):
                with torch.profiler.record_function("step"):
                    for number in range(micro_batches):
                        last = number == micro_batches - 1
                        with contextlib.nullcontext() if last else replica.no_sync():
                            replica(input_ids=tokens, labels=tokens).loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
    finally:
        torch.distributed.destroy_process_group()
    seen = profiler.profiler.kineto_results.events()
    third = max(one.start_ns() for one in seen if one.name() == "step")
    events = sorted((one for one in seen if one.name() == "[memory]"), key=lambda one: one.start_ns())
    products = [(one.start_ns(), one.end_ns()) for one in seen if one.name() == "aten::mm"]
    scratch = {
        one.start_ns()
        for one, after in itertools.pairwise(events)
        if one.nbytes() == -after.nbytes() > 0
        and any(begin <= one.start_ns() and after.start_ns() <= end for begin, end in products)
    }
    held = itertools.accumulate(int(one.nbytes()) for one in events)
    return max(
        total
        for total, one in zip(held, events, strict=True)
        if one.start_ns() >= third and one.start_ns() not in scratch
    )


@cache
def small(model_type: str) -> tuple[dict[str, Any], torch.nn.Module]:
    """A config of few layers of a type, and its model on torch's meta device, which nobody changes."""
    kind = CONFIG_MAPPING[model_type]
    config = {**needed(kind), **NEEDED_BY_TYPE.get(model_type, {})}
    layers = [one.name for one in dataclasses.fields(kind) if LAYERS.match(one.name)]
    config |= {name: config.get(name, 4) for name in layers}
    if model_type == "gpt_neo":  # whose kinds of layers are listed
        config["attention_types"] = [[["global", "local"], 2]]
    return config, on_meta(lambda: transformers.AutoModelForCausalLM.from_config(kind(**config)))


def trained(model: torch.nn.Module, targets: list[str] | str, rank: int) -> int:
    """Elements that peft trains of a copy of the model."""
    adapters = LoraConfig(r=rank, target_modules=targets, task_type="CAUSAL_LM")
    with torch.device("meta"):
        adapted = get_peft_model(copy.deepcopy(model), adapters)
    return sum(one.numel() for one in adapted.parameters() if one.requires_grad)


def trained_each(model: torch.nn.Module, words: list[str], rank: int) -> Counter[str]:
    """The same of each word alone: a layer is adapted where its path ends with the word."""
    adapters = LoraConfig(r=rank, target_modules=words, task_type="CAUSAL_LM")
    with torch.device("meta"):
        adapted = get_peft_model(copy.deepcopy(model), adapters)
    found = Counter[str]()
    for path, one in adapted.named_parameters():
        if one.requires_grad:
            module = f".{path.partition('.lora_')[0]}"
            found.update({word: one.numel() for word in words if module.endswith(f".{word}")})
    return found


@pytest.mark.parametrize("name", CONFIGS)
def test_peft_trains_as_many_weights_beside_every_single_layer(name: str) -> None:
    ours, model = built(CONFIGS[name])
    there = {part for path, _ in model.named_modules() for part in path.split(".")}
    experts = {"gate_proj", "up_proj", "down_proj"} if ours.moe else set()
    each = [target for target in SINGLE_TARGETS if target in there | experts]
    for targets in (each, each[:1], ["o_proj"]):
        assert adapter_parameters(ours, 6, tuple(targets)) == trained(model, targets, 6), targets


@pytest.mark.parametrize("model_type", some_of(TYPES, each=4, first=1))
def test_peft_trains_as_many_weights_beside_layers_that_only_some_classes_have(model_type: str) -> None:
    config, model = small(model_type)
    ours = model_from_config({"model_type": model_type, **config}, name="small")
    linear = {
        path.rsplit(".", 1)[-1] for path, one in model.named_modules() if isinstance(one, torch.nn.Linear)
    }
    for target in sorted(linear & {*CLASS_TARGETS}) if ours.compression is None else ():
        try:
            theirs = trained(model, [target], 6)
        except ValueError:  # mixers that peft leaves as they are
            assert target == unadaptable(ours) == "out_proj"
            continue
        assert adapter_parameters(ours, 6, read_targets(ours, [target])) == theirs, target


def read_targets(model: ModelSpec, words: list[str]) -> tuple[str, ...]:
    """Our layers of words in a launch file."""
    fields = Fields("", {"target_modules": LocatedValue(words, 1)}, Overrides(), ("trl",))
    targets = adapted(fields, model)
    assert not fields.faults
    return targets


@pytest.mark.parametrize("model_type", some_of(TYPES, each=4, first=2))
def test_peft_finds_each_layer_of_every_type_by_the_name_that_is_written(model_type: str) -> None:
    config, model = small(model_type)
    ours = model_from_config({"model_type": model_type, **config}, name="small")
    if ours.compression is not None or model_type in ("afmoe", "beam"):
        return  # adapters of compressed keys are refused; these classes call a gate of attention gate_proj
    converted = {"gate_proj", "up_proj", "down_proj"} if ours.moe else set()
    there = {name for block in single_blocks(ours) for name in block} & {*LORA_TARGETS}
    words_of = {
        name: list(class_targets(ours, (name,))) for name in sorted(there - converted - {unadaptable(ours)})
    }
    theirs = trained_each(model, sorted({one for words in words_of.values() for one in words}), 6)
    for name, words in words_of.items():
        weights = sum(theirs[word] for word in words)
        assert weights == adapter_parameters(ours, 6, (name,)), (name, words)
        assert read_targets(ours, words) == (name,)


@pytest.mark.parametrize("model_type", some_of(TYPES, each=4, first=3))
def test_layers_that_return_several_tensors_are_those_that_peft_cannot_adapt(model_type: str) -> None:
    config, model = small(model_type)
    ours = model_from_config({"model_type": model_type, **config}, name="small")
    if ours.compression is not None:  # refused by ``launcher_rules``
        return
    own = {
        path.rsplit(".", 1)[-1]: one(torch.empty(3, one.in_features, device="meta"))
        for path, one in model.named_modules()
        if isinstance(one, torch.nn.Linear) and type(one).forward is not torch.nn.Linear.forward
    }
    several = {name for name, outputs in own.items() if isinstance(outputs, tuple)}
    assert several == {unadaptable(ours)} - {"", "out_proj"}


def test_peft_wraps_a_router_that_returns_several_tensors_but_no_step_runs() -> None:
    _, model = small("llama4_text")
    with torch.device("meta"):
        adapted = get_peft_model(
            copy.deepcopy(model), LoraConfig(r=2, target_modules=["router"], task_type="CAUSAL_LM")
        )
    with pytest.raises(AttributeError, match="'tuple' object has no attribute 'dtype'"):
        adapted(input_ids=torch.ones((1, 8), dtype=torch.long, device="meta"))


@pytest.mark.parametrize(
    "model_type", ["llama", "qwen3", "gemma2", "mixtral", "opt", "gptj", "mpt", "qwen3_next"]
)
def test_peft_adapts_as_many_weights_as_are_read_of_a_list_with_out_proj(model_type: str) -> None:
    config, model = small(model_type)
    ours = model_from_config({"model_type": model_type, **config}, name="small")
    words = ["q_proj", "out_proj"]
    targets = read_targets(ours, words)
    assert adapter_parameters(ours, 6, targets) == trained(model, words, 6)


def test_fsdp1_flattens_no_weights_of_8_bits() -> None:
    stored = torch.nn.Module()  # a frozen weight, as bitsandbytes stores it
    stored.weight = torch.nn.Parameter(torch.zeros(4, 4, dtype=torch.int8), requires_grad=False)
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(ValueError, match="Cannot flatten integer dtype tensors"):
            FullyShardedDataParallel(stored, device_id=torch.device("cpu"))
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("name", FUSED)
def test_peft_trains_as_many_weights_beside_fused_layers(name: str) -> None:
    config, names = FUSED[name]
    ours, model = built(config)
    for theirs, own in names.items():
        assert own in LORA_TARGETS
        assert adapter_parameters(ours, 6, (own,)) == trained(model, [theirs], 6), theirs


def test_peft_adapts_the_experts_of_mixtral_by_its_own_names_and_gate_and_up_together() -> None:
    config = {"model_type": "mixtral", **HEADS, "num_local_experts": 4, "num_experts_per_tok": 2}
    ours, model = built(config)
    for targets in (EXPERT_TARGETS, ("w2",), ("w1", "w3"), ("q_proj", "v_proj", *EXPERT_TARGETS, "gate")):
        assert target_fault(ours, targets) is None
        assert adapter_parameters(ours, 6, targets) == trained(model, list(targets), 6), targets
    for half in ("w1", "w3"):
        assert "together" in str(target_fault(ours, (half,)))
        with pytest.raises(ValueError, match="without also targeting"):
            trained(model, [half], 6)


def test_peft_adapts_both_layers_of_gpt_2_that_have_one_name() -> None:
    names = {"c_attn": ["linear_qkv"], "c_fc": ["linear_fc1"], "c_proj": ["linear_proj", "linear_fc2"]}
    ours, model = built({"model_type": "gpt2", "n_embd": 256, "n_head": 8, "n_layer": 3})
    for theirs, own in names.items():
        assert adapter_parameters(ours, 6, tuple(own)) == trained(model, [theirs], 6), theirs


@pytest.mark.parametrize("precision", ["int8", "nf4", "nf4-double"])
def test_bitsandbytes_keeps_as_many_bytes_of_every_layer(precision: BasePrecision) -> None:
    ours, model = built(CONFIGS["llama"])
    layer = model.model.layers[0]
    matrices = [part.weight for part in layer.modules() if isinstance(part, torch.nn.Linear)]
    theirs = sorted(kept_bytes(weight.shape, precision) for weight in matrices)
    assert sorted(base_bytes(one, precision) for one in quantized_layers(ours, "dense")) == theirs


def kept_bytes(shape: torch.Size, precision: BasePrecision) -> int:
    """Bytes of a matrix that bitsandbytes has quantised, with all tensors of its state."""
    weight, double = torch.randn(shape, dtype=torch.bfloat16), precision != "nf4"
    if precision == "int8":
        kept = functional.int8_vectorwise_quant(weight.half())[:2]  # Int8Params: CB and SCB
        return sum(one.numel() * one.element_size() for one in kept)
    whole, state = functional.quantize_4bit(
        weight, blocksize=64, quant_type="nf4", compress_statistics=double
    )
    tensors = [whole, state.absmax, state.code]
    if double:
        tensors += [state.offset, state.state2.absmax, state.state2.code]
    return sum(one.numel() * one.element_size() for one in tensors)


@pytest.mark.parametrize("elements", [4096, 256 * 640])
def test_8_bit_adam_keeps_as_many_bytes_of_every_tensor_as_are_priced(elements: int) -> None:
    weight = torch.nn.Parameter(torch.randn(elements))
    optimizer = bitsandbytes.optim.AdamW8bit([weight])
    weight.grad = torch.randn(elements)
    optimizer.step()
    state = optimizer.state[weight]
    tensors = [one for name, one in state.items() if name not in ("step", "qmap1", "qmap2")]
    kept = sum(one.numel() * one.element_size() for one in tensors)
    assert kept == optimizer_named("adamw-8bit").state_bytes * elements


def test_adam_over_weights_in_bf16_keeps_as_many_bytes_as_are_priced() -> None:
    weight = torch.nn.Parameter(torch.zeros(64, 48, dtype=torch.bfloat16))
    optimizer = torch.optim.AdamW([weight])
    weight.grad = torch.randn_like(weight)
    optimizer.step()
    kept = [one for name, one in optimizer.state[weight].items() if name != "step"]
    found = sum(one.numel() * one.element_size() for one in kept) / weight.numel()
    assert found == optimizer_named("adamw-pure-bf16").state_bytes == 2 + 2


@pytest.mark.parametrize("tied", [False, True])
def test_8_bit_adam_keeps_as_many_bytes_of_a_whole_model_as_are_priced(tied: bool) -> None:
    config = {**CONFIGS["llama"], "num_hidden_layers": 3, "vocab_size": 2048, "tie_word_embeddings": tied}
    options = {name: value for name, value in config.items() if name != "model_type"}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**options)).bfloat16()
    manager = bitsandbytes.optim.GlobalOptimManager.get_instance()
    manager.register_module_override(model.model.embed_tokens, "weight", {"optim_bits": 32})  # trainer.py
    optimizer = bitsandbytes.optim.AdamW8bit(model.parameters())
    for weight in model.parameters():
        weight.grad = torch.randn_like(weight)
    optimizer.step()
    kept = sum(
        one.numel() * one.element_size()
        for state in optimizer.state.values()
        for name, one in state.items()
        if isinstance(one, torch.Tensor) and name not in ("step", "qmap1", "qmap2")
    )
    ours = model_from_config(config, name="small")
    cluster = find_cluster("dgx-h100", num_nodes=1)
    workload = Workload(global_batch_size=8, seq_length=128, optimizer="adamw-8bit-bf16")
    problem = Problem(model=ours, cluster=cluster, workload=workload, launcher="trl")
    alone = Configuration(data_parallel_size=8, num_microbatches=1, stage_layers=(3,))
    priced = predict(problem, default_profile(cluster, "trl"), alone).stages[0].memory_bytes["optimizer"]
    # norms of 256, fewer than 4096 elements, keep 8 bytes where 2 + 8 / 256 are priced: two in a layer,
    # and the last beside a head of its own
    norms = 3 * 2 + int(not tied)
    assert kept - priced == pytest.approx(norms * 256 * (8 - 2 - 8 / 256), abs=2)


class Moved(TorchDispatchMode):  # type: ignore[misc]
    """Bytes that operators read and write, but products and views, which move none."""

    VIEWS = ("t", "view", "transpose", "_unsafe_view", "detach", "expand", "slice", "unsqueeze", "alias",
             "mm", "addmm")  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN204 - torch's own
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ not in self.VIEWS:
            leaves = torch.utils._pytree.tree_leaves((args, out))
            self.bytes += sum(one.nbytes for one in leaves if isinstance(one, torch.Tensor))
        return out


def of_graph(tokens: int, size: int, **options: bool) -> tuple[int, int, int, int]:
    """Products' FLOPs, bytes moved forward and backward, and bytes kept of one adapted layer of peft."""
    layer = torch.nn.Sequential(OrderedDict(o_proj=torch.nn.Linear(size, size, bias=False).bfloat16()))
    adapted = get_peft_model(layer, LoraConfig(r=8, target_modules=["o_proj"], **options)).train()
    weights = {one.untyped_storage().data_ptr() for one in adapted.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in weights and tensor.shape[0] == tokens:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    rows = torch.randn(tokens, size, dtype=torch.bfloat16, requires_grad=True)
    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    cast, products, forward = torch.autocast("cpu", torch.bfloat16), FlopCounterMode(display=False), Moved()
    with hooks, cast, products, forward:
        out = adapted(rows)
    with Moved() as backward:
        out.backward(torch.ones_like(out))
    held = sum(one.untyped_storage().nbytes() for one in kept.values())
    return products.get_total_flops(), forward.bytes, backward.bytes, held


def test_doras_norm_costs_what_it_costs_in_pefts_graph() -> None:
    tokens, size, rank = 512, 256, 8
    plain, normed = of_graph(tokens, size), of_graph(tokens, size, use_dora=True)
    flops, forward, backward, held = (after - before for before, after in zip(plain, normed, strict=True))
    # the unit matrix through both factors; ``_DECOMPOSED`` of adapters in fp32 (solver/cost/parameters.py)
    assert flops == 2 * size * size * rank * 2
    assert forward == pytest.approx((10 + 36) * size * size + 38 * tokens * size, rel=0.05)
    assert backward == pytest.approx(78 * tokens * size, rel=0.01)
    assert held == 4 * tokens * size  # the frozen product and the adapter's

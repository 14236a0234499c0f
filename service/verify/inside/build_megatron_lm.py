"""Megatron-LM builds ranks of a plan on fake CPU tensors, under torch's fake process group.

What ``pretrain_gpt.py`` does, by Megatron-LM's own functions: arguments, model with its gradient buffers,
optimizer, and the schedule of a step. Its local layers replace Transformer Engine, which needs a GPU; where
a GPU's kernel keeps other tensors than the local one, the kernel's stand-in keeps the former (``KERNELS``).
"""

from __future__ import annotations

import inspect
import logging
import os
import shlex
import sys
import types
import typing
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
import typing_extensions
from building import (
    Attention,
    Built,
    Case,
    Kept,
    Kernels,
    Norm,
    Turned,
    answer,
    bytes_of,
    converted,
    matrices,
    said,
    traced,
    without_data,
)
from packaging.version import Version
from torch.testing._internal.distributed.fake_pg import FakeStore

# Megatron-LM's wheel is for Python 3.12 and GPUs: these are put in place before it is imported.


class _Stream:
    """A stream or an event of the device; the CPU has one."""

    def __init__(self, *_given: object, **_options: object) -> None: ...

    def wait_stream(self, *_given: object) -> None: ...

    def wait_event(self, *_given: object) -> None: ...

    def record_event(self, *_given: object) -> _Stream:
        return self

    def synchronize(self) -> None: ...


def _weight_gradient(inputs: torch.Tensor, gradient: torch.Tensor, _sum: torch.Tensor) -> None:
    """Add a weight's gradient to its buffer inside the product: no tensor of its own."""
    Kernels.flops += 2.0 * inputs.numel() * gradient.shape[-1]


class _Gpu:
    """The GPU of the plan: Megatron-LM asks for its generation."""

    majors: typing.ClassVar = {"volta": 7, "turing": 7, "ampere": 8, "ada": 8, "hopper": 9, "blackwell": 10}
    major = 9


typing.override = typing_extensions.override  # type: ignore[attr-defined]
torch.compile = lambda function=None, **_options: function or (lambda given: given)
torch.cuda.get_device_capability = lambda *_device: (_Gpu.major, 0)
torch.cuda.get_device_properties = lambda *_device: types.SimpleNamespace(
    major=_Gpu.major, minor=0, multi_processor_count=132
)
torch.cuda.current_device = lambda: torch.device("cpu")
torch.cuda.Stream = torch.cuda.Event = _Stream
torch.cuda.current_stream = lambda *_device: _Stream()
torch.cuda.stream = lambda *_stream: nullcontext()
torch.cuda.synchronize = lambda *_device: None
torch.cuda.get_rng_state = lambda *_device, **_options: torch.zeros(1)
torch.Tensor.cuda = lambda self, *_given, **_options: self
torch.nn.Module.cuda = lambda self, *_given, **_options: self
sys.modules["fused_weight_gradient_mlp_cuda"] = types.SimpleNamespace(
    wgrad_gemm_accum_fp32=_weight_gradient, wgrad_gemm_accum_fp16=_weight_gradient
)  # type: ignore[assignment]
_type_of, _tensor = torch.Tensor.type, torch.tensor


def _unpinned(*given: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:  # noqa: ARG001
    """Return a tensor of the CPU unpinned, because only a GPU's driver can pin its memory."""
    return _tensor(*given, **options)


def _type(self: torch.Tensor, *given: Any, **options: Any) -> Any:
    found = _type_of(self, *given, **options)
    return found.replace("torch.", "torch.cuda.") if isinstance(found, str) else found


def _gather_objects(found: list[Any], given: Any, group: Any = None) -> None:  # noqa: ARG001
    found[:] = [given] * len(found)


torch.tensor = _unpinned
torch.Tensor.type = _type  # type: ignore[method-assign]
torch.nn.Module._apply = converted
torch.distributed.all_gather_object = _gather_objects

import megatron.core.utils as core_utils

core_utils._te_version = Version("2.9.0")

import megatron.core.models.common.embeddings.rope_utils as rope

rope.fused_apply_rotary_pos_emb = lambda given, *_angles, **_options: Turned.apply(given)

from megatron.core import parallel_state, tensor_parallel
from megatron.core.optimizer import get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import layers as linear_layers
from megatron.core.tensor_parallel import random as checkpoints
from megatron.core.transformer import mlp, torch_norm
from megatron.core.transformer import multi_latent_attention as latent
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.enums import AttnBackend
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.moe.experts import SequentialMLP
from megatron.core.transformer.moe.moe_layer import MoELayer
from megatron.training.argument_utils import core_transformer_config_from_args, gpt_config_from_args
from megatron.training.arguments import parse_args, validate_args
from megatron.training.models.gpt import GPTModelBuilder
from megatron.training.training import get_megatron_ddp_config, get_megatron_optimizer_config

# --------------------------------------------------------------------------------------------------
# What kernels of a GPU keep for the backward pass where the local ones keep other tensors.


def _norm(_class: type, config: Any, hidden_size: int, eps: float = 1e-5, **_options: Any) -> Norm:
    del eps
    found = Norm(hidden_size, centred=config.normalization == "LayerNorm")
    for weight in found.parameters():
        weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
    return found


def _attention(self: Any, query: Any, key: Any, value: Any, *_mask: Any, **_options: Any) -> Any:
    """Return Transformer Engine's flash or fused attention; its unfused one keeps scores.

    That keeps the softmax's output in 2 bytes, and with dropout what comes out of it and a mask
    (Transformer Engine, ``dot_product_attention/backends.py``, ``UnfusedDotProductAttention``).

    Values that are a slice of the joint projection are copied first, which lets go of the projection
    (Transformer Engine, ``dot_product_attention/utils.py``, ``get_qkv_layout``: strides of all three must
    be alike).
    """
    per_score = 0
    if self.config.attention_backend == AttnBackend.unfused:
        per_score = 5 if self.config.attention_dropout else 2
    output = Attention.apply(query.contiguous(), key.contiguous(), value.contiguous(), per_score)
    return output.view(*output.shape[:2], -1)


_attention_made = DotProductAttention.__init__


def _attention_of_any_width(self: Any, config: Any, *given: Any, **options: Any) -> None:
    """Build the local attention, which has no weights, without latent attention's widths and rings."""
    widths = ("k_channels", "v_channels")
    size, config.context_parallel_size = config.context_parallel_size, 1
    try:
        kept = {name: value for name, value in options.items() if name not in widths}
        _attention_made(self, config, *given, **kept)
    finally:
        config.context_parallel_size = size


def _halved(given: torch.Tensor, *_bias: Any, **_options: Any) -> Any:
    """Apply SwiGLU, keeping its input (Megatron-Core ``fused_bias_swiglu.py``, ``SwiGLUFunction``)."""
    return Kept.apply(given, (*given.shape[:-1], given.shape[-1] // 2), 0)


def _like(given: torch.Tensor, *_bias: Any, **_options: Any) -> Any:
    """Apply biased GELU in one kernel that keeps its input (``fused_bias_gelu.py``, ``GeLUFunction``)."""
    return Kept.apply(given, tuple(given.shape), 0)


def _dropped(given: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:  # noqa: ARG001
    """Apply dropout with a 1-byte mask per element on a GPU, factors of the input's type on a CPU.

    (torch ``aten/src/ATen/native/Dropout.cpp``: ``is_fused_kernel_acceptable`` asks for a GPU.)
    """
    return torch.native_dropout(given, p, training)[0] if training and p else given


_experts_run = SequentialMLP.forward


def _evenly(self: Any, tokens: torch.Tensor, _number: torch.Tensor, probabilities: torch.Tensor) -> Any:
    """Give experts equally many tokens (``BALANCED``): numbers of tensors without data are unknown."""
    each = types.SimpleNamespace(
        tolist=lambda: [len(tokens) // self.num_local_experts] * self.num_local_experts
    )
    return _experts_run(self, tokens, each, probabilities)


_ALONE: Any = types.SimpleNamespace(size=lambda: 1, rank=lambda: 0)  # a group of one rank


class _Whole(tensor_parallel.ColumnParallelLinear):
    """Transformer Engine's linear layer that every tensor rank holds whole (its mode "duplicated")."""

    def __init__(self, *given: Any, parallel_mode: str, tp_group: Any, **options: Any) -> None:
        del parallel_mode, tp_group
        super().__init__(*given, gather_output=False, tp_group=_ALONE, **options)


_latent_attention_made = latent.MLASelfAttention.__init__


def _latent_attention(self: Any, config: Any, submodules: Any, *given: Any, **options: Any) -> None:
    """Build latent attention with whole projections to the latents, as Transformer Engine has them.

    The local layers split them over tensor ranks (Megatron-Core ``gpt_layer_specs.py``,
    ``get_gpt_layer_local_spec``). Queries without latents have nothing to normalise, which Megatron-Core
    0.19.2 refuses of the local layers' norm.
    """
    own: dict[str, Any] = {"linear_q_down_proj": _Whole, "linear_kv_down_proj": _Whole}
    own |= {"q_layernorm": IdentityOp} if config.q_lora_rank is None else {}
    _latent_attention_made(self, config, replace(submodules, **own), *given, **options)


_reduce = linear_layers.reduce_from_tensor_model_parallel_region


def _reduced(given: torch.Tensor, group: Any = None) -> torch.Tensor:
    """Return a sum over ranks; of one rank the input, to which experts may add their bias in place."""
    return given if group is not None and group.size() == 1 else _reduce(given, group)


def _without_kernel(**_options: object) -> Any:
    """Return a context that changes nothing: no layer built here runs in 8 bits."""
    return nullcontext()


linear_layers.reduce_from_tensor_model_parallel_region = _reduced
# ``CheckpointWithoutOutput`` asks Transformer Engine whether it runs in 8 bits, and compiles C++ to let
# the output share the memory of its recomputation. Tensors without data stay released: the recomputation
# holds the bytes.
checkpoints.FP8GlobalStateManager = types.SimpleNamespace(is_fp8_enabled=lambda: False)
checkpoints.activation_recompute_forward = checkpoints.fp8_autocast = _without_kernel
checkpoints._get_share_storage = lambda: lambda _output, _recomputed: None
latent.TELinear = _Whole
latent.MLASelfAttention.__init__ = _latent_attention
torch_norm.WrappedTorchNorm.__new__ = _norm
SequentialMLP.forward = _evenly
DotProductAttention.__init__ = _attention_of_any_width
DotProductAttention.forward = _attention
mlp.bias_swiglu_impl = mlp.weighted_bias_swiglu_impl = _halved
mlp.bias_geglu_impl = mlp.weighted_bias_quick_geglu_impl = _halved
mlp.bias_gelu_impl = _like
torch.nn.functional.dropout = _dropped

LOCAL = {  # what the local layers do not have, or a CPU cannot run; no weight depends on it
    "transformer_impl": "local", "persist_layer_norm": False, "masked_softmax_fusion": False,
    "moe_grouped_gemm": False, "moe_permute_fusion": False, "moe_router_fusion": False,
    "tp_comm_overlap": False, "perform_initialization": False, "layernorm_zero_centered_gamma": False,
    "cross_entropy_loss_fusion": False, "fp8": None, "fp4": None,
}  # fmt: skip
OFFLOADED = "the optimizer is on the host: its memory cannot be separated from a GPU's, nor compared"
SIZES = inspect.signature(parallel_state.initialize_model_parallel).parameters  # named as its arguments
BALANCED = {"moe_expert_capacity_factor": 1.0, "moe_pad_expert_input_to_capacity": True}  # static shapes


class _Generators:
    """Random generators of the tensor-parallel ranks, which a step without data does not draw from."""

    def fork(self, *_name: object) -> Any:
        return nullcontext()

    def get_states(self) -> dict[str, Any]:
        return {}

    def set_states(self, _states: object) -> None: ...

    def add(self, *_seed: object) -> None: ...

    def is_initialized(self) -> bool:
        return True


# --------------------------------------------------------------------------------------------------
# A rank.


def build(case: Case) -> Iterator[Built]:
    """Yield every rank that is asked for; a step is traced of the first of those that are built alike."""
    logging.disable(logging.WARNING)
    args, config = configured(case)
    tensor_parallel.random.initialize_rng_tracker()
    tensor_parallel.random._CUDA_RNG_STATE_TRACKER = _Generators()
    tensor_parallel.random._set_cuda_rng_state = lambda *_given, **_options: None
    tensor_parallel.random._get_cuda_rng_state = lambda *_given, **_options: torch.zeros(1)
    like: dict[str, int] = {}
    for rank in case["ranks"]:
        torch.distributed.init_process_group(
            "fake", store=FakeStore(), rank=rank, world_size=args.world_size
        )  # nothing is sent
        os.environ["RANK"] = str(rank)
        args.rank = rank
        try:
            parallel_state.initialize_model_parallel(
                **{name: getattr(args, name) for name in SIZES if hasattr(args, name)},
                order="tp-cp-ep-pp-dp" if args.use_tp_pp_dp_mapping else "tp-cp-ep-dp-pp",
                create_gloo_process_groups=False,
            )
            with without_data():
                found, chunks, held = rank_of(args, config)
                alike = repr((found["layers"], found["parameters"], found["matrices"]))
                if like.setdefault(alike, rank) != rank:
                    found["like"] = like[alike]
                elif case["trace"]:
                    found |= step_of(args, config, chunks, held, case)
                    if args.optimizer_cpu_offload:
                        found.pop("peak_bytes", None)
            yield {"rank": rank, **found}
        finally:
            parallel_state.destroy_model_parallel()
            torch.distributed.destroy_process_group()


def configured(case: Case) -> tuple[Any, Any]:
    """Return the arguments as Megatron-LM validated them, and the configuration, both made local."""
    body = case["files"]["megatron_args.sh"].partition("MEGATRON_ARGS=(\n")[2].rpartition("\n)")[0]
    dry = ["--mock-data", "--tokenizer-type", "NullTokenizer", "--train-iters", "10", "--lr", "1e-4"]
    sys.argv = ["pretrain_gpt.py", *shlex.split(body, comments=True), *dry, "--clip-grad", "1.0"]
    os.environ.update(RANK="0", WORLD_SIZE=str(case["world_size"]), LOCAL_RANK="0")
    _Gpu.major = _Gpu.majors.get(case["architecture"], _Gpu.major)
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    os.environ.update(case["environment"])
    args = validate_args(parse_args())
    config = core_transformer_config_from_args(args)
    balanced = BALANCED if args.num_experts else {}
    for name, value in (LOCAL | balanced).items():
        setattr(args, name, value)
        setattr(config, name, value)
    config.apply_rope_fusion = args.apply_rope_fusion = not config.multi_latent_attention
    return args, config


def rank_of(args: Any, config: Any) -> tuple[Built, list[Any], list[torch.Tensor]]:
    """Return a rank's model, buffers and optimizer: their bytes, and the tensors other than weights."""
    builder = GPTModelBuilder(gpt_config_from_args(args, config))
    groups = ProcessGroupCollection.use_mpu_process_groups()
    chunks = builder.build_distributed_models(
        groups, ddp_config=get_megatron_ddp_config(args), wrap_with_ddp=True,
        use_megatron_fsdp=args.use_megatron_fsdp,
    )  # fmt: skip
    weights = [weight for chunk in chunks for weight in chunk.parameters()]
    layers = [layer for chunk in chunks for layer in chunk.module.module.decoder.layers]
    buffers = [
        one.grad_data for chunk in chunks for one in (*chunk.buffers, *chunk.expert_parallel_buffers)
    ]
    found: Built = {
        "stage": parallel_state.get_pipeline_model_parallel_rank(),
        "layers": [len(chunk.module.module.decoder.layers) for chunk in chunks],
        "kinds": ["moe" if isinstance(layer.mlp, MoELayer) else "dense" for layer in layers],
        "parameters": sum(weight.numel() for weight in weights),
        "matrices": matrices(
            tuple(weight.shape)
            for layer in layers
            for name, weight in layer.named_parameters()
            if "router" not in name and "gate_weight" not in name
        ),
        "weight_bytes": bytes_of(weights),
        "gradient_bytes": sum(one.numel() * one.element_size() for one in buffers),
    }
    options, overrides = get_megatron_optimizer_config(args)
    options.timers = None
    optimizer = get_megatron_optimizer(
        options, chunks, config_overrides=overrides, use_gloo_process_groups=False
    )
    if args.optimizer_cpu_offload:
        return found | {"uncompared": OFFLOADED}, chunks, buffers
    states = optimizer_states(optimizer, weights)
    found["optimizer_bytes"] = bytes_of(states)
    return found, chunks, [*buffers, *states]


def optimizer_states(optimizer: Any, weights: list[Any]) -> list[torch.Tensor]:
    """Return fp32 copies and moments, as the optimizer makes them in its first step."""
    model = {weight.untyped_storage()._cdata for weight in weights}
    held: list[torch.Tensor] = []
    for one in getattr(optimizer, "chained_optimizers", [optimizer]):
        if one.optimizer is None:
            continue
        one.init_state_fn(one.optimizer, one.config)
        held += [weight for group in one.optimizer.param_groups for weight in group["params"]]
        held += [
            part
            for state in one.optimizer.state.values()
            for part in state.values()
            if torch.is_tensor(part)
        ]
    return [part for part in held if part.untyped_storage()._cdata not in model]


def step_of(args: Any, config: Any, chunks: list[Any], held: list[torch.Tensor], case: Case) -> Built:
    """Return the schedule of a step, with as many micro-batches as its peak needs."""
    count, length, batch = case["trace"], args.seq_length, args.micro_batch_size

    def batches() -> Iterator[dict[str, torch.Tensor]]:
        while True:
            yield {
                **{
                    name: torch.zeros(batch, length, dtype=torch.int64)
                    for name in ("tokens", "labels", "at")
                },
                "mask": torch.ones(batch, length),
            }

    def forward(data: Iterator[dict[str, torch.Tensor]], model: Any) -> tuple[Any, Any]:
        """Run as ``forward_step`` of ``pretrain_gpt.py``; the memory tracker cannot look at the wrapper."""
        one = next(data)
        output = model.module(one["tokens"], one["at"], None, labels=one["labels"], loss_mask=one["mask"])

        def loss(values: Any) -> tuple[Any, Any, dict[str, Any]]:
            total = (values.view(-1).float() * one["mask"].view(-1)).sum()
            return total, torch.tensor(length * batch, dtype=torch.int), {"lm loss": total.detach()}

        return output, loss

    config.timers = config.grad_scale_func = config.finalize_model_grads_func = None
    config.grad_sync_func = config.param_sync_func = None
    config.no_sync_func = nullcontext
    for chunk in chunks:  # what gathers and reduces works in the buffers that there are
        if chunk.ddp_config.overlap_param_gather:
            chunk.disable_forward_pre_hook(param_sync=False)
        for group in (*chunk.bucket_groups, *chunk.expert_parallel_bucket_groups):
            group.is_last_microbatch = False
    several = len(chunks) > 1

    def step() -> None:
        get_forward_backward_func()(
            forward_step_func=forward, data_iterator=[batches() for _ in chunks] if several else batches(),
            model=chunks if several else chunks[0], num_microbatches=count, seq_length=length,
            micro_batch_size=batch, decoder_seq_length=length, forward_only=False,
        )  # fmt: skip

    try:
        return traced(step, [*(chunk.module for chunk in chunks), *held], count)
    except Exception as error:  # noqa: BLE001 - what is built stays, only the step is not traced
        return {"untraced": said(error)}


if __name__ == "__main__":
    answer(build)

"""DeepSpeed builds ranks of a plan on fake CPU tensors, under torch's fake process group, and runs a step.

``deepspeed.initialize`` over the exported JSON, with pipeline, tensor ranks and recomputation from the
exported module of values; then the engine's own ``backward``, ``step`` or ``train_batch``. The model is
what the training script would make: transformers' class for these facts, with flash attention. No operator
of DeepSpeed's is compiled; AdamW is torch's.
"""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from itertools import repeat
from types import SimpleNamespace
from typing import Any

os.environ |= {"DS_ACCELERATOR": "cpu", "DS_BUILD_OPS": "0", "LOCAL_SIZE": "1", "DS_SKIP_CUDA_CHECK": "1"}

import torch
from building import (
    OFFLOADED,
    Built,
    Case,
    answer,
    apart,
    bytes_of,
    converted,
    matrices,
    said,
    traced,
    without_data,
)
from hugging_face import joined, unsharded_model
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

torch.distributed.init_process_group(
    "fake", store=FakeStore(), rank=0, world_size=1
)  # no MPI is looked for
import deepspeed
from deepspeed.accelerator import get_accelerator
from deepspeed.moe.layer import MoE
from deepspeed.moe.utils import configure_moe_param_groups, is_moe_param
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from deepspeed.runtime.pipe.engine import PipelineEngine
from deepspeed.runtime.pipe.schedule import ReduceGrads
from deepspeed.runtime.zero import partition_parameters, partitioned_param_coordinator, stage3
from deepspeed.utils import groups
from transformers.models.llama.modeling_llama import LlamaConfig, LlamaMLP

torch.distributed.destroy_process_group()
nn.Module._apply = converted
import_module("deepspeed.comm.torch").build_shm_op = lambda: None  # no operator is compiled
for module in (partition_parameters, partitioned_param_coordinator, stage3):
    module.assert_ints_same_as_other_ranks = lambda _ints: None  # there are no others


def _number(given: torch.Tensor) -> Any:
    """Return norms and overflows of gradients without data: always zero, that is, valid."""
    try:
        return torch.Tensor.item(given)
    except DataDependentOutputException:
        return 0.0


FakeTensor.item = _number
FakeTensor.__bool__ = lambda self: bool(_number(self))
FakeTensor.__float__ = lambda self: float(_number(self))
get_accelerator().available_memory = lambda *_device: 2**60  # buffers are flattened on the GPU

EXPERTS = "DeepSpeed's gate routes tokens by their values, and this build has none"


def build(case: Case) -> Iterator[Built]:
    """Yield every rank that is asked for; a step is traced of the first of those that are built alike."""
    like: dict[str, int] = {}
    for rank in case["ranks"]:
        found = apart(rank_of, case, rank, like)
        if "untraced" not in found:
            like.setdefault(alike(found), rank)
        yield {"rank": rank, **found}


def alike(found: Built) -> str:
    """Return the key that ranks share if they are traced once."""
    return repr([found.get(name) for name in ("layers", "parameters", "weight_bytes", "optimizer_bytes")])


def rank_of(case: Case, rank: int, like: Mapping[str, int]) -> Built:
    """Return the bytes that a rank of the engine holds, and a step; ``like``: ranks traced before."""
    os.environ.update(
        RANK=str(rank), LOCAL_RANK="0", WORLD_SIZE=str(case["world_size"]),
        MASTER_ADDR="localhost", MASTER_PORT="29500",
    )  # fmt: skip
    torch.distributed.init_process_group(
        "fake", store=FakeStore(), rank=rank, world_size=case["world_size"]
    )
    deepspeed.init_distributed(verbose=False)
    plan: dict[str, Any] = {}
    exec(case["files"]["deepspeed_plan.py"], plan)  # noqa: S102 - the file that the user's script imports
    mpu, tensor_ranks = None, plan["TOPOLOGY"]["num_mp"]
    if tensor_ranks > 1:
        groups._init_tp_mesh_device(tensor_model_parallel_size=tensor_ranks)
        mpu = groups  # or DeepSpeed takes all ranks for data-parallel ones
    with without_data():
        made = pipelined(case, plan) if "PIPELINE" in plan else unpipelined(case, plan)
        engine = deepspeed.initialize(
            model=made.model, config=config_of(case, plan), optimizer=torch.optim.AdamW, mpu=mpu,
            model_parameters=groups_of(made.model),
        )[0]  # fmt: skip
        if mpu is not None:  # every tensor rank reads the same
            engine.first_dataloader_check.remove()
        found = {"stage": made.stage, "layers": [len(made.layers)], **built(engine, made)}
        if "offload" in case["files"]["ds_config.json"]:
            apart_from_states = {name: one for name, one in found.items() if not name.endswith("_bytes")}
            return apart_from_states | {"untraced": OFFLOADED}
        if plan.get("EXPERTS", {}).get("ep_size", 1) > 1:
            return found | {"untraced": EXPERTS}
        if alike(found) in like:
            return found | {"like": like[alike(found)]}
        return found | step_of(engine, made.step(engine), case)


def config_of(case: Case, plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plan's JSON, for as many micro-batches as its peak needs."""
    config: dict[str, Any] = json.loads(case["files"]["ds_config.json"])
    micro, count = config["train_micro_batch_size_per_gpu"], case["num_microbatches"]
    sizes = {
        "gradient_accumulation_steps": count,
        "train_batch_size": micro * count * plan["TOPOLOGY"]["num_dp"],
    }
    kept = {name: one for name, one in config["zero_optimization"].items() if "offload" not in name}
    return config | sizes | {"steps_per_print": None, "zero_optimization": kept}


# --------------------------------------------------------------------------------------------------
# The model as a training script hands it over: whole, or as layers of a pipeline.


def unpipelined(case: Case, plan: Mapping[str, Any]) -> SimpleNamespace:
    """Return transformers' model, and a step of the engine over it."""
    model = unsharded_model(case["model"], "cpu")
    if plan.get("EXPERTS", {}).get("ep_size", 1) > 1:
        for layer in model.model.layers:
            if hasattr(layer.mlp, "experts"):
                layer.mlp = experts_of(model.config, plan)
    if plan["RECOMPUTE_EVERY_LAYER"]:
        model.gradient_checkpointing_enable()
    model.train()
    tokens = torch.zeros(case["micro_batch_size"], case["seq_length"], dtype=torch.int64)

    def step(engine: Any) -> Callable[[Callable[[], None]], None]:
        reduce, late = engine.allreduce_gradients, engine.zero_optimization_partition_gradients()

        def run(look: Callable[[], None]) -> None:
            def reduced(**options: Any) -> None:
                """Look after the reduction at shards of gradients, before it at whole ones."""
                _ = late or look()
                reduce(**options)
                _ = late and look()

            engine.allreduce_gradients = reduced
            for _ in range(engine.gradient_accumulation_steps()):
                engine.backward(engine(input_ids=tokens, labels=tokens, use_cache=False).loss)
                engine.step()

        return run

    return SimpleNamespace(model=model, layers=model.model.layers, stage=0, step=step)


def groups_of(model: nn.Module) -> list[Any]:
    """Return parameters as the optimizer takes them: experts that ranks share out apart."""
    weights = list(model.parameters())
    return configure_moe_param_groups(weights) if any(map(is_moe_param, weights)) else weights


def experts_of(config: Any, plan: Mapping[str, Any]) -> MoE:
    """Return DeepSpeed's own experts, of which each rank has its share."""
    return MoE(
        config.hidden_size,
        LlamaMLP(
            LlamaConfig(hidden_size=config.hidden_size, intermediate_size=plan["EXPERT_FFN_HIDDEN_SIZE"])
        ),
        **plan["EXPERTS"],
    )


class Embedding(nn.Embedding):
    """Tokens to hidden states."""


class TransformerLayer(nn.Module):
    """A layer of transformers' model; the plan's stages are balanced by classes of this name."""

    def __init__(self, layers: Mapping[int, nn.Module], index: int, rotary: nn.Module) -> None:
        super().__init__()
        self.layer = layers[index]
        self.rotary = rotary

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        found = self.layer(
            hidden, position_embeddings=self.rotary(hidden, torch.arange(hidden.shape[1]).unsqueeze(0))
        )
        return found if torch.is_tensor(found) else found[0]


def _loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the loss as transformers' ``ForCausalLMLoss``, with labels that were shifted before."""
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


def pipelined(case: Case, plan: Mapping[str, Any]) -> SimpleNamespace:
    """Return the same model as layers of DeepSpeed's pipeline, and a step of its engine."""
    model = unsharded_model(case["model"], "cpu")
    tied = model.config.tie_word_embeddings

    def ends(kind: type, *given: Any, **options: Any) -> LayerSpec:
        return TiedLayerSpec("embedding", kind, *given, **options) if tied else LayerSpec(kind, *given)

    sizes = (model.config.vocab_size, model.config.hidden_size)
    layers, rotary = dict(enumerate(model.model.layers)), model.model.rotary_emb
    specs = [
        ends(Embedding, *sizes),
        *(LayerSpec(TransformerLayer, layers, index, rotary) for index in layers),
        model.model.norm,
        ends(
            Embedding, *sizes, forward_fn=lambda module, hidden: nn.functional.linear(hidden, module.weight)
        )
        if tied
        else LayerSpec(nn.Linear, *sizes[::-1], bias=False),
    ]
    module = PipelineModule(specs, loss_fn=_loss, **plan["PIPELINE"])
    layers.clear()  # a script's specifications make the layers of their own stage alone
    mine = [one.layer for one in module.forward_funcs if isinstance(one, TransformerLayer)]
    tokens = torch.zeros(case["micro_batch_size"], case["seq_length"], dtype=torch.int64)
    shape = [*tokens.shape, model.config.hidden_size]
    PipelineEngine._recv_tensor_meta = lambda self, _stage: self._allocate_or_extend_buffers(
        0, shape, self.get_data_types()[0]
    )  # as from the stage before it
    PipelineEngine._send_tensor_meta = lambda *_given: None

    def step(engine: Any) -> Callable[[Callable[[], None]], None]:
        reduce = engine._exec_reduce_grads

        def run(look: Callable[[], None]) -> None:
            def reduced() -> None:
                look()
                reduce()

            engine._INSTRUCTION_MAP = {**engine._INSTRUCTION_MAP, ReduceGrads: lambda *_self: reduced()}
            engine.train_batch(repeat((tokens, tokens)))

        return run

    return SimpleNamespace(model=module, layers=mine, stage=module.stage_id, step=step)


# --------------------------------------------------------------------------------------------------
# What the engine holds.


def built(engine: Any, made: SimpleNamespace) -> Built:
    """Return parameters and bytes of states, as the engine has made them."""
    weights = list(engine.module.parameters())
    parts = [getattr(weight, "ds_tensor", weight) for weight in weights]  # ZeRO-3's shards
    optimizer = engine.optimizer.optimizer  # the script's own, over what this rank updates
    updated = getattr(engine.optimizer, "fp32_partitioned_groups_flat", None) or [
        one for group in optimizer.param_groups for one in group["params"]
    ]
    like = [torch.zeros_like(one).requires_grad_() for one in updated]
    for one in like:
        one.grad = torch.zeros_like(one)
    moments_of = type(optimizer)(like)
    moments_of.step()
    moments = [
        one
        for state in moments_of.state.values()
        for one in state.values()
        if torch.is_tensor(one) and one.dim()
    ]
    return {
        "parameters": sum(getattr(weight, "ds_numel", weight.numel()) for weight in weights),
        "matrices": matrices(joined(made.layers)),
        "weight_bytes": bytes_of(parts),
        "optimizer_bytes": bytes_of([*updated, *moments]),
    }


def step_of(engine: Any, step: Callable[[Callable[[], None]], None], case: Case) -> Built:
    """Return the most bytes of gradients, and a step as the script runs it."""
    if not case["trace"]:
        return {}
    seen: list[int] = []
    try:
        step(lambda: seen.append(bytes_of_views(gradients(engine))))
        found: Built = {"gradient_bytes": max(seen)}
        gc.collect()  # what was made for other stages
        states = [one for one in gc.get_objects() if isinstance(one, FakeTensor)]
        return found | traced(lambda: step(lambda: None), states, engine.gradient_accumulation_steps())
    except Exception as error:  # noqa: BLE001 - what is built stays, only the step is not traced
        return {"untraced": said(error)}


def bytes_of_views(given: Iterator[torch.Tensor]) -> int:
    """Return the bytes of tensors that may be parts of larger ones, each counted once."""
    found = {(one.untyped_storage()._cdata, one.storage_offset()): one for one in given}
    return sum(one.numel() * one.element_size() for one in found.values())


def gradients(engine: Any) -> Iterator[torch.Tensor]:
    """Yield the gradients of the engine's weights: their own, and what its optimizer adds up apart.

    Of a weight that is cut between ranks ZeRO-2 keeps the whole gradient, of which this is the rank's part;
    the peak has all of it.
    """
    shards = getattr(engine.optimizer, "grad_partitions_flat_buffer", None)
    if shards is not None:
        yield shards
        return
    for weight in engine.module.parameters():
        for grad in (weight.grad, getattr(weight, "grad_accum", None)):
            if grad is not None:
                yield grad
    for name in ("averaged_gradients", "fp32_groups_gradients_flat"):
        yield from tensors(getattr(engine.optimizer, name, None))


def tensors(given: Any) -> Iterator[torch.Tensor]:
    """Yield all of a nested list or mapping."""
    if torch.is_tensor(given):
        yield given
    elif isinstance(given, Mapping):
        yield from tensors(list(given.values()))
    elif isinstance(given, list | tuple):
        for one in given:
            yield from tensors(one)


if __name__ == "__main__":
    answer(build)

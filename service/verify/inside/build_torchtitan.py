"""torchtitan builds ranks of a plan on fake CPU tensors, under torch's fake process group, and runs a step.

The trainer's own steps: mesh, the model's update, its pipelining or parallelize function, optimizer, loss
and schedule. Its default backend for sharding needs a newer torch: ``partial_dtensor`` is taken. Blocks are
compiled up to the partitioner that decides what the forward pass keeps, and then run operator by operator:
kernels need a GPU. FlexAttention, which is one of them, is replaced by the tensors that it keeps.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from building import (
    OFFLOADED,
    Built,
    Case,
    answer,
    apart,
    attention,
    bytes_of,
    compiled,
    gathered,
    gradients,
    matrices,
    said,
    shards,
    traced,
    without_data,
)
from torch.distributed.pipelining import stage as stages
from torch.distributed.tensor import Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

os.environ |= {"HF_ASSETS_PATH": "./tests/assets/tokenizer", "DATASET": "c4"}  # which the plan asks for
torch._utils._get_available_device_type = lambda: "cpu"  # or torchtitan takes CUDA for granted
from torchtitan.components.quantization import float8
from torchtitan.config.manager import ConfigManager
from torchtitan.distributed import activation_checkpoint, utils
from torchtitan.distributed import compile as compiling
from torchtitan.distributed.parallel_dims import ParallelDims
from torchtitan.models.common.attention import FlexAttention
from torchtitan.models.common.token_dispatcher import AllToAllTokenDispatcher

float8.has_cuda_capability = lambda *_capability: True  # as on the GPUs of the plan
compiling._maybe_regional_inductor_backend = lambda _model, backend: backend


def _flex_attention(self: Any, q_BLNH: Any, k_BLNH: Any, v_BLNH: Any, **_options: Any) -> Any:
    """Return FlexAttention over (batch, sequence, heads, width); shardings are stated by these names."""
    del self
    swapped = (given.transpose(1, 2) for given in (q_BLNH, k_BLNH, v_BLNH))
    return attention(*swapped).transpose(1, 2)


class Boundary:
    """The transfer from stage to stage: everywhere that of stage 0, which is built first.

    The runtime runs each stage once to learn that, and sends it to the next one
    (``PipelineStage._send_meta`` of torch); here there is no next one. Gradients have the shapes of their
    tensors.
    """

    metas: tuple[Any, ...] = ()

    def told(self: Any, source: int) -> Any:
        """Replace ``_recv_meta`` of torch's ``PipelineStage``."""
        if source < self.stage_index:
            return stages._StageForwardMeta(forward_metas=Boundary.metas)
        return stages._StageBackwardMeta(
            backward_metas=tuple(replace(meta, requires_grad=False) for meta in self._stage_meta.outputs)
        )

    def tell(self: Any, meta: Any, _stage: int) -> None:
        """Replace ``_send_meta`` of torch's ``PipelineStage``."""
        del self
        Boundary.metas = getattr(meta, "forward_metas", Boundary.metas)


_dispatch = AllToAllTokenDispatcher.dispatch


def _dispatch_noted(self: Any, x_TD: Any, scores: Any, chosen: Any, counts: Any) -> Any:
    """Note how many tokens this rank sends to experts."""
    self.sent = chosen.numel()
    return _dispatch(self, x_TD, scores, chosen, counts)


def _evenly(self: Any, _counts: Any, exchanged: Any, ep_size: int) -> tuple[Any, list[int], list[int]]:
    """Return equal numbers of tokens to and from every expert rank: the real numbers are data."""
    each = [self.sent // ep_size + (rank < self.sent % ep_size) for rank in range(ep_size)]
    return exchanged.reshape(-1), each, each


AllToAllTokenDispatcher.dispatch = _dispatch_noted
AllToAllTokenDispatcher._sync_token_count_exchange = _evenly
FlexAttention.forward = _flex_attention
_saved = activation_checkpoint._get_default_save_ops
activation_checkpoint._get_default_save_ops = lambda: _saved() | {torch.ops.standin.attention.default}
stages.PipelineStage._recv_meta = Boundary.told
stages.PipelineStage._send_meta = Boundary.tell
stages.PipelineStage._warmup_forward_vote = lambda *_given, **_options: None
stages.PipelineStage._warmup_backward_result = lambda *_given, **_options: SimpleNamespace(item=lambda: 0)


def build(case: Case) -> Iterator[Built]:
    """Yield every rank that is asked for."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in case["files"].items():
            (Path(folder) / name).write_text(text)
        sys.path.insert(0, folder)
        importlib.invalidate_caches()
        like: dict[str, int] = {}
        for rank in case["ranks"]:
            found, Boundary.metas = apart(rank_of, case, rank, like)
            if "untraced" not in found:
                like.setdefault(alike(found), rank)
            yield {"rank": rank, **found}


def alike(found: Built) -> str:
    """Return the key that ranks share if they are traced once."""
    return repr((found["layers"], found["parameters"], found["matrices"], found["shard_bytes"]))


def configured(case: Case) -> Any:
    """Return the plan's configuration, for a CPU and as many micro-batches as its peak needs."""
    words = case["files"].get("torchtitan_words.json", "[]")  # of the command that is verified
    config: Any = ConfigManager().parse_args(
        ["--module", "torchtitan_plan", "--config", "plan", *json.loads(words)]
    )
    config.parallelism.spmd_backend = "partial_dtensor"
    config.compile.backend = compiled
    config.compile.enable_async_tensor_parallel = False  # other collectives, the same tensors
    if config.parallelism.pipeline_parallel_degree > 1:
        config.training.local_batch_size = (
            config.parallelism.pipeline_parallel_microbatch_size * case["num_microbatches"]
        )
    return config


def rank_of(case: Case, rank: int, like: Mapping[str, int]) -> tuple[Built, Any]:
    """Return a rank's chunks and what they hold, and what it sends to the next stage.

    ``like``: ranks that were traced before.
    """
    torch.distributed.init_process_group(
        "fake", store=FakeStore(), rank=rank, world_size=case["world_size"]
    )
    config = configured(case)
    utils.set_spmd_backend(config.parallelism.spmd_backend)
    dims = ParallelDims.from_config(config.parallelism, case["world_size"])
    dims.build_mesh()
    parts, schedule = parallelized(config, dims)
    for part in parts:
        if part.enable_weight_tying:  # again, as ``Decoder.init_states`` does
            part.tok_embeddings.weight = part.lm_head.weight
    weights = [weight for part in parts for weight in part.parameters()]
    found: Built = {
        "stage": dims.get_mesh("pp").get_local_rank() if dims.pp > 1 else 0,
        "layers": [len(part.layers) for part in parts],
        "parameters": sum(held(weight) for weight in weights),
        "matrices": matrices(shape for part in parts for shape in shapes(part)),
        "whole_matrices": True,
        "shard_bytes": bytes_of(weights),
    }
    if config.training.enable_cpu_offload:
        del found["shard_bytes"]
        found["untraced"] = OFFLOADED
    elif alike(found) in like:
        found["like"] = like[alike(found)]
    elif case["trace"]:
        with without_data():
            for part in parts:
                part.to_empty(device="cpu")
            found |= step_of(config, parts, schedule, case)
    return found, Boundary.metas


def step_of(config: Any, parts: list[Any], schedule: Any, case: Case) -> Built:
    """Return the bytes of states, and a step of the trainer."""
    training = config.training
    count = case["trace"]
    loss_of = with_head(config.loss.build(compile_config=config.compile), parts)
    tokens = torch.zeros(training.local_batch_size, training.seq_len, dtype=torch.int64)
    total = torch.ones(())
    options = {"positions": torch.zeros_like(tokens)}

    def step() -> None:
        if schedule is None:
            for _ in range(count):
                loss, _ = loss_of(parts[0](tokens, **options), tokens, total, **options)
                held.look()
                loss.backward()
            return
        first, last = (
            any(getattr(one, name) for one in staged(schedule)) for name in ("is_first", "is_last")
        )
        schedule.step(  # of a whole batch: torch 2.13 takes no lists of micro-batches yet
            *[tokens] * first, target=tokens if last else None, losses=[] if last else None,
            loss_kwargs={"global_valid_tokens": total}, return_outputs=False, **options,
        )  # fmt: skip

    held = PeakMemoryTracker(parts)
    try:
        step()
        held.look()
        optimizers = config.optimizer.build(model_parts=parts)
        optimizers.step()
        optimizers.zero_grad()
        states = [
            one for each in optimizers for state in each.state.values() for one in state.values()
            if one.dim()
        ]  # fmt: skip
        found = held.bytes_by_term(bytes_of(states), config.parallelism)
        return found | traced(step, [*parts, *states], count)
    except Exception as error:  # noqa: BLE001 - what is built stays, only the step is not traced
        return {"untraced": said(error)}


class PeakMemoryTracker:
    """Shards, gathered weights and gradients when a rank holds most of each.

    A pipeline's runtime keeps weights gathered and adds whole gradients up until it reduces them; elsewhere
    gradients are reduced with each pass, and weights that stay gathered are whole behind the forward pass.
    """

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts
        self.seen: list[Built] = []
        self.has_reported = False  # after that nothing is read: tracing a step takes memory of its own
        reduce = stages.PipelineStage.perform_reduce_grad

        def perform_reduce_grad(stage: Any, factor: int) -> None:
            """Look, and reduce."""
            self.look()
            reduce(stage, factor)

        stages.PipelineStage.perform_reduce_grad = perform_reduce_grad

    def look(self) -> None:
        """Note the bytes held now, until they are reported."""
        if self.has_reported:
            return
        self.seen.append(
            {
                name: bytes_of(one for part in self.parts for one in tensors(part))
                for name, tensors in (("shards", shards), ("gathered", gathered), ("gradients", gradients))
            }
        )

    def bytes_by_term(self, states: int, parallelism: Any) -> Built:
        """Return the most bytes held, by the terms of the prices.

        Of fp32 weights that are not shards two bytes are the model's, two the optimizer's copy; where
        gathered weights stay, these are the model's, and the fp32 shards the optimizer's copy of them.
        """
        self.has_reported = True
        most = {name: max(one[name] for one in self.seen) for name in self.seen[0]}
        copies = 0
        if parallelism.data_parallel_shard_degree * parallelism.context_parallel_degree == 1:
            weights = copies = most["shards"] // 2
        elif parallelism.fsdp_reshard_after_forward == "never":
            weights, copies = most["gathered"], most["shards"]
        else:
            kept = parallelism.pipeline_parallel_degree > 1
            weights = most["shards"] + most["gathered"] * kept
        return {
            "weight_bytes": weights,
            "gradient_bytes": most["gradients"],
            "optimizer_bytes": states + copies,
        }


def staged(schedule: Any) -> list[Any]:
    """Return the stages of this rank."""
    return getattr(schedule, "_stages", None) or [schedule._stage]


def shapes(part: Any) -> Iterator[tuple[int, ...]]:
    """Yield the shapes of layers' matrices before any split, per expert; gate and up are one product."""
    for name, weight in part.layers.named_parameters():
        if weight.dim() > 1 and ".w3" not in name and "router" not in name:
            *experts, rows, columns = weight.shape
            yield from repeat((rows * (2 if ".w1" in name else 1), columns), *experts or (1,))


def held(weight: Any) -> int:
    """Return the elements of a weight that a tensor or expert rank holds before FSDP shards them."""
    shape, mesh = list(weight.shape), getattr(weight, "device_mesh", None)
    for axis, placement in zip(mesh.mesh_dim_names, weight.placements, strict=True) if mesh else ():
        if axis in ("tp", "ep") and isinstance(placement, Shard | _StridedShard):
            shape[placement.dim] = -(-shape[placement.dim] // mesh[axis].size())
    return math.prod(shape)


def parallelized(config: Any, dims: Any) -> tuple[list[Any], Any]:
    """Return this rank's chunks as the trainer makes them, and their pipeline's schedule if any."""
    spec = config.model_spec
    spec.model.update_from_config(config=config)
    with torch.device("meta"):
        model = spec.model.build()
    given = {
        "parallel_dims": dims, "training": config.training, "parallelism": config.parallelism,
        "compile_config": config.compile, "ac_config": config.activation_checkpoint, "dump_folder": "",
    }  # fmt: skip
    if dims.pp == 1:
        return [spec.parallelize_fn(model, **given)], None
    loss = config.loss.build(compile_config=config.compile)
    schedule, parts, _first, last = spec.pipelining_fn(
        model, **given, device=torch.device("cpu"), model_config=spec.model,
        parallelize_fn=spec.parallelize_fn, loss_fn=loss,
    )  # fmt: skip
    if last:
        with_head(loss, parts)
    return list(parts), schedule


def with_head(loss: Any, parts: Sequence[Any]) -> Any:
    """Return a loss with the head that it multiplies chunks by, where it has one (``Trainer.__init__``)."""
    if hasattr(loss, "set_lm_head") and getattr(parts[-1], "lm_head", None) is not None:
        loss.set_lm_head(parts[-1].lm_head)
        parts[-1]._skip_lm_head = True
    return loss


if __name__ == "__main__":
    answer(build)

"""Megatron-LM 0.19 builds every rank of a plan on the meta device, under torch's fake process group.

What ``pretrain_gpt.py`` or ``pretrain_hybrid.py`` builds, by Megatron-LM's own builders, from the exported
arguments; instead of Transformer Engine's layers, which need a GPU, its own local ones of the same shapes.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import types
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import mamba_kernels  # noqa: F401 - first: stand-ins for what a GPU's compiler builds
import torch
from megatron_lm import configured, facts_of  # first: it makes the rest importable
from protocol import Case, Seen, serve
from torch.testing._internal.distributed.fake_pg import FakeStore

torch.cuda.current_device = lambda: "meta"  # where weights are put
torch.cuda.Stream = lambda *_args, **_options: None
torch.Tensor.cuda = lambda self, *_args, **_options: self

from megatron.core import parallel_state, tensor_parallel  # noqa: E402
from megatron.core.enums import ModelType  # noqa: E402
from megatron.core.models.hybrid import hybrid_block  # noqa: E402
from megatron.core.post_training.modelopt.hybrid import model_specs as hybrid_specs  # noqa: E402
from megatron.core.process_groups_config import ProcessGroupCollection  # noqa: E402
from megatron.core.ssm import mamba_mixer  # noqa: E402
from megatron.core.transformer.dot_product_attention import DotProductAttention  # noqa: E402
from megatron.core.transformer.moe.experts import SequentialMLP  # noqa: E402
from megatron.core.transformer.moe.moe_layer import MoELayer  # noqa: E402
from megatron.core.transformer.torch_norm import WrappedTorchNorm  # noqa: E402
from megatron.training.argument_utils import gpt_config_from_args, hybrid_config_from_args  # noqa: E402
from megatron.training.models.dist_utils import build_virtual_pipeline_stages  # noqa: E402
from megatron.training.models.gpt import GPTModelBuilder  # noqa: E402
from megatron.training.models.hybrid import HybridModelBuilder  # noqa: E402

mamba_mixer.get_cuda_rng_tracker = lambda: types.SimpleNamespace(fork=contextlib.nullcontext)
_attention = DotProductAttention.__init__


def attention_of_any_width(self: Any, *args: Any, **options: Any) -> None:
    """The local attention, which has no weights, told nothing of latent attention's widths."""
    _attention(self, *args, **{k: v for k, v in options.items() if k not in ("k_channels", "v_channels")})


DotProductAttention.__init__ = attention_of_any_width
_experts = SequentialMLP.__init__


def first_expert(self: Any, num_local_experts: int, *args: Any, **options: Any) -> None:
    """The first of a rank's experts, whose weights count for all: a loop makes each like it."""
    _experts(self, 1, *args, **options)
    for weight in self.local_experts.parameters():
        weight.experts = num_local_experts


SequentialMLP.__init__ = first_expert

LOCAL = {  # kernels that need a GPU, or that local layers do not have; no weight depends on them
    "transformer_impl": "local", "apply_rope_fusion": False, "persist_layer_norm": False,
    "bias_activation_fusion": False, "bias_dropout_fusion": False, "masked_softmax_fusion": False,
    "gradient_accumulation_fusion": False, "moe_grouped_gemm": False, "tp_comm_overlap": False,
    "perform_initialization": False, "sequence_parallel": False, "layernorm_zero_centered_gamma": False,
}  # fmt: skip


def judge(case: Case) -> Seen:
    """Layers of every chunk and weights of every rank that is asked for, and the model's facts."""
    args, config = configured(case)
    facts = facts_of(args, config)
    for name, value in LOCAL.items():
        setattr(args, name, value)
        setattr(config, name, value)
    return {"ranks": [built(args, config, rank) for rank in case["ranks"]], "model": facts}


@cache
def rank_groups(world_size: int, sizes: tuple[int, ...], mask: tuple[bool, ...]) -> list[list[int]]:
    """Every group of ranks along some dimensions: they are the same for all ranks of a plan."""
    return _groups_of_ranks(world_size, list(sizes), list(mask))


def create_group(ranks: list[int], **options: Any) -> Any:
    """A group of this rank; other ranks' groups, which a rank only has to enter, are thousands."""
    if torch.distributed.get_rank() in ranks:
        return _created_group(ranks, **options)
    return torch.distributed.GroupMember.NON_GROUP_MEMBER


_groups_of_ranks = parallel_state.generate_masked_orthogonal_rank_groups
parallel_state.generate_masked_orthogonal_rank_groups = lambda world_size, sizes, mask: [
    [*ranks] for ranks in rank_groups(world_size, tuple(sizes), tuple(mask))
]
_created_group = parallel_state.create_group
parallel_state.create_group = create_group


def built(args: Any, config: Any, rank: int) -> Seen:
    """One rank: its chunks, each on the meta device."""
    os.environ["RANK"] = str(rank)
    torch.distributed.init_process_group(
        "fake", store=FakeStore(), rank=rank, world_size=args.world_size
    )  # nothing is sent
    try:
        parallel_state.initialize_model_parallel(
            args.tensor_model_parallel_size, args.pipeline_model_parallel_size,
            args.virtual_pipeline_model_parallel_size,
            context_parallel_size=args.context_parallel_size,
            expert_model_parallel_size=args.expert_model_parallel_size,
            expert_tensor_parallel_size=args.expert_tensor_parallel_size,
            order="tp-cp-ep-pp-dp" if args.use_tp_pp_dp_mapping else "tp-cp-ep-dp-pp",
            create_gloo_process_groups=False,
        )  # fmt: skip
        tensor_parallel.random.initialize_rng_tracker()
        builder = builder_of(args, config)
        groups = ProcessGroupCollection.use_mpu_process_groups()
        parts, tensor_ranks = args.virtual_pipeline_model_parallel_size, args.tensor_model_parallel_size
        with torch.device("meta"):
            chunks = build_virtual_pipeline_stages(
                builder.build_model, groups, parts, ModelType.encoder_or_decoder
            )
        return {
            "stage": parallel_state.get_pipeline_model_parallel_rank(),
            "layers": [len(chunk.decoder.layers) for chunk in chunks],
            "weights": sum(
                math.prod(shape) * count
                for chunk in chunks
                for _, shape, count in shapes(chunk, args.tensor_model_parallel_size)
            ),
            "kinds": [kind_of(layer) for chunk in chunks for layer in chunk.decoder.layers],
            "matrices": matrices(chunks, tensor_ranks),
        }
    finally:
        parallel_state.destroy_model_parallel()
        torch.distributed.destroy_process_group()


def builder_of(args: Any, config: Any) -> Any:
    """The builder of the program that the plan is exported to."""
    if not args.hybrid_layer_pattern:
        return GPTModelBuilder(gpt_config_from_args(args, config))
    hybrid = hybrid_config_from_args(args, config)
    hybrid_specs.Norm = hybrid_block.TENorm = WrappedTorchNorm  # not Transformer Engine's
    hybrid.hybrid_stack_spec = hybrid_specs.get_hybrid_stack_modelopt_spec(local_core_attention=True)
    return HybridModelBuilder(hybrid)


def kind_of(layer: Any) -> str:
    """Whether a layer has experts."""
    return "moe" if isinstance(getattr(layer, "mlp", None), MoELayer) else "dense"


def shapes(module: Any, tensor_ranks: int) -> Iterator[tuple[str, tuple[int, ...], int]]:
    """Names and shapes of weights, and how many of each there are.

    Latent attention's down-projections are whole on every rank in Transformer Engine's layers
    (``MLASelfAttention``: ``parallel_mode = "duplicated"``), and split in the local ones.
    """
    for name, weight in module.named_parameters():
        whole = tensor_ranks if "_down_proj.weight" in name else 1
        yield name, (weight.shape[0] * whole, *weight.shape[1:]), getattr(weight, "experts", 1)


def matrices(chunks: list[Any], tensor_ranks: int) -> list[list[int]]:
    """Rows, columns and number of the matrices of all layers, routers and gates of one row left out."""
    found = Counter[tuple[int, ...]]()
    for chunk in chunks:
        for name, shape, count in shapes(chunk.decoder.layers, tensor_ranks):
            if len(shape) == 2 and "router" not in name and "gate_weight" not in name:
                found[shape] += count
    return sorted([*shape, count] for shape, count in found.items())


if __name__ == "__main__":
    serve(judge)

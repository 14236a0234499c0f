"""DeepSeek-V4's attention and streams: products and kept tensors of a layer beside those of its class."""

from __future__ import annotations

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from meshwright.profiles.importers.huggingface import model_from_config
from meshwright.profiles.library import find_cluster
from meshwright.profiles.profile import default_profile
from meshwright.solver.configuration import Columns, Configuration
from meshwright.solver.cost.context import context_of
from meshwright.solver.cost.memory import layer_activation_bytes
from meshwright.solver.problem import Problem, Workload

TOKENS, LAUNCHER = 256, "llama-factory-accelerate"
SIZES = {
    "vocab_size": 512, "hidden_size": 256, "moe_intermediate_size": 96, "num_attention_heads": 4,
    "head_dim": 64, "q_lora_rank": 48, "n_routed_experts": 4, "num_experts_per_tok": 4, "o_groups": 2,
    "o_lora_rank": 32, "index_n_heads": 4, "index_head_dim": 32, "index_topk": 16, "sliding_window": 16,
    "num_nextn_predict_layers": 0,
    "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 32},
}  # fmt: skip
RATES = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 32}


def _of_class(kind: str, layers: int) -> tuple[float, float, int]:
    """FLOPs and kept bytes of a token, and all parameters, of a model with so many layers of a kind."""
    config = CONFIG_MAPPING["deepseek_v4"](**SIZES, num_hidden_layers=layers, layer_types=[kind] * layers)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").to(torch.bfloat16)
    own = {one.untyped_storage().data_ptr() for one in model.parameters()}
    kept = dict[int, int]()

    def keep(one: torch.Tensor) -> torch.Tensor:
        storage = one.untyped_storage()
        if storage.data_ptr() not in own and one.dtype.is_floating_point:
            kept[storage.data_ptr()] = storage.nbytes()
        return one

    ids = torch.randint(0, 512, (1, TOKENS))
    with saved_tensors_hooks(keep, lambda one: one):
        model.train()(input_ids=ids, use_cache=False)
    model.set_experts_implementation("batched_mm")  # whose products torch counts
    with FlopCounterMode(display=False) as flops:
        model(input_ids=ids, use_cache=False)
    parameters = sum(one.numel() for one in model.parameters())
    return flops.get_total_flops() / TOKENS, sum(kept.values()) / TOKENS, parameters


@pytest.mark.parametrize("kind", RATES)
def test_a_layer_multiplies_and_keeps_what_its_class_does(kind: str) -> None:
    one, two = _of_class(kind, 2), _of_class(kind, 4)
    flops, kept, parameters = ((b - a) / 2 for a, b in zip(one, two, strict=True))
    model = model_from_config(
        {"model_type": "deepseek_v4", **SIZES, "num_hidden_layers": 4, "layer_types": [kind] * 4}, name="x"
    )
    (shape,) = model.shapes()
    rate, heads = RATES[kind], 4
    assert model.layer_parameters(shape.kind) == parameters
    # The eager class scores all tokens and entries; a kernel reads the window and the chosen entries. Both
    # indexers score all entries.
    entries = TOKENS // rate if rate else 0
    whole = 2 * heads * 2 * 64 * (TOKENS + entries) + 2 * 4 * 32 * entries * (rate == 4)
    scored = model.score_flops_per_token(TOKENS)
    elementwise = 2 * 2 * 2 * 4 * 256  # streams are added up and expanded without a product, in two blocks
    assert model.forward_flops_of(shape, TOKENS) - scored - elementwise == flops - whole
    problem = Problem(
        model=model, cluster=find_cluster("dgx-h100", num_nodes=1), launcher=LAUNCHER,
        workload=Workload(global_batch_size=8, seq_length=TOKENS),
    )  # fmt: skip
    sharded = Configuration(data_parallel_size=8, zero_stage=3, zero_shard_size=8, stage_layers=(4,))
    ctx = context_of(problem, Columns.of([sharded]), default_profile(problem.cluster, LAUNCHER))
    assert layer_activation_bytes(ctx.of(shape), shape.kind)[0] / TOKENS == pytest.approx(kept, rel=0.1)

"""Diffusion transformers: what their layers weigh, multiply and read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.importers.huggingface import model_from_config
from meshwright.profiles.library import find_cluster, find_model
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.profile import default_profile
from meshwright.service.requests.checks import check_limits
from meshwright.solver.configuration import Columns, Configuration
from meshwright.solver.cost.compute import attention_level, core_attention, layer_gemms
from meshwright.solver.cost.context import Context, context_of
from meshwright.solver.cost.memory import layer_activation_bytes
from meshwright.solver.planner.plan import ask
from meshwright.solver.predict import predict
from meshwright.solver.problem import Problem, Workload

SIZES = {"num_attention_heads": 16, "attention_head_dim": 128}  # 2048 wide
WAN = model_from_config(
    {"_class_name": "WanTransformer3DModel", **SIZES, "ffn_dim": 8192, "num_layers": 4}, name="wan"
)
FLUX = model_from_config(
    {"_class_name": "FluxTransformer2DModel", **SIZES, "num_layers": 1, "num_single_layers": 3}, name="flux"
)
TOKENS = 8192


def _without_context() -> ModelSpec:
    assert WAN.diffusion is not None
    return replace(WAN, diffusion=replace(WAN.diffusion, context_tokens=0))


def _problem(model: ModelSpec, **changes: object) -> Problem:
    return Problem(
        model=model,
        cluster=find_cluster("dgx-h100", num_nodes=1),
        workload=Workload(global_batch_size=8, seq_length=TOKENS, **changes),  # type: ignore[arg-type]
        launcher="none",
    )


def _context(model: ModelSpec) -> Context:
    problem = _problem(model)
    config = Configuration(data_parallel_size=8, stage_layers=(4,))
    return context_of(problem, Columns.of([config]), default_profile(problem.cluster, "none"))


def test_a_layer_of_wan_has_two_attentions_an_mlp_and_a_table_of_modulation() -> None:
    attention = 4 * (2048 + 1) * 2048 + 2 * 2048  # four matrices with biases, norms of queries and of keys
    mlp = (2048 + 1) * 8192 + (8192 + 1) * 2048
    assert set(WAN.parameters_by_layer()) == {2 * attention + mlp + 6 * 2048 + 2 * 2048}


def test_keys_and_values_of_a_context_are_products_of_its_512_tokens() -> None:
    sides = [
        (float(np.ravel(one.m)[0]), float(np.ravel(one.n)[0]))
        for one in layer_gemms(_context(WAN), "dense")
    ]
    assert sides == [
        (TOKENS, 3 * 2048), (TOKENS, 2048), (TOKENS, 2048), (512, 2 * 2048), (TOKENS, 2048), (TOKENS, 8192),
        (TOKENS, 2048),
    ]  # fmt: skip


def test_attention_reads_all_latent_tokens_and_then_the_context() -> None:
    alone = _without_context()
    both, self_alone = (core_attention(_context(one)).forward[0] for one in (WAN, alone))
    # What comes on top of a kernel weighs as much over 512 keys as over the 4,096.5 of the fitted level.
    ctx = _context(alone)
    on_top = (1 / ctx.constants.attention - 1) * 4096.5
    assert both == pytest.approx(self_alone * (TOKENS + 512 + 2 * on_top) / (TOKENS + on_top), rel=5e-3)
    level = float(attention_level(ctx) / ctx.constants.attention)
    # Every query reads all 8,192 tokens, where a causal one reads half of them on the mean.
    assert self_alone == pytest.approx(
        core_attention(_context(replace(alone, diffusion=None, causal=True))).forward[0]
        * TOKENS / ((TOKENS + 1) / 2) / level,
        rel=5e-3,
    )  # fmt: skip


def test_a_layer_of_two_streams_weighs_twice_as_much_and_multiplies_as_much() -> None:
    single, double = (FLUX.shaped(one) for one in FLUX.shapes())
    attention, mlp = 4 * (2048 + 1) * 2048 + 2 * 128, (2048 + 1) * 8192 + (8192 + 1) * 2048
    assert double.layer_parameters("dense") == 2 * (attention + mlp) + 2 * (2048 + 1) * 6 * 2048
    # One product yields attention's and the MLP's outputs, with one bias for both.
    assert single.layer_parameters("dense") == attention + mlp + (2048 + 1) * 3 * 2048 - 2048
    each = {FLUX.forward_flops_of(one, TOKENS) for one in FLUX.shapes()}
    assert each == {2 * (4 * 2048**2 + 2 * 2048 * 8192) + 4 * 2048 * TOKENS}


def test_a_context_keeps_queries_its_keys_and_the_output_of_a_second_attention() -> None:
    alone = _without_context()
    kept = [layer_activation_bytes(_context(one), "dense")[0] for one in (WAN, alone)]
    second = TOKENS * (2 * 2 * 2048 + 4 * 16) + 512 * 2 * 2 * 2048  # log-sum-exp of 16 heads in 4 bytes
    norm = TOKENS * 2 * 2048 * 2  # input of one more norm, and what the projection reads
    assert kept[0] - kept[1] == pytest.approx(second + norm)


def test_adapters_of_a_diffusion_transformer_are_refused() -> None:
    with pytest.raises(InvalidProblemError) as caught:
        check_limits(_problem(FLUX, lora_rank=8))
    assert [one.pointer for one in caught.value.errors] == ["/workload/lora_rank"]


def test_text_encoders_are_whole_on_the_first_stage_and_run_forward_alone() -> None:
    # T5-XXL's encoder: 4,762,310,656 weights of 2 bytes, and 2,422,361,554,944 multiply-adds a sample
    assert FLUX.diffusion is not None
    own = replace(FLUX.diffusion, encoder_weights=4_762_310_656, encoder_products=2_422_361_554_944)
    problems = _problem(FLUX), _problem(replace(FLUX, diffusion=own))
    profile = default_profile(problems[0].cluster, "none")
    stages = Configuration(
        pipeline_parallel_size=2, data_parallel_size=4, num_microbatches=2, stage_layers=(2, 2),
        zero_stage=1, zero_shard_size=4,
    )  # fmt: skip
    plain, whole = (predict(one, profile, stages).stages for one in problems)
    weights = [
        b.memory_bytes["weights"] - a.memory_bytes["weights"] for a, b in zip(plain, whole, strict=True)
    ]
    assert weights == [2 * 4_762_310_656, 0]
    alone = Configuration(data_parallel_size=8, stage_layers=(4,))
    plain_s, whole_s = (predict(one, profile, alone).step_time_s for one in problems)
    ideal_s = 2 * 2_422_361_554_944 / 989.4e12  # of one sample on each GPU
    assert ideal_s < whole_s - plain_s < 2 * ideal_s


def test_answers_state_that_frozen_encoders_are_not_priced() -> None:
    problem = replace(_problem(WAN), options=replace(_problem(WAN).options, time_limit_s=1.0))
    profile = default_profile(problem.cluster, "none")
    assert WAN.diffusion is not None
    encoded = replace(WAN, diffusion=replace(WAN.diffusion, encoder_weights=5_680_910_336))
    of_wan, of_encoded, of_gpt = (
        ask(replace(problem, model=model), profile).warnings for model in (WAN, encoded, find_model("gpt2"))
    )
    assert any(one.startswith("the text encoder and autoencoder aren't included") for one in of_wan)
    assert any(one.startswith("every step runs 5.68 billion weights of frozen text") for one in of_encoded)
    assert not any("encoder" in one for one in of_gpt)

"""Layers of one block each: attention, a mixer, an MLP or experts alone, as in Nemotron-H."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.profiles.adapters import adapter_parameters
from meshwright.profiles.capabilities import model_facts
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.library import find_cluster
from meshwright.profiles.mixers import MixerSpec
from meshwright.profiles.model import LayerShape, ModelSpec
from meshwright.profiles.model_parts import MoeSpec
from meshwright.profiles.model_shapes import model_from_shape, model_to_mapping
from meshwright.profiles.profile import default_profile
from meshwright.solver.configuration import Columns, Configuration
from meshwright.solver.cost.communication import expert_parallel
from meshwright.solver.cost.compute import core_attention, layer_gemms
from meshwright.solver.cost.context import Context, context_of
from meshwright.solver.cost.memory import layer_activation_bytes
from meshwright.solver.cost.price import price
from meshwright.solver.cost.stages import LayerLayout
from meshwright.solver.problem import Problem, Workload

MAMBA = MixerSpec(
    kind="mamba2", num_heads=64, num_key_heads=8, key_head_dim=128, value_head_dim=64, chunk=128
)
EXPERTS = MoeSpec(
    num_experts=16,
    top_k=4,
    ffn_hidden_size=1024,
    num_shared_experts=1,
    shared_ffn_hidden_size=2048,
    expert_adapters="none",
)
MODEL = ModelSpec(
    name="x", num_layers=8, hidden_size=2048, ffn_hidden_size=6144, num_attention_heads=16,
    num_kv_heads=2, head_dim=128, vocab_size=32_000, gated_mlp=False, activation="squared_relu",
    mixer=MAMBA, moe=EXPERTS, layer_pattern="MEM*EM-E", no_rotary_every=1,
)  # fmt: skip
ATTENTION = LayerShape("dense", part="mixing")
MIXING = LayerShape("dense", mixes=True, part="mixing")
MLP = LayerShape("dense", part="mlp")
ROUTED = LayerShape("moe", part="mlp")


def _problem(model: ModelSpec) -> Problem:
    return Problem(
        model=model,
        cluster=find_cluster("dgx-h100", num_nodes=1),
        workload=Workload(global_batch_size=8, seq_length=8192),
        launcher="none",
    )


def _context(model: ModelSpec, shape: LayerShape, ep: int = 1) -> Context:
    config = Configuration(data_parallel_size=8, expert_parallel_size=ep, stage_layers=(8,))
    problem = _problem(model)
    return context_of(problem, Columns.of([config]), default_profile(problem.cluster, "none")).of(shape)


def test_each_layer_has_the_weights_of_its_block_and_one_norm() -> None:
    # In: B and C of 8 groups of 128, values and a gate of 64 * 64 each, 64 time steps; a convolution of 4;
    # decay, time step and skip of each head; a norm of all values.
    mixing = 2048 * (2 * 1024 + 2 * 4096 + 64 + 4096) + 4 * (2 * 1024 + 4096) + 3 * 64 + 4096
    attention = 2048 * (2 * 16 * 128 + 2 * 2 * 128)
    # 16 experts of two matrices, a shared one of 2048, and a router.
    experts = 2 * 2048 * (16 * 1024 + 2048) + 16 * 2048
    of_letter = {"M": mixing, "*": attention, "-": 2 * 2048 * 6144, "E": experts}
    expected = tuple(of_letter[letter] + 2048 for letter in MODEL.layer_pattern)
    assert MODEL.parameters_by_layer() == expected
    assert MODEL.num_parameters() == sum(expected) + 2 * 32_000 * 2048 + 2048


def test_a_layer_takes_the_flops_of_its_block_alone() -> None:
    each = {shape: MODEL.forward_flops_of(shape, 8192) for shape in MODEL.shapes()}
    # A causal query reads 4096.5 keys on the mean: 16 heads of 128 for scores and as many for values.
    assert each[ATTENTION] == 2 * 2048 * (2 * 2048 + 512) + 2 * 16 * 256 * 4096.5
    assert each[MLP] == 2 * 2 * 2048 * 6144
    assert each[ROUTED] == 2 * (2 * 2048 * (4 * 1024 + 2048) + 16 * 2048)
    whole = 3 * each[MIXING] + each[ATTENTION] + each[MLP] + 3 * each[ROUTED]
    head = MODEL.head_forward_flops_per_token()
    assert MODEL.model_flops_per_token(8192) == pytest.approx(3 * (whole + head))


def test_an_mlp_alone_has_no_attention_and_attention_alone_no_mlp() -> None:
    of_mlp, of_attention = _context(MODEL, MLP), _context(MODEL, ATTENTION)
    assert core_attention(of_mlp).forward[0] == 0 < core_attention(of_attention).forward[0]
    for ctx, sides in ((of_mlp, [2048, 6144]), (of_attention, [2048, 2048])):
        assert [np.max(one.k) for one in layer_gemms(ctx, "dense")] == sides  # what each product reads


def test_an_mlp_alone_keeps_its_norm_s_input_and_output_and_its_activation_s() -> None:
    ctx = _context(MODEL, MLP)
    # 2 bytes each: the norm's input and what it yields, the activation's input and what it yields.
    kept = 8192 * (2 * 2048 + 2 * 2048 + 4 * 6144) * ctx.constants.activation
    assert layer_activation_bytes(ctx, "dense")[0] == pytest.approx(kept)


def test_weights_of_routed_experts_alone_are_gathered_in_both_passes() -> None:
    model = replace(MODEL, moe=replace(EXPERTS, num_shared_experts=0, shared_ffn_hidden_size=0))
    problem, kinds = _problem(model), LayerLayout.of(model).kinds
    rows = Columns.of([
        Configuration(data_parallel_size=8, zero_stage=zero, zero_shard_size=8, stage_layers=(8,))
        for zero in (1, 3)
    ])  # fmt: skip
    prices, part = price(problem, rows, default_profile(problem.cluster, "none")), kinds.index(ROUTED)
    forward, backward = np.diff(prices.forward_s[:, part])[0], np.diff(prices.backward_s[:, part])[0]
    assert backward > 2 * forward > 0  # a gather as in the forward pass, and the reduction of gradients


def test_every_kind_costs_what_it_costs_in_a_model_without_the_others() -> None:
    problem = _problem(MODEL)
    rows = Columns.of([Configuration(data_parallel_size=8, stage_layers=(8,))])
    profile = default_profile(problem.cluster, "none")
    mixed, kinds = price(problem, rows, profile), LayerLayout.of(MODEL).kinds
    assert set(kinds) == {ATTENTION, MIXING, MLP, ROUTED}
    for part, shape in enumerate(kinds):
        alone = price(_problem(MODEL.shaped(shape)), rows, profile)
        for name in ("forward_s", "backward_s", "weights_bytes", "activation_bytes"):
            assert getattr(mixed, name)[0, part] == pytest.approx(getattr(alone, name)[0, 0]), (shape, name)


def test_experts_of_a_latent_weigh_and_exchange_as_much_as_it_is_narrower() -> None:
    narrow = replace(MODEL, moe=replace(EXPERTS, latent_size=512))
    # Experts read and yield 512 elements instead of 2048, behind two projections; shared ones 2048.
    fewer = 16 * 2 * 1024 * (2048 - 512) - 2 * 2048 * 512
    assert MODEL.parameters_by_layer()[1] - narrow.parameters_by_layer()[1] == fewer
    wide, thin = (expert_parallel(_context(one, ROUTED, ep=8)).forward[0] for one in (MODEL, narrow))
    assert 0.25 * wide <= thin < 0.5 * wide  # a quarter of the bytes, and the latency


def test_experts_of_a_latent_keep_what_they_read_and_what_they_yield() -> None:
    wide, thin = (
        _context(replace(MODEL, moe=replace(EXPERTS, latent_size=size)), ROUTED) for size in (0, 512)
    )
    kept = float(layer_activation_bytes(thin, "moe")[0]) - float(layer_activation_bytes(wide, "moe")[0])
    # of each token 512 elements before and behind the experts in 2 bytes; of each of its two copies, which
    # the permutation and the sum keep in 2 bytes, 512 elements instead of 2048
    fewer = EXPERTS.top_k * 2 * 2 * (2048 - 512)
    assert kept == pytest.approx(float(thin.tokens[0]) * (2 * 2 * 512 - fewer))


def test_adapters_of_every_layer_are_those_of_the_blocks_that_are_there() -> None:
    # of rank 8, next to both matrices of the only dense MLP and of three shared experts
    found = adapter_parameters(MODEL, 8, ("up_proj", "down_proj"))
    assert found == 8 * 2 * ((2048 + 6144) + 3 * (2048 + 2048))


def test_a_pattern_is_read_back_as_it_was_written_and_is_a_fact_that_launchers_state() -> None:
    assert model_from_shape(model_to_mapping(MODEL)) == MODEL
    latent = replace(MODEL, moe=replace(EXPERTS, latent_size=512))
    assert {"layers of one block", "experts of a latent"} <= model_facts(latent)


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"layer_pattern": "MEM*EM-"}, "layer_pattern", "7 letters for num_layers = 8"),
        ({"layer_pattern": "MEM*EM-X"}, "layer_pattern", "'X' is not a kind of layer"),
        ({"mixer": None}, "layer_pattern", "has a layer M, and model.mixer is missing"),
        ({"layer_pattern": "MMM**M--"}, "layer_pattern", "has no layer E, and model.moe is stated"),
        (
            {"mixer": replace(MAMBA, attention_every=4)},
            "mixer/attention_every",
            "already lists these layers",
        ),
        (
            {"norm_position": "after"},
            "norm_position",
            "not supported in (one-block layers|layers of one block)",
        ),
        (
            {"sliding_window": 512},
            "sliding_window",
            "not supported in (one-block layers|layers of one block)",
        ),
    ],
)
def test_a_pattern_that_does_not_fit_the_model_is_refused_with_the_field(
    changes: dict[str, object], field: str, words: str
) -> None:
    with pytest.raises(InvalidProblemError, match=words) as caught:
        replace(MODEL, **changes)  # type: ignore[arg-type]
    assert caught.value.errors[0].pointer == f"/model/{field}"

"""Layers with a mixer instead of attention: what they weigh, take, keep and pass on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest

from meshwright.profiles.adapters import copied_parameters
from meshwright.profiles.capabilities import launcher_capabilities, launchers_of, model_facts
from meshwright.profiles.collectives.collectives import all_reduce_s
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.library import find_cluster
from meshwright.profiles.mixers import MIXER_KINDS, MixerKind, MixerSpec
from meshwright.profiles.model import LayerShape, ModelSpec
from meshwright.profiles.model_shapes import model_from_shape, model_to_mapping
from meshwright.profiles.profile import default_profile
from meshwright.solver.configuration import Columns, Configuration
from meshwright.solver.cost.communication import tensor_parallel
from meshwright.solver.cost.compute import core_attention, layer_gemms
from meshwright.solver.cost.context import Context, context_of
from meshwright.solver.cost.price import price
from meshwright.solver.cost.scan import passed_states
from meshwright.solver.cost.stages import LayerLayout
from meshwright.solver.problem import Problem, Workload
from meshwright.solver.space.launcher_rules import constraints_of_model

DELTA = MixerSpec(
    kind="gated_delta_net", num_heads=32, num_key_heads=16, key_head_dim=128, value_head_dim=128,
    attention_every=4,
)  # fmt: skip
MAMBA = MixerSpec(
    kind="mamba2", num_heads=64, num_key_heads=8, key_head_dim=128, value_head_dim=64, chunk=256,
    convolution_bias=True, attention_layers=(2,),
)  # fmt: skip
SELECTIVE = MixerSpec(
    kind="mamba1", num_heads=4096, num_key_heads=1, key_head_dim=16, value_head_dim=1, time_step_rank=128,
    inner_norms=True, convolution_bias=True, attention_layers=(2,),
)  # fmt: skip
KIMI = MixerSpec(
    kind="kimi_delta_attention", num_heads=32, num_key_heads=32, key_head_dim=128, value_head_dim=128,
    gate_rank=128, attention_every=4,
)  # fmt: skip
LIGHTNING = MixerSpec(
    kind="lightning_attention", num_heads=64, num_key_heads=64, key_head_dim=128, value_head_dim=128,
    convolution=0, chunk=256, attention_every=8,
)  # fmt: skip
SHORT = MixerSpec(
    kind="short_convolution", num_heads=2048, num_key_heads=2048, key_head_dim=1, value_head_dim=1,
    convolution=3, attention_layers=(2,),
)  # fmt: skip
KINDS = (DELTA, MAMBA, SELECTIVE, KIMI, LIGHTNING, SHORT)
PLAIN = ModelSpec(
    name="x", num_layers=8, hidden_size=2048, ffn_hidden_size=6144, num_attention_heads=16,
    num_kv_heads=2, head_dim=256, vocab_size=32_000,
)  # fmt: skip
MIXED = replace(PLAIN, mixer=DELTA)
MIXING, ATTENDING = LayerShape("dense", mixes=True), LayerShape("dense")


def _problem(model: ModelSpec, seq_length: int = 8192, cluster: str = "dgx-h100") -> Problem:
    nodes = find_cluster(cluster, num_nodes=1)
    (group,) = nodes.groups
    return Problem(
        model=model,
        cluster=replace(nodes, groups=(replace(group, num_nodes=8 // group.gpus_per_node),)),
        workload=Workload(global_batch_size=8, seq_length=seq_length),
        launcher="none",
    )


def _context(
    model: ModelSpec, seq_length: int = 8192, tp: int = 1, cp: int = 1, *, cluster: str = "dgx-h100"
) -> Context:
    problem = _problem(model, seq_length, cluster)
    ranks = tp * cp
    config = Configuration(
        tensor_parallel_size=tp,
        context_parallel_size=cp,
        data_parallel_size=8 // ranks,
        num_microbatches=ranks,
        stage_layers=(8,),
    )
    profile = default_profile(problem.cluster, "none")
    return context_of(problem, Columns.of([config]), profile).of(MIXING)


def test_a_gated_delta_net_has_the_weights_that_qwen_3_next_s_class_builds() -> None:
    # Keys and queries 16 heads of 128 each, values and the output's gate 32 of 128; two gates of each head.
    read = 2 * 2048 + 2 * 4096 + 64
    # A convolution over 4 tokens of all but the gates; decay and time step of each head; one head's norm.
    own = 2048 * (read + 4096) + 4 * (2 * 2048 + 4096) + 2 * 32 + 128
    assert MIXED.parameters_by_layer()[0] == own + 3 * 2048 * 6144 + 2 * 2048
    assert [MIXED.parameters_by_layer()[layer] for layer in (3, 7)] == [PLAIN.parameters_by_layer()[0]] * 2


def test_a_mixer_in_every_layer_has_no_bias_or_window_of_attention_if_its_sizes_are_equal() -> None:
    mixer = replace(MAMBA, num_heads=16, num_key_heads=16, key_head_dim=64, attention_layers=())
    alike = replace(PLAIN, num_kv_heads=16, head_dim=64, mixer=mixer)
    biased = replace(alike, qkv_bias=True, attention_output_bias=True, sliding_window=512)
    assert biased.num_parameters() == alike.num_parameters()
    assert biased.parameters_by_layer() == replace(biased, head_dim=128).parameters_by_layer()


def test_a_state_space_layer_has_the_weights_that_bamba_s_class_builds() -> None:
    model = replace(PLAIN, mixer=MAMBA)
    # 8 groups of B and C with 128 states, 64 heads of 64 values and as wide a gate, a time step of each.
    read, convolved = 2 * 1024 + 2 * 4096 + 64, 2 * 1024 + 4096
    # Weights and bias of the convolution; decay, time step and skip of each head; a norm of all values.
    own = 2048 * (read + 4096) + 5 * convolved + 3 * 64 + 4096
    assert model.parameters_by_layer()[0] == own + 3 * 2048 * 6144 + 2 * 2048
    assert model.parameters_by_layer()[2] == PLAIN.parameters_by_layer()[0]


def test_norms_trained_in_full_are_those_of_mixers_too() -> None:
    # two norms of every layer and the last one; 7 of 8 layers have a norm of all 64 * 64 values
    assert copied_parameters(replace(PLAIN, mixer=MAMBA), "norm") == (8 * 2 + 1) * 2048 + 7 * 4096
    assert copied_parameters(PLAIN, "norm") == (8 * 2 + 1) * 2048


def test_the_scan_is_linear_in_the_sequence_and_attention_is_not() -> None:
    # 64 tokens of a chunk by (3 keys + 2 values) of 128, and three products of 128 by 128, for 32 heads.
    scan = 2 * 32 * (64 * 5 * 128 + 3 * 128 * 128)
    products = 2 * (2048 * (4096 + 8192 + 64 + 4096) + 4 * 8192 + 3 * 2048 * 6144)
    for seq in (4096, 131_072):
        assert MIXED.forward_flops_of(MIXING, seq) == products + scan
    whole = [MIXED.forward_flops_of(ATTENDING, seq) for seq in (4096, 131_072)]
    assert whole[1] - whole[0] == 2 * 16 * 512 * (131_072 - 4096) / 2


def test_a_delta_net_s_scan_takes_as_long_as_its_bytes_and_a_step_for_each_chunk_on_an_h100() -> None:
    ctx = _context(MIXED)
    # Of a head and token 7 k + 6 v + 6 C + 2 k v / C elements of 2 bytes: 896 + 768 + 384 + 512 = 2,560.
    moved = 8192 * 32 * 2 * 2560
    seconds = core_attention(ctx)
    assert seconds.forward[0] == pytest.approx(moved / ctx.hbm_bytes_per_s + 8192 / 64 * 0.9e-6)
    assert seconds.backward[0] == pytest.approx(3 * seconds.forward[0])


def test_chunks_are_multiplied_at_430_flops_a_clock_whatever_the_peak_of_tensor_cores() -> None:
    # 75 TFLOP/s in fp32 are 75e12 / 256 clocks of all multiprocessors. Of a head and token: 256 tokens of a
    # chunk by 64 values and, of each group, by 128 keys; twice 128 by 64.
    ctx = _context(replace(PLAIN, mixer=MAMBA), cluster="dgx-b200")
    work = 2 * (8 * 256 * 128 + 64 * (256 * 64 + 2 * 128 * 64))
    assert core_attention(ctx).forward[0] == pytest.approx(8192 * work / (430 * 75e12 / 256))


@pytest.mark.parametrize(
    ("cluster", "mixer", "sequences", "length", "published_ms"),
    [
        # FlashQLA 6e5d2ea1 benchmark_results_H200.txt and _GB200.txt, FLA [fwd]
        ("dgx-h200", replace(DELTA, num_heads=64), 1, 32_768, 3.331),
        ("dgx-h200", replace(DELTA, num_heads=8, num_key_heads=2), 1, 32_768, 0.902),
        ("dgx-h200", DELTA, 4, 8192, 1.898),
        ("gb200-nvl72", replace(DELTA, num_heads=64), 1, 32_768, 2.943),
        ("gb200-nvl72", replace(DELTA, num_heads=8, num_key_heads=2), 1, 32_768, 1.016),
        # helion 3e928d1e examples/linear/BENCHMARKS.md, fla fwd
        ("dgx-b200", replace(DELTA, num_heads=64), 4, 4096, 1.517),
        ("dgx-b200", replace(KIMI, num_heads=64, num_key_heads=64), 4, 4096, 2.925),
        # flashinfer pull requests 3902 and 3866, FLA/Triton
        ("dgx-b200", DELTA, 8, 8192, 3.272),
        ("dgx-h100", replace(DELTA, num_heads=8, num_key_heads=2), 1, 65_536, 1.954),
        # vLLM pull request 27299, five kernels: 1.24e7 tokens a second in the middle
        ("dgx-h100", replace(MAMBA, num_heads=128, num_key_heads=1), 1, 16_384, 1e3 * 16_384 / 1.24e7),
    ],
)  # fmt: skip
def test_scans_take_as_long_as_published_timings_of_their_kernels(
    cluster: str, mixer: MixerSpec, sequences: int, length: int, published_ms: float
) -> None:
    one = _context(replace(PLAIN, mixer=mixer), length, cluster=cluster)
    ctx = replace(one, micro_batch=one.micro_batch * sequences, tokens=one.tokens * sequences)
    assert 1e3 * core_attention(ctx).forward[0] == pytest.approx(published_ms, rel=0.21)


def test_a_selective_scan_takes_as_long_as_its_exponentials_on_an_h100() -> None:
    ctx = _context(replace(PLAIN, mixer=SELECTIVE))
    # One of each of 4096 * 16 states and token, at a sixteenth of 66.9 TFLOP/s; its bytes take as long.
    seconds = core_attention(ctx)
    exponentials_s = 8192 * 4096 * 16 / (66.9e12 / 16)
    moved_s = 8192 * 2 * (5 * 4096 + 2 * 16) / ctx.hbm_bytes_per_s
    assert seconds.forward[0] == pytest.approx(max(exponentials_s, moved_s))
    assert exponentials_s == pytest.approx(moved_s, rel=0.1)
    assert seconds.backward[0] == pytest.approx(3 * seconds.forward[0])


def test_a_selective_scan_has_four_products_whose_weights_its_layer_has() -> None:
    model = replace(PLAIN, mixer=SELECTIVE)
    gemms = layer_gemms(_context(model, tp=4), "dense")[:4]
    sides = [(float(np.ravel(one.k)[0]), float(np.ravel(one.n)[0])) for one in gemms]
    assert sides == [(2048, 2 * 1024), (1024, 128 + 32), (128, 1024), (1024, 2048)]
    # 4096 channels: a latent and B and C, time steps, a convolution of 4; decays, biases and skip; norms.
    own = 3 * 2048 * 4096 + 4096 * (128 + 32 + 128 + 4 + 16 + 3) + 128 + 32
    assert model.parameters_by_layer()[0] == own + 3 * 2048 * 6144 + 2 * 2048


def test_tensor_ranks_of_a_selective_scan_add_up_what_every_channel_reads() -> None:
    scanning, plain = (
        _context(replace(PLAIN, mixer=SELECTIVE), tp=4),
        _context(replace(PLAIN, mixer=MAMBA), tp=4),
    )
    further = tensor_parallel(scanning).forward - tensor_parallel(plain).forward
    # A latent of 128, and B and C of 16 states, in 2 bytes of every token.
    assert further[0] == pytest.approx(all_reduce_s(np.array([8192 * 160 * 2.0]), scanning.tensor_group)[0])
    alone = _context(replace(PLAIN, mixer=SELECTIVE))
    assert tensor_parallel(alone).forward[0] == 0


def test_norms_inside_a_selective_scan_keep_what_four_kernels_read() -> None:
    fused, apart = (replace(SELECTIVE, inner_norms=normed).kept_elements() for normed in (False, True))
    assert fused == 3 * 4096 + 160, "the projections and the scan's output"
    assert apart == fused + 3 * 4096 + 160, "values, time steps, what is projected back; normed ones"


def test_kimi_s_delta_attention_has_the_weights_that_its_class_builds() -> None:
    # Queries, keys and values of 4096 with a convolution of 4, a learning rate of each head, two latents of
    # 128 that become decays and the gate; of each head a decay, of each channel a number added; one norm.
    read, wide = 3 * 4096 + 32 + 2 * 128, 4096
    own = 2048 * (read + wide) + 4 * 3 * wide + 2 * 128 * wide + 32 + wide + 128
    assert replace(PLAIN, mixer=KIMI).parameters_by_layer()[0] == own + 3 * 2048 * 6144 + 2 * 2048


def test_tensor_ranks_of_kimi_s_delta_attention_each_have_both_latents() -> None:
    into, decays, gate, out = layer_gemms(_context(replace(PLAIN, mixer=KIMI), tp=4), "dense")[:4]
    assert np.ravel(into.n).tolist() == [(3 * 4096 + 32) / 4 + 2 * 128]
    assert [(one.k, np.ravel(one.n).tolist()) for one in (decays, gate)] == [(128, [1024])] * 2
    assert np.ravel(out.k).tolist() == [1024]


def test_lightning_attention_has_three_widths_a_gate_and_a_norm_and_no_convolution() -> None:
    wide = 64 * 128
    own = 2048 * (3 * wide + wide + wide) + wide
    assert replace(PLAIN, mixer=LIGHTNING).parameters_by_layer()[0] == own + 3 * 2048 * 6144 + 2 * 2048
    # Of a head and token queries by keys and scores by values in a chunk of 256, and two states' products.
    assert LIGHTNING.scan_products() == 64 * (256 * 256 + 2 * 128 * 128)
    # One kernel reads queries, keys and values, and writes the output: 4 * 128 elements of a head.
    ctx = _context(replace(PLAIN, mixer=LIGHTNING))
    moved = 8192 * 64 * 2 * 4 * 128 / ctx.hbm_bytes_per_s
    assert core_attention(ctx).forward[0] >= moved


def test_a_short_convolution_takes_no_scan_and_passes_on_two_tokens() -> None:
    model = replace(PLAIN, mixer=SHORT)
    # Both gates and what is convolved, a convolution of 3, and the way back.
    assert model.parameters_by_layer()[0] == 4 * 2048 * 2048 + 3 * 2048 + 3 * 2048 * 6144 + 2 * 2048
    assert core_attention(_context(model)).forward[0] == 0
    assert SHORT.state_elements() == 2 * 2048
    assert SHORT.kept_elements() == 6 * 2048


def test_a_mixer_next_to_attention_costs_what_both_cost_alone() -> None:
    both = replace(PLAIN, mixer=replace(MAMBA, attention_layers=(), with_attention=True))
    alone = replace(PLAIN, mixer=replace(MAMBA, attention_layers=()))
    # One MLP and two norms, of whichever layer; attention and mixer each as in a layer of their own.
    further = 3 * 2048 * 6144 + 2 * 2048
    assert set(both.parameters_by_layer()) == {
        PLAIN.parameters_by_layer()[0] + alone.parameters_by_layer()[0] - further
    }
    # What torch multiplies in a layer: 2 of each of the MLP's weights in both, once here.
    flops = [one.model_flops_per_token(8192) / 3 for one in (both, PLAIN, alone)]
    assert flops[0] == pytest.approx(
        flops[1] + flops[2] - 8 * 2 * 3 * 2048 * 6144 - both.head_forward_flops_per_token()
    )
    contexts = [_context(one) for one in (both, PLAIN, alone)]
    cores = [core_attention(one).forward[0] for one in contexts]
    assert cores[0] == pytest.approx(cores[1] + cores[2])
    assert both.head_counts == (16, 64), "tensor ranks split the heads of both"


def test_a_mixer_is_next_to_attention_in_every_layer_and_of_mamba_2_alone() -> None:
    for mixer, field in ((MAMBA, "attention_layers"), (DELTA, "with_attention")):
        with pytest.raises(InvalidProblemError) as caught:
            replace(mixer, with_attention=True)
        assert caught.value.errors[0].pointer == f"/model/mixer/{field}"


@pytest.mark.parametrize(
    ("mixer", "changes", "field"),
    [
        (DELTA, {"gate_rank": 128}, "gate_rank"),
        (KIMI, {"num_key_heads": 16}, "num_key_heads"),
        (LIGHTNING, {"convolution": 4}, "convolution"),
        (DELTA, {"convolution": 0}, "convolution"),
        (SHORT, {"key_head_dim": 2}, "key_head_dim"),
    ],
)
def test_sizes_that_newer_kinds_of_mixer_do_not_have_are_refused(
    mixer: MixerSpec, changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidProblemError) as caught:
        replace(mixer, **changes)
    assert caught.value.errors[0].pointer == f"/model/mixer/{field}"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"time_step_rank": 0}, "time_step_rank"),
        ({"num_key_heads": 2}, "num_key_heads"),
        ({"value_head_dim": 64}, "value_head_dim"),
        ({"kind": "mamba2"}, "time_step_rank"),
        ({"kind": "mamba2", "time_step_rank": 0}, "inner_norms"),
    ],
)
def test_sizes_that_a_kind_of_mixer_does_not_have_are_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidProblemError) as caught:
        replace(SELECTIVE, **changes)
    assert caught.value.errors[0].pointer == f"/model/mixer/{field}"


def test_the_scan_of_a_sequence_twice_as_long_takes_twice_as_long() -> None:
    short, long = (core_attention(_context(MIXED, seq)).forward[0] for seq in (8192, 16_384))
    assert long == pytest.approx(2 * short)


def test_tensor_ranks_split_the_heads() -> None:
    one, four = _context(MIXED), _context(MIXED, tp=4)
    steps = 8192 / 64 * 0.9e-6  # chunks wait for each other on every rank
    split = (core_attention(one).forward[0] - steps) / 4
    assert core_attention(four).forward[0] == pytest.approx(split + steps)
    into, out = layer_gemms(four, "dense")[:2]
    assert np.ravel(into.n).tolist() == [(4096 + 8192 + 64) / 4]
    assert np.ravel(out.k).tolist() == [4096 / 4]


def test_context_parallelism_passes_on_states_of_one_size_whatever_the_sequence() -> None:
    short, long = (_context(MIXED, seq, cp=4) for seq in (16_384, 131_072))
    alone = _context(MIXED)
    assert passed_states(alone, DELTA).forward[0] == 0
    assert passed_states(long, DELTA).forward[0] == passed_states(short, DELTA).forward[0] > 0


def test_a_layer_of_either_kind_costs_what_it_costs_in_a_model_without_the_other() -> None:
    problem = _problem(MIXED)
    rows = Columns.of([Configuration(data_parallel_size=8, stage_layers=(8,))])
    profile = default_profile(problem.cluster, "none")
    mixed, kinds = price(problem, rows, profile), LayerLayout.of(MIXED).kinds
    assert set(kinds) == {MIXING, ATTENDING}
    for part, shape in enumerate(kinds):
        alone = price(_problem(MIXED.shaped(shape)), rows, profile)
        for name in ("forward_s", "backward_s", "weights_bytes", "activation_bytes"):
            assert getattr(mixed, name)[0, part] == pytest.approx(getattr(alone, name)[0, 0]), name


def test_a_model_with_a_mixer_is_read_back_as_it_was_written() -> None:
    for model in (MIXED, replace(PLAIN, mixer=MAMBA), replace(PLAIN, mixer=SELECTIVE),
                  replace(PLAIN, mixer=KIMI), replace(PLAIN, mixer=SHORT)):  # fmt: skip
        assert model_from_shape(model_to_mapping(model)) == model


@pytest.mark.parametrize(
    ("mixer", "field"),
    [
        (replace(DELTA, attention_every=1), "/model/mixer"),
        (replace(MAMBA, attention_layers=(8,)), "/model/mixer/attention_layers"),
    ],
)
def test_a_mixer_of_no_layer_is_refused(mixer: MixerSpec, field: str) -> None:
    with pytest.raises(InvalidProblemError) as caught:
        replace(PLAIN, mixer=mixer)
    assert caught.value.errors[0].pointer == field


def test_keys_that_heads_do_not_share_evenly_are_refused() -> None:
    with pytest.raises(InvalidProblemError, match="16 does not divide num_heads = 24"):
        replace(DELTA, num_heads=24)


def test_every_kind_of_mixer_is_a_fact_and_no_users_script_splits_it() -> None:
    assert set(MIXER_KINDS) == set(get_args(MixerKind)) == {one.kind for one in KINDS}
    able = [launcher_capabilities(name) for name in launchers_of("any")]
    scripts = [one for one in able if "any" in one.model_facts and one.launcher != "none"]
    assert len(scripts) > 1
    for mixer in KINDS:
        model = replace(PLAIN, mixer=mixer)
        assert MIXER_KINDS[mixer.kind].fact in model_facts(model)
        for one in scripts:
            ((_, texts),) = constraints_of_model(model, one)
            assert texts == ["tensor_parallel_size * context_parallel_size == 1"], (
                mixer.kind,
                one.launcher,
            )

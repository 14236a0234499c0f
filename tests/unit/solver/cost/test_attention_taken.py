"""Attention as transformers and torch take it: kernels, explicit masks, scores that are kept."""

from __future__ import annotations

import json
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from meshwright.profiles.attention import implementation, runnable, torchs_kernel, transformers_releases
from meshwright.profiles.library import find_cluster, find_model
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.sequences import SequenceLengths
from meshwright.solver.configuration import Columns
from meshwright.solver.cost.compute import _MASKED, core_attention, linear_seconds
from meshwright.solver.cost.context import Context, context_of
from meshwright.solver.cost.memory import layer_activation_bytes
from meshwright.solver.cost.scores import passing_scores_bytes
from tests.problems.pricing import a_layout, a_problem, a_profile

KERNELS = Path(__file__).parents[4] / "benchmarks" / "data" / "attention_kernels.jsonl"
LLAMA, GEMMA = find_model("llama-3.1-8b"), find_model("gemma-2-9b")


def context(model: ModelSpec, kernel: str, *, seq_length: int = 8192, **options: object) -> Context:
    problem = replace(
        a_problem(model, framework_options={"attention_kernel": kernel, **options}),
        cluster=find_cluster("dgx-h100"), launcher="accelerate",
    )  # fmt: skip
    workload = replace(problem.workload, seq_length=seq_length)
    problem = replace(problem, workload=workload)
    layout = Columns.of([a_layout(stage_layers=(model.num_layers,), tensor_parallel_size=1)])
    return context_of(problem, layout, a_profile(problem, "accelerate"))


def packed(model: ModelSpec, kernel: str, launcher: str) -> Context:
    options = {"attention_kernel": kernel}
    problem = a_problem(
        model, seq_length=2048, lengths=SequenceLengths.equal(512), framework_options=options
    )
    problem = replace(problem, cluster=find_cluster("dgx-h100"), launcher=launcher)
    layout = a_layout(stage_layers=(model.num_layers,), tensor_parallel_size=1, micro_batch_size=4)
    return context_of(problem, Columns.of([layout]), a_profile(problem, launcher))


@pytest.mark.parametrize(
    ("architecture", "sizes", "masked", "kernel"),
    [
        ("hopper", (128, 128), False, "cudnn"),
        ("hopper", (128, 128), True, "cudnn"),
        ("hopper", (192, 128), True, "cudnn"),
        ("hopper", (256, 256), True, "cudnn"),
        ("blackwell", (256, 256), False, "flash2"),
        ("blackwell", (256, 256), True, "efficient"),
        ("ampere", (128, 128), False, "flash2"),
        ("ampere", (128, 128), True, "efficient"),
        ("ampere", (192, 128), False, "efficient"),
        ("volta", (64, 64), False, "efficient"),
        ("ampere", (100, 100), True, "torch"),
    ],
)
def test_torch_takes_the_first_kernel_that_takes_the_heads_and_the_mask(
    architecture: str, sizes: tuple[int, int], masked: bool, kernel: str
) -> None:
    assert torchs_kernel(architecture, sizes, masked=masked).kernel == kernel


def test_no_kernel_of_16_bits_is_taken_for_fp32() -> None:
    assert torchs_kernel("hopper", (128, 128), masked=False, bits=32).kernel == "efficient"


@pytest.mark.parametrize(
    ("name", "kernels"),
    [
        ("llama-3.1-8b", ("sdpa", "sdpa", "sdpa", "sdpa")),
        ("gpt-oss-20b", ("torch", "torch", "torch", "flash3")),
        ("gemma-2-9b", ("sdpa", "sdpa", "torch", "flash2")),  # 5.17 drops its soft cap without a word
    ],
)
def test_each_release_takes_its_own_attention_of_a_model(name: str, kernels: tuple[str, ...]) -> None:
    found = [implementation(find_model(name), release).kernel for release in transformers_releases()]
    assert tuple(found) == kernels


def test_eager_attention_keeps_6_bytes_of_each_score_and_10_more_pass_by() -> None:
    eager, flash = context(LLAMA, "torch"), context(LLAMA, "flash2")
    scores = 8192.0**2 * LLAMA.num_attention_heads
    more = layer_activation_bytes(eager, "dense") - layer_activation_bytes(flash, "dense")
    assert more[0] == pytest.approx(scores * 6.0 - 8192 * 32 * 4.0)  # but no log-sum-exp
    assert passing_scores_bytes(eager)[0] == pytest.approx(scores * 10.0)
    assert passing_scores_bytes(flash)[0] == 0.0


def test_a_mask_is_kept_for_every_layer_with_a_window_beside_repeated_keys_and_values() -> None:
    masked, flash = context(GEMMA, "sdpa"), context(GEMMA, "flash2")
    assert masked.masked == pytest.approx(0.5)  # every second layer
    repeated = 2 * 2.0 * (GEMMA.num_attention_heads - GEMMA.num_kv_heads) * GEMMA.head_dim
    more = layer_activation_bytes(masked, "dense") - layer_activation_bytes(flash, "dense")
    assert more[0] == pytest.approx(0.5 * 8192 * (2.0 * 8192 + repeated))
    assert not context(GEMMA, "sdpa", seq_length=4095).masked.any()


def test_a_loss_of_masked_tokens_gives_every_layer_a_mask_of_all_pairs() -> None:
    model = replace(LLAMA, causal=False)
    masked, free = context(model, "sdpa", loss_kernel="masked"), context(model, "sdpa")
    assert (float(masked.masked[0]), float(free.masked[0])) == (1.0, 0.0)
    # 2 bytes of each pair of tokens, and keys and values for every head
    repeated = 2 * 2.0 * (LLAMA.num_attention_heads - LLAMA.num_kv_heads) * LLAMA.head_dim
    more = layer_activation_bytes(masked, "dense") - layer_activation_bytes(free, "dense")
    assert more[0] == pytest.approx(8192 * (2.0 * 8192 + repeated))
    # cuDNN's kernel takes a mask at .66 of its rate without
    own, plain = core_attention(masked).forward[0], core_attention(free).forward[0]
    assert own == pytest.approx(plain / _MASKED["cudnn"])


@pytest.mark.parametrize("kernel", ["sdpa", "flash2", "torch"])
def test_time_grows_with_the_sequence_whatever_runs(kernel: str) -> None:
    seconds = [
        core_attention(context(GEMMA, kernel, seq_length=length)).forward[0]
        for length in (2048, 4096, 8192)
    ]
    assert np.all(np.diff(seconds) > 0.0)


def test_windows_help_kernels_that_know_them_alone() -> None:
    whole = replace(GEMMA, sliding_window=None, sliding_window_every=1)
    for kernel, faster in (("flash2", True), ("flex", True), ("sdpa", False), ("torch", False)):
        own, all_of_it = (core_attention(context(one, kernel)).forward[0] for one in (GEMMA, whole))
        assert (own < all_of_it) == faster, kernel


@pytest.mark.parametrize("kernel", ["flash2", "flash3"])
def test_no_class_runs_flash_attention_with_alibi(kernel: str) -> None:
    for name, runs in (("bloom-560m", "torch"), ("mpt-7b", "torch"), ("falcon-7b", kernel)):
        assert context(find_model(name), kernel).facts.attention_kernel == runs, name


@pytest.mark.parametrize(("name", "kernel"), [("gemma-4-31b", "sdpa"), ("gemma-2-9b", "flash2")])
def test_heads_wider_than_256_run_torchs_choice_instead_of_flash_attention(name: str, kernel: str) -> None:
    model = find_model(name)  # Gemma 4's global layers have heads of 512
    assert runnable("flash2", model) == kernel
    ctx = context(model, "flash2")
    assert ctx.facts.attention_kernel == kernel
    assert ctx.masked.any() == (kernel == "sdpa")  # its local layers get a mask of their window


def test_flex_attention_repeats_keys_where_the_heads_are_no_power_of_two() -> None:
    # transformers 5.23 integrations/flex_attention.py:302: 28 heads of Qwen2.5 7B, 32 of Llama 3.1 8B
    for name, repeated in (("qwen2.5-7b", 2 * (28 - 4) * 128), ("llama-3.1-8b", 0)):
        flex, flash = (context(find_model(name), kernel) for kernel in ("flex", "flash2"))
        more = layer_activation_bytes(flex, "dense") - layer_activation_bytes(flash, "dense")
        assert more[0] == pytest.approx(8192 * 2.0 * repeated), name


def test_trls_packing_makes_scores_of_a_whole_micro_batch_against_itself() -> None:
    # 4 sequences of 2048 tokens: TRL joins them to one of 8192 under a mask, LLaMA-Factory does not
    seconds, kernels = dict[int, float](), ("sdpa", "flash2", "torch")
    for rows, launcher in ((4, "trl"), (1, "llama-factory-accelerate")):
        masked, flash, eager = (packed(LLAMA, one, launcher) for one in kernels)
        repeated = 2 * 2.0 * (32 - 8) * 128
        more = layer_activation_bytes(masked, "dense") - layer_activation_bytes(flash, "dense")
        assert more[0] == pytest.approx(8192 * (repeated + 2.0 * rows * 2048))
        assert passing_scores_bytes(eager)[0] == pytest.approx(8192 * 32 * rows * 2048 * 10.0)
        seconds[rows] = core_attention(masked).forward[0]
    assert seconds[4] == pytest.approx(4.0 * seconds[1])


def test_experts_with_weights_of_their_own_for_every_token_keep_these() -> None:
    mixtral = find_model("mixtral-8x7b")
    contexts = [context(mixtral, "sdpa", grouped_gemm=how) for how in ("grouped", "loop", "batched")]
    grouped, looped, batched = (layer_activation_bytes(one, "moe")[0] for one in contexts)
    assert grouped >= looped
    rows = 8192 * mixtral.moe.top_k if mixtral.moe else 0
    assert batched - looped >= rows * 2.0 * mixtral.expert_parameters()
    times = [linear_seconds(one, "moe").forward[0] for one in contexts]
    assert times[2] > times[0]


def test_a_mask_slows_cudnns_scores_as_eight_shapes_on_an_h100_show() -> None:
    rows = [json.loads(line) for line in KERNELS.read_text("utf-8").splitlines()[1:]]
    timed = [row for row in rows if "both_us" in row]  # torch's flash kernel takes no mask
    us = {(itemgetter("b", "h", "kv", "s", "d")(row), row["way"]): row["both_us"] for row in timed}
    shapes = {shape for shape, _ in us}
    # a causal kernel computes half of the scores that one with a mask does
    rates = [2.0 * us[shape, "causal"] / us[shape, "mask"] for shape in shapes]
    assert len(shapes) == 8
    assert fmean(rates) == pytest.approx(_MASKED["cudnn"], abs=0.005)


def test_windows_run_flash_attention_next_to_layers_whose_heads_are_too_wide() -> None:
    model = find_model("gemma-4-31b")  # heads of 256 in windows, of 512 in global layers
    mixed, flash, sdpa = (context(model, kernel) for kernel in ("flash2+sdpa", "flash2", "sdpa"))
    for shape in model.shapes():
        own, whole = mixed.of(shape), sdpa.of(shape)
        seconds, wanted = (core_attention(one).forward[0] for one in (own, whole))
        if not shape.local:
            assert seconds == wanted == core_attention(flash.of(shape)).forward[0]
            assert layer_activation_bytes(own, "dense") == layer_activation_bytes(whole, "dense")
            continue
        alone = replace(model.shaped(shape), local_attention=None)
        assert own.kernel == "flash2"
        assert seconds == core_attention(context(alone, "flash2")).forward[0]
        assert seconds < wanted / 4  # a window of 1024 of 8192 keys


def test_packed_documents_are_known_where_flash_attention_runs() -> None:
    ctx = packed(find_model("gemma-4-31b"), "flash2+sdpa", "axolotl")
    masks = {shape.local: float(ctx.of(shape).masked[0]) for shape in ctx.model.shapes()}
    assert masks == {True: 0.0, False: 1.0}  # axolotl monkeypatch/gemma4_hybrid_mask.py
    assert {shape.local: ctx.of(shape).packs for shape in ctx.model.shapes()} == {True: True, False: False}

"""Weights, gradients and states outside the GPU: what hosts and drives hold, and how long it takes."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.launchers.reading.base import Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.launchers.registry import export
from meshwright.profiles.cluster import Host, host_of
from meshwright.profiles.errors import RefusedExportError
from meshwright.profiles.library import find_model
from meshwright.profiles.mixers import MixerSpec
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.profile import default_profile
from meshwright.solver.check import violations
from meshwright.solver.configuration import Columns, Configuration
from meshwright.solver.cost.communication import fetched_s
from meshwright.solver.cost.context import Context, PassSeconds, context_of, is_offloaded
from meshwright.solver.cost.memory import (
    checkpoint_bytes,
    layer_activation_bytes,
    offloaded_bytes,
    outside_bytes,
    spilled_s,
)
from meshwright.solver.cost.parameters import Weights, largest_tensor
from meshwright.solver.cost.price import price, shared_passes
from meshwright.solver.cost.stages import RowPrices
from meshwright.solver.planner.plan import ask
from meshwright.solver.problem import Problem, changes_of, with_changes
from meshwright.solver.space.enumerate import enumerate_space
from tests.builders import a_cluster, a_model, a_problem
from tests.launchers.cases import plan
from tests.launchers.plans import CASES, problem_of

# 128 layers of 12 h^2 weights with h = 25 600: a trillion (ZeRO-Infinity, arXiv:2104.07857, table 1)
TRILLION = a_model(
    name="trillion", num_layers=128, hidden_size=25600, ffn_hidden_size=102400, num_attention_heads=160,
    num_kv_heads=160, head_dim=160, vocab_size=32000, gated_mlp=False,
)  # fmt: skip
SMALL = replace(TRILLION, num_layers=4, hidden_size=8192, ffn_hidden_size=32768, num_attention_heads=64,
                num_kv_heads=64, head_dim=128)  # fmt: skip
LAYER, DP = 12 * 8192**2 + 2 * 8192, 16
WHOLE = 4 * LAYER + 2 * 32000 * 8192 + 8192
EVERYTHING_SWAPPED = "optimizer@nvme+parameters@nvme"


def a_run(offload: str, **changes: object) -> Configuration:
    """ZeRO-3 on 16 GPUs."""
    plain = Configuration(
        data_parallel_size=DP, zero_stage=3, zero_shard_size=DP, num_microbatches=2, stage_layers=(4,),
        recompute_granularity="full", recompute_layers=4, offload=offload,
    )  # fmt: skip
    return replace(plain, **changes)  # type: ignore[arg-type]


def on_drives(model: ModelSpec = SMALL, *, num_nodes: int = 2, batch: int = 32, **host: object) -> Problem:
    """DeepSpeed on DGX H100 nodes."""
    found = a_problem(
        model=model, cluster=a_cluster(num_nodes=num_nodes), batch=batch,
        allow=("offload",), certify="none", top_k=1, time_limit_s=60.0,
    )  # fmt: skip
    group = replace(found.cluster.groups[0], **host)  # type: ignore[arg-type]
    cluster = replace(found.cluster, groups=(group,))
    work = replace(found.workload, seq_length=1024)
    return replace(found, cluster=cluster, workload=work, launcher="deepspeed")


def context(problem: Problem, config: Configuration) -> Context:
    return context_of(problem, Columns.of([config]), default_profile(problem.cluster, "deepspeed"))


def priced(config: Configuration) -> RowPrices:
    problem = on_drives()
    return price(problem, Columns.of([config]), default_profile(problem.cluster, "deepspeed"))


def host() -> Host:
    return host_of(on_drives().cluster.groups[0])


def outside(config: Configuration) -> tuple[float, float]:
    """Bytes of one rank in host memory and on drives."""
    found = outside_bytes(context(on_drives(), config))
    return float(found.host[0]), float(found.nvme[0])


def test_states_in_host_memory_take_18_bytes_of_each_weight_and_weights_2_more() -> None:
    # 12 of states, an fp32 gradient, and a 2-byte one to add to
    assert outside(a_run("optimizer")) == pytest.approx((18 * WHOLE / DP, 0.0), rel=1e-3)
    assert outside(a_run("optimizer+parameters")) == pytest.approx((20 * WHOLE / DP, 0.0), rel=1e-3)
    # below stage 3 the 2-byte weights that the update writes are there, too
    assert outside(a_run("optimizer", zero_stage=2)) == pytest.approx((20 * WHOLE / DP, 0.0), rel=1e-3)


def test_states_on_drives_take_16_bytes_there_and_leave_gradients_and_buffers_in_memory() -> None:
    there, drives = outside(a_run("optimizer@nvme"))
    assert drives == pytest.approx(16 * WHOLE / DP, rel=1e-3)
    # 2 bytes of each gradient; four fp32 buffers of a group of parameters
    group = min(100_000_000 + 4 * 8192**2 / DP, WHOLE / DP)
    assert there == pytest.approx(2 * WHOLE / DP + 4 * 4 * group, rel=1e-3)


def test_weights_on_drives_leave_five_buffers_of_the_largest_tensor() -> None:
    # and up to a billion of them stay in memory (max_in_cpu): here all
    assert largest_tensor(SMALL) == 4 * 8192**2
    more = outside(a_run("optimizer+parameters@nvme"))[0] - outside(a_run("optimizer"))[0]
    assert more == pytest.approx(2 * (5 * 4 * 8192**2 + WHOLE) / DP, rel=1e-3)
    assert outside(a_run("optimizer+parameters@nvme"))[1] == pytest.approx(2 * WHOLE / DP, rel=1e-3)


def test_the_largest_tensor_of_a_hybrid_may_be_of_its_attention() -> None:
    """Layers of one model: 32 heads of 256 elements attend, the others mix into 2 * 16 * 64 and 16 * 64."""
    mixer = MixerSpec(
        kind="gated_delta_net", num_heads=16, num_key_heads=16, key_head_dim=64, value_head_dim=64,
        attention_every=4,
    )  # fmt: skip
    hybrid = replace(
        SMALL, mixer=mixer, hidden_size=1024, ffn_hidden_size=1024, vocab_size=1024, head_dim=256,
        num_attention_heads=32, num_kv_heads=4,
    )  # fmt: skip
    assert mixer.projected < 32 * 256
    assert largest_tensor(hybrid) == 1024 * 32 * 256


def test_on_the_gpu_stays_what_is_gathered() -> None:
    here, away = priced(a_run("none")), priced(a_run(EVERYTHING_SWAPPED))
    for name in ("weights_bytes", "gradients_bytes", "optimizer_bytes"):
        assert getattr(here, name)[0, 0] > 0
        assert getattr(away, name)[0, 0] == 0
    assert away.buffer_bytes[0] == here.buffer_bytes[0]


def test_the_update_reads_and_writes_16_bytes_of_each_weight_on_drives() -> None:
    # and 2 bytes of weights that are written there; nothing returns to the GPU
    cpu, drives = (
        float(priced(a_run(word)).tail_breakdown_s["optimizer"][0, 0])
        for word in ("optimizer", EVERYTHING_SWAPPED)
    )
    each, weights = host(), LAYER / DP
    # Adam moves 30 bytes, scaling a gradient 8, casting the copy for the GPU reads 4; gradients of 4 bytes
    # leave by pinned memory, and weights of 2 come back 4.5 times as slowly, as torch casts them into other
    there = (4 + 2 * 4.5) / each.link_bytes_per_s
    assert cpu == pytest.approx(weights * (there + 42 / each.memory_bytes_per_s))
    swapped = 16 / each.nvme_read_bytes_per_s + (16 + 2) / each.nvme_write_bytes_per_s
    expected = cpu + weights * (swapped - 9 / each.link_bytes_per_s - 4 / each.memory_bytes_per_s)
    assert drives == pytest.approx(expected)


def test_an_update_on_the_gpu_sends_weights_to_the_host_in_fp32() -> None:
    # DeepSpeed 0.19 stage3.py:2589: a blocking copy between types and devices, which torch casts on the CPU
    here, away = (priced(a_run(word)) for word in ("none", "parameters"))
    updated_s = [float(one.tail_breakdown_s["optimizer"][0, 0]) for one in (here, away)]
    each, weights = host(), LAYER / DP
    # 4 bytes a weight into memory that is not pinned, 4.5 times as slowly; the CPU reads 4 and writes 2
    sent_s = 4 * 4.5 / each.link_bytes_per_s + (4 + 2) / each.memory_bytes_per_s
    assert updated_s[1] - updated_s[0] == pytest.approx(weights * sent_s)
    # the states and gradients stay, and weights that passes gather come from the host as they do otherwise
    assert away.weights_bytes[0, 0] == 0.0 < here.weights_bytes[0, 0]
    assert away.optimizer_bytes[0, 0] == here.optimizer_bytes[0, 0]
    assert away.gradients_bytes[0, 0] == here.gradients_bytes[0, 0]
    both = priced(a_run("optimizer+parameters"))
    assert away.forward_s[0, 0] == both.forward_s[0, 0] > here.forward_s[0, 0]
    # 2 bytes of each weight lie there, and the fp32 of a group of at most a billion while it is cast
    assert outside(a_run("parameters")) == pytest.approx((6 * WHOLE / DP, 0.0), rel=1e-3)


def test_only_deepspeed_copies_weights_of_zero_3_back_from_memory_that_is_not_pinned() -> None:
    # launcher none has Megatron-Core's facts: gradients of its own size, weights of 2 bytes, 30 + 4 bytes
    problem = replace(on_drives(), launcher="none")
    profile = default_profile(problem.cluster, "none")
    row = Columns.of([a_run("optimizer")])
    found = float(price(problem, row, profile).tail_breakdown_s["optimizer"][0, 0])
    each, there = host(), profile.framework.gradient_bytes + 2
    expected = LAYER / DP * (there / each.link_bytes_per_s + 34 / each.memory_bytes_per_s)
    assert found == pytest.approx(expected)


def test_each_pass_reads_the_rank_s_own_shard() -> None:
    # of 805 million weights 101 MB over the link of each rank, and read ahead from its drive
    host_s, drive_s = (
        priced(a_run(word)).forward_s[0, 0] for word in ("optimizer+parameters", EVERYTHING_SWAPPED)
    )
    here_s = priced(a_run("optimizer")).forward_s[0, 0]
    assert here_s < host_s < drive_s
    assert drive_s >= 2 * LAYER / DP / host().nvme_read_bytes_per_s


def test_no_place_is_faster_than_the_one_above_it_and_none_takes_more_of_the_gpu() -> None:
    # but for updated weights, which come back from memory that is not pinned, or stay where they are
    order = ["none", "optimizer", "optimizer+parameters", "optimizer+parameters@nvme", EVERYTHING_SWAPPED]
    prices = [priced(a_run(word)) for word in order]
    times = [float(2 * (one.forward_s + one.backward_s).sum()) for one in prices]
    assert times == sorted(times)
    ends = [float(one.tail_s.sum()) for one in prices]
    assert ends[0] < ends[2] < ends[1]
    assert ends[2:] == sorted(ends[2:])
    held = [float(one.state_bytes.sum()) for one in prices]
    assert held == sorted(held, reverse=True)


def swapped_rows(problem: Problem) -> Columns:
    """Legal rows that keep anything on drives."""
    space = enumerate_space(problem)
    legal = space.columns.take(space.legal)
    return legal.take(is_offloaded(legal.offload, "optimizer@nvme", "parameters@nvme"))


def test_drives_hold_shards_of_stage_3_alone() -> None:
    rows = swapped_rows(on_drives())
    assert len(rows) > 0
    assert set(rows.zero_stage.tolist()) == {3}


def test_a_trillion_parameters_train_on_one_node_with_drives() -> None:
    # 2 TiB of memory hold 2 bytes of each gradient, 27.6 of 30.7 TB of drives 16 of states and 2 of weights
    problem = on_drives(TRILLION, num_nodes=1, batch=64)
    answer = ask(problem, default_profile(problem.cluster, "deepspeed"))
    (best,) = answer.plans
    assert answer.status == "optimal"
    assert best.config.offload == EVERYTHING_SWAPPED
    assert list(violations(problem, default_profile(problem.cluster, "deepspeed"), best)) == []


@pytest.mark.parametrize(
    "lacking", [{"nvme_bytes": 0}, {"nvme_bytes": 16 * 10**12}, {"host_memory_bytes": 2**40}]
)
def test_without_the_drives_or_the_memory_they_do_not(lacking: dict[str, object]) -> None:
    assert len(swapped_rows(on_drives(TRILLION, num_nodes=1, batch=64))) > 0
    assert len(swapped_rows(on_drives(TRILLION, num_nodes=1, batch=64, **lacking))) == 0


def test_the_check_counts_the_room_by_itself() -> None:
    # 14 bytes of each of 3.7 billion weights are 52 GB; of two nodes of 8 x 1 GB nine tenths are usable
    problem = on_drives(host_memory_bytes=8 * 10**9)
    faults = list(
        violations(problem, default_profile(problem.cluster, "deepspeed"), a_run("optimizer+parameters"))
    )
    assert any("host memory of 14400000000 bytes cannot hold" in one for one in faults)


def test_slower_drives_make_a_longer_step() -> None:
    config = a_run(EVERYTHING_SWAPPED)
    fast, slow = (
        price(one, Columns.of([config]), default_profile(one.cluster, "deepspeed")).tail_s.sum()
        for one in (on_drives(), on_drives(nvme_read_bytes_per_s=1e9, nvme_write_bytes_per_s=1e9))
    )
    assert slow > 10 * fast


def test_buffers_in_the_file_are_those_that_were_counted() -> None:
    found = CASES["deepspeed"]["llama-3.1-70b-swapped"]
    zero = json.loads(export(found.plan, found.problem, "deepspeed").files["ds_config.json"])[
        "zero_optimization"
    ]
    # the embedding, 128 256 x 8192, is the largest tensor: a 64th of it, rounded up
    assert zero["offload_param"]["buffer_size"] == 128256 * 8192 // 64 + 1
    assert (zero["sub_group_size"], zero["offload_optimizer"]["buffer_count"]) == (100_000_000, 4)


def shared_out(share: float) -> tuple[float, float, float]:
    """Optimizer bytes on the GPU, bytes on the host and seconds of the update, of a share of the states."""
    problem = a_problem(cluster=a_cluster(num_nodes=2), batch=32)
    options = {"optimizer_offload_fraction": share}
    problem = replace(problem, workload=replace(problem.workload, framework_options=options))
    config = a_run("optimizer", zero_stage=1, stage_layers=(80,), recompute_layers=80)
    columns, profile = Columns.of([config]), default_profile(problem.cluster, "megatron-lm")
    prices, ctx = price(problem, columns, profile), context_of(problem, columns, profile)
    seconds = float(prices.tail_breakdown_s["optimizer"][0, 0])
    return float(prices.optimizer_bytes[0, 0]), float(outside_bytes(ctx).host[0]), seconds


def test_a_share_of_the_states_leaves_the_gpu_and_is_updated_by_the_cpu_meanwhile() -> None:
    whole, half, quarter = shared_out(1.0), shared_out(0.5), shared_out(0.25)
    assert whole[0] == 0.0
    assert quarter[0] == pytest.approx(1.5 * half[0]), "3/4 and 1/2 of the same bytes stay"
    for share, found in ((0.5, half), (0.25, quarter)):
        # the CPU takes longer for a quarter of the states than the GPU for the rest
        assert found[1:] == pytest.approx((share * whole[1], share * whole[2]))


def test_a_share_that_a_plan_chose_is_read_as_the_number_that_it_is() -> None:
    asked = a_problem().workload
    chosen = replace(asked, framework_options={"optimizer_offload_fraction": 0.25})
    assert with_changes(asked, changes_of(chosen, asked)) == chosen


def by_fsdp(config: Configuration, launcher: str = "torchtitan") -> tuple[Context, RowPrices]:
    """The same configuration under FSDP2."""
    problem = replace(on_drives(), launcher=launcher)
    profile = default_profile(problem.cluster, launcher)
    row = Columns.of([config])
    return context_of(problem, row, profile), price(problem, row, profile)


def test_fsdp_keeps_16_bytes_of_each_weight_on_the_host_and_nothing_on_the_gpu() -> None:
    # fp32 weight, gradient and two moments: CPUOffloadPolicy has no copy beside them
    found, prices = by_fsdp(a_run("optimizer+parameters"))
    assert float(outside_bytes(found).host[0]) == pytest.approx(16 * WHOLE / DP, rel=1e-3)
    for name in ("weights_bytes", "gradients_bytes", "optimizer_bytes"):
        assert getattr(prices, name)[0, 0] == 0


def test_gradients_that_wait_for_the_last_pass_stay_on_the_gpu_until_then() -> None:
    # accelerate reduces in the last of two passes (no_sync): whole fp32 sums stay, bf16 ones as they travel
    plain, away = (by_fsdp(a_run(word), "accelerate")[1] for word in ("none", "optimizer+parameters"))
    assert away.gradients_bytes[0, 0] == plain.gradients_bytes[0, 0] > 0


def test_the_cpu_reads_the_gradient_and_three_states_and_writes_them() -> None:
    _, plain = by_fsdp(a_run("none"))
    _, away = by_fsdp(a_run("optimizer+parameters"))
    updated = LAYER / DP
    # as AdamW on a GPU moves, a gradient scaled, and no copy over the link
    cpu = (30.0 + 8.0) * updated / host().memory_bytes_per_s
    assert away.tail_breakdown_s["optimizer"][0, 0] == pytest.approx(cpu, rel=1e-3)
    # in the backward pass a gradient goes to the host, and the second of two is added: 4 + 1/2 * 12 bytes
    link = 4.0 * updated / host().link_bytes_per_s + 0.5 * 12.0 * updated / host().memory_bytes_per_s
    later = float(away.backward_s[0, 0] - plain.backward_s[0, 0])
    assert 0 < later < 2 * (4.0 * updated / host().link_bytes_per_s + link)


@pytest.mark.parametrize(
    ("launcher", "file", "line"),
    [
        ("torchtitan", "torchtitan_plan.py", "enable_cpu_offload=True"),
        ("accelerate", "accelerate.yaml", "fsdp_offload_params: true"),
        ("trl", "accelerate.yaml", "fsdp_offload_params: true"),
    ],
)
def test_fsdp_is_told_to_offload_and_its_file_is_read_so(launcher: str, file: str, line: str) -> None:
    config = Configuration(
        data_parallel_size=8, zero_stage=3, zero_shard_size=8, num_microbatches=16, stage_layers=(32,),
        offload="optimizer+parameters",
    )  # fmt: skip
    problem = problem_of(launcher, find_model("llama-3.1-8b"), num_nodes=1)
    files = export(plan(config), problem, launcher).files
    assert line in files[file]
    read = read_launch_files(Source(name="launch.sh", text=files["launch.sh"], files=files))
    assert read.configuration == config
    with pytest.raises(RefusedExportError, match="zero_stage"):
        export(plan(replace(config, zero_stage=2)), problem, launcher)
    with pytest.raises(RefusedExportError, match="offload"):
        export(plan(config), replace(problem, launcher="axolotl"), "axolotl")


def test_gradients_go_to_the_host_from_the_second_zero_stage_on() -> None:
    """Stage 1 has no shards of them to keep there (ZeRO-Offload, arXiv:2101.06840, section 4.1)."""
    stages = [a_run("optimizer", zero_stage=stage) for stage in (1, 2, 3)]
    problem = on_drives()
    ctx = context_of(problem, Columns.of(stages), default_profile(problem.cluster, "deepspeed"))
    assert ctx.offloads_gradients.tolist() == [False, True, True]


@pytest.mark.parametrize("offload", ["none", "optimizer", "activations", "optimizer+parameters"])
@pytest.mark.parametrize("stage", [2, 3])
def test_passes_that_bound_a_search_are_no_longer_than_priced_ones(offload: str, stage: int) -> None:
    """Of a layer a rank of 16 copies a sixteenth to or from the host; the bound copies nothing."""
    problem, rows = on_drives(), Columns.of([a_run(offload, zero_stage=stage)])
    profile = default_profile(problem.cluster, "deepspeed")
    (bound,), whole = shared_passes([problem], rows, profile), price(problem, rows, profile)
    for name in ("forward_s", "backward_s"):
        least = getattr(whole, name)[:, :-2].min(axis=1)
        assert (getattr(bound, name) <= least * (1 + 1e-12)).all(), name
    assert bound.forward_s[0] > 0.2 * whole.forward_s[0, 0]


# --------------------------------------------------------------------------------------------------
# Activations on the host.

MODULES = ("attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "mlp_act")
TOKENS = 1024


def of_layer(modules: str = "all", **changes: object) -> Context:
    """One stage of ``SMALL`` that sends activations."""
    problem = on_drives()
    work = replace(problem.workload, framework_options={"offload_modules": modules})
    problem = replace(problem, workload=work, launcher="none")
    run = a_run("activations", zero_stage=0, zero_shard_size=1, **changes)
    return context_of(problem, Columns.of([run]), default_profile(problem.cluster, "deepspeed"))


def test_a_replayed_layer_sends_its_input_and_a_whole_one_all_that_it_keeps() -> None:
    ctx = of_layer()
    assert float(offloaded_bytes(ctx, "dense")[0]) == 2 * TOKENS * 8192  # 2 s b h
    plain = of_layer(recompute_granularity="none", recompute_layers=0)
    whole = float(offloaded_bytes(plain, "dense")[0])
    assert whole == float(layer_activation_bytes(plain, "dense")[0]) > 20 * TOKENS * 8192


def test_a_replayed_layer_sends_nothing_of_modules_inside_it() -> None:
    inside, named = of_layer("core_attn+mlp_act"), of_layer("attn_norm+core_attn")
    assert float(offloaded_bytes(inside, "dense")[0]) == 0.0
    assert float(offloaded_bytes(named, "dense")[0]) == 2 * TOKENS * 8192


@settings(max_examples=40)
@given(
    st.sets(st.sampled_from(MODULES), min_size=1), st.sampled_from(["none", "selective", "full"]),
    st.sampled_from([1, 2, 8]),
)  # fmt: skip
def test_no_layer_sends_more_than_it_keeps(names: set[str], recompute: str, tensor: int) -> None:
    run = {"recompute_granularity": recompute, "recompute_layers": 4 if recompute == "full" else 0}
    names |= {"core_attn"} if "attn_proj" in names else set()  # attn_proj goes with core_attn
    for modules in ("all", "+".join(sorted(names))):
        ctx = of_layer(modules, tensor_parallel_size=tensor, **run)
        kept = checkpoint_bytes(ctx) if recompute == "full" else layer_activation_bytes(ctx, "dense")
        assert 0.0 <= float(offloaded_bytes(ctx, "dense")[0]) <= float(kept[0])


def test_a_recomputed_step_waits_for_the_inputs_of_its_layers_alone() -> None:
    """On a link of 1 GB/s copies of 2 s b h are all that a pass waits for, beyond its own work."""
    problem = replace(on_drives(), launcher="none")
    group = problem.cluster.groups[0]
    slow = replace(group, host_link_bytes_per_s=1e9)
    problem = replace(problem, cluster=replace(problem.cluster, groups=(slow,)))
    profile = default_profile(problem.cluster, "deepspeed")
    run = a_run("none", zero_stage=0, zero_shard_size=1)
    plain, sent = (
        price(problem, Columns.of([replace(run, offload=word)]), profile)
        for word in ("none", "activations")
    )
    copied = 2 * TOKENS * 8192 / 1e9
    assert sent.forward_s[0, 0] == pytest.approx(max(plain.forward_s[0, 0], copied))
    again = plain.backward_s[0, 0] + plain.replay_s[0, 0]
    assert sent.backward_s[0, 0] + sent.replay_s[0, 0] == pytest.approx(max(again, copied))
    assert sent.checkpoint_bytes[0, 0] == 0.0


# --------------------------------------------------------------------------------------------------
# Gradients that DeepSpeed copies to fp32 as it updates weights.


@pytest.mark.parametrize(
    ("stage", "group", "copied"),
    [(3, 1e9, WHOLE / DP), (3, 1e6, 1e6), (2, 1e6, WHOLE / DP), (1, 1e6, WHOLE / DP), (0, 1e9, 0.0)],
)
def test_an_update_copies_a_group_of_gradients_to_fp32(stage: int, group: float, copied: float) -> None:
    problem = on_drives()
    work = replace(problem.workload, framework_options={"sub_group_size": group})
    run = a_run("none", zero_stage=stage, zero_shard_size=DP if stage else 1)
    found = price(
        replace(problem, workload=work), Columns.of([run]), default_profile(problem.cluster, "deepspeed")
    )
    activations = 4 * 2 * TOKENS * 8192  # of four replayed layers, gone by then
    updating = found.replay_workspace_bytes[0]
    replaying = price(problem, Columns.of([replace(run, zero_stage=0, zero_shard_size=1)]),
                      default_profile(problem.cluster, "deepspeed")).replay_workspace_bytes[0]  # fmt: skip
    assert updating == pytest.approx(max(replaying, (2 + 4) * copied - activations), rel=1e-3)


def test_states_on_the_host_are_updated_without_a_copy_on_the_gpu() -> None:
    here, away = (priced(a_run(word)).replay_workspace_bytes[0] for word in ("none", "optimizer"))
    assert away < here


def test_activations_and_weights_come_to_the_gpu_over_one_link() -> None:
    """In a backward pass; in a forward pass activations leave while weights come."""
    words = ("none", "activations", "optimizer+parameters", "optimizer+parameters+activations")
    found = {word: by_fsdp(a_run(word, micro_batch_size=4)) for word in words}
    ctx, both = found["optimizer+parameters+activations"]
    for name in ("weights_bytes", "gradients_bytes", "optimizer_bytes"):
        assert getattr(both, name)[0, 0] == getattr(found["optimizer+parameters"][1], name)[0, 0]
    assert both.checkpoint_bytes[0, 0] == found["activations"][1].checkpoint_bytes[0, 0]
    there = {word: float(outside_bytes(of_word).host[0]) for word, (of_word, _) in found.items()}
    assert there[words[3]] == pytest.approx(there[words[1]] + there[words[2]])
    # a link so slow that it alone decides: both copies, one after the other
    slow = replace(ctx, host=replace(ctx.host, link_bytes_per_s=1e7))
    passes = PassSeconds(forward=np.ones(1), backward=np.full(1, 2.0))
    spilled = offloaded_bytes(slow, "dense") / 1e7
    for fetched in (0.0, 0.5, 2.0, 3.0):
        waits = spilled_s(slow, "dense", passes, fetched)
        assert waits.forward == pytest.approx(spilled - 1.0)
        weights_wait = max(fetched - 2.0, 0.0)  # which their own gathers count
        assert 2.0 + weights_wait + waits.backward == pytest.approx(spilled + fetched)
    assert fetched_s(slow, Weights(dense=np.full(1, float(LAYER)), routed=np.zeros(1))) == pytest.approx(
        4.0 * LAYER / DP / 1e7
    )


def test_weights_alone_on_the_host_are_written_for_deepspeed_and_read_again() -> None:
    found = CASES["deepspeed"]["llama-3.1-70b-swapped"]
    written = replace(found.plan, config=replace(found.plan.config, offload="parameters"))
    bundle = export(written, found.problem, "deepspeed")
    files = bundle.files
    zero = json.loads(files["ds_config.json"])["zero_optimization"]
    assert zero["offload_param"] == {"device": "cpu", "pin_memory": True}
    assert "offload_optimizer" not in zero
    # whose assertion stops a run with states on the GPU (ops/adam/cpu_adam.py:138)
    assert not any("DeepSpeedCPUAdam" in one for one in bundle.warnings)
    again = read_launch_files(Source(name="launch.sh", text=files["launch.sh"], files=files))
    assert again.configuration.offload == "parameters"

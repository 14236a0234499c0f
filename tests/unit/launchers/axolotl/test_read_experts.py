"""Axolotl's expert ranks over DeepEP, as read, priced, planned and written."""

from __future__ import annotations

import pytest

from meshwright.launchers.reading.base import LaunchFile, Options, Overrides, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.launchers.registry import export
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.library import find_cluster, find_model
from meshwright.profiles.profile import default_profile
from meshwright.solver.planner.plan import ask
from meshwright.solver.predict import predict
from meshwright.solver.problem import Problem, SearchOptions, Workload

PURE = (
    "base_model: Qwen/Qwen3-30B-A3B-Instruct-2507\nexpert_parallel_size: 4\nsequence_len: 2048\n"
    "plugins:\n  - axolotl.integrations.expert_parallel.ExpertParallelPlugin\nsample_packing: true\n"
    "micro_batch_size: 1\ngradient_accumulation_steps: 1\noptimizer: adamw_torch_8bit\nbf16: true\n"
    "gradient_checkpointing: true\nflash_attention: true\n"
)
KERNELS = PURE.replace("plugins:\n", "plugins:\n  - axolotl.integrations.kernels.KernelsPlugin\n")
SCATTERED = f"{KERNELS}use_scattermoe: true\n"
SHARDED = PURE.replace("expert_parallel_size: 4", "expert_parallel_size: 2\ndp_shard_size: 2") + (
    "fsdp_version: 2\nfsdp_config:\n  auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
    "  reshard_after_forward: true\n"
)


def read(text: str, num_gpus: int = 4) -> LaunchFile:
    return read_launch_files(Source(name="moe.yaml", text=text), Overrides(num_gpus=num_gpus))


def test_expert_ranks_are_shards_of_all_other_weights() -> None:
    for text, ranks, stage, shards in ((PURE, 4, 0, 1), (SHARDED, 2, 3, 4)):
        found = read(text)
        config = found.configuration
        assert (config.expert_parallel_size, config.data_parallel_size) == (ranks, 4)
        assert (config.zero_stage, config.zero_shard_size) == (stage, shards)
        assert (found.launcher, found.workload.framework_options["moe_dispatcher"]) == ("axolotl", "deepep")
    assert any("without it Axolotl 0.19 warns" in note for note in found.notes)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (f"{PURE}experts_implementation: grouped_mm\n", {}),
        (f"{PURE}experts_implementation: batched_mm\n", {"grouped_gemm": "grouped"}),
        (f"{PURE}experts_implementation: eager\n", {"grouped_gemm": "loop"}),
        (SCATTERED, {"multiplies_absent": False}),
        (f"{KERNELS}expert_backend: ScatterMoE\n", {"multiplies_absent": False}),
        # plugin.py:139 takes the flag for the kernel, whatever experts_implementation says
        (f"{SCATTERED}experts_implementation: grouped_mm\n", {"multiplies_absent": False}),
        # args.py check_experts_implementation: without a flag experts are eager
        (f"{KERNELS}experts_implementation: scattermoe\n", {"grouped_gemm": "loop"}),
        (f"{KERNELS}experts_implementation: grouped_mm\n", {}),
        (KERNELS, {"grouped_gemm": "loop"}),
        (f"{PURE}use_scattermoe: true\n", {}),  # a flag of a plugin that is not listed
        (f"{PURE}expert_parallel_num_nvl_bytes: 4294967296\n", {"dispatch_buffer_bytes": 2.0**32}),
        (f"{PURE}expert_parallel_backend: deep_ep\nexpert_parallel_token_capacity: 1024\n", {}),
    ],
)
def test_kernels_of_experts_and_the_buffer_are_read(text: str, options: Options) -> None:
    usual, found = read(PURE).workload.framework_options, read(text)
    assert found.workload.framework_options == {**usual, **options}
    assert found.unread == ()


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("use_sonicmoe: true\n", "use_sonicmoe: .* refuses it next to use_scattermoe: true"),
        ("expert_backend: sonicmoe\n", "use_scattermoe: .* refuses it next to expert_backend: sonicmoe"),
        ("expert_backend: builtin\n", "use_scattermoe: .* refuses it next to expert_backend: builtin"),
        ("expert_backend: megablocks\n", "expert_backend: .*megablocks.* unknown"),
    ],
)
def test_kernels_of_experts_that_exclude_each_other_are_refused(more: str, why: str) -> None:
    with pytest.raises(InvalidProblemError, match=why):
        read(SCATTERED + more)


@pytest.mark.parametrize(
    ("text", "num_gpus", "why"),
    [
        (PURE, 8, r"its trainer refuses 4 × shard 1 × cp 1 of 8 ranks"),
        (SHARDED, 8, r"refuses 2 × shard 2 × cp 1 of 8 ranks|is 4 ranks; 8 start"),
        (PURE.replace("size: 4", "size: 3"), 3, "refuses 3 ranks for 128 experts"),
        (PURE.replace("size: 4", "size: 16"), 16, "over several nodes are not priced"),
        (PURE.replace("Qwen3-30B-A3B-Instruct-2507", "Qwen3-8B"), 4, "Qwen3 8B has no experts"),
        (
            PURE.replace("Qwen/Qwen3-30B-A3B-Instruct-2507", "meta-llama/Llama-4-Scout-17B-16E"),
            4,
            "experts of .* are in no tensor that Axolotl could cut",
        ),
        (SHARDED.replace("fsdp_version: 2\n", ""), 4, "under FSDP2 alone"),
        (SHARDED + "tensor_parallel_size: 2\n", 8, "next to tensor ranks"),
        (PURE + "deepspeed: zero3.json\n", 4, "next to DeepSpeed is not read"),
        (PURE + "expert_parallel_backend: torch\n", 4, "DeepEP alone is priced"),
        (PURE + "expert_parallel_num_rdma_bytes: 1\n", 4, "over several nodes"),
        (
            PURE + "adapter: qlora\nload_in_4bit: true\nquantize_moe_experts: true\nlora_r: 8\n"
            "lora_target_linear: true\n",
            4,
            "next to experts of fewer bits is not priced",
        ),
    ],
)
def test_what_its_trainer_refuses_or_no_price_is_of(text: str, num_gpus: int, why: str) -> None:
    with pytest.raises(InvalidProblemError, match=why):
        read(text, num_gpus)


def test_weights_of_a_rank_are_its_experts_and_all_or_a_share_of_the_rest() -> None:
    """Of 128 experts in 48 layers, 3 matrices of 2048 × 768 each: 29.0e9 weights of 30.5e9.

    Without FSDP replicas reduce copies of the other gradients alone: DDP ignores the experts.
    """
    model, cluster = find_model("qwen3-30b-a3b-2507"), find_cluster("dgx-h100", num_nodes=1)
    experts = 48 * 128 * 3 * 2048 * 768
    dense = model.num_parameters() - experts
    held = {PURE: experts / 4 + dense, SHARDED: experts / 4 + dense / 4}
    copied = {PURE: dense, SHARDED: 0}
    for text, weights in held.items():
        found = read(text)
        problem = Problem(model=found.model, cluster=cluster, workload=found.workload, launcher="axolotl")
        outcome = predict(problem, default_profile(cluster, "axolotl"), found.configuration)
        memory = outcome.stages[0].memory_bytes
        assert memory["weights"] == pytest.approx(2 * weights, rel=0.01)
        # those of a layer or two are not there yet at the peak
        assert memory["gradients"] == pytest.approx(2 * (weights + copied[text]), rel=0.03)


def test_grouped_products_have_rows_for_experts_of_other_ranks() -> None:
    """Of 8 experts on 4 ranks a token reaches 4 (1 - .75^8) = 3.6, each of which multiplies 8 rows of it.

    ScatterMoE multiplies 8 / 4 = 2 rows on each of the 4 ranks, 3.6 times fewer.
    """
    cluster, seconds = find_cluster("dgx-h100", num_nodes=1), list[float]()
    for text in (SCATTERED, PURE):
        found = read(text.replace("sequence_len: 2048", "sequence_len: 32768"))
        problem = Problem(model=found.model, cluster=cluster, workload=found.workload, launcher="axolotl")
        seconds.append(
            predict(problem, default_profile(cluster, "axolotl"), found.configuration).step_time_s
        )
    assert 1.2 < seconds[1] / seconds[0] < 4 * (1 - 0.75**8)


def test_expert_ranks_are_planned_where_a_request_states_deepep_and_written_and_read_back() -> None:
    cluster = find_cluster("dgx-h100", num_nodes=1)
    for options, ranks in (({}, [1]), ({"moe_dispatcher": "deepep"}, [2])):
        workload = Workload(
            global_batch_size=8, seq_length=4096, optimizer="adamw-8bit-bf16", framework_options=options
        )
        problem = Problem(
            model=find_model("qwen3-30b-a3b"), cluster=cluster, workload=workload, launcher="axolotl",
            options=SearchOptions(
                certify="none", top_k=1, constraints=("expert_parallel_size == 2",) if options else ()
            ),
        )  # fmt: skip
        plans = ask(problem, default_profile(cluster, "axolotl")).plans
        assert [one.config.expert_parallel_size for one in plans] == ranks
    files = export(plans[0], problem, "axolotl").files
    assert "expert_parallel_size: 2\n" in files["axolotl.yaml"]
    assert "ExpertParallelPlugin" in files["axolotl.yaml"]
    assert "from deep_ep import Buffer" in files["launch.sh"]
    found = read_launch_files(Source(name="axolotl.yaml", text=files["axolotl.yaml"], files=files))
    assert (found.configuration, found.workload) == (plans[0].config, problem.workload)

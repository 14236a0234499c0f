"""Axolotl's checkpoints with experts in NVFP4: read, priced, and refused where they are not priced."""

from __future__ import annotations

import pytest

from meshwright.launchers.reading.base import LaunchFile, Overrides, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.library import find_cluster
from meshwright.profiles.profile import default_profile
from meshwright.solver.predict import predict
from meshwright.solver.problem import Problem


def read(text: str, overrides: Overrides, name: str) -> LaunchFile:
    return read_launch_files(Source(name=name, text=text), overrides)


NVFP4 = (
    "base_model: nvidia/Qwen3-30B-A3B-NVFP4\nplugins: [axolotl.integrations.kernels.KernelsPlugin]\n"
    "use_sonicmoe: true\nnvfp4_merge_aware: true\nsequence_len: 2048\nsample_packing: true\nbf16: auto\n"
    "attn_implementation: flash_attention_2\nadapter: lora\nlora_r: 16\nlora_dropout: 0\ntf32: true\n"
    "lora_target_modules: [q_proj, k_proj, v_proj, o_proj]\n"
    "lora_target_parameters: [experts.gate_up_proj, experts.down_proj]\nmicro_batch_size: 1\n"
    "gradient_accumulation_steps: 1\noptimizer: adamw_torch_fused\ngradient_checkpointing: true\n"
)


@pytest.mark.parametrize(
    ("name", "published_gib"),
    # examples/qwen3/README.md and examples/qwen3-next/README.md of 0.18, at 2048 tokens a step
    [("Qwen3-30B-A3B-NVFP4", 31), ("Qwen3-Next-80B-A3B-Instruct-NVFP4", 86)],
)
def test_adapters_merged_into_nvfp4_take_the_memory_that_axolotl_publishes(
    name: str, published_gib: float
) -> None:
    found = read(NVFP4.replace("Qwen3-30B-A3B-NVFP4", name), Overrides(num_gpus=1), "nvfp4.yaml")
    workload = found.workload
    assert (found.launcher, workload.base_precision) == ("accelerate", "nvfp4")
    assert workload.framework_options["fake_quantization"] == "nvfp4-merged"
    assert any(note.startswith("nvfp4_merge_aware: assuming") for note in found.notes)
    cluster = find_cluster("dgx-h200", num_nodes=1)
    problem = Problem(model=found.model, cluster=cluster, workload=workload, launcher=found.launcher)
    priced = predict(problem, default_profile(cluster, found.launcher), found.configuration)
    assert priced.memory is not None
    assert priced.memory.allocated_bytes == pytest.approx(published_gib * 2**30, rel=0.03)


def test_adapters_on_nvfp4_are_added_to_outputs_where_they_are_not_merged() -> None:
    plain = read(NVFP4.replace("nvfp4_merge_aware: true\n", ""), Overrides(num_gpus=1), "nvfp4.yaml")
    assert plain.workload.base_precision == "nvfp4"
    assert "fake_quantization" not in plain.workload.framework_options
    delayed = read(f"{NVFP4}nvfp4_merge_aware_start_step: 0.1\n", Overrides(num_gpus=1), "nvfp4.yaml")
    assert any("nvfp4_merge_aware_start_step" in note for note in delayed.notes)
    whole = NVFP4.replace("nvidia/Qwen3-30B-A3B-NVFP4", "Qwen/Qwen3-30B-A3B")
    found = read(whole, Overrides(num_gpus=1), "bf16.yaml")
    assert found.workload.base_precision == "bf16"
    assert any(note.startswith("nvfp4_merge_aware does nothing") for note in found.notes)


GROUPED = "use_scattermoe: true\ndsv4_fp4_grouped_mode: nvfp4"


def test_scattermoe_reads_the_nvfp4_experts_of_qwen_and_gemma() -> None:
    """Axolotl 067b021c, examples/gemma4/26b-a4b-moe-nvfp4-lora.yaml."""
    text = NVFP4.replace("use_sonicmoe: true\nnvfp4_merge_aware: true", GROUPED)
    for name in ("Qwen3-30B-A3B-NVFP4", "Gemma-4-26B-A4B-NVFP4"):
        found = read(text.replace("Qwen3-30B-A3B-NVFP4", name), Overrides(num_gpus=1), "nvfp4.yaml")
        assert found.workload.base_precision == "nvfp4"
        assert found.workload.framework_options["wraps_experts"] is False
        assert not any("priced in 16 bits" in note for note in found.notes)
        assert any(note.startswith("rows that Marlin pads to 64") for note in found.notes)
        assert found.unread == ()
    named = text.replace("use_scattermoe: true", "expert_backend: scattermoe\nmoe_grouped_backend: marlin")
    flagged, worded = (read(one, Overrides(num_gpus=1), "nvfp4.yaml") for one in (text, named))
    assert worded.workload == flagged.workload
    one = text.replace("[experts.gate_up_proj, experts.down_proj]", "[experts.down_proj]")
    with pytest.raises(InvalidProblemError, match=r"base_model: .* adapters on both tensors of experts"):
        read(one, Overrides(num_gpus=1), "nvfp4.yaml")


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (("use_sonicmoe: true\n", ""), "base_model: .* priced under SonicMoE"),
        (("use_sonicmoe: true", "use_scattermoe: true"), "base_model: .* or ScatterMoE's grouped products"),
        # args.py lets capitals pass, and runtime.py:77 hands them to grouped_fp4_available, which has none
        (("use_sonicmoe: true", GROUPED.replace(": nvfp4", ": NVFP4")), "base_model: .* or ScatterMoE's"),
        (
            ("use_sonicmoe: true", f"{GROUPED}\nmoe_grouped_backend: cutlass"),
            "under moe_grouped_backend: cutl",
        ),
        (("kernels.KernelsPlugin", "liger.LigerPlugin"), "base_model: .* priced under SonicMoE"),
        (("Qwen3-30B-A3B-NVFP4", "Qwen3-8B-NVFP4"), "base_model: .* of which experts in one tensor"),
        (("adapter: lora", "adapter:"), "base_model: .* whose weights are frozen"),
        (("bf16: auto", "bf16: auto\nlora_qkv_kernel: true"), "its trainer refuses it next to lora_qkv_k"),
        (
            ("bf16: auto", "bf16: auto\nfsdp_version: 2\nfsdp_config: {reshard_after_forward: true}"),
            "base_model: .* nvfp4 are not cut over ranks",
        ),
    ],
)
def test_checkpoints_in_nvfp4_are_refused_where_their_experts_are_not_priced(
    changed: tuple[str, str], why: str
) -> None:
    assert changed[0] in NVFP4
    with pytest.raises(InvalidProblemError, match=why):
        read(NVFP4.replace(*changed), Overrides(num_gpus=8), "nvfp4.yaml")

"""``meshwright verify``: launchers build ranks of plans on fake tensors, and what they build was priced."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from meshwright.launchers.registry import export
from meshwright.launchers.target import ExportBundle
from meshwright.profiles.library import find_model
from meshwright.service.verify import verify as module
from meshwright.service.verify.environments import (
    ACCELERATE,
    DEEPSPEED,
    FOLDER_VARIABLE,
    MEGATRON_LM,
    TORCHTITAN,
    Environment,
    MissingEnvironmentError,
    make,
)
from meshwright.service.verify.verify import Verification, VerifiedQuantity, verify
from meshwright.solver.configuration import Configuration
from meshwright.solver.problem import Workload
from tests.draws import seldom, some_of
from tests.launchers.cases import DEEPSEEK_V3, LLAMA_70B, target
from tests.launchers.environments import ROOT
from tests.processes import warm_builders

SMALL = replace(
    LLAMA_70B, name="small", num_layers=6, hidden_size=512, ffn_hidden_size=1792, num_attention_heads=8,
    num_kv_heads=4, head_dim=64, vocab_size=32000,
)  # fmt: skip
STAGES = Configuration(
    tensor_parallel_size=2, sequence_parallel=True, pipeline_parallel_size=2, data_parallel_size=2,
    zero_stage=1, zero_shard_size=2, num_microbatches=8, pipeline_schedule="1f1b", stage_layers=(2, 4),
)  # fmt: skip
SHARDS = replace(STAGES, zero_stage=3)
STARTED = module._output  # a builder, in a process that has loaded nothing


@pytest.fixture(autouse=True)
def _environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(ROOT))
    monkeypatch.setattr(module, "_output", warm_builders.output)


def verified(config: Configuration, launcher: str) -> Verification:
    """A plan of the small model before its launcher."""
    found = target(SMALL, config, seq_length=1024)
    return verify(found.plan, found.problem, launcher)


@cache
def stages() -> Verification:
    """Return what Megatron-LM builds of ``STAGES``, once for all tests that compare with it."""
    make(MEGATRON_LM)
    return verified(STAGES, "megatron-lm")


def figures(found: Verification, rank: int) -> Mapping[str, VerifiedQuantity]:
    """Quantities of one rank by their names."""
    return {one.name: one for one in found.quantities if one.rank == rank}


def test_megatron_lm_builds_every_stage_with_the_states_and_flops_that_were_priced() -> None:
    found = stages()
    assert (found.verdict, found.reasons) == ("verified", ())
    assert found.ranks == (0, 4, 7)  # the first of both stages, 2 * 2 ranks each, and the last of all
    first = figures(found, 0)
    layer = 512 * (8 + 2 * 4) * 64 // 2 + 512 * 512 // 2 + 3 * 512 * 1792 // 2 + 2 * 512
    weights = 2 * layer + 32000 * 512 // 2
    assert first["parameters"].built == weights
    assert first["weight_bytes"].built == 2 * weights
    assert first["gradient_bytes"].built == pytest.approx(4 * weights, rel=1e-4)
    assert first["optimizer_bytes"].built == pytest.approx((4 + 4 + 4) * weights / 2, rel=1e-4)
    products = 6 * 1024 * (layer - 2 * 512) * 2
    attention = 3.5 * 2 * 2 * 1024 * 1024 * (8 // 2) * 64 * 2
    assert first["flops"].built == pytest.approx(products + attention, rel=1e-6)
    assert first["peak_bytes"].error == pytest.approx(0.0, abs=0.15)
    assert "peak_bytes" not in figures(found, 7)  # built like rank 4, which was traced


@pytest.mark.parametrize("modules", some_of(["mlp", "layernorm+mlp"], each=2, first=1))
def test_modules_that_selective_recomputation_replays_are_counted_again(modules: str) -> None:
    """Each is replayed without Transformer Engine, whose state ``CheckpointWithoutOutput`` asks for."""
    make(MEGATRON_LM)
    config = replace(STAGES, recompute_granularity="selective")
    replayed = Workload(
        global_batch_size=config.global_batch_size,
        seq_length=1024,
        framework_options={"recompute_modules": modules},
    )
    found = target(SMALL, config, workload=replayed)
    built = verify(found.plan, found.problem, "megatron-lm")
    assert (built.verdict, built.reasons) == ("verified", ())
    own, kept = figures(built, 0), figures(stages(), 0)
    mlp = 2 * 1024 * 3 * 512 * 1792 // 2 * 2  # forward products of two layers, half of each on this rank
    assert own["flops"].built - kept["flops"].built == pytest.approx(mlp if "mlp" in modules else 0)
    assert own["peak_bytes"].built < kept["peak_bytes"].built


@seldom
def test_recomputed_layers_are_computed_and_counted_again() -> None:
    make(MEGATRON_LM)
    found = verified(replace(STAGES, recompute_granularity="full", recompute_layers=1), "megatron-lm")
    assert (found.verdict, found.reasons) == ("verified", ())
    assert all(one.exact for one in found.quantities if one.name == "flops")


def test_attention_in_separate_kernels_keeps_its_scores() -> None:
    make(MEGATRON_LM)
    alone, few = Configuration(num_microbatches=1, stage_layers=(2,)), replace(SMALL, num_layers=2)
    peaks = []
    for kernel in ("flash2", "torch"):
        asked = Workload(
            global_batch_size=1, seq_length=1024, framework_options={"attention_kernel": kernel}
        )
        found = target(few, alone, workload=asked)
        built = verify(found.plan, found.problem, "megatron-lm")
        peaks.append(figures(built, 0)["peak_bytes"].built)
    scores = 2 * 8 * 1024 * 1024 * 2  # layers, heads, queries, keys: a softmax in 2 bytes each
    row_sums = 2 * 8 * 1024 * 4  # which flash attention keeps instead
    assert peaks[1] - peaks[0] == pytest.approx(scores - row_sums, rel=0.01)


def test_sequences_split_over_ranks_are_verified_in_part_with_the_reason() -> None:
    make(MEGATRON_LM)
    found = verified(replace(STAGES, context_parallel_size=2, zero_shard_size=4), "megatron-lm")
    assert found.verdict == "partly verified"
    assert found.reasons[0].startswith("cp > 1")
    assert all(one.exact for one in found.quantities)


@seldom
def test_8_bits_are_built_in_16_and_nothing_that_is_priced_is_taken_off_their_peak() -> None:
    """A step in fp8 and one in bf16 are one step here; the price of fp8 is less by its 8-bit inputs."""
    narrowed = Workload(
        global_batch_size=STAGES.global_batch_size,
        seq_length=1024,
        precision="fp8",
        framework_options={"precision_recipe": "fp8-current"},
    )
    asked = target(SMALL, STAGES, workload=narrowed)
    wide, narrow = stages(), verify(asked.plan, asked.problem, "megatron-lm")
    assert (wide.verdict, narrow.verdict) == ("verified", "partly verified")
    assert narrow.reasons[0].startswith("fp8: ")
    assert all(one.exact is not False for one in narrow.quantities)
    first, second = (figures(found, 0)["peak_bytes"] for found in (wide, narrow))
    assert second.built == first.built == pytest.approx(first.priced, rel=0.05)
    assert second.priced < first.priced


def test_latent_attention_is_split_as_transformer_engine_splits_it_and_verified_in_part() -> None:
    """Projections to the latents are whole on every tensor rank, where local layers split them."""
    make(MEGATRON_LM)
    latent = replace(
        SMALL, mla=DEEPSEEK_V3.mla, head_dim=DEEPSEEK_V3.head_dim, num_kv_heads=8, rotary_scaling=None
    )
    found = target(latent, STAGES, seq_length=1024)
    built = verify(found.plan, found.problem, "megatron-lm")
    assert built.verdict == "partly verified"
    assert built.reasons[0].startswith("latent attention: ")
    assert all(one.exact is not False for one in built.quantities)
    peak = figures(built, 0)["peak_bytes"]
    assert peak.built == pytest.approx(peak.priced, rel=0.05)


def test_megatron_fsdp_is_not_built_and_says_why() -> None:
    make(MEGATRON_LM)
    alone = replace(STAGES, pipeline_parallel_size=1, pipeline_schedule="none", stage_layers=(6,))
    found = verified(replace(alone, zero_stage=2), "megatron-lm")
    assert found.verdict == "not built"
    assert "Megatron-FSDP (ZeRO-2 and ZeRO-3) reads the data of tensors" in found.reasons[0]


def test_torchtitan_builds_every_stage_with_the_states_and_flops_that_were_priced() -> None:
    make(TORCHTITAN)
    found = verified(SHARDS, "torchtitan")
    assert (found.verdict, found.reasons) == ("verified", ())
    assert [figures(found, rank)["layers"].built for rank in (0, 4)] == [[2], [4]]
    first = figures(found, 0)
    matrices = 512 * (8 + 2 * 4) * 64 // 2 + 512 * 512 // 2 + 3 * 512 * 1792 // 2
    weights = 2 * (matrices + 2 * 512) + 32000 * 512 // 2
    assert first["parameters"].built == weights
    # fp32 shards of 2 ranks; torch's pipeline keeps weights gathered in bf16, and whole fp32 gradients
    assert first["weight_bytes"].built == 4 * weights / 2 + 2 * weights
    assert first["gradient_bytes"].built == 4 * weights
    assert first["optimizer_bytes"].built == 2 * 4 * weights / 2
    attention = 3.5 * 2 * 2 * 1024 * 1024 * (8 // 2) * 64 * 2
    assert first["flops"].built == pytest.approx(6 * 1024 * matrices * 2 + attention, rel=1e-6)
    assert first["peak_bytes"].error == pytest.approx(0.0, abs=0.1)
    assert "peak_bytes" not in figures(found, 7)  # built like rank 4, which was traced


@pytest.mark.parametrize(("split", "replayed"), some_of([("tensor", 3), ("parallel", 2)], each=2))
def test_torchtitan_replays_of_a_compiled_block_what_its_backward_pass_reads(
    split: str, replayed: int
) -> None:
    make(TORCHTITAN)
    config = Configuration(
        tensor_parallel_size=2, sequence_parallel=True, data_parallel_size=4,
        zero_stage=3, zero_shard_size=4, num_microbatches=2, recompute_granularity="selective",
        expert_tensor_parallel_size=2 if split == "tensor" else 1,
        expert_parallel_size=2 if split == "parallel" else 1, stage_layers=(1,),
    )  # fmt: skip
    few = target(replace(find_model("qwen3-30b-a3b"), num_layers=1), config, seq_length=1024)
    built = figures(verify(few.plan, few.problem, "torchtitan"), 0)["flops"]
    attention = 2048 * (32 + 2 * 4) * 128 // 2 + 32 * 128 * 2048 // 2  # not replayed: one product is saved,
    core = 2 * 2 * 1024 * 1024 * 32 * 128 // 2  # the other's reduce-scatter
    # of each token; gate, up and down are replayed, but no down whose outputs go back to other ranks
    experts = 8 * 3 * 2048 * 768 // 2
    head = 2048 * 151936 // 2
    step = 6 * 1024 * (attention + head) + 3.5 * core + (6 + 2 * replayed / 3) * 1024 * experts
    assert built.built == pytest.approx(step, rel=2e-3)  # the router, 2048 by 128, beside them
    assert built.exact


def test_accelerate_shards_a_model_of_transformers_as_it_was_priced() -> None:
    make(ACCELERATE)
    config = Configuration(
        data_parallel_size=8, zero_stage=3, zero_shard_size=8, num_microbatches=2, stage_layers=(2,)
    )
    asked = target(replace(SMALL, num_layers=2), config, seq_length=1024)
    found = verify(asked.plan, asked.problem, "accelerate")
    assert (found.verdict, found.reasons) == ("verified", ())
    layer = 512 * (8 + 2 * 4) * 64 + 512 * 512 + 3 * 512 * 1792 + 2 * 512
    weights = 2 * layer + 2 * 32000 * 512 + 512
    for rank in (0, 7):
        built = figures(found, rank)
        assert built["parameters"].built == weights
    first = figures(found, 0)
    assert first["weight_bytes"].built == 4 * weights / 8
    assert first["optimizer_bytes"].built == 2 * 4 * weights / 8
    assert first["gradient_bytes"].built == 2 * weights  # bf16, whole until the last pass
    products = 6 * 1024 * (weights - 2 * 2 * 512 - 512 - 32000 * 512)
    attention = 3.5 * 2 * 2 * 1024 * 1024 * 8 * 64 * 2
    assert first["flops"].built == pytest.approx(products + attention, rel=1e-6)
    assert first["peak_bytes"].error is not None


LAYER = 512 * (8 + 2 * 4) * 64 + 512 * 512 + 3 * 512 * 1792  # of matrices
TABLE = 32000 * 512
REPLICAS = Configuration(
    data_parallel_size=8, zero_stage=2, zero_shard_size=8, num_microbatches=2, stage_layers=(2,)
)


def built_by_deepspeed(config: Configuration) -> Verification:
    """A plan of two small layers, which DeepSpeed's engine has built as it was priced."""
    make(DEEPSPEED)
    found = target(replace(SMALL, num_layers=2), config, seq_length=1024)
    built = verify(found.plan, found.problem, "deepspeed")
    assert (built.verdict, built.reasons) == ("verified", ())
    return built


@pytest.mark.parametrize(("stage", "shards"), some_of([(2, (1, 8, 8)), (3, (8, 8, 8))], each=2, first=1))
def test_deepspeed_shards_what_its_stage_shards(stage: int, shards: tuple[int, int, int]) -> None:
    found = built_by_deepspeed(replace(REPLICAS, zero_stage=stage))
    first = figures(found, 0)
    weights = 2 * (LAYER + 2 * 512) + 2 * TABLE + 512
    assert first["parameters"].built == weights
    assert first["weight_bytes"].built == pytest.approx(2 * weights / shards[0], rel=1e-4)
    assert first["gradient_bytes"].built == pytest.approx(2 * weights / shards[1], rel=1e-4)  # bf16
    assert first["optimizer_bytes"].built == pytest.approx((4 + 4 + 4) * weights / shards[2], rel=1e-4)
    attention = 3.5 * 2 * 2 * 1024 * 1024 * 8 * 64 * 2
    assert first["flops"].built == pytest.approx(6 * 1024 * (2 * LAYER + TABLE) + attention, rel=1e-6)
    assert "peak_bytes" in first
    assert "peak_bytes" not in figures(found, 7)  # built like rank 0, which was traced


def test_deepspeed_divides_its_pipeline_by_layers_and_recomputes_whole_ones() -> None:
    config = replace(
        REPLICAS, pipeline_parallel_size=2, zero_stage=1, num_microbatches=4, pipeline_schedule="1f1b",
        stage_layers=(1, 1), recompute_granularity="full", recompute_layers=1,
    )  # fmt: skip
    found = built_by_deepspeed(config)
    assert found.ranks == (0, 8, 15)
    assert [figures(found, rank)["parameters"].built for rank in (0, 8)] == [
        LAYER + 2 * 512 + TABLE,
        LAYER + 2 * 512 + TABLE + 512,
    ]
    assert all("peak_bytes" in figures(found, rank) for rank in (0, 8))
    # reentrant checkpoints, the last product too; the head and its loss are on the second stage
    core = 2 * 2 * 1024 * 1024 * 8 * 64
    layer = (6 + 2) * 1024 * LAYER + (3.5 + 1) * core
    built = [figures(found, rank)["flops"].built for rank in (0, 8)]
    assert built == pytest.approx([layer, layer + 6 * 1024 * TABLE], rel=1e-6)


def test_autotp_splits_linear_layers_and_no_embedding() -> None:
    found = built_by_deepspeed(replace(REPLICAS, tensor_parallel_size=2))
    built = figures(found, 0)["parameters"].built
    assert built == 2 * (LAYER / 2 + 2 * 512) + TABLE + TABLE / 2 + 512


def test_a_block_that_is_compiled_and_recomputed_leaves_out_its_last_product() -> None:
    make(ACCELERATE)
    config = Configuration(
        data_parallel_size=8, zero_stage=3, zero_shard_size=8, num_microbatches=2, stage_layers=(2,),
        recompute_granularity="full", recompute_layers=2,
    )  # fmt: skip
    few = replace(SMALL, num_layers=2)
    found = target(few, config, seq_length=1024)
    built = figures(verify(found.plan, found.problem, "accelerate"), 0)["flops"]
    matrices = 512 * (8 + 2 * 4) * 64 + 512 * 512 + 3 * 512 * 1792
    core = 2 * 2 * 1024 * 1024 * 8 * 64
    again = 2 * 1024 * (matrices - 512 * 1792) + core
    step = 2 * (6 * 1024 * matrices + 3.5 * core + again) + 6 * 1024 * 32000 * 512
    assert built.built == pytest.approx(step, rel=1e-6)
    assert built.exact


def test_a_file_that_states_another_model_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    make(MEGATRON_LM)

    def edited(*given: object) -> ExportBundle:
        bundle = export(*given)  # type: ignore[arg-type]
        files = {
            name: text.replace("--ffn-hidden-size 1792", "--ffn-hidden-size 1856")
            for name, text in bundle.files.items()
        }
        return replace(bundle, files=files)

    monkeypatch.setattr(module, "export", edited)
    found = verified(STAGES, "megatron-lm")
    assert found.verdict == "differs"
    wrong = {one.name for one in found.quantities if one.exact is False}
    assert wrong == {"parameters", "matrices", "weight_bytes", "gradient_bytes", "optimizer_bytes", "flops"}


def test_a_launcher_that_was_not_installed_is_named_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, os.fspath(tmp_path))
    with pytest.raises(MissingEnvironmentError, match="meshwright verify --install megatron-lm"):
        verified(STAGES, "megatron-lm")


def test_an_environment_whose_torch_was_removed_with_another_is_made_anew(tmp_path: Path) -> None:
    environment = Environment("none", (), root=tmp_path)
    packages = environment.folder / "lib" / "python3.11" / "site-packages"
    (tmp_path / "shared" / "torch").mkdir(parents=True)
    packages.mkdir(parents=True)
    (packages / "torch.pth").write_text(f"{tmp_path / 'shared'}\n")
    (environment.folder / "ready").write_text(environment.stamp)
    assert environment.is_ready
    (tmp_path / "shared" / "torch").rmdir()
    assert not environment.is_ready


def test_what_a_launcher_compiles_is_kept_also_where_an_image_forbids_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Environments are installed uncompiled: each process would compile torch and transformers anew."""
    environment = Environment("none", (), root=tmp_path)
    environment.python.parent.mkdir(parents=True)
    environment.python.symlink_to(sys.executable)
    script = tmp_path / "build.py"
    script.write_text("import json, sys\nprint(json.dumps({'done': sys.dont_write_bytecode}))\n")
    monkeypatch.setattr(module, "_output", STARTED)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # as the service's own image has it
    command = [str(environment.python), str(script)]
    found = module._asked(environment, command, "{}", 60.0, lambda: False, memory_bytes=2**30)
    assert found == [{"done": False}]


def test_memory_that_is_refused_is_reported_with_the_limit_and_its_option() -> None:
    """Python, torch, and a C function that cannot even build its MemoryError refuse in five ways."""
    code = """
import resource, torch, building
def fails(words):
    raise SystemError(words)
def fails_for_it():
    try:
        bytearray(8 << 30)
    except MemoryError as error:
        raise ValueError("no tensor") from error
building.limit(resource.RLIMIT_DATA, 3 << 30)
null = "<built-in method apply of FunctionMeta object> returned NULL without setting an exception"
asked = (
    lambda: bytearray(8 << 30),
    lambda: torch.zeros(2 << 30),
    lambda: fails("error return without exception set"),
    lambda: fails(null),
    fails_for_it,
    lambda: building.apart(bytearray, 8 << 30),
    lambda: building.apart(building.os.abort),
    lambda: len(1),
)
for ask in asked:
    try:
        ask()
    except Exception as error:
        print(building.said(error))
"""
    here = {**os.environ, "PYTHONPATH": str(module._INSIDE), "OMP_NUM_THREADS": "1"}
    told = subprocess.run(
        [sys.executable, "-c", code], env=here, capture_output=True, text=True, check=True
    )
    *refused, aborted, other = told.stdout.splitlines()
    assert [line.partition(" in ")[0] for line in refused] == [
        "it needs more memory than its process may take"
    ] * 6
    assert aborted.startswith("the process of a rank ended by signal 6 without an answer")
    limit = "3 GiB (--memory-gib of meshwright verify or verify_memory_bytes of a service raises that)"
    assert all(line.endswith(limit) for line in (*refused, aborted))
    assert other.startswith("TypeError: ")

"""LLaMA-Factory's new configuration: what its trainer does, and what it stops at itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshwright.launchers.reading.base import LaunchFile, Overrides, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.launchers.registry import export
from meshwright.profiles.errors import InvalidProblemError, RefusedExportError
from meshwright.profiles.storage import BasePrecision
from tests.launchers.cases import plan
from tests.launchers.plans import CASES

FILE = """\
model: Qwen/Qwen3-0.6B
model_class: llm
dist_config:
  name: fsdp2
train_dataset: data.yaml
micro_batch_size: 2
cutoff_len: 2048
"""


def _read(text: str, *, gpus: int = 8) -> LaunchFile:
    return read_launch_files(Source(name="v1.yaml", text=text), Overrides(num_gpus=gpus))


def _facts(found: LaunchFile) -> tuple[object, ...]:
    work, config = found.workload, found.configuration
    return (
        found.launcher, config.zero_stage, config.num_microbatches, config.recompute_granularity,
        work.precision, work.lora_rank, work.base_precision, config.offload,
    )  # fmt: skip


USUAL = ("llama-factory-accelerate", 3, 1, "full", "bf16", 0, "bf16", "none")


@pytest.mark.parametrize(
    ("added", "changed"),
    [
        ("", {}),
        ("global_batch_size: 64", {2: 4}),
        ("enable_activation_checkpointing: false", {3: "none"}),
        ("bf16: false", {4: "fp32"}),
        ("peft_config: {name: lora}", {5: 8}),  # LoraConfigDict's defaults
        ("peft_config: {name: lora, r: 32}\nquant_config: {name: bnb}", {5: 32, 6: "nf4-double"}),
        ("dist_config: {name: fsdp2, reshard_after_forward: false}", {1: 2}),
        ("dist_config: {name: fsdp2, offload_params: true}", {7: "optimizer+parameters"}),
        ("dist_config: null", {1: 0, 4: "fp32"}),  # DDP of weights that are cast up
    ],
)
def test_a_file_is_read_as_its_trainer_runs_it(added: str, changed: dict[int, object]) -> None:
    lines = FILE.replace("dist_config:\n  name: fsdp2\n", "") if "dist_config" in added else FILE
    found = _facts(_read(lines + added))
    assert found == tuple(changed.get(at, value) for at, value in enumerate(USUAL))


def test_liger_fuses_operators_and_leaves_the_loss_whole() -> None:
    options = _read(f"{FILE}kernel_config: {{name: liger_kernel, include_kernels: auto}}").workload
    assert options.framework_options["norm_fused"] is True
    assert "loss_kernel" not in options.framework_options


@pytest.mark.parametrize(
    ("added", "field", "words"),
    [
        ("flash_attn: flash_attention2", "flash_attn", "its trainer refuses this name"),
        ("batching_strategy: padding_free", "batching_strategy", "refuses padding_free"),
        ("global_batch_size: 24", "global_batch_size", "its trainer refuses 24: 8 replicas × 2"),
        ("optim_config: {name: muon}", "optim_config.name", "no plugin is registered"),
        ("peft_config: {name: freeze}", "peft_config.name", "trains some layers"),
        ("per_device_train_batch_size: 1", "per_device_train_batch_size", "is unknown"),
        ("model_class: cls", "model_class", "a classifier"),
    ],
)
def test_what_it_stops_at_or_no_plan_describes_is_refused(added: str, field: str, words: str) -> None:
    name = added.partition(":")[0]
    text = "".join(f"{line}\n" for line in FILE.splitlines() if not line.startswith(f"{name}:"))
    with pytest.raises(InvalidProblemError, match=words) as caught:
        _read(text + added)
    assert [one.pointer for one in caught.value.errors] == [field]


ADAPTED: dict[str, Any] = {"lora_rank": 16, "lora_targets": ("q_proj", "v_proj")}


@pytest.mark.parametrize(
    ("adapted", "base"), [({}, "bf16"), (ADAPTED, "bf16"), (ADAPTED, "nf4"), (ADAPTED, "nf4-double")]
)
def test_a_plan_of_shards_is_written_as_it_is_read(adapted: dict[str, Any], base: BasePrecision) -> None:
    plain = CASES["llama-factory-accelerate"]["llama-3.1-70b-fsdp"]
    config = replace(plain.config, zero_shard_size=plain.config.data_parallel_size)
    work = replace(plain.workload, base_precision=base, **adapted)
    found = replace(plain, plan=plan(config), problem=replace(plain.problem, workload=work))
    files = export(found.plan, found.problem, "llama-factory-accelerate", version="v1").files
    read = read_launch_files(Source(name="llama_factory_v1.yaml", text=files["llama_factory_v1.yaml"]),
                             Overrides(num_gpus=config.num_gpus))  # fmt: skip
    assert (read.configuration, read.unread) == (config, ())
    assert (read.workload.lora_targets, read.workload.base_precision) == (work.lora_targets, base)
    alone = replace(found.plan, config=replace(config, zero_stage=0, zero_shard_size=1))
    with pytest.raises(RefusedExportError, match="v1 trains in 32 bits without FSDP2"):
        export(alone, found.problem, "llama-factory-accelerate", version="v1")

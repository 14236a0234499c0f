"""Edits of stored launch files of every launcher read back as priced, and change nothing else."""

from functools import cache

import pytest

from benchmarks.fix import StoredFile, outcome, stored
from tests.draws import some_of

# One of each kind of file, of every launcher. `make test` takes every second one, which still covers each
# kind of document. `make bench ARGS=fix` takes all files.
SHOWN = (
    "megatron-bridge/llama-3.1-70b-offloaded",
    "megatron-lm/llama-3.1-70b-offloaded",
    "deepspeed/llama-3.1-70b-offloaded",
    "flagscale/mixtral-8x7b-experts",
    "torchtitan/llama-3.1-70b-fsdp",
    "ms-swift/llama-3.1-70b-offloaded",
    "trl/llama-3.1-70b-fsdp",
    "llama-factory-accelerate/llama-3.1-70b-fsdp",
    "maxtext/llama-3.1-70b-offloaded",
    "nanotron/llama-3-70b-tensor",
    "llama-factory/mixtral-8x7b-experts",
    "huggingface/trl/trl/accelerate_configs/fsdp2.yaml",
    "axolotl-ai-cloud/axolotl/examples/llama-3/lora-8b.yml",
    "OpenAccess-AI-Collective/axolotl/examples/phi/phi3-ft.yml",
    "hiyouga/LLaMA-Factory/examples/deepspeed/ds_z2_config.json",
    "hiyouga/LLaMA-Factory/examples/train_full/qwen3_full_sft.yaml",
)


@cache
def files() -> dict[str, list[StoredFile]]:
    found: dict[str, list[StoredFile]] = {}
    for one in stored():
        found.setdefault(one.name, []).append(one)
    return found


@pytest.mark.parametrize("name", some_of(SHOWN, each=2))
def test_edits_of_a_stored_file_read_back_as_priced(name: str) -> None:
    for one in files()[name]:
        found = outcome(one, most=1)
        assert found.kind in ("fixed", "no gain"), found.why

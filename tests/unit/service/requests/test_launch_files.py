"""What launch files state of a request, besides their model and workload."""

from typing import Any

import pytest

from meshwright.launchers.reading.base import Source
from meshwright.service.requests.launch_files import own_of_files

AXOLOTL = """\
base_model: meta-llama/Llama-3.1-8B
sequence_len: 2048
micro_batch_size: 2
optimizer: adamw_torch
bf16: true
flash_attention: true
"""
AWAY = "deepspeed: deepspeed_configs/zero3_bf16_cpuoffload_all.json\n"
HERE = "deepspeed: deepspeed_configs/zero3_bf16.json\n"
ACTIVATIONS = (
    "adapter: lora\nlora_r: 8\nlora_target_linear: true\nload_in_8bit: true\nactivation_offloading: true\n"
)


@pytest.mark.parametrize(
    ("more", "stated", "allowed"),
    [
        (AWAY, {}, ("offload",)),  # so that the best plan is no slower than the files' own
        (AWAY, {"allow": ["fp8"]}, ("fp8", "offload")),
        (AWAY, {"allow": ["none"]}, ()),  # the request's word counts
        (HERE, {}, ()),
        (ACTIVATIONS, {}, ()),  # accelerate, under which it is priced, has no such plans
    ],
)
def test_a_search_may_offload_where_the_files_do(
    more: str, stated: dict[str, Any], allowed: tuple[str, ...]
) -> None:
    request: dict[str, Any] = {"cluster": {"gpu": "a100-sxm-40gb", "gpus_per_node": 4, "num_nodes": 1}}
    request |= {"search": stated} if stated else {}
    own = own_of_files(request, Source(name="a.yml", text=AXOLOTL + more))
    assert {*own.problem.options.allow} - {"none"} == {*allowed}

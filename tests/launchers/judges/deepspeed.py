"""DeepSpeed 0.19 on a CPU: its configuration, told the data-parallel size that a process group would tell.

Without an initialised group it counts a world of one, whatever it is told; so its rank is set to 0 and an
``mpu`` reports the size.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ["DS_ACCELERATOR"] = "cpu"
sys.path.remove(str(Path(__file__).parent))  # this file has the name of the package

from deepspeed.runtime import config as module
from deepspeed.runtime.config import DeepSpeedConfig
from deepspeed.runtime.utils import partition_balanced
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

sys.path.insert(0, str(Path(__file__).parent))
from protocol import Case, Seen, serve

STATES_OF_ADAM, SHARDED_WEIGHTS = 4, 3
module.dist.get_rank = lambda *_args: 0
module.dist.is_initialized = lambda *_args: True


class Ranks:
    """The model-parallel unit that DeepSpeed asks for the data-parallel size."""

    def __init__(self, size: int) -> None:
        self.size = size

    def get_data_parallel_world_size(self) -> int:
        """Ranks that see different data."""
        return self.size


def judge(case: Case) -> Seen:
    """What DeepSpeed makes of its JSON."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(case["files"]["ds_config.json"])
        file.flush()
        config = DeepSpeedConfig(file.name, mpu=Ranks(case["data_parallel_size"]))
    zero = config.zero_config
    raw = json.loads(case["files"]["ds_config.json"])
    return {
        "global_batch_size": config.train_batch_size,
        "micro_batch_size": config.train_micro_batch_size_per_gpu,
        "num_microbatches": config.gradient_accumulation_steps,
        "zero_stage": int(zero.stage),
        "tensor_parallel_size": raw.get("tensor_parallel", {}).get("autotp_size", 1),
        "data_parallel_size": config.world_size,
        "offload": offload_of(zero),
        **stages_of(case["files"].get("deepspeed_plan.py", "")),
    }


def offload_of(zero: DeepSpeedZeroConfig) -> str:
    """What leaves the GPU; the optimizer asks drives for a path and for a buffer of each state."""
    words = []
    for name, part in (("optimizer", zero.offload_optimizer), ("parameters", zero.offload_param)):
        if part is None or part.device == "none":
            continue
        drive = part.device == "nvme"
        assert part.nvme_path is not None or not drive, f"{name}: no nvme_path"
        words.append(name + "@nvme" * drive)
    if "optimizer@nvme" in words:  # swap_tensor: parameter, gradient, two moments
        assert zero.offload_optimizer.buffer_count >= STATES_OF_ADAM
        assert zero.stage == SHARDED_WEIGHTS
    return "+".join(words) or "none"


def stages_of(code: str) -> Seen:
    """Layers of each stage as ``PipelineModule`` has them (runtime/pipe/module.py:412)."""
    values: dict[str, Any] = {}
    exec(code, values)  # noqa: S102 - the file that the user's script imports
    pipeline, layers = values.get("PIPELINE"), values["MODEL"]["num_layers"]
    if pipeline is None:
        return {}
    assert pipeline["partition_method"].startswith("type:")
    binary = [0, *[1] * layers, 0, 0]  # an embedding before, norm and head behind
    parts = partition_balanced(weights=binary, num_parts=pipeline["num_stages"])
    return {"stage_layers": [sum(binary[begin:end]) for begin, end in pairwise(parts)]}


if __name__ == "__main__":
    serve(judge)

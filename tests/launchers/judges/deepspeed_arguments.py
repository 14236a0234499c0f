"""Prints the keys of DeepSpeed's JSON: fields of its sections, and names of its constants."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ["DS_ACCELERATOR"] = "cpu"
HERE = str(Path(__file__).parent)
sys.path.remove(HERE)  # files there have the names of packages

from deepspeed.comm.config import CommsLoggerConfig  # noqa: E402
from deepspeed.monitor.config import CSVConfig, TensorBoardConfig, WandbConfig  # noqa: E402
from deepspeed.runtime import constants  # noqa: E402
from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config  # noqa: E402
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig  # noqa: E402
from deepspeed.runtime.zero.offload_config import (  # noqa: E402
    DeepSpeedZeroOffloadOptimizerConfig,
    DeepSpeedZeroOffloadParamConfig,
)

sys.path.insert(0, HERE)
import argument_rows  # noqa: E402

SECTIONS = {
    "zero_optimization": DeepSpeedZeroConfig, "fp16": DeepSpeedFP16Config, "bf16": DeepSpeedBF16Config,
    "zero_optimization.offload_param": DeepSpeedZeroOffloadParamConfig,
    "zero_optimization.offload_optimizer": DeepSpeedZeroOffloadOptimizerConfig,
    "tensorboard": TensorBoardConfig, "wandb": WandbConfig, "csv_monitor": CSVConfig,
"comms_logger": CommsLoggerConfig,
}  # fmt: skip
found = {
    value: {"type": "object"}
    for name, value in vars(constants).items()
    if isinstance(value, str) and value == name.lower()
}
for section, model in SECTIONS.items():
    found.setdefault(section, {"type": "object"})
    for name, one in model.model_fields.items():
        for spelled in {name, one.alias or name}:
            found[f"{section}.{spelled}"] = argument_rows.row_of_field(one.annotation, one.default)
print(json.dumps(found))

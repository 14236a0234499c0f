"""Prints the arguments of ``accelerate launch``, and of its file by dotted name."""

from __future__ import annotations

import json
import sys
from pathlib import Path

HERE = str(Path(__file__).parent)
sys.path.remove(HERE)  # files there have the names of packages

from accelerate.commands.config.config_args import ClusterConfig  # noqa: E402
from accelerate.commands.launch import launch_command_parser  # noqa: E402

sys.path.insert(0, HERE)
import argument_rows  # noqa: E402

SECTIONS = {  # of the file, by the beginnings of the arguments that they hold (commands/config/cluster.py)
    "fsdp_": "fsdp_config", "parallelism_config_": "parallelism_config", "zero": "deepspeed_config",
    "offload_": "deepspeed_config", "deepspeed_": "deepspeed_config", "gradient_": "deepspeed_config",
}  # fmt: skip
own = argument_rows.rows_of(launch_command_parser())
inside = {
    f"{section}.{name}": row
    for name, row in own.items()
    for start, section in SECTIONS.items()
    if name.startswith(start) and name != section
}
print(json.dumps({**dict(argument_rows.rows_of_record(ClusterConfig)), **own, **inside}))

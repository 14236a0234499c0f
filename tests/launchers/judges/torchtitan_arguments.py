"""Prints the fields of torchtitan's configuration."""

from __future__ import annotations

import json
import sys
from pathlib import Path

HERE = str(Path(__file__).parent)
sys.path.remove(HERE)  # files there have the names of packages

from torchtitan.trainer import Trainer  # noqa: E402

sys.path.insert(0, HERE)
import argument_rows  # noqa: E402

rows = dict(argument_rows.rows_of_record(Trainer.Config))
in_code = "model_spec."
print(json.dumps({name: row for name, row in rows.items() if not name.startswith(in_code)}))

"""Prints the arguments of TRL's supervised fine-tuning that are not, or not so, transformers' own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

HERE = str(Path(__file__).parent)
sys.path.remove(HERE)  # files there have the names of packages

from transformers import HfArgumentParser, TrainingArguments  # noqa: E402
from trl.scripts.sft import make_parser  # noqa: E402

sys.path.insert(0, HERE)
import argument_rows  # noqa: E402

trainers = argument_rows.rows_of(HfArgumentParser(TrainingArguments))
own = argument_rows.rows_of(make_parser())
print(json.dumps({name: row for name, row in own.items() if trainers.get(name) != row}))

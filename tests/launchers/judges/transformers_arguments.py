"""Prints the arguments of transformers' Trainer."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = str(Path(__file__).parent)
sys.path.remove(HERE)  # files there have the names of packages

from transformers import HfArgumentParser, Seq2SeqTrainingArguments  # noqa: E402

sys.path.insert(0, HERE)
import argument_rows  # noqa: E402

argument_rows.show(HfArgumentParser(Seq2SeqTrainingArguments))

"""Prints the arguments of torchrun's parser."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import argument_rows
from torch.distributed.run import get_args_parser

argument_rows.show(get_args_parser())

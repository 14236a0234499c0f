"""Prints the arguments of Megatron-LM's parser."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import argument_rows
import megatron_lm  # noqa: F401 - what it puts in place of a GPU
from megatron.training.arguments import add_megatron_arguments

parser = argparse.ArgumentParser(allow_abbrev=False)
add_megatron_arguments(parser)
argument_rows.show(parser)

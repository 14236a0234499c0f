"""The data files that ship with Meshwright."""

from pathlib import Path

CATALOG = Path(__file__).parent

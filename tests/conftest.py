"""Compiled modules are kept beside pytest's cache, for this process and for all that tests start.

Where the environment forbids bytecode every command that a test runs would compile 300 modules anew.
"""

import os
import sys
from pathlib import Path

BYTECODE = str(Path(__file__).parents[1] / ".pytest_cache" / "bytecode")

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ.setdefault("PYTHONPYCACHEPREFIX", BYTECODE)
sys.dont_write_bytecode = False
sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"]

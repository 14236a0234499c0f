"""Tests that measure with torch: only where it is installed and MESHWRIGHT_TEST_TORCH=1 asks for them."""

import importlib.util
import os

import pytest

from meshwright.profiles.measure.device import Device, open_device

_WANTED = os.environ.get("MESHWRIGHT_TEST_TORCH") == "1"
if not _WANTED or importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def cpu() -> Device:
    """The CPU in fp32, with the same random numbers for every test."""
    return open_device("cpu", dtype="fp32")

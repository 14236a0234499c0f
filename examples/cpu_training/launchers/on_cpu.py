"""torch as launchers written for GPUs expect it, with the CPU in place of a GPU and gloo in place of NCCL.

Import it before the launcher. Nothing of the training changes: devices named ``cuda`` are the CPU, streams
and events wait for nothing, and a GPU's memory is what the process holds: as much as it likes, or
``DEVICE_MEMORY_BYTES``, beyond which torch cannot allocate.
"""

from __future__ import annotations

import os
import resource
import types
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")
_LIMIT = "DEVICE_MEMORY_BYTES"


class _Stream:
    """A stream or an event of the device; the CPU has one."""

    def __init__(self, *_given: object, **_options: object) -> None: ...

    def __getattr__(self, _name: str) -> Any:
        return lambda *_given, **_options: self


torch.cpu.Stream.synchronize = lambda _self: None  # torch.distributed.checkpoint waits for its copies


class _OnCpu(TorchFunctionMode):  # type: ignore[misc] # torch is in its own environment
    """Whatever asks for a tensor on a GPU gets it on the CPU."""

    def __torch_function__(self, function: Any, _types: Any, given: Any = (), options: Any = None) -> Any:
        options = options or {}
        if _is_gpu(options.get("device")):
            options = {**options, "device": CPU}
        if any(map(_is_gpu, given)):
            given = tuple(CPU if _is_gpu(one) else one for one in given)
        return function(*given, **options)


def _is_gpu(device: object) -> bool:
    return (isinstance(device, str) and device.startswith("cuda")) or (
        isinstance(device, torch.device) and device.type == "cuda"
    )


_type_of = torch.Tensor.type


def _type(self: torch.Tensor, *given: Any, **options: Any) -> Any:
    """The type's name as on a GPU."""
    found = _type_of(self, *given, **options)
    return f"torch.cuda.{found.rpartition('.')[2]}" if isinstance(found, str) else found


def resident_bytes(name: str) -> int:
    """A figure of this process in /proc/self/status, such as VmRSS or VmHWM."""
    line = next(one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith(name))
    return int(line.split()[1]) * 1024


def _statistics(peak_bytes: int) -> dict[str, int]:
    """What launchers ask of ``torch.cuda.memory_stats``."""
    return {f"{kind}_bytes.all.peak": peak_bytes for kind in ("active", "allocated", "reserved")}


def sequence(number: int, length: int, vocabulary: int = 256) -> torch.Tensor:
    """A sequence of ``length + 1`` tokens drawn by its number: each follows from the one before.

    The stride is the sequence's own, so that a model can learn to continue it.
    """
    drawn = torch.Generator().manual_seed(number)
    first, stride = torch.randint(1, vocabulary, (2,), generator=drawn)
    return (first + stride * torch.arange(length + 1)) % vocabulary


def limit_memory() -> None:
    """As much as a device of that size would hold, beside what the process holds now."""
    if _LIMIT in os.environ:
        most = resident_bytes("VmSize") + int(os.environ[_LIMIT])
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


_bytes_before = [resident_bytes("VmRSS")]
os.register_at_fork(after_in_child=lambda: _bytes_before.append(resident_bytes("VmRSS")))


def _before_training() -> int:
    """Return the resident bytes that this process had before training."""
    return _bytes_before[-1]


def _installed() -> None:
    """Put the stand-ins in place; what the process held before counts as no memory of the training.

    A rank may be forked from a process that has loaded this module. What it holds then counts as none, too.
    """
    cuda = torch.cuda
    named = {
        "is_available": lambda: True, "device_count": lambda: 1, "current_device": lambda: CPU,
        "set_device": lambda _device: None, "synchronize": lambda *_device: None, "init": lambda: None,
        "empty_cache": lambda: None, "current_stream": lambda *_device: _Stream(),
        "default_stream": lambda *_device: _Stream(), "stream": lambda *_stream: nullcontext(),
        "Stream": _Stream, "Event": _Stream, "manual_seed": torch.manual_seed,
        "get_rng_state": lambda *_given, **_options: torch.get_rng_state(),
        "set_rng_state": lambda state, *_given, **_options: torch.set_rng_state(state),
        "get_device_capability": lambda *_device: (9, 0), "get_device_name": lambda *_device: "CPU",
        "memory_allocated": lambda *_device: resident_bytes("VmRSS") - _before_training(),
        "max_memory_allocated": lambda *_device: resident_bytes("VmHWM") - _before_training(),
        "memory_reserved": lambda *_device: resident_bytes("VmRSS") - _before_training(),
        "max_memory_reserved": lambda *_device: resident_bytes("VmHWM") - _before_training(),
        "memory_stats": lambda *_device: _statistics(resident_bytes("VmHWM") - _before_training()),
        "reset_peak_memory_stats": lambda *_device: None,
        "device_memory_used": lambda *_device: resident_bytes("VmRSS"),
        "get_device_properties": lambda *_device: types.SimpleNamespace(
            major=9, minor=0, multi_processor_count=1, name="CPU", total_memory=2**40
        ),
    }  # fmt: skip
    for name, value in named.items():
        setattr(cuda, name, value)
        if hasattr(cuda.random, name):
            setattr(cuda.random, name, value)
    torch.Tensor.type = _type
    torch.Tensor.cuda = lambda self, *_given, **_options: self
    torch.nn.Module.cuda = lambda self, *_given, **_options: self
    for name in ("get_device_name", "get_device_properties", "memory_stats", "reset_peak_memory_stats",
                 "empty_cache", "max_memory_allocated"):  # fmt: skip
        setattr(torch.cpu, name, named[name])
    torch.cpu.current_device, torch.cpu.set_device = lambda: 0, lambda _device: None
    _OnCpu().__enter__()
    torch.set_num_threads(1)


_installed()

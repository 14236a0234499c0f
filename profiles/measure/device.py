"""The device that is measured, and torch, which is imported here and only when something is measured."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any, TypeAlias

from meshwright.profiles.errors import InvalidProblemError, ProfileError
from meshwright.profiles.measured.profile import Dtype
from meshwright.profiles.units import MIB

Tensor: TypeAlias = Any  # a torch.Tensor: torch is optional, so its types are unknown to the checker
Mark: TypeAlias = Any  # a torch.cuda.Event, or seconds on a CPU
GroupedProduct: TypeAlias = Callable[..., Tensor]

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
SEED = 0
FLUSH_BYTES = 256 * MIB  # more than any GPU's second-level cache (B200: 126 MiB), as Triton's do_bench
WAKE_S = 1.0
WAKE_SIDE = 4096  # of the square product that keeps the GPU busy
MILLISECONDS = 1e3


def load_torch() -> ModuleType:
    """Return the torch module.

    Raises:
        ProfileError: it is not installed, or does not load.
    """
    try:
        torch = importlib.import_module("torch")
        importlib.import_module("torch.utils.checkpoint")
    except ImportError as fault:
        why = "which is not installed" if fault.name == "torch" else "which does not load"
        raise ProfileError(
            f"measuring needs PyTorch 2.5 or newer, {why}: "
            '.venv/bin/pip install -e ".[profile]" in the checkout, '
            "or install the build that your cluster trains with"
        ) from None
    return torch


@dataclass(frozen=True, kw_only=True)
class Device:
    """One GPU, or the CPU, with the precision that is measured on it."""

    torch: ModuleType
    kind: str  # cuda or cpu
    index: int  # of the GPU; 0 on a CPU
    dtype: Dtype
    flush: Tensor | None  # zeroed before each repeat, so that no operand waits in the cache; None on a CPU

    @property
    def name(self) -> str:
        """Return the name of the device in torch."""
        return f"cuda:{self.index}" if self.kind == "cuda" else "cpu"

    @property
    def torch_dtype(self) -> object:
        """Return the measured precision as torch has it."""
        return getattr(self.torch, DTYPES[self.dtype])

    @property
    def element_bytes(self) -> int:
        """Return the bytes of one element in the measured precision."""
        return ELEMENT_BYTES[self.dtype]

    def random(self, *shape: int, scale: float = 1.0, learned: bool = False) -> Tensor:
        """Return normal random numbers: zeros would draw less power and run faster than real data."""
        values = self.torch.randn(shape, dtype=self.torch_dtype, device=self.name) * scale
        return values.requires_grad_(learned)

    def synchronize(self) -> None:
        """Wait for all work issued so far."""
        if self.kind == "cuda":
            self.torch.cuda.synchronize(self.index)

    def answers(self) -> bool:
        """Return whether the device still runs work: after an illegal access CUDA refuses all work."""
        try:
            self.random(8).sum().item()
        except RuntimeError:
            return False
        return True

    @cached_property
    def grouped_product(self) -> GroupedProduct | None:
        """Return torch's product of several experts' rows in one kernel, or None if it does not run here.

        ``torch.nn.functional.grouped_mm`` since torch 2.10, ``torch._grouped_mm`` before; both take bf16 on
        GPUs of compute capability 8.0 or 9.0 and newer, so a small one is tried.
        """
        functional = self.torch.nn.functional
        product = getattr(functional, "grouped_mm", None) or getattr(self.torch, "_grouped_mm", None)
        if self.kind != "cuda" or self.dtype != "bf16" or product is None:
            return None
        ends = self.torch.tensor([16, 32], dtype=self.torch.int32, device=self.name)
        rows, weights = self.random(32, 64, learned=True), self.random(2, 64, 64, learned=True)
        try:
            product(rows, weights.mT, offs=ends).backward(self.random(32, 64))
            self.synchronize()
        except (RuntimeError, TypeError):
            return None
        return product  # type: ignore[no-any-return]

    def release(self) -> None:
        """Give cached memory back, so that one task does not starve the next."""
        if self.kind == "cuda":
            self.torch.cuda.empty_cache()

    def forget_peak(self) -> None:
        """Begin a new peak of the allocator's memory."""
        if self.kind == "cuda":
            self.torch.cuda.reset_peak_memory_stats(self.index)

    def peak_bytes(self, *, reserved: bool = False) -> int | None:
        """Return the bytes at the allocator's peak, without the buffer that flushes; None on a CPU."""
        if self.kind == "cpu":
            return None
        cuda, flush_bytes = self.torch.cuda, 0 if self.flush is None else int(self.flush.nbytes)
        most = cuda.max_memory_reserved if reserved else cuda.max_memory_allocated
        return int(most(self.index)) - flush_bytes

    def mark(self) -> Mark:
        """Return a point in the work issued so far: an event on the stream, or the time on a CPU."""
        if self.kind == "cpu":
            return time.perf_counter()
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds_between(self, first: Mark, second: Mark) -> float:
        """Return the seconds from one mark to the next; both must have been reached."""
        if self.kind == "cpu":
            return float(second - first)
        return float(first.elapsed_time(second)) / MILLISECONDS  # torch.cuda.Event

    def seconds_of(self, run: Callable[[], object], *, cold: bool = True) -> tuple[float, float | None]:
        """Return the seconds of one run on the device, and of issuing it (None on a CPU: they are equal).

        ``cold`` flushes the cache first.
        """
        if self.kind == "cpu":
            start_s = time.perf_counter()
            run()
            return time.perf_counter() - start_s, None
        if cold and self.flush is not None:
            self.flush.zero_()
        begin = self.mark()
        start_s = time.perf_counter()
        run()
        host_s = time.perf_counter() - start_s
        end = self.mark()
        end.synchronize()
        return self.seconds_between(begin, end), host_s


def open_device(kind: str, *, dtype: Dtype, index: int = 0) -> Device:
    """Return the device to measure: ``auto`` is the GPU where there is one.

    Raises:
        ProfileError: torch is missing, or was built for other GPUs or another driver.
        InvalidProblemError: no such device here, or it has no such precision.
    """
    torch = load_torch()
    has_cuda = torch.cuda.is_available()
    if kind == "cuda" and not has_cuda:
        message = f"torch {torch.__version__} sees no CUDA device here"
        if torch.version.cuda is None and torch.version.hip is None:
            message = f"torch {torch.__version__} is built without CUDA"
        raise InvalidProblemError.of("--device", message, nearest="cpu")
    if kind == "cpu" or not has_cuda:
        torch.manual_seed(SEED)
        return Device(torch=torch, kind="cpu", index=0, dtype=dtype, flush=None)
    if index >= torch.cuda.device_count():
        message = (
            f"process {index} of this node finds {torch.cuda.device_count()} GPUs: start one process "
            "per GPU"
        )
        raise InvalidProblemError.of("--device", message)
    torch.cuda.set_device(index)
    torch.set_float32_matmul_precision("highest")  # fp32 products in fp32, not TF32
    if dtype == "bf16" and not torch.cuda.is_bf16_supported(including_emulation=False):
        message = f"{torch.cuda.get_device_name(index)} has no bf16"
        raise InvalidProblemError.of("--dtype", message, nearest="fp16")
    torch.manual_seed(SEED)
    try:
        flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device=f"cuda:{index}")
        device = Device(torch=torch, kind="cuda", index=index, dtype=dtype, flush=flush)
        _wake(device)
    except RuntimeError as fault:
        name, why = torch.cuda.get_device_name(index), str(fault).partition("\n")[0]
        raise ProfileError(
            f"torch {torch.__version__} cannot run on {name}: {why}. Install the build for this GPU's "
            "compute capability and driver"
        ) from None
    return device


def _wake(device: Device) -> None:
    """Keep an idle GPU busy until its clocks have risen; a few warm-up runs are too short for that."""
    side = device.random(WAKE_SIDE, WAKE_SIDE)
    until_s = time.monotonic() + WAKE_S
    while time.monotonic() < until_s:
        device.torch.matmul(side, side)
        device.synchronize()

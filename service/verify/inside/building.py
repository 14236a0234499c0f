"""What every builder does alike: it is asked, answers rank by rank, and traces a step without its data.

These files run in a launcher's own environment (``meshwright.service.verify.environments``), as scripts:
they import torch, the launcher and each other, and nothing of Meshwright. One JSON object comes in; a
JSON line goes out for every rank as soon as it is built.
"""

from __future__ import annotations

import json
import math
import os
import resource
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils.flop_counter import FlopCounterMode

Case = dict[str, Any]
Built = dict[str, Any]
_MATRIX = 2  # dimensions


def answer(build: Callable[[Case], Iterator[Built]]) -> None:
    """Answer the case on standard input; whatever the launcher raises is an answer, too."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the launcher prints is no answer
    case = json.load(sys.stdin)
    limit(resource.RLIMIT_DATA, case["memory_bytes"])
    limit(resource.RLIMIT_CPU, case["time_s"])  # also where nobody waits for the answer any more
    try:
        for one in build(case):
            answers.write(json.dumps(one) + "\n")
            answers.flush()
        answers.write(json.dumps({"done": True}) + "\n")
    except (Exception, SystemExit) as error:  # noqa: BLE001 - launchers refuse in any way they like
        answers.write(json.dumps({"refusal": said(error)}) + "\n")
    answers.flush()
    os._exit(0)  # nothing is left to end in order: no process group was real


def limit(what: int, most: int) -> None:
    """Limit this process, which may be limited closer already."""
    _, known = resource.getrlimit(what)
    least = most if known == resource.RLIM_INFINITY else min(most, known)
    resource.setrlimit(what, (least, known))


def said(error: BaseException) -> str:
    """An error as one line, with the function that raised it."""
    traceback.print_exception(error)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(str(error).split()) or "no message"
    return f"{type(error).__name__}: {text[:300]} ({frame.name})"


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of all storages, each counted once."""
    found = {}
    for tensor in tensors:
        storage = local(tensor).untyped_storage()
        found[storage._cdata] = storage  # kept: the address of one that is gone is given to the next
    return sum(storage.nbytes() for storage in found.values())


def local(tensor: Any) -> torch.Tensor:
    """What of a tensor this rank holds."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def matrices(shapes: Iterable[tuple[int, ...]]) -> list[list[int]]:
    """Rows, columns and number of matrices."""
    found = Counter(tuple(shape) for shape in shapes if len(shape) == _MATRIX)
    return sorted([*shape, count] for shape, count in found.items())


class _NoModules:
    """Module statistics that nobody keeps: they exist for one call of each module only."""

    parents: frozenset[str] = frozenset()
    is_bw = False

    def register_user_hooks(self, *_hooks: object) -> None:
        """None are called."""

    def clear_user_hooks(self) -> None:
        """There are none."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        return None


class Memory(MemTracker):
    """torch's memory tracker over a whole step: many micro-batches through the same modules."""

    def __init__(self) -> None:
        super().__init__()
        self._mod_tracker = _NoModules()

    def peak_bytes(self) -> int:
        """The most that all tensors together took."""
        return max(
            (snapshot["Total"] for snapshot in self.get_tracker_snapshot("peak").values()), default=0
        )


class Kernels:
    """FLOPs of the kernels that stand in for those of a GPU, which torch's counter cannot see."""

    flops = 0.0


class Attention(torch.autograd.Function):
    """Flash attention: keeps queries, keys, values, its output and one fp32 number a row.

    Dao 2023 (arXiv:2307.08691), section 3.1: only the log-sum-exp ``L`` is saved for the backward pass,
    which computes the scores again. Work is counted without a mask, as torch's counter counts: two
    products forward, five backward. Shapes: (sequence, batch, heads, width).
    """

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any) -> Any:
        rows, batch, heads, width = query.shape
        output = torch.empty(rows, batch, heads, value.shape[-1], dtype=query.dtype)
        sums = torch.empty(batch, heads, rows, dtype=torch.float32)
        ctx.save_for_backward(query, key, value, output, sums)
        ctx.work = 2.0 * batch * heads * rows * key.shape[0] * (width + value.shape[-1])
        Kernels.flops += ctx.work
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        query, key, value, output, _ = ctx.saved_tensors
        Kernels.flops += 2.5 * ctx.work
        del output, gradient
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


class Kept(torch.autograd.Function):
    """A kernel in one: an output of a given shape, for whose gradient only the input is kept."""

    @staticmethod
    def forward(ctx: Any, given: Any, shape: tuple[int, ...], rows: int) -> Any:
        ctx.save_for_backward(given, *(torch.empty(rows, dtype=torch.float32),) * bool(rows))
        return torch.empty(shape, dtype=given.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        del gradient
        return torch.empty_like(ctx.saved_tensors[0]), None, None


class Turned(torch.autograd.Function):
    """Fused rotary positions: the angles alone are kept (Transformer Engine, ``FusedRoPEFunc``)."""

    @staticmethod
    def forward(ctx: Any, given: Any) -> Any:
        del ctx
        return torch.empty_like(given)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        del ctx
        return torch.empty_like(gradient)


class Norm(torch.nn.Module):
    """A norm in one kernel: keeps its input and an fp32 number or two a row (Transformer Engine)."""

    def __init__(self, hidden_size: int, *, centred: bool) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(hidden_size))
        if centred:
            self.bias = torch.nn.Parameter(torch.empty(hidden_size))
        self.centred = centred

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        rows = math.prod(given.shape[:-1]) * (2 if self.centred else 1)
        return _Normed.apply(given, rows, *self.parameters())


class _Normed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: Any, rows: int, *weights: Any) -> Any:
        ctx.save_for_backward(given, torch.empty(rows, dtype=torch.float32), *weights)
        return torch.empty_like(given)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        del gradient
        given, _, *weights = ctx.saved_tensors
        return torch.empty_like(given), None, *(torch.empty_like(weight) for weight in weights)


@contextmanager
def without_data() -> Iterator[FakeTensorMode]:
    """Tensors have shapes and types, and no memory."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        yield mode


def traced(step: Callable[[], object], states: Iterable[Any], num_microbatches: int) -> Built:
    """One step: its FLOPs of a micro-batch, and the peak of everything that lives during it.

    Args:
        step: runs the forward and backward passes of all micro-batches.
        states: modules and tensors that exist before it.
        num_microbatches: of the step.
    """
    memory, flops = Memory(), FlopCounterMode(display=False)
    memory.track_external(*states)
    Kernels.flops = 0.0
    with memory, flops:
        step()
    total = flops.get_total_flops() + Kernels.flops
    return {"flops": total / num_microbatches, "peak_bytes": memory.peak_bytes()}

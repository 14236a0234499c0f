"""The common part of all builders: read a request, answer rank by rank, trace a step without its data.

These files run in a launcher's own environment (``meshwright.service.verify.environments``), as scripts:
they import torch, the launcher and each other, and nothing of Meshwright. One JSON object comes in; a
JSON line goes out for every rank as soon as it is built.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import resource
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import get_default_op_list, min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.fsdp import FSDPModule
from torch.utils.flop_counter import flop_registry, register_flop_formula

Case = dict[str, Any]
Built = dict[str, Any]
OFFLOADED = "a CPU's memory is that of its host: what leaves the GPU cannot be separated from what stays"
_MATRIX = 2  # dimensions
# What torch, C++, CPython and the dynamic linker report where the system refuses memory, for one for a
# thread's stack.
_NO_MEMORY = (
    "can't allocate memory", "Cannot allocate memory", "bad_alloc", "can't start new thread",
    "failed to map segment",
)  # fmt: skip


def answer(build: Callable[[Case], Iterator[Built]]) -> None:
    """Answer the case on standard input; whatever the launcher raises is an answer, too."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the launcher's output is not part of the answer
    case = json.load(sys.stdin)
    limit(resource.RLIMIT_DATA, case["memory_bytes"])
    limit(resource.RLIMIT_CPU, case["time_s"])  # also if no process waits for the answer any more
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


def apart(work: Callable[..., Any], *given: Any) -> Any:
    """Return the result of ``work`` in a process of its own: no rank keeps torch's state of another.

    Raises:
        RankError: it raised, or its process ended.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with os.fdopen(writing, "wb") as answers:
            try:
                pickle.dump((True, work(*given)), answers)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - as in ``answer``
                pickle.dump((False, said(error)), answers)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answers:
        told = answers.read()
    _, status = os.waitpid(child, 0)
    if not told:
        signalled = f" by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else ""
        raise RankError(
            f"the process of a rank ended{signalled} without an answer; it may take {_allowed()}"
        )
    well, found = pickle.loads(told)  # noqa: S301 - of our own child
    if not well:
        raise RankError(found)
    return found


class RankError(Exception):
    """An error that ended the process of a rank, as a sentence."""


def _allowed() -> str:
    most, _ = resource.getrlimit(resource.RLIMIT_DATA)
    raised_by = "--memory-gib of meshwright verify or verify_memory_bytes of a service raises that"
    return f"{most / 2**30:.3g} GiB ({raised_by})"


def _lacks_memory(error: BaseException | None) -> bool:
    """Return whether an error, or one that it was raised for, is memory that the limit refused.

    A C function that cannot build even its MemoryError ends in CPython's SystemError ("error return without
    exception set", "returned NULL without setting an exception"); it has no other cause here.
    """
    while error is not None:
        if isinstance(error, MemoryError | SystemError) or any(words in str(error) for words in _NO_MEMORY):
            return True
        error = error.__cause__ or error.__context__
    return False


def said(error: BaseException) -> str:
    """Return an error as one line, with the function that raised it; for refused memory, the limit."""
    if isinstance(error, RankError):
        return str(error)
    traceback.print_exception(error)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(str(error).split()) or "no message"
    if _lacks_memory(error):
        return f"it needs more memory than its process may take in {frame.name}: {_allowed()}"
    if isinstance(error, DataDependentOutputException):
        text = "the size of a tensor depends on data, and this build has none"
    return f"{type(error).__name__}: {text[:300]} ({frame.name})"


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of all storages, each counted once."""
    found = {}
    for tensor in tensors:
        storage = local(tensor).untyped_storage()
        found[storage._cdata] = storage  # kept: the address of one that is gone is given to the next
    return sum(storage.nbytes() for storage in found.values())


def _fsdp_parameters(model: Any) -> Iterator[Any]:
    """Yield FSDP2's own records of a model's parameters; modules sharded together share one."""
    yield from dict.fromkeys(one for group in _fsdp_groups(model) for one in group.fsdp_params)


def _fsdp_groups(model: Any) -> Iterator[Any]:
    states = [one._get_fsdp_state() for one in model.modules() if isinstance(one, FSDPModule)]
    yield from (group for state in states for group in state._fsdp_param_groups)


def shards(model: Any) -> Iterator[torch.Tensor]:
    """Yield the shards of FSDP2's parameters."""
    for one in _fsdp_parameters(model):
        yield one._sharded_param_data


def gathered(model: Any) -> Iterator[torch.Tensor]:
    """Yield the bytes of FSDP2's parameters that are gathered, or being gathered."""
    for one in _fsdp_parameters(model):
        yield from one.all_gather_outputs
    for group in _fsdp_groups(model):
        if group._all_gather_result is not None:
            yield group._all_gather_result.all_gather_output


def gradients(model: Any) -> Iterator[torch.Tensor]:
    """Yield gradients: of FSDP2 parameters shards and those that add up whole, of replicas their own.

    The 2-byte results of weight-gradient passes, until the next backward pass adds them up, do not count in
    addition to the sum; before any sum they count in its type, to which a reduction casts them.
    """
    if not any(isinstance(module, FSDPModule) for module in model.modules()):
        yield from (weight.grad for weight in model.parameters() if weight.grad is not None)
    for one in _fsdp_parameters(model):
        whole, added = getattr(one, "_unsharded_param", None), one.unsharded_accumulated_grad
        if added is None and getattr(whole, "grad", None) is not None:
            added = whole.grad.to(one.reduce_dtype or whole.grad.dtype)
        yield from (grad for grad in (one.sharded_param.grad, added) if grad is not None)


def local(tensor: Any) -> torch.Tensor:
    """Return the part of a tensor that this rank holds."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def matrices(shapes: Iterable[tuple[int, ...]]) -> list[list[int]]:
    """Return rows, columns and number of matrices."""
    found = Counter(tuple(shape) for shape in shapes if len(shape) == _MATRIX)
    return sorted([*shape, count] for shape, count in found.items())


class _NoModules:
    """No module statistics: they exist for one call of each module only."""

    parents: frozenset[str] = frozenset()
    is_bw = False

    def register_user_hooks(self, *_hooks: object) -> None:
        """Call none."""

    def clear_user_hooks(self) -> None:
        """Do nothing: there are none."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        return None


class Memory(MemTracker):
    """torch's memory tracker over a whole step: many micro-batches through the same modules.

    It adds up the FLOPs that torch's counter knows, too. What ``torch.compile`` makes may run under it:
    it sees what the compiled forward and backward passes keep, since the same partitioner divides them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._mod_tracker = _NoModules()
        self.flops = 0.0

    @classmethod
    def is_infra_mode(cls) -> bool:
        return True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if Kernels.inside:
            return func(*args, **(kwargs or {}))
        found = super().__torch_dispatch__(func, types, args, kwargs)
        if found is not NotImplemented and func._overloadpacket in flop_registry:
            self.flops += float(flop_registry[func._overloadpacket](*args, **(kwargs or {}), out_val=found))
        return found

    def peak_bytes(self) -> int:
        """Return the most bytes that all tensors took together."""
        return max(
            (snapshot["Total"] for snapshot in self.get_tracker_snapshot("peak").values()), default=0
        )


class Kernels:
    """FLOPs of the kernels that replace those of a GPU, which torch's counter cannot see."""

    flops = 0.0
    inside = False  # of a fused kernel: what it computes on its way takes no memory


class Attention(torch.autograd.Function):
    """Flash attention: keeps queries, keys, values, its output and one fp32 number a row.

    Dao 2023 (arXiv:2307.08691), section 3.1: only the log-sum-exp ``L`` is saved for the backward pass,
    which computes the scores again. Work is counted without a mask, as torch's counter counts: two
    products forward, five backward. Shapes: (sequence, batch, heads, width).

    ``per_score``: bytes of each score that attention in separate kernels keeps in addition.
    """

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any, per_score: int = 0) -> Any:
        rows, batch, heads, width = query.shape
        output = torch.empty(rows, batch, heads, value.shape[-1], dtype=query.dtype)
        sums = torch.empty(batch, heads, rows, dtype=torch.float32)
        if per_score:
            sums = torch.empty(batch, heads, rows, key.shape[0], per_score, dtype=torch.uint8)
        ctx.save_for_backward(query, key, value, output, sums)
        ctx.work = 2.0 * batch * heads * rows * key.shape[0] * (width + value.shape[-1])
        Kernels.flops += ctx.work
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        query, key, value, output, _ = ctx.saved_tensors
        Kernels.flops += 2.5 * ctx.work
        del output, gradient
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value), None


# The same as an operator, which compiled code leaves unchanged. Shapes: (batch, heads, sequence, width).
@torch.library.custom_op("standin::attention", mutates_args=())
def _attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return _attended(query, key, value)


@torch.library.custom_op("standin::attention_backward", mutates_args=())
def _attention_backward(  # noqa: PLR0917 - operators name what they take one by one
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    output: torch.Tensor, sums: torch.Tensor, gradient: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    return _attended_backward(query, key, value, output, sums, gradient)


@_attention.register_fake
def _attended(query: Any, key: Any, value: Any) -> Any:
    del key
    output = query.new_empty(*query.shape[:-1], value.shape[-1])
    return output, query.new_empty(query.shape[:-1], dtype=torch.float32)


@_attention_backward.register_fake
def _attended_backward(query: Any, key: Any, value: Any, *_kept: Any) -> Any:
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs, *output)


def _backward(ctx: Any, gradient: Any, _of_sums: Any) -> Any:
    return _attention_backward(*ctx.saved_tensors, gradient)


_attention.register_autograd(_backward, setup_context=_keep)


@register_flop_formula(torch.ops.standin.attention)
def _attention_flops(query: Any, key: Any, value: Any, *_given: Any, **_options: Any) -> float:
    return 2.0 * math.prod(query[:3]) * key[2] * (query[3] + value[3])


@register_flop_formula(torch.ops.standin.attention_backward)
def _attention_backward_flops(*given: Any, **_options: Any) -> float:
    return 2.5 * _attention_flops(*given)


@register_flop_formula(torch.ops.aten._grouped_mm)
def _grouped_flops(rows: Any, other: Any, *_given: Any, **_options: Any) -> float:
    """Products of rows sorted by expert: (rows, k) by (experts, k, n), or (k, rows) by (rows, n)."""
    return 2.0 * rows[0] * rows[1] * other[-1]


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return flash attention in compiled code; shapes (batch, heads, sequence, width)."""
    return torch.ops.standin.attention(query, key, value)[0]


class _Fused(torch.fx.Interpreter):
    """A compiled graph: only tensors between fused kernels, or between these and products, take memory.

    ``OpTypes.is_fusible`` of torch's partitioner decides which operators inductor fuses; scatters into
    constants it rewrites to such (``fx_passes/post_grad.py``, ``scatter_upon_const_tensor``). A result that
    all its readers are fused with is never stored.
    """

    def __init__(self, graph: torch.fx.GraphModule) -> None:
        super().__init__(graph)
        kinds = get_default_op_list()
        kinds.fusible_ops.add(torch.ops.aten.scatter)

        self.on_the_way = set()
        for node in reversed(self.module.graph.nodes):  # readers first: of a view, whoever reads it counts
            if node.op == "call_function" and (kinds.is_fusible(node) or kinds.is_view(node)):
                readers = (
                    reader in self.on_the_way if kinds.is_view(reader) else kinds.is_fusible(reader)
                    for reader in node.users
                )
                if all(readers):
                    self.on_the_way.add(node)

    def run_node(self, node: torch.fx.Node) -> Any:
        Kernels.inside = node in self.on_the_way
        try:
            return super().run_node(node)
        finally:
            Kernels.inside = False


def _run_fused(graph: torch.fx.GraphModule, _inputs: Any) -> Any:
    def run(given: list[Any]) -> Any:
        return _Fused(graph).boxed_run(given)

    run._boxed_call = True  # type: ignore[attr-defined]  # it lets go of what it was given
    return run


# inductor's decompositions and the partitioner that decides what a forward pass keeps, without its kernels
compiled = aot_autograd(
    fw_compiler=_run_fused,
    bw_compiler=_run_fused,
    partition_fn=partial(min_cut_rematerialization_partition, compiler="inductor"),
    decompositions=select_decomp_table,
)


class Kept(torch.autograd.Function):
    """A kernel as one operator: an output of a given shape, with a gradient that needs only the input."""

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


def converted(self: torch.nn.Module, convert: Any, recurse: bool = True) -> torch.nn.Module:  # noqa: ARG001
    """Convert as ``Module._apply``, by weight with its dependents: those without data cannot be swapped."""
    for child in self.children():
        converted(child, convert)
    for name, weight in self._parameters.items():
        if weight is not None:
            with torch.no_grad():
                new = convert(weight)
            if new is not weight:
                self._parameters[name] = torch.nn.Parameter(new, weight.requires_grad)
                self._parameters[name].__dict__.update(weight.__dict__)
    self._buffers.update(
        {name: one if one is None else convert(one) for name, one in self._buffers.items()}
    )
    return self


@contextmanager
def without_data() -> Iterator[FakeTensorMode]:
    """Build tensors with shapes and types, and without memory, while inside."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        yield mode


def traced(step: Callable[[], object], states: Iterable[Any], num_microbatches: int) -> Built:
    """Return one step: its FLOPs of a micro-batch, and the peak of everything that lives during it.

    Args:
        step: runs the forward and backward passes of all micro-batches.
        states: modules and tensors that exist before it.
        num_microbatches: of the step.
    """
    memory = Memory()
    memory.track_external(*states)
    Kernels.flops = 0.0
    with memory:
        step()
    total = memory.flops + Kernels.flops
    return {"flops": total / num_microbatches, "peak_bytes": memory.peak_bytes()}

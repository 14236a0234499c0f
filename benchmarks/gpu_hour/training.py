"""Train a model of the layers that were profiled, for a few steps, and say what a step took.

Weights are bf16. As each gradient is made it is added to an fp32 sum (as in nanotron's
``gradient_accumulator.py``); AdamW or Muon updates fp32 copies, which are copied back. Experts get the
equal loads of the measured layer. Tokens are random: no figure here depends on them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from benchmarks.gpu_hour.drawn import Draw, Family
from meshwright.profiles.measure.device import Device, Tensor
from meshwright.profiles.measure.layer import Layer, build_layer, norm_of
from meshwright.profiles.measure.shard import Shard
from meshwright.profiles.model import LayerKind

WARM_STEPS = 2
LEARNING_RATE = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What the steps of one draw took."""

    step_time_s: float  # wall clock of all timed steps over their number
    median_step_s: float  # between events at the steps' ends
    steps: int
    peak_memory_bytes: int | None  # the allocator's; None on a CPU
    reserved_memory_bytes: int | None
    first_loss: float
    last_loss: float

    def to_json(self) -> dict[str, Any]:
        """Its fields."""
        return asdict(self)


def shard_of(family: Family, micro_batch_size: int, seq_length: int) -> Shard:
    """The whole model on one rank."""
    return Shard(
        model=family.model,
        tensor_parallel_size=1,
        expert_parallel_size=1,
        micro_batch_size=micro_batch_size,
        seq_length=seq_length,
        lora_rank=family.lora_rank,
        lora_targets=family.lora_targets,
    )


class Trainer:
    """A model, its optimizer, and its step."""

    def __init__(self, family: Family, draw: Draw, device: Device) -> None:
        torch, model = device.torch, family.model
        self._device, self._draw, self._norm = device, draw, norm_of(model, device)
        shard = shard_of(family, draw.micro_batch_size, draw.seq_length)
        learned, width = not family.lora_rank, model.hidden_size
        self.layers = [build_layer(shard, kind, device) for kind in model.layer_kinds()]
        self.table = device.random(model.vocab_size, width, learned=learned)
        self.head = device.random(model.vocab_size, width, scale=width**-0.5, learned=learned)
        self.scale = device.random(width, learned=learned)
        ends = (self.table, self.head, self.scale) if learned else ()
        self.weights: list[Tensor] = [*(one for layer in self.layers for one in layer.trained), *ends]
        self._sums = [torch.zeros_like(one, dtype=torch.float32) for one in self.weights]
        for weight, total in zip(self.weights, self._sums, strict=True):
            weight.register_post_accumulate_grad_hook(_added_to(total))
        self._copies = [torch.nn.Parameter(one.detach().float()) for one in self.weights]
        for copy, total in zip(self._copies, self._sums, strict=True):
            copy.grad = total
        self._optimizers = _optimizers(draw.optimizer, self._copies, len(ends), device)
        shape = (draw.micro_batch_size, draw.seq_length + 1)
        self._tokens = torch.randint(model.vocab_size, shape, device=device.name)

    def step(self) -> Tensor:
        """Every micro-batch, then the optimizer; the last loss, still on the device."""
        loss = None
        for _ in range(self._draw.num_microbatches):
            loss = self._loss()
            (loss / self._draw.num_microbatches).backward()
        for optimizer in self._optimizers:
            optimizer.step()
        with self._device.torch.no_grad():
            for weight, copy in zip(self.weights, self._copies, strict=True):
                weight.copy_(copy)
            self._device.torch._foreach_zero_(self._sums)
        return loss

    def _loss(self) -> Tensor:
        functional = self._device.torch.nn.functional
        x = functional.embedding(self._tokens[:, :-1], self.table)
        for layer in self.layers:
            x = self._through(layer, x)
        logits = functional.linear(self._norm(x, self.scale), self.head).flatten(0, 1)
        return functional.cross_entropy(logits.float(), self._tokens[:, 1:].flatten())

    def _through(self, layer: Layer, x: Tensor) -> Tensor:
        if self._draw.recompute == "none":
            return layer.forward(x)
        checkpoint = self._device.torch.utils.checkpoint.checkpoint
        return checkpoint(layer.forward, x, use_reentrant=False, preserve_rng_state=False)


def _added_to(total: Tensor) -> Callable[[Tensor], None]:
    """A hook that adds a weight's gradient to its sum and frees it."""

    def add(weight: Tensor) -> None:
        total.add_(weight.grad)
        weight.grad = None

    return add


def _optimizers(name: str, copies: Sequence[Tensor], ends: int, device: Device) -> list[Any]:
    """AdamW, or Muon of the layers' matrices and AdamW of all else.

    Raises:
        NotImplementedError: this torch has no Muon.
    """
    optim = device.torch.optim
    if name != "muon":
        return [optim.AdamW(copies, lr=LEARNING_RATE, fused=True)]
    if not hasattr(optim, "Muon"):
        raise NotImplementedError("torch.optim.Muon, which torch has since 2.9")
    inside = copies[: len(copies) - ends]
    matrices = [one for one in inside if one.dim() == 2]  # noqa: PLR2004 - a matrix has two
    others = [one for one in inside if one.dim() != 2] + list(copies[len(inside) :])  # noqa: PLR2004
    return [optim.Muon(matrices, lr=LEARNING_RATE), optim.AdamW(others, lr=LEARNING_RATE, fused=True)]


def train(family: Family, draw: Draw, device: Device, *, budget_s: float, most_steps: int = 10) -> Trained:
    """Train one draw: two steps to warm up, then as many as the budget allows, at least two."""
    trainer = Trainer(family, draw, device)
    device.forget_peak()
    began_s = time.perf_counter()
    first = last = 0.0
    for _ in range(WARM_STEPS):
        first = float(trainer.step().item())
    device.synchronize()
    each_s = (time.perf_counter() - began_s) / WARM_STEPS
    steps = max(2, min(most_steps, int(budget_s / max(each_s, 1e-6))))
    seconds, marks = _timed_steps(trainer, steps, device)
    last = float(trainer.step().item())
    return Trained(
        step_time_s=seconds / steps,
        median_step_s=median(marks),
        steps=steps,
        peak_memory_bytes=device.peak_bytes(),
        reserved_memory_bytes=device.peak_bytes(reserved=True),
        first_loss=first,
        last_loss=last,
    )


def _timed_steps(trainer: Trainer, steps: int, device: Device) -> tuple[float, list[float]]:
    """Wall clock of all steps, issued without waiting, and the seconds of each on the device."""
    device.synchronize()
    events = [device.mark()]
    began_s = time.perf_counter()
    for _ in range(steps):
        trainer.step()
        events.append(device.mark())
    device.synchronize()
    seconds = time.perf_counter() - began_s
    return seconds, [device.seconds_between(*pair) for pair in pairwise(events)]


# --------------------------------------------------------------------------------------------------
# What a layer launches, and how long launching takes where nothing else does.


# The calls of CUDA's and HIP's runtimes that put work on a stream, by the names that the profiler gives.
LAUNCHES = (
    "cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx", "cudaMemcpyAsync",
    "cudaMemsetAsync", "hipLaunchKernel", "hipExtLaunchKernel", "hipModuleLaunchKernel",
    "hipExtModuleLaunchKernel", "hipMemcpyAsync", "hipMemsetAsync", "hipMemcpyWithStream",
)  # fmt: skip
FEW_TOKENS = 128  # too few to keep a GPU busy for as long as a launch takes
REPEATS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """The launches of one layer, and its time where they bound it."""

    layer: str
    counted: str  # launches on a GPU; calls of torch's operators on a CPU, which are more
    forward: int
    backward: int
    forward_floor_s: float  # of a few tokens: the host launches slower than the device runs
    backward_floor_s: float
    by_name: dict[str, int]  # of the forward pass

    def to_json(self) -> dict[str, Any]:
        """Its fields."""
        return asdict(self)


def launches_of(family: Family, kind: LayerKind, device: Device) -> Launches:
    """Count what one layer launches in both passes, by torch's profiler, and time it on a few tokens."""
    layer = build_layer(shard_of(family, 1, FEW_TOKENS), kind, device)
    x = device.random(1, FEW_TOKENS, family.model.hidden_size, learned=True)
    gradient = device.random(1, FEW_TOKENS, family.model.hidden_size)
    inputs = (x, *layer.trained)

    def backward(output: Tensor) -> None:
        device.torch.autograd.grad(output, inputs, gradient)

    backward(layer.forward(x))  # libraries load and choose kernels in the first passes
    forward_s, backward_s = [], []
    for _ in range(REPEATS):
        device.synchronize()
        began_s = time.perf_counter()
        output = layer.forward(x)
        device.synchronize()
        between_s = time.perf_counter()
        backward(output)
        device.synchronize()
        forward_s.append(between_s - began_s)
        backward_s.append(time.perf_counter() - between_s)
    forward_calls = _counted(lambda: layer.forward(x), device)
    output = layer.forward(x)
    device.synchronize()
    backward_calls = _counted(lambda: backward(output), device)
    return Launches(
        layer=f"{family.name}/{kind}",
        counted="launches" if device.kind == "cuda" else "calls of operators",
        forward=sum(forward_calls.values()),
        backward=sum(backward_calls.values()),
        forward_floor_s=median(forward_s),
        backward_floor_s=median(backward_s),
        by_name=forward_calls,
    )


def _counted(run: Callable[[], object], device: Device) -> dict[str, int]:
    """How often a pass calls what puts work on a stream."""
    profiler = device.torch.profiler
    activities = [profiler.ProfilerActivity.CPU]
    if device.kind == "cuda":
        activities.append(profiler.ProfilerActivity.CUDA)
    with profiler.profile(activities=activities) as seen:
        run()
        device.synchronize()
    calls = {one.key: int(one.count) for one in seen.key_averages()}
    if device.kind == "cuda":
        return {name: calls[name] for name in LAUNCHES if name in calls}
    return {name: count for name, count in sorted(calls.items()) if name.startswith("aten::")}

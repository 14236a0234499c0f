"""Times the passes of one real layer, and weighs what they keep in memory.

``backward`` makes input and weight gradients; ``input_gradient`` the first alone, so a weight gradient
pass (zero-bubble schedules) is the difference. ``recompute_backward`` replays the forward pass first.
"""

from __future__ import annotations

from dataclasses import replace

from profiles.measure.device import Device, Tensor
from profiles.measure.layer import Layer, build_layer
from profiles.measure.shard import Shard
from profiles.measure.task import Label
from profiles.measure.timing import Effort, timed, timed_backward
from profiles.measured_profile import Measurement, Timing
from profiles.model import LayerKind

# AdamW on fp32 master weights reads weight, both moments and gradient and writes the first three; the copy
# in the measured precision comes on top (ZeRO, arXiv:1910.02054, section 3.1).
OPTIMIZER_BYTES = 7 * 4


def measure_layer(
    shard: Shard, kind: LayerKind, label: Label, device: Device, effort: Effort
) -> list[Measurement]:
    """Forward, both gradients, the input gradient, backward after recompute, optimizer step."""
    layer = build_layer(shard, kind, device)
    x = device.random(shard.micro_batch_size, shard.seq_length, shard.model.hidden_size, learned=True)
    inputs = (x, *layer.weights.values())
    flops = shard.layer_forward_flops(kind)

    def replayed() -> Tensor:
        checkpoint = device.torch.utils.checkpoint.checkpoint
        return checkpoint(layer.forward, x, use_reentrant=False, preserve_rng_state=False)

    def forward() -> Tensor:
        return layer.forward(x)

    backward = timed_backward(forward, inputs, device, effort)
    input_gradient = timed_backward(forward, (x,), device, effort)
    recompute = timed_backward(replayed, inputs, device, effort)
    measured = [
        replace(
            label.measured("forward", timed(forward, device, effort), flops=flops),
            activation_bytes=_kept_bytes(layer, x),
        ),
        replace(
            label.measured("backward", backward, flops=2 * flops),
            peak_memory_bytes=_peak_bytes(layer, inputs),
        ),
        label.measured("input_gradient", input_gradient, flops=flops),
        label.measured("recompute_backward", recompute, flops=3 * flops),
    ]
    elements = sum(weight.numel() for weight in layer.weights.values())
    step_bytes = float(elements * (OPTIMIZER_BYTES + device.element_bytes))
    step = label.measured("optimizer", _optimizer_step(layer, effort), moved_bytes=step_bytes)
    return [*measured, step]


def _optimizer_step(layer: Layer, effort: Effort) -> Timing:
    """One fused AdamW step on fp32 master weights, and the copy back to the layer's weights."""
    torch = layer.device.torch
    weights = [weight.detach() for weight in layer.weights.values()]
    masters = [torch.nn.Parameter(weight.float().clone()) for weight in weights]
    for master in masters:
        master.grad = torch.randn_like(master)
    optimizer = torch.optim.AdamW(masters, fused=True)

    def step() -> None:
        optimizer.step()
        for weight, master in zip(weights, masters, strict=True):
            weight.copy_(master.detach())

    return timed(step, layer.device, effort)


def _kept_bytes(layer: Layer, x: Tensor) -> int:
    """Bytes that the forward pass keeps for the backward one: each storage once, weights and tables not.

    The layer's input counts: whoever made it hands it over.
    """
    own = {
        one.untyped_storage().data_ptr() for one in (*layer.weights.values(), layer.cosines, layer.sines)
    }
    kept: dict[int, int] = {}

    def pack(saved: Tensor) -> Tensor:
        storage = saved.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return saved

    with layer.device.torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        output = layer.forward(x)
    del output
    return sum(kept.values())


def _peak_bytes(layer: Layer, inputs: tuple[Tensor, ...]) -> int | None:
    """Bytes that the allocator held at the peak of a forward and backward pass; None on a CPU.

    The buffer that flushes the cache between repeats is not counted.
    """
    device = layer.device
    if device.kind == "cpu":
        return None
    cuda = device.torch.cuda
    cuda.reset_peak_memory_stats(device.index)
    output = layer.forward(inputs[0])
    device.torch.autograd.grad(output, inputs, device.torch.randn_like(output))
    flush_bytes = 0 if device.flush is None else int(device.flush.nbytes)
    return int(cuda.max_memory_allocated(device.index)) - flush_bytes

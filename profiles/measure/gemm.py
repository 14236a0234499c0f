"""Matrix products of a layer's shard: Y = X W', dX = dY W and dW = dY' X."""

from __future__ import annotations

from profiles.measure.device import Device
from profiles.measure.shard import Gemm
from profiles.measure.task import Label
from profiles.measure.timing import Effort, timed
from profiles.measured_profile import Measurement


def measure_gemm(gemm: Gemm, label: Label, device: Device, effort: Effort) -> list[Measurement]:
    """Forward, input gradient and weight gradient; the products of several experts as one batch.

    W is stored (n, k), as torch.nn.Linear stores it, so the three products read their operands in the
    layouts that training does.
    """
    batch = (gemm.experts,) if gemm.experts > 1 else ()
    x = device.random(*batch, gemm.m, gemm.k)
    w = device.random(*batch, gemm.n, gemm.k, scale=gemm.k**-0.5)
    dy = device.random(*batch, gemm.m, gemm.n)
    matmul = device.torch.matmul
    passes = {
        "forward": lambda: matmul(x, w.mT),
        "input_gradient": lambda: matmul(dy, w),
        "weight_gradient": lambda: matmul(dy.mT, x),
    }
    elements = gemm.experts * (gemm.m * gemm.k + gemm.n * gemm.k + gemm.m * gemm.n)
    return [
        label.measured(
            kind,
            timed(run, device, effort),
            flops=gemm.flops,
            moved_bytes=float(elements * device.element_bytes),
        )
        for kind, run in passes.items()
    ]

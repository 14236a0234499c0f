"""Stand-ins for mamba_ssm, which a GPU's compiler builds: two kernels without weights, and a norm."""

from __future__ import annotations

import sys
import types
from typing import Any

import torch


class GatedNorm(torch.nn.Module):
    """mamba_ssm's ``RMSNorm``: one weight for each element."""

    def __init__(self, hidden_size: int, **options: Any) -> None:
        """Hold the weight; all other options are about the kernel."""
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(hidden_size, device=options.get("device")))


def stand_in(name: str, **held: object) -> None:
    """Put a module where the import system finds it."""
    module = types.ModuleType(name)
    module.__dict__.update(held)
    sys.modules[name] = module


for package in ("mamba_ssm", "mamba_ssm.ops", "mamba_ssm.ops.triton"):
    stand_in(package, __path__=[], __version__="2.3.2")
stand_in("mamba_ssm.ops.triton.layernorm_gated", RMSNorm=GatedNorm)
stand_in(
    "mamba_ssm.ops.triton.ssd_combined",
    mamba_chunk_scan_combined=lambda: None, mamba_split_conv1d_scan_combined=lambda: None,
)  # fmt: skip

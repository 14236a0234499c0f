"""What is to be decided: a model, a cluster, a workload, a launcher, and the limits of the search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from profiles.cluster import ClusterSpec
from profiles.model import ModelSpec
from solver.options import SearchOptions

PRECISIONS = ("bf16", "fp16", "fp8")
# Linear layers that LoRA (Hu et al. 2021, arXiv:2106.09685) may adapt, as Megatron-Bridge names them.
LORA_TARGETS = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
ATTENTION_TARGETS = LORA_TARGETS[:2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What one optimizer step does."""

    global_batch_size: int  # sequences per optimizer step
    seq_length: int  # tokens per sequence
    precision: str = "bf16"
    optimizer: str = "adamw"  # one of profiles.optimizers
    optimizer_rank: int = 0  # of a low-rank optimizer's projection; 0: its paper's
    lora_rank: int = 0  # of adapters beside a frozen model; 0: every weight is trained
    lora_targets: tuple[str, ...] = ATTENTION_TARGETS  # what they adapt, where lora_rank > 0
    # Overrides of the framework's facts: attention_kernel, gradient_dtype, loss_fused, …
    framework_options: Mapping[str, str | int | float | bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One question put to the planner; frozen, checked once where it is built."""

    model: ModelSpec
    cluster: ClusterSpec
    workload: Workload
    launcher: str = "megatron-lm"  # a launcher id, "any" or "none"
    options: SearchOptions = field(default_factory=SearchOptions)
    profile: str | None = None  # measured costs that somebody gave, by name; None: those that ship

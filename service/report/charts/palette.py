"""One colour for each term of time and memory, in every picture, on light and on dark paper."""

from __future__ import annotations

from collections.abc import Mapping

MEMORY_COLORS: Mapping[str, str] = {
    "weights": "#3f66e0",
    "gradients": "#8aa2f0",
    "optimizer": "#14948a",
    "activations": "#dd8324",
    "workspace": "#b15c9c",
    "buffers": "#93763f",
    "context": "#6d7889",
    "reserve": "#a9b2bf",
}
TIME_COLORS: Mapping[str, str] = {
    "compute": "#3f66e0",
    "ideal": "#3f66e0",
    "gemm_efficiency": "#8aa2f0",
    "attention_efficiency": "#5f4bb6",
    "memory_bound": "#14948a",
    "launch_floor": "#4d8f3c",
    "offload": "#93763f",
    "recompute": "#2f9fd0",
    "tensor_parallel": "#dd8324",
    "context_parallel": "#c4472f",
    "expert_parallel": "#b15c9c",
    "pipeline_transfer": "#c2a11c",
    "unequal_lengths": "#6aa84f",
    "reference": "#7c5e8f",
    "imbalance": "#8f74d6",
    "bubble": "#a9b2bf",
    "data_parallel": "#1f7f9c",
    "optimizer": "#6d7889",
    "straggler": "#d76d8f",
    "calibration": "#5fae93",
    "fixed": "#b98d5f",
    "rest": "#8b95a3",
}
PASS_COLORS: Mapping[str, str] = {
    "forward": "#8aa2f0",
    "backward": "#3f66e0",
    "input_gradient": "#3f66e0",
    "weight_gradient": "#b9c7f6",
    "gradients": "#a9b2bf",
    "optimizer": "#1c2330",
    "critical": "#8a4b00",
}

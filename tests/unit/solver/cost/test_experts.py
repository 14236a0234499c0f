"""transformers' ways to run experts, next to what one layer of them took on an H100."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from meshwright.profiles.library import find_cluster, find_model
from meshwright.solver.configuration import Columns
from meshwright.solver.cost.compute import gemm_seconds, layer_gemms, linear_seconds, memory_bound
from meshwright.solver.cost.context import PassSeconds, context_of
from meshwright.solver.cost.launches import launched, layer_floor_s
from tests.problems.pricing import a_layout, a_problem, a_profile

MEASURED = Path(__file__).parents[4] / "benchmarks" / "data" / "experts.jsonl"
WAYS = {"eager": "loop", "grouped_mm": "grouped", "batched_mm": "batched"}


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("weights", ["torch.bfloat16", "torch.float32"])
def test_ways_to_run_experts_take_as_long_as_measured(how: str, weights: str) -> None:
    _, *rows = (json.loads(line) for line in MEASURED.read_text(encoding="utf-8").splitlines())
    named = [row for row in rows if (row["how"], row["weights"]) == (how, weights) and row["h"] == 2048]
    assert len(named) == 3
    ratios = [both_passes_s(row) / (row["both_us"] * 1e-6) for row in named]
    assert fmean(ratios) == pytest.approx(1.0, abs=0.2)


def both_passes_s(row: dict[str, Any]) -> float:
    """What a layer of experts takes more than one without, as the host issues it and the GPU runs it."""
    found = find_model("qwen3-30b-a3b")
    assert found.moe is not None
    moe = replace(found.moe, num_experts=row["experts"], top_k=row["top"], ffn_hidden_size=row["f"])
    model = replace(found, hidden_size=row["h"], moe=moe)
    options = {"grouped_gemm": WAYS[row["how"]], "elementwise_fused": False, "norm_fused": False}
    optimizer = "adamw" if row["weights"] == "torch.float32" else "adamw-pure-bf16"
    problem = a_problem(
        model, seq_length=row["tokens_run"], framework_options=options, optimizer=optimizer,
        cluster=find_cluster("dgx-h100"),
    )  # fmt: skip
    layout = a_layout(stage_layers=(model.num_layers,), micro_batch_size=1, num_microbatches=8)
    ctx = context_of(problem, Columns.of([layout]), a_profile(problem, "accelerate"))
    small = replace(ctx, model=replace(model, moe=replace(moe, ffn_hidden_size=1, top_k=1)))
    dense = [one for one in layer_gemms(ctx, "moe") if not one.grouped]
    products = beyond(linear_seconds(ctx, "moe"), gemm_seconds(ctx, dense, ctx.linear_precision))
    busy = products + beyond(memory_bound(ctx, "moe"), memory_bound(small, "moe"))
    bare = replace(ctx, model=replace(model, moe=None, ffn_hidden_size=1))
    passes = launched(ctx, "moe", busy, layer_floor_s(ctx, "moe") - layer_floor_s(bare, "dense"))
    return float(passes.forward[0] + passes.backward[0])


def beyond(whole: PassSeconds, part: PassSeconds) -> PassSeconds:
    return PassSeconds(forward=whole.forward - part.forward, backward=whole.backward - part.backward)

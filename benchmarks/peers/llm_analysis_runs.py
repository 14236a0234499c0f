"""Runs beside a checkout of llm-analysis (cli99/llm-analysis): the step time of each run that it can state.

The checkout's path is the only argument; release 0.2.2 has no gated MLPs yet.
Standard input: JSON {"rows": [facts of ``benchmarks.leaderboard.facts_of``]}.
Standard output, last line: JSON {"version", "commit", "steps": [seconds, or why there are none]}.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

CHECKOUT = Path(sys.argv[1])
sys.path.insert(0, str(CHECKOUT))

from llm_analysis.analysis import (  # type: ignore[import-not-found]  # noqa: E402 (the path comes first)
    ActivationRecomputation,
    DSZeRO,
    LLMAnalysis,
)
from llm_analysis.config import (  # type: ignore[import-not-found]  # noqa: E402
    ModelConfig,
    ParallelismConfig,
    get_dtype_config_by_name,
    get_gpu_config_by_name,
)
from llm_analysis.logger import logger  # type: ignore[import-not-found]  # noqa: E402

GPUS = ("a100-sxm-40gb", "a100-sxm-80gb", "h100-sxm-80gb", "v100-sxm-16gb", "v100-sxm-32gb")
ALIASES = {"a100-sxm": "a100-sxm-80gb"}
SHARE_OF_PEAK = 0.5
ENOUGH_GB = 2000  # so that memory refuses nothing; it counts batches one by one up to what fits
RECOMPUTE = {
    "none": ActivationRecomputation.NONE,
    "selective": ActivationRecomputation.ATTN_COMPUTE,
    "full": ActivationRecomputation.FULL,
}
ZERO = (DSZeRO.NONE, DSZeRO.STAGE_1, DSZeRO.STAGE_2, DSZeRO.STAGE_3)


def refused(row: dict[str, Any]) -> str | None:
    """Why it cannot state a run."""
    reasons = {
        "no file of the GPU": ALIASES.get(row["gpu"], row["gpu"]) not in GPUS,
        "not 16 bits": row["precision"] not in ("bf16", "fp16"),
        "LoRA": bool(row["lora_rank"]),
        "context parallelism": row["context"] > 1,
        "latent attention": bool(row["latent_attention"]),
        "shared experts or dense layers between": bool(row["experts"])
        and bool(row["shared_ffn"] or row["dense_layers"]),
    }
    return next((why for why, holds in reasons.items() if holds), None)


def seconds(row: dict[str, Any]) -> float | str:
    """The step time of one run, or why there is none."""
    why = refused(row)
    if why is not None:
        return why
    model = ModelConfig(
        name="run", num_layers=row["num_layers"], n_head=row["heads"], hidden_dim=row["hidden_size"],
        vocab_size=row["vocab_size"], max_seq_len=row["seq_length"], num_key_value_heads=row["kv_heads"],
        ffn_embed_dim=row["expert_ffn"] or row["ffn_hidden_size"], moe_num_experts=row["experts"] or 1,
        moe_top_k=row["top_k"] or 1, mlp_gated_linear_units=row["gated_mlp"],
    )  # fmt: skip
    gpu = get_gpu_config_by_name(ALIASES.get(row["gpu"], row["gpu"]))
    gpu.mem_per_GPU_in_GB = ENOUGH_GB
    layout = ParallelismConfig(
        tp_size=row["tensor"], pp_size=row["pipeline"], dp_size=row["data"], ep_size=row["expert"],
        sp_size=row["tensor"] if row["sequence_parallel"] else 1,
    )  # fmt: skip
    try:
        analysis = LLMAnalysis(
            model, gpu, get_dtype_config_by_name("w16a16e16"), layout, flops_efficiency=SHARE_OF_PEAK
        )
        summary = analysis.training(
            batch_size_per_gpu=row["micro_batch"],
            global_batch_size=row["batch"],
            seq_len=row["seq_length"],
            total_num_tokens=row["batch"] * row["seq_length"],
            activation_recomputation=RECOMPUTE[row["recompute"]],
            ds_zero=ZERO[row["zero"]],
        )
    except (AssertionError, ZeroDivisionError, KeyError, ValueError) as fault:
        return f"{type(fault).__name__} of its own: {str(fault)[:60]}"
    return float(summary["latency_per_iter"])


def main() -> None:
    """Answer all rows."""
    logger.setLevel(logging.CRITICAL)
    rows = json.load(sys.stdin)["rows"]
    steps = [seconds(row) for row in rows]
    commit = subprocess.run(
        ["git", "-C", str(CHECKOUT), "rev-parse", "--short", "HEAD"],
        capture_output=True, text=True, check=False,
    ).stdout.strip()  # fmt: skip
    print(json.dumps({"version": "checkout", "commit": commit, "steps": steps}))


if __name__ == "__main__":
    main()

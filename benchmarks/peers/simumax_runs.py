"""Runs beside a checkout of SimuMax (MooreThreads/SimuMax): the step time of each run that it can state.

The checkout's path is the only argument. Input and output as of ``llm_analysis_runs``.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

# The other file that it ships is of an A100 on PCIe, which none of the runs has.
SYSTEM = "b200_bf16_ceperm"
GPUS = ("b200-sxm-180gb",)


def refused(row: dict[str, Any]) -> str | None:
    """Why it cannot state a run."""
    reasons = {
        "no file of the GPU": row["gpu"] not in GPUS,
        "not bf16": row["precision"] != "bf16",
        "LoRA": bool(row["lora_rank"]),
        "ZeRO beyond stage 1": row["zero"] > 1,
        "schedule": row["schedule"] not in ("none", "1f1b", "interleaved_1f1b"),
        "uneven stages": row["num_layers"] % (row["pipeline"] * row["chunks"]) != 0 or not row["even"],
        "selective recomputation": row["recompute"] == "selective",
    }
    return next((why for why, holds in reasons.items() if holds), None)


def model_of(row: dict[str, Any]) -> dict[str, Any]:
    """The fields of its ``ModelConfig``."""
    latent = row["latent_attention"]
    return {
        "model_type": "moe" if row["experts"] else "dense", "model_name": "run",
        "hidden_size": row["hidden_size"], "head_num": row["heads"], "kv_head_num": row["kv_heads"],
        "head_size": latent["v_head_dim"] if latent else row["head_dim"],
        "intermediate_size": row["ffn_hidden_size"],
        "layer_num": row["num_layers"], "vocab_size": row["vocab_size"], "use_swiglu": row["gated_mlp"],
        **({
            "attention_type": "mla", "v_head_dim": latent["v_head_dim"],
            "qk_head_dim": latent["qk_nope_head_dim"], "qk_pos_emb_head_dim": latent["qk_rope_head_dim"],
            "q_lora_rank": latent["q_lora_rank"] or None, "kv_lora_rank": latent["kv_lora_rank"],
        } if latent else {}),
        **({
            "expert_num": row["experts"], "topk": row["top_k"], "moe_ffn_hidden_size": row["expert_ffn"],
            "moe_shared_expert_intermediate_size": row["shared_ffn"] or None,
            "dense_layers": row["dense_layers"],
        } if row["experts"] else {}),
    }  # fmt: skip


def strategy_of(row: dict[str, Any]) -> dict[str, Any]:
    """The fields of its ``StrategyConfig``."""
    full = row["recompute"] == "full"
    return {
        "seq_len": row["seq_length"], "micro_batch_size": row["micro_batch"],
        "micro_batch_num": row["batch"] // (row["data"] * row["micro_batch"]), "dtype": "bf16",
        "world_size": row["gpus"], "tp_size": row["tensor"], "pp_size": row["pipeline"],
        "cp_size": row["context"], "ep_size": row["expert"], "etp_size": row["expert_tensor"],
        "moe_dispatcher_policy": "all2all", "enable_sequence_parallel": bool(row["sequence_parallel"]),
        "interleaving_size": row["chunks"], "zero_state": row["zero"], "enable_dropout": False,
        "use_fused_norm": True, "use_math_sdp": False, "use_flash_sdp": True,
        "use_fp32_accum_grad": True, "enable_recompute": full, "mem_factor": 0.94,
        **({
            "recompute_granularity": "full_block",
            "recompute_layer_num": row["recompute_layers"] or row["num_layers"] // row["pipeline"],
        } if full else {}),
    }  # fmt: skip


def main() -> None:
    """Answer all rows."""
    checkout = Path(sys.argv[1])
    sys.path.insert(0, str(checkout))
    os.chdir(tempfile.mkdtemp())  # it writes its results where it is
    from simumax.core.config import (  # type: ignore[import-not-found]  # noqa: PLC0415 (the path comes first)
        ModelConfig,
        StrategyConfig,
        SystemConfig,
    )
    from simumax.core.perf_llm import PerfLLM  # type: ignore[import-not-found]  # noqa: PLC0415

    system = checkout / "configs" / "system" / f"{SYSTEM}.json"

    def seconds(row: dict[str, Any]) -> float | str:
        why = refused(row)
        if why is not None:
            return why
        try:
            perf = PerfLLM()
            perf.configure(
                strategy_config=StrategyConfig.init_from_dict(strategy_of(row)),
                model_config=ModelConfig.init_from_dict(model_of(row)),
                system_config=SystemConfig.init_from_config_file(str(system)),
            )
            perf.run_estimate()
            found = perf.analysis_cost().data["duration_time_per_iter"]
        except Exception as fault:  # noqa: BLE001 - whatever it raises is why it cannot state the run
            return f"{type(fault).__name__}: {str(fault)[:80]}"
        return _seconds(str(found))

    with contextlib.redirect_stdout(io.StringIO()):
        steps = [seconds(row) for row in json.load(sys.stdin)["rows"]]
    commit = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"],
        capture_output=True, text=True, check=False,
    ).stdout.strip()  # fmt: skip
    print(json.dumps({"version": "1.2", "commit": commit, "steps": steps}))


def _seconds(text: str) -> float:
    """Milliseconds, or a number with its unit."""
    number, _, unit = text.strip().partition(" ")
    return float(number) * {"s": 1.0, "us": 1e-6}.get(unit.strip(), 1e-3)


if __name__ == "__main__":
    main()

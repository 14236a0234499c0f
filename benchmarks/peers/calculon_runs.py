"""Runs beside a checkout of Calculon (calculon-ai/calculon): the step time of each run that it can state.

The checkout's path is the only argument. Input and output as of ``llm_analysis_runs``.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

SYSTEMS = {
    "a100-sxm": "a100_80g.json", "a100-sxm-40gb": "a100_80g.json", "a100-sxm-80gb": "a100_80g.json",
    "h100-sxm-80gb": "h100_80g_nvl8.json",
}  # fmt: skip
RECOMPUTE = {"none": "none", "selective": "attn_only", "full": "full"}
UNLIMITED_GIB = 10**6
GATED = 1.5  # three matrices of one width are as large as two of this


def refused(row: dict[str, Any]) -> str | None:
    """Why it cannot state a run."""
    layers, chunks = row["num_layers"], row["pipeline"] * row["chunks"]
    reasons = {
        "no file of the GPU": row["gpu"] not in SYSTEMS,
        "not 16 bits": row["precision"] not in ("bf16", "fp16"),
        "experts": bool(row["experts"]),
        "LoRA": bool(row["lora_rank"]),
        "latent attention": bool(row["latent_attention"]),
        "context parallelism": row["context"] > 1,
        "ZeRO beyond stage 1": row["zero"] > 1,
        "uneven stages": layers % chunks != 0 or not row["even"],
        "schedule": row["schedule"] not in ("none", "1f1b", "interleaved_1f1b"),
        "part of the layers recomputed": row["recompute"] == "full"
        and row["recompute_layers"] * chunks < layers,
    }
    return next((why for why, holds in reasons.items() if holds), None)


def execution(row: dict[str, Any]) -> dict[str, object]:
    """One row as the fields of ``Llm.Execution``."""
    tensor, data, full = row["tensor"], row["data"], row["recompute"] == "full"
    inside = row["gpus"] <= row["gpus_per_node"]
    sequence = bool(row["sequence_parallel"]) and tensor > 1
    return {
        "num_procs": row["gpus"], "tensor_par": tensor, "pipeline_par": row["pipeline"], "data_par": data,
        "tensor_par_net": 0 if tensor <= row["gpus_per_node"] else 1,
        "pipeline_par_net": 0 if inside else 1, "data_par_net": 0 if inside else 1,
        "batch_size": row["batch"], "microbatch_size": row["micro_batch"], "datatype": "float16",
        "fused_activation": True, "attention_type": "multihead",
        "activation_recompute": RECOMPUTE[row["recompute"]], "pipeline_interleaving": row["chunks"],
        "optimizer_sharding": row["zero"] == 1 and data > 1,
        "tensor_par_comm_type": "rs_ag" if sequence else "ar", "tensor_par_overlap": "none",
        "seq_par_ag_redo": sequence and not full, "data_par_overlap": data > 1, "weight_offload": False,
        "activations_offload": False, "optimizer_offload": False, "training": True,
    }  # fmt: skip


def main() -> None:
    """Answer all rows."""
    checkout = Path(sys.argv[1])
    sys.path.insert(0, str(checkout))
    from calculon.llm import Llm  # type: ignore[import-not-found]  # noqa: PLC0415 (the path comes first)
    from calculon.system import System  # type: ignore[import-not-found]  # noqa: PLC0415

    log = logging.getLogger("calculon")

    def seconds(row: dict[str, Any]) -> float | str:
        why = refused(row)
        if why is not None:
            return why
        described = json.loads((checkout / "systems" / SYSTEMS[row["gpu"]]).read_text())
        described["mem1"]["GiB"] = UNLIMITED_GIB
        width = row["ffn_hidden_size"] * (GATED if row["gated_mlp"] else 1.0)
        application = Llm.Application({
            "hidden": row["hidden_size"], "feedforward": int(width), "seq_size": row["seq_length"],
            "attn_heads": row["heads"], "attn_size": row["head_dim"], "num_blocks": row["num_layers"],
        })  # fmt: skip
        try:
            model, system = Llm(application, log), System(described)
            model.compile(system, Llm.Execution.from_json(execution(row)))
            model.run(system)
        except (AssertionError, Llm.Error) as fault:
            return f"{type(fault).__name__}: {str(fault)[:60]}"
        return float(model.get_total_time())

    steps = [seconds(row) for row in json.load(sys.stdin)["rows"]]
    commit = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"],
        capture_output=True, text=True, check=False,
    ).stdout.strip()  # fmt: skip
    print(json.dumps({"version": "checkout", "commit": commit, "steps": steps}))


if __name__ == "__main__":
    main()

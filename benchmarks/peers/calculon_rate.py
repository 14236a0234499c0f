"""Runs beside a checkout of Calculon (calculon-ai/calculon): the same as ``llm_analysis_rate``.

The checkout's path is the only argument; it is put on the path of this process alone.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path

MODEL = {  # GPT-3 175B
    "hidden": 12288, "feedforward": 49152, "seq_size": 2048, "attn_heads": 96, "attn_size": 128,
    "num_blocks": 96,
}  # fmt: skip
RECOMPUTE = {"none": "none", "selective": "attn_only", "full": "full"}


def execution(row: dict[str, int | str]) -> dict[str, object]:
    """One row in Calculon's words: the fields of ``Llm.Execution``."""
    tensor, full = int(row["tensor"]), row["recompute"] == "full"
    sequence_parallel = tensor > 1
    return {
        "num_procs": tensor * int(row["pipeline"]) * int(row["data"]),
        "tensor_par": tensor,
        "pipeline_par": row["pipeline"],
        "data_par": row["data"],
        "tensor_par_net": 0,
        "pipeline_par_net": 1,
        "data_par_net": 1,
        "batch_size": row["batch"],
        "microbatch_size": row["micro_batch"],
        "datatype": "float16",
        "fused_activation": True,
        "attention_type": "multihead",
        "activation_recompute": RECOMPUTE[str(row["recompute"])],
        "pipeline_interleaving": 1,
        "optimizer_sharding": bool(row["zero"]) and int(row["data"]) > 1,
        "tensor_par_comm_type": "rs_ag" if sequence_parallel else "ar",
        "tensor_par_overlap": "none",
        "seq_par_ag_redo": sequence_parallel and not full,
        "data_par_overlap": False,
        "weight_offload": False,
        "activations_offload": False,
        "optimizer_offload": False,
        "training": True,
    }


def main() -> None:
    """Time every repeat over all rows."""
    checkout = Path(sys.argv[1])
    sys.path.insert(0, str(checkout))
    from calculon.llm import Llm  # type: ignore[import-not-found]  # noqa: PLC0415 (the path comes first)
    from calculon.system import System  # type: ignore[import-not-found]  # noqa: PLC0415

    request, log = json.load(sys.stdin), logging.getLogger("calculon")
    system = System(json.loads((checkout / "systems" / "a100_80g.json").read_text()))
    application = Llm.Application(MODEL)
    seconds = []
    for _ in range(request["repeats"]):
        done, start = 0, time.process_time()
        for row in request["rows"]:
            try:
                model = Llm(application, log)
                model.compile(system, Llm.Execution.from_json(execution(row)))
                model.run(system)
            except (AssertionError, Llm.Error):
                continue  # a layout that it refuses, or that does not fit; not counted
            done += 1
        seconds.append(time.process_time() - start)
    print(json.dumps({"version": "checkout", "seconds": seconds, "done": done}))


if __name__ == "__main__":
    main()

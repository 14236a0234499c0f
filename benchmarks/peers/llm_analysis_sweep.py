"""Runs in the environment of llm-analysis: a training step of every configuration that it is given.

Standard input: JSON {"rows": [{tensor, pipeline, data, micro_batch, batch, recompute, zero}]}.
Standard output, last line: JSON {"version", "steps": [[seconds, whether it finds room], or null where it
refuses the layout]}.
"""

from __future__ import annotations

import json
import logging
import sys
from importlib.metadata import version
from typing import Any

from llm_analysis.analysis import (  # type: ignore[import-not-found]
    ActivationRecomputation,
    DSZeRO,
    LLMAnalysis,
)
from llm_analysis.config import (  # type: ignore[import-not-found]
    ParallelismConfig,
    get_dtype_config_by_name,
    get_gpu_config_by_name,
    get_model_config_by_name,
)
from llm_analysis.logger import logger  # type: ignore[import-not-found]

SEQ_LENGTH, FLOPS_EFFICIENCY = 2048, 0.5  # the share of peak is the user's to state


def step(parts: tuple[Any, Any, Any], row: dict[str, Any]) -> tuple[float, bool] | None:
    """Seconds of one step, and whether memory is left; None where it refuses."""
    model, gpu, dtype = parts
    layout = ParallelismConfig(
        tp_size=row["tensor"], pp_size=row["pipeline"], dp_size=row["data"], sp_size=row["tensor"]
    )
    try:
        summary = LLMAnalysis(model, gpu, dtype, layout, flops_efficiency=FLOPS_EFFICIENCY).training(
            batch_size_per_gpu=row["micro_batch"],
            global_batch_size=row["batch"],
            seq_len=SEQ_LENGTH,
            total_num_tokens=row["batch"] * SEQ_LENGTH,
            activation_recomputation=ActivationRecomputation[row["recompute"].upper()],
            ds_zero=DSZeRO.STAGE_1 if row["zero"] else DSZeRO.NONE,
        )
    except (AssertionError, ZeroDivisionError):
        return None
    return float(summary["latency_per_iter"]), bool(summary["memory_left_per_gpu"] >= 0)


def main() -> None:
    """Estimate all rows."""
    logger.setLevel(logging.CRITICAL)
    rows = json.load(sys.stdin)["rows"]
    parts = (
        get_model_config_by_name("megatron-lm-175b"),
        get_gpu_config_by_name("a100-sxm-80gb"),
        get_dtype_config_by_name("w16a16e16"),
    )
    print(json.dumps({"version": version("llm-analysis"), "steps": [step(parts, row) for row in rows]}))


if __name__ == "__main__":
    main()

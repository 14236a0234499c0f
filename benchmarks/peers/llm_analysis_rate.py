"""Runs in the environment of llm-analysis: estimates configurations again and again and times them.

Standard input: JSON {"rows": [{tensor, pipeline, data, micro_batch, batch, recompute, zero}],
"repeats": n}.
Standard output, last line: JSON {"version", "seconds": [CPU seconds of each repeat], "done": rows that
were estimated}.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from importlib.metadata import version

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

RECOMPUTE = {
    "none": ActivationRecomputation.NONE,
    "selective": ActivationRecomputation.SELECTIVE,
    "full": ActivationRecomputation.FULL,
}


def main() -> None:
    """Time every repeat over all rows."""
    logger.setLevel(logging.CRITICAL)
    request = json.load(sys.stdin)
    model = get_model_config_by_name("megatron-lm-175b")
    gpu, dtype = get_gpu_config_by_name("a100-sxm-80gb"), get_dtype_config_by_name("w16a16e16")
    seconds = []
    for _ in range(request["repeats"]):
        done, start = 0, time.process_time()
        for row in request["rows"]:
            layout = ParallelismConfig(
                tp_size=row["tensor"], pp_size=row["pipeline"], dp_size=row["data"], sp_size=row["tensor"]
            )
            try:
                summary = LLMAnalysis(model, gpu, dtype, layout, flops_efficiency=0.5).training(
                    batch_size_per_gpu=row["micro_batch"],
                    global_batch_size=row["batch"],
                    seq_len=2048,
                    total_num_tokens=row["batch"] * 2048,
                    activation_recomputation=RECOMPUTE[row["recompute"]],
                    ds_zero=DSZeRO.STAGE_1 if row["zero"] else DSZeRO.NONE,
                )
            except (AssertionError, ZeroDivisionError):
                continue  # a layout that it refuses; not counted
            done += summary["latency_per_iter"] > 0
        seconds.append(time.process_time() - start)
    print(json.dumps({"version": version("llm-analysis"), "seconds": seconds, "done": done}))


if __name__ == "__main__":
    main()

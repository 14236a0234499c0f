"""Run the search of a SimuMax checkout (MooreThreads/SimuMax), or price configurations with it.

    python simumax_search.py CHECKOUT

Standard input: JSON {"model": a file of its models, "system": of its systems, "memory_gib": of a GPU,
"gpus", "batch", "seq_length", "micro_batches": sizes to search in turn, "judge": [configurations of ours]}.
Without "judge" it searches as its example of a search does, over every kind of recomputation.
Standard output, last line: JSON {"version", "step_s", "strategies", "layout", "recompute"} or {"steps_s":
[[seconds, whether it fits], or null where it cannot state the configuration]}.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MARGIN_GIB = 6  # that its example examples/search/llm_search.py keeps free on each GPU


def strategy(request: Mapping[str, Any], **own: object) -> dict[str, Any]:
    """Return the fields of its strategy that all of them share, and ``own``."""
    return {
        "seq_len": request["seq_length"], "micro_batch_size": 1, "micro_batch_num": 1, "dtype": "bf16",
        "world_size": request["gpus"], "tp_size": 1, "pp_size": 1, "cp_size": 1, "ep_size": 1,
        "etp_size": 1, "enable_sequence_parallel": True, "interleaving_size": 1, "zero_state": 1,
        "enable_dropout": False,
        "use_fused_norm": True, "use_math_sdp": False, "use_flash_sdp": True, "use_fp32_accum_grad": True,
        "enable_recompute": False, "mem_factor": 0.94, **own,
    }  # fmt: skip


def stated(request: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return one of our configurations as its strategy; None where it cannot express it."""
    stages, chunks = config["stage_layers"], config["virtual_pipeline_size"]
    inner = stages[1:-1]
    named = {
        "chunks": chunks == 1 or len({*stages}) == 1,
        "split": len({*inner}) <= 1 and (not inner or max(stages) == inner[0]),
        "ZeRO": config["zero_stage"] <= 1,
        "recomputation": config["recompute_granularity"] != "selective",
        "of some layers": config["recompute_layers"] in (0, sum(stages)) or chunks == 1,
        "context": config["context_parallel_size"] == 1,
    }
    if not all(named.values()):
        return None
    full = config["recompute_granularity"] == "full"
    uneven = len(stages) > 1 and len({*stages}) > 1
    return strategy(
        request, tp_size=config["tensor_parallel_size"], pp_size=config["pipeline_parallel_size"],
        micro_batch_size=config["micro_batch_size"], micro_batch_num=config["num_microbatches"],
        interleaving_size=chunks, zero_state=config["zero_stage"],
        enable_sequence_parallel=bool(config["sequence_parallel"]),
        **({"num_layers_in_first_pipeline_stage": stages[0],
            "num_layers_in_last_pipeline_stage": stages[-1]} if uneven else {}),
        **({"enable_recompute": True, "recompute_granularity": "full_block",
            "recompute_layer_num": min(config["recompute_layers"], max(stages))} if full else {}),
    )  # fmt: skip


class Judge:
    """Its model of one request."""

    def __init__(self, checkout: Path, request: Mapping[str, Any]) -> None:
        from simumax.core import config, perf_llm  # type: ignore[import-not-found]  # noqa: PLC0415 (the path comes first)

        self.request, self._config, self._perf = request, config, perf_llm
        self._model = str(checkout / "configs" / "models" / request["model"])
        system = json.loads((checkout / "configs" / "system" / request["system"]).read_text())
        system["accelerator"]["mem_gbs"] = request["memory_gib"]
        self._system = str(Path(tempfile.mkdtemp()) / request["system"])
        Path(self._system).write_text(json.dumps(system))

    def of(self, fields: Mapping[str, Any]) -> Any:  # noqa: ANN401 - its own class
        """Its model under a strategy."""
        perf = self._perf.PerfLLM()
        perf.configure(
            strategy_config=self._config.StrategyConfig.init_from_dict(dict(fields)),
            model_config=self._config.ModelConfig.init_from_config_file(self._model),
            system_config=self._config.SystemConfig.init_from_config_file(self._system),
        )
        return perf

    def priced(self, config: Mapping[str, Any]) -> tuple[float, bool] | None:
        """Return the seconds of a step, and whether it fits with the memory margin of its search."""
        fields = stated(self.request, config)
        if fields is None:
            return None
        perf = self.of(fields)
        perf.run_estimate()
        peaks = perf.get_pp_stage_peak_mem(perf.analysis_mem(), "peak_mem_with_reserved", toG=True)
        return step_s(perf), max(peaks.values()) <= perf.system.accelerator.mem_gbs - MARGIN_GIB

    def searched(self) -> dict[str, Any]:
        """Return its best strategy over all micro-batch sizes."""
        found: list[dict[str, Any]] = []
        tried: dict[str, list[Any]] = {}
        for size in self.request["micro_batches"]:
            best = self.of(strategy(self.request)).search_best_parallel_strategy(
                world_size=self.request["gpus"], gmi_error=MARGIN_GIB, micro_batch_size=size,
                global_batch_size=self.request["batch"], all_search_result=tried, verbose=False,
            )  # fmt: skip
            found += [best] if best else []
        best = max(found, key=lambda one: float(one["mfu"]))
        return {
            "step_s": seconds_of(best["iter_time"]), "layout": layout_of(best, self.request["batch"]),
            "recompute": best["recompute_status"], "strategies": len(tried["mfu"]),
        }  # fmt: skip


def step_s(perf: Any) -> float:  # noqa: ANN401 - its own class
    """Seconds of a step of its analysis."""
    return seconds_of(str(perf.analysis_cost().data["duration_time_per_iter"]))


def seconds_of(text: str) -> float:
    """Parse seconds from a number with its unit; without a unit it is milliseconds."""
    number, _, unit = text.strip().partition(" ")
    return float(number) * {"s": 1.0, "us": 1e-6}.get(unit.strip(), 1e-3)


def layout_of(best: Mapping[str, Any], batch: int) -> dict[str, Any]:
    """Return its strategy by the names of ``benchmarks.against.layouts``; it writes "mbs1 tp4.pp2"."""
    sizes = {name: int(size) for name, size in re.findall(r"([a-z]+)(\d+)", best["parallelism"])}
    full = "No Recompute" not in best["recompute_status"]
    return {
        "tensor": sizes["tp"], "pipeline": sizes["pp"], "data": sizes["dp"], "micro_batch": sizes["mbs"],
        "batch": batch, "zero": 1, "recompute": "full" if full else "none",
    }  # fmt: skip


def main() -> None:
    """Answer one request."""
    checkout = Path(sys.argv[1]).resolve()
    sys.path.insert(0, str(checkout))
    os.chdir(tempfile.mkdtemp())  # it writes its results where it is
    request = json.load(sys.stdin)
    with contextlib.redirect_stdout(io.StringIO()):
        judge = Judge(checkout, request)
        if "judge" in request:
            answer: dict[str, Any] = {"steps_s": [judge.priced(one) for one in request["judge"]]}
        else:
            answer = judge.searched()
    commit = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"],
        capture_output=True, text=True, check=False,
    ).stdout.strip()  # fmt: skip
    print(json.dumps({"version": f"1.2 ({commit})", **answer}))


if __name__ == "__main__":
    main()

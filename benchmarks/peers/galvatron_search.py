"""Runs in the environment of hetu-galvatron: its search engine on a profile, or its judge on a plan.

Only the search engine is loaded: its package's own ``__init__`` files import torch and a training runtime
that no search needs, so bare packages stand in for them.

Standard input: JSON {"computation", "memory": profile files of llama2-7b, "batch", "memory_gib",
"judge": [plans]}; a plan is {"pp", "tp", "dp", "micro_batch", "num_microbatches", "stage_layers",
"sharded", "recomputed": of each layer, whether it is under ZeRO-3 and runs its forward pass twice}.
Without "judge" it searches.
Standard output, last line: JSON {"version", "step_s", "covered", "plan"} or {"judged": [{"step_s",
"fits"}]}.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import logging
import math
import shutil
import sys
import tempfile
from functools import partial
from importlib.metadata import version
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

HIDDEN, SEQ, LAYERS, GPUS = 4096, 2048, 32, 8  # llama2-7b on one node
CACHED_ABOVE_GIB = 20  # from here on its search leaves a fifth of memory to PyTorch's cache
PACKAGES = {"galvatron": "", "galvatron.core": "core", "galvatron.utils": "utils"}
ARGUMENTS = (
    "--sequence_parallel", "--time_profile_mode", "batch", "--memory_profile_mode", "static",
    "--pipeline_type", "pipedream_flush", "--default_dp_type", "zero2",
)  # fmt: skip


def engine_module() -> tuple[Any, Path]:
    """The search engine's module, and where the package lies."""
    home = next(Path(entry) / "galvatron" for entry in sys.path if (Path(entry) / "galvatron").is_dir())
    for name, folder in PACKAGES.items():
        package = ModuleType(name)
        package.__path__ = [str(home / folder)]
        sys.modules[name] = package
    for part in ("strategy_utils", "config_utils"):
        found = vars(importlib.import_module(f"galvatron.utils.{part}"))
        names = {key: value for key, value in found.items() if not key.startswith("__")}
        vars(sys.modules["galvatron.utils"]).update(names)
    return importlib.import_module("galvatron.core.search_engine.search_engine"), home


def engine_of(module: Any, home: Path, request: dict[str, Any], folder: str) -> Any:  # noqa: ANN401
    """The engine on the profile, its network that of the package's node of eight GPUs."""
    parser = importlib.import_module("galvatron.core.search_engine.arguments").galvatron_search_args(
        argparse.ArgumentParser()
    )
    sizes = ("--settle_bsz", str(request["batch"]), "--memory_constraint", str(request["memory_gib"]))
    args = parser.parse_args([*sizes, *ARGUMENTS])
    for kind in ("computation", "memory"):
        shutil.copy(request[kind], Path(folder) / f"{kind}_profiling_bf16_llama2-7b.json")
    hardware = str(home / "profile_hardware" / "hardware_configs")
    args.memory_profiling_path = args.time_profiling_path = folder
    args.allreduce_bandwidth_config_path = args.p2p_bandwidth_config_path = hardware
    args.overlap_coe_path = args.sp_time_path = hardware
    args.output_config_path, args.log_dir, args.hidden_size = folder, folder, HIDDEN
    engine = module.GalvatronSearchEngine(args)
    shape = {"hidden_size": HIDDEN, "seq_len": SEQ, "layer_num": LAYERS}
    engine.set_search_engine_info(folder, [shape], "llama2-7b")
    engine.initialize_search_engine()
    return engine


def search(engine: Any, folder: str) -> dict[str, Any]:  # noqa: ANN401
    """Search; count the strategies that its dynamic programs choose among for every layer."""
    programs: list[int] = []
    algorithm = importlib.import_module("galvatron.core.search_engine.dynamic_programming").DPAlg
    fit = algorithm.fit

    def counted(self: Any) -> Any:  # noqa: ANN401
        programs.append(self.strategy_num)
        return fit(self)

    algorithm.fit = counted
    throughput = engine.parallelism_optimization()
    if throughput <= 0:
        raise SystemExit("no configuration found")
    config = json.loads(next(Path(folder).glob("galvatron_config_*.json")).read_text())
    covered = {"programs": len(programs), "strategies": max(programs)}
    return {"step_s": engine.BSZs[0] / throughput, "covered": covered, "plan": config}


def judge(engine: Any, plan: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401
    """The least step among its own choices for the vocabulary that fit, or of all where none does."""
    found = [
        entry
        for least, most, sharded in product((1, 2, 4, 8), (1, 2, 4, 8), (0, 1))
        if least <= plan["tp"] <= most <= GPUS // plan["pp"]
        and plan["micro_batch"] * least % plan["tp"] == 0
        for entry in priced(engine, plan, (least, most, sharded))
    ]
    fitting = [step_s for step_s, fits in found if fits]
    return {"step_s": min(fitting or [step_s for step_s, _ in found]), "fits": bool(fitting)}


def priced(engine: Any, plan: dict[str, Any], how: tuple[int, int, int]) -> list[tuple[float, bool]]:  # noqa: ANN401
    """Step and fit of a plan for every vocabulary split of one (min_tp, max_tp, embed_sdp)."""
    costs = importlib.import_module("galvatron.core.search_engine.cost_model")
    kinds = ("model_args", "train_args", "parallel_args", "profile_model_args")
    lists = {name: getattr(engine, f"{name}_list") for name in kinds}
    first, hardware = {name: value[0] for name, value in lists.items()}, engine.profile_hardware_args_list
    (least, most, sharded), batch = how, engine.BSZs[0]
    micro = plan["micro_batch"] * least // plan["tp"]  # its micro-batch is that of the smallest tp
    outside = costs.OtherTimeCostModel(
        micro, plan["pp"], GPUS, 0, sharded, least, most, [SEQ], **first, profile_hardware_args=hardware[0]
    ).gen_result()[1]
    strategies = strategies_of(plan)
    spare = int(engine.memory_constraint * 0.2)
    limit = engine.memory_constraint - (spare if engine.memory_constraint // 1024 > CACHED_ABOVE_GIB else 0)
    found = []
    for split, seconds in outside.items():
        step_s = costs.pipeline_costmodel(
            costs.TimeCostModel, [LAYERS], *lists.values(), hardware, strategies, plan["stage_layers"],
            [plan["num_microbatches"]], batch, least, seconds,
        )  # fmt: skip
        gathered = int(micro / least * most * HIDDEN * SEQ * 4 / 1024**2 / 2)
        cost = partial(
            costs.MemoryCostModel, global_batch_size=batch, mbsz=micro, min_tp=least, max_tp=most, vsp=0,
            embed_sdp=sharded, **first,
        )  # fmt: skip
        peak = peak_mib(cost, plan["stage_layers"], strategies, split) + gathered
        found.append((float(step_s), peak <= limit))
    return found


def peak_mib(cost: Any, stage_layers: list[int], strategies: list[Any], split: int) -> float:  # noqa: ANN401
    """MiB of the heaviest stage, added up as its search does."""
    begin, peak = 0, 0.0
    for stage, count in enumerate(stage_layers):
        entries = [
            cost(one, stage_idx=stage).get_memory_cost() for one in strategies[begin : begin + count]
        ]
        outside = entries[0]["other"].get(split)
        if outside is None:
            return math.inf
        layers = sum(math.ceil(entry["enc_total"]) for entry in entries)
        peak, begin = max(peak, layers + math.ceil(outside[stage])), begin + count
    return peak


def strategies_of(plan: dict[str, Any]) -> list[list[Any]]:
    """Each layer's strategy in its words: [pp, tp, dp, {fsdp, tp: ranks are neighbours, sp, cpt}]."""
    strategies = []
    for sharded, recomputed in zip(plan["sharded"], plan["recomputed"], strict=True):
        flags: dict[str, int] = {}
        if plan["dp"] > 1:
            flags["fsdp"] = int(sharded)
        if plan["tp"] > 1:
            flags["sp"] = 0
        if plan["tp"] > 1 and plan["dp"] > 1:
            flags["tp"] = 1
        if recomputed:
            flags["cpt"] = 1
        strategies.append([plan["pp"], plan["tp"], plan["dp"], flags])
    return strategies


def main() -> None:
    """Search, or judge."""
    request = json.load(sys.stdin)
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        module, home = engine_module()
        engine = engine_of(module, home, request, folder)
        if request.get("judge") is None:
            answer = search(engine, folder)
        else:
            engine.set_searching_bsz()
            answer = {"judged": [judge(engine, plan) for plan in request["judge"]]}
    print(json.dumps({"version": version("hetu-galvatron"), **answer}))


if __name__ == "__main__":
    main()

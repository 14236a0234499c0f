"""Run the search engine of a checkout of PKU-DAIR/Hetu-Galvatron, or price plans with its cost model.

    python galvatron_checkout_search.py CHECKOUT

Its search needs no training runtime: empty modules stand in for torch and the libraries that only training
imports. Its dynamic program is compiled from ``csrc/dp_core.cpp`` into a folder of its own.
Standard input: JSON {"computation", "memory": profile files of llama2-7b, "batch", "memory_gib", "judge":
[plans]}; a plan is as in ``galvatron_search``. Without "judge" it searches.
Standard output, last line: JSON {"version", "step_s", "covered", "plan"} or {"judged": [{"step_s",
"fits"}]}.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import math
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, cast
from unittest.mock import MagicMock

HIDDEN, SEQ, LAYERS, GPUS, MIB_A_GIB = 4096, 2048, 32, 8, 1024  # llama2-7b on one node
OF_TRAINING = ("torch", "torchvision", "transformers", "hydra", "einops")
PACKAGES = {"galvatron": "", "galvatron.core": "core", "galvatron.core.runtime": "core/runtime"}


class StandIn(ModuleType):
    """A module with any name in it."""

    def __init__(self, name: str) -> None:
        """Make it a package without a folder."""
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> object:
        """Return an object that accepts any use.

        Raises:
            AttributeError: the name is one that Python asks every module for.
        """
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock()


class StandIns:
    """Finds stand-ins for the modules that training alone needs."""

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """Return the spec of such a module."""
        own = name.split(".", maxsplit=1)[0] in OF_TRAINING
        return ModuleSpec(name, cast(Any, self), is_package=True) if own else None

    def create_module(self, spec: ModuleSpec) -> StandIn:
        """Return the stand-in."""
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: a stand-in has no code."""


def compiled(checkout: Path, folder: str) -> None:
    """Compile its dynamic program.

    Raises:
        SystemExit: there is no C++ compiler, or it fails.
    """
    includes = subprocess.run(
        [sys.executable, "-m", "pybind11", "--includes"], capture_output=True, text=True, check=True
    ).stdout.split()
    target = Path(folder) / f"galvatron_dp_core{sysconfig.get_config_var('EXT_SUFFIX')}"
    command = ["g++", "-O3", "-shared", "-std=c++14", "-fPIC", *includes]
    try:
        subprocess.run(
            [*command, str(checkout / "csrc" / "dp_core.cpp"), "-o", str(target)],
            check=True, capture_output=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError) as fault:
        raise SystemExit(f"csrc/dp_core.cpp does not compile: {fault}") from None
    sys.path.insert(0, folder)


def engine_of(checkout: Path, request: dict[str, Any], folder: str) -> Any:  # noqa: ANN401
    """Return the engine on the profile, with the network of the checkout's node of eight GPUs."""
    sys.meta_path.insert(0, cast(Any, StandIns()))
    for name, part in PACKAGES.items():
        package = ModuleType(name)
        package.__path__ = [str(checkout / "galvatron" / part)]
        sys.modules[name] = package
    engine = importlib.import_module("galvatron.core.search_engine.search_engine")
    args = importlib.import_module("galvatron.core.search_engine.args_schema").GalvatronSearchArgs()
    for kind in ("computation", "memory"):
        shutil.copy(request[kind], Path(folder) / f"{kind}_profiling_bf16_llama2-7b_all.json")
    hardware = str(checkout / "galvatron" / "profile_hardware" / "hardware_configs")
    args.model_info.hidden_size = HIDDEN
    args.common_train_info.seq_length, args.common_train_info.sequence_parallel = SEQ, True
    args.parallelism_info.default_dp_type = "zero2"
    args.parallelism_info.pipeline_type = "pipedream_flush"
    args.hardware_info.memory_constraint = request["memory_gib"]
    args.batch_size_info.settle_bsz = request["batch"]
    args.options_info.log_dir = args.options_info.output_config_path = folder
    profiles = args.profiling_info
    profiles.time_profile_mode, profiles.memory_profile_mode = "batch", "static"
    profiles.memory_profiling_path = profiles.time_profiling_path = folder
    profiles.allreduce_bandwidth_config_path = profiles.p2p_bandwidth_config_path = hardware
    profiles.overlap_coe_path = profiles.sp_time_path = hardware
    found = engine.GalvatronSearchEngine(args)
    shape = {"hidden_size": HIDDEN, "seq_len": SEQ, "layer_num": LAYERS}
    found.set_search_engine_info(folder, [shape], "llama2-7b")
    found.initialize_search_engine()
    return found


def search(engine: Any, folder: str) -> dict[str, Any]:  # noqa: ANN401
    """Search; count the strategies that its dynamic programs choose among for every layer."""
    programs: list[int] = []
    algorithm = importlib.import_module("galvatron.core.search_engine.dynamic_programming").DPAlg
    fit = algorithm.fit

    def counted(self: Any) -> Any:  # noqa: ANN401
        programs.append(self.layer_strategy_num)
        return fit(self)

    algorithm.fit = counted
    throughput = engine.parallelism_optimization()
    if throughput <= 0:
        raise SystemExit("no configuration found")
    config = json.loads(next(Path(folder).glob("galvatron_config_*.json")).read_text())
    covered = {"programs": len(programs), "strategies": max(programs)}
    return {"step_s": engine.BSZs[0] / throughput, "covered": covered, "plan": config}


def judge(engine: Any, plan: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401
    """Return the least step among its choices for the vocabulary that fit, or of all where none does."""
    batch, chunks = engine.args.batch_size_info.settle_bsz, plan["num_microbatches"]
    most = max(min(batch // chunks, GPUS // plan["pp"]), 1)
    found = [
        priced(engine, plan, own)
        for own in engine.embedding_lmhead_strategy_list
        if own.pp_size == plan["pp"] and own.dp_size <= most and own.cp_size == 1
    ]
    fitting = [step_s for step_s, fits in found if fits]
    return {"step_s": min(fitting or [step_s for step_s, _ in found]), "fits": bool(fitting)}


def priced(engine: Any, plan: dict[str, Any], vocabulary: Any) -> tuple[float, bool]:  # noqa: ANN401
    """Return a plan's step, and whether it fits, added up as its own search does for one strategy."""
    outside = importlib.import_module("galvatron.core.cost_model.components.embedding_lmhead_cost")
    layers = importlib.import_module("galvatron.core.cost_model.components.layer_cost")
    handler = importlib.import_module("galvatron.core.cost_model.cost_model_handler")
    kinds = ("model_args", "train_args", "parallel_args", "profile_model_args")
    lists = {f"{name}_list": getattr(engine, f"{name}_list") for name in kinds}
    first = {name: lists[f"{name}_list"][0] for name in kinds}
    hardware, batch = engine.profile_hardware_args_list, engine.args.batch_size_info.settle_bsz
    chunks, strategies = plan["num_microbatches"], strategies_of(plan)
    sizes = {"global_batch_size": batch, "chunks": chunks, "logger": None}
    times = outside.EmbeddingLMHeadTimeCostModel(
        strategy=vocabulary, sequence_length_list=[SEQ], profile_hardware_args=hardware[0], **sizes, **first
    ).gen_result()[1]
    step_s = handler.pipeline_costmodel(
        layer_num_list=[LAYERS], profile_hardware_args_list=hardware, strategy_list=strategies,
        partition=plan["stage_layers"], chunks=chunks, gbsz=batch, pp_size=plan["pp"],
        other_time_cost=times, **lists,
    )  # fmt: skip
    ends = outside.EmbeddingLMHeadMemoryCostModel(strategy=vocabulary, **sizes, **first).get_memory_cost()
    buffer_tp = max(plan["tp"], vocabulary.tp_size)
    local = batch / chunks / (GPUS // plan["pp"] // buffer_tp)
    gathered, peak, begin = math.ceil(local * HIDDEN * SEQ * 4 / MIB_A_GIB**2 / 2), 0, 0
    for stage, count in enumerate(plan["stage_layers"]):
        own = [
            layers.MemoryCostModelBase(strategy=one, stage_idx=stage, **sizes, **first).get_memory_cost()
            for one in strategies[begin : begin + count]
        ]
        held = sum(math.ceil(one["enc_total"]) for one in own)
        peak, begin = max(peak, gathered + math.ceil(ends["enc_total"][stage]) + held), begin + count
    model = importlib.import_module("galvatron.core.search_engine.dynamic_programming").DpOnModel(
        **lists, profile_hardware_args_list=hardware, max_mem=engine.memory_constraint,
        layer_num=[LAYERS], sequence_len=[SEQ], world_size=GPUS, config=engine.args,
    )  # fmt: skip
    return float(step_s), peak <= model.max_mem


def strategies_of(plan: dict[str, Any]) -> list[Any]:
    """Return each layer's strategy in its words."""
    words = importlib.import_module("galvatron.utils.strategy_utils")
    sharded = words.DPType.ZERO3, words.DPType.ZERO2 if plan["dp"] > 1 else words.DPType.DDP
    return [
        words.LayerStrategy(
            pp_size=plan["pp"], tp_size=plan["tp"], dp_size=plan["dp"],
            dp_type=sharded[0] if fully and plan["dp"] > 1 else sharded[1], checkpoint=bool(again),
        )
        for fully, again in zip(plan["sharded"], plan["recomputed"], strict=True)
    ]  # fmt: skip


def version_of(checkout: Path) -> str:
    """Return its version and commit."""
    stated = re.search(r'version="([^"]+)"', (checkout / "setup.py").read_text(encoding="utf-8"))
    commit = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"],
        capture_output=True, text=True, check=False,
    ).stdout.strip()  # fmt: skip
    return f"{stated[1] if stated else '?'} ({commit})"


def main() -> None:
    """Search, or judge."""
    checkout = Path(sys.argv[1]).resolve()
    request = json.load(sys.stdin)
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        compiled(checkout, folder)
        engine = engine_of(checkout, request, folder)
        if request.get("judge") is None:
            answer = search(engine, folder)
        else:
            answer = {"judged": [judge(engine, plan) for plan in request["judge"]]}
    print(json.dumps({"version": version_of(checkout), **answer}))


if __name__ == "__main__":
    main()

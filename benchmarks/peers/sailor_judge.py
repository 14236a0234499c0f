"""Sailor's simulator and, where it was built, its planner, asked from a process of their own.

Standard input: JSON {"checkout": path of eth-easl/sailor, "library": folder of its built ``libplanner`` or
null, "model", "fp16", "batch", "gpus": {GPU type: number}, "plans": [a plan as its simulator takes it]}.
Standard output: JSON {"judged": [{"step_s", "fits"}], "own": {"plan", "step_s"} or null}.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

ZONE = "us-central1-a"
# Layers with the embedding and the head, as its training configurations count them.
LAYERS = {"OPT-350": 26, "GPT-Neo-2.7": 34}
SHAPES = {"OPT-350": (1024, 24), "GPT-Neo-2.7": (2560, 32)}


def simulator_of(checkout: Path, asked: dict[str, Any], home: Path) -> Any:  # noqa: ANN401 - a peer's class
    """Return its simulator of one training."""
    for name in ("torch", "pandas"):  # its timing hooks and traces take no part
        sys.modules.setdefault(name, types.ModuleType(name))
    sys.path.insert(0, str(checkout))
    from sailor.Planner.simulations.runtime_simulator import (  # type: ignore[import-not-found]  # noqa: PLC0415
        Simulator,
    )

    planner = checkout / "sailor" / "Planner"
    info = json.loads((planner / "llm_info.json").read_text())
    profiles = json.loads((planner / "simulations" / "profiles_tmp.json").read_text())
    return Simulator(str(home), training_of(asked), info, asked["fp16"], profiles, zone=ZONE)


def training_of(asked: dict[str, Any]) -> dict[str, Any]:
    """Return its training configuration."""
    hidden, layers = SHAPES[asked["model"]]
    return {
        "global_batch_size": asked["batch"], "type": "gpt2", "hidden_size": hidden,
        "sequence_length": 2048, "num_layers": layers, "vocab_size": 50272, "model": asked["model"],
        "optimizer": "Adam", "heads": 16, "head_dim": hidden // 16, "max_position_embeddings": 2048,
        "num_all_layers": LAYERS[asked["model"]],
    }  # fmt: skip


def own_plan(
    simulator: Any, checkout: Path, library: Path, asked: dict[str, Any], home: Path  # noqa: ANN401
) -> dict[str, Any] | None:  # fmt: skip
    """Return its planner's first plan that fits by its simulator, in that simulator's form."""
    sys.path.insert(0, str(library))
    import libplanner  # type: ignore[import-not-found]  # noqa: PLC0415

    base = checkout / "sailor"
    training = home / "training.json"
    training.write_text(json.dumps(training_of(asked)))
    quotas = base / "Planner" / "sailor_planner" / "dummy_quotas_dict.json"
    kinds = sorted(json.loads(quotas.read_text()))
    planner = libplanner.SailorPlanner(
        str(base / "Planner" / "sailor_planner" / "profiles" / asked["model"]) + "/",
        str(base / "providers" / "multizone_bandwidths_het.json"), str(training),
        str(base / "Planner" / "llm_info.json"),
        str(base / "providers" / "gcp" / "communication_cost.json"),
        True, asked["fp16"], str(quotas), "throughput",
    )  # fmt: skip
    found = planner.get_sorted_plans({ZONE: asked["gpus"]}, 0.0, 0.0)
    for one in found:
        stages = [
            [([(kinds[gpu], count, one.get_zones()[zone])], count) for gpu, count, zone in stage]
            for stage in one.get_config_per_stage()
        ]
        pipeline = {
            "num_stages": len(stages), "layers_per_stage": [list(part) for part in one.get_stages()],
            "tmp_per_stage": stages, "dp": [len(stage) for stage in stages],
        }  # fmt: skip
        plan = {"pipeline_list": [pipeline], "mbs": one.get_mbs()}
        if simulator.check_config_fits(plan):
            return plan
    return None


def main() -> None:
    """Answer one request."""
    asked = json.load(sys.stdin)
    checkout, library = Path(asked["checkout"]), asked.get("library")
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        home = Path(folder)
        (home / "sailor").symlink_to(checkout)
        os.environ["SAILOR_PATH"] = folder
        simulator = simulator_of(checkout, asked, home)
        plans = list(asked["plans"])
        own = own_plan(simulator, checkout, Path(library), asked, home) if library else None
        judged = [
            {
                "step_s": simulator.simulate_iteration_time(plan)[0],
                "fits": simulator.check_config_fits(plan),
            }
            for plan in [*plans, *([own] if own else [])]
        ]
    theirs = {"plan": own, "step_s": judged.pop()["step_s"]} if own else None
    print(json.dumps({"judged": judged, "own": theirs}))


if __name__ == "__main__":
    main()

"""Placed roles for the launch files of post-training, and the launchers' own verdict on them.

``make launchers ARGS="post-training --nemo-rl FOLDER --verl FOLDER --slime FOLDER --python PYTHON"`` writes
the files of ``CASES`` and lets checkouts of NeMo-RL 0.7.0 (81aa43d), verl 0.7.0 (f9c855f) and slime 0.3.1
(a6272da; of a critic, ``--slime-ppo`` with 0.2.4, bd217a6) load them on a CPU: ``judges/post_training.py``.
PYTHON has torch, hydra-core, omegaconf, pydantic and packaging. TRL 1.16.0 is that of ``make launchers``.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from meshwright.launchers.post_training.registry import export
from meshwright.service.post_training.request import read_post_training
from meshwright.service.requests.configuration import completed
from meshwright.solver.answer import Plan
from meshwright.solver.configuration import Configuration
from meshwright.solver.post_training.problem import (
    EngineRole,
    Mode,
    PostTraining,
    RolePlan,
    SideRole,
    TrainingRole,
)
from meshwright.solver.post_training.training import training_problem

_H100 = "h100-sxm-80gb"
TRL = Path(__file__).parents[2] / ".venv-launchers" / "trl"  # as environments.py installs it
# launcher, trainer, mode, model, nodes in all and of training, GPUs of a node, layout, engines
CASES: dict[str, dict[str, Any]] = {
    "nemo-rl-megatron-async": {
        "model": "qwen3-8b", "nodes": 4, "training": 2, "off": 2,
        "layout": {"tp": 2, "pp": 4, "recompute_granularity": "full"},
    },
    "nemo-rl-megatron-colocated": {
        "model": "qwen3-30b-a3b", "nodes": 2, "training": 2, "layout": {"tp": 2, "ep": 8, "cp": 2},
    },
    "nemo-rl-fsdp-apart": {
        "model": "qwen3-8b", "nodes": 1, "training": 1, "gpus": 4, "layout": {"zero": 3}
    },
    "nemo-rl+sglang-fsdp-colocated": {
        "model": "qwen3-8b", "nodes": 2, "training": 2, "layout": {"zero": 3}, "engine": "sglang",
    },
    "verl-megatron-colocated": {
        "model": "llama-3.1-70b", "nodes": 8, "training": 8, "layout": {"tp": 4, "pp": 4},
    },
    "verl-megatron-apart": {
        "model": "qwen3-30b-a3b", "nodes": 4, "training": 2, "layout": {"ep": 8, "cp": 2}
    },
    "verl-fsdp-async": {
        "model": "qwen3-8b", "nodes": 2, "training": 1, "off": 1, "layout": {"zero": 3, "cp": 2}
    },
    "verl+ppo-megatron-async": {
        "model": "qwen3-8b", "nodes": 2, "training": 1, "off": 1, "layout": {"tp": 2}, "algorithm": "ppo",
    },
    "verl+ppo-fsdp-colocated": {
        "model": "qwen3-8b", "nodes": 1, "training": 1, "layout": {"zero": 3, "cp": 2},
        "algorithm": "ppo", "engine": "sglang",
    },
    "slime-megatron-colocated": {
        "model": "qwen3-30b-a3b", "nodes": 2, "training": 2,
        "layout": {"tp": 2, "ep": 8, "cp": 2, "recompute_granularity": "full"}, "engine": "sglang",
    },
    "slime-megatron-async": {
        "model": "qwen3-8b", "nodes": 4, "training": 2, "off": 1, "layout": {"tp": 2, "pp": 4},
        "engine": "sglang",
    },
    "slime+ppo-megatron-apart": {
        "model": "moonlight-16b-a3b", "nodes": 4, "training": 1, "layout": {"ep": 8}, "algorithm": "ppo",
        "engine": "sglang", "critic": 8,
    },
    "trl-fsdp-colocated": {"model": "qwen3-8b", "nodes": 2, "training": 2, "layout": {"zero": 3}},
    "trl-fsdp-apart": {
        "model": "qwen3-8b", "nodes": 2, "training": 1,
        "layout": {"zero": 3, "recompute_granularity": "full"},
    },
    "trl+lora-fsdp-colocated": {
        "model": "qwen3-8b", "nodes": 1, "training": 1, "layout": {"zero": 0, "mbs": 2},
        "adapters": {"rank": 32, "targets": ["all-linear"]},
    },
    "trl+lora-fsdp-apart": {
        "model": "qwen3-8b", "nodes": 2, "training": 1, "adapters": {"rank": 8, "base_precision": "fp32"},
        "layout": {"zero": 3, "recompute_granularity": "full"},
    },
    "verl+lora-fsdp-colocated": {
        "model": "qwen3-8b", "nodes": 1, "training": 1, "layout": {"zero": 3}, "adapters": {"rank": 32},
    },
    "nemo-rl+lora-fsdp-colocated": {
        "model": "qwen3-8b", "nodes": 1, "training": 1, "layout": {"zero": 3}, "adapters": {"rank": 128},
    },
    "nemo-rl+lora-megatron-colocated": {
        "model": "qwen3-8b", "nodes": 1, "training": 1, "layout": {"tp": 2}, "adapters": {"rank": 64},
    },
    "nemo-rl+reward-megatron-async": {
        "model": "qwen3-8b", "nodes": 4, "training": 1, "off": 1, "layout": {"tp": 2}, "reward": 8,
    },
    "nemo-rl+reward-fsdp-colocated": {
        "model": "qwen3-8b", "nodes": 1, "training": 1, "gpus": 4, "layout": {"zero": 3}, "reward": 4,
    },
    "verl+reward-megatron-colocated": {
        "model": "qwen3-8b", "nodes": 2, "training": 1, "layout": {"tp": 2}, "algorithm": "ppo",
        "reward": 8,
    },
    "verl+reward-fsdp-colocated": {
        "model": "qwen3-8b", "nodes": 1, "training": 1, "layout": {"zero": 3}, "reward": 0,
    },
}  # fmt: skip


def placed_roles(
    name: str, *, stage_layers: tuple[int, ...] = (), updates: int = 2
) -> tuple[PostTraining, RolePlan]:
    """Return a question with one placement, whose figures are none of the cost model's."""
    case = CASES[name]
    _, trainer, mode = name.rsplit("-", 2)
    asked = read_post_training(
        {
            "kind": "post_training", "model": case["model"], "launcher": launcher_of(name),
            "cluster": {"groups": [{"gpu": _H100, "num_nodes": case["nodes"]}]},
            "algorithm": {"name": case.get("algorithm", "grpo"), "prompts": 128, "responses": 16},
            "rollout": {"engine": case.get("engine", "vllm")},
            "lengths": {"prompt": 200, "mean": 2500, "max": 8192},
            "training": {"trainer": trainer},
            **({"adapters": case["adapters"]} if "adapters" in case else {}),
            **({"reward": {"model": "qwen3-8b"}} if "reward" in case else {}),
            "asynchrony": {"max_steps_off": 2},
        }
    ).asked  # fmt: skip
    asked = replace(asked, updates=updates)
    each = case.get("gpus", 8)
    problem = training_problem(asked, _H100, case["training"], each)
    problem = replace(problem, workload=replace(problem.workload, global_batch_size=256))
    config = completed(case["layout"], problem)
    if stage_layers:
        config = replace(config, stage_layers=stage_layers)
    return asked, _plan(cast("Mode", mode), case, config, each)


def launcher_of(name: str) -> str:
    """Return the launcher of a case."""
    return name.rsplit("-", 2)[0].partition("+")[0]


def _plan(mode: Mode, case: dict[str, Any], config: Configuration, each: int) -> RolePlan:
    training = case["training"] * each
    scoring = case.get("reward", 0) + case.get("critic", 0)
    engine_gpus = training if mode == "colocated" else 8 * case["nodes"] - training - scoring
    engine = EngineRole(
        group=_H100, engines=engine_gpus // 2, tensor_parallel_size=2, memory_share=0.6, answers=256,
        running=256, cache_tokens=10**6, generate_s=60.0, tail_s=10.0,
    )  # fmt: skip
    return RolePlan(
        plan_id="0123456789ab", rank=1, mode=mode, steps_off=case.get("off", 0),
        training=TrainingRole(
            group=_H100, nodes=case["training"], gpus=training, sequences=256,
            plan=Plan(
                plan_id="0" * 12, rank=1, config=config, prediction=cast("Any", None), objective_s=1.0
            ),
        ),
        rollout=(engine,), parts_s={}, step_s=100.0, step_low_s=80.0, step_high_s=125.0,
        tokens_per_s_per_gpu=1000.0, num_gpus=training + engine_gpus, binds="",
        reward=SideRole(group=_H100, nodes=1, gpus=scoring, tensor_parallel_size=1, seconds=10.0)
        if "reward" in case
        else None,
        critic=SideRole(group=_H100, nodes=1, gpus=8, seconds=10.0) if "critic" in case else None,
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Print each file's verdict; 1 if one is refused."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("nemo-rl", "verl", "slime", "slime-ppo"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--python", default="python3")
    asked = parser.parse_args(arguments)
    checkouts = {
        "nemo-rl": asked.nemo_rl,
        "verl": asked.verl,
        "slime": asked.slime,
        "slime+ppo": asked.slime_ppo,
    }
    judge = Path(__file__).parent / "judges" / "post_training.py"
    refused = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in CASES:
            launcher, own = launcher_of(name), name.rsplit("-", 2)[0]
            checkout = TRL if launcher == "trl" else checkouts.get(own, checkouts.get(launcher))
            if checkout is None or not checkout.exists():
                print(name, "not judged: no checkout")
                continue
            own_folder = Path(folder) / name
            own_folder.mkdir()
            for file, text in export(*placed_roles(name)).files.items():
                (own_folder / file).write_text(text)
            python = str(TRL / "bin" / "python") if launcher == "trl" else asked.python
            command = [python, str(judge), launcher, str(checkout.resolve()), str(own_folder)]
            run = subprocess.run(command, capture_output=True, text=True, check=False)
            refused += run.returncode
            print(name, "taken" if run.returncode == 0 else f"refused: {run.stderr[-300:]}")
    return int(refused > 0)


if __name__ == "__main__":
    raise SystemExit(main())

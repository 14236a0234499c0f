"""Runs beside a checkout of Calculon (calculon-ai/calculon): its own search of executions, or its judge.

    python calculon_search.py CHECKOUT

Standard input: JSON {"model": a file of its models, "system": of its systems, "gpus", "batch", "judge":
[layouts]}; without "judge" its command ``llm-optimal-execution`` searches on one core, on the system
without its second tier of memory, so that no execution offloads.
Standard output, last line: JSON {"version", "step_s", "executions", "executions_with_offload", "execution"}
or {"steps_s": [seconds, or null where it refuses the layout or finds no room]}.
"""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

RECOMPUTE = {"none": "none", "selective": "attn_only", "full": "full"}
OVERLAPS = (("none", False), ("ring", True), ("pipe", True))  # of tensor and of data parallelism


def search(checkout: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Its search of all executions that do not offload; those that do are counted by its ``--debug``.

    Raises:
        SystemExit: it fails.
    """
    described = checkout / "systems" / request["system"]
    with tempfile.TemporaryDirectory() as folder:
        alone, out = Path(folder) / "system.json", Path(folder) / "best.json"
        system = json.loads(described.read_text())
        alone.write_text(json.dumps({**system, "mem2": {**system["mem2"], "GiB": 0}}))
        whole = _executions(checkout, request, described, out, "--debug")
        executions = _executions(checkout, request, alone, out)
        best = json.loads(out.read_text())["0"]
    step_s = best["execution"]["batch_size"] / best["stats"]["sample_rate"]
    return {
        "version": _version(checkout),
        "step_s": step_s,
        "executions": executions,
        "executions_with_offload": whole,
        "execution": best["execution"],
    }


def _executions(checkout: Path, request: dict[str, Any], system: Path, out: Path, *options: str) -> int:
    """Run its search; how many executions it went through.

    Raises:
        SystemExit: it fails.
    """
    command = [
        sys.executable, str(checkout / "bin" / "calculon"), "llm-optimal-execution",
        str(checkout / "models" / request["model"]), str(request["gpus"]), str(request["batch"]),
        "float16", str(system), str(out), "--cpus", "1", *options,
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    counted = re.search(r"Total executions: (\d+)", run.stdout + run.stderr)
    if run.returncode or counted is None:
        raise SystemExit((run.stderr.strip().splitlines() or ["no message"])[-1])
    return int(counted[1])


def _version(checkout: Path) -> str:
    """The version that its package states, and the commit where the checkout knows it."""
    stated = re.search(r"__version__ = '([^']+)'", (checkout / "calculon" / "__init__.py").read_text())
    asked = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    return " ".join(([stated[1]] if stated else []) + ([f"({commit})"] if commit else []))


def execution(row: dict[str, Any], switches: tuple[Any, ...]) -> dict[str, Any]:
    """A layout in Calculon's words: the fields of ``Llm.Execution``."""
    tensor, data = int(row["tensor"]), int(row["data"])
    (tensor_net, pipeline_net, data_net), (tensor_overlap, data_overlap), gathers_again = switches
    return {
        "num_procs": tensor * int(row["pipeline"]) * data,
        "tensor_par": tensor,
        "pipeline_par": row["pipeline"],
        "data_par": data,
        "tensor_par_net": tensor_net,
        "pipeline_par_net": pipeline_net,
        "data_par_net": data_net,
        "batch_size": row["batch"],
        "microbatch_size": row["micro_batch"],
        "datatype": "float16",
        "fused_activation": True,
        "attention_type": "multihead",
        "activation_recompute": RECOMPUTE[row["recompute"]],
        "pipeline_interleaving": row.get("interleaving", 1),
        "optimizer_sharding": bool(row["zero"]) and data > 1,
        "tensor_par_comm_type": "rs_ag" if tensor > 1 else "ar",
        "tensor_par_overlap": tensor_overlap if tensor > 1 else "none",
        "seq_par_ag_redo": gathers_again and tensor > 1 and row["recompute"] != "full",
        "data_par_overlap": data_overlap and data > 1,
        "weight_offload": False,
        "activations_offload": False,
        "optimizer_offload": False,
        "training": True,
    }


def steps_s(checkout: Path, request: dict[str, Any]) -> list[float | None]:
    """Seconds of each layout with the networks, overlaps and gathers that suit it best; none is ours."""
    sys.path.insert(0, str(checkout))
    from calculon.llm import Llm  # type: ignore[import-not-found]  # noqa: PLC0415 (the path comes first)
    from calculon.system import System  # type: ignore[import-not-found]  # noqa: PLC0415

    log = logging.getLogger("calculon")
    system = System(json.loads((checkout / "systems" / request["system"]).read_text()))
    application = Llm.Application(json.loads((checkout / "models" / request["model"]).read_text()))
    read = getattr(Llm.Execution, "from_json", Llm.Execution)  # older versions read in the constructor
    found: list[float | None] = []
    for row in request["judge"]:
        rates = []
        for switches in product(product(range(system.num_networks), repeat=3), OVERLAPS, (False, True)):
            try:
                model = Llm(application, log)
                model.compile(system, read(execution(row, switches)))
                model.run(system)
            except (AssertionError, Llm.Error):
                continue
            rates.append(model.get_stats_json(False)["sample_rate"])
        found.append(row["batch"] / max(rates) if rates else None)
    return found


def main() -> None:
    """Search, or judge."""
    checkout, request = Path(sys.argv[1]), json.load(sys.stdin)
    if request.get("judge") is None:
        print(json.dumps(search(checkout, request)))
    else:
        print(json.dumps({"steps_s": steps_s(checkout, request)}))


if __name__ == "__main__":
    main()

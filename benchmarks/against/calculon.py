"""Calculon (calculon-ai/calculon) from a checkout: its exhaustive search, and its price of our plans.

Turing-530B on 512 A100, 512 sequences of 2 048 tokens, its own description of the A100. Both search their
whole space; its overlaps and offloads are not ours, our uneven splits and partial recomputation not its.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.against.layouts import PLAIN_SPACE, configuration_of, row_of
from benchmarks.against.process import SCRIPTS, Budget, UnavailableError, ask, ask_ours, environment
from benchmarks.against.row import Comparison, Row, counted, judged, median_of, ratio_remark, seconds

NAME = "Calculon"
NEEDED = ("psutil",)  # what its command line imports
REQUEST: Mapping[str, object] = {
    "model": "turing-530B.json",
    "system": "a100_80g.json",
    "gpus": 512,
    "batch": 512,
}
BATCH, LAYERS, TARGET, REPEATS = 512, 105, 100.0, 3
RECOMPUTE = {"none": "none", "attn_only": "selective", "full": "full"}


def compare(budget: Budget, checkout: Path | None) -> Comparison:
    """Search with both, price our ten plans and its one by both.

    Raises:
        UnavailableError: no checkout is given, or it cannot be run.
    """
    home = usable(checkout)
    python = environment("calculon", NEEDED)
    script = [str(python), str(SCRIPTS / "calculon_search.py"), str(home)]
    ours = [ask_ours({"problem": problem()}, budget) for _ in range(REPEATS)]
    configs = [plan["config"] for plan in ours[0].answer["plans"]]
    request = {**REQUEST, "judge": [row_of(config, BATCH) for config in configs]}
    by_peer = ask(NAME, script, request, budget).answer["steps_s"]
    theirs = ask(NAME, script, REQUEST, budget)
    found = configuration_of(layout_of(theirs.answer["execution"]), LAYERS)
    by_us = ask_ours({"problem": problem(), "judge": [configs[0], found]}, budget).answer["judged"]
    priced = [step for step in by_peer if step is not None]
    cpu_s = median_of([run.cpu_s for run in ours])
    return Comparison(
        question=f"Turing-530B on {REQUEST['gpus']} A100, {BATCH} sequences of 2 048, beside Calculon",
        rows=(
            Row.of(
                NAME,
                counted(theirs.answer["executions"], "executions"),
                [theirs],
                by_peer=seconds(theirs.answer["step_s"]),
                by_us=judged(by_us[1]["step_time_s"], fits=by_us[1]["fits"]),
            ),
            Row.of(
                "Meshwright, its space",
                counted(ours[0].answer["configurations"], "configurations"),
                ours,
                by_peer=judged(by_peer[0], fits=True),
                by_us=judged(by_us[0]["step_time_s"], fits=by_us[0]["fits"]),
            ),
        ),
        remarks=(
            ratio_remark(NAME, theirs.cpu_s, cpu_s, TARGET),
            f"{len(priced)} of our {len(by_peer)} plans are expressible and fit there"
            + (f", the best at {seconds(min(priced))}" if priced else ""),
        ),
    )


def usable(checkout: Path | None) -> Path:
    """The checkout's full path.

    Raises:
        UnavailableError: none is given, or it is none.
    """
    if checkout is None:
        raise UnavailableError(
            f"{NAME} is not measured: give --calculon PATH, a checkout of calculon-ai/calculon"
        )
    missing = [name for name in ("bin/calculon", "calculon/llm/llm.py") if not (checkout / name).is_file()]
    if missing:
        raise UnavailableError(f"{NAME} is not measured: the checkout has no {' and no '.join(missing)}")
    return checkout.resolve()


def layout_of(execution: Mapping[str, Any]) -> dict[str, Any]:
    """Its execution as a plain layout; overlaps and offloads are left out."""
    return {
        "tensor": execution["tensor_par"],
        "pipeline": execution["pipeline_par"],
        "interleaving": execution["pipeline_interleaving"],
        "data": execution["data_par"],
        "micro_batch": execution["microbatch_size"],
        "batch": execution["batch_size"],
        "recompute": RECOMPUTE[execution["activation_recompute"]],
        "zero": int(execution["optimizer_sharding"]),
    }


def problem() -> dict[str, object]:
    """The request in its space: interleaving stays free."""
    space = {**PLAIN_SPACE, "pin": {"context_parallel_size": 1}}
    return {
        "model": {"name": "mt-nlg-530b"},
        "cluster": {"name": "dgx-a100", "num_nodes": 64},
        "workload": {"global_batch_size": BATCH, "seq_length": 2048, "precision": "bf16"},
        "launcher": "megatron-lm",
        "search": {"top_k": 10, "time_limit_s": 60, **space},
    }

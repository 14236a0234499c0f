"""Calculon (calculon-ai/calculon) from a checkout: its exhaustive search, and its price of our plans.

The search: Megatron 22B on 8 A100, 4 sequences of 2 048 tokens, a published run that it was validated on,
its own description of the A100 without the host's memory. It tries all that it knows one by one, so the
cluster is a small one and nothing is offloaded. Ours is asked for plans like its executions: they offload
nothing either, and all their chunks hold the same number of layers.
The price: our ten plans for GPT-3 175B on 1 024 A100, which it can express where they split evenly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.against.layouts import PLAIN_SPACE, configuration_of, row_of
from benchmarks.against.process import SCRIPTS, Budget, Run, UnavailableError, ask, ask_ours, environment
from benchmarks.against.row import Comparison, Row, counted, judged, median_of, ratio_remark, seconds

NAME = "Calculon"
# Imported by calculon/io.py, calculon/llm/all_executions.py and calculon/llm/optimal_execution.py.
NEEDED = ("numpy", "pandas", "psutil")
REQUEST: Mapping[str, object] = {
    "model": "megatron-22B.json",
    "system": "a100_80g.json",
    "gpus": 8,
    "batch": 4,
}
BATCH, LAYERS, TARGET, REPEATS = 4, 48, 100.0, 3
GPT_BATCH = 1536
SMALL: Mapping[str, object] = {
    "model": {"name": "megatron-22b"},
    "cluster": {"name": "dgx-a100", "num_nodes": 1},
    "workload": {"global_batch_size": BATCH, "seq_length": 2048, "precision": "bf16"},
}
GPT: Mapping[str, object] = {
    "model": {"name": "gpt-3-175b"},
    "cluster": {"name": "dgx-a100", "num_nodes": 128},
    "workload": {"global_batch_size": GPT_BATCH, "seq_length": 2048, "precision": "bf16"},
}
RECOMPUTE = {"none": "none", "attn_only": "selective", "full": "full"}


def compare(budget: Budget, checkout: Path | None) -> Comparison:
    """Search with both, price what can be expressed by both.

    Raises:
        UnavailableError: no checkout is given, or it cannot be run.
    """
    home = usable(checkout)
    script = [str(environment("calculon", NEEDED)), str(SCRIPTS / "calculon_search.py"), str(home)]
    ours = [ask_ours({"problem": problem(SMALL, even=True)}, budget) for _ in range(REPEATS)]
    remarks = [second_opinion(script, budget)]
    plans = ours[0].answer["plans"]
    steps = steps_s(script, REQUEST, [plan["config"] for plan in plans], budget)
    theirs = ask(NAME, script, REQUEST, budget)
    cpu_s, least_s = median_of([run.cpu_s for run in ours]), theirs.answer["step_s"]
    return Comparison(
        question=f"Megatron 22B on {REQUEST['gpus']} A100, {BATCH} sequences of 2 048, next to Calculon",
        rows=(
            Row.of(
                f"{NAME} {theirs.answer['version']}",
                counted(theirs.answer["executions"], "executions"),
                [theirs],
                by_peer=seconds(least_s),
                by_us=priced_by_us(theirs.answer["execution"], budget),
            ),
            Row.of(
                "Meshwright",
                counted(ours[0].answer["configurations"], "configurations"),
                ours,
                by_peer=f"rank 1: {judged(steps[0], fits=True)}",
                by_us=seconds(plans[0]["step_time_s"]),
            ),
        ),
        remarks=(
            ratio_remark(NAME, theirs.cpu_s, cpu_s, TARGET),
            not_searched(theirs),
            of_ours(steps, least_s),
            *remarks,
        ),
    )


def not_searched(theirs: Run) -> str:
    """What of its space was left out, and what that would have taken."""
    done, whole = theirs.answer["executions"], theirs.answer["executions_with_offload"]
    return (
        f"nothing is offloaded on either side. With offloading it knows {counted(whole, 'executions')}, "
        f"which would take it {theirs.cpu_s * whole / done / 3600.0:.1f} h at the same rate"
    )


def of_ours(steps: Sequence[float | None], least_s: float) -> str:
    """How near its own answer our plans come by its judge."""
    known = [step for step in steps if step is not None]
    said = f"its judge can express {len(known)} of our {len(steps)} plans"
    if not known:
        return said
    behind = min(known) / least_s - 1.0
    return f"{said}, the best of them is {abs(behind):.2%} {'behind' if behind >= 0.0 else 'ahead'}"


def second_opinion(script: Sequence[str], budget: Budget) -> str:
    """What Calculon says of our ten plans for GPT-3 175B."""
    plans = ask_ours({"problem": problem(GPT)}, budget).answer["plans"]
    request = {**REQUEST, "model": "gpt3-175B.json"}
    steps = steps_s(script, request, [plan["config"] for plan in plans], budget, batch=GPT_BATCH)
    pairs = [
        f"{rank}: {seconds(step)} ({seconds(plan['step_time_s'])} by ours)"
        for rank, (plan, step) in enumerate(zip(plans, steps, strict=True), start=1)
        if step is not None
    ]
    return f"GPT-3 175B on 1 024 A100, our plans by its price: {'; '.join(pairs) or 'it can express none'}"


def steps_s(
    script: Sequence[str],
    request: Mapping[str, object],
    configs: Sequence[Mapping[str, Any]],
    budget: Budget,
    *,
    batch: int = BATCH,
) -> list[float | None]:
    """Its price of configurations of ours."""
    rows = [row_of(config, batch) for config in configs]
    found: list[float | None] = ask(NAME, script, {**request, "judge": rows}, budget).answer["steps_s"]
    return found


def priced_by_us(execution: Mapping[str, Any], budget: Budget) -> str:
    """Our price of its answer."""
    asked = {"problem": problem(SMALL), "judge": [configuration_of(layout_of(execution), LAYERS)]}
    (verdict,) = ask_ours(asked, budget).answer["judged"]
    return judged(verdict["step_time_s"], fits=verdict["fits"])


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
    """Its execution as a plain layout; networks and overlaps are left out."""
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


def problem(asked: Mapping[str, object], *, even: bool = False) -> dict[str, object]:
    """A request in its space: interleaving stays free; ``even``: chunks of one size alone."""
    space = {**PLAIN_SPACE, "pin": {"context_parallel_size": 1}}
    if even:
        space["constraints"] = [f"{LAYERS} % (pipeline_parallel_size * virtual_pipeline_size) == 0"]
    return {**asked, "launcher": "megatron-lm", "search": {"top_k": 10, "time_limit_s": 60, **space}}

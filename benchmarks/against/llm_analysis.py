"""llm-analysis (cli99/llm-analysis): estimates of every configuration that it knows, its best beside ours.

It is no planner: a sweep makes one of it. GPT-3 175B on 1 024 A100, configurations with one chunk a rank,
ZeRO-1 at most and no context parallelism; the share of peak is the user's to state (0.5 here).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.against.layouts import PLAIN_SPACE, configuration_of, row_of
from benchmarks.against.process import SCRIPTS, Budget, UnavailableError, ask, ask_ours, environment
from benchmarks.against.row import Comparison, Row, counted, judged, seconds
from benchmarks.cost_rows import Batch

NAME, REQUIREMENT = "llm-analysis", "llm-analysis==0.2.2"
MODEL, LAYERS, NODES, BATCH, REPEATS = "gpt-3-175b", 96, 128, 1536, 3
MOST_TIED = 20  # of the layouts that it calls equally fast, spread over all, priced by ours
SAME = 1e-9  # relative


def compare(budget: Budget, _calculon: Path | None) -> Comparison:
    """Sweep with theirs, search with ours, price both by both.

    Raises:
        UnavailableError: it cannot be installed or run, or finds room for nothing.
    """
    python = environment(NAME, [REQUIREMENT])
    script = [str(python), str(SCRIPTS / "llm_analysis_sweep.py")]
    rows = Batch.of(MODEL, "dgx-a100", NODES, BATCH, 2048).common().rows()
    theirs = [ask(NAME, script, {"rows": rows}, budget) for _ in range(REPEATS)]
    steps = theirs[0].answer["steps"]
    fitting = [at for at, step in enumerate(steps) if step and step[1]]
    if not fitting:
        raise UnavailableError(f"{NAME} finds room for none of {len(rows)} configurations")
    best_s = min(steps[at][0] for at in fitting)
    tied = [at for at in fitting if steps[at][0] <= best_s * (1.0 + SAME)]
    ours = [ask_ours({"problem": problem()}, budget) for _ in range(REPEATS)]
    first = ours[0].answer["plans"][0]["config"]
    price = ask(NAME, script, {"rows": [row_of(first, BATCH)]}, budget).answer["steps"][0]
    some = tied[:: max(len(tied) // MOST_TIED, 1)][:MOST_TIED]
    configs = [first, *(configuration_of(rows[at], LAYERS) for at in some)]
    by_us = ask_ours({"problem": problem(), "judge": configs}, budget).answer["judged"]
    tie = (
        f"its step time is FLOPs over GPUs and the stated share of peak, so {len(tied)} of its "
        f"{len(fitting)} fitting configurations tie; ours prices {len(some)} of them, spread over all"
    )
    return Comparison(
        question=f"GPT-3 175B on {8 * NODES} A100, {BATCH} sequences of 2 048: llm-analysis, swept",
        rows=(
            Row.of(
                f"{NAME} {theirs[0].answer['version']}",
                counted(sum(step is not None for step in steps), "configurations"),
                theirs,
                by_peer=seconds(best_s),
                by_us=spread(by_us[1:]),
            ),
            Row.of(
                "Meshwright, its space",
                counted(ours[0].answer["configurations"], "configurations"),
                ours,
                by_peer="not expressible" if price is None else judged(price[0], fits=price[1]),
                by_us=judged(by_us[0]["step_time_s"], fits=by_us[0]["fits"]),
            ),
        ),
        remarks=(tie,),
    )


def spread(verdicts: Sequence[Mapping[str, Any]]) -> str:
    """From the fastest to the slowest."""
    steps = [one["step_time_s"] for one in verdicts]
    fit = sum(one["fits"] for one in verdicts)
    return f"{seconds(min(steps))} to {seconds(max(steps))}, {fit} of {len(steps)} fit"


def problem() -> dict[str, object]:
    """The request, pinned to what it knows."""
    return {
        "model": {"name": MODEL},
        "cluster": {"name": "dgx-a100", "num_nodes": NODES},
        "workload": {"global_batch_size": BATCH, "seq_length": 2048, "precision": "bf16"},
        "launcher": "megatron-lm",
        "search": {"top_k": 10, "time_limit_s": 60, **PLAIN_SPACE},
    }

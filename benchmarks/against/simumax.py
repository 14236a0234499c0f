"""SimuMax (MooreThreads/SimuMax) from a checkout: compare the best strategy of its own search with ours.

Llama 3 70B on 64 B200, 256 sequences of 4 096 tokens. Its file of the B200 holds measured efficiencies; it
states 80 GB of memory, in place of which ours is taken. Its search takes one micro-batch size at a time, so
it is asked for each, and knows one chunk a rank, ZeRO-1 and no context parallelism. Ours is asked for plans
like these, and once more for any.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.against.layouts import PLAIN_SPACE, configuration_of
from benchmarks.against.process import SCRIPTS, Budget, Run, UnavailableError, ask, ask_ours, environment
from benchmarks.against.row import Comparison, Row, counted, judged, seconds
from meshwright.profiles.library import find_gpu
from meshwright.profiles.units import GIB

NAME = "SimuMax"
NEEDED = ("numpy", "pandas", "sympy", "tabulate", "graphviz", "tqdm", "matplotlib")
NODES, BATCH, LAYERS, SEQ, REPEATS = 8, 256, 80, 4096, 3
REQUEST: Mapping[str, object] = {
    "model": "llama3-70b.json",
    "system": "b200_bf16_ceperm.json",
    "memory_gib": find_gpu("b200-sxm-180gb").memory_bytes // GIB,
    "gpus": 8 * NODES,
    "batch": BATCH,
    "seq_length": SEQ,
    "micro_batches": [1, 2, 4],
}


def compare(budget: Budget, checkout: Path | None) -> Comparison:
    """Search with both, price both by both.

    Raises:
        UnavailableError: no checkout is given, or it cannot be run.
    """
    if checkout is None:
        raise UnavailableError(f"{NAME} is not measured: no checkout is given (--simumax PATH)")
    python = environment("simumax", NEEDED)
    script = [str(python), str(SCRIPTS / "simumax_search.py"), str(checkout.resolve())]
    theirs = ask(NAME, script, REQUEST, budget)
    plain = [ask_ours({"problem": problem(plain=True)}, budget) for _ in range(REPEATS)]
    free = [ask_ours({"problem": problem(plain=False)}, budget) for _ in range(REPEATS)]
    plans = [plan["config"] for plan in plain[0].answer["plans"]]
    every = [plan["config"] for plan in free[0].answer["plans"]]
    prices = ask(NAME, script, {**REQUEST, "judge": plans + every}, budget).answer["steps_s"]
    own = configuration_of(theirs.answer["layout"], LAYERS)
    (verdict,) = ask_ours({"problem": problem(plain=False), "judge": [own]}, budget).answer["judged"]
    return Comparison(
        question=f"Llama 3 70B on {8 * NODES} B200, {BATCH} sequences of 4 096 tokens, next to {NAME}",
        rows=(
            Row.of(
                f"{NAME} {theirs.answer['version']}",
                counted(theirs.answer["strategies"], "strategies"),
                [theirs],
                by_peer=seconds(theirs.answer["step_s"]),
                by_us=judged(verdict["step_time_s"], fits=verdict["fits"]),
            ),
            row("Meshwright, its space", plain, prices[: len(plans)]),
            row("Meshwright, any plan", free, prices[len(plans) :]),
        ),
        remarks=(
            said_of(theirs.answer["layout"], theirs.answer["recompute"]),
            *remarks(theirs.answer["step_s"], prices[: len(plans)], "plans in its space"),
            *remarks(theirs.answer["step_s"], prices[len(plans) :], "plans of any kind"),
        ),
    )


def row(name: str, runs: list[Run], prices: list[list[float] | None]) -> Row:
    """Return the row of one of our searches, with its first plan priced by both judges."""
    answer, first = runs[0].answer, prices[0]
    by_peer = "not expressible" if first is None else judged(first[0], fits=bool(first[1]))
    return Row.of(
        name,
        counted(answer["configurations"], "configurations"),
        runs,
        by_peer=f"rank 1: {by_peer}",
        by_us=seconds(answer["plans"][0]["step_time_s"]),
    )


def remarks(least_s: float, prices: list[list[float] | None], what: str) -> list[str]:
    """Compare our plans with its own answer by its judge."""
    known = [price[0] for price in prices if price is not None and price[1]]
    said = f"{len(known)} of our {len(prices)} {what} can be expressed for its judge and fit"
    if not known:
        return [said]
    behind = min(known) / least_s - 1.0
    word = "slower" if behind >= 0.0 else "faster"
    return [f"{said}; the best of them is {abs(behind):.2%} {word} than its own"]


def said_of(layout: Mapping[str, object], recompute: str) -> str:
    """Describe its best strategy."""
    sizes = f"tp {layout['tensor']}, pp {layout['pipeline']}, dp {layout['data']}"
    return f"its best is {sizes}, micro-batches of {layout['micro_batch']}, {recompute.lower()}"


def problem(*, plain: bool) -> dict[str, object]:
    """Return the request; ``plain`` limits it to the space of its search."""
    limits = {**PLAIN_SPACE, "bounds": {"tensor_parallel_size": [1, 8]}} if plain else {}
    if plain:
        limits["pin"] = {"virtual_pipeline_size": 1, "context_parallel_size": 1, "zero_stage": 1}
    return {
        "model": {"name": "llama-3-70b"},
        "cluster": {"name": "dgx-b200", "num_nodes": NODES},
        "workload": {"global_batch_size": BATCH, "seq_length": SEQ, "precision": "bf16"},
        "launcher": "megatron-lm",
        "search": {"top_k": 10, "certify": "none", "allow": ["none"], **limits},
    }

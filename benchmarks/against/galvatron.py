"""Galvatron's search engine (PKU-DAIR/Hetu-Galvatron) on its profile of Llama 2 7B, and ours on the same.

Both get its layer times, the bus bandwidth of its node of eight GPUs, 39 GiB a GPU and 64 sequences a step.
Its space: tensor, pipeline and data parallelism, ZeRO-2 or 3 and full recomputation, chosen for each layer.
Ours is pinned to that (one choice of ZeRO for all layers, recomputed layers counted), then set free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.against.process import (
    ENVIRONMENTS,
    ROOT,
    SCRIPTS,
    Budget,
    Run,
    UnavailableError,
    ask,
    ask_ours,
    environment,
)
from benchmarks.against.row import Comparison, Row, counted, judged, median_of, ratio_remark, seconds
from benchmarks.foreign.galvatron import read_galvatron
from benchmarks.foreign.records import GalvatronCollectives
from meshwright.profiles.library import find_cluster, find_gpu
from meshwright.profiles.profile import default_profile
from meshwright.profiles.units import GIB
from meshwright.solver.configuration import Configuration

NAME, REQUIREMENT = "Galvatron", "hetu-galvatron==2.4.0"
NEEDED = ("numpy", "scipy", "tqdm")  # what its search engine imports
FILES = ROOT / "tests" / "fixtures" / "foreign" / "galvatron"
COMPUTATION = FILES / "computation_profiling_bf16_llama2-7b_all.json"
MEMORY = FILES / "memory_profiling_bf16_llama2-7b_all.json"
GPU, GPUS, BATCH, LAYERS = "a100-sxm-40gb", 8, 64, 32
SPACE = {
    "pin": {"virtual_pipeline_size": 1, "context_parallel_size": 1},
    "bounds": {"zero_stage": [2, 3]},
    "forbid": {"recompute_granularity": ["selective"]},
}
TARGET, REPEATS = 10.0, 3  # less CPU time than Galvatron; runs of ours whose median counts
SAME = 1e-4  # relative
FULLY_SHARDED = 3  # ZeRO stage


def compare(budget: Budget, _checkout: Path | None) -> Comparison:
    """Compare with the package.

    Raises:
        UnavailableError: it cannot be installed or run.
    """
    python = environment("galvatron", NEEDED, alone=[REQUIREMENT])
    files = (ENVIRONMENTS / "galvatron").glob("lib/python*/site-packages/galvatron/*/*/*")
    return compared([str(python), str(SCRIPTS / "galvatron_search.py")], files, budget)


def compare_checkout(budget: Budget, checkout: Path | None) -> Comparison:
    """Compare with a checkout, which has a newer search engine and cost model.

    Raises:
        UnavailableError: no checkout is given, or it cannot be run.
    """
    if checkout is None:
        raise UnavailableError(
            f"{NAME} 3 is not measured: no checkout is given (--galvatron-checkout PATH)"
        )
    python = environment("galvatron-checkout", (*NEEDED, "pydantic", "rich", "pybind11"))
    script = [str(python), str(SCRIPTS / "galvatron_checkout_search.py"), str(checkout.resolve())]
    return compared(script, checkout.glob("galvatron/profile_hardware/hardware_configs/*"), budget)


def compared(script: Sequence[str], files: Iterable[Path], budget: Budget) -> Comparison:
    """Search with both, price every answer with both; ``files`` state the bandwidths of its node."""
    request = {
        "computation": str(COMPUTATION),
        "memory": str(MEMORY),
        "batch": BATCH,
        "memory_gib": find_gpu(GPU).memory_bytes // GIB,
    }
    theirs = ask(NAME, script, request, budget)
    layers = {"file": str(COMPUTATION), "gpu": GPU, "memory": str(MEMORY)}
    bus_bytes_per_s = bus_of(files)
    problems = [problem_of(limits, bus_bytes_per_s) for limits in (SPACE, {})]
    ours = [
        [ask_ours({"problem": one, "layers": layers}, budget) for _ in range(REPEATS)] for one in problems
    ]
    found = [] if mixes_layers(theirs.answer["plan"]) else [theirs.answer["plan"]]
    tops = [[plan["config"] for plan in runs[0].answer["plans"]] for runs in ours]
    plans = [*map(plan_of_theirs, found), *map(plan_of_ours, tops[0])]
    by_peer = ask(NAME, script, {**request, "judge": plans}, budget).answer["judged"]
    judge = [*map(configuration_of, found), tops[0][0], tops[1][0]]
    by_us = ask_ours({"problem": problems[1], "layers": layers, "judge": judge}, budget).answer["judged"]
    if not found:  # nothing here prices its answer
        by_peer = [{"step_s": theirs.answer["step_s"], "fits": True}, *by_peer]
        by_us = [{"step_time_s": None, "fits": True}, *by_us]
    return Comparison(
        question=f"Llama 2 7B on {GPUS} GPUs, {BATCH} sequences of 2 048, on {NAME}'s profile",
        rows=rows(theirs, ours, by_peer, by_us),
        remarks=remarks(theirs, ours[0], by_peer, expressible=bool(found)),
    )


def mixes_layers(config: Mapping[str, Any]) -> bool:
    """Return whether its layers differ in tensor parallelism or split sequences: not priced here."""
    sizes = {*str(config["tp_sizes_enc"]).split(",")}
    return len(sizes) > 1 or (sizes != {"1"} and "1" in str(config.get("use_sp", "0")))


def rows(
    theirs: Run,
    ours: Sequence[Sequence[Run]],
    by_peer: Sequence[Mapping[str, Any]],
    by_us: Sequence[Mapping[str, Any]],
) -> tuple[Row, ...]:
    """Return their answer, ours in their space and ours in the whole one."""
    covered = theirs.answer["covered"]
    found = [
        Row.of(
            f"{NAME} {theirs.answer['version']}",
            f"{covered['programs']} programs, up to {covered['strategies']} strategies a layer",
            [theirs],
            by_peer=judged(theirs.answer["step_s"], fits=True),
            by_us=judged(by_us[0]["step_time_s"], fits=by_us[0]["fits"]),
        )
    ]
    by_its_judge = (first_and_best(by_peer[1:]), judged(None, fits=True))
    for where, runs, peer, own in zip(("its", "the whole"), ours, by_its_judge, by_us[1:], strict=True):
        found.append(
            Row.of(
                f"Meshwright, {where} space",
                counted(runs[0].answer["configurations"], "configurations"),
                runs,
                by_peer=peer,
                by_us=judged(own["step_time_s"], fits=own["fits"]),
            )
        )
    return tuple(found)


def first_and_best(verdicts: Sequence[Mapping[str, Any]]) -> str:
    """Its price of our first plan, and of that of our ten which it likes best."""
    first = judged(verdicts[0]["step_s"], fits=verdicts[0]["fits"])
    fitting = {at: one["step_s"] for at, one in enumerate(verdicts, start=1) if one["fits"]}
    if not fitting:
        return f"rank 1: {first}; none of {len(verdicts)} fits"
    rank = min(fitting, key=lambda at: fitting[at])
    return f"rank {rank}: {seconds(fitting[rank])}" + ("" if rank == 1 else f" (rank 1: {first})")


def remarks(
    theirs: Run,
    ours: Sequence[Run],
    by_peer: Sequence[Mapping[str, Any]],
    *,
    expressible: bool,
) -> tuple[str, ...]:
    """Ratio of times, who is ahead by its judge, how its answer is read, that its judge is its own."""
    fitting = [one["step_s"] for one in by_peer[1:] if one["fits"]]
    best, again = min(fitting, default=float("inf")), by_peer[0]["step_s"]
    level = "at least as good" if best <= again * (1.0 + SAME) else f"{best / again - 1.0:.2%} behind"
    memory = (
        f"by its judge {len(fitting)} of our {len(by_peer) - 1} plans fit, the best of them is {level}; it "
        "leaves 20 % of memory to PyTorch's cache, ours the room that a 1 % chance to run out asks for"
    )
    adapter = (
        f"its own answer takes {again:.4f} s when priced through the adapter that prices ours, "
        f"{theirs.answer['step_s']:.4f} s in its own words"
    )
    if not expressible:
        adapter = "its layers differ in tensor parallelism or split sequences: ours has one choice for all"
    return (
        ratio_remark(NAME, theirs.cpu_s, median_of([run.cpu_s for run in ours]), TARGET),
        memory,
        adapter,
        "its layers may differ in ZeRO stage, ours may not: ours prices its answer by most layers",
    )


def problem_of(limits: Mapping[str, object], bus_bytes_per_s: float) -> dict[str, object]:
    """The request: its node, its batch."""
    usual = find_cluster("dgx-a100", num_nodes=1).groups[0].intra_node
    link = {
        "kind": usual.kind,
        "bytes_per_s": bus_bytes_per_s
        / default_profile(find_cluster("dgx-a100", num_nodes=1), "none").constants.fast_link,
        "latency_s": usual.latency_s,
        "source": "Galvatron, allreduce_bandwidth_1nodes_8gpus_per_node.json",
    }
    group = {"gpu": GPU, "num_nodes": 1, "gpus_per_node": GPUS, "intra_node": link}
    return {
        "model": {"name": "llama-2-7b"},
        "cluster": {"groups": [group]},
        "workload": {"global_batch_size": BATCH, "seq_length": 2048, "precision": "bf16"},
        "launcher": "none",
        "search": {"top_k": 10, "certify": "cp-sat", "time_limit_s": 60, **limits},
    }


def bus_of(files: Iterable[Path]) -> float:
    """Return the bus bandwidth of its node's all-reduce over eight neighbours, from one of its files.

    Raises:
        UnavailableError: none of them states it.
    """
    name = "allreduce_bandwidth_1nodes_8gpus_per_node.json"
    for path in files:
        tables = read_galvatron(path) if path.name == name else None
        if isinstance(tables, GalvatronCollectives):
            return max(one.bus_bytes_per_s for one in tables.averages if one.num_ranks == GPUS)
    raise UnavailableError(f"{NAME} is not measured: its package has no {name}")


def plan_of_theirs(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return its configuration file as its judge takes it; not if ``mixes_layers``."""
    lists = {name: [int(one) for one in str(config[name]).split(",")] for name in
             ("tp_sizes_enc", "dp_types_enc", "checkpoint", "pp_division")}  # fmt: skip
    pp, tp = config["pp_deg"], lists["tp_sizes_enc"][0]
    dp = GPUS // (pp * tp)
    return {
        "pp": pp,
        "tp": tp,
        "dp": dp,
        "micro_batch": BATCH // (dp * config["chunks"]),
        "num_microbatches": config["chunks"],
        "stage_layers": lists["pp_division"],
        "sharded": lists["dp_types_enc"],
        "recomputed": lists["checkpoint"],
    }


def plan_of_ours(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return our configuration as its judge takes it."""
    again = config["recompute_layers"] if config["recompute_granularity"] == "full" else 0
    return {
        "pp": config["pipeline_parallel_size"],
        "tp": config["tensor_parallel_size"],
        "dp": config["data_parallel_size"],
        "micro_batch": config["micro_batch_size"],
        "num_microbatches": config["num_microbatches"],
        "stage_layers": config["stage_layers"],
        "sharded": [int(config["zero_stage"] == FULLY_SHARDED)] * LAYERS,
        "recomputed": [int(at < again) for count in config["stage_layers"] for at in range(count)],
    }


def configuration_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Convert its configuration to ours: ZeRO of most layers, recomputed layers of its fullest stage."""
    plan = plan_of_theirs(config)
    sharded, _ = Counter(plan["sharded"]).most_common(1)[0]
    stage_layers, begin, again = tuple(plan["stage_layers"]), 0, 0
    for count in stage_layers:
        again, begin = max(again, sum(plan["recomputed"][begin : begin + count])), begin + count
    found = Configuration(
        tensor_parallel_size=plan["tp"],
        sequence_parallel=plan["tp"] > 1,
        pipeline_parallel_size=plan["pp"],
        data_parallel_size=plan["dp"],
        zero_stage=3 if sharded else 2,
        zero_shard_size=plan["dp"],
        micro_batch_size=plan["micro_batch"],
        num_microbatches=plan["num_microbatches"],
        pipeline_schedule="1f1b" if plan["pp"] > 1 else "none",
        recompute_granularity="full" if again else "none",
        recompute_layers=sum(stage_layers) if again == max(stage_layers) else again,
        stage_layers=stage_layers,
    )
    return {name: getattr(found, name) for name in found.__dataclass_fields__}

"""Sailor (eth-easl/sailor) from a checkout: its planner, and its simulator as the judge of both.

OPT-350M, 1 024 sequences, on A100 of one zone, in both settings of its simulator. That neither overlaps
the exchange of gradients nor shards anything, hides no transfer between stages, lets every message go at
the rate that one flow has for its size, inside a node as between nodes, and counts gradients and transfers
in the bytes that it is told: all of that is stated in our request, whose layers are priced as it timed
them. Where its plan's replicas do not divide the batch it trains on more sequences, and so do we.

Its planner is C++: its Makefile in sailor/Planner/sailor_planner/cpp_src builds ``libplanner``, against the
Python that runs this; a copy belongs into sailor/Planner/simulations, as its own code does it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from benchmarks.against.process import (
    ROOT,
    SCRIPTS,
    Budget,
    Run,
    UnavailableError,
    ask,
    ask_ours,
    environment,
)
from benchmarks.against.row import Comparison, Row, counted, judged, seconds

NAME = "Sailor"
DATA = ROOT / "benchmarks" / "data" / "sailor"
GPU, ZONE, MODEL, BATCH = "A100-40", "us-central1-a", "OPT-350", 1024
SIZES, BYTES = (32, 80, 128), {"fp32": 4, "fp16": 2}
_LAST = 25  # its number of the head; the embedding is 0
_CHUNK_BYTES = 16e6  # of a bucket of its exchange, about a 32nd
_BUCKET_BYTES = 500e6  # of its exchange
_PAYLOADS = (32e6, 64e6, 128e6, 256e6, 512e6, 1024e6, 2048e6)
_TRANSFERRED_BYTES = 2  # that ours counts of an activation
_TARGET = 0.01
_PLANS = 40


def compare(budget: Budget, checkout: Path | None) -> Comparison:
    """Plan with both, judge with its simulator.

    Raises:
        UnavailableError: no checkout is given, or it cannot be run.
    """
    home = usable(checkout)
    rows, remarks = list[Row](), list[str]()
    for dtype in BYTES:
        for gpus in SIZES:
            pair, remark = one_size(home, gpus, dtype, budget)
            rows += pair
            remarks.append(remark)
    question = f"OPT-350M on A100, {BATCH} sequences of 2 048, next to Sailor, on the layers that it timed"
    return Comparison(question=question, rows=tuple(rows), remarks=tuple(remarks))


def one_size(home: Path, gpus: int, dtype: str, budget: Budget) -> tuple[list[Row], str]:
    """The rows of both planners on so many GPUs, and who is ahead."""
    theirs = asked_of_it(home, gpus, dtype, [], budget, plans=True)
    own = theirs.answer["own"]
    (pipeline,), size = own["plan"]["pipeline_list"], own["plan"]["mbs"]
    together = pipeline["dp"][0] * size
    batch = together * math.ceil(BATCH / together)
    request = problem(home, gpus, dtype, batch)
    ours = {
        "problem": request,
        "measured": [str(DATA / "opt-350m-a100-sxm-40gb.json")],
        "constants": constants(dtype),
    }
    found = ask_ours(ours, budget)
    timed = [one for one in found.answer["plans"] if one["config"]["micro_batch_size"] in (1, 2, 4, 8)]
    plans = [plan_for_it(one["config"]) for one in timed]
    verdicts = asked_of_it(home, gpus, dtype, plans, budget, batch=batch).answer["judged"]
    fitting = [at for at, verdict in enumerate(verdicts) if verdict["fits"]]
    if not fitting:
        raise UnavailableError(f"none of our plans for {gpus} A100 fits by Sailor's judge")
    first, what = fitting[0], f"{gpus} A100, {dtype}"
    step_s, best_s = verdicts[first]["step_s"], min(verdicts[at]["step_s"] for at in fitting)
    rows = [
        Row.of(f"Sailor, {what}", counted(batch, "sequences"), [theirs], by_peer=seconds(own["step_s"])),
        Row.of(
            f"Meshwright, {what}",
            counted(found.answer["configurations"], "configurations"),
            [found],
            by_peer=f"rank {first + 1}: {judged(step_s, fits=True)}",
            by_us=seconds(timed[first]["step_time_s"]),
        ),
    ]
    behind = step_s / own["step_s"] - 1.0
    verdict = "reached" if behind <= _TARGET else "missed"
    least = f", the best of ours is {best_s / own['step_s'] - 1.0:+.1%}" if best_s < step_s else ""
    return (
        rows,
        f"{what}: our first plan that fits there takes {behind:+.1%}{least} (target +1 %: {verdict})",
    )


def asked_of_it(
    home: Path, gpus: int, dtype: str, given: list[dict[str, Any]], budget: Budget,
    *, batch: int = BATCH, plans: bool = False,
) -> Run:  # fmt: skip
    """Its planner's plan, or its judgement of ours."""
    request = {
        "checkout": str(home), "library": str(home / "sailor/Planner/simulations") if plans else None,
        "model": MODEL, "fp16": dtype == "fp16", "batch": batch, "gpus": {GPU: gpus}, "plans": given,
    }  # fmt: skip
    script = [str(environment("sailor", ("numpy",))), str(SCRIPTS / "sailor_judge.py")]
    return ask(NAME, script, request, budget)


def plan_for_it(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration as its simulator takes it: its layers, embedding and head counted, stage by stage."""
    layers, first = list[list[int]](), 1
    for count in config["stage_layers"]:
        layers.append(list(range(first, first + count)))
        first += count
    layers[0].insert(0, 0)
    layers[-1].append(_LAST)
    tp, dp = config["tensor_parallel_size"], config["data_parallel_size"]
    stages = [[([(GPU, tp, ZONE)], tp)] * dp for _ in layers]
    pipeline = {
        "num_stages": len(layers), "layers_per_stage": layers, "tmp_per_stage": stages,
        "dp": [dp] * len(layers),
    }  # fmt: skip
    return {"pipeline_list": [pipeline], "mbs": config["micro_batch_size"]}


def problem(home: Path, gpus: int, dtype: str, batch: int) -> dict[str, object]:
    """A request in its space, with its links and its settings."""
    (group, _) = yaml.safe_load((DATA / "cluster.yaml").read_text(encoding="utf-8"))["groups"]
    link = {"kind": "vpc", "bytes_per_s": flow_bytes_per_s(home, _CHUNK_BYTES), "latency_s": 1e-6}
    nodes = gpus // group["gpus_per_node"]
    curves = [exchange_curve(home, nodes, ranks) for ranks in (nodes, 2 * nodes, 4 * nodes)]
    group |= {
        "num_nodes": nodes,
        "intra_node": link,
        "inter_node": dict(link),
        "measured": {"curves": curves},
    }
    return {
        "model": {"name": "opt-350m"},
        "cluster": {"name": "sailor", "groups": [group]},
        "workload": {
            "global_batch_size": batch, "seq_length": 2048, "precision": "fp16",
            "framework_options": {"overlap_gradients": False, "gradient_dtype": dtype},
        },
        "launcher": "none",
        "search": {
            "top_k": _PLANS, "certify": "none", "time_limit_s": 60,
            "pin": {
                "context_parallel_size": 1, "zero_stage": 0, "virtual_pipeline_size": 1,
                "recompute_granularity": "none",
            },
        },
    }  # fmt: skip


def constants(dtype: str) -> dict[str, float]:
    """Links reach what is stated of them, and every transfer between stages is waited for in full."""
    return {"network": 1.0, "fast_link": 1.0, "transfer_exposed": BYTES[dtype] / _TRANSFERRED_BYTES}


def exchange_curve(home: Path, nodes: int, ranks: int) -> dict[str, object]:
    """The bus bandwidth of its all-reduce: a ring for each bucket, in as many chunks as ranks."""
    rates = []
    for payload in _PAYLOADS:
        whole, rest = divmod(payload, _BUCKET_BYTES)
        buckets = [_BUCKET_BYTES] * int(whole) + [rest] * (rest > 0)
        rates.append(payload / sum(one / flow_bytes_per_s(home, one / ranks) for one in buckets))
    sizes = [int(payload) for payload in _PAYLOADS]
    return {
        "collective": "all_reduce", "num_nodes": nodes, "num_ranks": ranks,
        "payload_bytes": sizes, "bus_bytes_per_s": rates,
    }  # fmt: skip


def flow_bytes_per_s(home: Path, chunk_bytes: float) -> float:
    """Of one flow between its A100, by its polynomial of a chunk's binary logarithm, in MB."""
    links = json.loads((home / "sailor/providers/multizone_bandwidths_het.json").read_text())
    coefficients, _peak = links[ZONE][GPU]["1"][ZONE][GPU]["1"]
    size = math.log2(chunk_bytes / 1e6)
    return 1e9 * float(sum(one * size**power for power, one in enumerate(reversed(coefficients))))


def usable(checkout: Path | None) -> Path:
    """The checkout's full path.

    Raises:
        UnavailableError: none is given, it is none, or its planner was not built.
    """
    if checkout is None:
        raise UnavailableError(f"{NAME} is not measured: give --sailor PATH, a checkout of eth-easl/sailor")
    if not list((checkout / "sailor/Planner/simulations").glob("libplanner*.so")):
        raise UnavailableError(f"{NAME} is not measured: the checkout has no built libplanner")
    return checkout.resolve()

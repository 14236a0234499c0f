"""Sailor (eth-easl/sailor) from a checkout: its planner, and its simulator as the judge of both.

OPT-350M, 1 024 sequences, in one zone: on A100 alone in both settings of its simulator, and on the three
clusters of A100 and V100 of its artifact (ae_scripts/planner/run_het.sh) in fp32, as there. The simulator
neither overlaps the exchange of gradients nor shards anything, hides no transfer between stages, lets every
message go at the rate that one flow has for its size, inside a node as between nodes, and counts gradients
and transfers in the bytes that it is given: all of that is stated in our request, with layers priced as it
timed them. Where its plan's replicas do not divide the batch it trains on more sequences, and so do we. Of
ours the first plan counts that its simulator can price and that fits there.

Its planner is C++ and is built on first use, which takes g++ and the headers of jsoncpp.
"""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Mapping, Sequence
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

NAME, REQUIREMENTS = "Sailor", ("numpy", "pybind11")
DATA = ROOT / "benchmarks" / "data" / "sailor"
A100, V100, ZONE, MODEL, BATCH = "A100-40", "V100-16", "us-central1-a", "OPT-350", 1024
GPUS = {A100: "a100-sxm-40gb", V100: "v100-sxm-16gb"}
TRACE = "sailor/Planner/simulations/configs/gpu_trace_heterogeneous_imbalanced.csv"
SIZES, BYTES = (32, 80, 128), {"fp32": 4, "fp16": 2}
_LAST = 25  # its number of the head; the embedding is 0
_CHUNK_BYTES = 16e6  # of a bucket of its exchange, about a 32nd
_BUCKET_BYTES = 500e6  # of its exchange
_PAYLOADS = (32e6, 64e6, 128e6, 256e6, 512e6, 1024e6, 2048e6)
_TRANSFERRED_BYTES = 2  # that ours counts of an activation
_TARGET = 0.01
_PLANS = 40


def compare(budget: Budget, checkout: Path | None) -> Comparison:
    """Plan with both on A100 alone, judge with its simulator.

    Raises:
        UnavailableError: no checkout is given, or it cannot be run.
    """
    home = usable(checkout)
    asked = [(dtype, {A100: number}) for dtype in BYTES for number in SIZES]
    question = f"OPT-350M on A100, {BATCH} sequences of 2 048, next to Sailor, on the layers that it timed"
    return _compared(question, [one_size(home, gpus, dtype, budget) for dtype, gpus in asked])


def compare_mixed(budget: Budget, checkout: Path | None) -> Comparison:
    """Plan with both on the three clusters of A100 and V100 that its repository publishes, in its fp32.

    Raises:
        UnavailableError: no checkout is given, or it cannot be run.
    """
    home = usable(checkout)
    table = (home / TRACE).read_text(encoding="utf-8").splitlines()
    numbers = [map(int, line.split(",")[-2:]) for line in table[1:]]
    clusters = [dict(zip(GPUS, own, strict=True)) for own in numbers]
    question = f"OPT-350M on A100 and V100, {BATCH} sequences of 2 048, next to Sailor, on its layers"
    return _compared(question, [one_size(home, gpus, "fp32", budget) for gpus in clusters])


def _compared(question: str, found: Sequence[tuple[list[Row], str]]) -> Comparison:
    rows = tuple(row for pair, _ in found for row in pair)
    return Comparison(question=question, rows=rows, remarks=tuple(remark for _, remark in found))


def one_size(home: Path, gpus: Mapping[str, int], dtype: str, budget: Budget) -> tuple[list[Row], str]:
    """Return the rows of both planners on so many GPUs, and which one is ahead."""
    theirs = asked_of_it(home, gpus, dtype, [], budget, plans=True)
    own = theirs.answer["own"]
    (pipeline,), size = own["plan"]["pipeline_list"], own["plan"]["mbs"]
    together = pipeline["dp"][0] * size
    batch = together * math.ceil(BATCH / together)
    ours = {
        "problem": problem(home, gpus, dtype, batch),
        "measured": [str(DATA / f"opt-350m-{GPUS[gpu]}.json") for gpu in gpus],
        "constants": constants(dtype),
    }
    found = ask_ours(ours, budget)
    timed = [
        (rank, one) for rank, one in enumerate(found.answer["plans"], 1) if is_timed(home, one["config"])
    ]
    plans = [plan_for_it(one["config"]) for _, one in timed]
    verdicts = asked_of_it(home, gpus, dtype, plans, budget, batch=batch).answer["judged"]
    fitting = [at for at, verdict in enumerate(verdicts) if verdict["fits"]]
    what = " + ".join(f"{number} {gpu.split('-')[0]}" for gpu, number in gpus.items()) + f", {dtype}"
    if not fitting:
        raise UnavailableError(f"none of our plans for {what} fits by Sailor's judge")
    first = fitting[0]
    step_s, best_s = verdicts[first]["step_s"], min(verdicts[at]["step_s"] for at in fitting)
    rank, plan = timed[first]
    rows = [
        Row.of(f"Sailor, {what}", counted(batch, "sequences"), [theirs], by_peer=seconds(own["step_s"])),
        Row.of(
            f"Meshwright, {what}",
            counted(found.answer["configurations"], "configurations"),
            [found],
            by_peer=f"rank {rank}: {judged(step_s, fits=True)}",
            by_us=seconds(plan["step_time_s"]),
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
    home: Path, gpus: Mapping[str, int], dtype: str, given: list[dict[str, Any]], budget: Budget,
    *, batch: int = BATCH, plans: bool = False,
) -> Run:  # fmt: skip
    """Return its planner's plan, or its judgement of ours."""
    request = {
        "checkout": str(home), "library": str(home / "sailor/Planner/simulations") if plans else None,
        "model": MODEL, "fp16": dtype == "fp16", "batch": batch, "gpus": dict(gpus), "plans": given,
    }  # fmt: skip
    script = [str(environment("sailor", REQUIREMENTS)), str(SCRIPTS / "sailor_judge.py")]
    return ask(NAME, script, request, budget)


def placed(config: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Return the GPU type and the tensor-parallel size of each stage."""
    stages = config.get("stage_groups")
    if not stages:
        return [(A100, config["tensor_parallel_size"])] * len(config["stage_layers"])
    named = {slug: gpu for gpu, slug in GPUS.items()}
    return [(named[one["group"]], one["tensor_parallel_size"]) for one in stages]


def is_timed(home: Path, config: Mapping[str, Any]) -> bool:
    """Return whether its simulator can price a plan: equal replicas, and layers that it timed.

    It takes layers that it did not time as free.
    """
    if config.get("replicas"):
        return False
    times = json.loads((home / "sailor/Planner/simulations/profiles_tmp.json").read_text())[MODEL]
    size = str(config["micro_batch_size"])
    return all(str(tensor) in times[gpu].get(size, {}) for gpu, tensor in placed(config))


def plan_for_it(config: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a configuration to its simulator's: layers of each stage, embedding and head counted."""
    layers, first = list[list[int]](), 1
    for count in config["stage_layers"]:
        layers.append(list(range(first, first + count)))
        first += count
    layers[0].insert(0, 0)
    layers[-1].append(_LAST)
    dp = config["data_parallel_size"]
    stages = [[([(gpu, tensor, ZONE)], tensor)] * dp for gpu, tensor in placed(config)]
    pipeline = {
        "num_stages": len(layers), "layers_per_stage": layers, "tmp_per_stage": stages,
        "dp": [dp] * len(layers),
    }  # fmt: skip
    return {"pipeline_list": [pipeline], "mbs": config["micro_batch_size"]}


def problem(home: Path, gpus: Mapping[str, int], dtype: str, batch: int) -> dict[str, object]:
    """Return a request in its space, with its links and its settings."""
    given = yaml.safe_load((DATA / "cluster.yaml").read_text(encoding="utf-8"))["groups"]
    groups = [
        group_of(home, group, gpu, gpus[gpu]) for group, gpu in zip(given, GPUS, strict=True) if gpu in gpus
    ]
    between = {"between_groups": link_of(home, A100, V100)} if len(groups) > 1 else {}
    return {
        "model": {"name": "opt-350m"},
        "cluster": {"name": "sailor", "groups": groups, **between},
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


def group_of(home: Path, group: Mapping[str, Any], gpu: str, number: int) -> dict[str, object]:
    """Return a node group of so many GPUs with its links."""
    nodes = number // group["gpus_per_node"]
    curves = [exchange_curve(home, gpu, nodes, ranks) for ranks in (nodes, 2 * nodes, 4 * nodes)]
    link = link_of(home, gpu, gpu)
    return {
        **group, "num_nodes": nodes, "intra_node": link, "inter_node": dict(link),
        "measured": {"curves": curves},
    }  # fmt: skip


def link_of(home: Path, sender: str, receiver: str) -> dict[str, object]:
    """Return a link priced as one flow, as stages send."""
    rate = flow_bytes_per_s(home, _CHUNK_BYTES, sender, receiver)
    return {"kind": "vpc", "bytes_per_s": rate, "latency_s": 1e-6}


def exchange_curve(home: Path, gpu: str, nodes: int, ranks: int) -> dict[str, object]:
    """Return the bus bandwidth of its all-reduce: a ring for each bucket, in as many chunks as ranks."""
    rates = []
    for payload in _PAYLOADS:
        whole, rest = divmod(payload, _BUCKET_BYTES)
        buckets = [_BUCKET_BYTES] * int(whole) + [rest] * (rest > 0)
        rates.append(payload / sum(one / flow_bytes_per_s(home, one / ranks, gpu, gpu) for one in buckets))
    sizes = [int(payload) for payload in _PAYLOADS]
    return {
        "collective": "all_reduce", "num_nodes": nodes, "num_ranks": ranks,
        "payload_bytes": sizes, "bus_bytes_per_s": rates,
    }  # fmt: skip


def flow_bytes_per_s(home: Path, chunk_bytes: float, sender: str, receiver: str) -> float:
    """Return the bandwidth of one flow between two GPUs, by its polynomial of log2 of a chunk's MB."""
    links = json.loads((home / "sailor/providers/multizone_bandwidths_het.json").read_text())
    coefficients, _peak = links[ZONE][sender]["1"][ZONE][receiver]["1"]
    size = math.log2(chunk_bytes / 1e6)
    return 1e9 * float(sum(one * size**power for power, one in enumerate(reversed(coefficients))))


def usable(checkout: Path | None) -> Path:
    """Return the checkout's full path, with its planner built.

    Raises:
        UnavailableError: no checkout is given, it is not one, or its planner cannot be built.
    """
    if checkout is None:
        raise UnavailableError(f"{NAME} is not measured: give --sailor PATH, a checkout of eth-easl/sailor")
    home = checkout.resolve()
    if not list((home / "sailor/Planner/simulations").glob("libplanner*.so")):
        _build(home)
    return home


def _build(home: Path) -> None:
    """Compile its planner as its Makefile does, for the Python that runs it."""
    into, sources = home / "sailor/Planner/simulations", home / "sailor/Planner/sailor_planner/cpp_src"
    if not sources.is_dir():
        raise UnavailableError(f"{NAME} is not measured: the checkout has no {sources.relative_to(home)}")
    python = str(environment("sailor", REQUIREMENTS))
    name = "import sysconfig; print('libplanner' + sysconfig.get_config_var('EXT_SUFFIX'))"
    try:
        library, headers = (
            subprocess.run(one, capture_output=True, text=True, check=True).stdout.split()
            for one in ([python, "-c", name], [python, "-m", "pybind11", "--includes"])
        )
        files = [str(one) for one in (*sources.glob("*.cpp"), *sources.glob("utils/*.cpp"))]
        command = ["g++", "-O3", "-fPIC", "-shared", *headers, "-I/usr/include/jsoncpp", *files]
        command += ["-ljsoncpp", "-o", str(into / library[0])]
        subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as fault:
        raise UnavailableError(f"{NAME} is not measured: its planner could not be built: {fault}") from None

"""Random requests of the whole schema: what is left open, pinned and stated, in the form of the API."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from meshwright.profiles.capabilities import launcher_names
from meshwright.profiles.errors import FieldError, InvalidProblemError
from meshwright.profiles.frameworks import OPTION_NUMBERS, OPTION_WORDS, framework_names
from meshwright.profiles.library import cluster_names, find_model, gpu_names, model_names
from meshwright.profiles.model_shapes import model_to_mapping
from meshwright.profiles.optimizers import OPTIMIZERS
from meshwright.profiles.switches import EVERY_SWITCH, switches
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.configuration import INTEGER_VARIABLES
from meshwright.solver.problem import Problem

MODELS = (
    "llama-3.2-1b",
    "qwen3-0.6b",
    "gpt2",
    "llama-3.1-8b",
    "olmoe-1b-7b",
    "deepseek-v2-lite",
    "gemma-2-2b",
)
WITH_A_TOWER = Path(__file__).parents[2] / "examples" / "qwen3-vl-8b-8xh100.json"
GPUS = ("h100-sxm-80gb", "a100-sxm-80gb", "a100-sxm-40gb", "l40s", "gh200-96gb", "b200-sxm-180gb")
ALLOWED = (
    "offload", "fp8", "adamw-bf16", "adamw-8bit", "adamw-pure-bf16", "muon", "sgd-momentum",
    "context_parallel_mode", "standalone_stages", EVERY_SWITCH, EVERY_SWITCH,
    *(name for name, one in switches().items() if not one.beside),
)  # fmt: skip
OBJECTIVES = ("step_time", "step_time", "tokens_per_s_per_gpu", "gpu_hours_per_token", "energy_per_token")
CONSTRAINTS = (
    "tensor_parallel_size * context_parallel_size <= 4",
    "zero_stage >= 1 => pipeline_parallel_size == 1",
    "recompute_granularity != 'selective'",
    "data_parallel_size % 2 == 0",
)
FORBIDDEN = (("micro_batch_size", [3, 5]), ("zero_stage", [3]), ("recompute_granularity", ["full"]))
LENGTHS = ({"p50": 300, "p100": 1024}, {"p10": 100, "p50": 900, "p90": 1000, "p100": 1024})


def a_combined_problem(seed: int) -> Problem:
    """A drawn request on a few GPUs, without the fields that it is refused for."""
    return parse_problem(a_combined_request(seed))


def a_combined_request(seed: int, *, large: bool = False) -> dict[str, Any]:
    """The same in the form of the API; ``large``: any model and cluster of the catalog, up to 600 nodes."""
    return accepted(_drawn(Random(seed), large=large))


def accepted(request: dict[str, Any]) -> dict[str, Any]:
    """The request without the fields that it is refused for."""
    while True:
        try:
            parse_problem(request)
        except InvalidProblemError as fault:
            _take_out(request, fault.errors)
        else:
            return request


# Fields of a workload that others require: a tower that takes images of any size, an optimizer that trains
# one layer after another, and layers that are frozen with a tower's.
_REQUIRED = {"image_tokens": 256, "trained_layers": "0", "frozen": ["vision", "projector"]}


def _take_out(request: dict[str, Any], faults: Sequence[FieldError]) -> None:
    """Leave out what is refused; no launcher's limits hold where one cannot train the model."""
    if _settled(request, faults[0]):
        return
    missing = faults[0].pointer.removeprefix("/workload/")
    if missing in _REQUIRED and missing not in request["workload"]:
        request["workload"][missing] = _REQUIRED[missing]
        return
    part, _, rest = faults[0].pointer.strip("/").partition("/")
    name, *inner = rest.split("/")
    if not (rest and name in request[part]):
        assert request["launcher"] != "none", faults
        request["launcher"] = "none"
    elif name == "allow":
        request[part][name].pop(int(inner[0]) if inner else -1)
    elif inner and isinstance(request[part][name], dict) and inner[0] in request[part][name]:
        request[part][name].pop(inner[0])
    else:
        request[part].pop(name)


def _settle_precision(request: dict[str, Any], nearest: str | None) -> None:
    """Ask for what the GPUs have; else of any launcher, or of GPUs that have one in common."""
    if nearest:
        request["workload"]["precision"] = nearest
    elif request["launcher"] != "none":
        request["launcher"] = "none"
    else:
        request["cluster"] = {"name": "dgx-h100", "num_nodes": 2}


def _settled(request: dict[str, Any], fault: FieldError) -> bool:
    """Give what cannot be left out another value, if it is refused."""
    work, search, nearest = request["workload"], request["search"], fault.nearest
    match fault.pointer.strip("/").split("/"):
        case ["stack"]:
            request.pop("stack")
        case ["cluster", *_]:  # GPUs without stated power
            for name in ("objective", "grid_co2_g_per_kwh", "max_power_kw"):
                search.pop(name, None)
        case ["workload", "precision"] if "precision" not in work:
            _settle_precision(request, nearest)
        case ["workload", "precision"] if work["precision"] == "fp16" and request["launcher"] != "none":
            request["launcher"] = "none"
        case ["workload", "global_batch_size", *_]:
            work["global_batch_size"], search["pin"] = 16, {}
        case ["workload", "images_per_sample"] if "images_per_sample" not in work:  # the model sees
            work["images_per_sample"] = 0
            work.pop("image_tokens", None)
        case ["workload", "images_per_sample" | "image_tokens"] if nearest not in ("0", None):
            work["images_per_sample"] = float(nearest)
        case ["workload", "seq_length"]:  # images that take more tokens than there are
            work["seq_length"] = int(nearest or 8192)
        case _:
            return False
    return True


def _drawn(random: Random, *, large: bool) -> dict[str, Any]:
    """One request; most are refused for something."""
    request: dict[str, Any] = {
        "model": {"name": random.choice(model_names())} if large else _model(random),
        "launcher": random.choice((*launcher_names(), "none", "none", "any", "megatron-lm")),
        "cluster": _large_cluster(random) if large else _cluster(random),
        "workload": _workload(random, large=large),
        "search": _search(random),
        **_maybe(random, 0.1, "stack", random.choice(framework_names())),
    }
    if len(request["cluster"].get("groups", ())) > 1:
        # unlike nodes are placed where no launcher limits them
        request["launcher"] = "none" if random.random() < 0.8 else request["launcher"]
    if large and random.random() < 0.1:  # with a tower; no model of the catalog has one
        request["model"] = json.loads(WITH_A_TOWER.read_text(encoding="utf-8"))["model"]
        request["workload"] |= {"images_per_sample": random.choice((0.5, 2.0)), "image_tokens": 256}
    if large and random.random() < 0.1:  # a quantile: ranked apart from the others
        request["search"]["objective"] = "robust"
    if random.random() < 0.1:  # last, so that it changes no other draw of the request
        request["launcher"] = "none"  # others train on preferences with few of the other fields
        request["workload"] |= {
            "sample": random.choice(("pair", "unpaired")),
            **_maybe(random, 0.7, "reference", random.choice(("frozen", "adapters-off"))),
        }
    return request


def _model(random: Random) -> dict[str, Any]:
    """A model of the catalog with a few of its layers."""
    model = find_model(random.choice(MODELS))
    return model_to_mapping(replace(model, name="drawn", num_layers=random.randint(4, 8)))


def _maybe(random: Random, chance: float, name: str, value: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """A field now and then."""
    return {name: value} if random.random() < chance else {}


def _cluster(random: Random) -> dict[str, Any]:
    """One to four nodes of one kind, or two kinds of nodes."""
    each = random.choice((1, 2, 4, 8, 8))
    kinds = random.sample(GPUS, 2 if random.random() < 0.2 else 1)
    most = 2 if len(kinds) > 1 else 4
    groups = [{"gpu": gpu, "num_nodes": random.randint(1, most), "gpus_per_node": each} for gpu in kinds]
    return {"name": "drawn", "groups": groups}


def _large_cluster(random: Random) -> dict[str, Any]:
    """Nodes of a cluster of the catalog, or of two kinds of GPUs."""
    nodes = random.choice((1, 2, 3, 8, 16, 64, 97, 128, 256, 512, 600))
    if random.random() < 0.2:
        gpus, each = random.sample(gpu_names(), 2), max(nodes // 2, 1)
        return {"groups": [{"gpu": gpu, "num_nodes": each, "gpus_per_node": 8} for gpu in gpus]}
    return {"name": random.choice(cluster_names()), "num_nodes": nodes}


def _workload(random: Random, *, large: bool) -> dict[str, Any]:
    """A batch of sequences, or of documents of several lengths; how they are trained."""
    batch = random.choice((1, 3, 64, 512, 1000, 4096, 8192) if large else (8, 16, 24, 64))
    batching = random.choice(("packing", "padding", "padding_to_longest"))
    lengths = {"percentiles": random.choice(LENGTHS), "batching": batching}
    return {
        "global_batch_size": random.choice((batch, batch, batch, [batch, 2 * batch])),
        "seq_length": random.choice((1024, 2048, 4096, 5000, 32768, 131072)) if large else 1024,
        "total_tokens": 10**10,
        **_maybe(random, 0.25, "lengths", lengths),
        **_maybe(random, 0.2, "precision", random.choice(("fp16", "fp8", "mxfp8", "nvfp4", "fp32"))),
        **_maybe(random, 0.2, "optimizer", random.choice(tuple(OPTIMIZERS))),
        **(
            {"optimizer": "galore", "optimizer_rank": 64, "optimizer_interval": 100}
            if random.random() < 0.1
            else {}
        ),
        **_maybe(random, 0.15, "lora_rank", 16),
        **_maybe(random, 0.2, "lora_targets", random.choice((["linear_qkv"], ["q_proj", "down_proj"]))),
        **_maybe(random, 0.2, "base_precision", random.choice(("fp32", "int8", "nf4", "nf4-double"))),
        **_maybe(random, 0.2, "trained_modules", ["norm"]),
        **_maybe(random, 0.1, "trained_layers", random.choice(("none", "0", "1,2"))),
        **_maybe(random, 0.2, "images_per_sample", random.choice((0.5, 2.0))),
        **_maybe(random, 0.2, "image_tokens", random.choice((256, {"p50": 64, "p100": 256}))),
        **_maybe(random, 0.2, "frozen", random.sample(("vision", "projector", "language"), 1)),
        **_maybe(random, 0.2, "framework_options", framework_option(random)),
    }


def framework_option(random: Random) -> dict[str, Any]:
    """One fact of the framework in other words or numbers, which it may refuse."""
    name = random.choice((*OPTION_WORDS, *OPTION_NUMBERS))
    return {name: random.choice(OPTION_WORDS[name] if name in OPTION_WORDS else OPTION_NUMBERS[name])}


def _search(random: Random) -> dict[str, Any]:
    """What is asked for, left open, pinned, bounded and forbidden."""
    names = random.sample(INTEGER_VARIABLES, 5)
    pinned, bounded = names[: random.choice((0, 1, 1, 2, 3))], names[3 : 3 + random.choice((0, 0, 1))]
    forbidden = dict(random.sample(FORBIDDEN, random.choice((0, 0, 1))))
    taken = {*pinned, *bounded}
    return {
        "top_k": random.choice((1, 2, 3, 5, 10, 10, 25)),
        "time_limit_s": 5.0,
        "seed": random.randint(0, 2**31 - 1),
        "certify": random.choice(("none", "none", "none", "cp-sat", "cp-sat-all")),
        "allow": random.sample(ALLOWED, random.choice((0, 1, 1, 2, 3))),
        "pin": {name: _value(random, name) for name in pinned},
        "bounds": {name: sorted((_value(random, name), _value(random, name))) for name in bounded},
        "forbid": {name: values for name, values in forbidden.items() if name not in taken},
        "constraints": random.sample(CONSTRAINTS, random.choice((0, 0, 0, 1))),
        **_maybe(random, 0.4, "objective", random.choice(OBJECTIVES)),
        **_maybe(random, 0.25, "diverse", False),
        **_maybe(random, 0.15, "gpus", "fewest"),
        **_maybe(random, 0.15, "num_nodes", [1, 2]),
        **_maybe(random, 0.1, "reserve_nodes", 1),
        **_maybe(random, 0.1, "pareto", True),
        **_maybe(random, 0.1, "gpu_hour_price", 2.0),
        **_maybe(random, 0.1, "grid_co2_g_per_kwh", 400.0),
        **_maybe(random, 0.1, "max_power_kw", random.choice((5.0, 500.0))),
        **_maybe(random, 0.1, "reliability", {"restart_s": random.choice((0.0, 3600.0))}),
        **_maybe(random, 0.1, "baseline", {"tensor_parallel_size": random.choice((1, 2, 8))}),
        **_maybe(random, 0.1, "max_out_of_memory_probability", random.choice((1e-6, 0.5))),
        **_maybe(random, 0.1, "deadline_days", random.choice((0.01, 1.0, 100.0))),
    }


def _value(random: Random, name: str) -> int:
    """A value that the variable may have somewhere."""
    if name == "zero_stage":
        return random.randint(0, 3)
    return random.choice((1, 1, 2, 2, 4, 8))

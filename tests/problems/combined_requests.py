"""Random requests that combine what a request may leave open with what it pins, in the form of the API."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

from meshwright.profiles.capabilities import launcher_names
from meshwright.profiles.errors import FieldError, InvalidProblemError
from meshwright.profiles.library import find_model
from meshwright.profiles.model_shapes import model_to_mapping
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
    """A drawn request, without the fields that it is refused for."""
    request = _drawn(Random(seed))
    while True:
        try:
            return parse_problem(request)
        except InvalidProblemError as fault:
            _take_out(request, fault.errors)


def _take_out(request: dict[str, Any], faults: Sequence[FieldError]) -> None:
    """Leave out what is refused; no launcher's limits hold where one cannot train the model."""
    part, _, rest = faults[0].pointer.strip("/").partition("/")
    name, *inner = rest.split("/")
    if not (rest and name in request[part]):
        assert request["launcher"] != "none", faults
        request["launcher"] = "none"
    elif name == "allow":
        request[part][name].pop(int(inner[0]) if inner else -1)
    elif name == "global_batch_size":
        request[part][name] = 16
        request["search"]["pin"] = {}
    elif inner and isinstance(request[part][name], dict) and inner[0] in request[part][name]:
        request[part][name].pop(inner[0])
    else:
        request[part].pop(name)


def _drawn(random: Random) -> dict[str, Any]:
    """One request; most are refused for something."""
    request: dict[str, Any] = {
        "model": _model(random),
        "launcher": random.choice((*launcher_names(), "none", "none", "any", "megatron-lm")),
        "cluster": _cluster(random),
        "workload": _workload(random),
        "search": _search(random),
    }
    if len(request["cluster"]["groups"]) > 1:  # unlike nodes are placed where no launcher limits them
        request["launcher"] = "none" if random.random() < 0.8 else request["launcher"]
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


def _workload(random: Random) -> dict[str, Any]:
    """A batch of sequences, or of documents of several lengths."""
    batch = random.choice((8, 16, 24, 64))
    batching = random.choice(("packing", "padding", "padding_to_longest"))
    lengths = {"percentiles": random.choice(LENGTHS), "batching": batching}
    return {
        "global_batch_size": random.choice((batch, batch, batch, [batch, 2 * batch])),
        "seq_length": 1024,
        **_maybe(random, 0.25, "lengths", lengths),
        **_maybe(random, 0.2, "precision", random.choice(("fp16", "fp8", "mxfp8"))),
        **_maybe(random, 0.2, "optimizer", random.choice(("adamw-bf16", "adamw-8bit", "muon"))),
        **_maybe(random, 0.15, "lora_rank", 16),
        "total_tokens": 10**10,
    }


def _search(random: Random) -> dict[str, Any]:
    """What is asked for, left open, pinned, bounded and forbidden."""
    names = random.sample(INTEGER_VARIABLES, 5)
    pinned, bounded = names[: random.choice((0, 1, 1, 2, 3))], names[3 : 3 + random.choice((0, 0, 1))]
    forbidden = dict(random.sample(FORBIDDEN, random.choice((0, 0, 1))))
    taken = {*pinned, *bounded}
    return {
        "top_k": random.choice((1, 2, 3, 5, 10, 10, 25)),
        "time_limit_s": 5.0,
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
        **_maybe(random, 0.1, "max_out_of_memory_probability", random.choice((1e-6, 0.5))),
        **_maybe(random, 0.1, "deadline_days", random.choice((0.01, 1.0, 100.0))),
    }


def _value(random: Random, name: str) -> int:
    """A value that the variable may have somewhere."""
    if name == "zero_stage":
        return random.randint(0, 3)
    return random.choice((1, 1, 2, 2, 4, 8))

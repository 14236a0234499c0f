"""Meshwright's side of a comparison: ``python -m benchmarks.against.ours``, one process a question.

Standard input: JSON {"problem": a request, "layers": {"file", "gpu", "memory"} or null: a foreign
profile of layer times and one of memory, "measured": [files of measured profiles], "constants": {name:
value} that the peer states, "judge": [configurations]}. Without ``judge`` it searches.
Standard output: JSON {"configurations", "status", "certified_by", "plans": [{"config", "step_time_s"}]},
or {"judged": [{"step_time_s", "fits"}]}.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.foreign.galvatron import read_galvatron
from benchmarks.foreign.layer_times import Taken, measured_from_layers
from benchmarks.foreign.records import LayerProfile, MemoryProfile
from meshwright.profiles.library import find_gpu
from meshwright.profiles.measured.profile import Session
from meshwright.profiles.measured.read import read_measured_profile
from meshwright.profiles.profile import Profile, default_profile
from meshwright.service.requests.parse import parse_problem
from meshwright.service.requests.profiles import profile_with
from meshwright.solver.calibration.timed import with_measured
from meshwright.solver.configuration import Columns, Configuration, configuration_from_json
from meshwright.solver.cost.price import price
from meshwright.solver.predict import predict
from meshwright.solver.problem import Problem
from meshwright.solver.search.search import search


def profile_of(problem: Problem, layers: Mapping[str, str] | None) -> Profile:
    """Return the shipped profile, or one with a peer's timed layers.

    Raises:
        TypeError: the file holds no layer times.
    """
    shipped = default_profile(problem.cluster, problem.launcher)
    if layers is None:
        return shipped
    source = read_galvatron(layers["file"])
    if not isinstance(source, LayerProfile):
        raise TypeError(f"{layers['file']} holds no layer times")
    taken = Taken(
        model=problem.model,
        gpu=find_gpu(layers["gpu"]),
        seq_length=problem.workload.seq_length,
        dtype="fp16" if problem.workload.precision == "fp16" else "bf16",
        with_collectives=False,
        session=Session(started_at="not stated by the source", command="bench-peers", meshwright="0"),
    )
    measured, _notes = measured_from_layers(source, taken)
    timed = with_measured(problem, shipped, measured)
    return with_activations(problem, timed, layers["memory"]) if "memory" in layers else timed


def with_activations(problem: Problem, profile: Profile, path: str) -> Profile:
    """Return the profile with kept activations at the level that a memory profile measured for one layer.

    Raises:
        TypeError: the file holds no memory of a layer.
    """
    source = read_galvatron(path)
    layer = (
        next((one for one in source.parts if one.part == "layer"), None)
        if isinstance(source, MemoryProfile)
        else None
    )
    if layer is None:
        raise TypeError(f"{path} holds no memory of a layer")
    alone = Configuration(
        stage_layers=(problem.model.num_layers,), num_microbatches=problem.workload.global_batch_size
    )
    own_bytes = float(price(problem, Columns.of([alone]), profile).activation_bytes[0, 0])
    share = layer.activation_bytes[1] / own_bytes
    return replace(
        profile, constants=replace(profile.constants, activation=profile.constants.activation * share)
    )


def with_constants(profile: Profile, stated: Mapping[str, float]) -> Profile:
    """Return the profile and that of every node group with the constants that the peer states."""
    groups = tuple(with_constants(one, stated) for one in profile.by_group)
    return replace(profile, constants=replace(profile.constants, **stated), by_group=groups)


def searched(problem: Problem, profile: Profile) -> dict[str, Any]:
    """Search and describe the answer."""
    answer = search(problem, profile)
    return {
        "configurations": answer.legal,
        "status": answer.status,
        "certified_by": list(answer.certified_by),
        "plans": [
            {"config": plan.to_json()["config"], "step_time_s": plan.prediction.step_time_s}
            for plan in answer.plans
        ],
    }


def judged(problem: Problem, profile: Profile, configs: list[dict[str, Any]]) -> dict[str, Any]:
    """Price configurations of others."""
    limit = problem.options.max_out_of_memory_probability
    verdicts = []
    for config in configs:
        prediction = predict(problem, profile, configuration_from_json(config))
        fits = prediction.out_of_memory_probability <= limit
        verdicts.append({"step_time_s": prediction.step_time_s, "fits": fits})
    return {"judged": verdicts}


def main() -> None:
    """Answer one request."""
    request = json.load(sys.stdin)
    problem = parse_problem(request["problem"])
    if request.get("measured"):
        given = [read_measured_profile(Path(one)) for one in request["measured"]]
        profile, _warnings = profile_with(problem, given)
    else:
        profile = profile_of(problem, request.get("layers"))
    profile = with_constants(profile, request.get("constants", {}))
    configs = request.get("judge")
    print(json.dumps(searched(problem, profile) if configs is None else judged(problem, profile, configs)))


if __name__ == "__main__":
    main()

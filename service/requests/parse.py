"""From a request to a Problem and back: parse, check, write down, and name by digest.

``parse_problem(problem_to_mapping(problem)) == problem`` for every problem; the mapping spells out the
model's and the cluster's figures, so that a stored problem does not change with the catalog.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace

from pydantic import ValidationError

from meshwright.profiles.adapters import LORA_TARGETS, TRAINED_MODULES, usual_targets
from meshwright.profiles.capabilities import Capabilities, first_launcher, launcher_capabilities
from meshwright.profiles.cluster import ClusterSpec, Reliability
from meshwright.profiles.documents import pointer, require_plain, shown
from meshwright.profiles.errors import FieldError, InvalidProblemError, UnknownNameError
from meshwright.profiles.frameworks import FORMATS, framework_facts, framework_names, with_options
from meshwright.profiles.inline import cluster_from_mapping, cluster_to_mapping, model_from_mapping
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.model_shapes import model_to_mapping
from meshwright.profiles.profile import framework_of
from meshwright.profiles.sequences import lengths_from_mapping
from meshwright.service.requests.checks import check_launcher, check_limits
from meshwright.service.requests.configuration import completed
from meshwright.service.requests.parts import (
    as_written,
    batches_of,
    batches_to_json,
    counts_of,
    named_parts,
    request_written_out,
    run_to_mapping,
    with_open_nodes,
)
from meshwright.service.requests.schema import ProblemRequest, SearchRequest, WorkloadRequest, field_errors
from meshwright.solver.problem import ALLOWED, Problem, SearchOptions, Workload
from meshwright.solver.space.launcher_rules import with_recipe


def parse_problem(raw: Mapping[str, object]) -> Problem:
    """Return the Problem that a request (design of the API, and of problem files) describes.

    Raises:
        InvalidProblemError: with one FieldError per fault, as JSON pointers into ``raw``.
    """
    plain = named_parts(require_plain(raw))
    try:
        return _parsed(request_written_out(plain))
    except InvalidProblemError as fault:
        raise as_written(fault, plain) from None


def _parsed(raw: Mapping[str, object]) -> Problem:
    try:
        request = ProblemRequest.model_validate(with_open_nodes(_without_ramp(raw)))
    except ValidationError as fault:
        raise InvalidProblemError(field_errors(fault)) from None
    if request.launcher is not None:
        check_launcher(request.launcher)
    model, cluster = _model_and_cluster(request)
    launcher = request.launcher or first_launcher(model)
    if request.stack is not None and request.stack not in framework_names():
        raise UnknownNameError.among("/stack", request.stack, framework_names())
    priced_as = framework_of(request.stack or launcher)
    with_options(framework_facts(priced_as), request.workload.framework_options)
    able = launcher_capabilities(launcher)
    workload = _workload(request.workload, model, able)
    problem = Problem(
        model=model,
        cluster=cluster,
        workload=with_recipe(workload, workload.precision, able),
        launcher=launcher,
        options=_options(request),
        profile=request.profile,
        stack=request.stack,
    )
    try:
        check_limits(problem)
    except InvalidProblemError as fault:
        raise _named_by_precision(fault, request.workload) from None
    if request.search.baseline is None:
        return problem
    baseline = completed(request.search.baseline, problem, at=("search", "baseline"))
    return replace(problem, options=replace(problem.options, baseline=baseline))


def _without_ramp(raw: Mapping[str, object]) -> dict[str, object]:
    """Drop the empty batch ramp that requests had before ramps became a matter of `meshwright predict`."""
    workload = raw.get("workload")
    if not isinstance(workload, dict) or "batch_ramp" not in workload:
        return dict(raw)
    if workload["batch_ramp"]:
        raise InvalidProblemError.of(
            "/workload/batch_ramp",
            "a plan has one batch",
            allowed="no batch_ramp: plan for the full batch; `meshwright predict` takes any other",
        )
    kept = {name: value for name, value in workload.items() if name != "batch_ramp"}
    return {**raw, "workload": kept}


def _named_by_precision(fault: InvalidProblemError, request: WorkloadRequest) -> InvalidProblemError:
    """Return a fault of a recipe that the request states as its precision, with a pointer to that."""
    at = "/workload/framework_options/precision_recipe"
    if request.precision not in FORMATS or "precision_recipe" in request.framework_options:
        return fault
    errors = []
    for one in fault.errors:
        others = [word for word in (one.allowed or "").split(", ") if word in FORMATS]
        named = replace(
            one, pointer="/workload/precision", allowed=", ".join(["bf16", "fp8", *others]), nearest="fp8"
        )
        errors.append(named if one.pointer == at else one)
    return type(fault)(errors)


def problem_to_mapping(problem: Problem) -> dict[str, object]:
    """Return the canonical request of ``problem``: complete, in a fixed order, of plain JSON values."""
    workload, options = problem.workload, problem.options
    given = {} if problem.profile is None else {"profile": problem.profile}
    split = {"stage_layers": list(options.stage_layers)} if options.stage_layers else {}
    return {
        "model": dict(model_to_mapping(problem.model)),
        "cluster": dict(cluster_to_mapping(problem.cluster)),
        "workload": {
            "global_batch_size": batches_to_json(problem),
            "seq_length": workload.seq_length,
            "precision": workload.precision,
            "optimizer": workload.optimizer,
            "optimizer_rank": workload.optimizer_rank,
            "total_tokens": options.total_tokens,
            "lora_rank": workload.lora_rank,
            "lora_targets": list(workload.lora_targets),
            **({"base_precision": workload.base_precision} if workload.base_precision != "bf16" else {}),
            **({"trained_modules": list(workload.trained_modules)} if workload.trained_modules else {}),
            "framework_options": dict(sorted(workload.framework_options.items())),
            **({} if workload.lengths is None else {"lengths": workload.lengths.to_mapping()}),
        },
        "launcher": problem.launcher,
        **({} if problem.stack is None else {"stack": problem.stack}),
        "search": {
            "top_k": options.top_k,
            "certify": options.certify,
            "time_limit_s": options.time_limit_s,
            "seed": options.seed,
            "objective": options.objective,
            "max_out_of_memory_probability": options.max_out_of_memory_probability,
            "pin": dict(sorted({**options.pin, **split}.items())),
            "allow": list(options.allow),
            "forbid": {name: list(values) for name, values in sorted(options.forbid.items())},
            "bounds": {name: list(limits) for name, limits in sorted(options.bounds.items())},
            "constraints": list(options.constraints),
            **run_to_mapping(options),
        },
        **given,
    }


def digest_of(problem: Problem) -> str:
    """Return SHA-256, in hex, of the canonical request as compact JSON with sorted keys."""
    canonical = problem_to_mapping(problem)
    text = json.dumps(canonical, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _model_and_cluster(request: ProblemRequest) -> tuple[ModelSpec, ClusterSpec]:
    faults: list[FieldError] = []
    model: ModelSpec | None = None
    cluster: ClusterSpec | None = None
    try:
        model = model_from_mapping(request.model)
    except InvalidProblemError as fault:
        faults.extend(fault.errors)
    try:
        cluster = cluster_from_mapping(request.cluster)
    except InvalidProblemError as fault:
        faults.extend(fault.errors)
    if model is None or cluster is None:
        raise InvalidProblemError(faults)
    return model, cluster


def _workload(request: WorkloadRequest, model: ModelSpec, able: Capabilities) -> Workload:
    """Return the workload part; of a format in 8 or 4 bits by its name the recipe too."""
    precision, options = request.precision, request.framework_options
    if precision in FORMATS:
        if (stated := options.get("precision_recipe", precision)) != precision:
            message = f"{precision} contradicts workload.framework_options.precision_recipe = "
            message += shown(str(stated))
            allowed = f"fp8, or {precision} in both"
            raise InvalidProblemError.of("/workload/precision", message, allowed=allowed, nearest="fp8")
        precision, options = "fp8", {**options, "precision_recipe": precision}
    return Workload(
        global_batch_size=max(batches_of(request.global_batch_size)),
        seq_length=request.seq_length,
        precision=precision,
        optimizer=request.optimizer,
        optimizer_rank=request.optimizer_rank,
        lora_rank=request.lora_rank,
        lora_targets=usual_targets(model, able.adapters if request.lora_rank else ())
        if request.lora_targets is None
        else tuple(name for name in LORA_TARGETS if name in request.lora_targets),
        base_precision=request.base_precision,
        trained_modules=tuple(name for name in TRAINED_MODULES if name in request.trained_modules),
        framework_options=dict(sorted(options.items())),
        lengths=None
        if request.lengths is None
        else lengths_from_mapping(request.lengths, ("workload", "lengths")),
    )


def _options(whole: ProblemRequest) -> SearchOptions:
    request = whole.search
    return SearchOptions(
        top_k=request.top_k,
        diverse=request.diverse,
        certify=request.certify,
        time_limit_s=request.time_limit_s,
        seed=request.seed,
        objective=request.objective,
        gpus=request.gpus,
        pareto=request.pareto,
        num_nodes=counts_of(request.num_nodes),
        reserve_nodes=request.reserve_nodes,
        batch_sizes=batches_of(whole.workload.global_batch_size)[:-1],
        total_tokens=whole.workload.total_tokens,
        deadline_days=request.deadline_days,
        gpu_hour_price=request.gpu_hour_price,
        reliability=Reliability(**request.reliability.model_dump()),
        max_out_of_memory_probability=request.max_out_of_memory_probability,
        pin={name: value for name, value in sorted(request.pin.items()) if not isinstance(value, list)},
        stage_layers=_split(request),
        allow=tuple(name for name in ALLOWED if name in request.allow),
        forbid={
            name: tuple(sorted(set(values), key=lambda value: (type(value).__name__, value)))
            for name, values in sorted(request.forbid.items())
        },
        bounds={name: (low, high) for name, (low, high) in sorted(request.bounds.items())},
        constraints=tuple(dict.fromkeys(text.strip() for text in request.constraints)),
    )


def _split(request: SearchRequest) -> tuple[int, ...]:
    for name, value in request.pin.items():
        if isinstance(value, list) != (name == "stage_layers"):
            wanted = "a list of layers" if name == "stage_layers" else "one value"
            raise InvalidProblemError.of(pointer("search", "pin", name), f"must be {wanted}")
    found = request.pin.get("stage_layers", ())
    return tuple(found) if isinstance(found, list) else ()

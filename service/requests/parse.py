"""From a request to a Problem and back: parse, check, write down, and name by digest.

``parse_problem(problem_to_mapping(problem)) == problem`` for every problem; the mapping spells out the
model's and the cluster's figures, so that a stored problem does not change with the catalog.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache, partial
from typing import Any

from pydantic import ValidationError

from meshwright.profiles.adapters import (
    ALL_LINEAR,
    ATTENTION_TARGETS,
    BESIDE_LINEAR,
    LORA_TARGETS,
    TRAINED_MODULES,
    without_other_names,
)
from meshwright.profiles.capabilities import Capabilities, launcher_capabilities
from meshwright.profiles.cluster import ClusterSpec, Reliability
from meshwright.profiles.documents import pointer, require_plain, shown
from meshwright.profiles.errors import FieldError, InvalidProblemError, UnknownNameError, faults_as
from meshwright.profiles.frameworks import FORMATS, framework_facts, framework_names, with_options
from meshwright.profiles.inline import cluster_from_mapping, cluster_to_mapping, model_from_mapping
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.model_shapes import model_to_mapping
from meshwright.profiles.optimizers import OPTIMIZERS
from meshwright.profiles.profile import framework_of
from meshwright.profiles.sequences import SequenceLengths, lengths_from_mapping
from meshwright.profiles.towers import FROZEN_PARTS
from meshwright.service.requests.checks import (
    check_launcher,
    check_limits,
    missing_images,
    passing,
    with_every_reason,
    with_other_launchers,
)
from meshwright.service.requests.configuration import completed
from meshwright.service.requests.fields import FIELDS, POST_TRAINING, RequestField
from meshwright.service.requests.parts import (
    as_written,
    batches_of,
    batches_to_json,
    counts_of,
    is_post_training,
    named_parts,
    request_written_out,
    with_open_nodes,
    without_schema,
)
from meshwright.service.requests.schema import ProblemRequest, field_errors, with_range, with_usual_words
from meshwright.solver.configuration import SHORT_NAMES, VARIABLES
from meshwright.solver.problem import ALLOWED, Problem, SearchOptions, Workload
from meshwright.solver.space.launcher_choice import chosen_launcher, started_otherwise
from meshwright.solver.space.launcher_rules import with_recipe


def parse_problem(raw: Mapping[str, object]) -> Problem:
    """Return the Problem that a request (design of the API, and of problem files) describes.

    Raises:
        InvalidProblemError: with one FieldError per fault, as JSON pointers into ``raw``.
    """
    if is_post_training(raw):
        raise InvalidProblemError.of(
            "/kind",
            f"{POST_TRAINING} is a question of its own",
            allowed="meshwright plan FILE, or a job of meshwright fleet",
        )
    with faults_as(with_range):
        plain = with_usual_words(named_parts(without_schema(require_plain(raw))))
    try:
        return _parsed(request_written_out(plain))
    except InvalidProblemError as fault:
        raise as_written(fault, plain) from None


def _parsed(raw: Mapping[str, object]) -> Problem:
    try:
        request: Any = ProblemRequest.model_validate(with_open_nodes(_without_ramp(raw)))
    except ValidationError as fault:
        raise InvalidProblemError(field_errors(fault)) from None
    if request.launcher is not None:
        check_launcher(request.launcher)
    model, cluster = _model_and_cluster(request.model, request.cluster)
    request, cluster = _with_usual_precision(request, cluster)
    if request.stack is not None and request.stack not in framework_names():
        raise UnknownNameError.among("/stack", request.stack, framework_names())
    if request.launcher is None and request.search.allow:
        request, cluster = _with_launcher_of_question(request, model, cluster)
    problem = _under_launcher(request, partial(_under, request, model, cluster))
    if request.search.baseline is None:
        return problem
    return replace(
        problem,
        options=replace(
            problem.options, baseline=completed(request.search.baseline, problem, at=("search", "baseline"))
        ),
    )


def _under_launcher(request: Any, under: Callable[[str], Problem]) -> Problem:  # noqa: ANN401 - a ProblemRequest
    """Return the checked question under its launcher, or under the default one."""
    problem = under(request.launcher or "any")
    choice = None if request.launcher else chosen_launcher(problem)
    launcher = choice.launcher if choice else started_otherwise(problem)
    problem = problem if launcher == problem.launcher else under(launcher)
    with_options(
        framework_facts(framework_of(request.stack or launcher)), request.workload.framework_options
    )
    try:
        check_limits(problem)
    except InvalidProblemError as fault:
        named = _named_by_precision(fault, request.workload)
        if choice is None:
            raise with_other_launchers(named, launcher, under) from None
        able = tuple(passing(under))
        if not able:
            raise with_every_reason(named, choice) from None
        from meshwright.solver.planner.least_memory import first_with_room  # noqa: PLC0415 - a start loads no search

        return under(first_with_room(under("any"), able))
    return problem if choice is None else _with_room(problem, under)


def _with_launcher_of_question(
    request: Any,  # noqa: ANN401 - a ProblemRequest
    model: ModelSpec,
    cluster: ClusterSpec,
) -> tuple[Any, ClusterSpec]:
    """Return a request under the launcher that it has without permissions, so that none makes it slower.

    What that launcher has not is left out, with a warning. Where nothing fits without permissions, or no
    launcher has them, the request stays as it is.
    """
    from meshwright.solver.planner.least_memory import may_have_room  # noqa: PLC0415 - a start loads no search

    def allowing(words: Sequence[str]) -> Any:  # noqa: ANN401 - a ProblemRequest
        return request.model_copy(update={"search": request.search.model_copy(update={"allow": [*words]})})

    def is_able(words: Sequence[str]) -> bool:
        return launcher in passing(partial(_under, allowing(words), model, cluster))

    plain = allowing([])
    try:
        problem = _under_launcher(plain, partial(_under, plain, model, cluster))
    except InvalidProblemError:
        return request, cluster
    launcher, words = problem.launcher, request.search.allow
    if launcher == "none" or not may_have_room(problem):
        return request, cluster
    able = list(passing(partial(_under, request, model, cluster)))
    kept = words if launcher in able else [word for word in words if is_able([word])]
    if not able or (kept != words and not is_able(kept)):
        return request, cluster
    lacking = _optimizers_lacking(problem, launcher, words)  # they may stay: no search tries them there
    lost, said = [word for word in words if word not in kept or word in lacking], list[str]()
    if lost:
        other = next((name for name in able if not _optimizers_lacking(problem, name, lost)), None)
        has = f": --launcher {other} has" if other else ""
        said.append(f"{launcher} has no {', '.join(lost)}, which the request allows{has}")
    return (
        allowing(kept).model_copy(update={"launcher": launcher}),
        replace(cluster, warnings=(*cluster.warnings, *said)),
    )


def _optimizers_lacking(problem: Problem, launcher: str, words: Sequence[str]) -> set[str]:
    able = launcher_capabilities(launcher)
    known = (able.adapter_optimizers if problem.workload.lora_rank else ()) or able.optimizers
    return {word for word in words if word in OPTIMIZERS and word not in known}


def _with_usual_precision(request: Any, cluster: ClusterSpec) -> tuple[Any, ClusterSpec]:  # noqa: ANN401 - a ProblemRequest
    """Return a request that states no precision with the one that all of its GPUs have, and say so."""
    usual = cluster.usual_precision
    if "precision" in request.workload.model_fields_set or usual == request.workload.precision:
        return request, cluster
    if request.launcher and usual not in launcher_capabilities(request.launcher).precisions:
        return request, cluster
    wanted = request.workload.precision
    lacking = next(group.gpu for group in cluster.groups if wanted not in group.gpu.peak_flops)
    said = f"workload.precision: {usual}, for {lacking.display_name} has no {wanted}"
    workload = request.workload.model_copy(update={"precision": usual})
    return (
        request.model_copy(update={"workload": workload}),
        replace(cluster, warnings=(*cluster.warnings, said)),
    )


def _with_room(problem: Problem, under: Callable[[str], Problem]) -> Problem:
    """Return the question under its default launcher, or under one that it fits where that has no room."""
    from meshwright.solver.planner.least_memory import default_launcher  # noqa: PLC0415 - a start loads no search

    choice = default_launcher(under("any"))
    if choice.launcher == problem.launcher:
        return problem
    other = under(choice.launcher)
    try:
        check_limits(other)
    except InvalidProblemError:
        return problem
    return other


def _under(request: Any, model: ModelSpec, cluster: ClusterSpec, launcher: str) -> Problem:  # noqa: ANN401 - a ProblemRequest
    """Return what a request asks of one launcher, before it is checked."""
    able = launcher_capabilities(launcher)
    asked, values = Asked(request, model, able), dict[str, Any]()
    for row, meaning in _meanings():
        if row.section:
            given = getattr(getattr(request, row.section), row.name)
            values |= {row.name: given} if meaning.read is None else meaning.read(given, asked)
    workload = Workload(**{name: value for name, value in values.items() if name in _OF_WORKLOAD})
    return Problem(
        model=model,
        cluster=cluster,
        workload=with_recipe(workload, workload.precision, able),
        launcher=launcher,
        options=SearchOptions(**{name: one for name, one in values.items() if name not in _OF_WORKLOAD}),
        profile=request.profile,
        stack=request.stack,
    )


def _without_ramp(raw: Mapping[str, object]) -> dict[str, object]:
    """Drop the empty batch ramp that requests had before ramps became a matter of `meshwright predict`."""
    workload = raw.get("workload")
    if not isinstance(workload, dict) or "batch_ramp" not in workload:
        return dict(raw)
    if workload["batch_ramp"]:
        raise InvalidProblemError.of(
            "/workload/batch_ramp",
            "a plan has one batch",
            allowed="no batch_ramp: plan for the full batch. For other batches, use `meshwright predict`",
        )
    return {**raw, "workload": {name: value for name, value in workload.items() if name != "batch_ramp"}}


def _named_by_precision(fault: InvalidProblemError, workload: Any) -> InvalidProblemError:  # noqa: ANN401 - a WorkloadRequest
    """Return a fault of a recipe that the request states as its precision, with a pointer to that."""
    at = "/workload/framework_options/precision_recipe"
    if workload.precision not in FORMATS or "precision_recipe" in workload.framework_options:
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
    found: dict[str, Any] = {}
    for row, meaning in _meanings():
        value = {} if row.path in _SECTIONS else meaning.written(row, problem)
        if not (row.sparse and value == row.default):
            (found[row.section] if row.section else found)[row.name] = value
    return found


def digest_of(problem: Problem) -> str:
    """Return SHA-256, in hex, of the canonical request without warnings, compact JSON with sorted keys."""
    canonical = problem_to_mapping(replace(problem, cluster=replace(problem.cluster, warnings=())))
    return hashlib.sha256(
        json.dumps(canonical, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    ).hexdigest()


def _model_and_cluster(
    model_given: Mapping[str, object], cluster_given: Mapping[str, object]
) -> tuple[ModelSpec, ClusterSpec]:
    faults: list[FieldError] = []
    model: ModelSpec | None = None
    cluster: ClusterSpec | None = None
    try:
        model = model_from_mapping(model_given)
    except InvalidProblemError as fault:
        faults.extend(fault.errors)
    try:
        cluster = cluster_from_mapping(cluster_given)
    except InvalidProblemError as fault:
        faults.extend(fault.errors)
    if model is None or cluster is None:
        raise InvalidProblemError(faults)
    return model, cluster


# --------------------------------------------------------------------------------------------------
# To and from the problem: a field is the attribute of its name, unless a Meaning converts it.


_OF_WORKLOAD = frozenset(one.name for one in fields(Workload))
_SECTIONS = ("workload", "search")


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, and what the meaning of its fields depends on."""

    request: Any
    model: ModelSpec
    able: Capabilities


@dataclass(frozen=True, slots=True)
class Meaning:
    """How a field becomes attributes of the Workload or the SearchOptions, and is read back."""

    read: Callable[[Any, Asked], Mapping[str, object]] | None = None  # attributes by name
    write: Callable[[Problem], object] | None = None  # a plain JSON value

    def written(self, row: RequestField, problem: Problem) -> object:
        """Return the value of the canonical request."""
        if self.write is not None:
            return self.write(problem)
        of_section = problem.workload if row.name in _OF_WORKLOAD else problem.options
        value = getattr(of_section if row.section else problem, row.name)
        return list(value) if isinstance(value, tuple) else value


_ITSELF = Meaning()


@cache
def _meanings() -> tuple[tuple[RequestField, Meaning], ...]:
    """Return the fields of a request, each with its meaning."""
    return tuple((row, MEANINGS.get(row.path, _ITSELF)) for row in FIELDS if row.type)


def _batches(given: Any, _asked: Asked) -> dict[str, object]:  # noqa: ANN401 - of a request
    *smaller, largest = batches_of(given)
    return {"global_batch_size": largest, "batch_sizes": tuple(smaller)}


def _precision(precision: str, asked: Asked) -> dict[str, object]:
    """Return the precision; of a format in 8 or 4 bits by its name that is fp8, with its recipe."""
    if precision not in FORMATS:
        return {"precision": precision}
    stated = asked.request.workload.framework_options.get("precision_recipe", precision)
    if stated != precision:
        raise InvalidProblemError.of(
            "/workload/precision",
            f"{precision} contradicts workload.framework_options.precision_recipe = {shown(str(stated))}",
            allowed=f"fp8, or {precision} in both",
            nearest="fp8",
        )
    return {"precision": "fp8"}


def _framework_options(stated: Mapping[str, object], asked: Asked) -> dict[str, object]:
    precision = asked.request.workload.precision
    recipe = {"precision_recipe": precision} if precision in FORMATS else {}
    return {"framework_options": dict(sorted({**stated, **recipe}.items()))}


def _lora_targets(named: Sequence[str] | None, asked: Asked) -> dict[str, object]:
    if "language" in asked.request.workload.frozen and not asked.request.workload.lora_rank:
        return {"lora_targets": ()}
    if not asked.request.workload.lora_rank and named in (None, [*ALL_LINEAR]):
        return {"lora_targets": ATTENTION_TARGETS}  # of no meaning
    if named is None:
        return {"lora_targets": asked.able.default_targets(asked.model)}
    if {*ALL_LINEAR} & {*named}:  # of the language model; further names are not in it
        every = (*ALL_LINEAR, *(name for name in BESIDE_LINEAR if name in named))
        any_launcher = asked.able.launcher == "any"
        return {"lora_targets": every if any_launcher else asked.able.targets_of(asked.model, every)}
    targets = tuple(name for name in LORA_TARGETS if name in named)
    return {"lora_targets": without_other_names(asked.model, targets, asked.able.adapters)}


def _images_per_sample(given: float | None, asked: Asked) -> dict[str, object]:
    """Return the images of a sequence: a model with a tower must state them, with all that follows.

    Raises:
        InvalidProblemError: they are not stated; names every fact of images that is missing.
    """
    tower = asked.model.tower
    if given is None and tower is not None:
        stated = asked.request.workload.image_tokens is not None
        raise InvalidProblemError(missing_images(asked.model, tokens_stated=stated))
    return {"images_per_sample": given or 0.0}


def _images_to_json(problem: Problem) -> object:
    return None if problem.model.tower is None else problem.workload.images_per_sample


def _image_tokens(given: int | Mapping[str, int] | None, asked: Asked) -> dict[str, object]:
    """Return the tokens of images as a distribution: of one size, or as stated."""
    tower, images = asked.model.tower, asked.request.workload.images_per_sample
    if given is None:
        given = tower.tile_tokens if tower and images else 0
    if isinstance(given, Mapping):
        at = "workload", "image_tokens"
        with faults_as(lambda fault: replace(fault, pointer=fault.pointer.replace("/percentiles", "", 1))):
            return {"image_tokens": lengths_from_mapping({"percentiles": given}, at)}
    return {"image_tokens": SequenceLengths.equal(given) if given else None}


def stated_sizes(tokens: SequenceLengths | None) -> object:
    """Return tokens of images as a request states them: one number, or percentiles."""
    if tokens is None:
        return None
    sizes = {size for _, size in tokens.percentiles}
    return sizes.pop() if len(sizes) == 1 else tokens.to_mapping()["percentiles"]


def _pin(given: Mapping[str, object], _asked: Asked) -> dict[str, object]:
    for name, value in given.items():
        if isinstance(value, list) != (name == "stage_layers"):
            wanted = "a list of layers" if name == "stage_layers" else "one value"
            raise InvalidProblemError.of(pointer("search", "pin", name), f"must be {wanted}")
    split = given.get("stage_layers", ())
    return {
        "pin": {name: value for name, value in sorted(given.items()) if not isinstance(value, list)},
        "stage_layers": tuple(split) if isinstance(split, list) else (),
    }


def _differ(given: Sequence[str], _asked: Asked) -> dict[str, object]:
    """Return the names of variables, long for short.

    Raises:
        UnknownNameError: one is none of them.
    """
    long = {short: name for name, short in SHORT_NAMES.items()}
    named = [one.strip() for text in given for one in text.split(",")]
    for at, name in enumerate(named):
        if name not in long and name not in VARIABLES:
            raise UnknownNameError.among(pointer("search", "differ", at), name, [*VARIABLES, *long])
    return {"differ": tuple(dict.fromkeys(long.get(name, name) for name in named))}


def _pin_to_json(problem: Problem) -> dict[str, object]:
    options = problem.options
    split = {"stage_layers": list(options.stage_layers)} if options.stage_layers else {}
    return dict(sorted({**options.pin, **split}.items()))


def _forbid(given: Mapping[str, Sequence[int | str]], _asked: Asked) -> dict[str, object]:
    def in_order(values: Sequence[int | str]) -> tuple[int | str, ...]:
        return tuple(sorted(set(values), key=lambda value: (type(value).__name__, value)))

    return {"forbid": {name: in_order(values) for name, values in sorted(given.items())}}


MEANINGS: Mapping[str, Meaning] = {
    "model": Meaning(write=lambda problem: dict(model_to_mapping(problem.model))),
    "cluster": Meaning(write=lambda problem: dict(cluster_to_mapping(problem.cluster))),
    "workload.global_batch_size": Meaning(_batches, batches_to_json),
    "workload.precision": Meaning(_precision),
    "workload.lora_targets": Meaning(_lora_targets),
    "workload.trained_modules": Meaning(
        lambda given, _: {"trained_modules": tuple(name for name in TRAINED_MODULES if name in given)}
    ),
    "workload.trained_layers": Meaning(
        lambda given, _: {"trained_layers": given or ""},
        lambda problem: problem.workload.trained_layers or None,
    ),
    "workload.lengths": Meaning(
        lambda given, _: {
            "lengths": None if given is None else lengths_from_mapping(given, ("workload", "lengths"))
        },
        lambda problem: problem.workload.lengths and problem.workload.lengths.to_mapping(),
    ),
    "workload.images_per_sample": Meaning(_images_per_sample, _images_to_json),
    "workload.image_tokens": Meaning(
        _image_tokens, lambda problem: stated_sizes(problem.workload.image_tokens)
    ),
    "workload.frozen": Meaning(
        lambda given, _: {"frozen": tuple(part for part in FROZEN_PARTS if part in given)}
    ),
    "workload.framework_options": Meaning(
        _framework_options, lambda problem: dict(sorted(problem.workload.framework_options.items()))
    ),
    # Completed with the problem that it is part of, see ``_parsed``.
    "search.baseline": Meaning(
        lambda _given, _: {},
        lambda problem: (
            problem.options.baseline and json.loads(json.dumps(asdict(problem.options.baseline)))
        ),
    ),
    "search.num_nodes": Meaning(lambda given, _: {"num_nodes": counts_of(given)}),
    "search.reliability": Meaning(
        lambda given, _: {"reliability": Reliability(**given.model_dump())},
        lambda problem: asdict(problem.options.reliability),
    ),
    "search.pin": Meaning(_pin, _pin_to_json),
    "search.bounds": Meaning(
        lambda given, _: {"bounds": {name: tuple(ends) for name, ends in sorted(given.items())}},
        lambda problem: {name: list(ends) for name, ends in sorted(problem.options.bounds.items())},
    ),
    "search.forbid": Meaning(
        _forbid,
        lambda problem: {name: list(values) for name, values in sorted(problem.options.forbid.items())},
    ),
    "search.allow": Meaning(lambda given, _: {"allow": tuple(name for name in ALLOWED if name in given)}),
    "search.differ": Meaning(_differ),
    "search.constraints": Meaning(
        lambda given, _: {"constraints": tuple(dict.fromkeys(text.strip() for text in given))}
    ),
}

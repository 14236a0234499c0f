"""The parts of a request that look beyond one step: numbers of nodes, the whole run, one's own plan."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from meshwright.profiles.capabilities import (
    launchers_placing_stages,
)
from meshwright.profiles.cluster import LEAST_POWER_SHARE, MAX_NODES, Reliability, power_of
from meshwright.profiles.documents import pointer, without_version
from meshwright.profiles.errors import FieldError, InvalidProblemError
from meshwright.profiles.switches import switches
from meshwright.service.requests.fields import MAX_BATCH, POST_TRAINING
from meshwright.solver.configuration import SHORT_NAMES, VARIABLES, WORDS
from meshwright.solver.problem import Problem
from meshwright.solver.space.placed_limits import placed_faults

# --------------------------------------------------------------------------------------------------
# What every part of a request has in common.


class Part(BaseModel):
    """Strict base class: a bool is not an integer, unknown fields are refused, numbers are finite."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)


SCHEMA = "$schema"  # of a problem or fleet file: where an editor finds its schema


def without_schema(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a document without the address of its schema, which only editors read, and its version."""
    plain = without_version(raw)
    return {name: value for name, value in plain.items() if name != SCHEMA or not isinstance(value, str)}


def is_post_training(raw: Mapping[str, object]) -> bool:
    """Return whether a request asks for the roles of a post-training step."""
    return raw.get("kind") == POST_TRAINING


def named_parts(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a request with ``{"name": x}`` for a model or a cluster that is written as ``x``."""
    names = {part: {"name": raw[part]} for part in ("model", "cluster") if isinstance(raw.get(part), str)}
    return {**raw, **names} if names else raw


# --------------------------------------------------------------------------------------------------
# Short names of variables (``tp``, ``pp``, …) written out, wherever a request names variables.


# Other names by which people and tables call them.
_ALSO = {
    "recompute": "recompute_granularity", "sp": "sequence_parallel", "schedule": "pipeline_schedule",
    "gas": "num_microbatches",
}  # fmt: skip
LONG_NAMES: Mapping[str, str] = {**{short: name for name, short in SHORT_NAMES.items()}, **_ALSO}
# Parts of a request with variables as keys.
_PARTS = (("search", "pin"), ("search", "forbid"), ("search", "bounds"), ("search", "baseline"))


def written_out(raw: Mapping[str, Any], at: tuple[str, ...]) -> dict[str, Any]:
    """Return an object that has variables as keys, with all of them under their long names.

    Raises:
        InvalidProblemError: a variable is named twice, by both of its names.
    """
    found = set[str]()
    for name in sorted(raw, key=lambda name: name != long_name(name)):  # the long ones first
        long = long_name(name)
        if long in found:
            fault = f"{name} is {long}, which is given too"
            raise InvalidProblemError.of(pointer(*at, name), fault, allowed="one of them")
        found.add(long)
    return {long_name(name): _word_of(long_name(name), value) for name, value in raw.items()}


def long_name(name: str) -> str:
    """Return the long name of a variable: ``tp``, ``TP`` and ``tensor-parallel-size`` are one."""
    plain = name.lower().replace("-", "_")
    return LONG_NAMES.get(plain, plain if plain in VARIABLES else name)


_OFF = ("off", "no", "false", "–", "-")
_PARTS_OFFLOADED = {"params": "parameters", "param": "parameters", "weights": "parameters",
                    "optim": "optimizer", "activation": "activations"}  # fmt: skip


def _word_of(name: str, value: object) -> object:
    """Return a variable's word as it is listed: ``params+optimizer`` is ``optimizer+parameters``."""
    if isinstance(value, list):
        return [_word_of(name, one) for one in value]
    words = WORDS.get(name, ())
    if "none" in words and (value is False or str(value).lower() in _OFF):
        return "none"
    if not isinstance(value, str):
        return value
    same = _offloaded if name == "offload" else str
    return next((word for word in words if same(word) == same(value.lower())), value)


def _offloaded(word: str) -> frozenset[str]:
    parts = (part.strip().partition("@") for part in re.split(r"[+,]", word))
    return frozenset(_PARTS_OFFLOADED.get(what, what) + at + where for what, at, where in parts)


def request_written_out(raw: Mapping[str, object]) -> dict[str, object]:
    """Return a request with long names in all such parts; errors as ``written_out``."""
    found: dict[str, Any] = dict(raw)
    for (section, part), named in _parts_of(raw):
        found[section] = {**found[section], part: written_out(named, (section, part))}
    return found


def as_written(
    fault: InvalidProblemError, raw: Mapping[str, object], at: tuple[str, ...] = ()
) -> InvalidProblemError:
    """Return a fault of a written-out object, with pointers into the original ``raw``.

    ``at``: position of an object with variables as keys; else ``raw`` is a whole request.
    """
    moved = {
        pointer(*place, long_name(short)): pointer(*place, short)
        for place, named in ([(at, raw)] if at else _parts_of(raw))
        for short in named
        if short != long_name(short)
    }
    errors = []
    for one in fault.errors:
        long = next((long for long in moved if f"{one.pointer}/".startswith(f"{long}/")), "")
        errors.append(replace(one, pointer=moved.get(long, "") + one.pointer.removeprefix(long)))
    return type(fault)(errors)


def _parts_of(raw: Mapping[str, object]) -> Iterator[tuple[tuple[str, str], Mapping[str, Any]]]:
    """Yield the parts of a request that have variables as keys, each with its place."""
    for section, part in _PARTS:
        whole = raw.get(section)
        named = whole.get(part) if isinstance(whole, Mapping) else None
        if isinstance(named, Mapping):
            yield (section, part), named


# --------------------------------------------------------------------------------------------------
# One global batch, a list of them, or a range.


MAX_SIZES = 16
Count = Annotated[int, Field(ge=1, le=MAX_BATCH)]


class BatchRange(Part):
    """``min``, twice, four times … as much up to ``max``, and ``max`` itself."""

    min: Count
    max: Count


Batches = Count | Annotated[list[Count], Field(min_length=1, max_length=MAX_SIZES)] | BatchRange


def batches_of(given: int | list[int] | BatchRange) -> tuple[int, ...]:
    """Return sequences per optimizer step, smallest first.

    Raises:
        InvalidProblemError: a range holds nothing.
    """
    if isinstance(given, int):
        return (given,)
    if isinstance(given, list):
        return tuple(sorted(set(given)))
    if given.min > given.max:
        raise InvalidProblemError.of(
            pointer("workload", "global_batch_size"),
            "the range is empty",
            nearest=f"{given.max} to {given.min}",
        )
    doubled = (given.min << times for times in range((given.max // given.min).bit_length()))
    return tuple(sorted({*doubled, given.max}))


def batches_to_json(problem: Problem) -> int | list[int]:
    """Return the batches of the canonical request."""
    largest = problem.workload.global_batch_size
    return [*problem.options.batch_sizes, largest] if problem.options.batch_sizes else largest


MAX_COUNTS = 64  # numbers of nodes that are ranked together
MAX_SPAN = 4096  # numbers of nodes that are tried one after the other
Nodes = Annotated[int, Field(ge=1, le=MAX_NODES)]


class NodeRange(Part):
    """Every number of nodes from ``min`` to ``max``."""

    min: Nodes = 1
    max: Nodes


class ReliabilityRequest(Part):
    """Interruptions of a long run; a part left out is a public source's figure."""

    gpu_hours_per_interruption: float = Field(default=Reliability().gpu_hours_per_interruption, gt=0)
    restart_s: float = Field(default=Reliability().restart_s, ge=0)
    checkpoint_bytes_per_s_per_gpu: float = Field(
        default=Reliability().checkpoint_bytes_per_s_per_gpu, gt=0
    )


NodeCounts = Annotated[list[Nodes], Field(max_length=MAX_SPAN)] | NodeRange


def with_open_nodes(raw: Mapping[str, object]) -> dict[str, object]:
    """Return a list or range in ``cluster.num_nodes`` as the largest, and as ``search.num_nodes``."""
    cluster, search = raw.get("cluster"), raw.get("search", {})
    if not isinstance(cluster, dict) or not isinstance(search, dict):
        return dict(raw)
    for part in [cluster, *(group for group in _groups(cluster) if len(_groups(cluster)) == 1)]:
        counts = part.get("num_nodes")
        most = _most(counts)
        if most is not None and part.get("num_gpus") is not None:
            raise InvalidProblemError.of(
                "/cluster/num_nodes",
                f"{part['num_gpus']} GPUs are one cluster, not several numbers of nodes",
                allowed="one number of nodes, or the nodes without num_gpus",
                nearest=str(most),
            )
        if most is not None:
            smaller = {**part, "num_nodes": most}
            return {
                **raw,
                "cluster": smaller if part is cluster else {**cluster, "groups": [smaller]},
                "search": {**search, "num_nodes": counts},
            }
    return dict(raw)


def _groups(cluster: Mapping[str, Any]) -> list[dict[str, Any]]:
    groups = cluster.get("groups")
    return [group for group in groups if isinstance(group, dict)] if isinstance(groups, list) else []


def _most(counts: object) -> int | None:
    """Return the largest of several node counts; None if there is one, or none that can be read."""
    values: list[object] = []
    if isinstance(counts, dict):
        values = [counts.get("max")]
    elif isinstance(counts, list):
        values = counts
    whole = [value for value in values if type(value) is int]
    return max(whole, default=None) if len(whole) == len(values) else None


def counts_of(given: list[int] | NodeRange | None) -> tuple[int, ...]:
    """Return the numbers of nodes, smallest first; none: all nodes.

    Raises:
        InvalidProblemError: a range is too wide.
    """
    if given is None:
        return ()
    if isinstance(given, NodeRange) and given.max - given.min >= MAX_SPAN:
        raise InvalidProblemError.of(
            pointer("search", "num_nodes"), "the range is too wide", allowed=f"up to {MAX_SPAN} numbers"
        )
    if isinstance(given, NodeRange) and given.min > given.max:
        at, ends = pointer("search", "num_nodes"), f"{given.min} to {given.max}"
        raise InvalidProblemError.of(at, f"{ends} is empty", nearest=f"{given.max} to {given.min}")
    return tuple(sorted(set(range(given.min, given.max + 1) if isinstance(given, NodeRange) else given)))


def unplaced(problem: Problem, at: str, what: str = "") -> FieldError | None:
    """Return the fault of a request that places stages where they cannot be; None where they can."""
    if problem.places_stages:
        return None
    able = [f"launcher {name}" for name in launchers_placing_stages()]
    if problem.cluster.is_homogeneous:
        message = (
            "stages can be placed only on different node groups, but here all nodes are "
            f"{problem.cluster.group_names[0]}"
        )
        return FieldError(
            pointer=at, message=what + message, allowed=f"different node groups, under {' or '.join(able)}"
        )
    message = f"{what}{problem.launcher} does not place stages on node groups"
    return FieldError(pointer=at, message=message, allowed=", ".join(able), nearest=able[0])


def run_limits(problem: Problem) -> Iterator[FieldError]:
    """Check that the numbers of nodes, the deadline and the objective go together, and with the cluster."""
    yield from _node_faults(problem)
    yield from placed_faults(problem)
    options = problem.options
    if options.deadline_days is not None and options.total_tokens is None:
        yield FieldError(
            pointer=pointer("workload", "total_tokens"),
            message="is required for a deadline: the tokens of the whole run",
        )
    if options.grid_co2_g_per_kwh is not None and options.total_tokens is None:
        yield FieldError(
            pointer=pointer("workload", "total_tokens"),
            message="is required for CO2: the tokens of the whole run",
        )
    if options.objective == "robust" and options.batch_sizes:
        message = "plans of several batches are not ranked by the quantile of a step"
        yield FieldError(
            pointer=pointer("search", "objective"), message=message, allowed="one global_batch_size",
            nearest="step_time",
        )  # fmt: skip
    powered = (options.grid_co2_g_per_kwh, options.max_power_kw)
    yield from _limit_faults(problem)
    asked = options.objective == "energy_per_token" or "power_limit_w" in options.allow
    if asked or any(value is not None for value in powered):
        yield from _power_faults(problem)


def _limit_faults(problem: Problem) -> Iterator[FieldError]:
    """Refuse a power limit that a GPU of the cluster does not take."""
    limit_w, name = problem.power_limit_w, "power_limit_w"
    for gpu in {group.gpu.slug: group.gpu for group in problem.cluster.groups}.values() if limit_w else ():
        most = gpu.power_watts
        least = LEAST_POWER_SHARE * (most or 0.0)
        if most is None or not least <= limit_w <= most:
            allowed = "0" if most is None else f"{least:g} to {most:g} W, or 0 for the GPU's own limit"
            lacks = " states no power_watts" if most is None else f": {limit_w:g} W is outside its range"
            yield FieldError(
                pointer=pointer("workload", "framework_options", name), message=gpu.slug + lacks,
                allowed=allowed, nearest="0" if most is None else f"{min(max(limit_w, least), most):g}",
            )  # fmt: skip


def _power_faults(problem: Problem) -> Iterator[FieldError]:
    draws_kw, gpus = list[float](), [group.gpu for group in problem.cluster.groups]
    limits_w = [problem.power_limit_w]
    if "power_limit_w" in problem.options.allow:
        settings = switches()["power_limit_w"].settings_of("none", problem.model, gpus)
        limits_w = [float(one.options["power_limit_w"]) for one in settings]
    for number, gpu in enumerate(gpus):
        if gpu.power_watts:
            draws_kw += [power_of(gpu, limit_w).busy_w / 1e3 for limit_w in limits_w]
        else:
            yield FieldError(
                pointer=pointer("cluster", "groups", number, "gpu"),
                message=f"{gpu.slug} states no power_watts, which the request needs",
                allowed="a GPU with power_watts",
            )
    most_kw, least_kw = problem.options.max_power_kw, min(draws_kw, default=0.0)
    if most_kw is not None and most_kw < least_kw:
        yield FieldError(
            pointer=pointer("search", "max_power_kw"),
            message=f"{most_kw:g} kW is less than one GPU draws while it computes",
            allowed=f"at least {least_kw:g}",
            nearest=f"{least_kw:g}",
        )


def _node_faults(problem: Problem) -> Iterator[FieldError]:
    options, nodes = problem.options, problem.cluster.num_nodes
    if options.reserve_nodes >= nodes:
        at = pointer("search", "reserve_nodes")
        yield FieldError(pointer=at, message=f"{options.reserve_nodes} of {nodes} nodes are kept spare",
                         allowed=f"0 to {nodes - 1}", nearest=str(nodes - 1))  # fmt: skip
    named = {"num_nodes": bool(options.num_nodes), "reserve_nodes": options.reserve_nodes > 0,
             "gpus": options.gpus == "fewest"}  # fmt: skip
    at = "/search/num_nodes"
    if len(problem.cluster.groups) > 1:
        for name in (name for name, given in named.items() if given):
            yield FieldError(
                pointer=pointer("search", name), message="needs a cluster of one node group",
                allowed="all" if name == "gpus" else None, tip="--gpus all" if name == "gpus" else "",
            )  # fmt: skip
    if options.num_nodes and max(options.num_nodes) > nodes - options.reserve_nodes:
        left = nodes - options.reserve_nodes
        spare = f" ({options.reserve_nodes} of {nodes} are kept spare)" * (options.reserve_nodes > 0)
        yield FieldError(
            pointer=at, message=f"{max(options.num_nodes)} of {left} nodes{spare}", nearest=str(left)
        )
    if options.gpus == "all" and len(options.num_nodes) > MAX_COUNTS:
        yield FieldError(
            pointer=at,
            message=f"{len(options.num_nodes)} numbers of nodes are too many to rank together",
            allowed=f'up to {MAX_COUNTS}, or gpus = "fewest"',
        )

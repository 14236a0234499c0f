"""Reads a fleet: its cluster, and its jobs with their problems, steps, dates and limits.

Hours count from the beginning of the plan. A job's problem is one of ``meshwright plan`` without its
cluster, which is the fleet's: a search for a layout, or the roles of post-training.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from math import ceil, floor

from meshwright.profiles.cluster import ClusterSpec, NodeGroup, may_slow, power_of
from meshwright.profiles.documents import pointer, require_plain
from meshwright.profiles.errors import FieldError, InvalidProblemError
from meshwright.profiles.inline import cluster_from_mapping, cluster_to_mapping
from meshwright.profiles.reading import FieldReader
from meshwright.service.post_training.request import read_post_training
from meshwright.service.requests.parse import parse_problem
from meshwright.service.requests.parts import is_post_training, without_schema
from meshwright.solver.fleet.problem import (
    Fleet,
    FleetJob,
    NodeChoice,
    NodeKind,
    PlannedJob,
    faults_of,
    nodes_of,
    without,
)
from meshwright.solver.problem import Problem, batch_sizes

MAX_JOBS = 200
MAX_STEPS = 10**9
MAX_HOURS = 24.0 * 366
MAX_WEIGHT = 1000
MAX_KW, KW = 1e7, 1000
MAX_PRICE = 1e6  # of a node-hour
CENTS = 100  # prices are whole hundredths of the currency
_HOUR_MIN = 60
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
START_FILE = "start.sh"
_RESERVED = (START_FILE, "answer.json", "report.html")  # next to the folders of the jobs
_LAST_BEGIN = datetime(3000, 1, 1)  # noqa: DTZ001 - Slurm's --begin has no zone
# A job of a fleet is ranked by its step alone, on all of the nodes that it is given.
_SEARCH, _ROLES_SEARCH = {"top_k": 1, "certify": "none"}, {"top_k": 1}
OTHER_QUESTIONS = (
    "objective",
    "gpus",
    "num_nodes",
    "reserve_nodes",
    "deadline_days",
    "pareto",
    "baseline",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRequest:
    """A fleet, read."""

    name: str
    cluster: ClusterSpec
    fleet: Fleet
    problems: Mapping[str, PlannedJob]  # by job
    places: Mapping[str, str]  # pointers to the jobs
    priced: bool  # the cost is money, not node-hours
    begin: datetime | None = None
    running: frozenset[str] = frozenset()  # jobs that have begun: they are not started again
    left_out: Mapping[str, tuple[FieldError, ...]] = field(default_factory=dict)  # impossible jobs

    def at(self, job: str, name: str) -> str:
        """Return the pointer to a field of a job."""
        return f"{self.places[job]}/{name}"

    def without(self, faults: Mapping[str, tuple[FieldError, ...]]) -> FleetRequest:
        """Return the fleet without impossible jobs, and without those that wait for them."""
        fleet, followers = without(self.fleet, faults)
        more = {
            name: (FieldError(pointer=self.at(name, "after"), message="depends on a job that is left out"),)
            for name in followers
        }
        return replace(self, fleet=fleet, left_out={**self.left_out, **faults, **more})


Parse = Callable[[Mapping[str, object]], Problem]


def read_fleet(
    raw: Mapping[str, object], *, skip_impossible: bool = False, parse: Parse = parse_problem
) -> FleetRequest:
    """Return the fleet of a request.

    Args:
        raw: the request.
        skip_impossible: whether jobs at fault are left out, with those that wait for them.
        parse: reads a job's problem with its cluster.

    Raises:
        InvalidProblemError: with one FieldError per fault, as JSON pointers into ``raw``.
    """
    reader = FieldReader(without_schema(require_plain(raw)), "")
    cluster = _cluster(reader)
    name = reader.text("name", default=cluster.name)
    begin = _begin(reader)
    prices = _prices(reader, cluster)
    most_kw = reader.number("max_power_kw", low=0.001, high=MAX_KW) if reader.has("max_power_kw") else None
    jobs = reader.children("jobs", high=MAX_JOBS)
    if not jobs and not reader.faults:
        reader.fault("jobs", "must be a list of jobs", allowed=f"1 to {MAX_JOBS}")
    reader.refuse_unknown()
    reader.finish()
    kinds = tuple(
        _kind(kind, group, prices.get(kind, 1), {} if most_kw is None else _draws_w(group, kind))
        for kind, group in cluster.group_named.items()
    )  # fmt: skip
    read, faults = read_jobs(jobs, cluster, parse)
    most_w = None if most_kw is None else floor(most_kw * KW)
    fleet = Fleet(kinds=kinds, jobs=tuple(job for job, _ in read), most_w=most_w)
    for at, (own, planned) in enumerate(read):
        if most_w is not None and planned is not None and planned.training.power_limit_w:
            faults.setdefault(own.name, (_limited_itself(at, planned.training),))
    places = {job.name: pointer("jobs", at) for at, (job, _) in enumerate(read)}
    request = FleetRequest(
        name=name, cluster=cluster, fleet=fleet, places=places, priced=bool(prices), begin=begin,
        problems={job.name: planned for job, planned in read if planned is not None},
    )  # fmt: skip
    for job, errors in faults_of(fleet, request.at).items():
        faults.setdefault(job, errors)  # what follows from a field at fault misleads
    if faults and not skip_impossible:
        raise InvalidProblemError(dict.fromkeys(error for errors in faults.values() for error in errors))
    return request.without(faults) if faults else request


# Limits of a GPU that jobs may be set to under a shared limit of power, as shares of its own.
_LIMITS = (0.65, 0.5)


def _draws_w(group: NodeGroup, kind: str) -> dict[int, int]:
    """Return what the GPUs of a node draw while they compute, by the limit that they are set to.

    Raises:
        InvalidProblemError: their own limit is not known.
    """
    gpu = group.gpu
    if not gpu.power_watts:
        raise InvalidProblemError.of(
            "/max_power_kw", f"{kind} states no power_watts, which the limit needs", allowed="no such limit"
        )
    limits = [round(gpu.power_watts * share) for share in _LIMITS]
    able = [0, *(limit for limit in limits if may_slow(gpu, limit))]
    return {limit: ceil(group.gpus_per_node * power_of(gpu, limit).busy_w) for limit in able}


def _limited_itself(at: int, problem: Problem) -> FieldError:
    return FieldError(
        pointer=f"{pointer('jobs', at)}/problem/workload/framework_options/power_limit_w",
        message=f"{problem.power_limit_w:g}: with max_power_kw the fleet sets the limits of GPUs",
        allowed="no such option, or no max_power_kw",
    )


def _cluster(reader: FieldReader) -> ClusterSpec:
    raw = reader.value("cluster")
    if isinstance(raw, str):
        raw = {"name": raw}
    if not isinstance(raw, Mapping):
        raise InvalidProblemError.of(
            "/cluster", "is required", allowed="a name, or a cluster as in a problem"
        )
    cluster = cluster_from_mapping(raw)
    if cluster.differs:
        _require_switches(cluster.groups[0])
    return cluster


def _require_switches(group: NodeGroup) -> None:
    """Refuse links that differ otherwise than by one level of switches.

    Raises:
        InvalidProblemError: with the field, and what it may be.
    """
    links, at = group.links, "/cluster/groups/0/links"
    matrices = () if links is None else (("bytes_per_s", links.bytes_per_s), ("latency_s", links.latency_s))
    for name, matrix in matrices:
        if matrix:
            raise InvalidProblemError.of(
                f"{at}/{name}", "links of single pairs differ, but a fleet knows switches alone",
                allowed="levels: [{nodes: …, oversubscription: …}], or one network for all nodes",
            )  # fmt: skip
    if links is None or len(links.levels) > 1:
        raise InvalidProblemError.of(
            f"{at}/levels/1", "a fleet shares the uplinks of one level of switches",
            allowed="one level: that of the uplinks which are short",
        )  # fmt: skip


def _kind(name: str, group: NodeGroup, price: int, draws_w: Mapping[int, int]) -> NodeKind:
    """Return nodes of one kind, with their switches where uplinks are short."""
    kind = NodeKind(name=name, nodes=group.num_nodes, price=price, draws_w=draws_w)
    level = group.links.levels[0] if group.links is not None and group.links.levels else None
    if level is None or level.nodes >= group.num_nodes or level.oversubscription <= 1.0:
        return kind
    whole, rest = divmod(group.num_nodes, level.nodes)
    return replace(
        kind, switches=(level.nodes,) * whole + (rest,) * (rest > 0), switch_nodes=level.nodes,
        oversubscription=level.oversubscription,
    )  # fmt: skip


def _begin(reader: FieldReader) -> datetime | None:
    text = reader.text("begin", default="")
    if not text:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        reader.fault("begin", f"{text!r} is not a time", allowed="a time such as 2026-01-05T20:00")
        return None
    if found.tzinfo is not None:
        local = found.replace(tzinfo=None).isoformat(timespec="minutes")
        reader.fault(
            "begin",
            f"{text!r} has a time zone, which Slurm's --begin has not",
            allowed=f"a time of the cluster's clock, such as {local}",
        )
        return None
    if found >= _LAST_BEGIN:
        reader.fault("begin", f"{text!r} is too late", allowed="a time before the year 3000")
        return None
    return found


def _prices(reader: FieldReader, cluster: ClusterSpec) -> dict[str, int]:
    """Return the price of a node-hour by kind, in hundredths; none if no price is given."""
    if not reader.has("node_hour_price"):
        return {}
    kinds, low = list(cluster.group_named), 1 / CENTS
    if not isinstance(reader.value("node_hour_price"), Mapping):
        return dict.fromkeys(
            kinds, round(reader.number("node_hour_price", low=low, high=MAX_PRICE) * CENTS)
        )
    own = reader.child("node_hour_price")
    if own is None:
        return {}
    found = {kind: round(own.number(kind, low=low, high=MAX_PRICE) * CENTS) for kind in kinds}
    own.refuse_unknown()
    return found


Read = tuple[FleetJob, PlannedJob | None]


def read_jobs(
    readers: Sequence[FieldReader], cluster: ClusterSpec, parse: Parse
) -> tuple[list[Read], dict[str, tuple[FieldError, ...]]]:
    """Return all jobs, and the faults of each by its name.

    Raises:
        InvalidProblemError: a name is missing, not a name, or used twice.
    """
    found, faults = list[Read](), dict[str, tuple[FieldError, ...]]()
    for reader in readers:
        before = len(reader.faults)
        name = reader.text("name")
        if not _NAME.fullmatch(name):
            raise InvalidProblemError.of(
                f"{reader.pointer}/name",
                "is not a name",
                allowed="1 to 64 letters, digits, dots, dashes and underscores",
            )
        if name.lower() in _RESERVED:
            raise InvalidProblemError.of(
                f"{reader.pointer}/name",
                f"{name} is a file of the fleet's own folder",
                allowed="another name",
            )
        if any(job.name == name for job, _ in found):
            raise InvalidProblemError.of(f"{reader.pointer}/name", f"{name} is used twice")
        job = _job(reader, name)
        steps = reader.integer("steps", low=1, high=MAX_STEPS)
        own = list[FieldError]()
        planned = _planned(reader, _cluster_for(job, cluster), parse, steps, own)
        reader.refuse_unknown()
        own = [*reader.faults[before:], *own]
        del reader.faults[before:]
        if own:
            faults[name] = tuple(own)
        found.append((replace(job, places_roles=planned is not None and bool(planned.stated)), planned))
    return found, faults


def _job(reader: FieldReader, name: str) -> FleetJob:
    due = reader.number("due_hours", low=0.0, high=MAX_HOURS) if reader.has("due_hours") else None
    start = reader.number("start_hours", low=0.0, high=MAX_HOURS) if reader.has("start_hours") else None
    counts = _counts(reader)
    nodes = reader.optional_integer("nodes")
    if nodes and counts:
        reader.fault("node_counts", f"nodes is {nodes} already", allowed="nodes or node_counts, not both")
    return FleetJob(
        name=name,
        release_min=ceil(reader.number("release_hours", low=0.0, high=MAX_HOURS, default=0.0) * _HOUR_MIN),
        due_min=None if due is None else floor(due * _HOUR_MIN),
        weight=reader.integer("weight", high=MAX_WEIGHT, default=1),
        least_nodes=nodes or reader.integer("least_nodes", default=1),
        least_nodes_field="nodes" if nodes else "least_nodes",
        most_nodes=nodes or reader.optional_integer("most_nodes"),
        node_counts=(nodes,) if nodes else counts,
        after=_names(reader, "after"),
        never_with=_names(reader, "never_with"),
        as_many_nodes_as=reader.text("as_many_nodes_as") if reader.has("as_many_nodes_as") else None,
        kinds=_names(reader, "kinds"),
        start_min=None if start is None else ceil(start * _HOUR_MIN),
    )


def _counts(reader: FieldReader) -> tuple[int, ...]:
    if not reader.has("node_counts"):
        return ()
    values = reader.numbers("node_counts", low=1, high=10**6, most=64)
    if any(value != int(value) for value in values):
        reader.fault("node_counts", "must be whole numbers")
    return tuple(sorted({int(value) for value in values}))


def _names(reader: FieldReader, name: str) -> tuple[str, ...]:
    if not reader.has(name):
        return ()
    value = reader.value(name)
    return (value,) if isinstance(value, str) else tuple(dict.fromkeys(reader.texts(name)))


def _cluster_for(job: FleetJob, cluster: ClusterSpec) -> dict[str, object]:
    """Return the first kind of nodes that a job may use, as a cluster of its own with one network."""
    group = next(
        (group for name, group in cluster.group_named.items() if not job.kinds or name in job.kinds),
        cluster.groups[0],
    )
    own = nodes_of(group, NodeChoice(group.gpu.slug, group.num_nodes))
    return dict(cluster_to_mapping(replace(cluster, groups=(own,), between_groups=None)))


def _planned(
    reader: FieldReader, cluster: Mapping[str, object], parse: Parse, steps: int, faults: list[FieldError]
) -> PlannedJob | None:
    raw = reader.value("problem")
    at = f"{reader.pointer}/problem"
    if not isinstance(raw, Mapping):
        faults.append(
            FieldError(
                pointer=at,
                message="is required" if raw is None else "must be an object",
                allowed="a problem without its cluster",
            )
        )
        return None
    faults += _other_questions(raw, at)
    try:
        found = (
            _roles(raw, cluster, parse, steps) if is_post_training(raw) else _layout(raw, cluster, parse)
        )
    except InvalidProblemError as fault:
        faults += [replace(one, pointer=f"{at}{one.pointer}") for one in fault.errors]
        return None
    if isinstance(found, PlannedJob):
        return found
    sizes = batch_sizes(found)
    if len(sizes) > 1:
        words = ", ".join(map(str, sorted(sizes)))
        message = f"{words}: a job of a fleet has one batch size, in which its steps are counted"
        faults.append(
            FieldError(
                pointer=f"{at}/workload/global_batch_size", message=message, allowed="one number",
                nearest=str(sizes[0]),
            )
        )  # fmt: skip
        return None
    return PlannedJob(problem=found, steps=steps)


def _layout(raw: Mapping[str, object], cluster: Mapping[str, object], parse: Parse) -> Problem:
    search = raw.get("search")
    search = {} if search is None else search
    return parse({
        **{name: value for name, value in raw.items() if name != "cluster"},
        "cluster": cluster,
        "search": {**_SEARCH, **search} if isinstance(search, Mapping) else search,
    })  # fmt: skip


def _roles(
    raw: Mapping[str, object], cluster: Mapping[str, object], parse: Parse, steps: int
) -> PlannedJob:
    """Return a job of post-training, whose roles are placed on each number of nodes."""
    search = raw.get("search")
    search = {} if search is None else search
    own = {**_ROLES_SEARCH, **search} if isinstance(search, Mapping) else search
    found = read_post_training({**raw, "cluster": cluster, "search": own}, parse=parse)
    return PlannedJob(problem=found.asked, steps=steps, stated=found.canonical)


def _other_questions(raw: Mapping[str, object], at: str) -> list[FieldError]:
    """Refuse what a fleet decides for its jobs."""
    found = []
    if "cluster" in raw:
        found.append(
            FieldError(
                pointer=f"{at}/cluster",
                message="a job runs on the fleet's cluster",
                allowed="a problem without a cluster",
            )
        )
    search = None if is_post_training(raw) else raw.get("search")  # its search has no such fields
    return found + [
        FieldError(
            pointer=f"{at}/search/{name}",
            message="a fleet sets the job's nodes and ranks plans by step time",
            allowed="no such field in a fleet",
        )
        for name in OTHER_QUESTIONS
        if isinstance(search, Mapping) and name in search
    ]

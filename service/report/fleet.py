"""A fleet for people: one row a job, a Gantt chart, and the proof in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from meshwright.service.report.formatting import wrapped

_LABEL, _LEAST_BAR = 18, 20  # columns of a name; of the chart at least
_OBJECTIVES = {
    "weighted_lateness_hours": ("weighted lateness", " h"),
    "last_end_hours": ("last end", " h"),
    "node_hours": ("node-hours", ""),
    "cost": ("cost", ""),
}
_RULES = {
    "arrival": "First come, first served",
    "due date": "Earliest due date first",
    "local search": "Local search from the better of both",
}


def render_fleet(document: Mapping[str, Any], *, width: int) -> RenderableType:
    """Return the answer of a fleet (``service.fleets.answer.fleet_document``) for a terminal."""
    most_kw = document.get("max_power_kw")
    limit = "" if most_kw is None else f", GPUs drawing at most {most_kw:g} kW together"
    head = (
        f"{document['name']}: {len(document['jobs'])} jobs on {_nodes(document)}{limit}{_short(document)}"
    )
    return Group(
        Text(head, style="bold"),
        wrapped(proof_words(document), width),
        Text(""),
        _table(document),
        Text(""),
        *(wrapped(line, width, indent=2) for line in sharing_lines(document)),
        *(Text(line) for line in gantt_lines(document, width=width)),
        Text(""),
        *(wrapped(line, width, indent=2) for line in rule_lines(document)),
        wrapped(searched_words(document), width, indent=2),
    )


def proof_words(document: Mapping[str, Any]) -> str:
    """Return the status and the value of every objective."""
    words = []
    for one in document["objectives"]:
        name, unit = _OBJECTIVES[one["name"]]
        proof = (
            "" if not one["gap"] else f" (at least {one['bound']:.1f}{unit}, gap {one['gap'] * 100:.1f} %)"
        )
        words.append(f"{name} {one['value']:.1f}{unit}{proof}")
    status = {
        "optimal": "Optimal under the predicted durations",
        "feasible": "Best schedule found; not proved",
    }[document["status"]]
    return f"{status}: {', '.join(words)}."


def searched_words(document: Mapping[str, Any]) -> str:
    """Return how much of a full sweep was searched."""
    pairs = f"{document['searched']} of {document['choices']} pairs of a job and a number of nodes"
    if document["status"] == "optimal":
        rounds = "1 round" if document["rounds"] == 1 else f"{document['rounds']} rounds"
        rest = "; bounds rule out the others" if document["searched"] < document["choices"] else ""
        return f"Searched {pairs}, in {rounds}{rest}."
    return f"Searched {pairs}."


def rule_lines(document: Mapping[str, Any]) -> list[str]:
    """Return a line for each simple rule."""
    cost = document["objectives"][2]["name"]
    return [
        f"{_RULES.get(one['rule'], one['rule'])}: "
        f"weighted lateness {one['weighted_lateness_hours']:.1f} h, last end "
        f"{one['last_end_hours']:.1f} h, {_OBJECTIVES[cost][0]} {one[cost]:.1f}"
        for one in document["rules"]
    ]


def _short(document: Mapping[str, Any]) -> str:
    """Return the switches whose uplinks are short, in words; nothing without such."""
    found = document.get("switches")
    if not found:
        return ""
    counts = sorted({*found["nodes"]}, reverse=True)
    nodes = " or ".join(map(str, counts))
    return f", {len(found['nodes'])} switches of {nodes} with uplinks {found['oversubscription']:g} to 1"


def sharing_lines(document: Mapping[str, Any]) -> list[str]:
    """Return which jobs share the uplinks of a switch; nothing where uplinks are not short."""
    if "switches" not in document:
        return []
    shared = document["switches"]["shared_by"]
    if not shared:
        return ["No two jobs use the uplinks of one switch at the same time."]
    shares = {job["name"]: f"{job['name']} ({100 * job['uplinks']:.0f} %)" for job in document["jobs"]}
    return [
        f"Uplinks of one switch are shared by {', '.join(shares[name] for name in some)}."
        for some in shared
    ]


def _table(document: Mapping[str, Any]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    mixed = len(document["nodes"]) > 1
    table.add_column("job")
    powered = "max_power_kw" in document
    switched = "switches" in document
    under = ("switches", "uplinks") * switched
    for title in (
        "nodes",
        *under,
        *("kW", "W a GPU") * powered,
        "start h",
        "end h",
        "due h",
        "late h",
        "step",
    ):
        table.add_column(title, justify="right")
    table.add_column("layout")
    table.add_column("plan")
    for job in jobs_by_start(document):
        due = "–" if job["due_hours"] is None else f"{job['due_hours']:.1f}"
        late = f"{job['late_hours']:.1f}" if job["late_hours"] else "–"
        nodes = f"{job['nodes']} {job['kind']}" if mixed else str(job["nodes"])
        table.add_row(
            job["name"], nodes, *_under(job) * switched, *_power(job) * powered,
            f"{job['start_hours']:.1f}", f"{job['end_hours']:.1f}", due, late,
            f"{job['step_time_s']:.3g} s", job["layout"], job["plan_id"],
        )  # fmt: skip
    return table


def _power(job: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what the GPUs of a job draw, and the limit that they are set to."""
    return f"{job.get('power_kw', 0.0):.3g}", str(job.get("power_limit_w") or "–")


def _under(job: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a job's nodes by switch, and its share of the uplinks of each."""
    uplinks = job.get("uplinks")
    return (
        ", ".join(f"{at}: {nodes}" for at, nodes in job.get("switches", {}).items()),
        f"{100 * uplinks:.0f} %" if uplinks else "–",
    )


def jobs_by_start(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the jobs of an answer in the order of their starts."""
    return sorted(document["jobs"], key=lambda job: (job["start_hours"], job["end_hours"], job["name"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class GanttBar:
    """One job of a Gantt chart; places are of ``WIDTH``."""

    name: str
    nodes: int
    start: int
    width: int
    late: int  # of the bar, behind the due date
    due: int | None  # None: without a due date, or with one outside of the chart
    label: str


WIDTH = 10_000  # of a chart, whatever its scale


def _end_hours(document: Mapping[str, Any]) -> float:
    """Return the end of the Gantt chart; 1 where no job takes time."""
    return max((job["end_hours"] for job in document["jobs"]), default=0.0) or 1.0


def _gantt_bar(job: Mapping[str, Any], end: float) -> GanttBar:
    def at(hours: float) -> int:
        return round(WIDTH * hours / end)

    start, stop, due = at(job["start_hours"]), at(job["end_hours"]), job["due_hours"]
    dated = "" if due is None else f", due at {due:.1f} h"
    late = f", {job['late_hours']:.1f} h late" if job["late_hours"] else ""
    return GanttBar(
        name=job["name"],
        nodes=job["nodes"],
        start=start,
        width=max(stop - start, 1),
        late=0 if due is None else max(0, min(stop - at(due), stop - start)),
        due=at(due) if due is not None and 0 <= due <= end else None,
        label=f"{job['name']}: {job['nodes']} node{'s' * (job['nodes'] > 1)}, "
        f"{job['start_hours']:.1f} to {job['end_hours']:.1f} h"
        f"{dated}{late}",
    )


def gantt_lines(document: Mapping[str, Any], *, width: int) -> list[str]:
    """Return the Gantt chart: a line a job, from its start to its end; ``│`` marks the due date."""
    jobs = jobs_by_start(document)
    end = _end_hours(document)
    label = min(_LABEL, max((len(job["name"]) for job in jobs), default=0))
    columns = max(_LEAST_BAR, width - label - 4)
    lines = [f"  {_cut(job['name'], label)} {_bar(job, end, columns)}".rstrip() for job in jobs]
    last = f"{end:.1f} h"
    return [*lines, f"  {'':{label}} 0{last:>{columns - 1}}"]


def _cut(name: str, label: int) -> str:
    return f"{name:{label}}" if len(name) <= label else name[: label - 1] + "…"


def _bar(job: Mapping[str, Any], end: float, columns: int) -> str:
    first = int(job["start_hours"] / end * columns)
    last = max(first + 1, round(job["end_hours"] / end * columns))
    cells = [" "] * (columns + 1)
    cells[first:last] = "█" * (last - first)
    if job["due_hours"] is not None and 0 <= job["due_hours"] <= end:
        cells[min(columns, round(job["due_hours"] / end * columns))] = "│"
    nodes = f" {job['nodes']}"
    return "".join(cells).rstrip() + nodes if last + len(nodes) <= columns else "".join(cells).rstrip()


def left_out_lines(document: Mapping[str, Any]) -> Sequence[str]:
    """Return a line for each job that was left out, with its first fault."""
    return [
        f"{name} is left out: {faults[0]['message']}"
        + (f". Allowed: {faults[0]['allowed']}" if faults[0]["allowed"] else "")
        for name, faults in document["left_out"].items()
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetReport:
    """The schedule of a fleet as pages show it."""

    title: str
    jobs: tuple[Mapping[str, Any], ...]
    is_mixed: bool  # nodes are of several kinds
    has_switches: bool  # whose uplinks are short
    nodes: str
    proof: str
    sharing: tuple[str, ...]  # which jobs share uplinks
    rules: tuple[str, ...]
    searched: str
    left_out: tuple[str, ...]
    bars: tuple[GanttBar, ...]
    marks: tuple[str, ...]  # the chart's beginning, middle and end


def fleet_page(document: Mapping[str, Any]) -> FleetReport:
    """Return the schedule of an answered fleet."""
    end, jobs = _end_hours(document), jobs_by_start(document)
    return FleetReport(
        title=document["name"],
        jobs=tuple(jobs),
        is_mixed=len(document["nodes"]) > 1,
        has_switches="switches" in document,
        nodes=_nodes(document) + _short(document),
        proof=proof_words(document),
        sharing=tuple(sharing_lines(document)),
        rules=tuple(rule_lines(document)),
        searched=searched_words(document),
        left_out=tuple(left_out_lines(document)),
        bars=tuple(_gantt_bar(job, end) for job in jobs),
        marks=("0", f"{end / 2:.1f} h", f"{end:.1f} h"),
    )


def _nodes(document: Mapping[str, Any]) -> str:
    nodes = document["nodes"].items()
    return " + ".join(f"{count} {'node' if count == 1 else 'nodes'} with {kind}" for kind, count in nodes)

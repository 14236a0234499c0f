"""Figures for Prometheus: requests of this process, and all jobs on record (equal on every replica)."""

from __future__ import annotations

import math
from collections import Counter as Counts
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from meshwright.service.api.turns import Turns
from meshwright.service.db.database import Database
from meshwright.service.db.metric_records import (
    Distribution,
    EndedSearch,
    cpu_by_tenant,
    cpu_today,
    job_figures,
    last_searches,
    leader_figures,
    open_fleets,
    open_verifications,
    workers_alive,
)
from meshwright.service.db.tables import STATES

_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


class Metrics:
    """One registry for one app."""

    def __init__(
        self, database: Database, *, turns: Mapping[str, Turns] | None = None, most_tenants: int = 0
    ) -> None:
        self.registry = CollectorRegistry()
        labels = ["method", "route", "status"]
        self._requests = Counter(
            "meshwright_http_requests", "Requests answered", labels, registry=self.registry
        )
        self._seconds = Histogram(
            "meshwright_http_request_seconds",
            "Time to the end of an answer",
            labels[:2],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.registry.register(_JobFigures(database))
        self.registry.register(_ServiceFigures(database, most_tenants=most_tenants))
        self.registry.register(_TurnFigures(turns or {}))

    def count(self, *, method: str, route: str, status: int, seconds: float) -> None:
        """One request was answered; ``route`` is the template of its path, so that labels stay few."""
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)


class _JobFigures(Collector):
    """Reads the table whenever Prometheus asks."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def describe(self) -> list[Metric]:
        """Nothing is read when the registry is made."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The figures of all jobs on record."""
        with self._database.read() as connection:
            found, ended = job_figures(connection), last_searches(connection, most=LAST_SEARCHES)
        states = GaugeMetricFamily("meshwright_jobs", "Jobs on record", labels=["state"])
        for state in STATES:
            states.add_metric([state], found.by_state.get(state, 0))
        yield states
        gauges = {
            "queue_oldest_seconds": ("Age of the oldest queued job", found.oldest_queued_age_s),
            "attempts": ("Claims of all jobs on record", found.attempts),
            "lost_leases": ("Claims with a worker that died or froze", found.lost_leases),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"meshwright_{name}", text, value=value)
        yield _histogram("solve_seconds", "From the first claim to the end", found.solve_s)
        yield _histogram("final_gap", "Between the best plan and the bound, at the end", found.gap)
        yield from _of_searches(ended)


class _ServiceFigures(Collector):
    """Workers, their leader, verifications, fleets and CPU seconds, read whenever Prometheus asks."""

    def __init__(self, database: Database, *, most_tenants: int) -> None:
        self._database = database
        self._most_tenants = most_tenants

    def describe(self) -> list[Metric]:
        """Nothing is read when the registry is made."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The figures of all processes of the service."""
        with self._database.read() as connection:
            counts = {
                "workers": (
                    "Workers that are alive", "kind", ("search", "verify"), workers_alive(connection),
                ),
                "verifications": (
                    "Plans that wait for their launcher, or that it builds now", "state", _OPEN,
                    open_verifications(connection),
                ),
                "fleets": ("Fleets that wait, or are planned", "state", _OPEN, open_fleets(connection)),
            }  # fmt: skip
            leader, spent_s = leader_figures(connection), cpu_today(connection)
            tenants = cpu_by_tenant(connection, most=self._most_tenants) if self._most_tenants else []
        for name, (text, label, values, found) in counts.items():
            family = GaugeMetricFamily(f"meshwright_{name}", text, labels=[label])
            for value in values:
                family.add_metric([value], found.get(value, 0))
            yield family
        gauges = {
            "leader_lease_seconds": (
                "Until the leading worker's lease ends; below 0: none leads", leader.lease_left_s,
            ),
            "clock_steps_seconds": ("Sum of the steps of the database's clock", leader.clock_steps_s),
            "cpu_seconds_today": ("CPU seconds of all keys today (UTC)", spent_s),
        }  # fmt: skip
        for name, (text, figure) in gauges.items():
            yield GaugeMetricFamily(f"meshwright_{name}", text, value=figure)
        if self._most_tenants:
            family = GaugeMetricFamily(
                "meshwright_tenant_cpu_seconds_today", "CPU seconds today of the largest tenants",
                labels=["tenant"],
            )  # fmt: skip
            for tenant, cpu_s in tenants:
                family.add_metric([tenant], cpu_s)
            rest_s = spent_s - sum(cpu_s for _, cpu_s in tenants)
            family.add_metric(["(others)"], max(0.0, rest_s))
            yield family


class _TurnFigures(Collector):
    """The turns that tenants take in this process."""

    def __init__(self, turns: Mapping[str, Turns]) -> None:
        self._turns = turns

    def describe(self) -> list[Metric]:
        """Nothing is read when the registry is made."""
        return []

    def collect(self) -> Iterator[Metric]:
        """How many turns are held, waited for and refused, by queue."""
        held = GaugeMetricFamily("meshwright_turns_held", "Turns that requests hold", labels=["queue"])
        waiting = GaugeMetricFamily(
            "meshwright_turns_waiting", "Requests that wait for a turn", labels=["queue"]
        )
        refused = CounterMetricFamily(
            "meshwright_turns_refused", "Requests that got no turn: too late, or their client left",
            labels=["queue", "reason"],
        )  # fmt: skip
        for name, turns in self._turns.items():
            held.add_metric([name], turns.num_held)
            waiting.add_metric([name], turns.num_waiting)
            for reason, number in turns.refused.items():
                refused.add_metric([name, reason], number)
        yield from (held, waiting, refused)


_OPEN = ("queued", "running")
LAST_SEARCHES = 100
ENDS = ("optimal", "feasible", "infeasible", "unknown", "failed", "cancelled", "expired")
_SHARES = (0.5, 0.9, 1.0)  # of them that took no more


def _of_searches(ended: Sequence[EndedSearch]) -> Iterator[Metric]:
    """Yield how the searches that ended last did so, and what half, most and all of them took."""
    text = f"of the last {LAST_SEARCHES} searches that ended"
    ends = Counts(one.end for one in ended)
    family = GaugeMetricFamily("meshwright_last_searches", f"How many {text} so", labels=["end"])
    for end in ENDS:
        family.add_metric([end], ends[end])
    yield family
    for name, words in (
        ("cpu_s", "CPU seconds"), ("rows", "Configurations settled"), ("gap", "Gap to the bound"),
    ):  # fmt: skip
        long = {"cpu_s": "cpu_seconds"}.get(name, name)
        family = GaugeMetricFamily(f"meshwright_last_search_{long}", f"{words} {text}", labels=["share"])
        values = sorted(value for one in ended if (value := getattr(one, name)) is not None)
        for share in _SHARES:
            figure = values[math.ceil(share * len(values)) - 1] if values else math.nan
            family.add_metric([str(share)], figure)
        yield family


def _histogram(name: str, text: str, found: Distribution) -> Metric:
    buckets = [(str(bound), float(count)) for bound, count in zip(found.bounds, found.at_most, strict=True)]
    family = HistogramMetricFamily(f"meshwright_{name}", text)
    family.add_metric([], [*buckets, ("+Inf", float(found.count))], sum_value=found.total)
    return family

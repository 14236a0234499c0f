"""Figures for Prometheus: requests of this process, and all jobs on record (equal on every replica)."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from meshwright.service.db.database import Database
from meshwright.service.db.metric_records import Distribution, job_figures
from meshwright.service.db.tables import STATES

_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


class Metrics:
    """One registry for one app."""

    def __init__(self, database: Database) -> None:
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
            found = job_figures(connection)
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


def _histogram(name: str, text: str, found: Distribution) -> Metric:
    buckets = [(str(bound), float(count)) for bound, count in zip(found.bounds, found.at_most, strict=True)]
    family = HistogramMetricFamily(f"meshwright_{name}", text)
    family.add_metric([], [*buckets, ("+Inf", float(found.count))], sum_value=found.total)
    return family

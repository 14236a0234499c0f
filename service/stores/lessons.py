"""What measured runs teach: read as runs, and learnt from again where an older release has learnt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sqlalchemy import Connection

from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.profile import framework_of
from meshwright.profiles.reading import FieldReader
from meshwright.service.db import profile_records as records
from meshwright.service.db.profile_records import MeasurementRecord
from meshwright.service.requests.parse import parse_problem
from meshwright.service.requests.profiles import GivenProfile, read_given
from meshwright.service.stored import FOREIGN_SHAPE
from meshwright.solver.calibration.calibrate import calibrate
from meshwright.solver.calibration.observations import Observation
from meshwright.solver.configuration import configuration_from_json
from meshwright.solver.runs.table import MEMORY_KINDS, MEMORY_RANKS

MAX_RUNS = 64  # the newest ones teach; a fit of more takes seconds
_MAX_SECONDS = 1e6
_MAX_BYTES = 2**50


def given_of(connection: Connection, profile_id: str) -> GivenProfile | None:
    """Return a stored profile; None: there is no such.

    A calibration holds numbers that one release reads. Where another wrote it, and the runs that it learnt
    from are here, they teach again.

    Raises:
        InvalidProblemError: another release wrote it, and of its runs nothing is here.
    """
    document = records.document_of(connection, profile_id)
    if document is None:
        return None
    try:
        return read_given(document)
    except InvalidProblemError:
        seen, _ = observations_of(records.runs_behind(connection, profile_id, limit=MAX_RUNS))
        if not seen:
            raise
        return calibrate(seen, cluster=seen[0].problem.cluster.name)


def observations_of(measured: Iterable[MeasurementRecord]) -> tuple[list[Observation], list[str]]:
    """Return the runs of stored measurements, and a sentence for each that cannot be read."""
    seen, left_out = list[Observation](), list[str]()
    for one in measured:
        try:
            seen.append(observation_of(one.plan_id, one.request, one.config, one.body))
        except (InvalidProblemError, *FOREIGN_SHAPE):
            left_out.append(f"measurement {one.id} can't be read, so the calibration leaves it out")
    return seen, left_out


def observation_of(
    plan_id: str, request: Mapping[str, object], config: Mapping[str, object], body: Mapping[str, object]
) -> Observation:
    """Return the run of a plan that the body of a measurement states.

    Raises:
        InvalidProblemError: a field of the body, or of the plan's request, is wrong.
    """
    reader = FieldReader(body, "")
    timed = body.get("step_time_s") is not None
    seconds = reader.number("step_time_s", low=1e-6, high=_MAX_SECONDS) if timed else None
    peak = reader.optional_integer("peak_memory_bytes", high=_MAX_BYTES)
    kind = reader.choice("memory_kind", MEMORY_KINDS, default="unknown")
    rank = reader.choice("memory_rank", MEMORY_RANKS, default="unknown")
    out = reader.flag("out_of_memory", default=False)
    reader.refuse_unknown()
    reader.finish()
    if seconds is None and peak is None and not out:
        message = "give what was measured: step_time_s, peak_memory_bytes or out_of_memory"
        raise InvalidProblemError.of("", message)
    if out and seconds is not None:
        raise InvalidProblemError.of(
            "/step_time_s",
            "a run that is out of memory has no step time",
            allowed="null with out_of_memory",
        )
    problem = parse_problem(request)
    return Observation(
        name=plan_id,
        problem=problem,
        configuration=configuration_from_json(config),
        framework=framework_of(problem.launcher),
        step_time_s=seconds,
        peak_memory_bytes=float(peak) if peak else None,
        memory_kind=kind,
        memory_rank=rank,
        out_of_memory=out,
    )

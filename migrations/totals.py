"""How a job counts in the sums over all jobs: for the triggers of 0015 and the rows from before it."""

from __future__ import annotations

COLUMNS = "state, jobs, attempts, lost_leases, solve_bucket, solve_s, gap_bucket, gap"
SOLVE_BOUNDS_S = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
GAP_BOUNDS = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
_GAP = {
    "sqlite": "CAST(json_extract({}.progress, '$.gap') AS DOUBLE)",
    "postgresql": "CAST({}.progress ->> 'gap' AS DOUBLE PRECISION)",
}


def counted(dialect: str, row: str, sign: int) -> str:
    """Return the query of what a job adds to ``COLUMNS``, or with the sign -1 takes away.

    Times and gaps are those of searches that have ended; a sweep is not one.
    """
    ended = f"{row}.finished_at_s IS NOT NULL AND {row}.num_children IS NULL"
    solve_s, gap = f"({row}.finished_at_s - {row}.started_at_s)", _GAP[dialect].format(row)
    return (
        f"SELECT {row}.state, {sign} AS jobs, {sign} * {row}.attempts AS attempts, "
        f"{sign} * CASE WHEN {row}.attempts > 1 THEN {row}.attempts - 1 ELSE 0 END AS lost_leases, "
        f"CASE WHEN {ended} THEN {_bucket(solve_s, SOLVE_BOUNDS_S)} END AS solve_bucket, "
        f"CASE WHEN {ended} THEN {sign} * COALESCE({solve_s}, 0) ELSE 0 END AS solve_s, "
        f"CASE WHEN {ended} THEN {_bucket(gap, GAP_BOUNDS)} END AS gap_bucket, "
        f"CASE WHEN {ended} THEN {sign} * COALESCE({gap}, 0) ELSE 0 END AS gap"
    )


def _bucket(value: str, bounds: tuple[float, ...]) -> str:
    cases = " ".join(f"WHEN {value} <= {bound} THEN {place}" for place, bound in enumerate(bounds))
    return f"CASE WHEN {value} IS NULL THEN NULL {cases} ELSE {len(bounds)} END"

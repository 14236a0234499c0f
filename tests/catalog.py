"""The runs of the catalog, which take half a second to read, once for all tests of a process."""

from functools import cache

from meshwright.solver.runs.table import CATALOG_RUNS, Run, read_runs


@cache
def catalog_runs() -> tuple[Run, ...]:
    """Return all published runs of the catalog."""
    return read_runs(CATALOG_RUNS)

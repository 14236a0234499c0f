"""Predictions that are frozen before anyone looks at what was measured: ``make first-sight ARGS=FILE``.

    make first-sight ARGS="runs.csv --name mlperf-6"   # predicts, into benchmarks/data/first_sight
    make first-sight ARGS="runs.csv --score"           # once that is committed: the errors

FILE is a table of runs (``profiles/catalog/runs/columns.md``). Its measured cells are dropped before the
table is read, so they can be empty or present. A file holds the date in its name and the commit that
predicted; it is never written again, and runs that the catalog has or that were predicted once are
refused. ``make accuracy`` keeps the series.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.fit.accuracy_unseen import FIRST_SIGHT, Frozen, freezes, scored_freezes, series_table
from meshwright.profiles.errors import InvalidProblemError
from meshwright.solver.accuracy import validate
from meshwright.solver.runs.table import CATALOG_RUNS, read_runs

ROOT = Path(__file__).parents[1]
MEASURED = ("step_time_s", "tokens_per_s_per_gpu", "peak_memory_gib", "oom")
PREDICTS = ("profiles", "solver", "src")  # the folders that decide what is predicted


def without_measurements(table: Path, into: Path) -> Path:
    """Write a table of runs again without what was measured, and return the path.

    Args:
        table: the table of runs.
        into: a folder for the copy.

    Raises:
        OSError: the table cannot be read.
    """
    with table.open(encoding="utf-8-sig", newline="") as handle:
        reader = csv.DictReader(handle)
        kept = [name for name in reader.fieldnames or () if name not in MEASURED]
        rows = [{name: row[name] for name in kept} for row in reader]
    blind = into / table.name
    with blind.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.DictWriter(handle, kept)
        writer.writeheader()
        writer.writerows(rows)
    return blind


def frozen(table: Path, known: Sequence[str]) -> list[dict[str, str]]:
    """Predict a table of runs as a stranger meets them; return the rows of the file to keep.

    Args:
        table: the table of runs.
        known: identities of runs that were seen before.

    Raises:
        InvalidProblemError: the table cannot be read.
        SystemExit: a run was seen before.
    """
    with tempfile.TemporaryDirectory() as folder:
        runs = read_runs(without_measurements(table, Path(folder)))
    again = sorted({run.run_id for run in runs} & set(known))
    if again:
        sys.exit(f"error: run_id: seen before: {', '.join(again[:5])} ({len(again)} of {len(runs)} runs)\n"
                 "  first sight is given once: leave these rows out, or name another run")  # fmt: skip
    report = validate(runs)
    return [
        {"cluster": one.run.cluster, **cells}
        for one, cells in zip(report.runs, report.per_run(), strict=True)
    ]


def committed() -> str:
    """Return the commit that predicts.

    Raises:
        SystemExit: what predicts has changes that no commit holds.
    """
    git = ("git", "-C", str(ROOT))
    changed = subprocess.run(
        [*git, "status", "--porcelain", "--", *PREDICTS], capture_output=True, text=True, check=True
    ).stdout
    if changed:
        sys.exit(f"error: commit first, or nobody can tell what predicted:\n{changed.rstrip()}")
    asked = [*git, "rev-parse", "--short", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def write(rows: Sequence[dict[str, str]], name: str, *, commit: str, folder: Path = FIRST_SIGHT) -> Path:
    """Write a file of the series and return its path; it must be new.

    Raises:
        SystemExit: there is such a file already.
    """
    path = folder / f"{datetime.now(UTC):%Y-%m-%d}-{name}.csv"
    try:
        with path.open("x", encoding="utf-8", newline="") as handle:
            writer = csv.DictWriter(handle, ["commit", *rows[0]], lineterminator="\n")
            writer.writeheader()
            writer.writerows({"commit": commit, **row} for row in rows)
    except FileExistsError:
        sys.exit(
            f"error: --name {name}: {path.name} exists, and first sight is not changed. Use another name"
        )
    return path


def main() -> None:
    """Freeze a table of runs, or score it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", type=Path, metavar="FILE", help="table of runs")
    parser.add_argument("--name", help="of the file to write, for example the source (default: FILE's)")
    parser.add_argument(
        "--score", action="store_true", help="compare what is frozen with what FILE measured"
    )
    asked = parser.parse_args()
    try:
        if asked.score:
            print("\n".join(series_table(scored_freezes(read_runs(asked.table)))))
            return
        seen = [run.run_id for run in read_runs(CATALOG_RUNS)] + [one.run_id for one in _ever_frozen()]
        rows = frozen(asked.table, seen)
    except OSError as error:
        sys.exit(f"error: {asked.table}: {error.strerror}")
    except InvalidProblemError as error:
        sys.exit(f"error: {asked.table}: {error.errors[0].sentence()}")
    if not rows:
        sys.exit(f"error: {asked.table}: no rows. State at least one run")
    path = write(rows, asked.name or asked.table.stem, commit=committed())
    refused = sum(1 for row in rows if row["refused_reason"])
    print(f"{path.relative_to(ROOT)}: {len(rows) - refused} runs predicted, {refused} refused")
    print("Commit it before you look at what was measured.")


def _ever_frozen() -> list[Frozen]:
    return [one for rows in freezes().values() for one in rows]


if __name__ == "__main__":
    main()

"""Cells of a table of measured runs: text to numbers, with row and column in every error."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from meshwright.profiles.errors import FieldError, InvalidProblemError, shown_name
from meshwright.solver.runs.headings import headings_of

# Without these no run can be expressed. Any other column may be absent: all its cells are unknown.
REQUIRED_COLUMNS = (
    "seq_length", "gpu", "num_gpus", "tensor_parallel_size", "pipeline_parallel_size", "micro_batch_size",
    "global_batch_size",
)  # fmt: skip
SIZES = ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads")  # or the column model
MAX_ROWS = 1_000_000
MAX_CELL = 4_000_000  # characters; a plan's cell holds its cluster, link tables included
csv.field_size_limit(MAX_CELL)
_BETWEEN = ",;\t"  # cells
_SHOWN = 5  # headings
_COLUMN = re.compile(r"[a-z0-9_]*")  # columns are named so
COLUMNS_ARE_DESCRIBED = "the columns of profiles/catalog/runs/columns.md (an empty cell means unknown)"


@dataclass(frozen=True, slots=True)
class Cells:
    """One row; ``line`` is its line in the file, the header being line 1."""

    line: int
    values: Mapping[str, str]

    def text(self, column: str) -> str | None:
        """Return the cell, or None if it is empty or the column is absent."""
        value = (self.values.get(column) or "").strip()
        return value or None

    def number(self, column: str) -> float | None:
        """Return the cell as a finite number of at least 0, or None if it is empty.

        Raises:
            InvalidProblemError: the cell is not such a number.
        """
        value = self.text(column)
        if value is None:
            return None
        try:
            number = float(value)
        except ValueError:
            number = float("nan")
        if not isfinite(number) or number < 0.0:
            raise self.fault(column, f'"{value[:40]}" is not a number', "a finite number, 0 or more")
        return number

    def count(self, column: str) -> int | None:
        """Return the cell as a whole number, or None if it is empty.

        Raises:
            InvalidProblemError: the cell is not a whole number of at least 0.
        """
        number = self.number(column)
        if number is None:
            return None
        if number != int(number) or number > 2**53:
            raise self.fault(column, f"{number:g} is not a whole number", "a whole number")
        return int(number)

    def flag(self, column: str) -> bool | None:
        """Return the cell as 0 | 1, or None if it is empty."""
        value = self.count(column)
        if value is None:
            return None
        if value not in (0, 1):
            raise self.fault(column, f"{value} is neither 0 nor 1", "0 or 1")
        return bool(value)

    def word(self, column: str, allowed: Sequence[str]) -> str | None:
        """Return the cell as one of ``allowed``, or None if it is empty.

        Raises:
            InvalidProblemError: the cell is another word.
        """
        value = self.text(column)
        if value is not None and value not in allowed:
            raise self.fault(column, f'"{value[:40]}" is unknown', " | ".join(allowed))
        return value

    def fault(self, column: str, message: str, allowed: str) -> InvalidProblemError:
        """Return an error that names this row and a column."""
        pointer = f"/rows/{self.line - 2}/{column}"
        return InvalidProblemError.of(pointer, f"line {self.line}: {message}", allowed=allowed)


def read_cells(path: Path) -> Iterator[Cells]:
    """Yield the rows of a CSV file of runs.

    Raises:
        InvalidProblemError: the file cannot be read, lacks a required column or repeats one, or a
            row has more cells than the header.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            first = handle.readline()
            handle.seek(0)
            reader = csv.DictReader(handle, delimiter=max(_BETWEEN, key=first.count))
            written = reader.fieldnames or ()
            headings = headings_of(written)
            _check_header(written, [column for column, _ in map(headings.columns.__getitem__, written)])
            for line, row in enumerate(reader, start=2):
                if None in row or line > MAX_ROWS:
                    raise InvalidProblemError.of(
                        f"/rows/{line - 2}", f"line {line}: too many cells or rows"
                    )
                yield Cells(line, headings.row(row))
    except OSError as error:
        reason = error.strerror or "cannot be read"
        raise InvalidProblemError.of("/runs", f"{path.name[:64]}: {reason}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidProblemError.of("/runs", f"{path.name[:64]} is not CSV in UTF-8") from error


def _check_header(written: Sequence[str], names: Sequence[str]) -> None:
    """Refuse a table that lacks a column or has one twice.

    Args:
        written: its headings.
        names: the columns that these are.
    """
    sizes = any(name in names for name in SIZES)
    needed = (*(SIZES if sizes else ("model",)), *REQUIRED_COLUMNS)
    if "model" in names:
        needed = REQUIRED_COLUMNS
    missing = [name for name in needed if name not in names]
    doubled = sorted({name for name in names if names.count(name) > 1})
    errors = []
    if missing:
        unread = [shown_name(one) for one in written if one in names and not _COLUMN.fullmatch(one)]
        what = f"missing: {', '.join(missing)}"
        what += f" (not read: {', '.join(unread[:_SHOWN])})" if unread else ""
        errors.append(FieldError(pointer="/columns", message=what, allowed=COLUMNS_ARE_DESCRIBED))
    errors += [
        FieldError(pointer=f"/columns/{name[:64]}", message="this column occurs twice") for name in doubled
    ]
    if errors:
        raise InvalidProblemError(errors)

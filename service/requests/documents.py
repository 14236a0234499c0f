"""Problem files of the command line: JSON or YAML, read as strictly as a request's body."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from meshwright.profiles.documents import (
    FILE,
    YAML_FILE,
    InputLimits,
    read_config,
    read_json,
    read_yaml,
    shown,
    shown_path,
    without_version,
)
from meshwright.profiles.errors import FieldError, InvalidProblemError, faults_as
from meshwright.profiles.sequences import mapping_of_counts

_STDIN = Path("/dev/stdin")  # ``-`` on the command line
_WHOLE = ("", "/schema_version")  # pointers of faults of the whole file
_COLUMNS = 2  # of a table of lengths: tokens, documents
_NUMBER = re.compile(r"[0-9]{1,12}")


def read_problem_file(path: Path) -> Mapping[str, object]:
    """Return the mapping in a ``.json``, ``.yaml`` or ``.yml`` file; ``-`` is stdin, JSON or YAML.

    Raises:
        InvalidProblemError: the file cannot be read, is too big, or is not one mapping of plain values;
            names the file.
    """
    return _read(path, read_json)


def read_model_file(path: Path) -> Mapping[str, object]:
    """Return a ``config.json``, or a model's shape in a file as ``read_problem_file`` reads it.

    Raises:
        InvalidProblemError: as ``read_problem_file``.
    """
    return _read(path, read_config)


def _read(path: Path, of_json: Callable[[bytes], Mapping[str, object]]) -> Mapping[str, object]:
    piped = str(path) == "-"
    is_yaml = path.suffix.lower() in {".yaml", ".yml"}
    content = _content(_STDIN if piped else path, YAML_FILE if is_yaml else FILE)
    is_yaml = is_yaml or (piped and not content.lstrip().startswith(b"{"))
    with faults_as(partial(_of_file, path)):
        read = read_yaml(content) if is_yaml else of_json(content)
        return read if of_json is read_config else without_version(read)


def _of_file(path: Path, error: FieldError) -> FieldError:
    """Return a fault of the whole file with its name; a field has its pointer."""
    if error.pointer not in _WHOLE:
        return error
    return replace(error, message=f"{shown_path(path)}: {error.message}")


def read_lengths_file(path: Path) -> Mapping[str, object]:
    """Return the lengths of documents as a request states them (``workload.lengths``).

    A ``.json``, ``.yaml`` or ``.yml`` file holds just that. Any other is a table: the tokens of one
    document in each line, or of several with their number behind a comma; a first line without a number is
    its title.

    Raises:
        InvalidProblemError: the file cannot be read, or holds something else; names it.
    """
    if path.suffix.lower() in {".json", ".yaml", ".yml"}:
        return read_problem_file(path)
    counts, content = Counter[int](), _content(path, FILE)
    if len(content) > FILE.max_bytes:
        raise InvalidProblemError.of(
            "/workload/lengths",
            f"{shown_path(path)} is too long; state a histogram",
            allowed=f"up to {FILE.max_bytes} bytes",
        )
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), start=1):
        cells = [cell.strip() for cell in line.split(",")]
        if not line.strip() or (number == 1 and not cells[0][:1].isdigit()):
            continue
        if len(cells) > _COLUMNS or not all(_NUMBER.fullmatch(cell) for cell in cells):
            raise InvalidProblemError.of(
                "/workload/lengths",
                f"{shown_path(path)}, line {number}: {shown(line)}",
                allowed="TOKENS or TOKENS,COUNT",
            )
        counts[int(cells[0])] += int(cells[1]) if len(cells) > 1 else 1
    if not counts.total():
        raise InvalidProblemError.of("/workload/lengths", f"{shown_path(path)} holds no document")
    return mapping_of_counts(counts)


def _content(path: Path, limits: InputLimits) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(limits.max_bytes + 1)  # a device has no size and no end
    except OSError as fault:
        reason = fault.strerror or "cannot be read"
        raise InvalidProblemError.of("", f"{shown_path(path)}: {reason}") from None

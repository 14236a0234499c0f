"""Problem files of the command line: JSON or YAML, read as strictly as a request's body."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from meshwright.profiles.documents import FILE, YAML_FILE, read_json, read_yaml, shown_path
from meshwright.profiles.errors import FieldError, InvalidProblemError


def read_problem_file(path: Path) -> Mapping[str, object]:
    """The mapping in a ``.json``, ``.yaml`` or ``.yml`` file.

    Raises:
        InvalidProblemError: the file cannot be read, is too big, or is not one mapping of plain values;
            names the file.
    """
    is_yaml = path.suffix.lower() in {".yaml", ".yml"}
    limits = YAML_FILE if is_yaml else FILE
    try:
        with path.open("rb") as file:
            content = file.read(limits.max_bytes + 1)  # a device has no size and no end
        return read_yaml(content) if is_yaml else read_json(content)
    except OSError as fault:
        reason = fault.strerror or "cannot be read"
        raise InvalidProblemError.of("", f"{shown_path(path)}: {reason}") from None
    except InvalidProblemError as fault:
        raise InvalidProblemError(_of_file(path, error) for error in fault.errors) from None


def _of_file(path: Path, error: FieldError) -> FieldError:
    """A fault of a whole file names the file; a fault of a field has its pointer."""
    return error if error.pointer else replace(error, message=f"{shown_path(path)}: {error.message}")

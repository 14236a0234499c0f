"""Problem files of the command line: JSON or YAML, read as strictly as a request's body."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from profiles.errors import FieldError, InvalidProblemError
from service.json_input import MAX_INPUT_BYTES, read_json, require_plain, shown_path
from service.yaml_input import read_yaml


def read_problem_file(path: Path) -> Mapping[str, object]:
    """The mapping in a ``.json``, ``.yaml`` or ``.yml`` file.

    Raises:
        InvalidProblemError: the file cannot be read, or is not one mapping of plain values; names the file.
    """
    text = _text_of(path)
    try:
        if path.suffix.lower() not in {".yaml", ".yml"}:
            return read_json(text)
        return require_plain(read_yaml(text))
    except InvalidProblemError as fault:
        raise InvalidProblemError(_of_file(path, error) for error in fault.errors) from None


def _text_of(path: Path) -> str:
    """The text of a file; at most what may be read of it, also where it has no end (a device)."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_INPUT_BYTES + 1)
        if len(content) > MAX_INPUT_BYTES:
            message = f"{shown_path(path)}: the file is too big"
            raise InvalidProblemError.of("", message, allowed=f"{MAX_INPUT_BYTES} bytes")
        return content.decode("utf-8-sig")
    except OSError as fault:
        reason = fault.strerror or "cannot be read"
        raise InvalidProblemError.of("", f"{shown_path(path)}: {reason}") from None
    except UnicodeDecodeError:
        raise InvalidProblemError.of("", f"{shown_path(path)}: the text is not UTF-8") from None


def _of_file(path: Path, error: FieldError) -> FieldError:
    """A fault of a whole file names the file; a fault of a field has its pointer."""
    return error if error.pointer else replace(error, message=f"{shown_path(path)}: {error.message}")

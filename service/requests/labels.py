"""Labels of jobs: names and values of the caller's own, to find jobs by."""

from __future__ import annotations

import re
from collections.abc import Mapping

from meshwright.profiles.documents import pointer
from meshwright.profiles.errors import FieldError, InvalidProblemError

MAX_LABELS = 16  # of one job
NAME_PATTERN = r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?"  # as of Kubernetes' labels, 63 characters
VALUE_PATTERN = rf"({NAME_PATTERN})?"
_NAME, _VALUE = re.compile(NAME_PATTERN), re.compile(VALUE_PATTERN)
_CHARACTERS = "letters, digits and . _ / - inside, at most 63"


def read_labels(raw: object) -> dict[str, str]:
    """Return the labels of a request, by name.

    Raises:
        InvalidProblemError: there are too many, or a name or a value has characters that none may have.
    """
    if not isinstance(raw, dict):
        raise InvalidProblemError.of("/labels", "must be an object of texts", allowed='{"team": "nlp"}')
    if len(raw) > MAX_LABELS:
        raise InvalidProblemError.of("/labels", f"{len(raw)} labels", allowed=f"up to {MAX_LABELS}")
    faults = [fault for name, value in raw.items() if (fault := _fault_of(name, value))]
    if faults:
        raise InvalidProblemError(faults)
    return dict(sorted(raw.items()))


def read_selector(text: str, at: str) -> dict[str, str]:
    """Return the labels in ``team=nlp,run=7``.

    Raises:
        InvalidProblemError: a part is not NAME=VALUE, or a name is given twice; ``at`` points to it.
    """
    found: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not (equals and _NAME.fullmatch(name) and _VALUE.fullmatch(value)) or name in found:
            raise InvalidProblemError.of(at, "is not a list of labels", allowed="NAME=VALUE,NAME=VALUE")
        found[name] = value
    if len(found) > MAX_LABELS:
        raise InvalidProblemError.of(at, f"{len(found)} labels", allowed=f"up to {MAX_LABELS}")
    return found


def selector_of(labels: Mapping[str, str]) -> str:
    """Return ``team=nlp,run=7``."""
    return ",".join(f"{name}={value}" for name, value in labels.items())


def _fault_of(name: str, value: object) -> FieldError | None:
    if not _NAME.fullmatch(name):
        return FieldError(pointer="/labels", message="a name is not usable", allowed=_CHARACTERS)
    if not isinstance(value, str) or not _VALUE.fullmatch(value):
        return FieldError(
            pointer=pointer("labels", name), message="is not a usable value", allowed=_CHARACTERS
        )
    return None

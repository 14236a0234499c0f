"""The errors of the pure core.

PlannerError
├── InvalidProblemError     the input is wrong; carries one FieldError per fault
│   ├── UnknownNameError    a name that no catalog holds; lists the nearest known ones
│   └── UnsupportedModelError   a model feature the cost model cannot express
├── ProfileError            a profile or catalog file is broken
├── RefusedExportError      a launcher cannot express the plan (raised by meshwright.launchers)
├── StoppedError            the work was stopped before it had an answer
└── InternalError           two proofs disagree or an invariant broke: a bug, never a choice

Every class has a stable ``code``; HTTP statuses and exit codes are mapped at the edges only.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

MAX_SHOWN = 64  # characters of a wrong name that a message repeats
MAX_LISTED = 8  # names that a sentence lists; of more it lists the nearest ones and their number
_NEAREST_LISTED = 5
_MANY = 60  # names, of which an error lists the nearest alone
# More words than a sentence lists.
_LIST = re.compile(rf"[^\s,]+(?:, (?!or |and )[^\s,]+){{{MAX_LISTED},}}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldError:
    """One fault of one field: where it is, what is wrong, what would be right."""

    pointer: str  # JSON pointer into the request, e.g. "/workload/global_batch_size"
    message: str  # one sentence; never echoes raw untrusted text beyond a short value
    allowed: str | None = None  # the allowed range or set, in words
    nearest: str | None = None  # the nearest legal value or values
    value: int | str | None = None  # the wrong value, where a program may want it
    values: tuple[int | str, ...] | None = None  # the legal values, where they are few
    tip: str = ""  # options with which the same command has an answer, "--launcher trl", or "without --gpu"

    @property
    def field(self) -> str:
        """Return the pointer in dotted form, as the command line prints it."""
        return self.pointer.lstrip("/").replace("/", ".") or "request"

    def sentence(self) -> str:
        """Return the whole fault on one line: field, message, allowed range, nearest legal value."""
        return f"{self.field}: {self.reason()}"

    def reason(self) -> str:
        """Return the sentence without the field."""
        parts = [self.few(self.message)]
        if self.allowed:
            parts.append(f"Allowed: {self.few(self.allowed)}")
        if self.nearest not in (None, "", self.allowed) and _DID_YOU_MEAN not in self.message:
            parts.append(f"Nearest: {self.few(self.nearest)}")
        return ". ".join(part.rstrip(".") for part in parts).replace("?. ", "? ")

    def few(self, words: str) -> str:
        """Return a list of many names as the ones nearest to the wrong value, and their number."""
        return _LIST.sub(lambda match: _nearest_of(match.group().split(", "), self.wrong), words)

    @property
    def wrong(self) -> str:
        """Return the wrong value as it was given; empty if the message does not state it."""
        if self.value is not None:
            return str(self.value)
        quoted = _QUOTED.search(self.message)
        return (quoted[1] or quoted[2] or "") if quoted else ""


REQUIRED, UNKNOWN_FIELD = "is required", "unknown field"
_NAMES = re.compile(r" or |, ")  # between the nearest names
_DID_YOU_MEAN = "Did you mean"
_QUOTED = re.compile(r'"([^"]*)"|^(\S+) is out of range')


def _nearest_of(names: Sequence[str], wrong: str) -> str:
    """Return the few names that are nearest to a wrong one, in their order."""
    near = difflib.get_close_matches(wrong[:MAX_SHOWN].lower(), names, n=_NEAREST_LISTED, cutoff=0.3)
    more = [name for name in names if name not in near]
    kept = {*near, *more[: _NEAREST_LISTED - len(near)]}
    return f"{', '.join(name for name in names if name in kept)}, … ({len(names)} in all)"


class PlannerError(Exception):
    """The planner cannot go on."""

    code = "planner_error"


class InvalidProblemError(PlannerError):
    """The problem as posed is wrong; ``errors`` names every faulty field."""

    code = "invalid_problem"

    def __init__(self, errors: Iterable[FieldError]) -> None:
        self.errors = _named_once(tuple(errors))
        super().__init__("; ".join(error.sentence() for error in self.errors))

    @classmethod
    def of(
        cls, pointer: str, message: str, *, allowed: str | None = None, nearest: str | None = None
    ) -> InvalidProblemError:
        """Return an error with a single faulty field."""
        error = FieldError(pointer=pointer, message=message, allowed=allowed, nearest=nearest)
        return cls([error])


def _named_once(errors: tuple[FieldError, ...]) -> tuple[FieldError, ...]:
    """Return faults without those of missing fields that are there under another name."""
    misnamed = {
        f"{error.pointer.rpartition('/')[0]}/{name.replace('.', '/')}"
        for error in errors
        if error.message == UNKNOWN_FIELD and error.nearest
        for name in _NAMES.split(error.nearest)
    }
    return tuple(one for one in errors if one.message != REQUIRED or one.pointer not in misnamed)


@contextmanager
def faults_as(renamed: Callable[[FieldError], FieldError]) -> Iterator[None]:
    """Raise the faults of the block with the caller's names of their fields, and with the plain code."""
    try:
        yield
    except InvalidProblemError as fault:
        raise InvalidProblemError(map(renamed, fault.errors)) from None


def shown_name(name: str) -> str:
    """Return a wrong name as a message repeats it."""
    return name if len(name) <= MAX_SHOWN else name[: MAX_SHOWN - 3] + "..."


class UnknownNameError(InvalidProblemError):
    """A name that no catalog holds."""

    code = "unknown_name"

    @classmethod
    def among(cls, pointer: str, name: str, known: Iterable[str]) -> UnknownNameError:
        """Name the nearest entries of ``known``; of few, all where none is near."""
        names = sorted(known)
        close = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5)
        allowed, hint = None, ""
        if close:
            hint = f". {_DID_YOU_MEAN} {' or '.join(filter(None, (', '.join(close[:-1]), close[-1])))}?"
        elif len(names) > _MANY:
            hint = f". None of the {len(names)} known names is close to it"
        else:
            allowed = ", ".join(names)
        error = FieldError(
            pointer=pointer,
            message=f'unknown "{shown_name(name)}"{hint}',
            allowed=allowed,
            nearest=" or ".join(close) or None,
        )
        return cls([error])


class UnsupportedModelError(InvalidProblemError):
    """A model feature that the cost model cannot express."""

    code = "unsupported_model"

    @classmethod
    def field(
        cls, name: str, why: str, *, allowed: str | None = None, nearest: str | None = None
    ) -> UnsupportedModelError:
        """Return ``unsupported: <field>`` with the reason."""
        message = f"unsupported: {name} ({why})"
        return cls(
            [FieldError(pointer=f"/model/{name}", message=message, allowed=allowed, nearest=nearest)]
        )


class ProfileError(PlannerError):
    """A profile or catalog file is broken."""

    code = "profile_error"


class RefusedExportError(PlannerError):
    """A launcher cannot express the plan; ``errors`` names each obstacle."""

    code = "refused_export"

    def __init__(self, errors: Iterable[FieldError]) -> None:
        self.errors = _named_once(tuple(errors))
        super().__init__("; ".join(error.sentence() for error in self.errors))


class StoppedError(PlannerError):
    """The work was stopped before it had an answer."""

    code = "stopped"


class InternalError(PlannerError):
    """Two proofs disagree or an invariant broke: a bug."""

    code = "internal_error"

"""The file of a measured profile as it grows: opened or resumed, written after every task."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from profiles.errors import InvalidProblemError, ProfileError
from profiles.measure.provenance import differences
from profiles.measured_profile import (
    Machine,
    MeasuredProfile,
    Measurement,
    Session,
    Skipped,
    Subject,
    write_measured_profile,
)
from profiles.measured_profile_reading import read_measured_profile


class Notebook:
    """A measured profile and its file."""

    def __init__(self, path: Path, profile: MeasuredProfile) -> None:
        self._path = path
        self._done = set(profile.completed)
        self.profile = profile

    def holds(self, task: str) -> bool:
        """Whether a task needs no measuring."""
        return task in self._done

    def add(self, task: str, measurements: list[Measurement]) -> None:
        """Keep what a task measured, and write the file.

        Raises:
            ProfileError: the file cannot be written.
        """
        self._done.add(task)
        self.store(
            replace(
                self.profile,
                completed=(*self.profile.completed, task),
                skipped=tuple(one for one in self.profile.skipped if one.task != task),
                measurements=(*self.profile.measurements, *measurements),
            )
        )

    def skip(self, task: str, reason: str) -> None:
        """Keep why a task could not be measured; the next start tries it again.

        Raises:
            ProfileError: the file cannot be written.
        """
        others = tuple(one for one in self.profile.skipped if one.task != task)
        self.store(replace(self.profile, skipped=(*others, Skipped(task=task, reason=reason))))

    def store(self, profile: MeasuredProfile) -> None:
        """Write the file.

        Raises:
            ProfileError: the file cannot be written.
        """
        self.profile = profile
        try:
            write_measured_profile(self._path, profile)
        except OSError as fault:
            raise ProfileError(f"{self._path.name}: {fault.strerror or 'cannot be written'}") from None


def open_notebook(path: Path, subject: Subject, machine: Machine, session: Session) -> Notebook:
    """A new notebook, or the one at ``path`` when it is of the same subject on the same machine.

    Raises:
        InvalidProblemError: the file holds measurements of something else, or made elsewhere.
        ProfileError: the file is no measured profile, or cannot be written.
    """
    if not path.exists():
        notebook = Notebook(path, MeasuredProfile(subject=subject, machine=machine, sessions=(session,)))
        notebook.store(notebook.profile)
        return notebook
    found = read_measured_profile(path)
    odds = [*_other_subject(subject, found.subject), *differences(machine, found.machine)]
    if odds:
        message = f"{path.name} holds other measurements ({'; '.join(odds)}); choose another file"
        raise InvalidProblemError.of("--out", message)
    return Notebook(path, replace(found, sessions=(*found.sessions, session)))


def _other_subject(ours: Subject, theirs: Subject) -> list[str]:
    """In what two subjects differ."""
    names = ("seq_length", "dtype", "expert_parallel_size", "quick")
    odds = [
        f"{name}: {getattr(ours, name)} here, {getattr(theirs, name)} there"
        for name in names
        if getattr(ours, name) != getattr(theirs, name)
    ]
    if ours.model != theirs.model:
        odds.insert(0, f"model: {ours.model.name} here, {theirs.model.name} there, or of another shape")
    return odds

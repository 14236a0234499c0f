"""Answers kept on this machine, so that later commands find a plan by the id that was printed."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

from meshwright.profiles.documents import shown
from meshwright.profiles.errors import FieldError, InvalidProblemError
from meshwright.service.files import ANSWER_FILE, write_text
from meshwright.service.jobs.answers import stored_answer
from meshwright.service.requests.documents import read_problem_file
from meshwright.service.requests.parse import digest_of, parse_problem, problem_to_mapping
from meshwright.solver.answer import Answer, Plan, plan_from_json
from meshwright.solver.problem import Problem

MAX_KEPT = 200  # answers; the oldest go first
_MAX_VERDICTS = 1000
_MOST_NAMED = 5  # plans that a message names
_ID_LENGTH = 12
_LONGEST_RANK = 3  # digits; what is longer is an id
_OF_ALL = ("plans", "problem", "pareto", "baseline", "measured", "measure_next")  # not of one plan alone


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPlan:
    """One plan with the problem that it answers."""

    plan: Plan
    problem: Problem
    search: Mapping[str, Any]  # how the answer that holds it was found: its fields without the plans

    def document(self) -> dict[str, Any]:
        """The answer with this plan alone, as ``answer_document`` has it with all."""
        return {**self.search, "plans": [self.plan.to_json()], "problem": problem_to_mapping(self.problem)}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptAnswer:
    """One answer with its problem, and the plan of it that was asked for."""

    answer: Answer
    problem: Problem
    plan_id: str  # empty: nothing fits


def state_folder() -> Path:
    """Where answers are kept (XDG base directory specification, ``XDG_STATE_HOME``; it must be absolute).

    Raises:
        OSError: the user has no home.
    """
    base = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not base.is_absolute():
        try:
            base = Path.home() / ".local" / "state"
        except RuntimeError:
            raise OSError(errno.ENOENT, "no home folder; set XDG_STATE_HOME") from None
    return base / "meshwright" / "answers"


def keep(document: Mapping[str, Any], problem: Problem) -> list[str]:
    """Keep one answer; a state folder that cannot be written spoils no search, but is a warning.

    Another answer to the same question, with another profile, is kept as well: its plans may be running.
    """
    try:
        ids = "".join(str(plan["plan_id"]) for plan in document["plans"])
        name = f"{digest_of(problem)[:16]}-{sha256(ids.encode()).hexdigest()[:8]}.json"
        _keep(state_folder() / name, document, MAX_KEPT)
    except OSError as fault:
        return [f"the answer is not kept ({fault.strerror}): export it with --save-dir, or keep --json"]
    return []


def keep_verdict(plan_id: str, verdict: str) -> list[str]:
    """Keep a launcher's verdict on a plan; as in ``keep``, a folder that cannot be written is a warning."""
    try:
        _keep(_verdict_of(plan_id), {"plan_id": plan_id, "verdict": verdict}, _MAX_VERDICTS)
    except OSError as fault:
        return [f"the verdict is not kept ({fault.strerror})"]
    return []


def _keep(path: Path, document: Mapping[str, Any], most: int) -> None:
    """Write a file, and remove the oldest ones next to it beyond ``most``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(document, allow_nan=False))
    for old in _newest_first(path.parent)[most:]:
        old.unlink(missing_ok=True)


def verdicts_of(plans: Sequence[Plan]) -> dict[str, str]:
    """Return the verdicts of launchers on some plans, by plan_id; plans without one are left out."""
    found = {}
    for plan in plans:
        try:
            text = _verdict_of(plan.plan_id).read_text(encoding="utf-8")
            found[plan.plan_id] = str(json.loads(text)["verdict"])
        except (OSError, ValueError, LookupError, TypeError):
            continue
    return found


def _verdict_of(plan_id: str) -> Path:
    """Return the file of a plan's verdict, next to the answers; an id from a file may hold any sign."""
    return state_folder().parent / "verdicts" / f"{quote(plan_id, safe='', errors='replace')}.json"


def find_answer(plan_id: str) -> KeptAnswer:
    """The kept answer with the plan of an id that starts with ``plan_id``; errors as ``find_plan``."""
    document, plan = _found(plan_id)
    return _whole(document, str(plan["plan_id"]))


def plan_of(kept: KeptAnswer) -> Plan:
    """The plan that was asked for.

    Raises:
        InvalidProblemError: the answer has none.
    """
    for plan in kept.answer.plans:
        if plan.plan_id == kept.plan_id:
            return plan
    raise InvalidProblemError.of("plan", "the answer holds no plan")


def answer_of_file(path: Path, rank: int) -> KeptAnswer:
    """The answer in a file that ``plan --json`` or ``plan --save-dir`` wrote, with the plan of one rank.

    Raises:
        InvalidProblemError: the file holds no answer, or no such plan.
    """
    document = _answer_of(path)
    plan = _of_rank(document["plans"], rank) if document["plans"] else {}
    return _whole(document, str(plan.get("plan_id", "")))


def find_plan(plan_id: str) -> KeptPlan:
    """The kept plan of an id that starts with ``plan_id``.

    Raises:
        InvalidProblemError: no kept plan, or several, have such an id.
    """
    return _kept(*_found(plan_id))


def plan_named(word: str, rank: int = 1) -> KeptPlan:
    """The kept plan of an id, or the plan of a rank in a saved answer: its file or its folder.

    Raises:
        InvalidProblemError: there is no such plan.
    """
    path = Path(word)
    if path.is_dir():
        path /= ANSWER_FILE
    return plan_of_file(path, rank) if path.is_file() else find_plan(word)


def _found(plan_id: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the newest document with a plan of such an id, or rank, and the plan."""
    if plan_id.isdecimal() and len(plan_id) <= _LONGEST_RANK:
        newest = _newest_answer()
        return newest, _of_rank(newest["plans"], int(plan_id))
    found = {plan["plan_id"]: (document, plan) for document, plan in _plans_like(plan_id) if plan_id}
    if not found:
        message = f'no saved plan starts with "{shown(plan_id)}"; pass --from answer.json, or plan again'
        ids = list(dict.fromkeys(str(plan["plan_id"]) for _, plan in _plans_like("")))
        near = get_close_matches(plan_id[:_ID_LENGTH], ids, n=_MOST_NAMED)
        raise InvalidProblemError.of("plan_id", message, nearest=", ".join(near) or None)
    if len(found) > 1:
        some, more = list(found)[-_MOST_NAMED:], len(found) - _MOST_NAMED
        rest = f" and {more} more" if more > 0 else ""
        several = FieldError(
            pointer="plan_id",
            message=f'"{shown(plan_id)}" fits {len(found)} plans',
            nearest=", ".join(some) + rest,
        )
        raise InvalidProblemError([several])
    return next(iter(found.values()))


def _newest_answer() -> Mapping[str, Any]:
    documents = [document for document, _ in _plans_like("")]
    if not documents:
        raise InvalidProblemError.of("plan_id", "no answer is saved; plan first, or pass --from")
    return documents[-1]


def plan_of_file(path: Path, rank: int) -> KeptPlan:
    """The plan of one rank in a file that ``plan --json`` or ``--save-dir`` wrote.

    Raises:
        InvalidProblemError: the file holds no such plan, or no problem.
    """
    document = _answer_of(path)
    return _kept(document, _of_rank(document["plans"], rank))


def _of_rank(plans: Sequence[Mapping[str, Any]], rank: int) -> Mapping[str, Any]:
    """The plan of a rank; the only plan of a file that ``export`` wrote is its first, whatever its rank.

    Raises:
        InvalidProblemError: there is none.
    """
    for plan in plans:
        if plan.get("rank") == rank or (rank == 1 and len(plans) == 1):
            return plan
    ranks = sorted(one for plan in plans if isinstance(one := plan.get("rank"), int))
    nearest = min(ranks, key=lambda one: abs(one - rank), default=None)
    together = ranks[1:] and ranks == list(range(ranks[0], ranks[-1] + 1))
    allowed = f"{ranks[0]} to {ranks[-1]}" if together else ", ".join(map(str, ranks))
    raise InvalidProblemError.of(
        "--rank",
        f"the answer holds {len(plans)} plan{'s' * (len(plans) != 1)}, none of rank {rank}",
        allowed=allowed or None,
        nearest=None if nearest is None else str(nearest),
    )


def plan_of_file_by_name(path: Path, plan_id: str) -> KeptPlan:
    """The plan of such a file by its rank, or by an id that starts so; errors as ``plan_of_file``."""
    if plan_id.isdecimal() and len(plan_id) <= _LONGEST_RANK:
        return plan_of_file(path, int(plan_id))
    document = _answer_of(path)
    found = [plan for plan in document["plans"] if str(plan.get("plan_id", "")).startswith(plan_id)]
    if len(found) != 1:
        message = f'{len(found) or "no"} plans of the file have an id that starts with "{shown(plan_id)}"'
        raise InvalidProblemError.of("plan_id", message)
    return _kept(document, found[0])


def _answer_of(path: Path) -> Mapping[str, Any]:
    document = read_problem_file(path)
    plans, problem = document.get("plans"), document.get("problem")
    if not isinstance(plans, list) or not isinstance(problem, dict):
        raise InvalidProblemError.of("--from", "not an answer file from `meshwright plan --json`")
    return {**document, "plans": [plan for plan in plans if isinstance(plan, dict)]}


def _whole(document: Mapping[str, Any], plan_id: str) -> KeptAnswer:
    answer, problem = stored_answer(document, pointer="--from")
    return KeptAnswer(answer=answer, problem=problem, plan_id=plan_id)


def _kept(document: Mapping[str, Any], plan: Mapping[str, Any]) -> KeptPlan:
    try:
        search = {name: part for name, part in document.items() if name not in _OF_ALL}
        return KeptPlan(
            plan=plan_from_json(plan), problem=parse_problem(document["problem"]), search=search
        )
    except (KeyError, TypeError, ValueError):
        raise InvalidProblemError.of("--from", "the plan was written by another version") from None


def _plans_like(plan_id: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Kept plans with such an id, oldest answer first; files that cannot be read are skipped."""
    try:
        paths = _newest_first(state_folder())
    except OSError:
        return
    for path in reversed(paths):
        try:
            text = path.read_text(encoding="utf-8")
            document = json.loads(text) if f'"plan_id": "{plan_id}' in text else {"plans": ()}
            plans = [plan for plan in document["plans"] if plan["plan_id"].startswith(plan_id)]
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            continue
        for plan in plans:
            yield document, plan


def _newest_first(folder: Path) -> list[Path]:
    ages = [(path.stat().st_mtime, path) for path in folder.glob("*.json")]
    return [path for _, path in sorted(ages, reverse=True)]

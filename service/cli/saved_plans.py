"""Answers kept on this machine, so that later commands find a plan by the id that was printed."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

import typer

from meshwright.profiles.documents import document_text, shown
from meshwright.profiles.errors import FieldError, InvalidProblemError
from meshwright.profiles.profile import Profile
from meshwright.service.files import ANSWER_FILE, write_text
from meshwright.service.jobs.answers import answer_from_json, code_digest, is_complete, stored_answer
from meshwright.service.requests.documents import read_problem_file
from meshwright.service.requests.fields import POST_TRAINING
from meshwright.service.requests.parse import digest_of, parse_problem, problem_to_mapping
from meshwright.solver.answer import Answer, Plan, plan_from_json, versions
from meshwright.solver.problem import Problem

MAX_KEPT = 200  # answers; the oldest go first
_MAX_VERDICTS = 1000
_MOST_NAMED = 5  # plans that a message names
_ID_LENGTH = 12
_OF_ROLES = "roles.json"  # in place of an answer of post-training
_LONGEST_RANK = 3  # digits; what is longer is an id
_OF_ALL = ("plans", "problem", "pareto", "baseline", "measured", "measure_next")  # not of one plan alone


@dataclass(frozen=True, kw_only=True)
class SavedPlan:
    """One plan of a saved answer; each part is read at its first use."""

    document: Mapping[str, Any]  # as ``plan --json`` wrote it
    body: Mapping[str, Any]  # of the plan; empty: nothing fits

    @property
    def plan_id(self) -> str:
        """Return the id of the plan; empty: nothing fits."""
        return str(self.body.get("plan_id", ""))

    @cached_property
    def plan(self) -> Plan:
        """Return the plan.

        Raises:
            InvalidProblemError: the answer has none, or another version wrote it.
        """
        if not self.body:
            raise InvalidProblemError.of("plan", "the answer has no plan")
        try:
            return plan_from_json(self.body)
        except (KeyError, TypeError, ValueError):
            raise InvalidProblemError.of("--from", "another version wrote the plan: plan again") from None

    @cached_property
    def problem(self) -> Problem:
        """Return the problem that the plan answers."""
        return parse_problem(self.document["problem"])

    @cached_property
    def answer(self) -> Answer:
        """Return the whole answer; errors as ``stored_answer``."""
        return stored_answer(self.document, pointer="--from")[0]

    @property
    def search(self) -> dict[str, Any]:
        """Return how the answer was found: its fields without the plans."""
        return {name: part for name, part in self.document.items() if name not in _OF_ALL}


def closest_of(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the closest plan of an answer in which nothing fits, if it names one."""
    found = (document.get("infeasible") or {}).get("closest")
    return [found] if isinstance(found, Mapping) else []


def with_closest(kept: SavedPlan) -> SavedPlan:
    """Return the closest plan where the answer holds no other."""
    found = () if kept.body else closest_of(kept.document)
    return next((SavedPlan(document=kept.document, body=body) for body in found), kept)


def document_of(plan: Plan, problem: Problem, search: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer with one plan alone, as ``answer_document`` has it with all."""
    return {**search, "plans": [plan.to_json()], "problem": problem_to_mapping(problem)}


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


def keep(document: Mapping[str, Any], problem: Problem, *, whole: bool = False) -> list[str]:
    """Keep one answer; returns a warning where it can't be kept.

    Another answer to the same question, with another profile, is kept as well: its plans may be running.
    ``whole``: the answer has all that ``plan`` shows and no limit cut it, so that it may be shown again.
    """
    fault = _keep(lambda: path_of(document, problem, whole=whole), document, MAX_KEPT)
    return [f"the answer can't be saved ({one}): use --save-dir, or keep --json" for one in fault]


def note_roles() -> list[str]:
    """Note that the newest answer is of post-training, which is not kept: no rank means a plan of it."""
    fault = _keep(lambda: state_folder() / _OF_ROLES, {"kind": POST_TRAINING}, MAX_KEPT)
    return [f"the answer can't be noted ({one})" for one in fault]


def path_of(document: Mapping[str, Any], problem: Problem, *, whole: bool = False) -> Path:
    """Return where ``keep`` keeps an answer; errors as ``state_folder``."""
    ids = "".join(str(plan["plan_id"]) for plan in (*document["plans"], *closest_of(document)))
    name = f"{digest_of(problem)[:16]}-{sha256(ids.encode()).hexdigest()[:8]}"
    name += f"-{_shown_again(problem)}" if whole and is_complete(document) else ""
    return state_folder() / f"{name}.json"


def known_answer(problem: Problem, profile: Profile) -> Answer | None:
    """Return the whole answer to the same question, kept by the same code with the same costs; or None."""
    try:
        paths = _newest_first(state_folder(), f"{digest_of(problem)[:16]}-*-{_shown_again(problem)}.json")
    except OSError:
        return None
    question = json.loads(json.dumps(problem_to_mapping(problem))) if paths else None  # lists, as in a file
    for path in paths:
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            if document["versions"] == versions(profile) and document["problem"] == question:
                return answer_from_json(document)
        except (OSError, ValueError, LookupError, TypeError, InvalidProblemError):
            continue
    return None


def _shown_again(problem: Problem) -> str:
    """Return the mark of answers of this code to questions with the same warnings."""
    return sha256(repr((code_digest(), problem.cluster.warnings)).encode()).hexdigest()[:12]


def keep_verdict(plan_id: str, verdict: str) -> list[str]:
    """Keep a launcher's verdict on a plan; returns a warning where it can't be kept."""
    fault = _keep(lambda: _verdict_of(plan_id), {"plan_id": plan_id, "verdict": verdict}, _MAX_VERDICTS)
    return [f"the verdict can't be saved ({one})" for one in fault]


def _keep(place: Callable[[], Path], document: Mapping[str, Any], most: int) -> list[str]:
    """Write a file, and remove the oldest ones next to it beyond ``most``.

    Returns the system's reason where the state folder can't be found or written: that spoils no command.
    """
    try:
        path = place()
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, document_text(document, indent=None))
        for old in _newest_first(path.parent)[most:]:
            old.unlink(missing_ok=True)
    except OSError as fault:
        return [fault.strerror or str(fault)]
    return []


def verdicts_of(plans: Sequence[Plan]) -> dict[str, str]:
    """Return the verdicts of launchers on some plans, by plan_id; plans without one are left out."""
    found = {}
    for plan in plans:
        try:
            found[plan.plan_id] = str(
                json.loads(_verdict_of(plan.plan_id).read_text(encoding="utf-8"))["verdict"]
            )
        except (OSError, ValueError, LookupError, TypeError):
            continue
    return found


def _verdict_of(plan_id: str) -> Path:
    """Return the file of a plan's verdict, next to the answers; an id from a file may hold any sign."""
    return state_folder().parent / "verdicts" / f"{quote(plan_id, safe='', errors='replace')}.json"


def chosen_plan(word: str | None, source: Path | None, rank: int) -> SavedPlan:
    """Return the plan with an id, or with a rank in an answer file.

    Raises:
        BadParameter: neither is given, or both.
        InvalidProblemError: there is no such plan.
    """
    if (word is None) == (source is None):
        raise typer.BadParameter("give one plan: its rank (1), its id, or --from answer.json")
    return plan_of_file(source, rank) if source is not None else find_plan(word or "")


def plan_named(word: str, rank: int = 1) -> SavedPlan:
    """Return the saved plan with an id, or the plan with a rank in an answer's file or folder.

    Raises:
        InvalidProblemError: there is no such plan.
    """
    path = Path(word)
    if path.is_dir():
        path /= ANSWER_FILE
    return plan_of_file(path, rank) if path.is_file() else find_plan(word)


def find_plan(plan_id: str) -> SavedPlan:
    """Return the plan with an id that starts with ``plan_id``, or with a rank in the newest answer.

    Raises:
        InvalidProblemError: no saved plan, or several, have such an id.
    """
    if (rank := _rank_in(plan_id)) is not None:
        _require_kept()
        answers = [document for document, _ in _plans_like("") if document["plans"]]
        if not answers:
            raise InvalidProblemError.of(
                "plan_id", "no saved answer. Run meshwright plan first, or pass --from"
            )
        return SavedPlan(document=answers[-1], body=_of_rank(answers[-1]["plans"], rank))
    found = {plan["plan_id"]: (document, plan) for document, plan in _plans_like(plan_id) if plan_id}
    if not found:
        ids = list(dict.fromkeys(str(plan["plan_id"]) for _, plan in _plans_like("")))
        near = get_close_matches(plan_id[:_ID_LENGTH], ids, n=_MOST_NAMED)
        raise InvalidProblemError.of(
            "plan_id",
            f'no saved plan starts with "{shown(plan_id)}". Pass --from answer.json, or plan again',
            nearest=", ".join(near) or None,
        )
    if len(found) > 1:
        some, more = list(found)[-_MOST_NAMED:], len(found) - _MOST_NAMED
        rest = f" and {more} more" if more > 0 else ""
        raise InvalidProblemError.of(
            "plan_id", f'"{shown(plan_id)}" fits {len(found)} plans', nearest=", ".join(some) + rest
        )
    document, body = next(iter(found.values()))
    return SavedPlan(document=document, body=body)


def _require_kept() -> None:
    try:
        newest = _newest_first(state_folder())[:1]
    except OSError:
        return
    if [path.name for path in newest] == [_OF_ROLES]:
        raise InvalidProblemError.of(
            "plan_id",
            f"the newest answer is of kind: {POST_TRAINING}, and is not kept. Its files come with "
            "meshwright plan FILE --save-dir run/; older plans have ids",
        )


def plan_of_file(path: Path, wanted: int | str) -> SavedPlan:
    """Return the plan with a rank, or with the start of an id, in a file that ``plan --json`` wrote.

    Raises:
        InvalidProblemError: the file is not an answer, or holds no such plan.
    """
    document = read_problem_file(path)
    plans, problem = document.get("plans"), document.get("problem")
    if not isinstance(plans, list) or not isinstance(problem, dict):
        raise InvalidProblemError.of("--from", "not an answer file from `meshwright plan --json`")
    plans = [plan for plan in plans if isinstance(plan, dict)]
    document = {**document, "plans": plans}
    rank = wanted if isinstance(wanted, int) else _rank_in(wanted)
    if rank is not None:
        return SavedPlan(document=document, body=_of_rank(plans, rank) if plans else {})
    known = (*plans, *closest_of(document))
    found = [plan for plan in known if str(plan.get("plan_id", "")).startswith(str(wanted))]
    if len(found) != 1:
        count = len(found) or "no"
        raise InvalidProblemError.of(
            "plan_id", f'{count} plans of the file have an id that starts with "{shown(str(wanted))}"'
        )
    return SavedPlan(document=document, body=found[0])


def _rank_in(word: str) -> int | None:
    """Return the rank that a word states; None if it is an id."""
    return int(word) if word.isdecimal() and len(word) <= _LONGEST_RANK else None


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
    fault = FieldError(
        pointer="--rank",
        message=f"the answer holds {len(plans)} plan{'s' * (len(plans) != 1)}, none of rank {rank}",
        allowed=allowed or None,
        nearest=None if nearest is None else str(nearest),
        value=rank,
    )
    raise InvalidProblemError([fault])


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
            every = (*document["plans"], *closest_of(document))
            plans = [plan for plan in every if plan["plan_id"].startswith(plan_id)]
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            continue
        for plan in plans:
            yield document, plan


def _newest_first(folder: Path, names: str = "*.json") -> list[Path]:
    ages = [(path.stat().st_mtime, path) for path in folder.glob(names)]
    return [path for _, path in sorted(ages, reverse=True)]

"""``meshwright plan`` of a file with ``kind: post_training``: the roles of a step."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from meshwright.launchers.post_training.log import read_step_log
from meshwright.launchers.post_training.read import is_recipe, read_recipe
from meshwright.launchers.post_training.read_trl import ACCELERATE_FILE, is_yaml_of_trl
from meshwright.launchers.post_training.recipe import Recipe
from meshwright.launchers.post_training.registry import export
from meshwright.launchers.target import ExportBundle
from meshwright.profiles.documents import document_text, shown_path
from meshwright.profiles.errors import FieldError, InvalidProblemError, faults_as
from meshwright.profiles.inline import cluster_from_mapping
from meshwright.service.cli.costs import profile_for
from meshwright.service.cli.progress import ProgressLine, cancellable
from meshwright.service.cli.saved_plans import note_roles
from meshwright.service.cli.terminal import (
    CANCELLED,
    FOUND,
    print_json,
    say_warnings,
    screen,
    write_file,
)
from meshwright.service.files import ANSWER_FILE, REPORT_FILE, check_folder, save_folder
from meshwright.service.post_training.answer import post_training_document
from meshwright.service.post_training.request import (
    ROLE_PARTS,
    read_post_training,
    require_roles,
    without_roles,
)
from meshwright.service.report.formatting import seconds
from meshwright.service.report.post_training import (
    render_against,
    render_parts,
    render_post_training,
    roles_page,
)
from meshwright.service.requests.assignments import values_by_own_names
from meshwright.service.requests.fields import POST_TRAINING
from meshwright.solver.clock import Watch
from meshwright.solver.post_training.plan import plan_post_training
from meshwright.solver.post_training.problem import PARTS

PROBLEM_FILE = "problem.json"


def run_post_training(
    request: Mapping[str, object],
    *,
    json_output: bool,
    save_dir: Path | None,
    force: bool,
    calibration: Sequence[Path] | None = None,
) -> int:
    """Place the roles and print them; the exit code.

    Raises:
        InvalidProblemError: the request is wrong, the pool holds no role, or the folder is taken.
        RefusedExportError: the launcher cannot express the best plan.
    """
    read = read_post_training(request)
    if save_dir is not None:
        check_folder(save_dir, force=force, plan_id="")
    line, number, best = ProgressLine(), count(1), [""]

    def searching(group: str, nodes: int) -> None:
        line.rewrite(f"search {next(number)}: training on {nodes} nodes of {group}{best[-1]}")

    def improved(step_s: float) -> None:
        best.append(f" · best so far {seconds(step_s)} a step")

    with cancellable() as should_stop:
        answer = plan_post_training(
            read.asked,
            profile_of=lambda problem: profile_for(problem, calibration),
            watch=Watch(time_limit_s=math.inf, should_stop=should_stop),
            on_search=searching,
            on_best=improved,
        )
        line.clear()
    document = post_training_document(read, answer)
    if json_output:
        print_json(document)
    else:
        console = screen()
        console.print(render_post_training(document, width=console.width))
    say_warnings(note_roles())
    if save_dir is not None:
        sys.stdout.flush()
        _save(document, export(read.asked, answer.plans[0]), save_dir, force=force)
    return CANCELLED if should_stop() else FOUND


def predict_roles(request: Mapping[str, object], *, json_output: bool) -> int:
    """Price the roles that a request pins, and print them; the exit code.

    Raises:
        InvalidProblemError: the request is wrong or pins too little, or the roles don't fit.
    """
    require_roles(read_post_training(request).asked.pins)
    return run_post_training(request, json_output=json_output, save_dir=None, force=False)


def calibrate_roles(
    request: Mapping[str, object], log: Path, *, out: Path | None, json_output: bool
) -> int:
    """Add the step of a trainer's log to a question, and print what it corrects; the exit code.

    ``out`` gets the question with the measured step and without the roles that ran it, so that a plan
    chooses them anew.

    Raises:
        InvalidProblemError: the log has no step, or the request doesn't state the roles that ran it.
    """
    seen = read_step_log(log.name, read_text(log, "--log"))
    earlier = request.get("measured")
    parts = {part: round(value, 3) for part, value in seen.parts_s.items() if part in PARTS}
    step = {"parts": parts, **{name: request[name] for name in ROLE_PARTS if name in request}}
    steps = [*(earlier if isinstance(earlier, list) else []), step]
    whole = {**request, "measured": steps}
    read = read_post_training(whole)
    predicted = plan_post_training(read.asked.measured[-1].asked).plans[0].parts_s
    answer = plan_post_training(read.asked)
    rows = [
        {
            "part": part, "predicted_s": predicted[part], "measured_s": seen.parts_s.get(part),
            "factor": answer.corrections.get(part),
        }
        for part in PARTS
        if predicted[part] > 0.0
    ]  # fmt: skip
    if out is not None:
        write_file(out, document_text(without_roles(whole)), "--out")
        sys.stderr.write(f"wrote {out}\n")
    if json_output:
        print_json({"steps": seen.steps, "parts": rows, "measure_next": answer.measure_next})
        return FOUND
    screen().print(render_parts(rows, steps=seen.steps, measure_next=answer.measure_next))
    if seen.runs_ahead:
        sys.stderr.write("generation runs ahead here, and its log says only how long training waited\n")
    return FOUND


def starts_post_training(files: Sequence[Path] | None) -> bool:
    """Return whether launch files are one recipe of post-training."""
    if files is None or len(files) != 1 or not files[0].is_file():
        return False
    try:
        return is_recipe(files[0].name, read_text(files[0]))
    except InvalidProblemError:  # no text, or no YAML: other readers say so
        return False


def _question_of(request: Mapping[str, object], found: Recipe, recipe: Path) -> dict[str, Any]:
    """Return the question that a recipe answers, with the request's own fields over it.

    Raises:
        InvalidProblemError: no GPUs are stated.
    """
    if "kind" in request:
        return dict(request)
    if "cluster" not in request:
        raise InvalidProblemError([_lacking_gpus(recipe, f"{found.nodes * found.gpus_per_node}xH100")])
    parts = found.parts
    return {
        "kind": POST_TRAINING,
        **({"model": found.model} if found.model else {}),
        "lengths": {"max": found.longest_tokens},
        "launcher": found.launcher,
        "rollout": {"engine": parts["rollout"]["engine"]},
        "training": {"trainer": parts["training"]["trainer"]},
        **{part: parts[part] for part in ("algorithm", "adapters", "reward") if part in parts},
        **request,
    }


def _lacking_gpus(recipe: Path, example: str) -> FieldError:
    return FieldError(
        pointer="/cluster", message=f"is required: {shown_path(recipe)} names no type of GPU",
        allowed="--gpus and a number of GPUs with their type", nearest=f"--gpus {example}",
        tip=f"--gpus {example}",
    )  # fmt: skip


def predict_recipe(
    request: Mapping[str, object], recipe: Path, stated: Sequence[str] | None = None, *, json_output: bool
) -> int:
    """Price the roles of a recipe, with ``NAME=VALUE`` over its own, and print them; the exit code.

    Raises:
        InvalidProblemError: as ``explain_roles``.
    """
    found = _read(recipe, request, stated)
    question = _question_of(request, found, recipe)
    for note in found.notes:
        sys.stderr.write(f"note: {note}\n")
    with faults_as(partial(_of_recipe, recipe)):
        return predict_roles({**question, **_roles_of(question, found)}, json_output=json_output)


def _read(recipe: Path, request: Mapping[str, object], stated: Sequence[str] | None) -> Recipe:
    """Return what a recipe fixes; a YAML of TRL's alone starts a process for each GPU of one node."""
    text, beside = read_text(recipe), partial(_beside, recipe.parent)
    over = values_by_own_names("--set", stated or ())
    if "kind" not in request and "cluster" not in request:
        try:
            return read_recipe(recipe.name, text, beside, over)
        except InvalidProblemError as fault:
            rest = [one for one in fault.errors if one.pointer != "/num_processes"]  # which GPUs may state
            raise InvalidProblemError([_lacking_gpus(recipe, "1xH100"), *rest]) from None
    gpus = 0 if "kind" in request or "cluster" not in request else _gpus_of_a_node(request["cluster"])
    if not gpus or not is_yaml_of_trl(recipe.name, text) or beside(ACCELERATE_FILE) is not None:
        return read_recipe(recipe.name, text, beside, over)
    started = f"{{distributed_type: 'NO', num_machines: 1, num_processes: {gpus}}}"
    found = read_recipe(
        recipe.name, text, lambda name: started if name == ACCELERATE_FILE else beside(name), over
    )
    note = f"num_processes is not stated: {gpus}, one for each GPU, as accelerate launch starts"
    return replace(found, notes=(*found.notes, note))


def _gpus_of_a_node(part: object) -> int:
    """Return the GPUs of a cluster of one node; 0: there are more nodes, which accelerate is told of."""
    cluster = cluster_from_mapping(part)
    return cluster.num_gpus if sum(group.num_nodes for group in cluster.groups) == 1 else 0


def explain_roles(
    request: Mapping[str, object], recipe: Path, stated: Sequence[str] | None = None, *, json_output: bool
) -> int:
    """Price the roles of a recipe next to the best ones, and print what each part takes; the exit code.

    The question stays the request's: of the recipe only the roles count, unless the request has none.
    ``stated`` values (``NAME=VALUE``) count before the recipe's.

    Raises:
        InvalidProblemError: the request or the recipe is wrong, or the recipe's roles don't fit the pool.
    """
    found = _read(recipe, request, stated)
    request = _question_of(request, found, recipe)
    with faults_as(partial(_of_recipe, recipe)):
        yours = _answered({**request, **_roles_of(request, found)})
    best = _answered(request)
    notes = [*_differences(request, found), *found.notes]
    if json_output:
        print_json({"yours": yours["plans"][0], "best": best["plans"][0], "notes": notes})
        return FOUND
    console = screen()
    console.print(render_against(yours, best, notes, width=console.width))
    return FOUND


_ROLES = ("rollout", "training", "asynchrony")


def _roles_of(request: Mapping[str, object], found: Recipe) -> dict[str, Any]:
    """Return the roles of a recipe as fields of a question; of a reward model only where it is."""
    roles: dict[str, Any] = {part: found.parts[part] for part in _ROLES}
    own = request.get("reward")
    if isinstance(own, Mapping) and own.get("model") is not None and "reward" in found.parts:
        placed = {name: value for name, value in found.parts["reward"].items() if name != "model"}
        roles["reward"] = {**own, **placed}
    return roles


def _answered(request: Mapping[str, object]) -> dict[str, Any]:
    read = read_post_training(request)
    answer = plan_post_training(read.asked)
    return post_training_document(read, answer)


def _beside(folder: Path, name: str) -> str | None:
    path = folder / name
    return read_text(path) if path.is_file() else None


def read_text(path: Path, option: str = "--from-args") -> str:
    """Return the text of a recipe or a log.

    Raises:
        InvalidProblemError: it cannot be read.
    """
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        raise InvalidProblemError.of(option, f"{shown_path(path)}: cannot be read as text") from None


def _of_recipe(recipe: Path, fault: FieldError) -> FieldError:
    return replace(fault, message=f"{shown_path(recipe)}: {fault.message}")


def _differences(request: Mapping[str, object], found: Recipe) -> list[str]:
    """Return what the recipe states otherwise than the request, whose values count for both."""
    asked, reward = request.get("algorithm"), request.get("reward")
    own = asked if isinstance(asked, Mapping) else {}
    scores = reward.get("model") is not None if isinstance(reward, Mapping) else False
    notes = []
    notes += _other_adapters(request, found)
    if scores != ("reward" in found.parts):
        theirs = "no reward model" if scores else f"the reward model {found.parts['reward']['model']}"
        notes.append(f"the recipe has {theirs}; the rewards of your question count for both")
    return notes + [
        f"the recipe has {name} {value}; {own[name]} of your question counts for both"
        for name, value in found.parts["algorithm"].items()
        if name in own and own[name] != value
    ]


def _other_adapters(request: Mapping[str, object], found: Recipe) -> list[str]:
    stated, own = request.get("adapters"), found.parts.get("adapters")
    if not isinstance(stated, Mapping) and own is None:
        return []
    if isinstance(stated, Mapping) and own is not None and stated.get("rank") == own["rank"]:
        return []
    words = "no adapters" if own is None else f"adapters of rank {own['rank']}"
    theirs = f"rank {stated.get('rank')}" if isinstance(stated, Mapping) else "none"
    return [f"the recipe has {words}; those of your question ({theirs}) count for both"]


def _save(document: Mapping[str, Any], bundle: ExportBundle, folder: Path, *, force: bool) -> None:
    from meshwright.service.report.page import render_page  # noqa: PLC0415 - only for a folder

    files = {
        ANSWER_FILE: document_text(document),
        PROBLEM_FILE: document_text(document["problem"]),
        REPORT_FILE: render_page(roles_page(document)),
        **bundle.files,
    }
    save_folder(folder, files, plan_id=document["plans"][0]["plan_id"], force=force)
    say_warnings(bundle.warnings)
    sys.stderr.write(f"wrote {', '.join(files)} to {folder}\n")

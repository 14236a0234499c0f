"""``meshwright plan`` of a file with ``kind: post_training``: the roles of a step."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from meshwright.launchers.post_training.registry import export
from meshwright.launchers.target import ExportBundle
from meshwright.profiles.documents import document_text
from meshwright.service.cli.costs import profile_for
from meshwright.service.cli.progress import ProgressLine, cancellable
from meshwright.service.cli.terminal import CANCELLED, FOUND, print_json, say_warnings, screen
from meshwright.service.files import ANSWER_FILE, REPORT_FILE, check_folder, save_folder
from meshwright.service.post_training.answer import post_training_document
from meshwright.service.post_training.request import read_post_training
from meshwright.service.report.post_training import render_post_training, roles_page
from meshwright.solver.post_training.plan import plan_post_training

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
    line, number = ProgressLine(), count(1)

    def searching(group: str, nodes: int) -> None:
        line.rewrite(f"search {next(number)}: training on {nodes} nodes of {group}")

    with cancellable() as should_stop:
        answer = plan_post_training(
            read.asked,
            profile_of=lambda problem: profile_for(problem, calibration),
            should_stop=should_stop,
            on_search=searching,
            mean_is_assumed=read.mean_is_assumed,
        )
        line.clear()
    document = post_training_document(read, answer)
    if json_output:
        print_json(document)
    else:
        console = screen()
        console.print(render_post_training(document, width=console.width))
    if save_dir is not None:
        sys.stdout.flush()
        _save(document, export(read.asked, answer.plans[0]), save_dir, force=force)
    return CANCELLED if should_stop() else FOUND


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

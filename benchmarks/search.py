"""How fast the search proves its ranking: ``python -m benchmarks.search [--write] [PROBLEM.json ...]``.

Every problem of ``benchmarks/problems`` (requests, read as the service reads them) is asked three times,
each time in a process of its own: by the exact programs alone for the best plan and for ten, then for ten
with CP-SAT's certificate. It is asked as a user asks it: with all switches that a request leaves open, on
all GPUs or fewer. A line has the configurations covered, the rows that got a split, the CPU seconds to
the first plan and to the proofs, those of CP-SAT's decision without loading OR-Tools and the rows that it
decides among, the gap between the best step and its bound, and the largest memory of the process. All but
the proof of the best plan are of the search for ten.

A second table shows how the best plan so far approached the proved one, as progress reported it, and marks
what came later than promised. A third one shows what each switch of the launcher gains, and all of them
together: how much shorter the proved best step is where the search may choose it, and the CPU seconds of
the proof of the top 10 with all; ``--no-switches`` leaves it out. ``--write`` puts the tables into
docs/how-the-search-works.md; if problems are named, only their lines. Seconds are CPU seconds, so that
other work on the machine matters little.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.growth import grow
from meshwright.profiles.profile import Profile, default_profile
from meshwright.profiles.switches import EVERY_SWITCH, NO_SWITCH, switches
from meshwright.service.requests.documents import read_problem_file
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.clock import Watch
from meshwright.solver.planner.plan import ask
from meshwright.solver.problem import Certify, Problem, Progress
from meshwright.solver.search.certify.judge import Judge
from meshwright.solver.search.decision.question import Question

ROOT = Path(__file__).parents[1]
PROBLEMS = ROOT / "benchmarks" / "problems"
DOCUMENT = ROOT / "docs" / "how-the-search-works.md"
MIB = 2**20
METHODS: dict[str, tuple[Certify, int | None]] = {  # the judge, and how many plans; None: as asked
    "best": ("none", 1), "none": ("none", None), "cp-sat": ("cp-sat", None),
}  # fmt: skip
# The best plan so far takes at most so many times as long as the proved one, after so many CPU seconds or
# that share of those to the proof.
PROMISED = ((1.10, 1.0, 0.10), (1.03, 2.0, 0.30))
_PATIENCE_S = 3600.0  # limits are of a clock on the wall: on a busy machine a problem's own may come first
ANY_TIME = ("problem", "best plan so far / proved one", "within 10 %", "within 3 %", "proof")
SWITCHED = ("problem", *switches(), "all", "proof with all")
HEADINGS = (
    "problem", "GPUs", "configurations", "solved", "first plan", "proof of the best plan",
    "proof of the top 10", "with CP-SAT", "decision", "rows of it", "gap", "memory",
)  # fmt: skip


@contextmanager
def decisions() -> Iterator[list[tuple[Question, float]]]:
    """Collect each question that CP-SAT decides in this block, with its CPU seconds without loading."""
    asked, decide = list[tuple[Question, float]](), Judge.decide

    def heard(self: Judge, question: Question, watch: Watch) -> Mapping[str, Any] | None:
        verdict = decide(self, question, watch)
        asked.append((question, verdict["cpu_s"] if verdict else 0.0))
        return verdict

    with patch.object(Judge, "decide", heard):
        yield asked


def measured(path: Path, method: str) -> dict[str, Any]:
    """Search one problem in this process and describe it."""
    problem = parse_problem(read_problem_file(path))
    certify, top_k = METHODS[method]
    options = replace(
        problem.options, certify=certify, top_k=top_k or problem.options.top_k, time_limit_s=_PATIENCE_S
    )
    problem = replace(problem, options=options)
    profile = default_profile(problem.cluster, problem.launcher)
    told = list[tuple[float, float]]()  # CPU seconds and the best step so far

    def note(progress: Progress) -> None:
        if progress.incumbent_step_time_s is not None:
            told.append((_cpu_s() - began_cpu_s, progress.incumbent_step_time_s))

    began_cpu_s = _cpu_s()
    with decisions() as asked:
        answer = ask(problem, profile, on_progress=note)
    best = answer.plans[0].prediction.step_time_s
    return {
        "curve": [(cpu_s, step_s / best) for cpu_s, step_s in told],
        "gpus": problem.cluster.num_gpus,
        "configurations": answer.space_size,
        "solved": answer.counts["solved"],
        "cpu_s": _cpu_s() - began_cpu_s,
        "gap": answer.gap,
        "status": answer.status,
        "certified_by": list(answer.certified_by),
        "decision_cpu_s": sum(cpu_s for _, cpu_s in asked),
        "decision_rows": len(asked[-1][0].values) if asked else 0,
        "memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def _cpu_s() -> float:
    """CPU time of this process and of the children that have ended."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def switched(path: Path) -> dict[str, Any]:
    """What each switch gains in this process: share of the best step, by name; None: there is no choice."""
    problem = parse_problem(read_problem_file(path))
    profile, gains = default_profile(problem.cluster, problem.launcher), dict[str, float | None]()
    step_s, cpu_s = _best_step_s(problem, profile, (NO_SWITCH,))[0], 0.0
    for name in (*switches(), EVERY_SWITCH):
        began_s = _cpu_s()
        best_s, variants = _best_step_s(problem, profile, (name, NO_SWITCH))
        gains[name] = 1.0 - best_s / step_s if variants > 1 else None
        cpu_s = _cpu_s() - began_s
    return {"gains": gains, "cpu_s": cpu_s}


def _best_step_s(problem: Problem, profile: Profile, allow: tuple[str, ...]) -> tuple[float, int]:
    """The proved best step where these switches are open, and the number of their combinations."""
    top_k = problem.options.top_k if EVERY_SWITCH in allow else 1
    options = replace(problem.options, allow=allow, certify="none", top_k=top_k, time_limit_s=_PATIENCE_S)
    answer = ask(replace(problem, options=options), profile)
    if not answer.plans:  # the switch needs what the request lacks, such as lengths of documents
        return inf, 1
    return answer.plans[0].prediction.step_time_s, int(answer.notes.get("variants", "1"))


def in_a_process(path: Path, method: str) -> dict[str, Any]:
    """Measure in a fresh process; ``method`` may be ``switches``."""
    command = [sys.executable, "-m", "benchmarks.search", "--one", method, str(path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=ROOT)
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def line(path: Path, found: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """One row of the table."""
    exact, judged = found["none"], found["cp-sat"]
    first_s = exact["curve"][0][0] if exact["curve"] else None
    rows = judged["decision_rows"]
    proved = "" if "cp-sat" in judged["certified_by"] else " (not certified)"
    return (
        path.stem,
        f"{exact['gpus']:,}".replace(",", " "),
        f"{exact['configurations']:,}".replace(",", " "),
        str(exact["solved"]),
        "-" if first_s is None else f"{first_s:.2f} s",
        *(
            f"{one['cpu_s']:.2f} s" + ("" if one["status"] == "optimal" else f" ({one['status']})")
            for one in (found["best"], exact)
        ),
        f"{judged['cpu_s']:.2f} s{proved}",
        *((f"{judged['decision_cpu_s']:.2f} s", str(judged["decision_rows"])) if rows else ("–", "–")),
        "-" if exact["gap"] is None else f"{exact['gap']:.2%}",
        f"{exact['memory_bytes'] / MIB:.0f} MiB",
    )


def reached_s(curve: Sequence[Sequence[float]], share: float) -> float:
    """CPU seconds until the best plan so far takes at most ``share`` times as long as the proved one."""
    return next(cpu_s for cpu_s, times in curve if times <= share)


def at_any_time(name: str, exact: Mapping[str, Any]) -> tuple[str, ...]:
    """One row of the second table; what came later than is promised is marked with a cross."""
    curve, reached = exact["curve"], []
    for share, least_s, of_proof in PROMISED:
        cpu_s = reached_s(curve, share)
        late = cpu_s > max(least_s, of_proof * exact["cpu_s"])
        reached.append(f"{cpu_s:.2f} s" + (" ✗" if late else ""))
    better = [point for at, point in enumerate(curve) if not at or point[1] < curve[at - 1][1]]
    points = ", ".join(f"{cpu_s:.2f} s: {times:.3f}" for cpu_s, times in better)
    return (name, points, *reached, f"{exact['cpu_s']:.2f} s")


LIMIT_S = 0.15  # CPU seconds to go through a space once and to price every distinct pass of it: .1 to .2


def limit_words(rows: Sequence[tuple[str, ...]]) -> str:
    """How many times as long as a search without a proof would take the proofs of the top 10 take."""
    at = HEADINGS.index("proof of the top 10")
    times = sorted(float(row[at].split(" ")[0]) / LIMIT_S for row in rows)
    return (
        f"No search takes less than about {LIMIT_S} CPU seconds: so long take the enumeration of a space "
        f"and a price for each distinct pass.\nThe proofs above take {times[0]:.0f} to {times[-1]:.0f} "
        f"times as long, {times[len(times) // 2]:.0f} times in the median."
    )


def by_switch(name: str, found: Mapping[str, Any]) -> tuple[str, ...]:
    """One row of the third table."""
    gains = ["–" if gain is None else f"{gain:.1%}" for gain in found["gains"].values()]
    return (name, *gains, f"{found['cpu_s']:.2f} s")


def aligned(headings: tuple[str, ...], lines: Sequence[tuple[str, ...]]) -> str:
    """The lines as a Markdown table that reads well in a terminal too."""
    rows = [headings, *lines]
    widths = [max(len(row[at]) for row in rows) for at in range(len(headings))]
    shown = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    return "\n".join([shown[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *shown[1:]])


def written(document: str, table: str, name: str) -> str:
    """The document with the table between the marks of its name."""
    marks = re.compile(rf"(<!-- table: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    return marks.sub(lambda found: f"{found[1]}{table}\n{found[2]}", document)


def renewed(document: str, name: str, lines: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The lines of a table of the document, those of the same problems replaced, others behind them."""
    (table,) = re.findall(rf"<!-- table: {name} -->\n(.*?)\n<!-- end -->", document, re.DOTALL)
    kept = [tuple(cell.strip() for cell in row.strip("|").split("|")) for row in table.splitlines()[2:]]
    found = {cells[0]: cells for cells in (*kept, *lines)}  # in the place where each was first
    return list(found.values())


def main() -> None:
    """Print the table, and write it where it is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("problems", nargs="*", type=Path, help="problem files; all of benchmarks/problems")
    parser.add_argument("--write", action="store_true", help="put the table into the document")
    parser.add_argument(
        "--no-switches", action="store_true", help="leave out what each switch gains, which takes longest"
    )
    parser.add_argument(
        "--one", choices=(*METHODS, EVERY_SWITCH), help="search one problem here and print figures as JSON"
    )
    parser.add_argument("--growth", action="store_true", help="draw how the search grows instead")
    asked = parser.parse_args()
    if asked.growth:
        grow(write=asked.write)
        return
    paths = asked.problems or sorted(PROBLEMS.glob("*.json"))
    if asked.one:
        one = switched(paths[0]) if asked.one == EVERY_SWITCH else measured(paths[0], asked.one)
        print(json.dumps(one))
        return
    lines, curves, gains = [], [], []
    for path in paths:
        answers: dict[str, dict[str, Any]] = {method: in_a_process(path, method) for method in METHODS}
        lines.append(line(path, answers))
        print("  ".join(lines[-1]), flush=True)
        curves.append(at_any_time(path.stem, answers["none"]))
        if not asked.no_switches and read_problem_file(path)["launcher"] != "none":  # which has no switches
            gains.append(by_switch(path.stem, in_a_process(path, EVERY_SWITCH)))
            print("  ".join(gains[-1]), flush=True)
    tables = {
        "search": (HEADINGS, lines),
        "any-time": (ANY_TIME, curves),
        **({"by-switch": (SWITCHED, gains)} if gains else {}),
    }
    print("\n\n".join(aligned(headings, found) for headings, found in tables.values()))
    if asked.write:
        document = DOCUMENT.read_text(encoding="utf-8")
        for name, (headings, found) in tables.items():
            rows = renewed(document, name, found) if asked.problems else found
            document = written(document, aligned(headings, rows), name)
            if name == "search":
                document = written(document, limit_words(rows), "search-limit")
        DOCUMENT.write_text(document, encoding="utf-8")


if __name__ == "__main__":
    main()

"""What a user could type to beat the default answer: ``make bench ARGS=default-answer``.

Each of 20 models is planned as a request without options, and then with one more permission at a time: all
switches, any launcher, numerics that seldom matter (gradients and Adam's moments in bf16), the layout and
switches of the fastest published recipe, and rounder batches and lengths nearby. A cell states how much
longer the default answer takes for each token, and whether that answer names such a change; ``silent``
marks those that are more than 1 % behind (3 % for neighbours) without a word. The command fails on any.

``--only MODEL …`` plans these models alone; ``--write`` puts their lines into docs/how-the-search-works.md.
Each question has ten minutes: a plan is the proved one, on a busy machine too.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

from benchmarks.default_switches import MODELS as EXPERTS
from benchmarks.search import DOCUMENT, aligned, renewed, written
from meshwright.profiles.library import find_model
from meshwright.profiles.profile import default_profile
from meshwright.profiles.switches import EVERY_SWITCH
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.answer import Answer
from meshwright.solver.planner.launchers import ask_and_compare
from meshwright.solver.planner.levers.change import worth_of
from meshwright.solver.planner.levers.neighbours import rounder
from meshwright.solver.planner.plan import ask
from meshwright.solver.planner.recipes import fastest_recipe
from meshwright.solver.problem import Problem, SearchOptions

SEQ_LENGTH = 4096
# model, DGX H100, sequences of a batch
DENSE = (
    ("llama-3.1-8b", 4, 256),
    ("qwen3-32b", 4, 130),
    ("gemma-3-27b", 4, 128),
    ("llama-3.1-70b", 13, 514),
    ("qwen2.5-72b", 16, 512),
    ("mistral-large-123b", 16, 256),
    ("llama-3.1-405b", 64, 512),
    ("gpt-3-175b", 31, 248),
)
MODELS = (*EXPERTS, *DENSE)
NUMERICS = ("gradient_dtype", "adamw-bf16")
# what is allowed beyond the default, and the kinds of levers that name it
COLUMNS = {
    "switches": ("package",),
    "any launcher": ("launcher",),
    "numerics": ("gradients", "optimizer"),
    "recipe": ("recipe",),
    "neighbours": ("neighbour", "batch"),
}
HEADINGS = ("model", "GPUs", "default", *COLUMNS)
_PATIENCE_S = 600.0


@dataclass(frozen=True, slots=True)
class Cell:
    """The default answer next to another one: times as long for each token, and whether it says so."""

    behind: float | None  # share; None: there is no other answer
    named: bool
    least: float  # share from which on it is to be named

    @property
    def silent(self) -> bool:
        """Whether the answer should have named the other one."""
        return self.behind is not None and self.behind > self.least and not self.named

    def __str__(self) -> str:
        if self.behind is None:
            return "–"
        word = " named" if self.named else " silent" if self.silent else ""
        return f"{100.0 * max(self.behind, 0.0):.1f} %{word}"


def question(model: str, nodes: int, batch: int, launcher: str | None = None) -> Problem:
    """Return the request as a user states it."""
    positions = find_model(model).max_position_embeddings or SEQ_LENGTH
    raw: dict[str, object] = {
        "model": {"name": model},
        "cluster": {"name": "dgx-h100", "num_nodes": nodes},
        "workload": {"global_batch_size": batch, "seq_length": min(SEQ_LENGTH, positions)},
        "search": {"top_k": 3, "certify": "none", "time_limit_s": _PATIENCE_S},
    }
    return parse_problem(raw if launcher is None else {**raw, "launcher": launcher})


def _allowing(problem: Problem, *allow: str) -> Problem:
    options: SearchOptions = replace(problem.options, allow=(*problem.options.allow, *allow), top_k=1)
    return replace(problem, options=options)


def _per_token_s(problem: Problem, answer: Answer) -> float:
    """Return the best listed step over its tokens; +inf without a plan."""
    found = (one.prediction.step_time_s / problem.tokens_of(one.config) for one in answer.ranking)
    return min(found, default=inf)


def _asked(problem: Problem) -> float:
    return _per_token_s(problem, ask(problem, default_profile(problem.cluster, problem.launcher)))


def _neighbours(problem: Problem) -> Iterator[Problem]:
    work = problem.workload
    for size in rounder(work.global_batch_size)[:1]:
        yield replace(problem, workload=replace(work, global_batch_size=size))
    for length in rounder(work.seq_length)[:1]:
        yield replace(problem, workload=replace(work, seq_length=length))


def cells(model: str, nodes: int, batch: int) -> tuple[float, list[Cell]]:
    """Return the default step and one cell for each of COLUMNS."""
    problem = question(model, nodes, batch)
    profile = default_profile(problem.cluster, problem.launcher)
    answer = ask_and_compare(problem, profile)
    own_s, kinds = _per_token_s(problem, answer), {lever.kind for lever in answer.levers}
    recipe = fastest_recipe(problem, profile, precision=problem.workload.precision)
    others = {
        "switches": _asked(_allowing(problem, EVERY_SWITCH)),
        "any launcher": _asked(_allowing(question(model, nodes, batch, "any"))),
        "numerics": _asked(_allowing(problem, *NUMERICS)),
        "recipe": inf
        if recipe is None
        else recipe.prediction.step_time_s / problem.tokens_of(recipe.config),
        "neighbours": min(map(_asked, _neighbours(_allowing(problem))), default=inf),
    }
    found = list[Cell]()
    for name, names in COLUMNS.items():
        behind = None if others[name] == inf else own_s / others[name] - 1.0
        # levers of a kind are named from their own worth on
        least = max(0.01, *(worth_of(kind) for kind in names[:1])) / (1.0 - worth_of(names[0]))
        found.append(Cell(behind, named=bool(kinds & {*names}), least=least))
    return answer.ranking[0].prediction.step_time_s, found


def main() -> int:
    """Print the table; 1 where an answer is behind without a word."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--only", nargs="+", default=(), help="these models alone")
    parser.add_argument("--write", action="store_true", help="put the lines into the document")
    asked = parser.parse_args()
    lines, silent = list[tuple[str, ...]](), 0
    for model, nodes, batch in MODELS:
        if asked.only and model not in asked.only:
            continue
        step_s, found = cells(model, nodes, batch)
        silent += sum(one.silent for one in found)
        lines.append((model, str(8 * nodes), f"{step_s:.3g} s", *map(str, found)))
        sys.stdout.write("  ".join(lines[-1]) + "\n")
        sys.stdout.flush()
    sys.stdout.write(f"\n{aligned(HEADINGS, lines)}\n")
    if asked.write:
        _write(lines, whole=not asked.only)
    return int(silent > 0)


def _write(lines: Sequence[tuple[str, ...]], *, whole: bool) -> None:
    document = DOCUMENT.read_text(encoding="utf-8")
    rows = list(lines) if whole else renewed(document, "default-answer", lines)
    DOCUMENT.write_text(written(document, aligned(HEADINGS, rows), "default-answer"), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())

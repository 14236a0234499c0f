"""Published recipes against our best plan and bound for the same model, GPUs, batch and switches.

    .venv/bin/python -m benchmarks.recipes            # prints the table, some four minutes on one core
    .venv/bin/python -m benchmarks.recipes --write    # and writes docs/recipes.md
    .venv/bin/python -m benchmarks.recipes --rows 10  # the first recipes, printed

A recipe is an open run whose switches (``switch_source``) and format are stated: one a model, GPU and
format, the one that trains most tokens a second and GPU. The search has the run's own switches and risk of
running out of memory: it may change the layout, recomputation and the split of the layers, and nothing of
the software. It keeps Megatron-Bridge's limits; where those refuse the recipe itself, no launcher's.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

from benchmarks.fit.accuracy_tables import table
from meshwright.profiles.profile import Profile, default_profile
from meshwright.solver.check import violations
from meshwright.solver.predict import predict
from meshwright.solver.problem import Problem, SearchOptions
from meshwright.solver.runs.cells import read_cells
from meshwright.solver.runs.table import CATALOG_RUNS, Run, RunShape, read_runs
from meshwright.solver.search.search import search

DOCUMENT = Path(__file__).parent.parent / "docs" / "recipes.md"
LEAST_GPUS = 16
TIME_LIMIT_S = 15.0
LAUNCHER = "megatron-bridge"
INTRODUCTION = """# Published recipes against our plans

Run `make bench ARGS="recipes --write"` to generate this page. You see open runs with stated switches and
format, one line for each model, GPU and format: the run with most tokens a second and GPU.

* *Ours* is our prediction of the same layout.
* *Best* is the fastest plan that the search finds for the same model, machine, batch and switches within
  {limit:g} s.
* *Bound*: no plan of the searched space is faster **under our model, over these switches**. *Lower edge*
  is that bound at the lower end of its 80 % interval. A recipe below it refutes the model, not physics.
* *OOM* is the predicted risk that the layout, which ran, runs out of memory. The search may take the same
  risk, and offload if the recipe does. Otherwise it would bound a space without that layout.

The search keeps Megatron-Bridge's limits. A * marks recipes that these limits refuse: the search uses no
launcher's limits for them. You see a – if the search found no plan, or no bound in that time, and if
neither space has the layout.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One line of the table; seconds of a step."""

    run: Run
    published_s: float
    ours_s: float
    chance_of_failing: float  # to run out of memory, of the layout that ran
    best_s: float | None
    bound_s: float | None
    edge_s: float | None
    refused: bool  # by the launcher's limits

    @property
    def under(self) -> bool:
        """Whether it runs faster than the lower edge of the bound's interval."""
        return self.edge_s is not None and self.published_s < self.edge_s


def chosen(runs: Sequence[Run]) -> list[Run]:
    """The fastest run of each recipe, in the order of their first runs."""
    stated = {
        cells.text("run_id")
        for cells in read_cells(CATALOG_RUNS)
        if cells.text("switch_source") and cells.text("precision")
    }
    best: dict[tuple[object, ...], Run] = {}
    for run in runs:
        if run.run_id not in stated or run.shape is None or not run.measured.step_time_s:
            continue
        problem = run.shape.problem
        if problem.cluster.num_gpus < LEAST_GPUS or problem.workload.lora_rank:
            continue
        recipe = problem.workload.framework_options.get("precision_recipe", problem.workload.precision)
        key = (problem.model.name, problem.cluster.groups[0].gpu.slug, recipe)
        if key not in best or _speed(run) > _speed(best[key]):
            best[key] = run
    return list(best.values())


def problem_of(shape: RunShape, profile: Profile, risk: float) -> Problem | None:
    """What is searched for a recipe: a space that has its layout; None where there is none."""
    allow = () if shape.configuration.offload == "none" else ("offload",)
    options = SearchOptions(
        time_limit_s=TIME_LIMIT_S, top_k=1, max_out_of_memory_probability=risk, allow=allow
    )
    for launcher in (LAUNCHER, "none"):
        problem = replace(shape.problem, launcher=launcher, options=options)
        if not any(violations(problem, profile, shape.configuration)):
            return problem
    return None


def _speed(run: Run) -> float:
    """Tokens a second and GPU."""
    if run.shape is None or not run.measured.step_time_s:
        return 0.0
    problem = run.shape.problem
    tokens = problem.workload.global_batch_size * problem.workload.seq_length
    return tokens / run.measured.step_time_s / problem.cluster.num_gpus


def judged(run: Run, shape: RunShape) -> Recipe:
    """Predict a recipe's own layout, and search for a better one under its switches."""
    profile = default_profile(shape.problem.cluster, shape.framework)
    own = predict(shape.problem, profile, shape.configuration)
    # up to a whole per cent, for no rounding may part the bound from the layout that ran
    risk = max(
        SearchOptions().max_out_of_memory_probability, ceil(100.0 * own.out_of_memory_probability) / 100
    )
    problem = problem_of(shape, profile, risk)
    answer = search(problem, profile) if problem else None
    best = answer.plans[0].prediction if answer and answer.plans else None
    bound = answer.bound_step_time_s if answer else None
    edge = bound * best.step_time_low_s / best.step_time_s if best and bound else None
    return Recipe(
        run=run,
        published_s=run.measured.step_time_s or 0.0,
        ours_s=own.step_time_s,
        chance_of_failing=own.out_of_memory_probability,
        best_s=best.step_time_s if best else None,
        bound_s=bound,
        edge_s=edge,
        refused=problem is None or problem.launcher != LAUNCHER,
    )


def _seconds(value: float | None) -> str:
    """Three digits."""
    return "–" if value is None else f"{value:.3g}"


def lines_of(recipes: Iterable[Recipe]) -> list[str]:
    """The table, and how many recipes refute the model."""
    titles = (
        "run",
        "model",
        "GPUs",
        "published s",
        "ours s",
        "%",
        "best s",
        "bound s",
        "lower edge s",
        "OOM",
    )
    rows, bounded, under, failing = [], 0, 0, 0
    for one in recipes:
        shape = one.run.shape
        name, gpus = (shape.problem.model.name, shape.problem.cluster.num_gpus) if shape else ("", 0)
        gpu = shape.problem.cluster.groups[0].gpu.slug if shape else ""
        error = f"{100.0 * (one.ours_s / one.published_s - 1.0):+.0f}"
        numbers = [_seconds(s) for s in (one.best_s, one.bound_s, one.edge_s)]
        mark = " **<**" if one.under else ""
        bounded, under = bounded + (one.edge_s is not None), under + one.under
        failing += one.chance_of_failing > 0.5  # noqa: PLR2004
        free = " *" if one.refused else ""
        ran = [one.run.run_id + free, name, f"{gpus} {gpu}", f"{one.published_s:.3g}{mark}"]
        rows.append([*ran, _seconds(one.ours_s), error, *numbers, f"{one.chance_of_failing:.0%}"])
    summary = (
        f"{len(rows)} recipes, {bounded} of them with a bound: {under} faster than its lower edge "
        f"(marked <), {failing} that ran called more likely out of memory than not."
    )
    return [summary, "", *table(titles, rows)]


def main() -> None:
    """Judge and write, or print some."""
    parser = argparse.ArgumentParser(description="Published recipes against our plans and bounds.")
    parser.add_argument("--write", action="store_true", help=f"write {DOCUMENT.name}")
    parser.add_argument("--rows", type=int, default=0, help="only the first so many, printed")
    asked = parser.parse_args()
    picked = chosen(read_runs(CATALOG_RUNS))[: asked.rows or None]
    recipes = []
    for run in picked:
        if run.shape is not None:
            recipes.append(judged(run, run.shape))
            print(run.run_id, len(recipes), "of", len(picked), file=sys.stderr, flush=True)
    text = "\n".join([INTRODUCTION.format(limit=TIME_LIMIT_S), *lines_of(recipes)]) + "\n"
    print(text)
    if asked.write:
        DOCUMENT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

"""Published recipes against our best plan and bound for the same model, GPUs, batch and switches.

    .venv/bin/python -m benchmarks.recipes            # prints the table, some fifteen minutes on one core
    .venv/bin/python -m benchmarks.recipes --write    # and writes docs/recipes.md
    .venv/bin/python -m benchmarks.recipes --rows 10  # the first recipes, printed

A recipe is an open run whose switches (``switch_source``) and format are stated: one a model, GPU and
format, the one that trains most tokens a second and GPU. The search has the run's own switches and risk of
running out of memory: it may change the layout, recomputation and the split of the layers, and nothing of
the software. It keeps Megatron-Bridge's limits; where those refuse the recipe itself, no launcher's.

Next to it the plain question is asked as a user asks it, who knows none of the recipe's facts: launcher,
model, machine, batch and format alone. Counted is what a sceptic would count: recipes faster than our best,
questions without an answer, published steps below the proved bound, and risks above what a request accepts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

from benchmarks.fit.accuracy_tables import table
from meshwright.profiles.frameworks import FORMATS
from meshwright.profiles.profile import Profile, default_profile
from meshwright.solver.check import violations
from meshwright.solver.planner.launchers import ask_and_compare
from meshwright.solver.predict import predict
from meshwright.solver.problem import Problem, SearchOptions, Workload
from meshwright.solver.runs.cells import read_cells
from meshwright.solver.runs.table import CATALOG_RUNS, Run, RunShape, read_runs
from meshwright.solver.search.search import search

DOCUMENT = Path(__file__).parent.parent / "docs" / "recipes.md"
LEAST_GPUS = 16
TIME_LIMIT_S = 60.0
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

* *Plain* is the first plan's step if you ask without knowing any of the recipe's facts: launcher, model,
  machine, batch and format alone. *Behind* is how much longer it is than *ours*, the recipe by our own
  model. Benchmarks load all experts equally, which no training run has: that is part of *behind*.
* *Says so*: whether that answer names the recipe, or another change, that would close the distance.
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
    plain_s: float | None  # of the plain question's first plan
    names: str  # what its answer offers, in a word

    @property
    def behind(self) -> float | None:
        """How much longer the plain question's plan takes than the recipe, by our own model."""
        return None if self.plain_s is None else self.plain_s / self.ours_s - 1.0

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


_LAUNCHERS = {"nemo": LAUNCHER, "megatron-core": "megatron-lm", "fsdp": "torchtitan", "maxtext": "maxtext"}


def plain_question(shape: RunShape) -> Problem | None:
    """What a user asks who knows none of the recipe's facts; None: no launcher of ours is meant."""
    work, launcher = shape.problem.workload, _LAUNCHERS.get(shape.framework)
    if launcher is None:
        return None
    recipe = work.framework_options.get("precision_recipe", "none")
    plain = Workload(
        global_batch_size=work.global_batch_size, seq_length=work.seq_length, precision=work.precision,
        optimizer="adamw" if work.optimizer.startswith("adamw") else work.optimizer,
        framework_options={"precision_recipe": recipe} if recipe in FORMATS else {},
    )  # fmt: skip
    options = SearchOptions(time_limit_s=TIME_LIMIT_S, certify="none")
    return replace(shape.problem, workload=plain, launcher=launcher, options=options)


def _asked(shape: RunShape) -> tuple[float | None, str]:
    """The plain question's step, and what its answer offers beyond."""
    problem = plain_question(shape)
    if problem is None:
        return None, ""
    answer = ask_and_compare(problem, default_profile(problem.cluster, problem.launcher))
    if not answer.plans:
        return None, ""
    kinds = {"recipe": "recipe", "package": "package", "neighbour": ""}
    offered = [kinds.get(lever.kind, "change") for lever in answer.levers]
    return answer.ranking[0].prediction.step_time_s, ", ".join(dict.fromkeys(filter(None, offered)))


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
    plain_s, names = _asked(shape)
    return Recipe(
        run=run,
        published_s=run.measured.step_time_s or 0.0,
        ours_s=own.step_time_s,
        chance_of_failing=own.out_of_memory_probability,
        best_s=best.step_time_s if best else None,
        bound_s=bound,
        edge_s=edge,
        refused=problem is None or problem.launcher != LAUNCHER,
        plain_s=plain_s,
        names=names,
    )


def _seconds(value: float | None) -> str:
    """Three digits."""
    return "–" if value is None else f"{value:.3g}"


def lines_of(recipes: Iterable[Recipe]) -> list[str]:
    """What a sceptic would count, and the table."""
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
        "plain s",
        "behind",
        "says so",
    )
    recipes, rows = list(recipes), []
    for one in recipes:
        shape = one.run.shape
        name, gpus = (shape.problem.model.name, shape.problem.cluster.num_gpus) if shape else ("", 0)
        gpu = shape.problem.cluster.groups[0].gpu.slug if shape else ""
        error = f"{100.0 * (one.ours_s / one.published_s - 1.0):+.0f}"
        numbers = [_seconds(s) for s in (one.best_s, one.bound_s, one.edge_s)]
        mark = " **<**" if one.under else ""
        free = " *" if one.refused else ""
        ran = [one.run.run_id + free, name, f"{gpus} {gpu}", f"{one.published_s:.3g}{mark}"]
        behind = "–" if one.behind is None else f"{100.0 * one.behind:+.1f} %"
        plain = [_seconds(one.plain_s), behind, one.names or "–"]
        rows.append([*ran, _seconds(one.ours_s), error, *numbers, f"{one.chance_of_failing:.0%}", *plain])
    return [*counts_of(recipes), "", *table(titles, rows)]


_ALIKE = 1.001  # times as long: rounding and the split of layers
_NOTABLE = 0.01  # share of a step


def counts_of(recipes: Sequence[Recipe]) -> list[str]:
    """What a sceptic would count, one line each."""
    accepted = SearchOptions().max_out_of_memory_probability
    bounded = [one for one in recipes if one.bound_s is not None]
    found = [one for one in recipes if one.best_s is not None]
    beaten = [one for one in found if one.ours_s * _ALIKE < (one.best_s or 0.0)]
    below = [one for one in bounded if one.published_s < (one.bound_s or 0.0)]
    plain = [one for one in recipes if one.behind is not None]
    behind = [one for one in plain if (one.behind or 0.0) > _NOTABLE]
    silent = [one for one in behind if not one.names]
    worst = max((one.behind or 0.0 for one in plain), default=0.0)
    likely = sum(one.chance_of_failing > _LIKELY for one in recipes)
    refuted = sum(one.under for one in bounded)
    return [
        f"{len(recipes)} recipes.",
        "",
        _counted(beaten, found, "are faster than our best by our own model: the search ended early, or the "
                 "recipe's split of the layers is better"),
        _counted([one for one in recipes if one.best_s is None], recipes, "have no best plan: no space of "
                 "ours has the layout, or the time ended"),
        _counted(below, bounded, "published steps are below our proved bound, and "
                 f"{refuted} below its lower edge (marked <): the model is too slow there"),
        _counted([one for one in recipes if one.chance_of_failing > accepted], recipes,
                 f"ran at a higher predicted risk than the {accepted:.0%} that a request accepts, "
                 f"{likely} at more than {_LIKELY:.0%}"),
        _counted([one for one in recipes if one.behind is None], recipes, "plain questions have no plan"),
        _counted(behind, plain, "plain questions are more than 1 % behind the recipe, "
                 f"{worst:.0%} at most. The answer is silent about {len(silent)} of these"),
    ]  # fmt: skip


def _counted(some: Sequence[Recipe], among: Sequence[Recipe], words: str) -> str:
    return f"* **{len(some)}** of {len(among)} {words}."


_LIKELY = 0.5


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

"""Predicts every open measured run in every way that can be told apart, and writes docs/accuracy.md.

Runs of fine-tuning by launchers' own trainers are a page of their own, docs/accuracy-fine-tuning.md.

    .venv/bin/python -m benchmarks.accuracy            # some ten minutes on one core
    .venv/bin/python -m benchmarks.accuracy --quick    # the gates and a few clusters, writes nothing

The full run prints what moved since the page was last committed. Both fail when a gate is missed.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
import yaml

from benchmarks.fit.accuracy_moved import committed, moved
from benchmarks.fit.accuracy_order import (
    Order,
    composed,
    lost,
    order_table,
    orders_of,
    regret_gained,
    regret_tables,
)
from benchmarks.fit.accuracy_spread import (
    coverage,
    errors_by,
    interval_reliability,
    memory_calls,
    memory_reliability,
    peaks_by,
)
from benchmarks.fit.accuracy_tables import (
    by_group,
    curves,
    error_percent,
    grouped,
    overall,
    pair_means,
    row_by_row,
    scored,
    table,
    time_cells,
    worst,
)
from benchmarks.fit.accuracy_trainers import write as write_fine_tuning
from benchmarks.fit.accuracy_unseen import (
    FIRST_RUNS,
    KINDS,
    Vote,
    both_samples,
    first_runs_table,
    first_sight,
    first_three,
    has_experts,
    judged,
    learnt_alone,
    mean_memory_error,
    memory_by_cluster,
    order_by_cluster,
    risk_rules,
    scored_freezes,
    series_table,
    sight_at_todays_width,
    split_table,
    stack_table,
    vote_of,
)
from benchmarks.fit.evidence import Evidence
from benchmarks.fit.leave_out import (
    LAUNCH_FACTS,
    blind_profile_of,
    cluster_of,
    generation_of,
    model_of,
    pair_of,
    profile_of_unknown_stack,
    stranger_of,
)
from meshwright.profiles.expected_errors import UNSEEN_FILE
from meshwright.profiles.units import GIB
from meshwright.solver.accuracy import Report, RunPrediction, Scored, validate
from meshwright.solver.calibration.calibrate import default_profile_of
from meshwright.solver.calibration.choose import Choice
from meshwright.solver.calibration.observations import Observation, ProfileOf
from meshwright.solver.runs.table import CATALOG_RUNS, Run, read_runs

DOCS = Path(__file__).parent.parent / "docs" / "accuracy.md"
GATES = ("Korthikanti 2022 Table 5", "Megatron-LM SC21 Table 1 (Narayanan 2021)")
GATE_PERCENT = 12.0
LEAST_COVERAGE, MOST_COVERAGE = 0.75, 0.88  # of the 80 % interval; calibrated, a cluster as 60 runs at most
# Uncalibrated intervals alone are wider than the open clusters need: half of the evidence for them are runs
# that were predicted at first sight (benchmarks/fit/spreads.py, spread_between).
MOST_UNCALIBRATED = 0.95
CALIBRATION_RUNS = 16
LEAST_OF_A_PAIR = 5
CURVE_RUNS = (2, 4, 8, 16, 32)
CURVE_CLUSTERS = (
    "vtrain-a100-multi", "jeanzay-a100", "mosaic-a100-40gb-fsdp", "mosaic-a100-80gb-fsdp",
    "zerobubble-a100", "dgxc-h100-nemo-24.11",
)  # fmt: skip
RANDOM_SEEDS = 2
DRAWS = 4  # of runs to calibrate on, beside the suggested ones
_DRAW_DIGITS = (1, 1, 1, 0, 2, 1)
# Every open cluster with groups of at least five configurations, whose order calibration may not cost, and
# two of other software.
QUICK_CLUSTERS = (
    "zerobubble-a100", "mosaic-a100-40gb-fsdp", "jeanzay-a100", "vtrain-a100-multi", "vtrain-a100-single",
    "ultrascale-h100-efa",
)  # fmt: skip

TITLE = "# How accurate are the predictions?"
ANSWER = """
{sight_runs} runs that we predicted before anything was fitted to them were {sight:.0f} % off on average.
On a cluster, a model family and a release that no fit has seen, step times are {error:.0f} % off (dense
models {dense:.0f} %, experts {experts:.0f} %), and {trained:.0f} % without functional tests. The 80 %
interval, ± {width:.0f} % wide, holds {inside:.0f} % of these runs and {sight_inside:.0f} % of those
at first sight: {both:.0f} % on average. Peak memory is {peak:.0f} % off. Measure one run of your
cluster to bring the error of times to {one:.0f} %, and sixteen to bring it to {sixteen:.0f} %.
"""
UNSEEN = """## Clusters that no fit has seen

You see the mean error of the step time in %. Every cluster has one vote, and brackets hold the number of
clusters. *In 80 %* is the mean over clusters of the share of runs inside the 80 % interval. *Width* is
the median distance of its upper edge from the prediction.

* **First sight**: runs that were predicted before anyone looked at what was measured, by the version of
  that day (`benchmarks/data/first_sight`, `make first-sight`). No constant and no formula was made with
  these runs in view. This line is the most honest one, and has the fewest runs.
* **Nothing shared**: the harshest split. For each run, both levels of the fit are repeated without every
  run that shares its cluster, its model family or its software release. The formulas were still written
  with these runs in view.
* **First sight, at today's width**: the same frozen predictions with the intervals of today, which know
  that clusters differ in common. Their width is fitted to this line and to *nothing shared* with equal
  weight (`benchmarks/fit/spreads.py`), so the mean of the two lines is what to expect of 80 %.
* The other lines leave less out and are easier: *pair of GPU and framework*, *cluster*, nothing
  (*fitted*).
* **Functional tests** check software and train nothing: their source says so, or their model has at most
  four layers (`benchmarks/data/functional_tests.yaml`). The figures are given with and without them.
"""
SERIES = """### First sight, by day

`make first-sight ARGS=FILE` freezes the predictions of a table of runs with their date and commit. The
files are never changed, so later versions cannot improve their figures. The first one is older than the
command and has no commit.
"""
MEMORY = """### Peak memory, by cluster

You see the error of peak memory, as each source counts it, with nothing shared. Every cluster has one vote.
"""
RULES = """### Which rule of caution?

A plan is refused if its risk of running out of memory is above 5 %, unless you set
`search.max_out_of_memory_probability`. You see what that rule and others let through (*failures called
safe*) and what they refuse although it ran (*runs held back*), with nothing shared. 1 % lets the same
failures through and holds back more runs. A share of the card does not know which peaks are doubtful, but
is about as good on these runs. Ten failures are few: set a lower risk where a failure costs you a day.
"""
ORDERS = """The same by cluster, with the regret of running the first plan alone:
"""
FIRST_THREE = """### The first three plans

Of {groups} groups of at least five runs that differ in configuration only, {hits} have the fastest measured
run among the three that are predicted fastest (nothing shared). `meshwright tune` runs them.
"""

FIRST = """### The first runs of a cluster

Expect this when you calibrate. Each row starts from *nothing shared*, and then calibrates each cluster on
the stated number of its runs (at most half of them). The runs are chosen from their configurations alone.
Before and after compare the same rows, which no calibration used. Rank correlation and regret use groups
of at least five runs that differ only in configuration and whose predictions differ.
"""
INTRODUCTION = """## How this page is made

Run `make accuracy` to generate this page from the open runs in `profiles/catalog/runs` (read `columns.md`
there for the meaning of the columns). An error is `predicted / measured - 1` in %. *In 80 %* is the share
of runs whose step time lies inside the 80 % interval. *Rank corr. / regret* are Spearman's correlation
inside groups of at least three runs that differ only in configuration, and how much slower the predicted
best is than the true best (means over groups).

* **Fitted**: the constants of each software stack (`profiles/catalog/calibration/stacks.yaml`) were
  fitted on *these same runs* (`benchmarks/fit_stacks.py`). You see errors of a fit, smaller than on
  unseen runs.
* **Left out**: both levels of the fit, the constants of all stacks and the constants of the stack, are
  fitted again without the predicted runs' *pair* of GPU and framework, cluster, model, or generation of
  GPUs. **Expect the pair's error on a new machine**: clusters that are left out share their GPU and their
  software with others. The time that a framework takes to launch its kernels counts as known there,
  because it is a fact of the framework (`floor_*` and `fixed_s`, from all its runs). *Launches unknown*
  hides that too. *Software stack left out* is the global level alone, fitted without any run of that
  stack: expect it of a framework that has no measured run.
* **Calibrated**: the pair (or the cluster) was left out, and then each cluster was calibrated on up to 16
  of its runs (at most half), chosen from their configurations alone. These runs are not scored.

The tiny models of Megatron-LM's continuous integration inform only the launch costs. Single nodes of its
GB200 cluster are left out of every fit, but scored here: all their steps take 1.7 s.
"""
# What their sources, or runs beside them, tell of failures that are called feasible, and of runs that ended
# and are called likelier out of memory than not.
TOLD_OF = {
    "MIS2-0055": "its source reports fragmentation on a rank with 59 of 80 GB allocated. MIS2-0058 differs "
    "only in `expandable_segments:True`, which our launch files set, and ended well",
    "MIS2-0061": "its source reports fragmentation on a rank with 60 of 80 GB allocated, without that "
    "setting",
    "BIGSC-0136": "nothing is published about it. Runs of the same table with 3.7 to 4.25 billion weights "
    "a rank took 59 to 67 GB, and it has 4.3 billion",
    "BRDG-0269": "its source prints 16 accumulations of its batch of 128 over 8 replicas (a "
    "micro-batch of 1), next to a micro-batch of 2",
    "ULTRA-0209": "has the peak of half of its micro-batches in flight",
    "MLMCI-0187": "its arguments have latent attention and eight chunks, which its row does not state",
}
DRAWN = """## Calibrated on other runs

The pair is left out. Each cluster is calibrated on the runs that `--choose suggested` names, and on
others drawn at random. The mean and standard deviation of the random draws tell you how much of a figure
is luck. The scored rows differ a little, because they are the rows that were not chosen. *In 80 %* is in
per cent, and a cluster counts as 60 runs at most.
"""
ORDER = """## Before and after calibration

Both sides use the same rows, which no calibration saw, with the pair of GPU and framework left out.
*Order* is Spearman's correlation and regret (%) inside groups of runs that differ only in configuration.
A group has at least five runs whose uncalibrated predictions differ by more than runs of one
configuration do (3 %). Calibration may cost a cluster .03 of correlation and a point of regret, give or
take the standard error over its groups. A larger cost is marked. Calibration may not cost the mean of
clusters any regret.
"""
REGRET = """## Whose plans are chosen wrongly

You see how much slower the plan that is predicted best is than the best, in % (groups of three and more
runs that no calibration saw). *Drawn* is the mean and deviation of the random draws of runs to calibrate
on. ± is the change of a mean from sample to sample: the deviation over 2000 bootstrap samples of groups
(for one cluster) or of clusters (for all groups, because groups of one cluster err together). The next
table has the groups that cost most after calibration on the suggested runs.
"""
WEAKNESSES = """## Known weaknesses

* Very small models (Megatron-LM's CI, hidden size 512): the CPU bounds them in ways that one floor per
  layer does not catch. Their intervals are wide.
* Gaussian intervals: some runs are off for a reason that we don't see (an unstated fact, a slow regime),
  so more than 5 % of the runs lie outside the 95 % interval. We calibrate the 80 % interval.
* Pipelines across nodes under nanotron: the CPU waits for every message. This is a factor on its launches
  here (`floor_across`, `floor_tensor`), fitted on one cluster. Layers whose tensor parallelism itself
  crosses nodes take a third longer there.
* Grouped products, permutation and overlapped exchanges of experts: their shares are counted or
  published, not fitted.
* Small models under Megatron-DeepSpeed: where kernels take little longer than their launches, you see a
  part of the launches on one, four and eight tensor ranks, and none on two. No other stack shows it, so
  it has no term here. The order of these models costs most of the regret.
* torchtitan: its runs are priced too fast in bf16 and in 8 bits alike, except for its largest model. The
  casts and scales of 8 bits are therefore not the cause.
* Fragmentation: without `expandable_segments`, which our launch files set, a rank can run out of memory
  with a quarter of it free. We don't predict which layouts do.
* Not distinguished: `tp_comm_overlap` and `overlap_grad_reduce` (0 leaves Megatron's own asynchronous
  collectives on), multiprocessors of a dispatcher, user buffers, router fusion.
* Assumed where a source is silent:
    * CUDA graphs of attention and router for experts on NVL72 racks under NVIDIA's recipes.
    * fp8 on Blackwell, fp16 on Volta.
    * bf16 gradients under NeMo and Bridge recipes.
    * No recomputation and no sharded optimizer, except that memory is judged with both when the run could
      not have fitted without.
    * DeepSeek's latent attention wherever the query size is 192.
    * Expert tensor parallelism only where experts would not fit otherwise.
    * Biases, local layers and norms of queries and keys as in the catalog's model of that name and sizes.
* A row of a mixed cluster is refused: the table does not say which rank runs on which GPU.
"""


def kept_section(document: str) -> str:
    """What ``make bench ARGS=cpu-training`` has written between its markers; empty where it has not."""
    found = re.search(r"<!-- cpu-training -->.*<!-- /cpu-training -->\n", document, re.DOTALL)
    return f"\n{found.group()}" if found else ""


def gate_error(report: Report, source: str) -> float:
    """Mean absolute error of the step times of one source in per cent."""
    errors = [error_percent(row) for row in report.runs if row.run.source == source]
    return float(np.mean([abs(error) for error in errors if error is not None]))


def _gates(report: Report) -> list[str]:
    """The gates as lines."""
    lines = ["## The gates, uncalibrated", ""]
    for source in GATES:
        figures = report.sources[source]
        mean, *_rest = time_cells(figures)
        lines += [f"### {source}: {mean} % mean error (gate: {GATE_PERCENT:.0f} %)", ""]
        lines += row_by_row(report, source)
    return lines


def _mean_error(report: Report) -> float | None:
    """Mean absolute error of all scored step times."""
    return report.overall.time.mean_absolute if report.overall.time else None


def curve(runs: Sequence[Run], choose: Choice, *, seeds: int, profile_of: ProfileOf) -> list[float | None]:
    """Mean error of one cluster after 2, 4, … runs, over seeds; None where half the runs are fewer."""
    timed = sum(1 for run in runs if run.measured.step_time_s)
    errors: list[float | None] = []
    for count in CURVE_RUNS:
        if count > timed // 2:
            errors.append(None)
            continue
        reports = (
            validate(runs, calibrate=count, choose=choose, seed=seed, profile_of=profile_of)
            for seed in range(seeds)
        )
        errors.append(float(np.mean([error for r in reports if (error := _mean_error(r)) is not None])))
    return errors


def _curves(runs: Sequence[Run], profile_of: ProfileOf) -> list[str]:
    """The section with the calibration curves."""
    of_cluster: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        of_cluster[run.cluster].append(run)
    values = {
        cluster: {
            "suggested": curve(of_cluster[cluster], "suggested", seeds=1, profile_of=profile_of),
            f"random ({RANDOM_SEEDS} draws)": curve(
                of_cluster[cluster], "random", seeds=RANDOM_SEEDS, profile_of=profile_of
            ),
        }
        for cluster in CURVE_CLUSTERS
    }
    title = "You see the mean error in % after 2, 4, … runs of a cluster that the constants had not seen."
    return ["## How many runs to calibrate on", "", title, "", *curves(values, CURVE_RUNS)]


def _refused(report: Report) -> list[str]:
    """What could not be predicted, and why."""
    total, refused = len(report.runs), sum(report.refused.values())
    lines = ["## Refused rows", "", f"{refused} of {total} ({refused / total:.1%}).", ""]
    return [*lines, *(f"* {count}: {reason}" for reason, count in sorted(report.refused.items())), ""]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """Every run predicted in every way that can be told apart."""

    runs: Sequence[Run]
    harsh: Report  # cluster, family of models and release were left out together
    first: dict[int, Report]  # the same, then each cluster calibrated on so many of its runs
    fitted: Report
    pairs: Report  # the pair of GPU and framework was left out, but for its launches
    strict: Report  # and its launches
    generations: Report  # all GPUs of a generation were left out
    paired: Report  # the pair was left out, then each cluster calibrated
    blind: Report  # the cluster was left out
    other_models: Report  # the model was left out
    strange: Report  # the software stack was left out
    calibrated: Report  # the cluster was left out, then calibrated
    drawn: tuple[Report, ...]  # as ``paired``, each on other runs, drawn at random

    @classmethod
    def of(cls, runs: Sequence[Run], blind_to_cluster: ProfileOf, times: Evidence) -> Ways:
        """Predict all runs in each way."""
        of_pairs = blind_profile_of(times, pair_of, known=LAUNCH_FACTS, steps=1)
        strict = blind_profile_of(times, pair_of, steps=1)
        strange = blind_profile_of(times, generation_of, known=LAUNCH_FACTS, steps=1)
        nothing = profile_of_strangers(times, Evidence.of_peaks(runs))
        return cls(
            runs=runs,
            harsh=validate(runs, profile_of=nothing),
            first={n: validate(runs, calibrate=n, profile_of=nothing) for n in FIRST_RUNS},
            fitted=validate(runs),
            pairs=validate(runs, profile_of=of_pairs),
            strict=validate(runs, profile_of=strict),
            generations=validate(runs, profile_of=strange),
            paired=validate(runs, calibrate=CALIBRATION_RUNS, profile_of=of_pairs),
            blind=validate(runs, profile_of=blind_to_cluster),
            other_models=validate(runs, profile_of=blind_profile_of(times, model_of)),
            strange=validate(runs, profile_of=profile_of_unknown_stack(times)),
            calibrated=validate(runs, calibrate=CALIBRATION_RUNS, profile_of=blind_to_cluster),
            drawn=tuple(
                validate(runs, calibrate=CALIBRATION_RUNS, choose="random", seed=seed, profile_of=of_pairs)
                for seed in range(DRAWS)
            ),
        )

    def lines(self) -> list[str]:
        """One line each."""
        return overall({
            "fitted": self.fitted,
            "**pair left out**": self.pairs,
            "pair left out, launches unknown": self.strict,
            "GPU generation left out": self.generations,
            f"pair left out, calibrated on ≤ {CALIBRATION_RUNS}": self.paired,
            "cluster left out": self.blind,
            "model left out": self.other_models,
            "software stack left out": self.strange,
            f"cluster left out, calibrated on ≤ {CALIBRATION_RUNS}": self.calibrated,
        })  # fmt: skip


def profile_of_strangers(times: Evidence, peaks: Evidence) -> ProfileOf:
    """Return the profiles of the harshest split, of step times and of peak memory."""
    return blind_profile_of(times, stranger_of, under=blind_profile_of(peaks, stranger_of))


def _unseen(ways: Ways) -> list[str]:
    """Return the page's answer and the tables behind it."""
    nothing, sight = judged(ways.harsh), first_sight(ways.runs)
    lines = [TITLE, _answer(ways), UNSEEN]
    lines += split_table({
        "**first sight**": sight,
        "**first sight, at today's width**": sight_at_todays_width(ways.runs),
        "**nothing shared**": nothing,
        "pair of GPU and framework left out": judged(ways.pairs),
        "cluster left out": judged(ways.blind),
        "fitted": judged(ways.fitted),
    })  # fmt: skip
    lines += [
        "Nothing shared, by software stack with at least 20 runs:",
        "",
        *stack_table(nothing, _stack_of),
    ]
    lines += [SERIES, *series_table(scored_freezes(ways.runs))]
    groups, hits = first_three(nothing)
    lines += [FIRST, *first_runs_table(ways.harsh, ways.first)]
    lines += [FIRST_THREE.format(groups=groups, hits=hits), ORDERS, *order_by_cluster(nothing)]
    lines += [MEMORY, *memory_by_cluster(scored(ways.harsh))]
    return [*lines, RULES, *risk_rules(ways.harsh)]


def _answer(ways: Ways) -> str:
    """Return the sentences that open the page."""
    nothing, sight = judged(ways.harsh), vote_of(first_sight(ways.runs))
    votes = {kind: vote_of(nothing, holds) for kind, holds in KINDS.items()}
    after = {count: vote_of(learnt_alone(ways.first[count])) for count in (1, CALIBRATION_RUNS)}
    every, wide = both_samples(ways.harsh, ways.runs)
    one, sixteen = after[1], after[CALIBRATION_RUNS]
    if sight is None or one is None or sixteen is None:
        raise ValueError("there are no runs to state figures of")
    return ANSWER.format(
        error=every.error,
        dense=_error(votes["dense"]),
        experts=_error(votes["experts"]),
        trained=_error(votes["without functional tests"]),
        peak=mean_memory_error(scored(ways.harsh)),
        width=every.width,
        inside=100.0 * every.inside,
        sight_inside=100.0 * wide.inside,
        both=50.0 * (every.inside + wide.inside),
        sight_runs=len(first_sight(ways.runs)),
        sight=sight.error,
        one=one.error,
        sixteen=sixteen.error,
    )


def write_unseen(ways: Ways) -> None:
    """Write the figures of the harshest split, which answers and `meshwright validate` state."""
    nothing = judged(ways.harsh)
    votes = {kind: vote_of(nothing, holds) for kind, holds in KINDS.items()}
    every = votes["all"]
    if every is None:
        return
    sight = first_sight(ways.runs)
    after = {count: vote_of(learnt_alone(report)) for count, report in ways.first.items()}
    groups, hits = first_three(nothing)
    found = {
        "clusters": every.clusters,
        "error": round(every.error, 1),
        "dense": round(_error(votes["dense"]), 1),
        "experts": round(_error(votes["experts"]), 1),
        "inside": round(100.0 * every.inside),
        "width": round(every.width),
        "first_sight": {
            kind: round(_error(vote_of(sight, KINDS[kind])), 1) for kind in ("all", "dense", "experts")
        },
        "after_runs": {count: round(vote.error, 1) for count, vote in after.items() if vote},
        "first_three": {"groups": groups, "hits": hits},
    }
    head = "# Clusters, model families and releases that no fit has seen, in %; written by make accuracy.\n"
    UNSEEN_FILE.write_text(head + yaml.safe_dump(found, sort_keys=False), encoding="utf-8")


def _error(vote: Vote | None) -> float:
    """Return a vote's error; not a number without runs."""
    return vote.error if vote else float("nan")


def _pair_of(run: Run) -> str:
    """The GPU and the framework of a run."""
    one = Observation.of(run)
    return pair_of(one) if one else "refused"


def _pairs(ways: Ways) -> list[str]:
    """What pairs of GPU and framework that no fit has seen are off by, experts apart."""
    told = {
        "fitted": ways.fitted, "pair left out": ways.pairs, "launches unknown": ways.strict,
        "generation left out": ways.generations, "software stack left out": ways.strange,
        "pair left out, calibrated": ways.paired,
    }  # fmt: skip
    lines = ["## New pairs of GPU and framework", ""]
    lines += [
        f"Mean error in %: means over the pairs with at least {LEAST_OF_A_PAIR} such runs, and over runs."
    ]
    lines += ["", *pair_means(told, KINDS, _pair_of, least=LEAST_OF_A_PAIR)]
    split = {
        name: grouped(report, lambda run: f"{_pair_of(run)}{' · experts' if has_experts(run) else ''}")
        for name, report in told.items()
        if name in ("pair left out", "launches unknown", "pair left out, calibrated")
    }
    return [*lines, *errors_by("pair", split)]


def _draws(ways: Ways) -> list[str]:
    """The calibrated figures once more on other runs, and how far they are one draw's luck."""
    reports = [ways.paired, *ways.drawn]
    values = [_draw_figures(report) for report in reports]
    names = ["suggested", *(f"random, seed {seed}" for seed in range(DRAWS))]
    shown = [
        [f"{value:.{digits}f}" for value, digits in zip(row, _DRAW_DIGITS, strict=True)] for row in values
    ]
    middle = [f"{np.mean(one):.{digits}f} ± {np.std(one, ddof=1):.{digits}f}"
              for one, digits in zip(zip(*values[1:], strict=True), _DRAW_DIGITS, strict=True)]  # fmt: skip
    titles = ("calibrated on", "mean of pairs %", "mean of clusters %", "mean of runs %", "in 80 %",
              "rank corr.", "regret %")  # fmt: skip
    by_stack = {
        "suggested": grouped(ways.paired, _stack_of),
        f"{DRAWS} random draws": _pooled(ways.drawn),
    }
    return [
        DRAWN,
        *table(
            titles,
            [
                *([name, *row] for name, row in zip(names, shown, strict=True)),
                ["**random: mean and spread**", *middle],
            ],
        ),
        *errors_by("stack", by_stack),
    ]


def _pooled(reports: Sequence[Report]) -> dict[str, list[Scored]]:
    """The runs of several reports by software stack."""
    pooled: dict[str, list[Scored]] = defaultdict(list)
    for report in reports:
        for stack, rows in grouped(report, _stack_of).items():
            pooled[stack] += rows
    return pooled


def _draw_figures(report: Report) -> tuple[float, ...]:
    """Mean errors (%) over pairs, clusters and runs, share (%) inside 80 % intervals, order, regret (%)."""
    of_pair: dict[str, list[float]] = defaultdict(list)
    of_cluster: dict[str, list[float]] = defaultdict(list)
    for row in report.runs:
        error = error_percent(row)
        if error is not None:
            of_pair[_pair_of(row.run)].append(abs(error))
            of_cluster[row.run.cluster].append(abs(error))
    ranking = report.overall.ranking
    return (
        float(np.mean([np.mean(mine) for mine in of_pair.values() if len(mine) >= LEAST_OF_A_PAIR])),
        float(np.mean([np.mean(mine) for mine in of_cluster.values()])),
        float(np.mean([error for mine in of_cluster.values() for error in mine])),
        100.0 * coverage(scored(report)),
        ranking.spearman if ranking else float("nan"),
        ranking.top1_regret if ranking else float("nan"),
    )


def _size_of(run: Run) -> str:
    """How many GPUs a run has, in fourfold steps."""
    if run.shape is None:
        return "refused"
    gpus = run.shape.configuration.num_gpus
    low = 4 ** int(np.log(gpus) / np.log(4.0) + 1e-9)
    return f"{low:>5} to {4 * low - 1} GPUs"


def _precision_of(run: Run) -> str:
    """What a run's linear layers multiply in."""
    if run.shape is None:
        return "refused"
    workload = run.shape.problem.workload
    return str(workload.framework_options.get("precision_recipe", workload.precision))


def _spreads(ways: Ways) -> list[str]:
    """How sure the predictions are, and whether rightly."""
    told = {"left out": scored(ways.pairs), "calibrated": scored(ways.paired)}
    lines = [
        "## How sure, and whether rightly",
        "",
        "You see the share of step times inside their interval, with the pair left out:",
        "",
    ]
    lines += [*interval_reliability(told), "By software stack, number of GPUs and precision:", ""]
    for title, key_of in (("stack", _stack_of), ("size", _size_of), ("precision", _precision_of)):
        told_by = {"left out": grouped(ways.pairs, key_of), "calibrated": grouped(ways.paired, key_of)}
        lines += errors_by(title, told_by)
    lines += ["By distance from what the constants were fitted on:", ""]
    distances = {
        "new pair": ways.pairs, "new GPU generation": ways.generations, "new software": ways.strange,
        "calibrated": ways.paired,
    }  # fmt: skip
    kind_of = {True: "experts", False: "dense"}
    by_kind = {name: grouped(way, lambda run: kind_of[has_experts(run)]) for name, way in distances.items()}
    lines += errors_by("model", by_kind)
    lines += ["Peak memory, by software stack:", ""]
    lines += peaks_by("stack", {
        "left out": grouped(ways.pairs, _stack_of), "calibrated": grouped(ways.paired, _stack_of),
        f"{DRAWS} random draws": _pooled(ways.drawn),
    })  # fmt: skip
    lines += ["Out of memory, in the sources that report failed runs:", ""]
    lines += [*memory_calls(told), *memory_reliability(told)]
    return [*lines, *_wrong_calls(ways)]


def _wrong_calls(ways: Ways) -> list[str]:
    """The runs whose memory is called wrongly, each with what is known of it."""
    failed = [row for row in ways.pairs.runs if row.run.measured.out_of_memory]
    called = [row for row in failed if not _likely_out_of_memory(row)]
    ended = [
        row
        for row in ways.fitted.runs
        if row.run.measured.step_time_s
        and not row.run.measured.out_of_memory
        and _likely_out_of_memory(row)
    ]
    measured = [row.run.measured for row in ways.fitted.runs]
    ran = sum(bool(one.step_time_s and not one.out_of_memory) for one in measured)
    titles = {
        f"Of {len(failed)} failures {len(called)} are called feasible ({len(called) / len(failed):.0%}), "
        "the pair left out:": called,
        f"Of all {ran} runs that ended, from every source, {len(ended)} are called "
        f"more likely out of memory than not under the shipped constants ({len(ended) / ran:.1%}):": ended,
    }
    lines: list[str] = []
    for title, rows in titles.items():
        lines += [
            title,
            "",
            *(f"* {row.run.run_id}{_filled(row)}: {TOLD_OF.get(row.run.run_id, '–')}" for row in rows),
            "",
        ]
    return lines


def _filled(row: RunPrediction) -> str:
    """What was predicted of a run's peak beside what its GPU has."""
    if row.run.shape is None or row.prediction is None:
        return ""
    limit = row.run.shape.problem.memory_limit_bytes
    return f" ({row.prediction.peak_memory_bytes / GIB:.1f} of {limit / GIB:.1f} GiB)"


def _likely_out_of_memory(row: RunPrediction) -> bool:
    """Whether a run is called likelier out of memory than not."""
    return row.prediction is not None and row.prediction.out_of_memory_probability > 0.5  # noqa: PLR2004


def _stack_of(run: Run) -> str:
    """The software stack of a run."""
    one = Observation.of(run)
    return default_profile_of(one).framework.stack if one else "refused"


def _by_model(ways: Ways) -> list[str]:
    """Errors of every model: with its cluster, and with the model itself left out."""
    told = {
        "cluster left out": grouped(ways.blind, _model_of),
        "model left out": grouped(ways.other_models, _model_of),
    }
    return ["## By model", "", *errors_by("model", told)]


def _model_of(run: Run) -> str:
    """The name of a run's model."""
    return run.shape.problem.model.name if run.shape else "refused"


def _orders(ways: Ways) -> list[Order]:
    """Errors and order of every cluster before and after calibration, on the rows that it did not see."""
    return orders_of(ways.pairs, ways.paired)


def document(runs: Sequence[Run]) -> tuple[str, Ways]:
    """The whole page, and the reports that the gates look at."""
    times, peaks = Evidence.of_times(runs), Evidence.of_peaks(runs)
    blind = blind_profile_of(times, cluster_of, under=blind_profile_of(peaks, cluster_of))
    ways = Ways.of(runs, blind, times)
    lines = [
        *_unseen(ways),
        INTRODUCTION,
        *ways.lines(),
        *_pairs(ways),
        *_gates(ways.fitted),
        *_spreads(ways),
    ]
    lines += [*_draws(ways), ORDER, *order_table(_orders(ways)), REGRET]
    lines += regret_tables(ways.pairs, [ways.paired, *ways.drawn])
    lines += [*composed(runs), ""]
    lines += by_group("cluster", ways.fitted.clusters, ways.blind.clusters, ways.calibrated.clusters)
    lines += _curves(runs, blind)
    lines += ["## The worst rows after calibration, at most three of a cluster", ""]
    lines += [*worst(ways.calibrated), *_by_model(ways)]
    lines += by_group("source", ways.fitted.sources, ways.blind.sources, ways.calibrated.sources)
    lines += ["## What calibration found strange", "", *(f"* {w}" for w in ways.calibrated.warnings), ""]
    lines += [*_refused(ways.fitted), WEAKNESSES.rstrip()]
    return "\n".join(lines) + "\n", ways


def missed_gates(ways: Ways) -> list[str]:
    """What is not as good as promised: known tables, and intervals that hold too few or too many."""
    missed = [source for source in GATES if gate_error(ways.fitted, source) > GATE_PERCENT]
    uncalibrated = fmean(vote.inside for vote in both_samples(ways.harsh, ways.runs))
    shares = {
        "nothing shared and first sight": (uncalibrated, MOST_COVERAGE),
        "left out": (coverage(scored(ways.pairs)), MOST_UNCALIBRATED),
        "calibrated": (coverage(scored(ways.paired)), MOST_COVERAGE),
    }
    missed += [
        f"80 % intervals hold {share:.1%} of the runs, {name}"
        for name, (share, most) in shares.items()
        if not LEAST_COVERAGE <= share <= most
    ]
    for count in (1, 2):
        orders = orders_of(ways.harsh, ways.first[count])
        missed += [*lost(orders), *regret_gained(orders, f"{count} runs at most")]
    return [
        *missed,
        *lost(_orders(ways)),
        *regret_gained(_orders(ways), f"{CALIBRATION_RUNS} runs at most"),
    ]


def quick(runs: Sequence[Run]) -> list[str]:
    """The gates and a few calibrated clusters, printed; the gates that are missed."""
    gated = validate([run for run in runs if run.source in GATES])
    few = [run for run in runs if run.cluster in QUICK_CLUSTERS]
    ways = {"uncalibrated": validate(few), "calibrated": validate(few, calibrate=CALIBRATION_RUNS)}
    orders = orders_of(ways["uncalibrated"], ways["calibrated"])
    print("\n".join([*_gates(gated), *overall(ways), *order_table(orders)]))
    missed = [source for source in GATES if gate_error(gated, source) > GATE_PERCENT]
    return [*missed, *lost(orders), *regret_gained(orders, f"{CALIBRATION_RUNS} runs at most")]


def main() -> None:
    """Predict, print, write, and fail when a gate is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="only the gates and a few calibrated clusters")
    options = parser.parse_args()
    started = time.perf_counter()
    runs = read_runs(CATALOG_RUNS)
    if options.quick:
        missed = quick(runs)
    else:
        text, ways = document(runs)
        write_unseen(ways)
        print("\n".join(["# What moved", "", *moved(committed(DOCS), text)]))
        DOCS.write_text(text + kept_section(DOCS.read_text(encoding="utf-8")), encoding="utf-8")
        write_fine_tuning()
        missed = missed_gates(ways)
    print(f"{time.perf_counter() - started:.0f} s", file=sys.stderr)
    if missed:
        sys.exit(f"gate missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()

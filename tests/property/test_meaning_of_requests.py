"""Answers to random requests against every configuration that the request means (``meaning``).

Nothing here imports the product's enumeration. ``SEARCH_EXAMPLES=5000`` tries that many requests instead of
the 200 of every day.
"""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest

from profiles.profile import Profile, default_profile
from solver.baseline import score_s
from solver.plan import Answer, Configuration, Plan
from solver.problem import Problem
from solver.search.search import search
from tests.property.meaning import Judged, Tried, configurations, numbers_of_gpus, tried
from tests.requests_drawn import a_drawn_request

EXAMPLES = int(os.environ.get("SEARCH_EXAMPLES", "200"))
PARTS = 10
ROUNDING = 1 + 1e-9
# What a layout is run with; layouts that differ in more are ranked apart (docs/how-the-search-works.md).
HOW_IT_RUNS: dict[str, Any] = {
    "stage_layers": (), "stage_recompute_layers": (), "virtual_pipeline_size": 1,
    "recompute_granularity": "none", "recompute_layers": 0, "pipeline_schedule": "none",
    "zero_shard_size": 1, "sequence_parallel": False, "offload": "none",
    "context_parallel_mode": "ring", "rank_order": "tp-cp-dp-pp",
}  # fmt: skip


@dataclass
class Layout:
    """The least score of one layout as far as its splits tell: J chooses among them, S is the score."""

    least_s: float = float("inf")  # of any split
    rows: dict[Configuration, list[Tried]] = field(default_factory=lambda: defaultdict(list))

    @property
    def most_s(self) -> float:
        """No score of the layout is larger: the slowest split of least closed form, of its fastest row."""
        worst = []
        for row in self.rows.values():
            least = min(one.closed_s for one in row) * (1 + 1e-7)
            worst.append(max(one.score_s for one in row if one.closed_s <= least))
        return min(worst)


def layouts_of(every: list[Tried]) -> dict[Configuration, Layout]:
    """All that was tried, by layout and row."""
    found: dict[Configuration, Layout] = defaultdict(Layout)
    for one in every:
        layout = found[replace(one.config, **HOW_IT_RUNS)]
        own = one.config.stage_recompute_layers
        row = replace(one.config, stage_layers=(), stage_recompute_layers=(),
                      recompute_layers=-1 if own else one.config.recompute_layers)  # fmt: skip
        layout.rows[row].append(one)
        layout.least_s = min(layout.least_s, one.score_s)
    return found


@pytest.mark.parametrize("part", range(PARTS))
def test_no_configuration_that_a_request_means_is_better_than_what_is_proved(part: int) -> None:
    for seed in range(part, EXAMPLES, PARTS):
        with seeded(seed):
            judge(a_drawn_request(Random(seed)))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Add the seed to what fails, so that ``a_drawn_request(Random(seed))`` is the request."""
    try:
        yield
    except Exception as error:
        error.add_note(f"the request of seed {seed}")
        raise


def judge(problem: Problem) -> None:
    """Hold the answer to a request against everything that the request means."""
    profile = default_profile(problem.cluster, problem.launcher)
    answer = search(problem, profile)
    judged = judged_on(problem, profile, numbers_of_gpus(problem))
    if not judged.legal and answer.plans:  # fewer GPUs: as many as can be used
        used = {plan.config.num_gpus for plan in answer.plans}
        each = problem.cluster.groups[0].gpus_per_node
        whole = each if max(used) % each == 0 else 1  # whole nodes are used before others
        more = range(max(used) + whole, max(numbers_of_gpus(problem)), whole)
        assert not judged_on(problem, profile, more).legal
        judged = judged_on(problem, profile, sorted(used))
    found = tried(problem, profile, judged.fitting)
    assert answer.status == ("optimal" if found else "infeasible")
    assert answer.space == "every"
    if found:
        scores = [score_s(problem, profile, plan.config, plan.prediction) for plan in answer.plans]
        assert_bounds(answer, found, scores[0])
        assert_ranking(answer.plans, scores, layouts_of(found), problem.options.top_k)


def judged_on(problem: Problem, profile: Profile, counts: Iterable[int]) -> Judged:
    """The check's verdict on every configuration on these numbers of GPUs."""
    every = [config for count in counts for config in configurations(problem, count)]
    return Judged.of(problem, profile, every)


def assert_bounds(answer: Answer, found: list[Tried], first_s: float) -> None:
    """What is proved of the step and of the objective holds for every configuration."""
    first = answer.plans[0].config
    alike = [one.step_s for one in found if one.config.num_gpus == first.num_gpus
             and one.config.global_batch_size == first.global_batch_size]  # fmt: skip
    if answer.bound_step_time_s is not None:
        assert answer.bound_step_time_s <= min(alike) * ROUNDING
    claim = answer.objective
    assert claim is not None
    assert claim.value is not None
    if claim.bound is not None:
        rate = claim.name == "tokens_per_s_per_gpu"
        share = claim.value / claim.bound if rate else claim.bound / claim.value
        assert first_s * share <= min(one.score_s for one in found) * ROUNDING


def assert_ranking(
    plans: tuple[Plan, ...], scores: list[float], layouts: dict[Configuration, Layout], top_k: int
) -> None:
    """The plans are the best layouts, in order, and none that is better is left out."""
    assert scores == sorted(scores)
    shown = [replace(plan.config, **HOW_IT_RUNS) for plan in plans]
    assert len(shown) == len(set(shown)) == min(top_k, len(layouts))
    for layout, score in zip(shown, scores, strict=True):
        assert layouts[layout].least_s <= score * ROUNDING
        assert score <= layouts[layout].most_s * ROUNDING
    for layout in layouts.keys() - set(shown):
        assert layouts[layout].most_s * ROUNDING >= scores[-1]

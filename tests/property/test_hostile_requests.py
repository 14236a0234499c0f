"""Requests that are hard to answer: odd sizes, memory that is just enough, pins that clash.

Answers are held against everything that such a request means (``meaning``), and so is every change that is
offered where nothing fits: its words are read here, and its plan is held against what they mean.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random

from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.solver.answer import Answer, Remedy
from meshwright.solver.check import violations
from meshwright.solver.planner.plan import ask
from meshwright.solver.problem import Problem, Workload
from meshwright.solver.search.search import search
from tests.draws import draws
from tests.problems.requests_drawn import a_hostile_request, has_at_most
from tests.property.meaning import numbers_of_gpus, of_each_switch
from tests.property.test_meaning_of_requests import (
    RANKING,
    decided_by_cp_sat,
    judge,
    most_of_row,
    profile_of,
    rows_of,
    seeded,
    tried_on,
    usable_by,
)
from tests.property.unexplained import unexplained

EXAMPLES = draws(3, of_more=5)
ROUNDING = 1e-9
MOST_TRIED = 300  # configurations of a changed request that are tried one by one
MOST_OFFERED = 8  # changes of one sort, after which no other is looked for
FREE = "no launcher's limits (launcher none)"
SIMPLE = ("gradients in bf16", "optimizer adamw-8bit", "offload to the host")


def test_nothing_that_a_hostile_request_means_is_better_than_what_is_proved() -> None:
    for seed in range(EXAMPLES):
        with unexplained(), seeded(f"a_hostile_request(Random({seed}))"):
            problem = decided_by_cp_sat(a_hostile_request(Random(seed)))
            judge(problem, search(problem, profile_of(problem)))


def test_every_change_that_is_offered_has_its_plan_and_no_simple_one_is_missing() -> None:
    infeasible = 0
    for seed in range(max(EXAMPLES // 4, 2)):
        problem = plainly_ranked(a_hostile_request(Random(seed)))
        with seeded(f"plainly_ranked(a_hostile_request(Random({seed})))"), unexplained():
            feasible = search(problem, profile_of(problem)).plans
        if feasible:
            continue
        infeasible += 1
        with seeded(f"plainly_ranked(a_hostile_request(Random({seed})))"):
            answer = ask(problem, profile_of(problem))
            assert answer.infeasible is not None
            for remedy in answer.infeasible.remedies:
                assert_remedy(problem, remedy)
            assert_cheapest_first(answer.infeasible.remedies)
            assert_none_missing(problem, answer)
    assert infeasible


def plainly_ranked(problem: Problem) -> Problem:
    """The request ranked by the step, as changes are compared."""
    return replace(problem, options=replace(problem.options, objective="step_time", time_limit_s=600.0))


def changed(problem: Problem, words: str) -> Problem | None:
    """What a change means, by its words; None where the words name another machine or a switch."""
    if words.startswith("without ") and (fewer := without(problem, words)) != problem:
        return fewer
    for form, meaning in NUMBERED.items():
        if number := re.fullmatch(form, words):
            return meaning(problem, number[1])
    launcher = problem.launcher
    if found := re.match(r"launcher (\S+)|no launcher's limits \(launcher (none)\)", words):
        launcher, words = found[1] or found[2], words[found.end() :]
    parts = [part for part in words.split(" and ") if part]
    if not {*parts} <= {*SIMPLE}:
        return None
    work, options = problem.workload, problem.options
    for part in parts:
        work = lighter(work, part)
    if "offload to the host" in parts:
        options = replace(options, allow=(*options.allow, "offload"))
    return replace(problem, workload=work, options=options, launcher=launcher)


def accepting(problem: Problem, percent: str) -> Problem:
    """The request with such a chance to run out of memory."""
    options = replace(problem.options, max_out_of_memory_probability=float(percent) / 100)
    return replace(problem, options=options)


def on_nodes(problem: Problem, count: str) -> Problem | None:
    """The request on so many nodes of one kind, all of which may be used."""
    if len(problem.cluster.groups) > 1:
        return None
    group = replace(problem.cluster.groups[0], num_nodes=int(count))
    options = replace(problem.options, num_nodes=(), num_gpus=())
    return replace(problem, cluster=replace(problem.cluster, groups=(group,)), options=options)


def working(name: str) -> Callable[[Problem, str], Problem]:
    """The request with another number in its workload."""

    def on(problem: Problem, number: str) -> Problem:
        work: Workload = replace(problem.workload, **{name: int(number)})  # type: ignore[arg-type]
        return replace(problem, workload=work)

    return on


NUMBERED: dict[str, Callable[[Problem, str], Problem | None]] = {
    r"an out-of-memory risk of ([\d.]+) %": accepting,
    r"a global batch of (\d+)": working("global_batch_size"),
    r"sequences of (\d+) tokens": working("seq_length"),
    r"(\d+) nodes": on_nodes,
}


def lighter(work: Workload, part: str) -> Workload:
    """The workload with smaller gradients or states."""
    if part == "gradients in bf16":
        return replace(work, framework_options={**work.framework_options, "gradient_dtype": "bf16"})
    return replace(work, optimizer="adamw-8bit") if part == "optimizer adamw-8bit" else work


def without(problem: Problem, words: str) -> Problem:
    """The problem without the limits that are named."""
    options = problem.options
    pin = {name: value for name, value in options.pin.items() if f"pin {name} = " not in words}
    forbid = {name: few for name, few in options.forbid.items() if f"forbid {name} = " not in words}
    bounds = {name: ends for name, ends in options.bounds.items() if f" <= {name} <= " not in words}
    constraints = tuple(text for text in options.constraints if f"constraint {text}" not in words)
    split = () if "pin stage_layers with" in words else options.stage_layers
    left = replace(
        options, pin=pin, forbid=forbid, bounds=bounds, constraints=constraints, stage_layers=split
    )
    return replace(problem, options=left)


def assert_remedy(problem: Problem, remedy: Remedy) -> None:
    """It is legal and fits where the change is made, and no row there has a shorter step for certain."""
    other = changed(problem, remedy.change)
    if other is None:
        return
    able = [
        one for one in of_each_switch(other) if not any(violations(one, profile_of(one), remedy.config))
    ]
    assert able
    if not has_at_most(other, MOST_TRIED):
        return
    counts = usable_by(other, numbers_of_gpus(other), {remedy.num_gpus})
    found = [each for one in able for each in tried_on(one, counts)]
    own = [one.step_s for one in found if one.config == remedy.config]
    assert min(abs(step_s / remedy.step_time_s - 1.0) for step_s in own) < ROUNDING
    assert remedy.step_time_s <= min(most_of_row(row).step_s for row in rows_of(found)) * RANKING


def assert_cheapest_first(remedies: Iterable[Remedy]) -> None:
    """No change that is named after the first of its kind costs less."""
    first = dict[str, float]()
    for remedy in remedies:
        assert first.setdefault(remedy.kind, remedy.gpu_s_per_token) <= remedy.gpu_s_per_token


def assert_none_missing(problem: Problem, answer: Answer) -> None:
    """A simple change that is not offered has no plan."""
    assert answer.infeasible is not None
    offered = [remedy.change for remedy in answer.infeasible.remedies]
    if len(offered) >= MOST_OFFERED or any("chang" in reason for reason in answer.infeasible.reasons):
        return
    can_offload = len(launcher_capabilities(problem.launcher).offload) > 1
    simple = [*SIMPLE[: 2 + can_offload], *([FREE] if problem.launcher != "none" else [])]
    for words in simple:
        other = changed(problem, words)
        if other is None or other == problem or words in offered or not has_at_most(other, MOST_TRIED):
            continue
        rows = rows_of(tried_on(other, usable_by(other, numbers_of_gpus(other), set())))
        assert [most_of_row(row).config for row in rows] == [], words

"""What is priced is what is started: every variable and every switch, for every launcher.

A switch that changes a plan's price is refused, named as one that no file sets, or written: then the file,
read back, has the same price. The cases come from the code: every fact that a request may override, at
another value than the launcher's own, beside every plan of the golden files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from random import Random

import pytest

from meshwright.launchers.reading.base import Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.launchers.registry import export, launcher_names
from meshwright.launchers.target import Target
from meshwright.profiles.adapters import SINGLE_TARGETS, tower_targets
from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.errors import InvalidProblemError, PlannerError
from meshwright.profiles.frameworks import (
    OPTION_NUMBERS,
    OPTION_PARTS,
    OPTION_WORDS,
    FrameworkFacts,
    framework_facts,
    with_options,
)
from meshwright.profiles.library import find_model
from meshwright.profiles.profile import framework_of
from meshwright.profiles.switches import Setting, switches
from meshwright.solver.problem import Problem
from meshwright.solver.space.launcher_rules import problem_faults
from tests.draws import draws, some_of
from tests.launchers.cases import CASES as MEGATRON
from tests.launchers.plans import (
    CASES,
    SEEING,
    legal_targets,
    pairs_of,
    problem_of,
    problem_under,
    random_targets,
    with_towers,
)
from tests.property.test_reading_every_launcher import MAIN, priced

Option = str | float | bool
# Kernels that a launcher calls by one name: the file says no more, and the first of them is read. The
# efficient one is torch's own choice under sdpa. Liger's switch sets its norms and activations, too.
ONE_NAME = {"flash1", "triton", "flex", "torch", "megatron-fused", "efficient", "liger"}


def targets(launcher: str) -> list[Target]:
    """A plan of a dense model, one of experts, and one that offloads, where there are such."""
    found = list((MEGATRON if launcher == "megatron-lm" else CASES[launcher]).values())
    dense = next(one for one in found if one.model.moe is None)
    experts = [one for one in found if one.model.moe is not None][:1]
    return [dense, *experts, *[one for one in found if one.config.offload != "none"][:1]]


def values(launcher: str) -> Iterator[tuple[str, Option]]:
    """Every fact that a request may override, at every other value that it may have."""
    facts = framework_facts(framework_of(launcher))
    for name in (field.name for field in fields(FrameworkFacts)):
        own = getattr(facts, name)
        if name in OPTION_WORDS:
            others: list[Option] = [word for word in OPTION_WORDS[name] if word != own]
        elif name in OPTION_PARTS:
            parts, alone = OPTION_PARTS[name]
            others = [word for word in (*parts, *alone) if word != own]
        elif name in OPTION_NUMBERS:
            low, high = OPTION_NUMBERS[name]
            others = [value for value in (low, min(2.0, high)) if value != own]
        elif isinstance(own, bool):
            others = [not own]
        elif name == "moe_routing_groups":
            others = ["8/4"]
        else:
            continue
        for value in others:
            try:
                with_options(facts, {name: value})
            except PlannerError:
                continue  # no option, or it contradicts the launcher's own facts
            yield name, value


def outcome(found: Target, plain: list[float], launcher: str, name: str, value: Option) -> str:
    """What became of one switch of one plan, whose price without it is ``plain``."""
    options = dict(sorted({**found.workload.framework_options, name: value}.items()))
    asked = replace(found.problem, workload=replace(found.workload, framework_options=options))
    try:
        wanted = priced(asked, found)
    except InvalidProblemError:
        return "refused"
    if wanted == plain:
        return "no price hangs on it"
    try:
        bundle = export(found.plan, asked, launcher)
    except PlannerError:
        return "refused"
    if any(name in warning for warning in bundle.warnings):
        return "named as set by no file"
    main = MAIN[launcher]
    read = read_launch_files(Source(name=main, text=bundle.files[main], files=bundle.files))
    again = replace(asked, workload=read.workload)
    same = read.configuration == found.config and priced(again, found) == wanted
    return "written" if same else f"read as {dict(read.workload.framework_options)}"


@pytest.mark.parametrize("launcher", launcher_names())
def test_a_switch_that_is_priced_is_written_or_said_to_be_unwritten(launcher: str) -> None:
    left = [*some_of([*values(launcher)], each=9, first=launcher_names().index(launcher))]
    wrong, seen = dict[tuple[str, Option], str](), set[str]()
    for found in targets(launcher):  # of later ones only what changes no earlier one's price
        plain = priced(found.problem, found)
        became = {switch: outcome(found, plain, launcher, *switch) for switch in left}
        seen |= {*became.values()}
        wrong |= {switch: word for switch, word in became.items() if word.startswith("read")}
        left = [switch for switch, word in became.items() if word.startswith("no price")]
    assert {value for _, value in wrong} <= ONE_NAME, wrong
    assert seen & {"written", "named as set by no file"}


# --------------------------------------------------------------------------------------------------
# Every pair of a switch's setting and a launcher that takes it, as the table of switches lists them.

# whole layers; replicas that need no shards; experts; experts beside shared ones and latent attention, with
# layers that have none
SMALL = ("llama-3.1-8b", "llama-160m", "mixtral-8x7b", "deepseek-v2-lite", "moonlight-16b-a3b")
ENOUGH = min(draws(1), 3)  # plans
PAIRS = [
    (launcher, switch.name, setting.name)
    for switch in switches().values()
    for setting in switch.settings
    for launcher in sorted(setting.launchers)
    # read with lengths: unit/solver/cost/test_dynamic_context.py; set by no file
    # of QLoRA with experts in one tensor: unit/launchers/axolotl/test_read.py
    if switch.name not in ("dynamic_context_parallel", "power_limit_w", "quantizes_experts")
]


def plans_with(some: Sequence[Setting], launcher: str) -> Iterator[tuple[Problem, Target]]:
    """Legal rows of the search's space under settings, and the problem without them, for every model."""
    for plain in problems_for(some, launcher):
        problem = problem_under(plain, some)
        if list(problem_faults(problem, launcher_capabilities(launcher))):
            continue
        try:
            drawn = list(random_targets(problem, 8, Random(plain.model.name)))
        except InvalidProblemError:
            continue  # other options of the framework contradict it beside this model
        yield from ((replace(problem, workload=plain.workload), found) for found in drawn)


def problems_for(some: Sequence[Setting], launcher: str) -> Iterator[Problem]:
    """A small problem of every model that the launcher trains and that takes all of the settings."""
    able = launcher_capabilities(launcher)
    nodes = 4 if any("secondary_shard_size" in one.options for one in some) else 1  # 16 ranks and more
    alone = any(one.options.get("cpu_update_interval", 1) != 1 for one in some)  # ZenFlow: one micro-batch
    batch = (8 if alone else 16) * nodes
    for plain in (problem_of(launcher, find_model(name), num_nodes=nodes, batch=batch) for name in SMALL):
        gpu = plain.cluster.groups[0].gpu
        if not any(one.fault(plain.model, gpu) for one in some) and not list(problem_faults(plain, able)):
            yield plain


@pytest.mark.parametrize(("launcher", "switch", "name"), some_of(PAIRS, each=4))
def test_a_setting_of_a_switch_is_written_and_read_back_by_a_launcher_that_has_it(
    launcher: str, switch: str, name: str
) -> None:
    setting = next(one for one in switches()[switch].settings if one.name == name)
    usual = with_options(framework_facts(framework_of(launcher)), {})
    differs = any(getattr(usual, option) != value for option, value in setting.options.items())
    count = changed = 0
    for plain, found in plans_with([setting], launcher):
        wanted = priced_as_written(found)
        count, changed = count + 1, changed + (priced(plain, found) != wanted)
        if count >= ENOUGH and (changed or not differs):
            break
    assert count >= ENOUGH
    assert changed or not differs, "nothing hangs on it"


def priced_as_written(found: Target) -> object:
    """The price of a plan, which is that of its files read back."""
    launcher = found.problem.launcher
    files = export(found.plan, found.problem, launcher).files
    read = read_launch_files(Source(name=MAIN[launcher], text=files[MAIN[launcher]], files=files))
    wanted = priced(found.problem, found)
    assert read.configuration == found.config
    assert priced(replace(found.problem, workload=read.workload), found) == wanted
    return wanted


# --------------------------------------------------------------------------------------------------
# Settings of two switches together: a few pairs a day, all of them by MESHWRIGHT_TEST_DRAWS=1000.


@pytest.mark.parametrize("launcher", [name for name in launcher_names() if pairs_of(name)])
def test_two_settings_are_refused_together_or_written_and_read_back(launcher: str) -> None:
    pairs, written = pairs_of(launcher), 0
    for pair in Random(launcher).sample(pairs, min(draws(2), len(pairs))):
        for plain in problems_for(pair, launcher):
            problem = problem_under(plain, pair)
            targets = legal_targets(problem)
            for found in targets:
                priced_as_written(found)
            if not targets:
                refuses(problem, launcher)
            written += len(targets)
    assert written, "no pair was legal"


def refuses(problem: Problem, launcher: str) -> None:
    """No plan of the problem without its options is exported with them."""
    plain = replace(problem, workload=replace(problem.workload, framework_options={}))
    for found in legal_targets(plain):
        with pytest.raises((PlannerError, InvalidProblemError)):
            export(found.plan, problem, launcher)


# --------------------------------------------------------------------------------------------------
# Every choice of adapted layers of a model with a tower: refused before planning, or written and read back.


def adapted_choices(rng: Random) -> Iterator[tuple[str, ...]]:
    """All linear layers of the language model, those it has by name, or one of them; and any of a tower."""
    tower = tower_targets(SEEING)
    for language in (SINGLE_TARGETS, SINGLE_TARGETS[:7], ("q_proj",), ()):
        some = tuple(name for name in tower if rng.random() < 1 / 2)
        yield from ((*language, *named) for named in (tower, tower[:-1], some) if language or named)


@pytest.mark.parametrize("launcher", ["trl", "axolotl", "llama-factory-accelerate"])
def test_adapters_in_a_tower_are_refused_before_planning_or_written_and_read_back(launcher: str) -> None:
    found, outcomes = next(iter(with_towers(launcher))), dict[tuple[str, ...], bool]()
    for targets in adapted_choices(Random(launcher)):
        work = replace(found.workload, frozen=(), lora_rank=8, lora_targets=targets)
        asked = replace(found, problem=replace(found.problem, workload=work))
        outcomes[targets] = not list(problem_faults(asked.problem, launcher_capabilities(launcher)))
        if outcomes[targets]:
            priced_as_written(asked)
    assert {*outcomes.values()} == {True, False}, outcomes

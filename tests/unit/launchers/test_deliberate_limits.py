"""The table of rules that refuse what a launcher's parser takes: every row is of a rule that there is."""

from functools import cache

import pytest

from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.library import find_model
from meshwright.solver.space.rules import rules_of
from tests.launchers.plans import problem_of
from tests.launchers.refusals import KINDS, Limit, limits, refused_words

MODELS = ("llama-3.1-8b", "mixtral-8x7b", "gpt-oss-20b")  # dense, with experts, with windows and sinks


@cache
def rules(launcher: str) -> frozenset[str]:
    """Names of the launcher's rules, and the words of workloads that it is said not to train."""
    problems = [problem_of(launcher, find_model(name)) for name in MODELS]
    able = launcher_capabilities(launcher)
    names = [rule.name for problem in problems for rule in rules_of(problem)]
    return frozenset([*names, *(word for problem in problems for word, _ in refused_words(problem, able))])


@pytest.mark.parametrize("limit", limits(), ids=lambda limit: limit.rule.pattern)
def test_every_deliberate_limit_is_a_rule_of_a_launcher_with_a_kind_and_a_source(limit: Limit) -> None:
    assert limit.kind in KINDS
    assert limit.reason
    assert limit.source
    for launcher in limit.launchers:
        assert any(limit.covers(launcher, rule) for rule in rules(launcher)), launcher

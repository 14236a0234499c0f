"""A change that gives a request a plan holds what it says: who pastes it gets a step as short, or shorter.

It is shorter by more than 1 % only where the change says ``at_least``.
"""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.profile import default_profile
from meshwright.service.report.sentences import option_words, remedy_words
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.planner.plan import ask
from tests.draws import draws
from tests.property.test_levers import OVER, ROUNDING, typed

SMALL = (("rtx-4090", 1), ("rtx-4090", 2), ("l40s", 2), ("a100-sxm-40gb", 2), ("h100-sxm-80gb", 1))
DENSE = ("llama-3.1-8b", "qwen3-8b", "llama-2-13b", "qwen3-14b")
OF_EXPERTS = ("gpt-oss-20b", "qwen3-30b-a3b")


def too_large(seed: int, launchers: tuple[str, ...], models: tuple[str, ...]) -> dict[str, Any]:
    """A request whose states are larger than its GPUs: 18 bytes for each of 8 to 30 billion weights."""
    random = Random(f"too-large-{seed}-{launchers[0]}")
    gpu, each = random.choice(SMALL)
    work: dict[str, Any] = {
        "global_batch_size": random.choice((16, 24, 64)),
        "seq_length": random.choice((2048, 8192)),
    }
    if random.random() < 0.2:
        work["framework_options"] = {"gradient_dtype": "bf16"}
    return {
        "model": {"name": random.choice(models)},
        "cluster": {"groups": [{"gpu": gpu, "num_nodes": 1, "gpus_per_node": each}]},
        "workload": work,
        "launcher": random.choice(launchers),
        "search": {"top_k": 1, "certify": "none"},
    }


@pytest.mark.parametrize(
    ("launchers", "models"),
    [
        (("trl", "axolotl", "accelerate", "deepspeed", "torchtitan"), (*DENSE, *OF_EXPERTS)),
        (("megatron-lm", "ms-swift"), DENSE),
        (("megatron-bridge", "megatron-lm"), OF_EXPERTS),
    ],
    ids=["plain", "switches", "experts"],
)
@pytest.mark.parametrize("seed", range(draws(1, of_more=2)))
def test_who_pastes_a_change_gets_the_step_that_it_shows(
    seed: int, launchers: tuple[str, ...], models: tuple[str, ...], tmp_path: Path
) -> None:
    raw = too_large(seed, launchers, models)
    try:
        problem = parse_problem(raw)
    except InvalidProblemError:
        return
    answer = ask(problem, default_profile(problem.cluster, problem.priced_as))
    for one in answer.infeasible.remedies if answer.infeasible else ():
        if not one.settings:
            continue
        changed = parse_problem(typed(raw, option_words(one.settings), tmp_path))
        options = replace(changed.options, time_limit_s=20.0)
        found = ask(replace(changed, options=options), default_profile(changed.cluster, changed.priced_as))
        share = found.ranking[0].prediction.step_time_s / one.step_time_s
        assert share <= 1.0 + ROUNDING, one
        assert one.at_least or share >= 1.0 - OVER, (one, share)
        assert one.at_least == remedy_words(one)[1].startswith("at most ")

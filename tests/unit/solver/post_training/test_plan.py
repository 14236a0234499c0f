"""What a time limit and a stop leave of an answer on post-training, whichever part they come in."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import pytest

from meshwright.profiles.errors import InvalidProblemError, PlannerError, StoppedError
from meshwright.profiles.profile import default_profile
from meshwright.service.post_training.request import read_post_training
from meshwright.solver.clock import Watch
from meshwright.solver.post_training import plan as planning
from meshwright.solver.post_training import roles, training
from meshwright.solver.post_training.calibration import Correction
from meshwright.solver.post_training.plan import engine_of, plan_post_training
from meshwright.solver.post_training.problem import PostTraining
from meshwright.solver.post_training.rollout import rollout_of
from meshwright.solver.search.cp_sat import solved_until
from tests.processes.pace import pace

SMALL: dict[str, Any] = {
    "kind": "post_training",
    "model": "llama-3.2-1b",
    "cluster": {"groups": [{"gpu": "h100-sxm-80gb", "num_nodes": 1, "gpus_per_node": 4}]},
    "algorithm": {"prompts": 64, "responses": 16},
    "lengths": {"mean": 1000, "max": 4096},
}
TOO_LARGE = {
    **SMALL,
    "model": "llama-3.1-405b",
    "cluster": {"groups": [{"gpu": "h100-sxm-80gb", "num_nodes": 4}]},
}
LEAVES_WITHIN_S = 2.0  # what a worker waits for a stopped search (``runner.STOP_WAIT_S``)


def asked(request: dict[str, Any]) -> PostTraining:
    return read_post_training(request).asked


def stopped_at(monkeypatch: pytest.MonkeyPatch, place: object, name: str, call: int = 1) -> Watch:
    """A watch that is asked to stop from the named function's ``call``-th call on."""
    calls, real = [0], getattr(place, name)

    def counted(*given: Any, **named: Any) -> Any:  # noqa: ANN401 - whatever it is called with
        calls[0] += 1
        return real(*given, **named)

    monkeypatch.setattr(place, name, counted)
    return Watch(time_limit_s=1e6, should_stop=lambda: calls[0] >= call)


@pytest.mark.parametrize(
    ("place", "name", "call", "outcomes"),
    [(training, "price_of", 1, 0), (planning, "placed", 1, 0), (planning, "_repriced", 2, 1)],
)
def test_what_is_priced_at_a_stop_is_placed_and_the_answer_says_so(
    monkeypatch: pytest.MonkeyPatch, place: object, name: str, call: int, outcomes: int
) -> None:
    watch = stopped_at(monkeypatch, place, name, call)
    answer = plan_post_training(asked(SMALL), watch=watch)
    assert (answer.status, len(answer.outcomes), watch.stopped) == ("feasible", outcomes, True)
    assert answer.plans
    assert "Raise search.time_limit_s" in answer.notes[0]


MEASURED = {
    **SMALL,
    "measured": [
        {
            "parts": {"update": 9.0},
            "rollout": {"tp": 1},
            "training": {"nodes": 1},
            "asynchrony": {"mode": "colocated"},
        }
    ],
}


@pytest.mark.parametrize(
    ("request_", "place", "name", "error"),
    [
        (SMALL, planning, "rollout_of", StoppedError),
        (MEASURED, planning, "rollout_of", StoppedError),
        (TOO_LARGE, planning, "least_nodes", InvalidProblemError),  # without a nearest size
    ],
)
def test_a_stop_before_the_first_placement_ends_every_part_at_once(
    monkeypatch: pytest.MonkeyPatch,
    request_: dict[str, Any],
    place: object,
    name: str,
    error: type[PlannerError],
) -> None:
    """Whoever leaves, or was cancelled, waits for no reason why there is no placement either."""
    watch = stopped_at(monkeypatch, place, name)
    began_s = time.thread_time()
    with pytest.raises(error) as caught:
        plan_post_training(asked(request_), watch=watch)
    assert "Nearest" not in str(caught.value)
    assert time.thread_time() - began_s < LEAVES_WITHIN_S * pace()


def test_the_solver_of_the_roles_is_stopped_too(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def told(solver: Any, model: Any, is_over: Any) -> int:  # noqa: ANN401 - OR-Tools
        seen.append(is_over())
        return solved_until(solver, model, is_over)

    monkeypatch.setattr(roles, "solved_until", told)
    monkeypatch.setattr(planning, "_CLOSING_S", 0.0)
    with suppress(StoppedError):
        plan_post_training(asked(SMALL), watch=Watch(time_limit_s=1e6, should_stop=lambda: len(seen) > 0))
    assert seen[0] is False
    assert len(seen) <= 2  # the one that began before the stop, and the one that tidies it up


def test_an_engine_with_very_many_answers_is_priced_by_a_part_of_them() -> None:
    question = asked(SMALL)
    engine = engine_of(question, question.groups["h100-sxm-80gb"], 1, 0.9)
    number = 3 * planning._MANY
    lengths = question.lengths
    whole = rollout_of(engine, lengths.drawn(number, number), lengths.prompt)
    part = rollout_of(engine, lengths.drawn(planning._MANY, number), lengths.prompt, of=number)
    assert part.seconds == pytest.approx(whole.seconds, rel=0.01)


def test_measured_steps_correct_a_reward_model_at_every_length() -> None:
    question = asked({**SMALL, "launcher": "verl", "reward": {"model": "qwen3-0.6b"}})
    priced = [*training.training_prices(question, lambda one: default_profile(one.cluster, one.priced_as))]
    engines = [*planning.engine_prices(question, question.lengths)]
    times = {"reward": Correction(factor=3.0, sigma=0.1, steps=1)}
    prices = planning.prices_of(question, priced, engines, times)
    plain = planning.prices_of(question, priced, engines, {})
    seconds = prices.training[0].scoring_s
    assert seconds == pytest.approx(3.0 * (plain.training[0].scoring_s or 0.0))
    assert planning._repriced(question, prices, question.lengths).training[0].scoring_s == seconds

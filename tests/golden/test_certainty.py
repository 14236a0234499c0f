"""How sure an answer is: one sentence, the same in terminal, page, report and API."""

import io
from collections.abc import Iterator
from dataclasses import replace

import pytest
from fastapi.testclient import TestClient
from rich.console import Console

from meshwright.service.api.app import create_app
from meshwright.service.db import migrations
from meshwright.service.db.database import Database
from meshwright.service.jobs.answers import answer_from_json
from meshwright.service.report.terminal import render_answer
from meshwright.service.settings import Settings
from meshwright.service.web.install import install
from meshwright.solver.answer import Answer, Infeasibility, ObjectiveClaim, Odds
from tests.builders import a_plan, an_answer, an_infeasible_answer
from tests.served.answered_jobs import add_answered_job
from tests.served.reports import Page, page_of, small_answer

LIKELY = replace(a_plan(), odds=Odds(best_probability=0.58, regret_p90=0.0581))
RATE = ObjectiveClaim(name="energy_per_token", unit="J/token", value=0.046, bound=0.045, gap=0.0042)
ENDINGS = {
    "optimal": an_answer(LIKELY, gap=0.0036),
    "one plan": an_answer(replace(a_plan(), odds=Odds(best_probability=1.0, regret_p90=0.0)), gap=1e-10),
    "sure": an_answer(
        replace(a_plan(), odds=Odds(best_probability=0.97, regret_p90=0.0)), gap=0.01 + 1e-16
    ),
    "proved, but not closely": an_answer(LIKELY, gap=0.0361),
    "cut short": an_answer(LIKELY, status="feasible", certified_by=(), gap=0.0361, explored=1000),
    "without a bound": an_answer(status="feasible", certified_by=(), gap=None, explored=1000),
    "unlike node groups": an_answer(LIKELY, decided_by="cp-sat", gap=0.221, objective_gap=0.01),
    "another objective": an_answer(gap=0.3, objective=RATE),
    "nothing found": an_answer(status="unknown", plans=(), explored=1000, gap=None, bound_step_time_s=None),
    "nothing fits": replace(an_infeasible_answer(), infeasible=Infeasibility(reasons=("memory",))),
}
SENTENCES = {
    "optimal": "Optimal under our cost model: the best of 184 320 configurations, proved to within 0.4 %. "
    "On your machines: within 5.9 % of the fastest listed, 9 times in 10.",
    "one plan": "Optimal under our cost model: the best of 184 320 configurations, proved to within 0.1 %.",
    "sure": "Optimal under our cost model: the best of 184 320 configurations, proved to within 1.0 %. "
    "On your machines: within 0.1 % of the fastest listed, 9 times in 10.",
    "proved, but not closely": "Best found: among 184 320 configurations, within 3.7 % of the best "
    "possible under our cost model. On your machines: within 5.9 % of the fastest listed, 9 times in 10.",
    "cut short": "Best found: among 1 000 of 184 320 configurations, within 3.7 % of the best possible "
    "under our cost model. On your machines: within 5.9 % of the fastest listed, 9 times in 10.",
    "without a bound": "Best found: among 1 000 of 184 320 configurations. How far it is from the best "
    "possible is unknown.",
    "unlike node groups": "Best found: among 184 320 configurations, within 22.1 % of the best "
    "possible under our cost model. On your machines: within 5.9 % of the fastest listed, 9 times in 10.",
    "another objective": "Optimal under our cost model: by energy per token, the best of 184 320 "
    "configurations, proved to within 0.5 %.",
    "nothing found": "No plan was found in 1 000 of 184 320 configurations, and nothing is proved.",
    "nothing fits": "Nothing fits: each of 184 320 configurations breaks a rule or a limit, under our "
    "cost model.",
}


@pytest.fixture
def browser(database: Database) -> Iterator[TestClient]:
    app = create_app(Settings(database_url=str(database.url)))
    install(app)
    with TestClient(app, base_url="http://localhost") as client:
        yield client


@pytest.fixture
def database(tmp_path: object) -> Iterator[Database]:
    made = Database(f"sqlite:///{tmp_path}/meshwright.db")
    migrations.upgrade(made)
    yield made
    made.close()


def terminal(answer: Answer) -> str:
    console = Console(width=100, file=io.StringIO(), highlight=False)
    with console.capture() as capture:
        console.print(render_answer(answer, small_answer()[0], width=100))
    return " ".join(capture.get().split())


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_sentence_is_the_same_in_all_four_places(
    ending: str, browser: TestClient, database: Database
) -> None:
    problem, answer, sentence = small_answer()[0], ENDINGS[ending], SENTENCES[ending]
    assert answer.to_json()["certainty"] == sentence
    assert sentence in terminal(answer)
    assert sentence in Page(page_of(answer, problem)).text
    add_answered_job(database, "job", problem, answer)
    assert browser.get("/v1/jobs/job/plans").json()["certainty"] == sentence
    if answer.plans or answer.status == "infeasible":
        assert sentence in Page(browser.get("/jobs/job", headers={"accept": "text/html"}).text).text


@pytest.mark.parametrize("ending", ENDINGS)
def test_optimal_means_proved_to_within_one_per_cent_and_nothing_else(ending: str) -> None:
    answer = ENDINGS[ending]
    gap = answer.gap if answer.objective is None else answer.objective.gap
    proved = answer.status == "optimal" and bool(answer.plans) and gap is not None and gap <= 0.01 + 1e-9
    assert answer.is_optimal is proved
    assert ("optimal" in " ".join([terminal(answer), answer.certainty]).lower()) is proved
    assert (answer.to_json()["status"] == "optimal") is proved
    assert answer_from_json(answer.to_json()).certainty == answer.certainty

"""A report is one file that stands alone, whatever its names are."""

import base64
import hashlib
import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from math import inf

import pytest

from meshwright.service.report.charts.palette import MEMORY_COLORS, TIME_COLORS
from meshwright.service.report.formatting import MEMORY_TERMS, TIME_TERMS, seconds
from meshwright.service.report.page import content_security_policy
from meshwright.service.report.sides import comparison_of
from meshwright.service.report.verdict import verdict_of
from meshwright.solver.answer import SAMPLE, Answer
from meshwright.solver.problem import Problem
from tests.builders import a_configuration, a_plan, a_prediction, a_problem, an_answer, an_infeasible_answer
from tests.served.reports import Page, page_of, small_answer

MOST_BYTES = 2_000_000
LOADS = {"src", "href", "data", "poster", "action", "formaction", "srcset", "xlink:href"}


@pytest.fixture(scope="module", autouse=True)
def _no_pair_of_changes_comes_too_late() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("meshwright.service.what_if.grid._PAIRS_S", inf)
        yield


@pytest.fixture(scope="module")
def small() -> tuple[str, Page]:
    problem, answer = small_answer()
    text = page_of(answer, problem, what_if="predict")
    return text, Page(text)


def test_every_part_of_the_report_is_there(small: tuple[str, Page]) -> None:
    ids = {attributes.get("id") for _, attributes in small[1].elements}
    assert {"ranking", "trade-off", "plan", "compare", "what-if", "provenance"} <= ids
    assert len(small[1].all("article")) == 3
    problem, answer = small_answer()
    for part in ("memory", "waterfall", "timeline", "ranks", "roofline", "files", "why"):
        assert f"plan-{answer.plans[0].plan_id}-{part}" in ids
    assert problem.model.title in small[1].text


def test_nothing_is_fetched(small: tuple[str, Page]) -> None:
    text, page = small
    for tag, attributes in page.elements:
        for name in LOADS & attributes.keys():
            assert attributes[name].startswith("#"), (tag, name)
    assert "@import" not in text
    assert "url(" not in text
    assert not page.all("link")


def test_style_and_script_are_the_ones_that_the_policy_names(small: tuple[str, Page]) -> None:
    text, page = small
    policy = next(meta["content"] for meta in page.all("meta") if "http-equiv" in meta)
    assert policy == content_security_policy()
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'")
    for tag, directive in (("style", "style-src"), ("script", "script-src")):
        content = re.search(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        assert content is not None
        digest = base64.b64encode(hashlib.sha256(content.group(1).encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy


def test_no_element_has_a_style_or_a_handler_of_its_own(small: tuple[str, Page]) -> None:
    for tag, attributes in small[1].elements:
        assert "style" not in attributes, tag
        assert not [name for name in attributes if name.startswith("on")], tag


def test_ids_are_unique_and_references_lead_somewhere(small: tuple[str, Page]) -> None:
    elements = small[1].elements
    ids = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes in elements:
        for name in ("aria-labelledby", "data-copy", "data-zoom", "data-lookup"):
            assert set(attributes.get(name, "").split()) <= set(ids), (tag, name)
        link = attributes.get("href", "")
        assert not link or link[1:] in ids


def test_pictures_and_regions_have_names(small: tuple[str, Page]) -> None:
    for tag, attributes in small[1].elements:
        named = {"aria-label", "aria-labelledby"} & attributes.keys()
        if tag == "svg":
            assert named or attributes.get("aria-hidden") == "true"
        if attributes.get("role") in ("region", "img"):
            assert named
    assert small[1].all("html") == [{"lang": "en"}]
    levels = [int(tag[1]) for tag, _ in small[1].elements if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_the_same_answer_gives_the_same_bytes(small: tuple[str, Page]) -> None:
    problem, answer = small_answer()
    assert page_of(answer, problem, what_if="predict") == small[0]


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)> \" ' & {{ 7 * 7 }} · \u202e"


def test_hostile_names_are_text() -> None:
    problem, answer = small_answer()
    model = replace(problem.model, display_name=HOSTILE, source=HOSTILE)
    cluster = replace(problem.cluster, display_name=HOSTILE, warnings=(HOSTILE,))
    answer = replace(answer, warnings=(HOSTILE,), notes={"profile": HOSTILE}, versions={HOSTILE: HOSTILE})
    page = Page(page_of(answer, replace(problem, model=model, cluster=cluster)))
    assert len(page.all("script")) == 2  # ours, and the figures to compare
    assert page.all("img") == []
    assert "alert(1)" in page.text
    assert "{{ 7 * 7 }}" in page.text
    assert "\u202e" not in next(text for text in page.texts if "alert(1)" in text)  # titles lose it


def test_a_hundred_plans_stay_under_two_megabytes() -> None:
    problem, few = small_answer()
    plans = tuple(
        replace(few.plans[rank % 3], rank=rank + 1, plan_id=f"{rank:012x}") for rank in range(100)
    )
    text = page_of(replace(few, plans=plans), problem)
    assert len(text.encode()) < MOST_BYTES
    assert len(Page(text).all("tr")) > 100


def test_the_longest_steps_stay_under_two_megabytes_too() -> None:
    problem = a_problem(batch=4 * 4096)
    plans = tuple(
        replace(a_plan(rank=rank, plan_id=f"{rank:012x}", num_microbatches=4096), prediction=a_prediction())
        for rank in range(1, 6)
    )
    assert len(page_of(an_answer(*plans), problem).encode()) < MOST_BYTES


def test_more_plans_than_a_page_holds_are_said_to_be_left_out() -> None:
    problem, few = small_answer()
    plans = tuple(replace(few.plans[0], rank=rank, plan_id=f"{rank:012x}") for rank in range(1, 301))
    page = Page(page_of(replace(few, plans=plans), problem, detailed=1))
    assert "Plans behind #100 are left out." in page.text
    last = Page(page_of(replace(few, plans=plans), problem, detailed=1, chosen=plans[-1].plan_id))
    assert last.all("article")[0]["id"] == f"plan-{plans[-1].plan_id}"


def test_costs_that_predict_another_step_draw_their_own_timeline_and_say_so() -> None:
    problem, answer = small_answer()
    other = replace(answer.plans[0].prediction, step_time_s=1.0, time_breakdown_s={"compute": 1.0})
    plan = replace(answer.plans[0], prediction=other, why=None)
    page = Page(page_of(replace(answer, plans=(plan,)), problem))
    now = seconds(answer.plans[0].prediction.step_time_s)
    then = f"predicted this plan: {seconds(1.0)} a step."
    assert f"{then} The timeline shows what the costs here give: {now}." in page.text
    assert [one for one in page.all("table") if one.get("class") == "timeline"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (an_infeasible_answer(), "Nothing fits: each of"),
        (an_answer(status="unknown", plans=()), "configurations, and nothing is proved."),
        (an_answer(status="feasible", certified_by=(), gap=0.03), "at most 3.0 % from the best"),
        (an_answer(a_plan(rank=4)), "rank 4"),
    ],
)
def test_every_ending_has_its_page(answer: Answer, said: str) -> None:
    page = Page(page_of(answer, a_problem()))
    assert said in page.text
    assert "Optimal" not in page.text


def test_a_placed_plan_shows_where_its_stages_stand(placed: tuple[Problem, Answer]) -> None:
    problem, answer = placed
    page = Page(page_of(answer, problem))
    assert "fast" in page.text
    assert "slow" in page.text
    assert [one for one in page.all("table") if one.get("class") == "timeline"]


@pytest.fixture
def placed() -> tuple[Problem, Answer]:
    from meshwright.profiles.profile import default_profile  # noqa: PLC0415 - for this fixture alone
    from meshwright.solver.planner.plan import ask  # noqa: PLC0415 - the same
    from tests.problems.mixed_clusters import a_group, a_mixed_problem  # noqa: PLC0415 - the same

    groups = (a_group(), a_group(speed=0.5, slug="slow"))
    problem = replace(a_mixed_problem(groups, num_layers=4, batch=8, certify="none"), launcher="none")
    return problem, ask(problem, default_profile(problem.cluster, "none"))


def test_a_configuration_without_pipeline_has_a_page() -> None:
    config = a_configuration(
        tensor_parallel_size=1, sequence_parallel=False, pipeline_parallel_size=1, virtual_pipeline_size=1,
        data_parallel_size=128, num_microbatches=4, pipeline_schedule="none", stage_layers=(80,),
    )  # fmt: skip
    seen = a_prediction(stages=a_prediction().stages[:1])
    plan = replace(a_plan(), config=config, prediction=seen)
    assert "dp 128" in Page(page_of(an_answer(plan), a_problem())).text


def test_more_time_is_advised_only_where_it_may_help() -> None:
    problem, nothing = a_problem(), an_answer(status="unknown", plans=())
    assert verdict_of(nothing, problem).notes[0].startswith("More time may find one")
    sampled = replace(nothing, notes=SAMPLE)
    assert verdict_of(sampled, problem).notes[0].startswith("More time alone will not help")


def test_a_comparison_shows_only_what_differs_with_bars_in_one_scale() -> None:
    table = comparison_of(small_answer()[1], "")
    assert table is not None
    shown = [one for one in table.quantities if one.key not in table.hidden]
    assert shown
    assert all(table.difference(one) for one in shown)
    changes = [abs(table.change(one)) for one in table.quantities if one.has_bar]
    assert max(changes) == 1.0
    assert all(table.change(one) == 0.0 for one in table.quantities if not one.unit)


def test_every_term_has_a_colour_of_its_own() -> None:
    assert set(MEMORY_COLORS) == set(MEMORY_TERMS)
    assert set(TIME_COLORS) == set(TIME_TERMS)
    assert len(set(MEMORY_COLORS.values())) == len(MEMORY_COLORS)
    assert len(set(TIME_COLORS.values())) >= len(TIME_COLORS) - 1  # computing is either one or split

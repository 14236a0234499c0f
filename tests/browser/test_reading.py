"""Whatever is shown can be read: ten thousand plans, a phone, a screen reader, a file without a network."""

from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from meshwright.service.db.database import Database
from meshwright.service.report.formatting import gib, seconds
from tests.browser.chromium import a_page, grave_findings, overflow
from tests.browser.questions import await_answer, fill_in, search, ten_thousand_plans
from tests.builders import an_infeasible_answer
from tests.processes.pace import pace
from tests.processes.servers import RunningServer, cpu_s
from tests.served.answered_jobs import add_answered_job
from tests.served.reports import small_answer


@pytest.fixture(scope="module")
def shown(database: Database, server: RunningServer) -> dict[str, str]:
    """An address of every page."""
    add_answered_job(database, "small", *small_answer())
    add_answered_job(database, "full", small_answer()[0], an_infeasible_answer())
    (first, other, _) = small_answer()[1].plans
    paths = {
        "first": "/",
        "own": "/own",
        "jobs": "/jobs",
        "answer": "/jobs/small",
        "plan": f"/plans/{first.plan_id}",
        "full": "/jobs/full",
        "what if": "/jobs/small/what-if",
        "compare": f"/compare?first={first.plan_id}&second={other.plan_id}",
        "export": f"/plans/{first.plan_id}/export",
        "models": "/models",
        "model": "/models/llama-3.1-70b",
        "clusters": "/clusters",
        "profiles": "/profiles",
        "words": "/words",
        "keys": "/keys",
        "failure": "/jobs/none",
    }
    return {name: f"{server.url}{path}" for name, path in paths.items()}


def test_ten_thousand_plans_come_a_page_at_a_time(
    page: Page, server: RunningServer, database: Database
) -> None:
    add_answered_job(database, "many", *ten_thousand_plans())
    before_s = cpu_s(server.process.pid)
    page.goto(f"{server.url}/jobs/many")
    rows = page.locator("table.ranking tbody tr")
    expect(rows).to_have_count(25)
    assert (
        cpu_s(server.process.pid) - before_s < 2.0 * pace()
    )  # a few tenths: no plan but the shown is read
    assert len(page.content()) < 400_000  # characters: no page grows with the answer
    page.get_by_role("link", name="Next plans").click()
    expect(page.get_by_text("Plans 26 to 50")).to_be_visible()
    expect(rows).to_have_count(25)
    page.get_by_role("link", name="Plan 30 in full").click()
    expect(page.get_by_role("heading", name="Plan 30: ")).to_be_visible()


CUT = """selects => selects.flatMap(select => {
    const pen = document.createElement("canvas").getContext("2d"), style = getComputedStyle(select);
    pen.font = style.font;
    const arrow = 20, padding = parseFloat(style.paddingLeft) + parseFloat(style.paddingRight);
    const room = select.clientWidth - padding - arrow;
    const cut = [...select.options].filter(one => pen.measureText(one.text).width > room);
    return cut.map(one => `${select.name}: ${one.text}`);
})"""


@pytest.mark.parametrize("width", [390, 1440])
def test_every_choice_of_every_list_is_readable(chrome: Browser, server: RunningServer, width: int) -> None:
    with a_page(chrome, width=width) as page:
        page.goto(server.url)
        page.eval_on_selector_all("details", "all => all.forEach(one => { one.open = true; })")
        assert page.eval_on_selector_all("form select", CUT) == []


def test_the_ranking_fits_a_wide_window_with_its_last_column(
    chrome: Browser, server: RunningServer, database: Database
) -> None:
    problem, answer = small_answer()
    first, *others = answer.plans
    config = replace(first.config, rank_order="tp-cp-pp-dp", offload="optimizer")
    plans = (replace(first, config=config, workload={"cuda_graph": "full_iteration"}), *others)
    add_answered_job(database, "also", problem, replace(answer, plans=plans))
    with a_page(chrome, width=1440) as page:
        page.goto(f"{server.url}/jobs/also")
        ranking = page.locator(".scroll:has(table.ranking)")
        assert ranking.evaluate("one => one.scrollWidth - one.clientWidth") <= 0


WIDTHS = [390, 1440]


def seen_whole(page: Page, selector: str) -> bool:
    """Whether the first such element is shown, and ends within the window's width."""
    box = page.locator(selector).first.bounding_box()
    width = page.viewport_size["width"] if page.viewport_size else 0
    return box is not None and box["x"] >= 0 and box["x"] + box["width"] <= width


@pytest.mark.parametrize("width", WIDTHS)
def test_step_and_memory_of_the_first_plan_are_found_without_scrolling_sideways(
    chrome: Browser, shown: dict[str, str], width: int
) -> None:
    best = small_answer()[1].plans[0].prediction
    step, peak = (
        f"{seconds(best.step_time_s)} ±".replace(" ", "\N{NO-BREAK SPACE}", 1),
        gib(best.peak_memory_bytes),
    )
    with a_page(chrome, width=width) as page:
        page.goto(shown["answer"])
        assert overflow(page) <= 0
        for place in (".headline dd", "table.ranking tbody tr:first-child td"):
            found = page.locator(place).all_inner_texts()
            assert any(step.split("±")[0].strip() in text.replace("\n", " ") for text in found), found
            assert any(peak in text for text in found), found
        for place in (
            ".headline div:nth-child(1) dd",
            ".headline div:nth-child(2) dd",
            "table.ranking tbody td.step",
            "table.ranking tbody td.memory",
            "table.ranking tbody td.step svg",
            "table.ranking tbody td.memory svg",
        ):
            assert seen_whole(page, place), place
        assert page.locator(".headline dd").first.bounding_box()["y"] < 844


@pytest.mark.parametrize("width", WIDTHS)
def test_step_and_gain_of_every_what_if_are_seen_without_scrolling_sideways(
    chrome: Browser, shown: dict[str, str], width: int
) -> None:
    with a_page(chrome, width=width) as page:
        page.goto(f"{shown['answer']}/what-if")
        for column in (3, 4, 6):
            assert seen_whole(page, f".what-if tbody tr td:nth-child({column}):not(:empty)"), column


@pytest.mark.parametrize("width", WIDTHS)
def test_the_whole_menu_is_visible(chrome: Browser, shown: dict[str, str], width: int) -> None:
    with a_page(chrome, width=width) as page:
        page.goto(shown["answer"])
        entries = page.locator(".top nav a")
        assert entries.count() >= 6
        for number in range(entries.count()):
            assert seen_whole(page, f".top nav a >> nth={number}")


def test_launch_files_are_saved_by_keyboard_alone(page: Page, shown: dict[str, str]) -> None:
    page.goto(shown["answer"])
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "Get launch files":
            break
    with page.expect_download() as saved:
        page.keyboard.press("Enter")
    assert saved.value.suggested_filename.endswith(".zip")


def test_an_answer_prints_without_buttons_and_menus(page: Page, shown: dict[str, str]) -> None:
    page.goto(shown["answer"])
    page.emulate_media(media="print")
    for gone in (".top", ".actions", ".choose"):
        assert not page.locator(gone).first.is_visible()
    for kept in (".headline", ".certainty", ".stack svg", "table.ranking"):
        assert page.locator(kept).first.is_visible()
    assert page.pdf().startswith(b"%PDF")


@pytest.mark.parametrize("width", WIDTHS)
def test_a_sweep_names_its_axes_and_the_point_of_its_best_plan(
    chrome: Browser, server: RunningServer, width: int
) -> None:
    model, batch = {"name": "llama-3.1-8b"}, {"global_batch_size": 64, "seq_length": 4096}
    asked = {"model": model, "cluster": {"name": "dgx-h100"}, "workload": batch, "launcher": "megatron-lm"}
    job = server.post_job({**asked, "sweep": {"num_nodes": [1, 2]}})
    server.finished_job(job["id"])
    with a_page(chrome, width=width) as page:
        page.goto(f"{server.url}/jobs/{job['id']}")
        expect(page.get_by_role("heading", name="Llama 3.1 8B, a sweep of 2 points")).to_be_visible()
        expect(page.get_by_text("nodes 1, 2")).to_be_visible()
        expect(page.get_by_text("The best point is nodes")).to_be_visible()
        expect(page.get_by_role("link", name="nodes 2", exact=True)).to_be_visible()
        assert page.get_by_text("of 8 GPUs").count() == 0
        assert overflow(page) <= 0
        assert grave_findings(page) == []


OUTSIDE = """texts => texts.filter(text => {
    const own = text.getBoundingClientRect(), picture = text.ownerSVGElement.getBoundingClientRect();
    return own.left < picture.left - 1 || own.right > picture.right + 1;
}).map(text => text.textContent)"""


def test_no_label_of_a_course_is_cut_on_a_phone(chrome: Browser, server: RunningServer) -> None:
    with a_page(chrome, width=390) as page:
        fill_in(page, server.url, batch="96")
        search(page)
        await_answer(page)
        page.locator("figure.course:visible").wait_for()
        assert page.locator("figure.course text").count() >= 4
        assert page.eval_on_selector_all("figure.course text", OUTSIDE) == []


def test_a_link_is_revoked_on_a_phone_without_scrolling_sideways(
    phone: Page, shown: dict[str, str]
) -> None:
    phone.goto(f"{shown['answer']}/share")
    phone.get_by_role("button", name="Make link").click()
    links = phone.get_by_role("region", name="Links")
    assert links.evaluate("one => one.scrollWidth - one.clientWidth") <= 0
    assert seen_whole(phone, "table .danger summary")


def test_dates_of_jobs_stay_on_one_line_on_a_phone(phone: Page, shown: dict[str, str]) -> None:
    phone.goto(shown["jobs"])
    date = phone.locator("table.list time").first
    assert date.evaluate("one => one.getClientRects().length") == 1


def test_every_page_fits_a_phone(phone: Page, shown: dict[str, str]) -> None:
    wide = {}
    for name, address in shown.items():
        phone.goto(address)
        wide[name] = overflow(phone)
    assert {name: pixels for name, pixels in wide.items() if pixels > 0} == {}


@pytest.mark.parametrize(("width", "dark"), [(1440, False), (1440, True), (390, False), (390, True)])
def test_axe_has_no_serious_finding(
    chrome: Browser, shown: dict[str, str], width: int, *, dark: bool
) -> None:
    with a_page(chrome, width=width, dark=dark) as page:
        found = {}
        for name, address in shown.items():
            page.goto(address)
            found[name] = grave_findings(page)
        page.goto(shown["first"])
        page.get_by_label("Batch", exact=True).fill("many")
        for part in page.locator("details.part summary").all():
            part.click()
        page.get_by_role("button", name="Search", exact=True).click()
        expect(page.locator("#fault-batch")).to_be_visible()
        found["faults"] = grave_findings(page)
        assert {name: what for name, what in found.items() if what} == {}


def test_the_report_opens_from_disk_without_a_network(
    chrome: Browser, shown: dict[str, str], tmp_path: Path
) -> None:
    with a_page(chrome) as page:
        page.goto(shown["answer"])
        address = page.get_by_role("link", name="Report", exact=True).get_attribute("href")
        saved = page.request.get(shown["first"].rstrip("/") + str(address))
        (tmp_path / "report.html").write_bytes(saved.body())
    with a_page(chrome, offline=True) as page:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto((tmp_path / "report.html").as_uri())
        expect(page.get_by_role("heading", name="Ranking")).to_be_visible()
        page.get_by_role("button", name="MFU").click()
        expect(page.locator("th[aria-sort]")).to_have_count(1)
        page.locator("#compare").get_by_label("Second").select_option(index=2)
        expect(page.locator("[data-name=second]")).to_contain_text("#3")
        assert asked == [page.url]
        assert grave_findings(page) == []
        assert overflow(page) <= 0

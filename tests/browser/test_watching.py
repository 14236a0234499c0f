"""A search while it runs: live, after a reload, without a stream, while the server goes and comes."""

import json
import re
from pathlib import Path

from playwright.sync_api import Page, expect

from meshwright.service.db.database import Database
from tests.browser.questions import fill_in, search
from tests.browser.slow_service import Slow, slow_service
from tests.processes.servers import RunningServer, serving, until
from tests.served.answered_jobs import add_answered_job
from tests.served.reports import small_answer


def watched_seconds(page: Page) -> float:
    """The time of the search, as the page shows it."""
    text = page.locator("[data-show=elapsed]").inner_text()
    return float(text.removesuffix(" s")) if text.endswith(" s") else 0.0


def await_progress(page: Page, beyond_s: float = 0.0) -> None:
    until(lambda: watched_seconds(page) > beyond_s, within_s=20.0)


def test_a_search_is_watched_reloaded_and_cancelled(page: Page, slow: Slow) -> None:
    url = slow.url
    fill_in(page, url)
    job_id = search(page)
    await_progress(page)
    expect(page.locator("[data-show=incumbent]")).to_have_text("33.0 s")  # what the slow search tells
    expect(page.locator("[data-show=bound]")).to_have_text("32.0 s")
    expect(page.locator("[data-show=gap]")).to_have_text("3.0 %")
    line = page.locator("figure.course .incumbent")
    expect(line).to_have_attribute("d", re.compile(r"^M.+H"))

    before = watched_seconds(page)
    page.reload()
    await_progress(page, before)
    expect(line).to_have_attribute("d", re.compile(r"^M.+H"))  # the whole course, from the first event

    page.goto(f"{url}/jobs")
    expect(page.locator(".state.running")).to_have_text("searching")
    page.goto(f"{url}/jobs/{job_id}")
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("State: cancelled")).to_be_visible()  # with the best plan so far
    page.goto(f"{url}/jobs?state=cancelled")
    expect(page.locator("table.list tbody tr")).to_have_count(1)


def test_the_bound_of_the_whole_answer_ends_the_course_where_it_is_higher(
    page: Page, server: RunningServer, database: Database
) -> None:
    """Of several variants the last report's bound is that of all, which none of them has alone."""
    add_answered_job(database, "course", *small_answer())
    told = [("solving", 1.0, 28.20), ("done", 2.0, 28.33)]
    reports = [
        {"stage": stage, "elapsed_s": at, "incumbent_step_time_s": 28.33, "bound_step_time_s": bound}
        for stage, at, bound in told
    ]
    events = [json.dumps({"state": "running", "progress": one}) for one in reports]
    body = "".join(f"event: running\ndata: {event}\n\n" for event in events)
    page.route(
        "**/events", lambda route: route.fulfill(content_type="text/event-stream", body=body, status=200)
    )
    page.goto(f"{server.url}/jobs/course")
    expect(page.locator("figure.course .ends")).to_contain_text("bound 28.3 s")


def test_the_list_follows_by_itself(page: Page, slow: Slow) -> None:
    url = slow.url
    fill_in(page, url)
    job_id = search(page)
    page.goto(f"{url}/jobs")
    expect(page.locator(".state.running")).to_be_visible()
    slow.cancel(job_id)
    expect(page.locator(".state.cancelled")).to_be_visible()


def test_without_a_stream_the_page_asks_again_and_again(page: Page, slow: Slow) -> None:
    page.route("**/events", lambda route: route.abort())
    fill_in(page, slow.url)
    job_id = search(page)
    await_progress(page)
    await_progress(page, watched_seconds(page))
    slow.cancel(job_id)


def test_a_server_that_goes_is_told_and_one_that_comes_is_found(page: Page, tmp_path: Path) -> None:
    with slow_service(tmp_path) as slow:
        fill_in(page, slow.url)
        search(page)
        await_progress(page)
        before = watched_seconds(page)
        slow.server.process.terminate()
        slow.server.process.wait(15)
        expect(page.locator(".status")).to_contain_text("does not answer")
        with serving(slow.settings):
            await_progress(page, before)
            expect(page.locator(".status")).to_have_text("")


def test_a_form_that_cannot_be_sent_says_so(page: Page, server: RunningServer) -> None:
    fill_in(page, server.url)
    page.route("**/jobs", lambda route: route.abort())
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.locator(".status")).to_contain_text("Nothing was sent")
    expect(page.get_by_label("Batch", exact=True)).to_have_value("64")

"""The schedule of a fleet on a wide window and on a phone: its page, its report and a link to it."""

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.addresses import addresses_of
from tests.browser.chromium import a_page, grave_findings, overflow
from tests.processes.servers import RunningServer

PROBLEM = {
    "model": {"name": "llama-3.1-8b"}, "workload": {"global_batch_size": 64, "seq_length": 4096},
    "launcher": "megatron-lm",
}  # fmt: skip
FLEET = {
    "name": "two jobs", "cluster": {"name": "dgx-h100", "num_nodes": 1},
    "jobs": [
        {"name": "chat", "problem": PROBLEM, "steps": 1000, "nodes": 1, "due_hours": 0.5},
        {"name": "long", "problem": PROBLEM, "steps": 500, "nodes": 1, "after": ["chat"]},
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def shown(server: RunningServer) -> dict[str, str]:
    """An address of every page that shows the schedule."""
    return addresses_of(server, "fleets", FLEET)


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("name", ["page", "report", "link"])
def test_a_schedule_fits_the_window_and_its_chart_and_table_are_seen(
    chrome: Browser, shown: dict[str, str], name: str, width: int
) -> None:
    with a_page(chrome, width=width) as page:
        page.goto(shown[name])
        assert overflow(page) <= 0
        bars = page.locator(".gantt tbody svg")
        assert bars.count() == 2
        for at in range(2):
            box = bars.nth(at).bounding_box()
            assert box is not None
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= width
        expect(page.locator(".gantt .late")).to_have_count(1)  # chat ends behind its due date
        expect(page.get_by_role("region", name="Jobs of the fleet").locator("tbody tr")).to_have_count(2)
        jobs = page.get_by_role("region", name="Jobs of the fleet")
        assert jobs.evaluate("one => one.scrollWidth - one.clientWidth") <= 0
        expect(page.get_by_role("list", name="Colours of the schedule").locator("li")).to_have_count(3)
        expect(page.get_by_text("Optimal under the predicted durations")).to_be_visible()
        assert grave_findings(page) == []

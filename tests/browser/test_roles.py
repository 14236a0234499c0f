"""The roles of reinforcement learning on a wide window and on a phone: their page, report and a link."""

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.addresses import addresses_of
from tests.browser.chromium import a_page, grave_findings, overflow
from tests.processes.servers import RunningServer

REQUEST = {
    "kind": "post_training", "model": "qwen3-8b", "launcher": "nemo-rl",
    "cluster": {"groups": [{"gpu": "h100-sxm-80gb", "num_nodes": 2}]},
    "algorithm": {"name": "grpo", "prompts": 128, "responses": 16, "updates": 2},
    "lengths": {"prompt": 200, "mean": 2500, "max": 8192},
}  # fmt: skip


@pytest.fixture(scope="module")
def shown(server: RunningServer) -> dict[str, str]:
    """An address of every page that shows where the roles are."""
    return addresses_of(server, "jobs", REQUEST)


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("name", ["page", "report", "link"])
def test_roles_fit_the_window_and_their_chart_and_placements_are_seen(
    chrome: Browser, shown: dict[str, str], name: str, width: int
) -> None:
    with a_page(chrome, width=width) as page:
        page.goto(shown[name])
        assert overflow(page) <= 0
        bars = page.locator(".gantt tbody svg")
        assert bars.count() >= 2  # training and rollout
        for bar in bars.all():
            box = bar.bounding_box()
            assert box is not None
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= width
        placements = page.get_by_role("region", name="Ranked placements")
        assert placements.locator("tbody tr").count() >= 1
        assert placements.evaluate("one => one.scrollWidth - one.clientWidth") <= 0
        expect(page.get_by_role("heading", name="Who works, who waits")).to_be_visible()
        assert grave_findings(page) == []


@pytest.mark.parametrize("width", [390, 1440])
def test_all_links_of_a_tenant_fit_the_window(
    chrome: Browser, server: RunningServer, shown: dict[str, str], width: int
) -> None:
    with a_page(chrome, width=width) as page:
        page.goto(f"{server.url}/links")
        assert overflow(page) <= 0
        rows = page.get_by_role("region", name="Links").locator("tbody tr")
        assert rows.count() >= 1
        _, _, secret = shown["link"].split("_", 2)  # which may hold a "_" of its own
        assert secret not in page.content()
        assert grave_findings(page) == []

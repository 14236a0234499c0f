"""``python -m tests.browser``: pictures of the live page, and a table of what it weighs and how fast it is.

The pictures go to docs/images; the table goes into docs/live-page.md, between its marks.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Browser, CDPSession, Page, expect

from tests.browser.chromium import a_page, chromium
from tests.browser.questions import SCRIPT, await_answer
from tests.processes.servers import RunningServer, serving
from tests.processes.warm import ROOT

IMAGES = ROOT / "docs" / "images"
DOCUMENT = ROOT / "docs" / "live-page.md"
BEGIN, END = "<!-- weights -->", "<!-- end of weights -->"
NUM_GPUS = "128"
SLOW_MODEL, SLOW_NUM_GPUS = "deepseek-v3", "2048"  # a search that can be looked at


def main() -> None:
    """Take every picture and write the table."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        settings = {"database_url": f"sqlite:///{Path(folder) / 'pictures.db'}"}
        with serving(settings) as server:
            table = _story(browser, server)
            _elsewhere(browser, server)
    text = DOCUMENT.read_text()
    head, _, rest = text.partition(BEGIN)
    DOCUMENT.write_text(f"{head}{BEGIN}\n{table}{END}{rest.partition(END)[2]}")
    sys.stdout.write(table)


def _story(browser: Browser, server: RunningServer) -> str:
    """A question, its search, its answer; the table of what the pages weigh."""
    weights: list[tuple[str, str, str]] = []
    with a_page(browser, height=980) as page:
        weights.append(_weighed(page, "the first page", server.url))
        _shoot(page, "first-page")
        page.get_by_label("GPUs", exact=True).fill(NUM_GPUS)
        began = time.monotonic()
        page.get_by_role("button", name="Search", exact=True).click()
        page.wait_for_url("**/jobs/*")
        expect(page.locator("[data-show=incumbent]")).not_to_have_text("–", timeout=30_000)
        first_s = time.monotonic() - began
        await_answer(page)
        whole_s = time.monotonic() - began
        page.locator("figure.course:visible").wait_for()
        _shoot(page, "answer")
        weights.append(_weighed(page, "an answer of ten plans", page.url))
        page.get_by_role("link", name="Plan 1 in full").click()
        page.wait_for_url("**/plans/*")
        weights.append(_weighed(page, "a plan in full", page.url))
        _shoot(page, "plan")
        page.get_by_role("link", name="Launch files", exact=True).click()
        page.wait_for_url("**/export")
        _shoot(page, "launch-files")
    lines = ["| page | sent, with all it loads | shown after |", "|---|---:|---:|"]
    lines += [f"| {name} | {size} | {shown} |" for name, size, shown in weights]
    lines += [
        "",
        f"From the click on Search to a first plan {first_s:.1f} s, to the proved ranking {whole_s:.1f} s",
        "(Llama 3.1 70B on 16 × DGX H100, batch 512 × 8192 tokens; two cores).",
        "",
    ]
    return "\n".join(lines)


def _elsewhere(browser: Browser, server: RunningServer) -> None:
    """The other pages, a mistake, a phone, and the dark."""
    with a_page(browser, height=980) as page:
        page.goto(server.url)
        page.get_by_label("Model", exact=True).fill(SLOW_MODEL)
        page.get_by_label("GPUs", exact=True).fill(SLOW_NUM_GPUS)
        page.get_by_role("button", name="Search", exact=True).click()
        expect(page.locator("[data-show=bound]")).not_to_have_text("–", timeout=30_000)
        _shoot(page, "searching")
        await_answer(page)
        page.goto(server.url)
        page.get_by_label("Batch", exact=True).fill("511")
        page.get_by_text("Fix or limit sizes").click()
        page.get_by_label("Data parallel").fill("4")
        page.get_by_role("button", name="Search", exact=True).click()
        expect(page.locator("#fault-batch")).to_be_visible()
        _shoot(page, "a-mistake")
        page.goto(f"{server.url}/own")
        page.get_by_label("Launch file").fill(SCRIPT)
        page.get_by_role("button", name="Price it").click()
        page.locator("#priced").wait_for()
        _shoot(page, "launch-file")
        page.goto(f"{server.url}/jobs")
        answer = page.locator("table.list a").first.get_attribute("href")
    with a_page(browser, width=390, height=844, scale=2) as page:
        page.goto(f"{server.url}{answer}")
        _shoot(page, "phone")
    with a_page(browser, height=980, dark=True) as page:
        page.goto(f"{server.url}{answer}")
        _shoot(page, "dark")


def _shoot(page: Page, name: str) -> None:
    """One picture of what is seen first."""
    page.screenshot(path=IMAGES / f"{name}.png", animations="disabled", caret="initial")


def _weighed(page: Page, name: str, address: str) -> tuple[str, str, str]:
    """Name, bytes over the wire and time to the first contentful paint of a page, nothing kept before."""
    session: CDPSession = page.context.new_cdp_session(page)
    session.send("Network.enable")
    session.send("Network.clearBrowserCache")
    sizes: list[float] = []
    session.on("Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"]))
    page.goto(address, wait_until="load")
    page.wait_for_timeout(300)
    paints = json.loads(page.evaluate("JSON.stringify(performance.getEntriesByType('paint'))"))
    shown_ms = max(paint["startTime"] for paint in paints)
    session.detach()
    return name, f"{sum(sizes) / 1000:.0f} kB", f"{shown_ms:.0f} ms"


if __name__ == "__main__":
    main()

"""Chromium as the tests use it, and what any page may never do."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

PATH = os.environ.get("CHROMIUM", "/usr/bin/chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE_MS = 60_000  # what has not come by then does not come, however busy the machine is
# What is noted of every answer above 399, and of a server that is away: no fault of a script.
EXCUSED = ("Failed to load resource", "htmx:sendError", "htmx:afterRequest")

expect.set_options(timeout=PATIENCE_MS)


@contextmanager
def chromium() -> Iterator[Browser]:
    """The system's browser, without a window."""
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=PATH, args=FLAGS)
        yield started
        started.close()


@contextmanager
def a_page(
    browser: Browser,
    *,
    width: int = 1200,
    height: int = 900,
    scale: float = 1.0,
    dark: bool = False,
    offline: bool = False,
    scripts: bool = True,
) -> Iterator[Page]:
    """A page of a context of its own: nothing may be complained of, nothing loaded from elsewhere."""
    context = browser.new_context(
        viewport={"width": width, "height": height},
        device_scale_factor=scale,
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce",
        offline=offline,
        java_script_enabled=scripts,
    )
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    complaints: list[str] = []
    hosts: set[str] = set()
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    page.on("request", lambda asked: hosts.add(urlsplit(asked.url).hostname or ""))
    yield page
    context.close()
    left = [text for text in complaints if not any(words in text for words in EXCUSED)]
    assert left == [], left
    assert hosts <= {"localhost", "127.0.0.1", ""}  # empty: data: and file: addresses


def grave_findings(page: Page) -> list[str]:
    """What axe-core calls serious or critical, each with the elements that it is about."""
    found = Axe().run(page).response["violations"]
    return [
        f"{one['id']}: {node['html'][:160]}"
        for one in found
        if one["impact"] in {"serious", "critical"}
        for node in one["nodes"]
    ]


def overflow(page: Page) -> int:
    """How many pixels a page is wider than its window."""
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))

"""The documentation's own search: a task, typed as people type it, leads to the page that answers it."""

import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.chromium import a_page
from tests.processes.warm import ROOT

FIRST = {
    "out of memory": "tasks.html",
    "which tp and pp": "tasks.html",
    "LoRA on one node": "tasks.html",
    "MoE is slow": "tasks.html",
    "why not NVIDIA's recipe": "tasks.html",
    "install": "quickstart.html",
    "cite": "tasks.html",
    "how accurate": "accuracy.html",
    "calibrate": "howto/calibrate.html",
    "prometheus": "howto/team.html",
    "use from python": "howto/python.html",
    "different GPUs in one cluster": "tasks.html",
}


class _Silent(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Write no line for each request."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the built site."""
    folder = tmp_path_factory.mktemp("site")
    build = [
        str(ROOT / ".ci" / "environment"),
        "docs",
        "mkdocs",
        "build",
        "--quiet",
        "--site-dir",
        str(folder),
    ]
    subprocess.run(build, cwd=ROOT, check=True)
    server = ThreadingHTTPServer(("localhost", 0), partial(_Silent, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://localhost:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_task_typed_into_the_search_finds_its_page_first(chrome: Browser, site: str) -> None:
    found = {}
    for task in FIRST:
        with a_page(chrome, width=1440) as page:
            page.goto(f"{site}/index.html")
            page.keyboard.press("/")
            page.keyboard.type(task)
            page.wait_for_timeout(500)  # results of the letters before give way
            expect(page.locator(".md-search-result__meta")).to_contain_text("matching document")
            address = page.locator("a.md-search-result__link").first.get_attribute("href") or ""
            found[task] = address.removeprefix(f"{site}/").partition("?")[0].partition("#")[0]
    assert found == FIRST

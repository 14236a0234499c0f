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
    "install": "howto/install.html",
    "cite": "tasks.html",
    "how accurate": "accuracy.html",
    "calibrate": "howto/calibrate.html",
    "prometheus": "howto/team.html",
    "use from python": "howto/python.html",
    "different GPUs in one cluster": "howto/mixed-cluster.html",
    "what micro batch size fits": "tasks.html",
    "4090": "tasks.html",
    "full fine-tune 8B on 4 A100": "tasks.html",
    "cancel a job curl": "howto/team.html",
    "json schema": "reference/files.html",
    "rate limit": "howto/team.html",
    "new architecture": "howto/own-model.html",
    "custom gpu": "howto/own-gpu.html",
    "kubernetes": "howto/kubernetes.html",
    "spot price": "tasks.html",
    "vpp": "glossary.html",
    "compare two plans": "howto/reports.html",
    "share link": "howto/team.html",
    "learning rate": "limits.html",
    "gradient accumulation": "tasks.html",
    "webhook": "limits.html",
    "uninstall": "howto/install.html",
    "mcp": "howto/assistants.html",
    "qlora 70b on one h100": "tasks.html",
    "how many days will my run take": "tasks.html",
    "how many gpus do I need": "tasks.html",
    "my megatron script is slow": "howto/launch-command.html",
    "exit codes": "troubleshooting.html",
    "helm chart": "howto/kubernetes.html",
    "slurm": "howto/launcher.html",
    "api key": "howto/team.html",
    "node failed": "howto/replan.html",
    "long context packing": "howto/lengths.html",
    "single sign-on": "howto/team.html",
    "backup": "howto/team.html",
    "environment variables": "settings.html",
    "8-bit adam": "tasks.html",
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


# The page's own worker answers, as for a reader who types, without a wait for each letter.
ASK = """async tasks => {
    const {search} = JSON.parse(document.querySelector("#__config").textContent)
    const index = await (await fetch("search/search_index.json")).json()
    const worker = new Worker(search)
    const answer = message => new Promise(done => {
        worker.onmessage = event => done(event.data)
        worker.postMessage(message)
    })
    await answer({type: 0, data: {...index, options: {suggest: false}}})
    const pages = {}
    for (const task of tasks) {
        const {data} = await answer({type: 2, data: task})
        pages[task] = data.items.length ? data.items[0][0].location.split("#")[0] : "nothing"
    }
    return pages
}"""


def test_a_task_typed_into_the_search_finds_its_page_first(chrome: Browser, site: str) -> None:
    with a_page(chrome, width=1440) as page:
        page.goto(f"{site}/index.html")
        assert page.evaluate(ASK, list(FIRST)) == FIRST


def test_a_reader_who_types_sees_the_page_first(chrome: Browser, site: str) -> None:
    with a_page(chrome, width=1440) as page:
        page.goto(f"{site}/index.html")
        page.keyboard.press("/")
        page.keyboard.type("kubernetes")
        expect(page.locator(".md-search-result__meta")).to_contain_text("matching document")
        address = page.locator("a.md-search-result__link").first.get_attribute("href") or ""
        assert address.startswith(f"{site}/{FIRST['kubernetes']}")

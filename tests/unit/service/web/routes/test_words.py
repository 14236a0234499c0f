"""Where a reader of a page finds more: its words, the documentation, a summary for language models."""

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from meshwright.service.api.app import create_app
from meshwright.service.db.database import Database
from meshwright.service.report.glossary import WORDS
from meshwright.service.settings import Settings, settings_with
from meshwright.service.web.install import install
from meshwright.service.web.rendering import GUIDES, guide_of
from tests.processes.warm import ROOT
from tests.served.reports import Page

SITE = "https://docs.example/meshwright/"


def links(client: TestClient, path: str) -> set[str]:
    return {str(link.get("href")) for link in Page(client.get(path).text).all("a")}


def test_each_page_links_to_its_documentation_where_there_is_an_address(database: Database) -> None:
    app = create_app(Settings(database_url=str(database.url), docs_url=SITE))
    install(app)
    with TestClient(app, base_url="http://localhost", headers={"accept": "text/html"}) as client:
        assert {SITE, f"{SITE}requests.html"} <= links(client, "/")
        assert f"{SITE}howto/own-gpu.html" in links(client, "/gpus")
        assert SITE in client.get("/llms.txt").text


def test_without_an_address_no_page_links_to_another_host(browser: TestClient) -> None:
    for path in ("/", "/own", "/jobs", "/words"):
        assert {link for link in links(browser, path) if "://" in link} == set()
        assert "/words" in links(browser, path)
    assert "## Docs" not in browser.get("/llms.txt").text


@pytest.mark.parametrize("path", ["/", "/nothing", *(f"/{name}/x" for name in GUIDES)])
def test_each_page_of_documentation_that_is_linked_exists(path: str) -> None:
    assert (ROOT / "docs" / Path(guide_of(path)).with_suffix(".md")).is_file()


@pytest.mark.parametrize("address", ["docs.example", "javascript:alert(1)", "https://docs.example/#top"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(Exception, match="docs-url"):
        settings_with({"docs_url": address})


def test_every_word_is_explained(browser: TestClient) -> None:
    text = Page(browser.get("/words").text).text
    assert all(word in text for word in WORDS)


def test_a_language_model_reads_the_addresses_of_the_api(browser: TestClient) -> None:
    answer = browser.get("/llms.txt")
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.text.startswith("# Meshwright\n")
    for path in ("/openapi.json", "/schemas/problem.json"):
        assert f"http://localhost{path}" in answer.text
        assert browser.get(path).status_code == 200

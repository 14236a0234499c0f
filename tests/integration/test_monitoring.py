"""Alert rules and the dashboard ask for metrics that the service has."""

import json
import re
from functools import cache
from typing import Any

import pytest
import yaml
from fastapi.testclient import TestClient

from meshwright.service.api.app import create_app
from meshwright.service.db.database import Database
from meshwright.service.settings import Settings
from tests.integration.test_compose_file import ROOT
from tests.served.job_records import add_tiny_job
from tests.served.migrated import migrated

FOLDER = ROOT / "deploy" / "monitoring"
SELECTED = re.compile(r"(meshwright_\w+)(?:\{([^}]*)\})?")
LABEL = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')


@cache
def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load((FOLDER / "rules.yaml").read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


@cache
def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((FOLDER / "grafana.json").read_text())["panels"]
    return found


def queries() -> list[str]:
    shown = [target["expr"] for panel in panels() for target in panel["targets"]]
    return [*shown, *(rule["expr"] for rule in rules())]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, str]]]:
    """The labels of every sample that a service shows, after one request."""
    url = migrated(tmp_path_factory.mktemp("served") / "jobs.db")
    database = Database(url)
    add_tiny_job(database, "one")
    database.close()
    with TestClient(create_app(Settings(database_url=url)), base_url="http://localhost") as client:
        client.post("/v1/jobs", json={})
        text = client.get("/metrics").text
    found: dict[str, list[dict[str, str]]] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, _, labels = line.rpartition(" ")[0].partition("{")
            found.setdefault(name, []).append(dict(LABEL.findall(labels)))
    return found


@pytest.mark.parametrize("query", queries())
def test_every_metric_and_label_of_a_query_is_served(
    query: str, served: dict[str, list[dict[str, str]]]
) -> None:
    selected = SELECTED.findall(query)
    assert selected or "up{" in query
    for name, matchers in selected:
        assert name in served
        for label, value in LABEL.findall(matchers):
            seen = {sample[label] for sample in served[name]}  # KeyError: it has no such label
            assert label != "state" or value in seen
    grouped = {
        label.strip() for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(",")
    }
    assert all(grouped <= set(served[name][0]) for name, _ in selected if grouped)


def test_every_alert_links_to_what_to_do() -> None:
    page = (ROOT / "docs" / "howto" / "at-3-am.md").read_text(encoding="utf-8")
    headings = {f"#{one.lower()}" for one in re.findall(r"^## (\w+)$", page, re.MULTILINE)}
    for rule in rules():
        file, mark, place = rule["annotations"]["runbook"].partition("#")
        assert (ROOT / file).is_file()
        assert mark + place in headings


def test_a_metric_that_was_renamed_would_be_noticed(served: dict[str, list[dict[str, str]]]) -> None:
    assert "meshwright_job" not in served
    assert {"meshwright_jobs", "meshwright_http_requests_total"} <= set(served)


def test_every_alert_states_what_is_wrong_and_what_to_do() -> None:
    assert len({rule["alert"] for rule in rules()}) == len(rules()) == 9
    for rule in rules():
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert set(rule["annotations"]) == {"summary", "description", "runbook"}


def test_panels_have_a_title_a_description_and_places_of_their_own() -> None:
    cells = [
        (place["x"] + dx, place["y"] + dy)
        for place in (panel["gridPos"] for panel in panels())
        for dx in range(place["w"])
        for dy in range(place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) == 23  # of a grid of 24 columns
    assert all(panel["title"] and panel["description"] for panel in panels())
    assert len({panel["id"] for panel in panels()}) == len(panels())

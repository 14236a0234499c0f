"""Addresses of the pages that show an answer."""

from typing import Any, Literal

import httpx

from tests.processes.servers import RunningServer


def addresses_of(
    server: RunningServer, kind: Literal["fleets", "jobs"], body: dict[str, Any]
) -> dict[str, str]:
    """Ask and wait; return the addresses of the answer's own page, of its report and of its share link."""
    with httpx.Client(base_url=server.url, timeout=90.0) as client:
        asked = client.post(f"/v1/{kind}", json=body).json()["id"]
        while client.get(f"/v1/{kind}/{asked}?wait=30").json()["state"] in {"queued", "running"}:
            pass
        link = client.post(f"/v1/jobs/{asked}/share-links", json={}).json()["path"]
    paths = {"page": f"/{kind}/{asked}", "report": f"/v1/{kind}/{asked}/report", "link": link}
    return {name: f"{server.url}{path}" for name, path in paths.items()}

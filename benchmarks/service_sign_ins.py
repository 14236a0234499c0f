"""How long other addresses take while people sign in and their provider hangs.

A server of this checkout has a provider that takes connections and never says a word. Readers ask three
addresses in turn, alone and then beside 60 people who sign in, and again when they are told to. What is
printed is the median and the 95th percentile of each, in ms, and what the sign-ins were answered.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import Counter

import httpx
import numpy as np

from meshwright.service.auth.keys import Keys, NewKey
from meshwright.service.db import migrations
from meshwright.service.db.database import Database
from tests.chaos.neighbours import PATIENCE_S, SIGN_INS, hanging_provider
from tests.processes.servers import free_port, serving

ADDRESSES = ("/readyz", "/v1/jobs", "/v1/models")
ASKED = 200  # times each
_HEADINGS = ("address", "alone: p50", "p95", "beside sign-ins: p50", "p95")


def latencies_ms(url: str, token: str) -> dict[str, list[float]]:
    """Return how long each answer took, by address, in ms."""
    found: dict[str, list[float]] = {address: [] for address in ADDRESSES}
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=60) as client:
        for _ in range(ASKED):
            for address, taken in found.items():
                began_s = time.perf_counter()
                client.get(address).raise_for_status()
                taken.append((time.perf_counter() - began_s) * 1e3)
    return found


def signing_in(url: str, ended: threading.Event, answers: Counter[str]) -> None:
    """Sign in until ``ended``, again when the answer says so."""
    while not ended.is_set():
        again_s = 1.0
        try:
            answer = httpx.get(f"{url}/sign-in/oidc", timeout=PATIENCE_S)
        except httpx.HTTPError as fault:
            answers[type(fault).__name__] += 1
        else:
            answers[str(answer.status_code)] += 1
            again_s = float(answer.headers.get("Retry-After", again_s))
        ended.wait(again_s)


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder, hanging_provider() as provider:
        address, port = f"sqlite:///{folder}/meshwright.db", free_port()
        database = Database(address)
        migrations.upgrade(database)
        token = Keys(database, actor="bench").create(NewKey(tenant="bench"))[1]
        database.close()
        back = f"http://127.0.0.1:{port}/sign-in/oidc/callback"
        oidc = {"oidc_issuer": provider, "oidc_client_id": "bench", "oidc_redirect_url": back}
        with serving({"database_url": address, "workers": "0", "port": str(port), **oidc}) as server:
            latencies_ms(server.url, token)  # the first loads what it needs
            alone, ended, answers = latencies_ms(server.url, token), threading.Event(), Counter[str]()
            people = [
                threading.Thread(target=signing_in, args=(server.url, ended, answers), daemon=True)
                for _ in range(SIGN_INS)
            ]
            for one in people:
                one.start()
            beside = latencies_ms(server.url, token)
            ended.set()
            for one in people:
                one.join(PATIENCE_S)
    print(" | ".join(_HEADINGS))
    for name in ADDRESSES:
        figures = (np.percentile(taken[name], share) for taken in (alone, beside) for share in (50, 95))
        print(" | ".join([name, *(f"{one:.1f}" for one in figures)]))
    print("sign-ins:", ", ".join(f"{count} × {what}" for what, count in sorted(answers.items())))


if __name__ == "__main__":
    main()

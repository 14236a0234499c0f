"""Does the memory of the API grow? ``python -m benchmarks.service_soak [--seconds 240]``; 1 when it does.

Clients that never pause submit (new jobs, repeated ones, wrong ones), read, list, price, cancel, wait and
follow. The first third warms up: pools, caches and the allocator's arenas fill. Of the rest the median
of the last quarter is compared with that of the first.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from statistics import median

from benchmarks.service_place import MIB, Connection, place, rss_bytes, write
from meshwright.service.auth.keys import Keys, NewKey
from tests.processes.servers import RunningServer, serving
from tests.served.job_records import TINY_PROBLEM

SECONDS = 240.0
CLIENTS = 6
SAMPLE_S = 1.0
WARM_UP = 1 / 3
MOST_GROWTH_BYTES = 6 * MIB  # a leak of some 100 bytes a request is more within 240 s
KEPT_JOBS = 200  # that are asked for again

_CONFIGURATION = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "micro_batch_size": 1}
_SWEEP = {**TINY_PROBLEM, "sweep": {"global_batch_size": [8, 16]}}
_BODIES = {
    "job": json.dumps(TINY_PROBLEM).encode(),
    "sweep": json.dumps(_SWEEP).encode(),
    "wrong": json.dumps({**TINY_PROBLEM, "launcher": "nobody", "extra": "x" * 1000}).encode(),
    "prediction": json.dumps({"problem": TINY_PROBLEM, "configuration": _CONFIGURATION}).encode(),
}


@dataclass(slots=True)
class Clients:
    """What all clients of one soak share."""

    server: RunningServer
    token: str
    draw: random.Random = field(default_factory=lambda: random.Random(0))  # noqa: S311 - a draw, no secret
    jobs: list[str] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)

    async def run(self, until_s: float) -> None:
        """One client, until a moment of the monotonic clock."""
        connection = Connection(self.server.url, self.token)
        await connection.open()
        await self._submit(connection)
        acts = self._acts()
        names = list(acts)
        while time.monotonic() < until_s:
            await acts[self.draw.choice(names)](connection)
        connection.close()

    def _acts(self) -> Mapping[str, Callable[[Connection], Awaitable[object]]]:
        """What a client may do next."""
        return {
            "submit": self._submit,
            "sweep": lambda c: self._ask(c, "POST", "/v1/jobs?fresh=true", _BODIES["sweep"]),
            "wrong": lambda c: self._ask(c, "POST", "/v1/jobs", _BODIES["wrong"]),
            "price": lambda c: self._ask(c, "POST", "/v1/predictions", _BODIES["prediction"]),
            "read": lambda c: self._ask(c, "GET", f"/v1/jobs/{self._job()}"),
            "wait": lambda c: self._ask(c, "GET", f"/v1/jobs/{self._job()}?wait=0.05"),
            "list": lambda c: self._ask(c, "GET", "/v1/jobs?page_size=20"),
            "nothing": lambda c: self._ask(c, "GET", f"/v1/jobs/{self.draw.getrandbits(64):x}"),
            "figures": lambda c: self._ask(c, "GET", "/metrics"),
            "cancel": lambda c: self._ask(c, "POST", f"/v1/jobs/{self._job()}:cancel"),
            "follow": self._follow,
        }

    async def _submit(self, connection: Connection) -> None:
        """A new job, to be asked for later."""
        answer = await self._ask(connection, "POST", "/v1/jobs?fresh=true", _BODIES["job"])
        self.jobs.append(json.loads(answer)["id"])
        del self.jobs[:-KEPT_JOBS]

    async def _follow(self, _connection: Connection) -> None:
        """A stream that its client leaves after the first event."""
        stream = Connection(self.server.url, self.token)
        await stream.open()
        await stream.begin(f"/v1/jobs/{self._job()}/events")
        await stream.until(b"event: ")
        stream.close()
        self.statuses[200] += 1

    async def _ask(self, connection: Connection, method: str, path: str, body: bytes = b"") -> bytes:
        status, answer = await connection.ask(method, path, body)
        self.statuses[status] += 1
        return answer

    def _job(self) -> str:
        return self.draw.choice(self.jobs)


async def soak(server: RunningServer, token: str, seconds: float) -> tuple[list[int], Counter[int]]:
    """Resident bytes of the server after its warm-up, sampled, and how many answers had which status."""
    began_s = time.monotonic()
    clients = Clients(server, token)
    running = [asyncio.create_task(clients.run(began_s + seconds)) for _ in range(CLIENTS)]
    samples: list[int] = []
    while not all(task.done() for task in running):
        await asyncio.sleep(SAMPLE_S)
        if time.monotonic() - began_s > WARM_UP * seconds:
            samples.append(rss_bytes(server.process.pid))
    await asyncio.gather(*running)
    return samples, clients.statuses


def growth_bytes(samples: list[int]) -> float:
    """The median of the last quarter over that of the first."""
    quarter = max(1, len(samples) // 4)
    return median(samples[-quarter:]) - median(samples[:quarter])


def main() -> int:
    """Soak a server on SQLite; 1 when its memory grew, or when it answered with a 5xx."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--write", action="store_true", help="put the figure into the document")
    asked = parser.parse_args()
    with place("sqlite") as (settings, database):
        _, token = Keys(database, actor="soak").create(NewKey(tenant="soak", scope="admin"))
        with serving({**settings, "workers": "0"}, fresh=True) as server:
            samples, statuses = asyncio.run(soak(server, token, asked.seconds))
    growth, faults = growth_bytes(samples), sum(n for status, n in statuses.items() if status >= 500)  # noqa: PLR2004 - 5xx
    grew = growth > MOST_GROWTH_BYTES
    figure = (
        f"{statuses.total()} requests: {samples[0] / MIB:.0f} MiB after the first third, "
        f"{samples[-1] / MIB:.0f} MiB at the end, growth {growth / MIB:+.1f} MiB"
    )
    print(
        f"statuses={dict(sorted(statuses.items()))} faults={faults} {figure}: {'GREW' if grew else 'sound'}"
    )
    if asked.write and not grew:
        write(f"Last time {figure}.", mark="soak")
    return 1 if grew or faults else 0


if __name__ == "__main__":
    sys.exit(main())

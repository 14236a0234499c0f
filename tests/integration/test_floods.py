"""Many expensive requests at once: the API stays small, and goes on answering."""

import json
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from tests.integration.test_large_bodies import MIB, peak_bytes
from tests.processes.servers import HANGS_S, serving
from tests.reliability.figures import measured
from tests.served.job_records import TINY_PROBLEM

REQUESTS = 48  # jobs behind one failed switch
CHANGE = {"lost_nodes": 1, "steps_done": 1000, "steps_total": 5000, "saved_step": 900}
QUESTION = {
    **TINY_PROBLEM,
    "model": {"name": "llama-3.1-70b"},
    "cluster": {"name": "dgx-h100", "num_nodes": 16},
    "workload": {"global_batch_size": 128, "seq_length": 8192},
}


def test_f26_a_flood_of_replans_is_answered_or_refused_and_the_api_stays_ready(tmp_path: Path) -> None:
    settings = {"database_url": f"sqlite:///{tmp_path / 'jobs.db'}", "workers": "1"}
    with serving(settings) as server:
        job = server.post_job(QUESTION)["id"]
        server.finished_job(job)
        address, over = f"{server.url}/v1/jobs/{job}:replan", threading.Event()

        def replan(_number: int) -> tuple[int, str]:
            answer = httpx.post(address, json=CHANGE, timeout=HANGS_S)
            if answer.status_code == 503:
                assert int(answer.headers["Retry-After"]) >= 1
                return 503, ""
            ways = [(one["kind"], one["finish_s"]) for one in answer.json()["ways"]]
            return answer.status_code, json.dumps(ways)

        def probe() -> Counter[int]:
            seen = Counter[int]()
            while not over.wait(0.2):
                seen[httpx.get(f"{server.url}/readyz", timeout=HANGS_S).status_code] += 1
            return seen

        with ThreadPoolExecutor(REQUESTS + 1) as pool:
            probing = pool.submit(probe)
            answers = Counter(pool.map(replan, range(REQUESTS)))
            over.set()
            probes = probing.result()
        assert {status for status, _ in answers} <= {200, 503}
        assert len({ways for status, ways in answers if status == 200}) == 1  # each is the whole answer
        assert set(probes) == {200}
        peak = peak_bytes(server.process.pid)
        assert peak <= 300 * MIB
        measured(26, "memory of the API at most", peak / MIB, "MiB")

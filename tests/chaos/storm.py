"""One storm: jobs are submitted and worked on while processes, database and queue are taken down."""

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from meshwright.service.auth.keys import Keys, NewKey
from meshwright.service.db.database import Database
from tests.chaos.fleet import API, LOOK_S, WORKER, NodeGroups, Submitter, patiently
from tests.chaos.neighbours import Neighbours, hanging_provider
from tests.chaos.witness import FLEET_JOBS, Verdict, Witness
from tests.processes.servers import Settings
from tests.served.job_records import TENANT, TINY_PROBLEM

LEASE_S = 3.0
FREEZE_S = LEASE_S + 1.2
OPEN_JOBS = 16  # submitted and not ended
AHEAD_JOBS = 5  # submitted beyond the number that brings about the next fault
LAST_FAULT = 0.85  # of the jobs have ended by then
NUM_WORKERS = 3
AFTERMATH_S = 90.0  # for the last jobs to end
SWEEP_EVERY = 8  # every so many jobs one is a sweep, one a fleet, and one places the roles of post-training
_JOB = {  # a fleet names the cluster, and plans jobs by their steps
    "problem": {
        **{name: TINY_PROBLEM[name] for name in ("model", "workload", "launcher")},
        "search": {"top_k": 1, "certify": "none"},
    },
    "steps": 100,
    "nodes": 1,
}
FLEET: dict[str, object] = {
    "cluster": TINY_PROBLEM["cluster"],
    "jobs": [{**_JOB, "name": f"job-{number}"} for number in range(FLEET_JOBS)],
}
ROLES: dict[str, object] = {  # with one way, as every answer has one plan here
    "kind": "post_training", "model": "llama-3.2-1b", "launcher": "nemo-rl",
    "cluster": {"groups": [{"gpu": "h100-sxm-80gb", "num_nodes": 1, "gpus_per_node": 2}]},
    "algorithm": {"prompts": 16, "responses": 8}, "lengths": {"mean": 1000, "max": 4096},
    "asynchrony": {"mode": "colocated"}, "search": {"top_k": 1, "time_limit_s": 60},
}  # fmt: skip
SWEEP: dict[str, object] = {**TINY_PROBLEM, "sweep": {"global_batch_size": [8, 16, 32]}}


@dataclass(frozen=True, kw_only=True)
class Storm:
    """What happens during a storm; ``takes`` says how each kind of fault is brought about."""

    jobs: int
    faults: Mapping[str, int]  # how often each happens
    seed: int = 0


class Weather:
    """The faults of one storm over one database."""

    def __init__(self, storm: Storm, settings: Settings, witness: Witness, token: str) -> None:
        self.done: Counter[str] = Counter()
        self._draw = random.Random(storm.seed)
        self._witness = witness
        self._jobs = storm.jobs
        self._all_ended = False
        celery = [*WORKER, "--celery"] if "redis_url" in settings else WORKER
        self.workers = NodeGroups(settings, [WORKER, *[celery] * (NUM_WORKERS - 1)])
        self.api = NodeGroups(settings, [API])
        self.neighbours = Neighbours(f"http://127.0.0.1:{settings['port']}", token)
        self.takes: dict[str, Callable[[], bool]] = {
            "kill_worker": self._kill_worker,
            "kill_api": self._kill_api,
            "freeze": self._freeze,
            "stop_api": self._stop_api,
            "sign_ins": self.neighbours.sign_in,
            "slow_bodies": self.neighbours.send_slowly,
        }
        names = [name for name, times in storm.faults.items() for _ in range(times)]
        self._draw.shuffle(names)
        every = LAST_FAULT * storm.jobs / len(names)
        self._due = [(round(every * n), name) for n, name in enumerate(names, start=1)]

    def blow(self, ended: int) -> None:
        """Bring about the next fault once enough jobs have ended; one that hits nobody waits."""
        self._all_ended = ended >= self._jobs
        if self._due and ended >= self._due[0][0] and self.takes[self._due[0][1]]():
            self.done[self._due.pop(0)[1]] += 1

    @property
    def is_over(self) -> bool:
        return not self._due

    def open_jobs(self, ended: int) -> int:
        """How many jobs may be submitted so far: enough to be busy, some left for the faults to come."""
        busy = ended + OPEN_JOBS
        return busy if self.is_over else min(busy, max(ended, self._due[0][0]) + AHEAD_JOBS)

    def may_crash(self) -> bool:
        """Whether no running job lost a worker before: three times unlucky is poison, by design."""
        return all(attempts == 1 for attempts in patiently(self._witness.busy_workers).values())

    def kill_everything(self) -> bool:
        """What a power cut does to a service on one machine."""
        if not self.may_crash():
            return False
        self.done["kills"] += self.workers.kill_all() + self.api.kill_all()
        return True

    def _victim(self) -> int | None:
        """The worker of a running job that never lost one before."""
        busy = patiently(self._witness.busy_workers)
        unhurt = sorted(pid for pid, attempts in busy.items() if attempts == 1)
        if not unhurt and self._all_ended:  # they were faster than the storm: an idle worker will do
            return self.workers.any_pid(self._draw)
        return self._draw.choice(unhurt) if unhurt else None

    def _kill_worker(self) -> bool:
        victim = self._victim()
        if victim is None or not self.workers.kill(victim):
            return False
        self.done["kills"] += 1
        return True

    def _kill_api(self) -> bool:
        if not self.api.kill(self.api.any_pid(self._draw)):
            return False
        self.done["kills"] += 1
        return True

    def _stop_api(self) -> bool:
        """SIGTERM for the API while it has long requests in hand."""
        self.neighbours.compute()
        time.sleep(0.2)
        return self.api.stop(self.api.any_pid(self._draw))

    def _freeze(self) -> bool:
        victim = self._victim()
        return victim is not None and self.workers.freeze(victim, FREEZE_S)


def rage(
    storm: Storm, settings: Settings, database: Database, extra: Callable[[Weather], None]
) -> tuple[Verdict, Weather, list[str]]:
    """Run a storm to its end; ``extra`` adds the faults of this database and queue."""
    witness = Witness(database)
    _, token = Keys(database, actor="chaos").create(NewKey(tenant=TENANT))
    url = f"http://127.0.0.1:{settings['port']}"
    with hanging_provider() as provider:
        back = {"oidc_issuer": provider, "oidc_redirect_url": f"{url}/sign-in/oidc/callback"}
        weather = Weather(storm, settings | back, witness, token)
        extra(weather)
        submitter = Submitter(url, storm.jobs, _problem_of, token)
        try:
            _last(storm, witness, weather, submitter)
            verdict = patiently(lambda: witness.verdict(submitter.acknowledged))
            weather.neighbours.close()
        finally:
            submitter.close()
            weather.workers.kill_all()
            weather.api.kill_all()
    return verdict, weather, [*submitter.refused, *weather.neighbours.faults]


def _problem_of(number: int) -> dict[str, object]:
    """What the job of that number asks."""
    others = {SWEEP_EVERY // 4: ROLES, SWEEP_EVERY // 2: SWEEP, SWEEP_EVERY - 1: FLEET}
    return others.get(number % SWEEP_EVERY, TINY_PROBLEM)


def _last(storm: Storm, witness: Witness, weather: Weather, submitter: Submitter) -> None:
    """Until every job has ended, or none did for a long time."""
    ended, changed_at = 0, time.monotonic()
    while ended < storm.jobs or not weather.is_over:
        now_ended = patiently(witness.ended)
        if now_ended != ended:
            ended, changed_at = now_ended, time.monotonic()
        if time.monotonic() - changed_at > AFTERMATH_S:
            return
        submitter.max_open = weather.open_jobs(ended)
        weather.blow(ended)
        weather.workers.keep_running()
        weather.api.keep_running()
        time.sleep(LOOK_S)

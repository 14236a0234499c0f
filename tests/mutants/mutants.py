"""Small faults in the engine's fence, lease and compare-and-set; each must turn the suite red."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One fault: a text that stands once in a file, and what it becomes."""

    name: str
    file: str
    old: str
    new: str


ENGINE, CLAIM, SWEEP = (f"service/jobs/{name}.py" for name in ("engine", "claiming", "sweeper"))
FAMILY = "service/jobs/sweep_jobs.py"
BEAT, RUN = "workers/heartbeat.py", "workers/runner.py"

MUTANTS = (
    Mutant(name="writes ignore the fence", file=ENGINE, old="jobs.c.fence == claim.fence, ", new=""),
    Mutant(
        name="a claim keeps the fence", file=CLAIM, old="fence=jobs.c.fence + 1", new="fence=jobs.c.fence"
    ),
    Mutant(
        name="an ended job is written to",
        file=ENGINE,
        old=', jobs.c.state == "running"\n',
        new="\n",
    ),
    Mutant(
        name="a heartbeat renews nothing",
        file=ENGINE,
        old='values: dict[str, Any] = {"lease_expires_at_s": now_s() + self.lease_s}',
        new='values: dict[str, Any] = {"worker": jobs.c.worker}',
    ),
    Mutant(
        name="a sweep ends leases that last",
        file=SWEEP,
        old='_free(jobs.c.state == "running", jobs.c.lease_expires_at_s < now_s())',
        new='_free(jobs.c.state == "running")',
    ),
    Mutant(
        name="a sweep never ends a lease",
        file=SWEEP,
        old="jobs.c.lease_expires_at_s < now_s())",
        new="jobs.c.lease_expires_at_s < 0)",
    ),
    Mutant(
        name="a cancel leaves a terminal state",
        file=ENGINE,
        old='.where(own, jobs.c.state.in_(["queued", "running"]))',
        new=".where(own)",
    ),
    Mutant(
        name="a running job is claimed again",
        file=CLAIM,
        old='wanted = [jobs.c.state == "queued", ',
        new='wanted = [jobs.c.state.in_(["queued", "running"]), ',
    ),
    Mutant(
        name="a late job is claimed",
        file=CLAIM,
        old="jobs.c.tenant == tenant, in_time]",
        new="jobs.c.tenant == tenant]",
    ),
    Mutant(
        name="a job that had begun expires",
        file=SWEEP,
        old=", jobs.c.started_at_s.is_(None))",
        new=")",
    ),
    Mutant(
        name="a cancel loses what a worker had found",
        file="service/db/plan_records.py",
        old='row.state != "cancelled" or row.checkpoint is None',
        new="row.state",
    ),
    Mutant(
        name="a lost claim stores plans",
        file=ENGINE,
        old="            if held:",
        new="            if True:",
    ),
    Mutant(
        name="leaving costs an attempt",
        file=ENGINE,
        old='"attempts": jobs.c.attempts - 1,\n        ',
        new="",
    ),
    Mutant(
        name="a worker that lives is excused for ever",
        file=ENGINE,
        old=", jobs.c.fence <= MAX_EXCUSED",
        new="",
    ),
    Mutant(
        name="a worker without the fence uncounts a claim",
        file=ENGINE,
        old="still = jobs.c.id == claim.job_id, jobs.c.fence == claim.fence",
        new="still = (jobs.c.id == claim.job_id,)",
    ),
    Mutant(
        name="a sweep is joined while points are open",
        file=FAMILY,
        old=", ~_has_open(_PARENT.c.id)]",
        new="]",
    ),
    Mutant(
        name="two join one sweep",
        file=FAMILY,
        old="    wanted.append(_PARENT.c.lease_expires_at_s.is_(None))  # else somebody is joining it\n",
        new="",
    ),
    Mutant(
        name="a join that broke off is a problem to search",
        file=SWEEP,
        old='(is_sweep, "running"), ',
        new="",
    ),
    Mutant(
        name="poison is tried for ever",
        file=SWEEP,
        old="jobs.c.attempts >= MAX_ATTEMPTS",
        new="jobs.c.attempts >= 1000 * MAX_ATTEMPTS",
    ),
    Mutant(
        name="a worker out of touch goes on",
        file=BEAT,
        old="> self._engine.lease_s:",
        new="> 1000 * self._engine.lease_s:",
    ),
    Mutant(
        name="what a stopped search found is stored",
        file=RUN,
        old='if heartbeat.verdict == "lost" and not proved:',
        new='if heartbeat.verdict == "never":',
    ),
    Mutant(
        name="two workers lead",
        file=SWEEP,
        old="or_(leaders.c.holder == name, leaders.c.expires_at_s < now_s())",
        new="or_(leaders.c.holder == name, leaders.c.expires_at_s > 0)",
    ),
)

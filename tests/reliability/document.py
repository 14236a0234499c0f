"""``python -m tests.reliability.document [--measure] [--chaos FIGURES]``: tables of docs/reliability.md.

Every fault has its promise and the tests that break it for real; ``tests/architecture`` checks that each
of those tests is there. ``--measure`` runs them, and shows what they measured.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.reliability.figures import FILE_VARIABLE, read_figures

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "reliability.md"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What breaks, what is promised then, and where that is tested."""

    happens: str
    promise: str
    tests: tuple[str, ...]  # file::test, below tests/


WORKERS, DATABASES = "integration/test_worker_faults.py::", "integration/test_database_faults.py::"
QUEUE, STREAMS = "integration/test_distributed.py::", "integration/test_event_streams.py::"
EMBEDDED, COMMIT = "integration/test_embedded.py::", "integration/test_commit_faults.py::"
PATIENCE = "integration/test_postgresql_patience.py::"
ACCESS, HOSTILE = "unit/service/auth/test_access.py::", "unit/service/api/test_hostile.py::"
APP = "unit/service/api/test_app.py::"
DELETION = "integration/test_deletion.py::"
FLOODS = "integration/test_floods.py::"
UPGRADES = "integration/test_upgrades.py::"
BODIES = "integration/test_large_bodies.py::"

FAULTS = (
    Fault(
        happens="the API is killed between commit and publish",
        promise="the job starts within 10 s",
        tests=(QUEUE + "test_f01_an_api_killed_between_commit_and_publish_loses_no_job",),
    ),
    Fault(
        happens="Redis is down at POST, dies or is demoted at an acknowledgement",
        promise="202 within 1 s, and the job runs. The worker reconnects, or ends with exit code 1",
        tests=(
            QUEUE + "test_f02_without_redis_a_job_is_taken_in_at_once_and_still_runs",
            QUEUE + "test_f02_a_worker_goes_on_after_redis_died_at_its_acknowledgement",
            QUEUE + "test_f02_a_worker_that_redis_refuses_its_acknowledgement_ends_as_failed",
        ),
    ),
    Fault(
        happens="Redis restarts, is flushed, evicts",
        promise="0 jobs lost",
        tests=(QUEUE + "test_f03_what_a_restarted_redis_lost_is_published_again", "chaos"),
    ),
    Fault(
        happens="a message is delivered again",
        promise="one result, and less than 50 ms if there is nothing to do",
        tests=(
            QUEUE + "test_f04_a_job_runs_once_however_often_its_hint_is_delivered",
            QUEUE + "test_f04_a_second_delivery_that_finds_nothing_to_do_takes_less_than_50_ms",
        ),
    ),
    Fault(
        happens="a worker is killed while it searches",
        promise="claimed again within lease and sweep, with the same result",
        tests=(
            WORKERS + "test_f05_worker_sigkill_mid_solve_is_taken_over_within_lease_and_sweep",
            QUEUE + "test_f05_worker_sigkill_mid_solve_another_celery_worker_does_the_job",
            "chaos",
        ),
    ),
    Fault(
        happens="a worker freezes for longer than its lease, then goes on",
        promise="what it writes is refused",
        tests=(
            WORKERS + "test_f06_worker_frozen_past_its_lease_writes_nothing_when_it_wakes_up",
            QUEUE + "test_f06_a_frozen_celery_worker_that_wakes_up_changes_nothing",
            PATIENCE + "test_f06_a_job_is_taken_from_a_worker_that_froze_inside_a_transaction",
            "chaos",
        ),
    ),
    Fault(
        happens="a job kills its worker, or asks for all memory",
        promise="failed after 3 attempts, or at once, and other jobs are unaffected",
        tests=(
            WORKERS + "test_f07_poison_job_fails_after_three_attempts_and_others_are_unaffected",
            WORKERS + "test_f07_search_over_the_memory_limit_fails_at_once_and_its_worker_goes_on",
        ),
    ),
    Fault(
        happens="a search goes on beyond its time limit",
        promise="plans and bound within a second of it",
        tests=(WORKERS + "test_f08_search_over_its_time_limit_ends_within_a_second_with_plans_and_bound",),
    ),
    Fault(
        happens="a running job is cancelled, perhaps as it ends",
        promise="cancelled within a second, the worker is free, one terminal state",
        tests=(
            WORKERS + "test_f09_cancel_of_a_running_job_takes_less_than_a_second_and_frees_the_worker",
            "unit/service/jobs/test_engine.py::test_cancel_against_finish_leaves_one_terminal_state",
        ),
    ),
    Fault(
        happens="SIGTERM for a worker",
        promise="it leaves in time, its job is given back uncounted with what was found, and resumed",
        tests=(
            WORKERS + "test_f10_sigterm_gives_the_job_back_uncounted_with_what_was_found",
            QUEUE + "test_f10_sigterm_celery_worker_gives_its_job_back_uncounted",
        ),
    ),
    Fault(
        happens="SIGTERM for the API while a client follows events",
        promise="it leaves in time, the client resumes, no event is lost",
        tests=(STREAMS + "test_f11_a_server_that_is_stopped_ends_its_streams_and_no_event_is_lost",),
    ),
    Fault(
        happens="the database crashes and restarts",
        promise="503 with Retry-After, never 500. Nothing lost, nothing twice, and hints stay queued",
        tests=(
            DATABASES + "test_f12_a_crashed_database_is_a_503_and_costs_no_job",
            DATABASES + "test_f12_hints_stay_queued_while_postgresql_is_away_and_the_log_stays_short",
            "chaos",
        ),
    ),
    Fault(
        happens="the database is slower than the lease",
        promise="the worker stops itself",
        tests=(WORKERS + "test_f13_worker_whose_heartbeats_do_not_get_through_for_a_lease_stops_itself",),
    ),
    Fault(
        happens="a worker's clock is an hour off",
        promise="no effect",
        tests=(WORKERS + "test_f14_worker_whose_clock_is_an_hour_off_works_like_any_other",),
    ),
    Fault(
        happens="the disk is full, or a quota is used up",
        promise="503 and not ready. A refused request leaves no record, and older records stay whole and "
        "readable. Ready again within seconds after space is freed",
        tests=(
            DATABASES + "test_f15_a_full_disk_is_a_503_not_ready_and_leaves_the_records_whole",
            APP + "test_a_full_disk_is_named_in_the_error",
            PATIENCE + "test_a_server_with_files_that_may_not_grow_is_full",
        ),
    ),
    Fault(
        happens="50 clients send one Idempotency-Key",
        promise="one job",
        tests=("unit/service/jobs/test_jobs.py::test_fifty_clients_with_one_key_make_one_job",),
    ),
    Fault(
        happens="hostile JSON",
        promise="a 4xx problem, never 5xx or 202",
        tests=(
            HOSTILE + "test_hostile_json_is_a_422_problem",
            HOSTILE + "test_a_body_over_the_limit_of_its_address_is_a_413_whether_or_not_it_says_so",
            BODIES + "test_forty_clients_with_the_worst_bodies_leave_the_api_below_300_mib",
            BODIES + "test_bodies_that_trickle_in_are_ended_and_hold_up_large_ones_only_so_long",
        ),
    ),
    Fault(
        happens="a foreign tenant, a revoked or expired key",
        promise="404, 401, on every address",
        tests=(
            ACCESS + "test_every_address_demands_a_usable_key",
            ACCESS + "test_a_foreign_record_is_not_there",
        ),
    ),
    Fault(
        happens="one tenant floods the queue",
        promise="429 for it, and another's job waits for one search at most",
        tests=(
            WORKERS + "test_f19_a_flood_of_one_tenant_delays_anothers_job_by_one_search_at_most",
            "unit/service/jobs/test_quotas.py::test_a_full_queue_of_one_tenant_is_not_anothers",
        ),
    ),
    Fault(
        happens="a migration while old workers run",
        promise="refused cleanly, and upgrade, downgrade, upgrade with data",
        tests=(
            "integration/test_worker_start.py::test_a_worker_refuses_a_schema_it_was_not_written_for",
            "integration/test_migrations.py::test_records_survive_a_downgrade_and_an_upgrade",
        ),
    ),
    Fault(
        happens="a second server on one SQLite file",
        promise="refused, naming the owner",
        tests=(EMBEDDED + "test_f21_second_server_on_the_same_file_refuses_and_names_the_owner",),
    ),
    Fault(
        happens="a job has 10 000 plans",
        promise="stored at once, read in pages",
        tests=(DATABASES + "test_f22_a_job_with_ten_thousand_plans_is_stored_and_read_in_pages",),
    ),
    Fault(
        happens="a worker of another solver version",
        promise="its answers are not reused",
        tests=(DATABASES + "test_f23_an_answer_of_another_solver_version_is_not_given_again",),
    ),
    Fault(
        happens="SIGKILL at any statement of the result's commit",
        promise="all or nothing",
        tests=(COMMIT + "test_f24_sigkill_at_any_step_of_the_result_commit_leaves_all_or_nothing",),
    ),
    Fault(
        happens="a newer release migrates the schema under this one, or this one has to come back",
        promise="ready if the newer release declares this one compatible, else refused with the way back",
        tests=(
            UPGRADES + "test_f25_a_schema_that_a_newer_release_calls_compatible_is_served",
            UPGRADES + "test_f25_a_schema_that_leaves_this_release_behind_is_refused_with_the_way_back",
            UPGRADES + "test_f25_the_way_back_is_a_command",
            "chaos",
        ),
    ),
    Fault(
        happens="48 jobs are re-planned at once, as after one failed switch",
        promise="the whole answer, or 503 with Retry-After, and the API stays ready and below 300 MiB",
        tests=(FLOODS + "test_f26_a_flood_of_replans_is_answered_or_refused_and_the_api_stays_ready",),
    ),
    Fault(
        happens="a migration and a prune of several tenants' jobs wait for each other",
        promise="PostgreSQL ends one of them, which runs again, and both are done",
        tests=(UPGRADES + "test_f27_a_prune_that_a_deadlock_with_a_migration_ended_is_run_again",),
    ),
    Fault(
        happens="a job is deleted while a worker has it",
        promise="the worker loses its claim and writes nothing",
        tests=(DELETION + "test_f28_a_worker_that_runs_a_deleted_job_loses_its_claim",),
    ),
    Fault(
        happens="a fleet, or roles of post-training, are queued while only workers of an older release "
        "run, which cannot plan them",
        promise="none of them gets it. It waits for a worker of this release, "
        "behind its tenant's other jobs, which go on",
        tests=(
            UPGRADES + "test_f29_a_worker_of_an_older_release_never_gets_a_fleet",
            UPGRADES + "test_f29_workers_get_no_kind_of_job_that_only_a_later_release_knows",
        ),
    ),
)


def faults_table(figures: dict[int, str]) -> str:
    """Every fault, its promise, its tests, and what they measured (SQLite / PostgreSQL where on both)."""
    lines = ["| | fault | promise | tests | measured |", "|---|---|---|---|---|"]
    for number, fault in enumerate(FAULTS, start=1):
        tests = "<br>".join("`make chaos`" if test == "chaos" else f"`{test}`" for test in fault.tests)
        figure = figures.get(number, "")
        lines.append(f"| F{number} | {fault.happens} | {fault.promise} | {tests} | {figure} |")
    return "\n".join(lines)


def figures_in(text: str) -> dict[int, str]:
    """The figures that the document shows."""
    rows = re.findall(r"^\| F(\d+) \|.*\| ([^|]*) \|$", text, flags=re.MULTILINE)
    return {int(number): figure for number, figure in rows}


def measure(file: Path) -> dict[int, str]:
    """Run the tests of all faults; what they measured.

    Raises:
        CalledProcessError: one of them failed.
    """
    file.parent.mkdir(exist_ok=True)
    file.unlink(missing_ok=True)
    tests = [f"tests/{test}" for fault in FAULTS for test in fault.tests if test != "chaos"]
    command = [sys.executable, "-m", "pytest", *tests]
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, FILE_VARIABLE: str(file)})
    return read_figures(file)


def chaos_table(figures: dict[str, dict[str, float]]) -> str:
    """What a full storm did, a column for every database."""
    names = next(iter(figures.values()))
    lines = ["| | " + " | ".join(figures) + " |", "|---" * (len(figures) + 1) + "|"]
    for name in names:
        values = " | ".join(f"{column[name]:g}" for column in figures.values())
        lines.append(f"| {name.replace('_', ' ')} | {values} |")
    return "\n".join(lines)


def written(text: str, part: str, table: str) -> str:
    """The document with a table between its marks."""
    marks = rf"(<!-- {part} -->\n).*?(<!-- end -->)"
    return re.sub(marks, lambda found: found[1] + table + "\n" + found[2], text, flags=re.DOTALL)


def long_forms() -> Path:
    """Run 125 000 steps of the state machine and a full storm; return the file with the storm's figures.

    Raises:
        CalledProcessError: one of them found a fault.
    """
    figures = ROOT / "out" / "chaos.json"
    machine = ["pytest", "--timeout=3600", "tests/unit/service/jobs/test_engine_machine.py"]
    for module in (machine, ["tests.chaos", "--json", str(figures)]):
        environment = {**os.environ, "MESHWRIGHT_TEST_LONG": "1"}
        subprocess.run([sys.executable, "-m", *module], cwd=ROOT, env=environment, check=True)
    return figures


def main() -> None:
    """Write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chaos", type=Path, help="figures that make chaos wrote")
    parser.add_argument("--measure", action="store_true", help="run the tests of the faults first")
    parser.add_argument("--long", action="store_true", help="the state machine's long form, and chaos")
    asked = parser.parse_args()
    if asked.long:
        asked.chaos = long_forms()
    text = DOCUMENT.read_text(encoding="utf-8")
    figures = measure(ROOT / "out" / "faults.jsonl") if asked.measure else figures_in(text)
    text = written(text, "faults", faults_table(figures))
    if asked.chaos:
        figures_of = json.loads(asked.chaos.read_text())
        if rolling := figures_of.pop("rolling", None):
            text = written(text, "rolling", chaos_table({"PostgreSQL": rolling}))
        if figures_of:
            text = written(text, "chaos", chaos_table(figures_of))
    DOCUMENT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

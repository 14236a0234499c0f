"""Measurements and stored profiles on PostgreSQL: the very same tests as on SQLite."""

import threading

import pytest
from sqlalchemy import delete

from meshwright.service.db import tables
from meshwright.service.db.database import Database
from meshwright.service.stores.measurements import Measurements
from tests.served.job_records import TENANT
from tests.unit.service.stores.test_measurements import *  # noqa: F403 - every test of it, over the fixture below


@pytest.fixture
def database(postgres: Database) -> Database:
    with postgres.write() as connection:
        for table in (tables.jobs, tables.measurements, tables.profiles):
            connection.execute(delete(table))
    return postgres


def test_two_clients_with_one_key_make_one_measurement(measurements: Measurements) -> None:
    body = {"step_time_s": 40.0}
    ids: list[str] = []
    clients = [
        threading.Thread(target=lambda: ids.append(measurements.add(TENANT, "aaa", body, key="k").id))
        for _ in range(4)
    ]
    for one in clients:
        one.start()
    for one in clients:
        one.join()
    assert len(ids) == 4
    assert len(set(ids)) == 1


def test_clients_that_measure_one_cluster_at_a_time_get_versions_of_their_own(
    measurements: Measurements,
) -> None:
    seconds = [40.0 + one for one in range(4)]
    versions: list[int | None] = []
    clients = [
        threading.Thread(
            target=lambda step=step: versions.append(
                measurements.add(TENANT, "aaa", {"step_time_s": step}, key=None).profile_version
            )
        )
        for step in seconds
    ]
    for one in clients:
        one.start()
    for one in clients:
        one.join()
    assert sorted(one or 0 for one in versions) == [1, 2, 3, 4]

"""How SQLite looks for whose turn it is: its own plan of the statement, so not a test of every database."""

from meshwright.service.db.database import Database
from meshwright.service.jobs import claiming


def test_whose_turn_it_is_is_found_without_a_look_at_any_open_sweep(database: Database) -> None:
    asked = str(claiming._TENANTS_BY_TURN.compile(compile_kwargs={"literal_binds": True}))
    with database.read() as connection:
        steps = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {asked}").all()
    counted = [step.detail for step in steps if "running" in step.detail]
    assert len(counted) == 1
    assert "COVERING INDEX ix_jobs_with_worker" in counted[0]

"""A database of this service, SQLite or PostgreSQL."""

from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from meshwright.service.db.database import Database


def test_what_is_stored_does_not_reach_the_log_with_an_error_of_the_database(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'm.db'}")
    with pytest.raises(OperationalError) as caught, database.write() as connection:
        connection.execute(text("INSERT INTO nowhere VALUES (:request)"), {"request": "a model of ours"})
    database.close()
    assert "nowhere" in str(caught.value)
    assert "a model of ours" not in str(caught.value)

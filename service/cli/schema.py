"""Brings the schema of the records to its newest revision."""

from __future__ import annotations

from sqlalchemy.exc import SQLAlchemyError

from profiles.errors import PlannerError
from service.cli.configured import settings_with
from service.cli.exits import say_warnings
from service.db import migrations
from service.db.database import Database, DatabaseSilentError


class DatabaseUnreachableError(PlannerError):
    """The database cannot be reached or changed."""

    code = "database_unreachable"


def upgrade_schema(database_url: str | None) -> str | None:
    """The revision that the schema has now.

    Raises:
        InvalidProblemError: the URL is no database's.
        DatabaseUnreachableError: the database cannot be reached or changed.
    """
    settings = settings_with({"database_url": database_url})
    database = Database(settings.database_url)
    try:
        database.await_server(within_s=settings.database_wait_s, tell=lambda words: say_warnings([words]))
        migrations.upgrade(database)
        return migrations.current(database)
    except DatabaseSilentError as fault:
        raise DatabaseUnreachableError(f"the database cannot be reached: {fault}") from None
    except SQLAlchemyError as fault:
        raise DatabaseUnreachableError(
            f"the database cannot be brought up to date ({type(fault).__name__})"
        ) from None
    finally:
        database.close()


def check_schema(database_url: str | None) -> str:
    """That the schema is the one that this version needs.

    Raises:
        InvalidProblemError: the URL is no database's.
        DatabaseUnreachableError: the database cannot be reached, or has another schema.
    """
    database = Database(settings_with({"database_url": database_url}).database_url)
    try:
        found, wanted = migrations.current(database), migrations.head()
    except SQLAlchemyError as fault:
        raise DatabaseUnreachableError(f"the database cannot be read ({type(fault).__name__})") from None
    finally:
        database.close()
    if found != wanted:
        state = "empty" if found is None else f"at revision {found}"
        raise DatabaseUnreachableError(
            f"the schema is {state}, this version needs {wanted}: meshwright db upgrade"
        )
    return f"the schema is at revision {found}, as this version needs it"

"""Migrations on both databases: there and back, and equal to the tables of the code."""

from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from service.db import migrations
from service.db.database import Database
from service.db.tables import metadata


def test_upgrade_downgrade_upgrade(database: Database) -> None:
    assert migrations.current(database) == migrations.head()
    migrations.downgrade(database, "base")
    assert migrations.current(database) is None
    migrations.upgrade(database)
    assert migrations.current(database) == migrations.head()


def test_the_migrations_make_exactly_the_tables_of_the_code(database: Database) -> None:
    options = {"compare_type": True, "compare_server_default": True}
    with database.read() as connection:
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, metadata) == []

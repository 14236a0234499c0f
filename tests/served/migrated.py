"""SQLite files with today's schema: migrated once by each process of the tests, then copied."""

import tempfile
from functools import cache
from pathlib import Path

from meshwright.service.db import migrations
from meshwright.service.db.database import Database


def migrated(path: Path) -> str:
    """The URL of a new file at ``path``, with the schema and nothing in it."""
    path.write_bytes(_empty())
    return f"sqlite:///{path}"


@cache
def _empty() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "meshwright.db"
        made = Database(f"sqlite:///{path}")
        migrations.upgrade(made)
        made.close()
        assert [file.name for file in Path(folder).iterdir()] == [path.name]  # nothing is left in a log
        return path.read_bytes()

"""Workers use the same database files as the service."""

from tests.unit.service.conftest import database, engine, queue

__all__ = ["database", "engine", "queue"]

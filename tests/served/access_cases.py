"""Every address of the API with every way to be refused, read off its own OpenAPI document.

That is ``docs/openapi.json``: making it anew takes a second of every process that collects the tests, and
``test_reference`` holds it against what is served.
"""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient
from sqlalchemy import update

from meshwright.service.auth.keys import SCOPES, Keys, NewKey
from meshwright.service.db.clock import now_s
from meshwright.service.db.database import Database
from meshwright.service.db.tables import api_keys

OPEN = {"/livez", "/readyz", "/llms.txt"}  # they say nothing about anybody


@cache
def operations() -> list[tuple[str, str, dict[str, Any]]]:
    """Method, path and description of everything the API answers to."""
    document = json.loads((Path(__file__).parents[2] / "docs" / "openapi.json").read_text())
    return [
        (method.upper(), path, operation)
        for path, methods in sorted(document["paths"].items())
        for method, operation in methods.items()
    ]


def scope_of(operation: dict[str, Any]) -> str:
    """The scope that the document names for an operation."""
    ((scope,),) = [tuple(wanted["key"]) for wanted in operation["security"]]
    return str(scope)


def with_ids(path: str, values: dict[str, str]) -> str:
    """A path with its parameters filled in."""
    return re.sub(r"\{(\w+)\}", lambda match: values.get(match.group(1), "none"), path)


def token_of(database: Database, tenant: str, scope: str = "admin") -> str:
    return Keys(database, actor="test").create(NewKey(tenant=tenant, scope=scope))[1]


def expired_token(database: Database, tenant: str) -> str:
    record, token = Keys(database, actor="test").create(NewKey(tenant=tenant, scope="admin"))
    with database.write() as connection:
        past = update(api_keys).where(api_keys.c.id == record.id).values(expires_at_s=now_s() - 1)
        connection.execute(past)
    return token


def revoked_token(database: Database, tenant: str) -> str:
    keys = Keys(database, actor="test")
    record, token = keys.create(NewKey(tenant=tenant, scope="admin"))
    keys.revoke(record.id)
    return token


def lesser(scope: str) -> str | None:
    """The widest scope that does not include ``scope``; None: there is none."""
    return SCOPES[SCOPES.index(scope) - 1] if scope != SCOPES[0] else None


def called(client: TestClient, method: str, path: str, token: str | None) -> Any:  # noqa: ANN401
    """One call without a meaningful body."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    body: dict[str, str] | None = {} if method in {"POST", "PUT", "PATCH"} else None
    return client.request(method, path, json=body, headers=headers)

"""Every route of the server is in a matrix of who may call it: no route can be forgotten."""

from typing import Any

from fastapi.testclient import TestClient

from meshwright.service.api.deps import SESSION_COOKIE
from meshwright.service.auth.access import begin_session
from meshwright.service.auth.keys import Keys, hash_of
from meshwright.service.db.database import Database
from meshwright.service.db.key_records import insert_session
from meshwright.service.jobs.engine import JobEngine
from tests.access_cases import OPEN, lesser, operations, token_of, with_ids
from tests.served_routes import Served, served_routes
from tests.unit.service.test_access import records_of

ROUTES = served_routes()
GUARDED_PAGES = [route for route in ROUTES if route.is_page and route.scope is not None]
# What everybody may call: the document, probes, style and scripts, and the way in and out.
FOR_ALL = {
    ("GET", "/openapi.json"),
    *(("GET", path) for path in OPEN),
    ("GET", "/static/{digest}/{name}"),
    ("GET", "/sign-in"),
    ("POST", "/sign-in"),
    ("POST", "/sign-out"),
}


def asked(
    browser: TestClient,
    route: Served,
    *,
    session: str | None = None,
    origin: str = "own",
    **ids: str,
) -> Any:  # noqa: ANN401 - the test client's own
    """One call of a page with a session, by a form of this origin unless another is given."""
    browser.cookies.clear()
    headers = {} if session is None else {"cookie": f"{SESSION_COOKIE}={session}"}
    address = with_ids(route.path.replace(":path", ""), ids)
    if origin != "own":
        headers["origin"] = origin
    data = {"document": "{}", "name": "x"} if route.method == "POST" else None
    answer = browser.request(route.method, address, data=data, headers=headers)
    assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"], address
    assert answer.status_code < 500, address
    return answer


def session_of(database: Database, token: str) -> str:
    return begin_session(database, token.split("_")[1])


def test_every_route_is_in_the_document_or_a_page_and_names_its_scope_or_is_for_all() -> None:
    documented = {(method, path) for method, path, _ in operations()}  # test_access goes through these
    pages = {(route.method, route.path) for route in ROUTES if route.is_page}
    assert {(route.method, route.path) for route in ROUTES} == documented | pages | FOR_ALL
    assert documented & pages == set()
    assert {(route.method, route.path) for route in ROUTES if route.scope is None} == FOR_ALL
    assert len(GUARDED_PAGES) > 25
    assert {route.scope for route in GUARDED_PAGES if route.method == "POST"} == {"submit", "admin"}


def test_every_page_sends_whoever_is_not_signed_in_to_the_sign_in(
    browser: TestClient, database: Database
) -> None:
    keys = Keys(database, actor="test")
    token, revoked = (token_of(database, "ours") for _ in range(2))
    ended, of_revoked = "ms_" + "b" * 43, session_of(database, revoked)
    with database.write() as connection:
        insert_session(connection, hash_of(ended), key_id=token.split("_")[1], life_s=-1.0)
    keys.revoke(revoked.split("_")[1])
    for route in GUARDED_PAGES:
        for session in (None, "", "ms_" + "a" * 43, ended, of_revoked):
            answer = asked(browser, route, session=session)
            assert answer.status_code == 303, (route, session)
            assert answer.headers["location"].startswith("/sign-in?next=/")


def test_every_form_is_refused_from_elsewhere_and_every_page_without_its_scope(
    browser: TestClient, database: Database
) -> None:
    sessions = {
        scope: session_of(database, token_of(database, "ours", scope))
        for scope in ("read", "submit", "admin")
    }
    for route in GUARDED_PAGES:
        if route.method == "POST":
            for origin in ("", "null", "http://elsewhere.example", "http://localhost.elsewhere.example"):
                assert asked(browser, route, session=sessions["admin"], origin=origin).status_code == 403
        below = lesser(route.scope or "")
        if below is not None:
            assert asked(browser, route, session=sessions[below]).status_code == 403, route


def test_another_tenants_records_are_on_no_page(
    browser: TestClient, database: Database, engine: JobEngine
) -> None:
    _, ids = records_of(browser, database, engine)
    ours = session_of(database, token_of(database, "ours"))
    for route in GUARDED_PAGES:
        if "{" in route.path:
            given = {**ids, "launcher": "megatron-lm"}
            assert asked(browser, route, session=ours, **given).status_code == 404, route

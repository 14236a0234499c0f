"""Signing in, and what a browser may do: the key stays on the server's side."""

from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from meshwright.service.api.deps import SESSION_COOKIE
from meshwright.service.auth.access import begin_session
from meshwright.service.auth.keys import Keys, hash_of
from meshwright.service.db.database import Database
from meshwright.service.db.key_records import MAX_SESSIONS, insert_session
from meshwright.service.db.tables import sessions
from meshwright.service.jobs.engine import JobEngine
from tests.served.access_cases import OPEN, lesser, operations, revoked_token, token_of, with_ids
from tests.served.answered_jobs import add_answered_job
from tests.served.job_records import add_tiny_job
from tests.served.reports import small_answer
from tests.served.routes import Served, served_routes
from tests.unit.service.auth.test_access import records_of
from tests.unit.service.web.test_questions import TYPED


def signed_in(browser: TestClient, token: str, back: str = "/jobs") -> str:
    """The cookie that the server sets."""
    answer = browser.post("/sign-in", data={"key": token, "next": back})
    assert answer.status_code == 303, answer.text
    assert answer.headers["location"] == back
    return str(answer.headers["set-cookie"])


def test_without_keys_there_is_nothing_to_sign_in_to(browser: TestClient) -> None:
    assert browser.get("/").status_code == 200
    answer = browser.get("/sign-in?next=/jobs")
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs")


def test_the_session_is_out_of_reach_of_scripts_and_is_not_the_key(
    browser: TestClient, database: Database
) -> None:
    token = token_of(database, "ours")
    cookie = signed_in(browser, token)
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= {part.strip() for part in cookie.split(";")}
    session = browser.cookies[SESSION_COOKIE]
    assert token not in cookie
    assert token.split("_", 2)[2] not in browser.get("/keys").text
    with database.read() as connection:
        assert connection.execute(select(sessions.c.token_sha256)).scalars().all() == [hash_of(session)]


def test_over_https_the_cookie_is_sent_over_nothing_else(browser: TestClient, database: Database) -> None:
    token = token_of(database, "ours")
    secure = {"origin": "https://localhost"}
    answer = browser.post("https://localhost/sign-in", data={"key": token}, headers=secure)
    assert "Secure" in answer.headers["set-cookie"]


@pytest.mark.parametrize("key", ["", "mw_000000000000_nothing", "ms_" + "a" * 43, "x" * 5000])
def test_what_is_no_key_does_not_sign_in(browser: TestClient, database: Database, key: str) -> None:
    token_of(database, "ours")
    answer = browser.post("/sign-in", data={"key": key})
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers
    assert "unknown, revoked or expired" in answer.text


def test_a_session_does_not_sign_in_to_another_one(browser: TestClient, database: Database) -> None:
    signed_in(browser, token_of(database, "ours"))
    session = browser.cookies[SESSION_COOKIE]
    assert browser.post("/sign-in", data={"key": session}).status_code == 401


def test_a_revoked_key_does_not_sign_in_and_ends_its_sessions(
    browser: TestClient, database: Database
) -> None:
    assert browser.post("/sign-in", data={"key": revoked_token(database, "ours")}).status_code == 401
    token = token_of(database, "ours")
    signed_in(browser, token)
    Keys(database, actor="test").revoke(token.split("_")[1])
    browser.app.state.service.access.forget()  # type: ignore[attr-defined]
    assert browser.get("/jobs").status_code == 303


def test_signing_out_ends_the_session_for_whoever_has_its_cookie(
    browser: TestClient, database: Database
) -> None:
    signed_in(browser, token_of(database, "ours"))
    session = browser.cookies[SESSION_COOKIE]
    assert browser.get("/jobs").status_code == 200
    assert browser.post("/sign-out").headers["location"] == "/sign-in"
    assert SESSION_COOKIE not in browser.cookies
    stolen = {"cookie": f"{SESSION_COOKIE}={session}"}
    assert browser.get("/jobs", headers=stolen).status_code == 303


def test_a_session_ends_by_itself_and_is_forgotten_at_the_next_sign_in(
    browser: TestClient, database: Database
) -> None:
    token = token_of(database, "ours")
    old = "ms_" + "b" * 43
    with database.write() as connection:
        insert_session(connection, hash_of(old), key_id=token.split("_")[1], life_s=-1.0)
    assert browser.get("/jobs", headers={"cookie": f"{SESSION_COOKIE}={old}"}).status_code == 303
    signed_in(browser, token)
    with database.read() as connection:
        assert hash_of(old) not in connection.execute(select(sessions.c.token_sha256)).scalars().all()


def test_a_key_has_so_many_sessions_and_a_new_one_ends_the_oldest(database: Database) -> None:
    tokens = [token_of(database, tenant) for tenant in ("ours", "theirs")]
    first, others = (session_of(database, token) for token in tokens)
    for _ in range(MAX_SESSIONS):
        newest = session_of(database, tokens[0])
    with database.read() as connection:
        kept = connection.execute(select(sessions.c.token_sha256)).scalars().all()
    assert len(kept) == MAX_SESSIONS + 1
    assert {hash_of(newest), hash_of(others)} <= set(kept)
    assert hash_of(first) not in kept


def test_a_session_reads_the_api_and_never_writes_to_it(browser: TestClient, database: Database) -> None:
    signed_in(browser, token_of(database, "ours"))
    assert browser.get("/v1/jobs").status_code == 200
    assert browser.post("/v1/jobs", json={}).status_code == 401
    assert browser.delete("/v1/keys/000000000000").status_code == 401


def test_after_signing_in_one_stays_on_this_server(browser: TestClient, database: Database) -> None:
    token = token_of(database, "ours")
    for elsewhere in (
        "//elsewhere.example",
        "https://elsewhere.example",
        "/\\elsewhere.example",
        "jobs",
        "/a b",
    ):
        answer = browser.post("/sign-in", data={"key": token, "next": elsewhere})
        assert answer.headers["location"] == "/", elsewhere


def test_signing_in_from_another_site_is_refused(browser: TestClient, database: Database) -> None:
    token = token_of(database, "ours")
    foreign = {"origin": "http://elsewhere.example"}
    assert browser.post("/sign-in", data={"key": token}, headers=foreign).status_code == 403
    signed_in(browser, token)
    assert browser.post("/sign-out", headers=foreign).status_code == 403


def test_what_a_key_may_not_do_its_session_may_not_either(browser: TestClient, database: Database) -> None:
    signed_in(browser, token_of(database, "ours", "read"))
    assert browser.post("/jobs", data=TYPED).status_code == 403
    assert browser.get("/keys").status_code == 403
    first = browser.get("/").text
    assert "/keys" not in first
    assert "needs a key with scope submit" in first


def test_another_tenants_records_are_not_there(browser: TestClient, database: Database) -> None:
    add_answered_job(database, "theirs", *small_answer(), tenant="theirs")
    add_tiny_job(database, "waiting", tenant="theirs")
    plan_id = small_answer()[1].plans[0].plan_id
    signed_in(browser, token_of(database, "ours"))
    for address in ("/jobs/theirs", "/jobs/waiting", f"/plans/{plan_id}", f"/plans/{plan_id}/export",
                    f"/compare?first={plan_id}&second={plan_id}"):  # fmt: skip
        assert browser.get(address).status_code == 404, address
    assert browser.post("/jobs/waiting/cancel").status_code == 404
    assert "/jobs/theirs" not in browser.get("/jobs").text


def test_a_new_keys_secret_is_shown_once(browser: TestClient, database: Database) -> None:
    signed_in(browser, token_of(database, "ours"))
    made = browser.post("/keys", data={"title": "for the cluster", "scope": "read", "days": "30"})
    assert made.status_code == 200
    secret = made.text.split("<code>mw_")[1].split("</code>")[0]
    assert len(secret) == 12 + 1 + 43
    listed = browser.get("/keys").text
    assert secret not in listed
    assert "for the cluster" in listed
    key_id = secret.split("_")[0]
    assert browser.post(f"/keys/{key_id}/revoke").status_code == 303
    assert "revoked" in browser.get("/keys").text


def test_a_key_with_a_fault_is_not_made(browser: TestClient, database: Database) -> None:
    signed_in(browser, token_of(database, "ours"))
    answer = browser.post("/keys", data={"title": "", "scope": "read", "days": "-1"})
    assert answer.status_code == 422
    assert 'id="fault-days"' in answer.text


# Every route of the server is in a matrix of who may call it: no route can be forgotten.

ROUTES = served_routes()
GUARDED_PAGES = [route for route in ROUTES if route.is_page and route.scope is not None]

# What everybody may call: the document, probes, style and scripts, and the way in and out.
FOR_ALL = {
    ("GET", "/openapi.json"),
    *(("GET", path) for path in OPEN),
    ("GET", "/static/{digest}/{name}"),
    ("GET", "/shared/{token}"),  # its token is the permission: tests of links
    ("GET", "/sign-in/oidc"),
    ("GET", "/sign-in/oidc/callback"),
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

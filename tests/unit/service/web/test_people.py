"""Sign-in at an OpenID Connect provider, which is a real one on a thread."""

import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

import httpx
import pytest
from fastapi.testclient import TestClient
from joserfc.jwk import RSAKey

from meshwright.service.api.app import create_app
from meshwright.service.auth.keys import Keys
from meshwright.service.auth.provider import FAULT_S, MAX_AT_ONCE, METADATA_S, TIMEOUT_S
from meshwright.service.auth.provider import Provider as SignInProvider
from meshwright.service.db.database import Database
from meshwright.service.errors import BusyError
from meshwright.service.settings import Settings
from meshwright.service.web.install import install
from tests.processes.oidc_provider import CLIENT, SECRET, Provider, a_provider
from tests.processes.quiet_clock import quiet_seconds
from tests.served.api_client import BODY

CALLBACK = "http://localhost/sign-in/oidc/callback"


@pytest.fixture
def provider() -> Iterator[Provider]:
    with a_provider() as made:
        yield made


def browser(database: Database, provider: Provider, **given: str) -> TestClient:
    """A browser at a service with this provider."""
    own = {"oidc_issuer": provider.url, "oidc_client_id": CLIENT, "oidc_client_secret": SECRET}
    own |= {"database_url": str(database.url), "oidc_admin_groups": "ops", "oidc_redirect_url": CALLBACK}
    own |= given
    settings = Settings.model_validate(own)
    app = create_app(settings)
    install(app)
    return TestClient(app, base_url="http://localhost", follow_redirects=False)


def begin(client: TestClient, *, to: str = "/jobs") -> dict[str, str]:
    """Begin at the form and sign in there; what the browser comes back with."""
    away = client.get("/sign-in/oidc", params={"next": to}, headers={"Host": "evil.example"})
    assert away.status_code == 303, away.text
    there = httpx.get(away.headers["Location"])
    return dict(parse_qsl(urlsplit(there.headers["Location"]).query))


def come_back(client: TestClient, *, to: str = "/jobs", **changed: str) -> httpx.Response:
    """Begin at the form, sign in there, and come back."""
    query = {**begin(client, to=to), **changed}
    return client.get("/sign-in/oidc/callback", params=query)  # type: ignore[return-value]


def test_an_attempt_costs_one_request_and_is_not_made_up(database: Database, provider: Provider) -> None:
    with browser(database, provider) as client:
        assert come_back(client).status_code == 200
        query, before = begin(client), Counter(provider.asked)
        cookie = client.cookies["meshwright_sign_in"]
        assert client.get("/sign-in/oidc/callback", params={**query, "code": "bad"}).status_code == 401
        again = client.get("/sign-in/oidc/callback", params=query)
        assert (again.status_code, "was used before" in again.text) == (401, True)
        assert provider.asked - before == {"/token": 1}  # its addresses and keys are known
        for forged in ("", cookie[:-1], cookie.partition(".")[0] + "." + "0" * 64, "x.y"):
            client.cookies.set("meshwright_sign_in", forged, domain="localhost.local", path="/sign-in/oidc")
            assert client.get("/sign-in/oidc/callback", params=query).status_code == 401
        assert provider.asked - before == {"/token": 1}


def test_another_process_takes_an_attempt_back_and_new_keys_are_fetched(
    database: Database, provider: Provider
) -> None:
    with browser(database, provider) as one, browser(database, provider) as other:
        assert come_back(other).status_code == 200
        query = begin(one)
        other.cookies.update(one.cookies)
        assert other.get("/sign-in/oidc/callback", params=query).status_code == 200
        provider.key = RSAKey.generate_key(2048, {"kid": "two"})
        other.app.state.service.people._provider._clock_s = lambda: time.monotonic() + 61  # type: ignore[attr-defined]
        assert come_back(other).status_code == 200


def test_a_provider_needs_the_address_to_come_back_to() -> None:
    with pytest.raises(ValueError, match=r"oidc_redirect_url\n.*is required with MESHWRIGHT_OIDC_ISSUER"):
        Settings(oidc_issuer="http://id.example")


def test_a_person_signs_in_and_is_the_same_key_each_time(database: Database, provider: Provider) -> None:
    with browser(database, provider) as client:
        assert client.get("/v1/jobs").status_code == 401  # though the database never had a key
        assert "/sign-in/oidc?next=/jobs" in client.get("/sign-in?next=/jobs").text
        back = come_back(client)
        assert back.status_code == 200, back.text
        assert 'content="0; url=/jobs"' in back.text
        assert client.get("/jobs", headers={"accept": "text/html"}).status_code == 200
        assert client.get("/v1/keys").status_code == 403  # in no group of administrators
        provider.claims["groups"] = ["ops", "all"]
        assert come_back(client).status_code == 200
        (key,) = client.get("/v1/keys").json()["keys"]
        assert (key["title"], key["scope"]) == ("ada@example.org", "admin")
        acts = client.get("/v1/audit").json()["acts"]
        assert [act["action"] for act in acts] == ["person.sign-in"] * 2
        assert client.post("/v1/jobs", json=BODY).status_code == 401  # a browser's cookie is for reading


def test_a_revoked_person_stays_out(database: Database, provider: Provider) -> None:
    with browser(database, provider) as client:
        assert come_back(client).status_code == 200
        (key,) = Keys(database, actor="test").page(None, page_size=5).items
        Keys(database, actor="test").revoke(key.id)
        refused = come_back(client)
        assert (refused.status_code, "was revoked" in refused.text) == (403, True)
        client.app.state.service.access.forget()  # type: ignore[attr-defined]
        assert client.get("/v1/jobs").status_code == 401


def test_claims_choose_tenant_and_scope(database: Database, provider: Provider) -> None:
    provider.claims |= {"team": "vision", "groups": "readers"}
    given = {"oidc_tenant_claim": "team", "oidc_submit_groups": "writers"}
    with browser(database, provider, **given) as client:
        assert come_back(client).status_code == 200
        (key,) = Keys(database, actor="test").page("vision", page_size=5).items
        assert key.scope == "read"
        provider.claims["team"] = "Not A Tenant"
        assert come_back(client).status_code == 403


@pytest.mark.parametrize(
    "fault", [{"state": "foreign"}, {"code": "guessed"}, {"code": ""}, {"state": ""}], ids=str
)
def test_a_sign_in_that_was_not_begun_here_is_refused(
    database: Database, provider: Provider, fault: dict[str, str]
) -> None:
    with browser(database, provider) as client:
        assert come_back(client, **fault).status_code == 401
        assert client.get("/v1/jobs").status_code == 401
        assert client.get("/sign-in/oidc/callback?code=x&state=y").status_code == 401  # without a cookie


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": "another"},
        {"aud": [CLIENT, "another"]},
        {"azp": "another"},
        {"sub": 7},
        {"iss": "http://another"},
        {"exp": 1},
        {"nonce": "old"},
        {"sub": None},
    ],
    ids=str,
)
def test_a_token_for_others_is_refused(
    database: Database, provider: Provider, claims: dict[str, object]
) -> None:
    provider.claims |= claims
    with browser(database, provider) as client:
        assert come_back(client).status_code == 401


def test_a_token_with_a_foreign_signature_is_refused(database: Database, provider: Provider) -> None:
    provider.signing_key = RSAKey.generate_key(2048, {"kid": "one"})
    with browser(database, provider) as client:
        assert come_back(client).status_code == 401


def test_the_browser_is_led_to_our_own_pages_alone(database: Database, provider: Provider) -> None:
    with browser(database, provider) as client:
        assert 'url=/"' in come_back(client, to="//evil.example").text


def test_a_provider_that_is_away_is_a_503(database: Database) -> None:
    with a_provider() as provider:
        pass
    with browser(database, provider) as client:
        away = client.get("/sign-in/oidc")
        assert (away.status_code, int(away.headers["Retry-After"]) >= 1) == (503, True)


def test_without_a_provider_there_is_no_such_address(client: TestClient) -> None:
    install(client.app)  # type: ignore[arg-type]
    assert client.get("/sign-in/oidc").status_code == 404
    assert client.get("/sign-in/oidc/callback?code=x&state=y").status_code == 404


# --------------------------------------------------------------------------------------------------
# A provider that hangs, or answers nonsense.


@pytest.fixture
def silent() -> Iterator[str]:
    """Takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=200) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_no_thread_waits_for_another_one_s_request_and_a_fault_is_remembered(silent: str) -> None:
    """Of 60 sign-ins four wait for a provider without a word; all others are refused at once."""
    provider, asked = SignInProvider(silent), Counter[str]()

    def sign_in() -> None:
        try:
            with provider.turn():
                asked["waited"] += 1
                provider.metadata()
        except BusyError as fault:
            asked[str(fault)[:21]] += 1

    with quiet_seconds() as clock, ThreadPoolExecutor(60) as pool:
        list(pool.map(lambda _: sign_in(), range(60)))
    assert asked["waited"] == MAX_AT_ONCE == 4
    assert asked["too many people are sign"[:21]] == 56
    assert clock.took_s < 2 * TIMEOUT_S  # not 60 times as long, one behind the other
    with pytest.raises(BusyError, match="did not answer"), provider.turn():  # without asking again
        raise AssertionError("a turn was given")


def test_metadata_are_kept_and_the_old_ones_count_while_the_provider_is_away() -> None:
    now = [0.0]
    with a_provider() as running:
        provider = SignInProvider(running.url, clock_s=lambda: now[0])
        known = provider.metadata()
        assert provider.metadata() is known
    now[0] = 2 * METADATA_S
    assert provider.metadata() is known
    with pytest.raises(BusyError), provider.turn():  # but that it is away is remembered
        pass
    now[0] += FAULT_S
    with provider.turn():
        pass


def test_a_token_for_several_is_for_the_one_that_it_names(database: Database, provider: Provider) -> None:
    provider.claims |= {"aud": ["another", CLIENT], "azp": CLIENT}
    with browser(database, provider) as client:
        assert come_back(client).status_code == 200


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (200, b"[" * 100_000, 503),
        (200, b'{"id_token": 7}', 503),
        (200, b"{}" + b" " * 2**20, 503),
        (500, b'{"error": "down"}', 503),
        (403, b"<html>no", 401),
        (200, b'{"error": "invalid_grant"}', 401),
        (200, b'{"id_token": "a.b.c"}', 401),
    ],
)
def test_a_token_endpoint_that_says_nonsense(
    database: Database, provider: Provider, status: int, body: bytes, expected: int
) -> None:
    provider.token_answer = status, body
    with browser(database, provider) as client:
        assert come_back(client).status_code == expected


@pytest.mark.parametrize(
    "body",
    [b"[" * 100_000, b"[]", b"\xff\xfe", b"{}" + b" " * 2**20, b'{"issuer": 7}', b""],
    ids=["deep", "a list", "no text", "too long", "no addresses", "nothing"],
)
def test_whatever_a_provider_says_wrong_is_its_fault_and_not_a_bug(body: bytes) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(BusyError, match="did not answer correctly"):
            SignInProvider(f"http://127.0.0.1:{server.server_port}").metadata()
        server.shutdown()


def test_an_answer_that_comes_drop_by_drop_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshwright.service.auth.provider.TIMEOUT_S", 1.5)
    ended = threading.Event()

    def drip(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
            while not ended.wait(0.2):
                connection.sendall(b" ")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,), daemon=True)
        thread.start()
        with quiet_seconds() as clock, pytest.raises(BusyError):
            SignInProvider(f"http://127.0.0.1:{listener.getsockname()[1]}").metadata()
        assert clock.took_s < 2 * 1.5 + 2.0
        ended.set()
        thread.join()

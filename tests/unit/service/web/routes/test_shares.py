"""Links to answers: who may make, see and revoke them, and what they show to people without a key."""

import re

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, update

from meshwright.service.auth.access import begin_session
from meshwright.service.db.clock import now_s
from meshwright.service.db.database import Database
from meshwright.service.db.tables import share_links
from meshwright.service.stores.deletion import Deletion
from meshwright.service.stores.shares import MAX_LINKS
from tests.served.access_cases import token_of
from tests.served.answered_jobs import add_answered_job
from tests.served.job_records import add_tiny_job
from tests.served.reports import small_answer
from tests.unit.service.web.test_access import signed_in


def bearer(database: Database, tenant: str, scope: str = "submit") -> dict[str, str]:
    return {"Authorization": f"Bearer {token_of(database, tenant, scope)}"}


@pytest.fixture
def head(database: Database) -> dict[str, str]:
    """A caller who may submit, of the tenant with the answer."""
    add_answered_job(database, "answered", *small_answer(), tenant="ours")
    return bearer(database, "ours")


def shared(
    browser: TestClient, head: dict[str, str], job: str = "answered", **body: object
) -> dict[str, str]:
    answer = browser.post(f"/v1/jobs/{job}/share-links", json=body, headers=head)
    assert answer.status_code == 201, answer.text
    assert answer.headers["Cache-Control"] == "no-store"
    return dict(answer.json())


def test_a_link_shows_the_answer_without_a_key_and_nothing_else(
    browser: TestClient, head: dict[str, str]
) -> None:
    path = shared(browser, head)["path"]
    seen = browser.get(path)
    assert seen.status_code == 200
    assert f"{small_answer()[1].plans[0].prediction.step_time_s:.3g}" in seen.text
    assert not re.findall(r'(?:href|action|src)="/', seen.text)  # no way from here into the service
    assert seen.headers["Cache-Control"] == "no-store"
    assert seen.headers["Referrer-Policy"] == "no-referrer"
    assert "noindex" in seen.headers["X-Robots-Tag"]
    token = path.removeprefix("/shared/")
    assert browser.get("/v1/jobs", headers={"Authorization": f"Bearer {token}"}).status_code == 401


def test_only_a_hash_of_a_link_is_stored(
    browser: TestClient, database: Database, head: dict[str, str]
) -> None:
    secret = shared(browser, head)["path"].split("_", 2)[2]
    with database.read() as connection:
        rows = connection.execute(select(share_links)).all()
    assert len(rows) == 1
    assert secret not in str(rows)
    listed = browser.get("/v1/jobs/answered/share-links", headers=head).text
    assert secret not in listed


def test_a_wrong_a_revoked_and_an_expired_link_are_the_same_404(
    browser: TestClient, database: Database, head: dict[str, str]
) -> None:
    good, revoked, expired = (shared(browser, head) for _ in range(3))
    address = f"/v1/jobs/answered/share-links/{revoked['id']}"
    assert browser.delete(address, headers=head).status_code == 204
    assert browser.delete(address, headers=head).status_code == 404
    with database.write() as connection:
        past = update(share_links).where(share_links.c.id == expired["id"])
        connection.execute(past.values(expires_at_s=now_s() - 1))
    last = good["path"][-1]
    other_secret = good["path"][:-1] + ("A" if last != "A" else "B")
    other_id = f"/shared/ml_000000000000_{good['path'].split('_', 2)[2]}"
    wrong = [revoked["path"], expired["path"], other_secret, other_id, "/shared/ml_", "/shared/%00"]
    texts = {browser.get(path).text for path in wrong}
    assert [browser.get(path).status_code for path in wrong] == [404] * len(wrong)
    assert all("revoked, has expired or is incomplete" in text for text in texts)
    assert browser.get(good["path"]).status_code == 200
    (left,) = browser.get("/v1/jobs/answered/share-links", headers=head).json()["links"]
    assert left["id"] == good["id"]


def test_the_links_of_a_tenant_are_listed_and_can_end_with_their_key(
    browser: TestClient, database: Database, head: dict[str, str]
) -> None:
    other = bearer(database, "ours", "admin")
    made = [shared(browser, one)["id"] for one in (head, other, head)]
    key_of = {name: one["Authorization"].split("_")[1] for name, one in (("a", head), ("b", other))}
    first = browser.get("/v1/share-links?page_size=2", headers=head).json()
    rest = browser.get(
        "/v1/share-links", params={"page_size": 2, "page_token": first["next_page_token"]}, headers=head
    ).json()
    listed = [one["id"] for one in (*first["links"], *rest["links"])]
    assert listed == made[::-1]
    assert {one["job_id"] for one in first["links"]} == {"answered"}
    own = browser.get(f"/v1/share-links?key={key_of['b']}", headers=head).json()["links"]
    assert [one["id"] for one in own] == [made[1]]
    assert browser.get("/v1/share-links", headers=bearer(database, "theirs")).json()["links"] == []
    spare = bearer(database, "ours")["Authorization"].split("_")[1]
    assert browser.delete(f"/v1/keys/{spare}", headers=other).status_code == 204
    assert len(browser.get("/v1/share-links", headers=other).json()["links"]) == 3
    gone = browser.delete(f"/v1/keys/{key_of['a']}?with_links=true", headers=other)
    assert gone.status_code == 204
    left = browser.get("/v1/share-links", headers=other).json()["links"]
    assert [one["id"] for one in left] == [made[1]]
    (act, *_) = browser.get("/v1/audit", headers=other).json()["acts"]
    assert (act["action"], act["details"]) == ("key.revoke", {"links": 2})


def test_another_tenant_neither_makes_nor_sees_nor_revokes_a_link(
    browser: TestClient, database: Database, head: dict[str, str]
) -> None:
    made = shared(browser, head)
    other = bearer(database, "theirs", "admin")
    listed = "/v1/jobs/answered/share-links"
    assert browser.post(listed, json={}, headers=other).status_code == 404
    assert browser.get(listed, headers=other).status_code == 404
    assert browser.delete(f"{listed}/{made['id']}", headers=other).status_code == 404
    assert browser.get(made["path"]).status_code == 200


def test_a_link_of_one_job_is_not_revoked_through_another(
    browser: TestClient, database: Database, head: dict[str, str]
) -> None:
    made = shared(browser, head)
    add_answered_job(database, "second", *small_answer(), tenant="ours")
    assert browser.delete(f"/v1/jobs/second/share-links/{made['id']}", headers=head).status_code == 404
    assert browser.get(made["path"]).status_code == 200


def test_whoever_may_only_read_sees_links_and_makes_none(
    browser: TestClient, database: Database, head: dict[str, str]
) -> None:
    made = shared(browser, head)
    reader = bearer(database, "ours", "read")
    assert browser.get("/v1/jobs/answered/share-links", headers=reader).status_code == 200
    assert browser.post("/v1/jobs/answered/share-links", json={}, headers=reader).status_code == 403
    refused = browser.delete(f"/v1/jobs/answered/share-links/{made['id']}", headers=reader)
    assert refused.status_code == 403


@pytest.mark.parametrize("days", [0, -1, 366, "7"])
def test_a_life_that_no_link_has_is_refused_with_its_range(
    browser: TestClient, head: dict[str, str], days: object
) -> None:
    answer = browser.post("/v1/jobs/answered/share-links", json={"expires_in_days": days}, headers=head)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/expires_in_days"


def test_a_job_without_an_answer_cannot_be_shared(
    browser: TestClient, database: Database, head: dict[str, str]
) -> None:
    add_tiny_job(database, "waiting", tenant="ours")
    answer = browser.post("/v1/jobs/waiting/share-links", json={}, headers=head)
    assert answer.status_code == 409


def test_a_job_has_at_most_so_many_links(browser: TestClient, head: dict[str, str]) -> None:
    for _ in range(MAX_LINKS):
        shared(browser, head)
    assert browser.post("/v1/jobs/answered/share-links", json={}, headers=head).status_code == 409


def test_the_same_request_makes_one_link(browser: TestClient, head: dict[str, str]) -> None:
    again = {**head, "Idempotency-Key": "once"}
    first, second = (shared(browser, again) for _ in range(2))
    assert first["id"] == second["id"]
    assert second["path"] is None  # its address is not kept


def test_a_link_ends_with_its_job(browser: TestClient, database: Database, head: dict[str, str]) -> None:
    path = shared(browser, head)["path"]
    Deletion(database, actor="test").job("ours", "answered")
    assert browser.get(path).status_code == 404


def test_making_and_revoking_are_on_the_audit_trail(
    browser: TestClient, database: Database, head: dict[str, str]
) -> None:
    made = shared(browser, head)
    browser.delete(f"/v1/jobs/answered/share-links/{made['id']}", headers=head)
    acts = browser.get("/v1/audit", headers=bearer(database, "ours", "admin")).json()["acts"]
    assert [(act["action"], act["subject"]) for act in acts if act["action"].startswith("share")] == [
        ("share.revoke", made["id"]),
        ("share.create", made["id"]),
    ]


def test_the_page_shows_a_new_address_once_and_revokes_it(
    browser: TestClient, database: Database, head: dict[str, str]
) -> None:
    key_id = head["Authorization"].split("_")[1]
    browser.cookies.set("meshwright_session", begin_session(database, key_id))
    assert "/jobs/answered/share" in browser.get("/jobs/answered").text
    made = browser.post("/jobs/answered/share", data={"days": "30"})
    assert made.status_code == 200
    (address,) = re.findall(r"<code>http://localhost(/shared/ml_[^<]+)</code>", made.text)
    assert browser.get(address).status_code == 200
    assert address not in browser.get("/jobs/answered/share").text
    link_id = address.split("_")[1]
    assert browser.post(f"/jobs/answered/share/{link_id}/revoke").status_code == 303
    assert browser.get(address).status_code == 404
    assert "This answer has no link" in browser.get("/jobs/answered/share").text
    for days in ("1000", "0", "a week", "1e-300", "1e999"):
        faulty = browser.post("/jobs/answered/share", data={"days": days})
        assert faulty.status_code == 422
        assert 'id="fault-days"' in faulty.text


def test_an_administrator_sees_and_revokes_the_links_of_all_answers_of_the_tenant(
    browser: TestClient, database: Database, head: dict[str, str]
) -> None:
    add_answered_job(database, "foreign", *small_answer(), tenant="theirs")
    foreign = shared(browser, bearer(database, "theirs"), "foreign")["id"]
    first, second = (shared(browser, head) for _ in range(2))
    signed_in(browser, head["Authorization"].partition(" ")[2])
    assert browser.get("/links").status_code == 403
    assert browser.post(f"/links/answered/{first['id']}/revoke").status_code == 403
    signed_in(browser, token_of(database, "ours", "admin"))
    assert browser.post(f"/links/foreign/{foreign}/revoke").status_code == 404
    listed = browser.get("/links").text
    assert all(one["id"] in listed for one in (first, second))
    assert foreign not in listed
    assert first["path"] not in listed
    assert browser.post(f"/links/answered/{first['id']}/revoke").status_code == 303
    assert first["id"] not in browser.get("/links").text
    assert [browser.get(one["path"]).status_code for one in (first, second)] == [404, 200]

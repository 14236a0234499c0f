"""Who may call: every address of the document x no key, foreign tenant, wrong scope, revoked, expired."""

import time

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, update

from meshwright.service.auth.access import REMEMBER_S, Access
from meshwright.service.auth.keys import Keys, NewKey, hash_of
from meshwright.service.db.clock import now_s
from meshwright.service.db.database import Database
from meshwright.service.db.tables import api_keys
from meshwright.service.errors import UnauthorizedError
from meshwright.service.jobs.engine import JobEngine
from tests.problems.measured_profiles import measured_profile, measurement
from tests.reliability.figures import measured
from tests.served.access_cases import (
    OPEN,
    called,
    expired_token,
    lesser,
    operations,
    revoked_token,
    scope_of,
    token_of,
    with_ids,
)
from tests.served.api_client import BODY, PROBLEM_TYPE, answer_next

GUARDED = [(method, path) for method, path, _ in operations() if path not in OPEN]
SCOPE = {(method, path): scope_of(what) for method, path, what in operations() if path not in OPEN}


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_the_document_has_many_guarded_addresses_and_they_name_their_scope() -> None:
    assert len(GUARDED) > 15
    assert set(SCOPE.values()) == {"read", "submit", "admin"}
    reading = {scope for (method, _), scope in SCOPE.items() if method != "GET"}
    assert "read" not in reading  # nothing is changed with the least scope


def test_every_address_demands_a_usable_key(client: TestClient, database: Database) -> None:
    right = token_of(database, "ours")
    half = right[: len(right) // 2]
    refused = [None, half, right[:-1] + ("A" if right[-1] != "A" else "B"), "mw_000000000000_" + "A" * 43]
    refused += [revoked_token(database, "ours"), expired_token(database, "ours")]
    for method, path in GUARDED:
        for token in refused:
            answer = called(client, method, with_ids(path, {}), token)
            said = answer.status_code, answer.headers["content-type"], answer.headers["WWW-Authenticate"]
            assert said == (401, PROBLEM_TYPE, "Bearer"), (method, path, token)
        usable = called(client, method, with_ids(path, {}), right)
        assert usable.status_code not in {401, 403}, (method, path)
    measured(18, "addresses, each refused to six wrong keys", len(GUARDED))


def test_every_address_that_changes_something_demands_its_scope(
    client: TestClient, database: Database
) -> None:
    less = {scope: token_of(database, "ours", scope) for scope in {*map(lesser, SCOPE.values())} if scope}
    assert {*less} == {"read", "submit"}
    for (method, path), scope in SCOPE.items():
        if (token := less.get(lesser(scope) or "")) is not None:
            answer = called(client, method, with_ids(path, {}), token)
            said = answer.status_code, answer.headers["content-type"]
            assert said == (403, PROBLEM_TYPE), (method, path)


def records_of(client: TestClient, database: Database, engine: JobEngine) -> tuple[str, dict[str, str]]:
    """A tenant's token and the ids of one record of each kind."""
    token = token_of(database, "theirs")
    job = client.post("/v1/jobs", json=BODY, headers=bearer(token)).json()["id"]
    answer_next(engine)
    document = measured_profile(measurement("qkv", "forward", 1e-3, m=64, n=64, k=64)).to_json()
    profile = client.post("/v1/profiles", json=document, headers=bearer(token))
    for known in ("models/llama-3.1-8b", "clusters/dgx-h100", "gpus/h100-sxm-80gb"):
        shape = client.get(f"/v1/{known}", headers=bearer(token)).json()["document"]
        own = f"/v1/{known.partition('/')[0]}/secret"
        assert client.put(own, json=shape, headers=bearer(token)).status_code == 201, own
    link = client.post(f"/v1/jobs/{job}/share-links", json={}, headers=bearer(token))
    planned = {key: value for key, value in BODY.items() if key != "cluster"}
    one = {"name": "a", "problem": planned, "steps": 100, "nodes": 1}
    fleet = client.post(
        "/v1/fleets", json={"cluster": BODY["cluster"], "jobs": [one]}, headers=bearer(token)
    )
    return token, {
        "name": "secret",
        "profile_id": profile.json()["id"],
        "job_id": job,
        "plan_id": "aaa",
        "key_id": token.split("_")[1],
        "link_id": link.json()["id"],
        "fleet_id": fleet.json()["id"],
        "replan_id": "0" * 32,  # of a job that is not there either
        "tenant_name": "theirs",
    }


# Keeping a definition under a name that another tenant uses makes one of one's own.
OWNED = [(method, path) for method, path in GUARDED if "{" in path and method != "PUT"]


# Nobody has re-planned the job or verified its plan, which has no file of that name.
UNMADE = {
    "/v1/jobs/{job_id}/replans/{replan_id}",
    "/v1/plans/{plan_id}/verification",
    "/v1/plans/{plan_id}/export/{name}",
}


def test_a_foreign_record_is_not_there(client: TestClient, database: Database, engine: JobEngine) -> None:
    token, ids = records_of(client, database, engine)
    ours = token_of(database, "ours")
    for method, path in OWNED:
        here = with_ids(path, ids)
        assert "none" not in here.split("/"), here  # every record that an address names is there
        answer = called(client, method, here, ours)
        assert (answer.status_code, answer.headers["content-type"]) == (404, PROBLEM_TYPE), (method, here)
    for method, path in OWNED:  # after every attempt to delete it
        if method == "GET" and path not in UNMADE:
            here = with_ids(path, ids)
            assert called(client, method, here, token).status_code != 404, here
    measured(18, "addresses of foreign records, each a 404", len(OWNED))


def test_a_tenant_lists_its_own_records_only(
    client: TestClient, database: Database, engine: JobEngine
) -> None:
    token, ids = records_of(client, database, engine)
    ours = bearer(token_of(database, "ours"))
    assert client.get("/v1/jobs", headers=ours).json()["jobs"] == []
    listed = {job["id"] for job in client.get("/v1/jobs", headers=bearer(token)).json()["jobs"]}
    assert {ids["job_id"], ids["fleet_id"]} <= listed
    assert [key["id"] for key in client.get("/v1/keys", headers=ours).json()["keys"]] != [ids["key_id"]]
    acts = client.get("/v1/audit", headers=ours).json()["acts"]
    assert ids["key_id"] not in {act["subject"] for act in acts}


def test_an_answer_of_one_tenant_is_not_reused_for_another(
    client: TestClient, database: Database, engine: JobEngine
) -> None:
    _, ids = records_of(client, database, engine)
    ours = bearer(token_of(database, "ours"))
    assert client.post("/v1/jobs", json=BODY, headers=ours).json()["id"] != ids["job_id"]


def test_an_administrator_makes_and_revokes_keys_and_the_trail_says_so(
    client: TestClient, database: Database
) -> None:
    admin = bearer(token_of(database, "ours"))
    body = {"scope": "read", "title": "dashboard", "expires_in_days": 30}
    made = client.post("/v1/keys", json=body, headers=admin)
    assert (made.status_code, made.headers["Cache-Control"]) == (201, "no-store")
    reader = bearer(made.json()["token"])
    assert client.get("/v1/jobs", headers=reader).status_code == 200
    key_id = made.json()["id"]
    assert client.delete(f"/v1/keys/{key_id}", headers=admin).status_code == 204
    assert client.get("/v1/jobs", headers=reader).status_code == 401  # at once in this process
    acts = client.get("/v1/audit", headers=admin).json()["acts"]
    assert [(act["action"], act["subject"]) for act in acts[:2]] == [
        ("key.revoke", key_id),
        ("key.create", key_id),
    ]
    listed = client.get("/v1/keys", headers=admin).json()["keys"]
    assert [key["usable"] for key in listed] == [False, True]
    assert "secret" not in str(listed)
    assert "token" not in str(listed)


def test_the_first_key_is_not_made_over_the_network(client: TestClient) -> None:
    assert client.post("/v1/keys", json={}).status_code == 403
    assert client.get("/v1/jobs").status_code == 200  # and nobody is locked out


def test_wrong_fields_of_a_key_are_named(client: TestClient, database: Database) -> None:
    admin = bearer(token_of(database, "ours"))
    for body, pointer in [
        ({"scope": "root"}, "/scope"),
        ({"expires_in_days": 0}, "/expires_in_days"),
        ({"tenant": "theirs"}, "/tenant"),
    ]:
        answer = client.post("/v1/keys", json=body, headers=admin)
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)


def test_a_key_that_another_process_revokes_is_refused_within_a_second(database: Database) -> None:
    record, token = Keys(database, actor="test").create(NewKey(tenant="ours"))
    access = Access(database)
    assert access.identify(token).tenant == "ours"
    assert access.remembered(token) is not None
    Keys(database, actor="test").revoke(record.id)
    time.sleep(REMEMBER_S)
    assert access.remembered(token) is None
    with pytest.raises(UnauthorizedError):
        access.identify(token)


def test_a_database_that_had_a_key_demands_one_for_ever(database: Database) -> None:
    revoked_token(database, "ours")
    with pytest.raises(UnauthorizedError):
        Access(database).identify(None)


def test_a_secret_has_256_random_bits_and_only_its_hash_is_stored(database: Database) -> None:
    tokens = {token_of(database, "ours") for _ in range(20)}
    secrets = {token.split("_", 2)[2] for token in tokens}
    assert len(secrets) == 20
    assert {len(secret) for secret in secrets} == {43}  # 32 bytes = 256 bits, 6 bits a character
    with database.read() as connection:
        stored = set(connection.execute(select(api_keys.c.secret_sha256)).scalars())
        rows = str(connection.execute(api_keys.select()).all())
    assert {hash_of(token) for token in tokens} == stored
    assert not [secret for secret in secrets if secret in rows]


def test_an_expired_key_is_told_from_a_usable_one_by_the_databases_clock(database: Database) -> None:
    record, token = Keys(database, actor="test").create(NewKey(tenant="ours", expires_in_days=1))
    assert record.expires_at_s is not None
    assert record.expires_at_s - record.created_at_s == pytest.approx(86_400, abs=1)
    assert Access(database).identify(token).key_id == record.id
    with database.write() as connection:
        connection.execute(update(api_keys).values(expires_at_s=now_s()))
    with pytest.raises(UnauthorizedError):
        Access(database).identify(token)

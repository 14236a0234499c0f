"""Keys as an operator makes them, on both databases, and what a running server does with them."""

import json
import subprocess
from pathlib import Path

import httpx
import pytest

from meshwright.service.auth.access import Access
from meshwright.service.auth.keys import Keys, NewKey
from meshwright.service.db.database import Database
from meshwright.service.errors import NotFoundError, UnauthorizedError
from tests.processes.servers import environment, serving, until
from tests.processes.warm import run_warm


def meshwright(*words: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return run_warm("-m", "meshwright", *words, env=environment(settings))


def test_keys_are_made_listed_used_revoked_and_audited(database: Database) -> None:
    keys, access = Keys(database, actor="test"), Access(database)
    made = [keys.create(NewKey(tenant=tenant)) for tenant in ("ours", "ours", "theirs")]
    assert [access.identify(token).tenant for _, token in made] == ["ours", "ours", "theirs"]
    first = keys.page("ours", page_size=1)
    second = keys.page("ours", page_size=1, page_token=first.next_page_token)
    assert {first.items[0].id, second.items[0].id} == {made[0][0].id, made[1][0].id}
    assert second.next_page_token is None
    with pytest.raises(NotFoundError):
        keys.revoke(made[2][0].id, tenant="ours")
    for _ in range(2):
        keys.revoke(made[0][0].id, tenant="ours")
    with pytest.raises(UnauthorizedError):
        Access(database).identify(made[0][1])
    trail = keys.trail("ours", page_size=10).items
    assert [act.action for act in trail] == ["key.revoke", "key.revoke", "key.create", "key.create"]
    assert keys.trail("ours", page_size=2).next_page_token is not None


def test_a_server_with_a_key_may_bind_beyond_loopback_and_demands_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'meshwright.db'}"
    made = meshwright("keys", "create", "--tenant", "ours", "--scope", "read", database_url=url)
    assert made.returncode == 0, made.stderr
    token = made.stdout.strip()
    with serving({"database_url": url, "workers": "0", "host": "0.0.0.0"}) as server:  # noqa: S104 - it has keys
        here = f"{server.url.replace('0.0.0.0', '127.0.0.1')}/v1/jobs"  # noqa: S104 - the same
        assert httpx.get(here).status_code == 401
        ours = {"Authorization": f"Bearer {token}"}
        assert httpx.get(here, headers=ours).json() == {"jobs": []}
        assert httpx.get(here, headers={**ours, "Host": "planner.example"}).status_code == 200
        assert httpx.post(here, headers=ours, json={}).status_code == 403
        listed = meshwright("keys", "list", "--json", database_url=url)
        (key,) = json.loads(listed.stdout)
        assert meshwright("keys", "revoke", key["id"], database_url=url).returncode == 0
        until(lambda: httpx.get(here, headers=ours).status_code == 401, within_s=3)
    assert "revoked" in meshwright("keys", "list", database_url=url).stdout


def test_the_command_line_sends_the_key_of_its_environment(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'meshwright.db'}"
    token = meshwright("keys", "create", database_url=url).stdout.strip()
    with serving({"database_url": url, "workers": "0"}) as server:
        refused = meshwright("jobs", "list", "--url", server.url)
        error, tip = refused.stderr.splitlines()
        assert (refused.returncode, tip) == (2, "tip: meshwright jobs list --help")
        assert "Bearer" in error
        assert meshwright("jobs", "list", "--url", server.url, key=token).returncode == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["create", "--tenant", "Not Ours"], "--tenant: is not usable"),
        (["create", "--scope", "root"], "--scope: is not usable"),
        (["create", "--expires-in-days", "0"], "--expires-in-days: is not usable"),
        (["revoke", "none"], "there is no such key"),
    ],
)
def test_a_wrong_word_about_keys_is_one_line_a_tip_and_exit_2(
    tmp_path: Path, words: list[str], says: str
) -> None:
    url = f"sqlite:///{tmp_path / 'meshwright.db'}"
    run = meshwright("keys", *words, database_url=url)
    error, tip = run.stderr.splitlines()
    assert (run.returncode, run.stdout) == (2, "")
    assert says in error
    assert tip == f"tip: meshwright keys {words[0]} --help"


def test_a_database_of_keys_that_cannot_be_used_is_one_line_and_exit_2() -> None:
    run = meshwright("keys", "list", "--database-url", "sqlite:////dev/null/x.db")
    assert (run.returncode, run.stdout, run.stderr.count("\n")) == (2, "", 1), run.stderr
    assert "the database cannot be used" in run.stderr

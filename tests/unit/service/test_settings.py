"""Settings that are made of others."""

import pytest
from fastapi import FastAPI
from pydantic import ValidationError

from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.errors import remedy_of
from meshwright.service.serving.serve import server_config
from meshwright.service.settings import Settings, settings_with


@pytest.mark.parametrize(
    ("url", "password", "expected"),
    [
        ("redis://queue:6379/0", "a/b@c %", "redis://:a%2Fb%40c%20%25@queue:6379/0"),
        ("rediss://queue/0", "kD9x", "rediss://:kD9x@queue/0"),
        ("redis://me:mine@queue/0", "kD9x", "redis://me:mine@queue/0"),  # the URL's own goes first
        ("redis://queue/0", None, "redis://queue/0"),
        (None, "kD9x", None),
    ],
)
def test_the_password_of_redis_is_put_into_its_url(
    url: str | None, password: str | None, expected: str | None
) -> None:
    settings = Settings.model_validate({"redis_url": url, "redis_password": password})
    assert settings.queue_url == expected
    assert "kD9x" not in repr(settings)


@pytest.mark.parametrize(
    "proxies", ["10.0.0.7", "10.0.0.0/8", "10.0.0.7, 192.168.0.0/16", "::1", "fd00::/8", "*", None]
)
def test_trusted_proxies_are_addresses_and_networks_or_any(proxies: str | None) -> None:
    assert Settings(trusted_proxies=proxies).trusted_proxies == proxies


@pytest.mark.parametrize(
    "proxies", ["1.2", "..", "10.0.0.7/8", "10.0.0.7,", "", "10.0.0.7, *", "ingress", "300.1.1.1"]
)
def test_what_is_no_address_trusts_no_proxy_and_is_refused(proxies: str) -> None:
    with pytest.raises(ValidationError, match="is not an address or a network"):
        Settings(trusted_proxies=proxies)


def test_without_the_setting_uvicorns_own_variable_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "10.9.8.7")
    assert server_config(Settings(), app=FastAPI()).forwarded_allow_ips == "10.9.8.7"
    of_ours = server_config(Settings(trusted_proxies="10.0.0.0/8"), app=FastAPI())
    assert of_ours.forwarded_allow_ips == "10.0.0.0/8"


WRONG = (
    "-1",
    "0",
    "0.5",
    "inf",
    "1e99",
    "maybe",
    "",
    "no one",
    "mysql://me:kD9x@host/name",
    "x" * 5000,
    "?kD9x",
)


@pytest.mark.parametrize("name", Settings.model_fields)
def test_a_wrong_setting_is_named_with_a_command_that_sets_it_right(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESHWRIGHT_OIDC_REDIRECT_URL", "https://us/sign-in/oidc/callback")
    variable = f"MESHWRIGHT_{name.upper()}"
    refused = 0
    for value in WRONG:
        monkeypatch.setenv(variable, value)
        try:
            settings_with({})
        except InvalidProblemError as error:
            (fault,) = error.errors
        else:
            continue
        refused += 1
        said = fault.sentence()
        assert said.startswith(f"{variable}: ")
        assert "Input" not in said  # pydantic's words
        assert len(said) < 250
        assert "kD9x" not in said or name not in ("database_url", "redis_url", "redis_password")
        how, _, right = remedy_of(fault).partition(" ")
        if how == "unset":
            monkeypatch.delenv(variable)
        else:
            assert (how, right.partition("=")[0]) == ("export", variable)
            monkeypatch.setenv(variable, right.partition("=")[2])
        settings_with({})
    words = {"host", "oidc_scopes", "oidc_admin_groups", "oidc_submit_groups"}  # any text is one
    assert refused or name in words


def test_an_option_of_a_server_is_named_as_it_was_typed() -> None:
    with pytest.raises(InvalidProblemError) as refused:
        settings_with({"port": 99_999, "database_url": "mysql://me:kD9x@host/name"})
    database, port = refused.value.errors
    assert port.sentence() == "--port: 99999 is out of range. Allowed: from 0 to 65535. Nearest: 65535"
    assert port.tip == "--port 65535"
    assert database.sentence().startswith("--database-url: only postgresql")
    assert remedy_of(port) == remedy_of(database) == ""

"""Settings that are made of others."""

import pytest
from fastapi import FastAPI
from pydantic import ValidationError

from meshwright.service.serving.serve import server_config
from meshwright.service.settings import Settings


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

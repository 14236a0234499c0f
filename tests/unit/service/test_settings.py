"""Settings that are made of others."""

import pytest

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

"""Answers that a client need not be sent twice: strong entity tags (RFC 9110)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from fastapi import Response

MAX_HEADER = 2048  # characters of an If-None-Match that are looked at


def tag_of(body: str) -> str:
    """The strong tag of a body: a hash of the very bytes."""
    return f'"{hashlib.sha256(body.encode()).hexdigest()[:32]}"'


def names(if_none_match: str | None, tag: str) -> bool:
    """Whether an If-None-Match header names ``tag`` (compared weakly); ``*`` names every one."""
    return not {tag, "*"}.isdisjoint(
        one.strip().removeprefix("W/") for one in (if_none_match or "")[:MAX_HEADER].split(",")
    )


def unchanged_since(tag: str) -> Response:
    """304, with the headers that a cache keeps from it (RFC 9110, section 15.4.5)."""
    return Response(status_code=304, headers={"ETag": tag, "Cache-Control": "no-cache"})


def tagged(
    body: str,
    if_none_match: str | None = None,
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """``body`` as JSON with its tag, or 304 where the client has just that."""
    tag = tag_of(body)
    sent = {**(headers or {}), "ETag": tag, "Cache-Control": "no-cache"}
    if names(if_none_match, tag):
        return unchanged_since(tag)
    return Response(body, status_code=status, media_type="application/json", headers=sent)

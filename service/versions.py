"""What answered: the versions that an answer may be reused under."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from profiles.profile import default_profile
from solver.problem import Problem


@cache
def meshwright_version() -> str:
    """The version of this installation; ``0`` when it runs from a bare checkout."""
    try:
        return version("meshwright")
    except PackageNotFoundError:
        return "0"


def versions_of(problem: Problem) -> dict[str, str]:
    """The versions of the code and of the measured costs that would answer ``problem`` here."""
    profile = default_profile(problem.cluster, problem.launcher)
    return {"meshwright": meshwright_version(), "profile": profile.version}


def cache_key_of(tenant: str, request: Mapping[str, object], versions: Mapping[str, str]) -> str:
    """SHA-256, in hex, of everything that changes an answer: tenant, canonical request, versions."""
    whole = {"tenant": tenant, "request": request, "versions": versions}
    text = json.dumps(whole, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()

"""What answered: the versions that an answer may be reused under."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import profiles
import solver
from profiles.inline import cluster_from_mapping, cluster_to_mapping
from profiles.profile import default_profile
from solver.problem import Problem

MAX_REMEMBERED_TEXT = 16_384  # characters of a cluster whose version is remembered


@cache
def version_of(distribution: str) -> str:
    """The installed version of a distribution, without importing it; ``0`` when it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "0"


@cache
def code_digest() -> str:
    """First 12 hex digits of SHA-256 over the code that decides: between two releases it is the version."""
    digest = hashlib.sha256()
    for room in (Path(profiles.__path__[0]), Path(solver.__path__[0])):
        for file in sorted(room.rglob("*.py")):
            digest.update(str(file.relative_to(room)).encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def versions_of(problem: Problem) -> dict[str, str]:
    """The versions of the code and of the measured costs that would answer ``problem`` here."""
    cluster = json.dumps(cluster_to_mapping(problem.cluster), separators=(",", ":"), allow_nan=False)
    known = len(cluster) <= MAX_REMEMBERED_TEXT
    return {
        "meshwright": version_of("meshwright"),
        "code": code_digest(),
        "ortools": version_of("ortools"),
        "profile": _profile_version(cluster, problem.launcher)
        if known
        else default_profile(problem.cluster, problem.launcher).version,
    }


@lru_cache(maxsize=256)
def _profile_version(cluster: str, launcher: str) -> str:
    """The version of the measured costs of a cluster, given as JSON: hashing them all takes 0.3 ms."""
    return default_profile(cluster_from_mapping(json.loads(cluster)), launcher).version


def cache_key_of(tenant: str, request: Mapping[str, object], versions: Mapping[str, str]) -> str:
    """SHA-256, in hex, of everything that changes an answer: tenant, canonical request, versions."""
    whole = {"tenant": tenant, "request": request, "versions": versions}
    text = json.dumps(whole, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()

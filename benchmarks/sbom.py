"""Writes what the image ships: ``out/sbom.cdx.json`` (CycloneDX 1.6) and ``out/licences.md``.

``make bench ARGS=sbom``. The packages, their versions and hashes are those of
``docker/requirements.txt``, from which the image is built; licences are what the installed packages state
(PEP 639's License-Expression, else the classifiers, else the License field).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENTS = ROOT / "docker" / "requirements.txt"
OUT = ROOT / "out"
UNKNOWN = "not stated"
MAX_LICENCE = 80  # characters: some packages put the whole text into the field
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^\s;\\]+)(?:\s*;\s*([^\\]+?))?\s*\\?$")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_BASE = re.compile(r"^FROM (\S+?):(\S+)", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Package:
    """One package of the image."""

    name: str
    version: str
    marker: str  # of the Pythons and systems that need it; empty: all
    sha256: tuple[str, ...]  # of its files on PyPI, any of which may be installed
    licence: str

    @property
    def purl(self) -> str:
        """Return its package URL."""
        return f"pkg:pypi/{self.name.lower().replace('_', '-')}@{self.version}"


def packages(text: str) -> Iterator[Package]:
    """Yield the packages of a requirements file with hashes."""
    lines = text.splitlines()
    for at, line in enumerate(lines):
        if (found := _PINNED.match(line)) is None:
            continue
        hashes = []
        for after in lines[at + 1 :]:
            if (one := _HASH.search(after)) is None:
                break
            hashes.append(one[1])
        name, version, marker = found.groups()
        yield Package(
            name=name, version=version, marker=marker or "", sha256=tuple(hashes), licence=licence_of(name)
        )


def licence_of(name: str) -> str:
    """Return the licence that an installed package states."""
    try:
        stated = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return UNKNOWN
    classifiers = [
        one.rpartition(" :: ")[2]
        for one in stated.get_all("Classifier") or ()
        if one.startswith("License ::")
    ]
    stating = (stated.get_all("License-Expression"), [" and ".join(classifiers)], stated.get_all("License"))
    text = next((one for found in stating for one in found or () if one and one != "UNKNOWN"), UNKNOWN)
    return text.strip().partition("\n")[0][:MAX_LICENCE]


def document(found: list[Package], version: str) -> dict[str, Any]:
    """Return the bill of materials in CycloneDX 1.6."""
    image, tag = re.findall(_BASE, (ROOT / "Dockerfile").read_text(encoding="utf-8"))[-1]
    base = {
        "type": "container", "bom-ref": f"pkg:docker/{image}@{tag}", "name": image, "version": tag,
        "purl": f"pkg:docker/{image}@{tag}",
    }  # fmt: skip
    components = [
        {
            "type": "library", "bom-ref": one.purl, "name": one.name, "version": one.version,
            "purl": one.purl, "licenses": [{"license": {"name": one.licence}}],
            "properties": [{"name": "meshwright:sha256-of-a-file", "value": value} for value in one.sha256]
            + ([{"name": "meshwright:needed-where", "value": one.marker}] if one.marker else []),
        }
        for one in found
    ]  # fmt: skip
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "container", "bom-ref": "meshwright", "name": "meshwright", "version": version,
                "licenses": [{"license": {"name": licence_of("meshwright")}}],
            },
        },
        "components": [base, *components],
        "dependencies": [
            {"ref": "meshwright", "dependsOn": [base["bom-ref"], *(one.purl for one in found)]}
        ],
    }  # fmt: skip


def licences(found: list[Package]) -> str:
    """Return the licences as a table, by licence."""
    rows = sorted((one.licence, one.name, one.version) for one in found)
    return "\n".join(
        ["# Licences of what the image ships", "", "| licence | package | version |", "|---|---|---|"]
        + [f"| {licence} | {name} | {version} |" for licence, name, version in rows]
        + ["", "The base image and its Debian packages state theirs in `/usr/share/doc/*/copyright`.", ""]
    )


def main() -> int:
    """Write both files; 1 if a package of the image states no licence here."""
    found = list(packages(REQUIREMENTS.read_text(encoding="utf-8")))
    OUT.mkdir(exist_ok=True)
    whole = document(found, metadata.version("meshwright"))
    (OUT / "sbom.cdx.json").write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    (OUT / "licences.md").write_text(licences(found), encoding="utf-8")
    silent = [one.name for one in found if one.licence == UNKNOWN and not one.marker]
    sys.stdout.write(f"out/sbom.cdx.json  {len(found)} packages\nout/licences.md\n")
    if silent:
        sys.stderr.write(f"no licence known, because they are not installed here: {', '.join(silent)}\n")
    return int(bool(silent))


if __name__ == "__main__":
    sys.exit(main())

"""The bill of materials names every package that the image installs."""

import re

from benchmarks.sbom import REQUIREMENTS, UNKNOWN, document, packages


def test_every_pinned_package_is_a_component_with_hash_and_licence() -> None:
    text = REQUIREMENTS.read_text(encoding="utf-8")
    found = list(packages(text))
    pinned = re.findall(r"^([^\s#=\[]+)(?:\[.*\])?==", text, re.MULTILINE)
    assert [one.name for one in found] == pinned
    assert all(one.sha256 for one in found)
    assert [one.name for one in found if one.licence == UNKNOWN and not one.marker] == []
    whole = document(found, "1.0")
    assert (whole["bomFormat"], whole["specVersion"]) == ("CycloneDX", "1.6")
    base, *components = whole["components"]
    assert base["name"] == "python"
    assert {one["purl"] for one in components} == {one.purl for one in found}
    assert set(whole["dependencies"][0]["dependsOn"]) == {one["bom-ref"] for one in whole["components"]}

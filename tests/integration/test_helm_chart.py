"""The Helm chart: rendered with its own values it is the manifests; its schema refuses wrong values.

Helm is not needed: the templates use the five constructs that ``rendered`` reads.
"""

import json
import re
from copy import deepcopy
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from benchmarks.reference.chart import CHART, LEFT_OUT, MANIFESTS, chart_files
from meshwright.service.settings import Settings

VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
EVERYTHING = {**VALUES, "autoscaling": "keda", "verify": {**VALUES["verify"], "enabled": True}}
_IF = re.compile(r"\{\{- if (.+?) \}\}\n(.*?)\n\{\{- end \}\}\n", re.DOTALL)
_RANGE = re.compile(r"\n +\{\{- range \$name, \$value := (\S+) \}\}(.*?)\n +\{\{- end \}\}", re.DOTALL)


def value_of(path: str, values: dict[str, Any]) -> Any:  # noqa: ANN401 - of any type
    found: Any = {"Values": values, "Release": {"Namespace": "meshwright"}}
    for name in path.split(".")[1:]:
        found = found[name]
    return found


def rendered(text: str, values: dict[str, Any]) -> str:
    """A template as Helm renders it."""

    def kept(match: re.Match[str]) -> str:
        condition, body = match.groups()
        if condition.startswith("eq "):
            _, path, word = condition.split()
            return body + "\n" if value_of(path, values) == json.loads(word) else ""
        return body + "\n" if value_of(condition, values) else ""

    def each(match: re.Match[str]) -> str:
        path, body = match.groups()
        items = sorted(value_of(path, values).items())  # as Go ranges over a map
        return "".join(
            body.replace("{{ $name }}", name).replace("{{ toJson $value }}", json.dumps(value))
            for name, value in items
        )

    text = _RANGE.sub(each, _IF.sub(kept, text))
    text = re.sub(r"\{\{ toJson (\S+) \}\}", lambda m: json.dumps(value_of(m[1], values)), text)
    text = re.sub(r"\{\{ (\S+) \}\}", lambda m: str(value_of(m[1], values)), text)
    assert "{{" not in text
    return text


def documents(values: dict[str, Any]) -> list[dict[str, Any]]:
    texts = [rendered(path.read_text(), values) for path in sorted((CHART / "templates").iterdir())]
    return [one for text in texts for one in yaml.safe_load_all(text) if one]


def test_the_chart_is_made_from_the_manifests() -> None:
    files = {str(path.relative_to(CHART)): path.read_text() for path in CHART.rglob("*") if path.is_file()}
    assert files == chart_files()  # else: make reference


def test_rendered_with_its_own_values_it_is_the_manifests() -> None:
    plain = [
        manifest
        for path in sorted(MANIFESTS.rglob("*.yaml"))
        if str(path.relative_to(MANIFESTS)) not in {*LEFT_OUT, "autoscaling/hpa.yaml"}
        for manifest in yaml.safe_load_all(path.read_text())
    ]
    found = documents(EVERYTHING)
    for one in found:
        annotations = one["metadata"].pop("annotations", None)
        hook = {
            "helm.sh/hook": "post-install,pre-upgrade",
            "helm.sh/hook-delete-policy": "before-hook-creation",
        }
        assert annotations in (None, hook) or one["kind"] == "ScaledObject"

    def key(one: dict[str, Any]) -> tuple[str, str]:
        return one["kind"], one["metadata"]["name"]

    for one in plain:
        one["metadata"].pop("annotations", None)
    assert sorted(found, key=key) == sorted(plain, key=key)


def test_parts_are_left_out_and_values_reach_their_places() -> None:
    values = deepcopy(VALUES)
    values |= {"image": "registry/meshwright:9", "stores": {"enabled": False}}
    values["api"]["replicas"] = 5
    found = {(one["kind"], one["metadata"]["name"]): one for one in documents(values)}
    assert {name for kind, name in found if kind == "StatefulSet"} == set()
    api = found["Deployment", "api"]["spec"]
    assert (api["replicas"], api["template"]["spec"]["containers"][0]["image"]) == (
        5,
        "registry/meshwright:9",
    )
    assert ("Deployment", "verifier") not in found


def test_every_setting_is_one_that_the_service_reads() -> None:
    known = {f"MESHWRIGHT_{name.upper()}" for name in Settings.model_fields}
    assert {name for name in VALUES["settings"] if name.startswith("MESHWRIGHT_")} <= known


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["image"], 7),
        (["api", "replicas"], 0),
        (["api", "replica"], 2),
        (["autoscaling"], "both"),
        (["settings", "MESHWRIGHT_LEASE_S"], 15),
        (["settings", "lease"], "15"),
        (["stores", "enabled"], "yes"),
    ],
)
def test_the_schema_refuses_wrong_values(path: list[str], value: object) -> None:
    jsonschema.validate(VALUES, SCHEMA)
    wrong = deepcopy(VALUES)
    inner = wrong
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, SCHEMA)

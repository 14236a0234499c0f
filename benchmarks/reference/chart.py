"""deploy/helm/meshwright: the manifests of deploy/kubernetes as a Helm chart, made by ``make reference``.

A template is a manifest with a few values put in, so that the chart with its own values is the manifests.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = ROOT / "deploy" / "kubernetes"
CHART = ROOT / "deploy" / "helm" / "meshwright"
NAMESPACE = "{{ .Release.Namespace }}"
# The folders and files that a value switches on; a chart makes no namespace and no passwords.
CONDITIONS: Mapping[str, str] = {
    "stores/postgres.yaml": ".Values.stores.enabled",
    "stores/redis.yaml": ".Values.stores.enabled",
    "verify/verifier.yaml": ".Values.verify.enabled",
    "autoscaling/keda.yaml": 'eq .Values.autoscaling "keda"',
    "autoscaling/hpa.yaml": 'eq .Values.autoscaling "hpa"',
}
LEFT_OUT = ("00-namespace.yaml", "examples/secret.yaml")
SIZED = {"30-migrate.yaml": "migrate", "40-api.yaml": "api", "50-worker.yaml": "worker",
         "verify/verifier.yaml": "verify"}  # fmt: skip
_HEAD = "# Made from deploy/kubernetes by `make reference`.\n"
_HOOK = """  annotations: # a Job cannot be changed: made anew for each release, before its pods
    helm.sh/hook: post-install,pre-upgrade
    helm.sh/hook-delete-policy: before-hook-creation
"""
_SETTINGS = """data:
  {{- range $name, $value := .Values.settings }}
  {{ $name }}: {{ toJson $value }}
  {{- end }}
"""


def write_chart() -> None:
    """Write the chart."""
    for name, text in chart_files().items():
        (CHART / name).parent.mkdir(parents=True, exist_ok=True)
        (CHART / name).write_text(text, encoding="utf-8")


def chart_files() -> dict[str, str]:
    """Return the text of every file of the chart by its path."""
    names = sorted(str(path.relative_to(MANIFESTS)) for path in MANIFESTS.rglob("*.yaml"))
    templates = {name: _template(name) for name in names if name not in LEFT_OUT}
    values = _values()
    return {
        "Chart.yaml": _chart(),
        "values.yaml": _HEAD + yaml.safe_dump(values, sort_keys=False),
        "values.schema.json": json.dumps(_schema(), indent=1) + "\n",
        **{f"templates/{name.replace('/', '-')}": text for name, text in templates.items()},
    }


def _chart() -> str:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    return (
        "apiVersion: v2\nname: meshwright\ntype: application\n"
        "description: Searches the best parallel configuration of a training run.\n"
        f'version: {version}\nappVersion: "{version}"\nkubeVersion: ">=1.30.0-0"\n'
    )


def _template(name: str) -> str:
    text = (MANIFESTS / name).read_text(encoding="utf-8")
    text = re.sub(r"\bnamespace: meshwright\b", f"namespace: {NAMESPACE}", text)
    text = text.replace(".meshwright.svc", f".{NAMESPACE}.svc")
    text = text.replace("image: meshwright:0.1.0", "image: {{ .Values.image }}")
    if name == "10-settings.yaml":
        text = text[: text.index("\ndata:\n") + 1] + _SETTINGS
    if name == "30-migrate.yaml":
        text = text.replace("  name: migrate\n", f"  name: migrate\n{_HOOK}", 1)
    if name in SIZED:
        part = f".Values.{SIZED[name]}"
        text = re.sub(r"(?m)^  replicas: \d+$", f"  replicas: {{{{ {part}.replicas }}}}", text)
        for kind in ("requests", "limits"):
            text = re.sub(
                rf"(?m)^( +{kind}): \{{.*?\}}", rf"\1: {{{{ toJson {part}.resources.{kind} }}}}", text
            )
    condition = CONDITIONS.get(name)
    return text if condition is None else f"{{{{- if {condition} }}}}\n{text.rstrip()}\n{{{{- end }}}}\n"


def _values() -> dict[str, Any]:
    settings = next(_documents("10-settings.yaml"))["data"]
    parts = {part: _sizes(name) for name, part in SIZED.items()}
    parts["verify"] = {"enabled": False, **parts["verify"]}
    return {
        "image": "meshwright:0.1.0",
        "settings": settings,
        "stores": {"enabled": True},
        "autoscaling": "none",
        **parts,
    }


def _sizes(name: str) -> dict[str, Any]:
    spec = next(_documents(name))["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    replicas = {"replicas": spec["replicas"]} if "replicas" in spec else {}
    return {**replicas, "resources": container["resources"]}


def _documents(name: str) -> Any:  # noqa: ANN401 - manifests
    return yaml.safe_load_all((MANIFESTS / name).read_text(encoding="utf-8"))


def _schema() -> dict[str, Any]:
    """Return the schema that Helm holds values against."""
    quantities = {"type": "object", "additionalProperties": {"type": "string"}}
    resources = _closed({"requests": quantities, "limits": quantities})
    replicas = {"type": "integer", "minimum": 1}
    switch = {"type": "boolean"}
    settings = {
        "type": "object",
        "description": "environment variables, as docs/settings.md lists them; passwords are in Secrets",
        "propertyNames": {"pattern": "^[A-Z][A-Z0-9_]*$"},
        "additionalProperties": {"type": "string"},
        "required": ["MESHWRIGHT_DATABASE_URL"],
    }
    properties = {
        "image": {"type": "string", "minLength": 1},
        "settings": settings,
        "stores": {**_closed({"enabled": switch}), "description": "PostgreSQL and Redis of our own"},
        "autoscaling": {"enum": ["none", "keda", "hpa"]},
        "migrate": _closed({"resources": resources}),
        "api": _closed({"replicas": replicas, "resources": resources}),
        "worker": _closed({"resources": resources}),
        "verify": _closed({"enabled": switch, "replicas": replicas, "resources": resources}),
        "global": {"type": "object"},
    }
    return {"$schema": "http://json-schema.org/draft-07/schema#", **_closed(properties)}


def _closed(properties: Mapping[str, Any]) -> dict[str, Any]:
    required = [name for name in properties if name != "global"]
    return {
        "type": "object",
        "additionalProperties": False,
        "required": required,
        "properties": dict(properties),
    }

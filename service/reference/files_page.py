"""docs/reference/files.md: the files that the product reads and writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from profiles.calibration import FORMAT as CALIBRATION
from profiles.inline import cluster_to_mapping
from profiles.library import find_cluster, find_model
from profiles.measured_profile import FORMAT as MEASURED
from profiles.measured_profile_schema import measured_profile_schema
from profiles.shape import model_to_mapping
from service.reference.schemas import fields_table, schema

_COLUMNS = Path(__file__).parents[2] / "profiles" / "catalog" / "runs" / "columns.md"
_PROBLEM = {
    "JobRequest": "Problem file",
    "WorkloadRequest": "workload",
    "SearchRequest": "search",
    "ReliabilityRequest": "search.reliability",
}
_EXAMPLE = """```yaml
model: {name: llama-3.1-70b}
cluster: {name: dgx-h100, num_nodes: 16}
workload: {global_batch_size: 512, seq_length: 8192}
launcher: megatron-lm
search: {top_k: 5, pin: {tensor_parallel_size: 8}}
```
"""


def files_page() -> str:
    """The whole page."""
    parts = ["# Files", "", *_problem(), *_cluster(), *_model(), *_profiles(), *_runs(), *_answer()]
    return "\n".join(parts) + "\n"


def _problem() -> list[str]:
    """The problem file, from the API's schema: they are the same."""
    lines = [
        "## Problem file {#problem-file}",
        "",
        "JSON or YAML, the same object that `POST /v1/jobs` takes; what is not known is refused, with",
        "its place. [What may be asked](../requests.md) explains it.",
        "",
        _EXAMPLE,
    ]
    for name, title in _PROBLEM.items():
        lines += [f"### {title}", ""] if title != "Problem file" else []
        lines += fields_table(schema(name))
    return lines


def _cluster() -> list[str]:
    """A cluster as `--cluster FILE` takes it: one of the catalog, written out."""
    written = cluster_to_mapping(find_cluster("dgx-h100", num_nodes=4))
    return [
        "## Cluster file {#cluster-file}",
        "",
        "For `--cluster`, or `cluster` of a problem. `{name: dgx-h100, num_nodes: 4}` of the catalog,",
        "written out in full (several `groups` make a mixed cluster; `between_groups` is the link",
        "between them):",
        "",
        *_yaml(written),
        "Of a group only `gpu` and `num_nodes` are needed: what is left out is the GPU's usual node's,",
        "and a warning says so. `bytes_per_s` is of one GPU and one direction; `island_gpus` are joined",
        "by the fast link; `host_memory_bytes` and `host_link_bytes_per_s` matter to offloading;",
        "`measured` holds curves that [`meshwright import`](cli.md#import) adds from nccl-tests.",
        "",
    ]


def _model() -> list[str]:
    """A model as `--model FILE` takes it."""
    return [
        "## Model file {#model-file}",
        "",
        "For `--model`: a Hugging Face `config.json` as it is, or a shape. `mixtral-8x7b` of the",
        "catalog, written out:",
        "",
        *_yaml(model_to_mapping(find_model("mixtral-8x7b"))),
        "Needed are `num_layers`, `hidden_size`, `ffn_hidden_size`, `num_attention_heads`, `vocab_size`.",
        "`moe` is left out of a dense model.",
        "",
    ]


def _profiles() -> list[str]:
    """Profiles: measured ones and calibrations."""
    measured: Any = measured_profile_schema()
    return [
        "## Measured profile {#measured-profile}",
        "",
        f"Format `{MEASURED}`; written by `meshwright profile` and `meshwright import`, taken by",
        "`--profile`. Times in seconds with their percentiles, sizes in bytes, and the machine they were",
        "taken on.",
        "",
        *fields_table(measured),
        "## Calibration {#calibration}",
        "",
        f"Format `{CALIBRATION}`; written by `meshwright calibrate --out`, taken by `--profile`. It holds",
        "the cluster's constants as logarithms of their ratio to the software stack's, what they leave",
        "over, and its findings.",
        "",
    ]


def _runs() -> list[str]:
    """The columns of measured runs, as the catalog explains them."""
    text = _COLUMNS.read_text(encoding="utf-8").partition("\n")[2]
    about = "For `meshwright calibrate` and `meshwright validate`: CSV with a header, one run a row."
    return ["## Runs {#runs}", "", about, "", text.rstrip(), ""]


def _answer() -> list[str]:
    """What `plan --json` and `--save-dir` write."""
    return [
        "## Answer {#answer}",
        "",
        "`plan --json`, and `answer.json` of `--save-dir`; `GET /v1/jobs/{id}/plans` has the same",
        "fields, page by page. Its plans are described [with the API](api.md#plan). `problem` is the",
        "question, as a problem file.",
        "",
        *fields_table(schema("AnswerView")),
    ]


def _yaml(document: object) -> list[str]:
    """A block of YAML."""
    plain = json.loads(json.dumps(document))
    return ["```yaml", yaml.safe_dump(plain, sort_keys=False, width=100).rstrip(), "```", ""]

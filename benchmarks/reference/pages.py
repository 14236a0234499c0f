"""docs/reference/api.md: every path of the API with its parameters and answers, from docs/openapi.json."""

from __future__ import annotations

import html
import inspect
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import typer
import yaml
from typer.core import TyperCommand, TyperGroup, TyperOption

from benchmarks.reference.measured_schema import measured_profile_schema
from meshwright.profiles.calibration import FORMAT as CALIBRATION
from meshwright.profiles.capabilities import launcher_capabilities, launcher_names
from meshwright.profiles.catalog import CATALOG
from meshwright.profiles.documents import DOCUMENT, FILE, MAX_DEPTH, PROBLEM, YAML_FILE
from meshwright.profiles.inline import cluster_to_mapping
from meshwright.profiles.library import find_cluster, find_model
from meshwright.profiles.measured.profile import FORMAT as MEASURED
from meshwright.profiles.model_shapes import model_to_mapping
from meshwright.profiles.optimizers import OPTIMIZERS
from meshwright.profiles.switches import RECOMPUTATION, Setting, Switch, switches
from meshwright.service.api import deps
from meshwright.service.api.openapi import schema_of
from meshwright.service.cli.examples import EXAMPLES
from meshwright.service.cli.main import app
from meshwright.service.report.formatting import sentence_case
from meshwright.service.report.glossary import glossary
from meshwright.service.requests.fields import OPTIONS
from meshwright.service.web.callers import DOCUMENT_FORM, QUESTION_FORM
from meshwright.solver.configuration import CONTEXT_MODES, OFFLOAD

# --------------------------------------------------------------------------------------------------
# docs/reference/cli.md: every command with its help, its options and its examples, from the code.


SHARED = tuple(OPTIONS)
_CLI_HEAD = """# Commands and options

Run `meshwright COMMAND --help` to see the same in your terminal. Read [exit
codes](../troubleshooting.md#exit-codes) to see how a command ended.

Run `meshwright --install-completion` to make your shell complete commands, options, and the names of
models, clusters, GPUs and launchers. `--show-completion` prints what it would install.

If you give an option that takes one value twice, you get an error.

## The problem {#the-problem}

You can give `plan`, `predict`, `explain`, `shapes` and `jobs submit` a [problem
file](files.md#problem-file), these options, or both. Options override the file. `plan` and `jobs submit`
take all of them. For other commands, their section names the options that they don't take, because these
would change nothing in the answer.
"""


def cli_page() -> str:
    """The whole page."""
    root = typer.main.get_command(app)
    commands = dict(_commands(root)) if isinstance(root, TyperGroup) else {}
    lines = [_CLI_HEAD, *_table(commands["plan"], shared=True)]
    for path, command in commands.items():
        lines += _section(path, command)
    return "\n".join(lines) + "\n"


def _commands(group: TyperGroup, prefix: str = "") -> Iterator[tuple[str, TyperCommand | TyperGroup]]:
    """Every command by its path, groups before their own."""
    for name, command in group.commands.items():
        if isinstance(command, TyperCommand | TyperGroup):
            yield f"{prefix}{name}", command
        if isinstance(command, TyperGroup):
            yield from _commands(command, f"{prefix}{name} ")


def _section(path: str, command: TyperCommand | TyperGroup) -> list[str]:
    """One command."""
    depth = "##" if " " not in path else "###"
    about = inspect.cleandoc(command.help or "").splitlines()
    lines = [f"\n{depth} meshwright {path} {{#{path.replace(' ', '-')}}}", "", *about, "", "```sh"]
    lines += [*EXAMPLES[path], "```", ""]
    if isinstance(command, TyperGroup):
        return lines
    taken = _of_the_problem(command)
    if taken:
        others = ", ".join(f"`--{name.replace('_', '-')}`" for name in SHARED if name not in taken)
        but = f" except {others}" if others else ""
        lines += [f"Give it the options of [the problem](#the-problem){but}, and:", ""]
    return lines + _table(command, shared=False)


def _table(command: TyperCommand | TyperGroup, *, shared: bool) -> list[str]:
    """Options and arguments: those that describe a problem, or the others."""
    context = command.make_context(command.name or "", [], resilient_parsing=True)
    taken = _of_the_problem(command)
    records = [
        parameter.get_help_record(context)
        for parameter in command.params
        if (parameter.name in taken) is shared and parameter.name != "help"
        if not (isinstance(parameter, TyperOption) and parameter.hidden)
    ]
    return _rows([record for record in records if record is not None])


def _of_the_problem(command: TyperCommand | TyperGroup) -> frozenset[str]:
    """Return the names of the options that describe a problem, of a command that takes one."""
    taken: frozenset[str] = getattr(command.callback, "of_the_problem", frozenset())
    return taken & {*SHARED}


def _rows(records: Sequence[tuple[str, str]]) -> list[str]:
    """A table; nothing where there is nothing."""
    if not records:
        return []
    rows = [f"| {_code(' '.join(name.split()))} | {_cell(about)} |" for name, about in records]
    return ["| | |", "|---|---|", *rows, ""]


def _code(text: str) -> str:
    """Return text as code for a table cell, with bars that need no backslash."""
    return f"`{text}`" if "|" not in text else f"<code>{_cell(html.escape(text, quote=False))}</code>"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "&#124;")


# --------------------------------------------------------------------------------------------------
# docs/glossary.md: the words of tables and reports, from the list that the report shows on hover.


_GLOSSARY_HEAD = """---
tags: [vpp, abbreviations, terms]
---
# Glossary

Look up the words, columns and terms that you meet in tables, reports and files. In the report, hover
over a word to see the same text.
"""


def glossary_page() -> str:
    """The whole page."""
    return "\n".join(
        [_GLOSSARY_HEAD, *(line for title, part in glossary().items() for line in _part(title, part))]
    )


def _part(title: str, meanings: Mapping[str, str]) -> list[str]:
    """One list."""
    rows = [f"| {name} | {sentence_case(meaning)} |" for name, meaning in meanings.items()]
    return [f"## {title}", "", "| | |", "|---|---|", *rows, ""]


# --------------------------------------------------------------------------------------------------
# Tables of the fields of a JSON schema.


Schema = Mapping[str, Any]

_OPENAPI = Path(__file__).resolve().parents[2] / "docs" / "openapi.json"
_SCHEMA_LIMITS = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "exclusiveMaximum": "< {}",
}
_HUGE = 2**31 - 1  # a limit of the type, which says nothing about the field


@cache
def openapi() -> dict[str, Any]:
    """docs/openapi.json, which is tested to be what the service serves."""
    document: dict[str, Any] = json.loads(_OPENAPI.read_text(encoding="utf-8"))
    return document


def schema(name: str) -> Schema:
    """One of the API's objects."""
    found: Schema = openapi()["components"]["schemas"][name]
    return found


def fields_table(of: Schema) -> list[str]:
    """A row for each field: name, type with limits, default, what it is."""
    required = of.get("required", ())
    rows = [_row(name, field, is_required=name in required) for name, field in of["properties"].items()]
    return ["| field | type | default | |", "|---|---|---|---|", *rows, ""]


def _row(name: str, field: Schema, *, is_required: bool) -> str:
    """One field."""
    default = "required" if is_required else _default(field)
    about = _cell(str(field.get("description", "")))
    return f"| `{name}` | {_kind(field)} | {default} | {about} |"


def _default(field: Schema) -> str:
    """The default as it is written in JSON."""
    default = field.get("default")
    return "–" if default in (None, [], {}) else f"`{json.dumps(default)}`"


def _kind(field: Schema) -> str:
    """The type with its limits; links to objects of their own stay names."""
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    if "enum" in field or "const" in field:
        return ", ".join(f"`{value}`" for value in field.get("enum", [field.get("const")]))
    if "anyOf" in field:
        kinds = [_kind(one) for one in field["anyOf"] if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if field.get("type") == "array":
        return f"list of {_kind(field.get('items', {}))}"
    limits = [
        text.format(f"{field[key]:g}")
        for key, text in _SCHEMA_LIMITS.items()
        if abs(field.get(key, _HUGE)) < _HUGE
    ]
    return " ".join([str(field.get("type", "any")), *limits])


_API_HEAD = """# REST API

These tables come from the OpenAPI description: [openapi.json](../openapi.json). Your service has the same
at `/openapi.json`. You get errors as `application/problem+json` (RFC 9457) with a stable `type`, a
sentence in `detail`, and one entry in `errors` for each wrong field. If your service has keys, send one as
`Authorization: Bearer KEY`.

## How much a body may hold

{limits}

If you send more bytes, you get a 413. For more values, more keys or more than {depth} levels, you
get a 422. Both state what to do. A body of more than {small} KiB waits its turn: {problems} problems and
{documents} documents are in work at a time. After {wait:g} s you get a 503 with `Retry-After`. If your body
comes slower than {slow} KiB a second, or not within {upload:g} s, you get a 408. Tenants take turns, and
one holds at most two thirds of them. The same counts for {computing} predictions, re-plans, reports and
calibrations at a time, and for {following} requests that follow a job (`wait`, `/events`), which get a 503
at once.
"""
_LIMITS = {
    "problems, and every other body": PROBLEM,
    "`POST /v1/profiles`, `PUT /v1/models/{name}`, `PUT /v1/clusters/{name}`": DOCUMENT,
    "forms of the pages: `POST /jobs`, `POST /own`, `POST /keys`": QUESTION_FORM,
    "forms of the pages: `POST /models`, `POST /clusters`, `POST /profiles`": DOCUMENT_FORM,
    "files of the command line in JSON": FILE,
    "files of the command line in YAML": YAML_FILE,
}
_ANSWERS = ("AnswerView", "Plan", "Configuration", "Prediction", "JobDetail", "ProblemView")


def api_page() -> str:
    """The whole page."""
    lines = [_head()]
    for path, operations in openapi()["paths"].items():
        for method, operation in operations.items():
            lines += _operation(method.upper(), path, operation)
    lines.append("## What comes back\n")
    for name in _ANSWERS:
        lines += [
            f"### {name}",
            "",
            str(schema(name).get("description", "")),
            "",
            *fields_table(schema(name)),
        ]
    return "\n".join(lines) + "\n"


def _head() -> str:
    """What holds for every path."""
    table = ["| what | bytes | values | keys of one object |", "|---|---|---|---|"]
    for what, limits in _LIMITS.items():
        size = f"{limits.max_bytes // 2**10:,} KiB".replace(",", " ")
        counts = (f"{count:,}".replace(",", " ") for count in (limits.max_values, limits.max_keys))
        table.append(f"| {what} | {size} | {' | '.join(counts)} |")
    return _API_HEAD.format(
        limits="\n".join(table),
        depth=MAX_DEPTH,
        small=deps.SMALL_BYTES // 2**10,
        problems=deps.MAX_PROBLEMS,
        documents=deps.MAX_DOCUMENTS,
        computing=deps.MAX_COMPUTING,
        following=f"{deps.MAX_FOLLOWING:,}",
        wait=deps.MAX_WAIT_FOR_TURN_S,
        upload=deps.MAX_UPLOAD_S,
        slow=deps.MIN_BYTES_PER_S // 2**10,
    )


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> list[str]:
    """One operation."""
    about = str(operation.get("description") or operation.get("summary", ""))
    lines = [f"## {method} {path}", "", about, ""]
    parameters = operation.get("parameters", [])
    if parameters:
        lines += ["| parameter | in | |", "|---|---|---|", *map(_parameter, parameters), ""]
    body = operation.get("requestBody", {}).get("content", {})
    lines += [f"Body: {_media(body)}.", ""] if body else []
    answers = [
        f"{code} {_media(answer.get('content', {}))}" for code, answer in operation["responses"].items()
    ]
    scopes = [scope for one in operation.get("security", []) for scope in one.get("key", [])]
    needs = f" If your service has keys, use one with scope `{scopes[0]}`." if scopes else ""
    return [*lines, f"Answers: {', '.join(map(str.strip, answers))}.{needs}", ""]


def _parameter(parameter: Mapping[str, Any]) -> str:
    """One parameter."""
    about = _cell(str(parameter.get("description", "")))
    return f"| `{parameter['name']}` | {parameter['in']} | {about} |"


def _media(content: Mapping[str, Any]) -> str:
    """The object of a body, or its media type; faults are said once for all."""
    for media, body in content.items():
        if media == "application/problem+json":
            return ""
        name = str(body.get("schema", {}).get("$ref", "")).rpartition("/")[2]
        return f"`{name}`" if name else f"`{media}`"
    return ""


# --------------------------------------------------------------------------------------------------
# docs/reference/files.md: the files that the product reads and writes.


_COLUMNS = CATALOG / "runs" / "columns.md"
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


def schema_file(name: str) -> str:
    """Return the JSON Schema of a problem or fleet file."""
    return json.dumps(schema_of(openapi(), name), indent=1, ensure_ascii=False) + "\n"


def files_page() -> str:
    """The whole page."""
    title = "# Problem, cluster and model files, and their JSON Schema"
    parts = [title, "", *_problem(), *_cluster(), *_model(), *_profiles(), *_runs(), *_answer()]
    return "\n".join(parts) + "\n"


def _problem() -> list[str]:
    """The problem file, from the API's schema: they are the same."""
    lines = [
        "## Problem file {#problem-file}",
        "",
        "Write JSON or YAML, the same object that `POST /v1/jobs` takes. An unknown field is an error with",
        "its place. Read [what a request may ask](../requests.md) for the meaning.",
        "",
        _EXAMPLE,
        "Your server has the JSON Schemas of problem and fleet files at `/schemas/problem.json` and",
        "`/schemas/fleet.json` (copies: [problem](problem.schema.json), [fleet](fleet.schema.json)).",
        "Name one to your editor, and it completes names and marks mistakes. In YAML use the comment",
        "`# yaml-language-server: $schema=http://127.0.0.1:8420/schemas/problem.json`, in JSON a key",
        '`"$schema"` with the address, which nothing else reads.',
        "",
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
        "Use it with `--cluster`, or as `cluster` of a problem. You see `{name: dgx-h100, num_nodes: 4}`",
        "of the catalog, written out in full (several `groups` make a mixed cluster, and `between_groups`",
        "is the link between them):",
        "",
        *_yaml(written),
        "In a group you need only `gpu` and `num_nodes`. For everything else you get the GPU's usual node,",
        "and a warning states it. You can also state:",
        "",
        "- `gpu`: a name of `meshwright gpus`, or the figures of another GPU. These need `memory_gib`,",
        "  `hbm_gb_per_s` and dense `peak_tflops` by precision. You can add `name`, `power_watts`, links,",
        "  `gpus_per_node` and an `architecture` of the catalog ([a GPU of your",
        "  own](../howto/own-gpu.md)).",
        "- `bytes_per_s` (or `gb_per_s`): the rate for one GPU and one direction.",
        "- `kind` of a network: `ethernet` means TCP sockets, `roce` and `infiniband` RDMA",
        "  ([what each costs](../howto/own-cluster.md#infiniband-roce-or-ethernet)).",
        "- `island_gpus`: the GPUs that the fast link joins.",
        "- For offloading: `host_memory_bytes`, `host_link_bytes_per_s`, `host_memory_bytes_per_s`,",
        "  `nvme_bytes`, `nvme_read_bytes_per_s` and `nvme_write_bytes_per_s`. The link counts for one",
        "  GPU, all others for a whole node.",
        "- `measured`: curves that [`meshwright import`](cli.md#import) adds from nccl-tests.",
        "",
        "Use `links` of a group, or next to a catalog name, if the links between your nodes differ",
        "([how-to](../howto/links-that-differ.md)):",
        "",
        "- `bytes_per_s` and `latency_s`: each a list of rows with a figure for every pair of nodes (for",
        "  one GPU, from the row's node to the column's). The diagonal is not read.",
        "- `measured: true` if you give measured bandwidths and not line rates.",
        "- `asymmetric: true` if the directions of a pair differ.",
        "- `hosts`: the names of the nodes.",
        "- `levels`: each with the `nodes` under a switch and their `oversubscription`.",
        "- `rail_only: true` for a network without a spine.",
        "- `order`: the node in each place, if you don't mean the listed order.",
        "",
    ]


def _model() -> list[str]:
    """A model as `--model FILE` takes it."""
    return [
        "## Model file {#model-file}",
        "",
        "Use it with `--model`: an unchanged Hugging Face `config.json`, or a shape. You see",
        "`mixtral-8x7b` of the catalog, written out:",
        "",
        *_yaml(model_to_mapping(find_model("mixtral-8x7b"))),
        "You need `num_layers`, `hidden_size`, `ffn_hidden_size`, `num_attention_heads` and `vocab_size`.",
        "Leave out `moe` for a dense model.",
        "",
    ]


def _profiles() -> list[str]:
    """Profiles: measured ones and calibrations."""
    measured: Any = measured_profile_schema()
    return [
        "## Measured profile {#measured-profile}",
        "",
        f"Format `{MEASURED}`. Write it with `meshwright profile`, and use it with",
        "`--profile`. It has times in seconds with their percentiles, sizes in bytes, and the machine that",
        "you measured.",
        "",
        *fields_table(measured),
        "## Calibration {#calibration}",
        "",
        f"Format `{CALIBRATION}`. Write it with `meshwright calibrate --out`, and use it with `--profile`.",
        "It holds the cluster's constants as logarithms of their ratio to the software stack's, their",
        "residual, and its findings.",
        "",
    ]


def _runs() -> list[str]:
    """The columns of measured runs, as the catalog explains them."""
    text = _COLUMNS.read_text(encoding="utf-8").partition("\n")[2]
    about = "For `meshwright calibrate` and `meshwright validate`, write CSV with a header, one run a row."
    return ["## Runs {#runs}", "", about, "", text.rstrip(), ""]


def _answer() -> list[str]:
    """What `plan --json` and `--save-dir` write."""
    return [
        "## Answer {#answer}",
        "",
        "You get it from `plan --json`, and as `answer.json` in `--save-dir`. `GET /v1/jobs/{id}/plans`",
        "has the same fields, page by page. Read [about plans](api.md#plan) in the API. `problem` is your",
        "question, as a problem file.",
        "",
        *fields_table(schema("AnswerView")),
    ]


def _yaml(document: object) -> list[str]:
    """A block of YAML."""
    plain = json.loads(json.dumps(document))
    return ["```yaml", yaml.safe_dump(plain, sort_keys=False, width=100).rstrip(), "```", ""]


# --------------------------------------------------------------------------------------------------
# docs/reference/switches.md: which launcher takes which setting of a switch, and the line that says so.


_SWITCHES_HEAD = """\
# Switches

Run `make reference` to make this page from code. The search chooses every switch that the launcher has,
among the settings that a stock installation of the launcher runs. A switch that you state in
`workload.framework_options` keeps its value. Add the settings that need a package with `search.allow`
(`--allow`): name a switch to add its settings, or use `switches` to add all of them. With `none` only the
switches that you name are searched. A plan that needs a package and is more than 1 % faster is listed
after the others with the package's name. A setting that another one beats is not searched where that one
is legal: under no configuration is its step shorter or its memory smaller
([why, and what is searched](../adr/0006-switches-are-searched-as-variants.md)).

For every launcher, each pair of settings of two switches is either refused or exported, and an exported
pair has the same price when it is read back. `tests/property/test_priced_is_exported.py` checks a few
pairs, and all pairs if you set `MESHWRIGHT_TEST_DRAWS=1000`. `make launchers` gives some to the launchers'
parsers.

"""


def switches_page() -> str:
    """The page."""
    own = [_switch_section(switch) for switch in switches().values()]
    sections = [
        *own,
        _context_section(),
        _weight_shards_section(),
        _standalone_section(),
        _offload_section(),
        _optimizer_section(),
    ]
    return _SWITCHES_HEAD + "\n".join(sections)


def _context_section() -> str:
    """How context-parallel ranks share attention: a variable of the plan."""
    able = {name: launcher_capabilities(name) for name in launcher_names()}
    can = {name: one.context_parallel_modes if one.context_parallel else () for name, one in able.items()}
    return "\n".join([
        "## `context_parallel_mode` {#context}", "",
        "How context-parallel ranks share attention: a variable of every configuration. The ring and the",
        "exchange of heads are always searched. Allow, pin or limit `context_parallel_mode` to search both",
        "together (`all_to_all_4+ring`: 4 neighbours exchange heads for tokens, and rings remain between",
        "such groups). `switches` does not include it.", "",
        *_who_can(can, CONTEXT_MODES), "",
    ])  # fmt: skip


def _who_can(can: Mapping[str, Collection[str]], words: Sequence[str]) -> list[str]:
    """A table: which launcher can what."""
    return [
        f"| | {' | '.join(can)} |",
        f"|---|{'---|' * len(can)}",
        *(
            f"| `{word}` | {' | '.join('yes' if word in one else '–' for one in can.values())} |"
            for word in words
        ),
    ]


def _weight_shards_section() -> str:
    """Weights that data-parallel ranks share: two variables of the plan."""
    able = {name: launcher_capabilities(name) for name in launcher_names()}
    conditions = [
        f"- {name}: {', '.join(f'`{rule}`' for rule in one.weight_shard_constraints)}"
        + (f", no {', no '.join(one.weight_shards_without)}" if one.weight_shards_without else "")
        for name, one in able.items()
        if one.weight_shards
    ]
    return "\n".join([
        "## `weight_shards` {#weight-shards}", "",
        "Data-parallel ranks may share weights: each stores a part of every matrix and gathers the whole",
        "for its products (`weight_shard_size` ranks for dense matrices, `expert_weight_shard_size` for",
        "experts). Allow `weight_shards` to search it (`switches` does not include it).",
        "Conditions of the launchers that have it:", "",
        *conditions, "",
        "Plans with weight shards export for Megatron-Bridge as release 0.7. Pull request 5569 of that",
        "release passes it to Megatron-Core.", "",
    ])  # fmt: skip


def _standalone_section() -> str:
    """Stages without a layer, for the embedding and the head."""
    able = {name: launcher_capabilities(name) for name in launcher_names()}
    rows = {
        "the embedding, the head": [one.standalone_stages for one in able.values()],
        "prediction layers": [one.standalone_prediction for one in able.values()],
    }
    return "\n".join([
        "## `standalone_stages` {#standalone}", "",
        "The embedding may have the model's first chunk to itself, and the head (with loss and prediction",
        "layers) its last one: `stage_layers` then begins or ends with 0. It ends with 0, 0 where layers",
        "of multi-token prediction have the chunk before that (`…|m|L` of Megatron's layout). Allow",
        "`standalone_stages` to search such splits with the others (`switches` does not include it), for",
        "pipelines that recompute no layers or all of them. If a rank holds several chunks, only",
        "[some splits](../how-the-search-works.md#what-is-decided) are searched, and a better one may",
        "exist. A split that you pin may begin or end with 0 anyway.", "",
        f"| | {' | '.join(able)} |",
        "|---" * (len(able) + 1) + "|",
        *(f"| {name} | {' | '.join('yes' if one else '–' for one in row)} |" for name, row in rows.items()),
        "",
    ])  # fmt: skip


def _offload_section() -> str:
    """What may leave the GPU: a variable of the plan, searched where ``offload`` is allowed."""
    able = {name: launcher_capabilities(name) for name in launcher_names()}
    conditions = [
        f"- {name}: {text}"
        for name, one in able.items()
        for text in (*(f"`{rule}`" for rule in one.constraints if "offload" in rule), one.offload_note)
        if text
    ]
    return "\n".join([
        "## `offload` {#offload}", "",
        "What leaves the GPU, to host memory or to NVMe: a variable of every configuration. Allow",
        "`offload` to search it (`switches` does not include it). Find the sources next to each launcher's",
        "entry in `profiles/catalog/frameworks/capabilities.yaml`.", "",
        *_who_can({name: one.offload for name, one in able.items()}, OFFLOAD[1:]), "",
        *conditions, "",
    ])  # fmt: skip


def _optimizer_section() -> str:
    """List the optimizers of each launcher, and why some have no GaLore."""
    able = {name: launcher_capabilities(name) for name in launcher_names()}
    projecting, reasons = {name for name, one in OPTIMIZERS.items() if one.low_rank}, dict[str, list[str]]()
    for name, one in able.items():
        if one.galore_note and not projecting <= {*one.optimizers}:
            reasons.setdefault(one.galore_note, []).append(name)
    return "\n".join([
        "## `optimizer` {#optimizer}", "",
        "Optimizers for full training: the one that you ask for, and others that you allow. Find the",
        "sources next to each launcher's entry in `profiles/catalog/frameworks/capabilities.yaml`.", "",
        *_who_can({name: one.optimizers or OPTIMIZERS for name, one in able.items()}, [*OPTIMIZERS]), "",
        "Why some launchers have no GaLore, or only some of its forms:", "",
        *(f"- {', '.join(names)}: {why}" for why, names in reasons.items()), "",
    ])  # fmt: skip


def _switch_section(switch: Switch) -> str:
    """Tabulate a switch: settings in rows, launchers in columns, or one column if all launchers agree."""
    columns = {name: name for name in sorted(switch.launchers)}
    if columns.keys() == set(launcher_names()) and all(
        len({*one.launchers.values()}) == 1 for one in switch.settings
    ):
        columns = {"every launcher": min(columns)}
    lines = [
        f"## `{switch.name}`",
        "",
        f"{switch.meaning}.",
        *(
            [f"Allow `{switch.beside}` to search it (`switches` does not include it)."]
            if switch.beside
            else []
        ),
        "",
        f"| setting | where | beats | {' | '.join(columns)} |",
        "|---|---|---|" + "---|" * len(columns),
    ]
    for one in switch.settings:
        cells = [one.launchers.get(name, "–") for name in columns.values()]
        beaten = ", ".join(one.beats) or "–"
        words = [_setting_options(one), _setting_where(one) or "anywhere", beaten, *cells]
        lines.append(f"| {' | '.join(words)} |")
    reasons = dict[str, list[str]]()
    for launcher, why in switch.lacking.items():
        reasons.setdefault(why, []).append(launcher)
    for why, names in reasons.items():
        lines += ["", f"{' and '.join(names)}: {why}."]
    return "\n".join([*lines, ""])


def _setting_options(setting: Setting) -> str:
    """The name of a setting, with the options that it states."""
    words = (f"{name}: {str(value).lower()}" for name, value in setting.options.items())
    return f"**{setting.name}** `{', '.join(words)}`"


def _setting_where(setting: Setting) -> str:
    """Models, GPUs and recomputation that it goes with."""
    parts = [
        *setting.needs,
        *(f"searched with {need}" for need in setting.tried),
        *([f"on {', '.join(setting.gpus)}"] if setting.gpus else []),
    ]
    if setting.recompute != RECOMPUTATION:
        parts.append(f"recomputation {' or '.join(setting.recompute)}")
    if setting.only:
        parts.append(f"only `{setting.only}`")
    return "; ".join(parts)

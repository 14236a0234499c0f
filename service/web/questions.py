"""The fields of a question: what is asked first, and what is folded away."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from meshwright.launchers.reading.registry import reader_names
from meshwright.launchers.registry import launcher_names
from meshwright.launchers.table import launchers
from meshwright.profiles.frameworks import framework_names
from meshwright.profiles.optimizers import OPTIMIZERS
from meshwright.profiles.switches import EVERY_SWITCH, NO_SWITCH
from meshwright.service.report.formatting import ALSO_TRY
from meshwright.service.requests.fields import DEFAULT_PRIORITY, FIELDS, Choices, FormQuestion, RequestField
from meshwright.service.requests.jobs import MAX_PRIORITY
from meshwright.service.requests.schema import TYPES, words_of
from meshwright.service.web.fields import FormField
from meshwright.solver.configuration import RECOMPUTE, SCHEDULES, VARIABLES
from meshwright.solver.problem import ALLOWED, STANDALONE_STAGES, WEIGHT_SHARDS


def _words(row: RequestField) -> Choices:
    kind = TYPES[row.type] if isinstance(row.type, str) else row.type
    return tuple((word, word) for word in words_of(kind))


def _titled(words: Iterable[str]) -> Choices:
    return tuple((word, TITLES.get(word, word)) for word in words)


def _open(words: tuple[str, ...]) -> Choices:
    return (("", "any"), *((word, word.replace("_", " ")) for word in words))


# How people call what requests name by a word.
TITLES: Mapping[str, str] = {
    **{name: row.choice for name, row in launchers().items()},
    "adamw": "AdamW",
    "adamw-bf16": "AdamW, bf16 states",
    "adamw-pure-bf16": "AdamW, bf16 only",
    "adamw-8bit": "8-bit AdamW",
    "adamw-8bit-bf16": "8-bit AdamW, bf16 only",
    "adamw-paged": "Paged AdamW",
    "adamw-paged-bf16": "Paged AdamW, bf16 weights",
    "adamw-8bit-paged": "Paged 8-bit AdamW",
    "adamw-8bit-paged-bf16": "Paged 8-bit AdamW, bf16 only",
    "galore": "GaLore",
    "galore-8bit": "8-bit GaLore",
    "galore-pure-bf16": "GaLore, bf16 only",
    "galore-8bit-bf16": "8-bit GaLore, bf16 only",
    "galore-pure-bf16-layerwise": "GaLore, bf16, by layer",
    "galore-8bit-bf16-layerwise": "8-bit GaLore, bf16, by layer",
    "apollo": "APOLLO",
    "apollo-pure-bf16": "APOLLO, bf16 only",
    "apollo-pure-bf16-layerwise": "APOLLO, bf16, by layer",
    "adam-mini": "Adam-mini",
    "adam-mini-pure-bf16": "Adam-mini, bf16 only",
    "badam": "BAdam",
    "muon": "Muon",
    "muon-pure-bf16": "Muon, bf16 only",
    "sgd-momentum": "SGD with momentum",
    "offload": "Offload to the CPU",
    "fp8": "FP8 matrix products",
    STANDALONE_STAGES: "Stages for embedding and head alone",
    "context_parallel_mode": "Context parallelism by all-to-all",
    WEIGHT_SHARDS: "Weights shared by data-parallel ranks",
    "moe_dispatcher": "Expert dispatchers (DeepEP, …)",
    "overlap_experts": "Overlap of expert communication",
    "cuda_graph": "CUDA graphs",
    "recompute_modules": "Recomputation of single modules",
    "gradient_dtype": "Gradients in bf16",
    "overlap_tensor": "Async tensor parallelism",
    "optimizer_offload_fraction": "Offload of part of the optimizer",
    "loss_kernel": "Loss in parts",
    "quantizes_experts": "Experts in 4 bits",
    "torch_compile": "Layers compiled by torch",
    "super_offload": "SuperOffload",
    "cpu_update_interval": "ZenFlow",
    "dynamic_context_parallel": "Context parallelism by document",
    "secondary_shards": "ZeRO++ secondary shards (hpZ)",
    "quantized_weights": "ZeRO++ 8-bit weight gathers (qwZ)",
    "quantized_gradients": "ZeRO++ 4-bit gradients (qgZ)",
    "reduce_bucket": "Sizes of gradient buckets",
    "power_limit_w": "Power limits of GPUs",
}
_CHOICES: Mapping[str, Choices] = {
    "launcher": (
        ("any", "compare all"),
        *sorted(_titled(launcher_names()), key=lambda one: one[1].lower()),
        ("none", "none: no launcher's limits"),
    ),
    "stack": tuple((name, name) for name in framework_names()),
    "workload.optimizer": _titled(OPTIMIZERS),
}
_AT = {"cluster.nodes": ("cluster", "name")}  # which takes such words as well


def _asked(row: RequestField, question: FormQuestion) -> FormField:
    chosen = question.kind in ("choice", "checks")
    choices = (question.choices or _CHOICES.get(row.path) or _words(row)) if chosen else ()
    plain = (
        isinstance(row.default, str | int | float) and row.default not in (0, True) and not question.unset
    )
    return FormField(
        name=question.name or row.name,
        at=_AT.get(row.path, tuple(row.path.split("."))),
        label=question.label,
        kind=question.kind,
        hint=question.hint,
        default=question.default or (row.default_words if plain else ""),
        choices=((("", question.unset), *choices) if question.unset else choices),
        suggestions=question.suggestions,
        required=question.required,
        placeholder=question.placeholder,
        instead_of=tuple(tuple(path.split(".")) for path in question.instead_of),
    )


ASKED = {row.path: _asked(row, row.question) for row in FIELDS if row.question}


def _part(part: str) -> tuple[FormField, ...]:
    asked = [ASKED[row.path] for row in FIELDS if row.question and row.question.part == part]
    return tuple(sorted(asked, key=lambda one: one.kind == "json"))  # the tallest below the others


FIRST = tuple(
    ASKED[path]
    for path in (
        "model.name", "cluster.name", "cluster.num_gpus", "workload.lora_rank", "workload.base_precision",
        "workload.global_batch_size", "workload.seq_length", "workload.precision", "workload.optimizer",
        "launcher",
    )
)  # fmt: skip
NODES, ADAPTERS, DOCUMENTS = _part("nodes"), _part("adapters"), _part("documents")
SEARCH, COSTS = _part("search"), _part("costs")
(CONFIG,) = _part("config")


def _allowed(name: str, label: str, words: Iterable[str], hint: str = "") -> FormField:
    at = ("search", "allow")
    return FormField(name=name, at=at, label=label, kind="checks", choices=_titled(words), hint=hint)


_NUMERICS = ("fp8", "gradient_dtype", "quantized_weights", "quantized_gradients")
_MEMORY = (
    "offload",
    "optimizer_offload_fraction",
    "super_offload",
    "cpu_update_interval",
    "secondary_shards",
)
ALLOW_TITLE = f"{ALSO_TRY}: offload, fp8, switches"
ALLOW = (
    FormField(
        name="switches",
        at=("search", "allow"),
        label="Switches of the launcher",
        kind="added",
        choices=(
            ("", "those that a stock launcher runs"),
            (EVERY_SWITCH, "all, even with extra packages"),
            (NO_SWITCH, "none, except those below"),
        ),
    ),
    _allowed("allow-memory", "To save GPU memory", _MEMORY),
    _allowed("allow-optimizer", "Other optimizers (different numerics)", OPTIMIZERS),
    _allowed("allow-numerics", "Lower precision (different numerics)", _NUMERICS),
    _allowed(
        "allow",
        "Other layouts and switches",
        (
            word
            for word in ALLOWED
            if word not in {*_MEMORY, *_NUMERICS, *OPTIMIZERS, EVERY_SWITCH, NO_SWITCH}
        ),
    ),
)
PINS = (
    *(
        FormField(
            name=f"pin-{one.short}",
            at=("search", "pin", one.name),
            label=one.meaning.partition(":")[0].removesuffix(" size"),
            kind="number",
            placeholder="any",
        )
        for one in VARIABLES.values()
        if one.in_tables
    ),
    FormField(
        name="pin-recompute",
        at=("search", "pin", "recompute_granularity"),
        label="Recompute",
        kind="choice",
        choices=_open(RECOMPUTE),
    ),
    FormField(
        name="pin-schedule",
        at=("search", "pin", "pipeline_schedule"),
        label="Schedule",
        kind="choice",
        choices=_open(SCHEDULES),
    ),
)
SIZES = (*PINS, *_part("sizes"))
_ENDS = {0: " first", MAX_PRIORITY: " last"}
RUN = (
    FormField(
        name="sweep",
        at=("sweep",),
        label="Several questions at once",
        kind="values",
        placeholder="global_batch_size=256,512",
        hint="Searches every combination. One name on each line: num_nodes, cluster, tp, …",
    ),
    *_part("run"),
    FormField(
        name="priority",
        at=("priority",),
        label="Priority",
        kind="choice",
        default=str(DEFAULT_PRIORITY),
        choices=tuple((str(at), f"{at}{_ENDS.get(at, '')}") for at in range(MAX_PRIORITY + 1)),
        hint="among your own jobs",
    ),
    FormField(
        name="deadline_s",
        at=("deadline_s",),
        label="Start within",
        kind="number",
        hint="seconds, then it expires",
    ),
    FormField(
        name="labels",
        at=("labels",),
        label="Labels",
        kind="labels",
        placeholder="team=nlp",
        hint="to find the job by",
    ),
)
FRESH = FormField(
    name="fresh", at=("fresh",), label="Search again", kind="check", hint="even if there is a stored answer"
)
QUESTION = (*FIRST, CONFIG, *NODES, *ADAPTERS, *DOCUMENTS, *SEARCH, *ALLOW, *SIZES, *COSTS, *RUN)

# A launch file contains most of it.
LAUNCH_FILE = FormField(
    name="launch_text",
    at=("launch_file", "text"),
    label="Launch file",
    kind="long",
    required=True,
    hint="A script, a JSON, YAML or TOML file: drop it, or paste it.",
)
OWN_FILE = (
    LAUNCH_FILE,
    FormField(
        name="launch_name",
        at=("launch_file", "name"),
        label="Its name",
        hint="Only where its form is not recognised, e.g. config.yaml",
    ),
    FormField(
        name="launch_launcher",
        at=("launch_file", "launcher"),
        label="Written for",
        kind="choice",
        choices=(("", "recognise it"), *((name, name) for name in reader_names())),
    ),
)
OWN_CLUSTER = (
    ASKED["cluster.name"],
    replace(ASKED["cluster.num_nodes"], hint="if the file does not state it"),
)
OWN_REST = tuple(
    FormField(
        name=one.name,
        at=one.at,
        label=one.label,
        kind=one.kind,
        suggestions=one.suggestions,
        choices=(("", "from the file"), *one.choices) if one.choices else (),
    )
    for one in FIRST
    if one.at[0] in ("model", "workload")
)
OWN = (*OWN_FILE, *OWN_CLUSTER, *OWN_REST)

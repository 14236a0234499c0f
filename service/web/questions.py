"""The fields of a question: what is asked first, and what is folded away."""

from __future__ import annotations

from typing import get_args

from meshwright.launchers.reading.registry import reader_names
from meshwright.launchers.registry import launcher_names
from meshwright.profiles.sequences import BATCHINGS
from meshwright.service.jobs.states import DEFAULT_PRIORITY
from meshwright.service.requests.jobs import MAX_PRIORITY
from meshwright.service.requests.schema import WorkloadRequest
from meshwright.service.web.fields import FormField
from meshwright.solver.configuration import RECOMPUTE, SCHEDULES, VARIABLES, Variable
from meshwright.solver.problem import ALLOWED

Choices = tuple[tuple[str, str], ...]


def _words(name: str) -> Choices:
    annotation = WorkloadRequest.model_fields[name].annotation
    return tuple((str(word), str(word)) for word in get_args(annotation))


def _open(words: tuple[str, ...]) -> Choices:
    return (("", "any"), *((word, word.replace("_", " ")) for word in words))


_LAUNCHERS: Choices = (
    *((name, name) for name in launcher_names()),
    ("any", "any of these"),
    ("none", "none"),
)
_OBJECTIVES: Choices = (
    ("step_time", "shortest step"),
    ("tokens_per_s_per_gpu", "most tokens per second and GPU"),
    ("gpu_hours_per_token", "fewest GPU hours per token"),
    ("energy_per_token", "least energy per token"),
)
_CERTIFY: Choices = (
    ("cp-sat", "best plan"),
    ("cp-sat-all", "every plan"),
    ("none", "no plan"),
)
_PRIORITIES: Choices = tuple(
    (str(number), f"{number}{' first' if number == 0 else ' last' if number == MAX_PRIORITY else ''}")
    for number in range(MAX_PRIORITY + 1)
)

MODEL = FormField(
    name="model",
    at=("model", "name"),
    label="Model",
    suggestions="models",
    required=True,
    default="llama-3.1-70b",
    hint="catalog name, Hugging Face id, or one of your own",
)
CONFIG = FormField(
    name="config",
    at=("model",),
    label="config.json of a model on Hugging Face",
    kind="json",
    hint="Drop the file, or paste it. It takes the place of the name above.",
)
CLUSTER = FormField(
    name="cluster",
    at=("cluster", "name"),
    label="Cluster",
    suggestions="clusters",
    required=True,
    default="dgx-h100",
    hint="node type",
)
NODES = FormField(name="num_nodes", at=("cluster", "num_nodes"), label="Nodes", kind="number", default="16")
BATCH = FormField(
    name="batch",
    at=("workload", "global_batch_size"),
    label="Batch",
    kind="numbers",
    default="512",
    hint="sequences per step; several with commas",
    required=True,
)
SEQUENCE = FormField(
    name="seq_length",
    at=("workload", "seq_length"),
    label="Sequence length",
    kind="number",
    default="8192",
    hint="tokens",
    required=True,
)
DOCUMENTS = (
    FormField(
        name="lengths",
        at=("workload", "lengths", "percentiles"),
        label="Tokens of a document",
        kind="named",
        placeholder="p50=900, p90=4000, p100=8192",
        hint="percentiles; p100, the longest, must be among them",
    ),
    FormField(
        name="batching",
        at=("workload", "lengths", "batching"),
        label="Sequences are made by",
        kind="choice",
        choices=(("", "full length"), *((word, word) for word in BATCHINGS)),
    ),
)
PRECISION = FormField(
    name="precision",
    at=("workload", "precision"),
    label="Precision",
    kind="choice",
    default="bf16",
    choices=_words("precision"),
)
OPTIMIZER = FormField(
    name="optimizer",
    at=("workload", "optimizer"),
    label="Optimizer",
    kind="choice",
    default="adamw",
    choices=_words("optimizer"),
)
LAUNCHER = FormField(
    name="launcher",
    at=("launcher",),
    label="Launcher",
    kind="choice",
    choices=(("", "automatic"), *_LAUNCHERS),
    hint="framework to run; automatic: the first that can express the model",
)


def _pin(variable: Variable) -> FormField:
    """A variable with one value only, called as its meaning begins: "Tensor parallel size: GPUs that …"."""
    return FormField(
        name=f"pin-{variable.short}",
        at=("search", "pin", variable.name),
        label=variable.meaning.partition(":")[0].removesuffix(" size"),
        kind="number",
        placeholder="any",
    )


PINS = (
    *(_pin(one) for one in VARIABLES.values() if one.in_tables),
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
LIMITS = (
    FormField(
        name="objective",
        at=("search", "objective"),
        label="Look for",
        kind="choice",
        default="step_time",
        choices=_OBJECTIVES,
    ),
    FormField(
        name="top_k",
        at=("search", "top_k"),
        label="Plans",
        kind="number",
        default="10",
        hint="how many are ranked",
    ),
    FormField(
        name="time_limit_s",
        at=("search", "time_limit_s"),
        label="Time limit",
        kind="number",
        default="30",
        hint="seconds of search",
    ),
    FormField(
        name="certify",
        at=("search", "certify"),
        label="Certify",
        kind="choice",
        default="cp-sat",
        choices=_CERTIFY,
        hint="confirm the search's proof with a second solver",
    ),
    FormField(
        name="risk",
        at=("search", "max_out_of_memory_probability"),
        label="Accepted risk",
        kind="number",
        default="0.01",
        hint="chance to run out of memory, 0 to 1",
    ),
    FormField(
        name="gpus",
        at=("search", "gpus"),
        label="GPUs",
        kind="choice",
        default="all",
        choices=(("all", "all of them"), ("fewest", "as few as can do it")),
    ),
    FormField(
        name="allow",
        at=("search", "allow"),
        label="Also try",
        kind="checks",
        choices=tuple((word, word) for word in ALLOWED),
        hint="in addition to the switches that a stock launcher runs; none: no switch but those named; "
        "switches: those that need a package, too",
    ),
    FormField(
        name="constraints",
        at=("search", "constraints"),
        label="Constraints",
        kind="lines",
        hint="one on each line",
        placeholder="zero_stage == 3 => pipeline_parallel_size == 1",
    ),
    FormField(
        name="pareto",
        at=("search", "pareto"),
        label="Time against memory too",
        kind="check",
        hint="the whole trade-off between step time and peak memory",
    ),
)
RUN = (
    FormField(
        name="profile",
        at=("profile",),
        label="Profile",
        suggestions="profiles",
        hint="id of a calibration or a measured profile",
    ),
    FormField(
        name="priority",
        at=("priority",),
        label="Priority",
        kind="choice",
        default=str(DEFAULT_PRIORITY),
        choices=_PRIORITIES,
        hint="among your own jobs",
    ),
    FormField(
        name="deadline_s",
        at=("deadline_s",),
        label="Start within",
        kind="number",
        hint="seconds; else it expires",
    ),
)
FIRST = (MODEL, CLUSTER, NODES, BATCH, SEQUENCE, PRECISION, OPTIMIZER, LAUNCHER)
FRESH = FormField(
    name="fresh", at=("fresh",), label="Search again", kind="check", hint="even if the answer is known"
)
QUESTION = (*FIRST, CONFIG, *DOCUMENTS, *PINS, *LIMITS, *RUN)

# A launch file contains most of it.
LAUNCH_FILE = FormField(
    name="launch_text",
    at=("launch_file", "text"),
    label="Launch file",
    kind="long",
    required=True,
    hint="A script, a JSON, YAML or TOML file: drop it, or paste it.",
)
_READERS: Choices = (("", "recognise it"), *((name, name) for name in reader_names()))
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
        choices=_READERS,
    ),
)
OWN_CLUSTER = (
    CLUSTER,
    FormField(
        name="num_nodes",
        at=("cluster", "num_nodes"),
        label="Nodes",
        kind="number",
        hint="if the file does not state it",
    ),
)
OWN_REST = tuple(
    FormField(
        name=one.name,
        at=one.at,
        label=one.label,
        kind=one.kind,
        suggestions=one.suggestions,
        choices=(("", "as in the file"), *one.choices) if one.choices else (),
    )
    for one in (MODEL, BATCH, SEQUENCE, PRECISION, OPTIMIZER)
)
OWN = (*OWN_FILE, *OWN_CLUSTER, *OWN_REST)

"""Formats of figures for readers: few digits, always with their unit."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby

from rich.table import Table
from rich.text import Text

from meshwright.profiles.figures import NO_BREAK, figure, percent, scale_of, tied
from meshwright.profiles.figures import gib as gib  # noqa: PLC0414 - reports name it among these
from meshwright.profiles.figures import gib_of as gib_of  # noqa: PLC0414
from meshwright.profiles.units import GIB, TERA
from meshwright.solver.answer import HostMemory, HostOrder, Plan, Prediction
from meshwright.solver.configuration import HIERARCHICAL, VARIABLES, Configuration, StageGroup


def built_words(plans: Sequence[Plan], verdicts: Mapping[str, str]) -> str:
    """Return the results of launchers that built plans; empty: none was built."""
    known = [f"#{plan.rank} {verdicts[plan.plan_id]}" for plan in plans if plan.plan_id in verdicts]
    return f"By the launcher's own code, without a GPU: {'; '.join(known)}." if known else ""


# --------------------------------------------------------------------------------------------------
# Warnings name a field of the request by its path and value; people need the option or question to set.


ALSO_TRY = "Also try"  # the part of the form for search.allow
_ALLOWED = re.compile(r"search\.allow: (\w+)")


def with_options(warning: str) -> str:
    """Return a warning with fields of the request as options of the command line."""
    return _ALLOWED.sub(r"--allow \1", warning)


def with_questions(warning: str) -> str:
    """Return a warning with fields of the request as questions of the form, and as options for reports."""
    return _ALLOWED.sub(rf"“{ALSO_TRY}: \1” (--allow \1)", warning)


# --------------------------------------------------------------------------------------------------
# What the words of a report mean, in one sentence each: shown on hover, read by screen readers.


COLUMNS = {
    "#": "Rank by the objective of the search",
    "GPUs": "Accelerators that the plan uses",
    "batch": "Sequences of one optimizer step",
    "with": "Precision, optimizer and switches where they differ from your request",
    **{one.short: one.meaning for one in VARIABLES.values() if one.in_tables},
    "recompute": "Layers that compute activations again instead of keeping them: full ×2 the first two of "
    "each chunk (recompute_layers 2), full every one (all of the model)",
    "step": "Predicted seconds of one optimizer step, with its 80 % interval",
    "tokens/s/GPU": "Tokens trained per second by each GPU",
    "MFU": "Model FLOPs utilisation: the model's work over what the GPU could do at its dense peak",
    "peak memory (stage)": "Most memory that a GPU needs, of what it has, and the stage that needs it",
    "OOM risk": "Chance that a run of this plan runs out of memory",
    "launchers": "Training frameworks that can run the plan",
    "also": "Rarer choices: another schedule, cp by all-to-all instead of a ring, etp (GPUs that split "
    "every expert), shards shared by fewer ranks than all replicas, another order of ranks, offload",
}
TIME_TERMS = {
    "ideal": "the model's FLOPs at the GPU's peak: no step can be faster",
    "compute": "matrix products, attention and memory-bound operators",
    "gemm_efficiency": "matrix products run below the peak",
    "attention_efficiency": "attention runs below the peak",
    "memory_bound": "norms, activations and additions that wait for memory",
    "launch_floor": "GPU idle because the CPU launches too slowly",
    "offload": "moving activations to the host and back",
    "recompute": "layers computed again to save memory",
    "tensor_parallel": "collectives inside every layer, not hidden",
    "context_parallel": "exchange between the parts of a sequence, not hidden",
    "expert_parallel": "sending tokens to their experts and back, not hidden",
    "pipeline_transfer": "activations handed from stage to stage, not hidden",
    "unequal_lengths": "waiting for the longest documents of other ranks and micro-batches",
    "reference": "the forward pass of the reference model",
    "imbalance": "the slowest stage works longer than the mean",
    "bubble": "stages wait for the first and after the last micro-batch",
    "data_parallel": "reducing gradients and gathering weights, not hidden",
    "optimizer": "updating the weights",
    "straggler": "many nodes wait for the slowest",
    "calibration": "what measured runs of this cluster add or take",
    "fixed": "once per step whatever its size",
    "rest": "everything else",
}
MEMORY_TERMS = {
    "weights": "parameters as the passes use them",
    "gradients": "gradient buffers",
    "optimizer": "optimizer states and master weights",
    "activations": "kept between forward and backward pass, of all micro-batches in flight",
    "workspace": "logits, loss and replayed layers",
    "buffers": "communication buckets",
    "context": "driver, libraries, communicators",
    "reserve": "lost to fragmentation in the allocator",
}


_WORDS = {
    "gemm_efficiency": "GEMMs below peak",
    "attention_efficiency": "attention below peak",
    "memory_bound": "memory-bound operators",
}


def words(term: str) -> str:
    """Return ``gemm_efficiency`` as people read it."""
    return _WORDS.get(term, term.replace("_", " "))


def sentence_case(text: str) -> str:
    """Return the text with a large first letter, unless it begins with the name of a field."""
    return text if "_" in text.partition(" ")[0] else text[:1].upper() + text[1:]


# Short names of the sizes that tables of plans have a column for, in the order of the mesh.
SHORT_NAMES = {name: one.short for name, one in VARIABLES.items() if one.in_tables}
LONG_NAMES = {
    "tensor_parallel_size": "tensor",
    "pipeline_parallel_size": "pipeline",
    "virtual_pipeline_size": "interleaved",
    "context_parallel_size": "context",
    "expert_parallel_size": "expert",
    "data_parallel_size": "data",
    "zero_stage": "ZeRO",
    "micro_batch_size": "micro-batch",
}
_USUAL_SCHEDULES = ("none", "1f1b", "interleaved_1f1b")  # implied by pp and vpp
_SMALL_RISK = 0.001


def count(number: int) -> str:
    """Return ``184 320``: thousands apart."""
    return f"{number:,}".replace(",", " ")


def seconds(value_s: float) -> str:
    """Return ``32.8 s`` or ``328 ms``."""
    return f"{figure(value_s)} s" if value_s >= 1 else f"{figure(value_s * 1e3)} ms"


def signed(value_s: float, whole_s: float) -> str:
    """Return ``+0.31 s``, ``−12 ms``: in the unit and with the digits of the whole."""
    factor, unit, digits = scale_of(whole_s)
    return f"{value_s * factor:+.{digits}f} {unit}".replace("-", "−")


def risk(probability: float) -> str:
    """Return ``0.9 %``, or ``<0.1 %`` and ``>99.9 %`` at the ends."""
    return ">99.9 %" if probability > 1.0 - _SMALL_RISK else small_share(probability)


def small_share(value: float) -> str:
    """Return ``0.9 %``, or that the value is below a tenth of a per cent; it may be over 100 %."""
    return "<0.1 %" if value < _SMALL_RISK else f"{value * 100:.1f} %"


def step_time(prediction: Prediction) -> str:
    """Return ``32.8 s ±4 %``: the wider side of the 80 % interval."""
    step_s = prediction.step_time_s
    wide_s = max(prediction.step_time_high_s - step_s, step_s - prediction.step_time_low_s)
    return f"{seconds(step_s)} ±{percent(wide_s / step_s)}"


def peak_memory(prediction: Prediction) -> str:
    """Return ``49.2 of 79.2 GiB (0)``: the heaviest stage, its limit and its number."""
    memory = gib_of(prediction.peak_memory_bytes, prediction.memory_limit_bytes)
    return f"{memory} ({prediction.heaviest_stage})"


def stage_memory(prediction: Prediction) -> str:
    """Return ``64.9 of 79.6 GiB, stage 1``; a pipeline of one stage needs no number."""
    value = gib_of(prediction.peak_memory_bytes, prediction.memory_limit_bytes)
    return value if len(prediction.stages) == 1 else f"{value}, stage {prediction.heaviest_stage}"


def recompute(configuration: Configuration) -> str:
    """Return ``–``, ``selective``, ``full`` (every layer) or ``full ×2`` (layers of each chunk)."""
    if configuration.recompute_granularity == "none":
        return "–"
    own = configuration.stage_recompute_layers
    if own and configuration.recompute_granularity == "full":
        return f"full ×{min(own)}–{max(own)} by stage"
    every = configuration.recompute_layers >= max(configuration.stage_layers, default=0)
    if configuration.recompute_granularity == "selective" or every:
        return configuration.recompute_granularity
    return f"full ×{configuration.recompute_layers}"


def mesh_words(configuration: Configuration) -> str:
    """Return how GPUs divide the work: ``tensor 4 · pipeline 4 · data 8``; one of them: ``1 GPU``."""
    divided = [
        f"{called} {getattr(configuration, name)}"
        for name, called in LONG_NAMES.items()
        if VARIABLES[name].scope == "mesh" and getattr(configuration, name) != VARIABLES[name].off
    ]
    return " · ".join(divided) or "1 GPU"


def configuration_words(configuration: Configuration, names: Mapping[str, str] | None = None) -> str:
    """Return ``tp 8 · pp 4 · dp 4 · zero 1 · mbs 1``: sizes that are on, micro-batch, recomputation.

    Args:
        configuration: what is named.
        names: of its sizes; their short ones if None.
    """
    always = {"micro_batch_size"}
    words = [
        f"{called} {getattr(configuration, name)}"
        for name, called in (names or SHORT_NAMES).items()
        if name in always or getattr(configuration, name) != VARIABLES[name].off
    ]
    words += inner_words(configuration)
    if configuration.recompute_granularity != "none":
        words.append(f"{recompute(configuration)} recompute")
    return " · ".join(words)


def layout_words(config: Configuration) -> str:
    """Return ``tp4 pp8×6 dp4``: the mesh, with the chunks of a pipeline stage behind the ×."""
    if len(config.classes) > 1:
        return " + ".join(map(layout_words, config.classes))
    sizes = (
        ("tp", config.tensor_parallel_size), ("pp", config.pipeline_parallel_size),
        ("cp", config.context_parallel_size), ("ep", config.expert_parallel_size),
        ("dp", config.data_parallel_size),
    )  # fmt: skip
    chunks = f"×{config.virtual_pipeline_size}" if config.virtual_pipeline_size > 1 else ""
    words = [f"{name}{size}{chunks if name == 'pp' else ''}" for name, size in sizes if size > 1]
    return " ".join(words) or "1 GPU"


def inner_words(configuration: Configuration) -> list[str]:
    """Return the unusual choices of a plan: ``cp by all-to-all``, ``pp before dp``, ``shards of 8``."""
    split, among = (
        configuration.context_parallel_size,
        HIERARCHICAL.get(configuration.context_parallel_mode),
    )
    exchange = f" of {among}, rings of {split // among}" if among else ""
    shards, order = configuration.zero_shard_size, _order_words(configuration)
    hybrid = configuration.zero_stage > 0 and shards < configuration.replicating_ranks
    found = {
        configuration.pipeline_schedule: configuration.pipeline_schedule not in _USUAL_SCHEDULES,
        f"cp by all-to-all{exchange}": configuration.context_parallel_mode != "ring" and split > 1,
        **{
            f"{one.short} {getattr(configuration, one.name)}": getattr(configuration, one.name) != one.off
            for one in VARIABLES.values()
            if one.short and not one.in_tables
        },
        f"shards of {shards}": hybrid,
        order: bool(order),
        offload_words(configuration.offload): configuration.offload != "none",
    }
    return [words for words, applies in found.items() if applies]


def offload_words(offload: str) -> str:
    """Return ``optimizer in host memory, parameters on NVMe``: the place of everything off the GPU."""
    places = dict[str, list[str]]()
    for one in offload.split("+"):
        name, _, drive = one.partition("@")
        places.setdefault("on NVMe" if drive else "in host memory", []).append(name)
    return ", ".join(f"{'+'.join(names)} {place}" for place, names in places.items())


def _order_words(configuration: Configuration) -> str:
    """Return ``pp before dp``: the axes in an unusual order; empty where there are none."""
    usual, own = Configuration().rank_order.split("-"), configuration.rank_order.split("-")
    while own and usual[0] == own[0]:
        usual, own = usual[1:], own[1:]
    while own and usual[-1] == own[-1]:
        usual, own = usual[:-1], own[:-1]
    return " before ".join(own)


def split(stage_layers: Sequence[int]) -> str:
    """Return ``3 4×18 5``: runs of equal chunks are counted."""
    runs = [(layers, len(list(run))) for layers, run in groupby(stage_layers)]
    return " ".join(f"{layers}×{length}" if length > 1 else f"{layers}" for layers, length in runs)


def placement(configuration: Configuration) -> str:
    """Return ``2 × a100-sxm-80gb, 8 nodes each, tp 1 │ …``: runs of stages on like nodes."""
    runs = [(stage, len(list(run))) for stage, run in groupby(configuration.stage_groups)]
    return " │ ".join(
        f"{length} × {stage.group}, {nodes(stage)}, tp {stage.tensor_parallel_size}"
        for stage, length in runs
    )


_SHOWN_HOSTS = 32


def host_names(hosts: HostOrder) -> tuple[str, ...]:
    """Return the host of every node rank, or its number in the cluster."""
    return hosts.hosts or tuple(map(str, hosts.order))


def host_order(hosts: HostOrder) -> str:
    """Return ``node-3 node-1 …``: the first of the hosts, and how many there are."""
    names = host_names(hosts)
    rest = f" … ({len(names)} in all)" if len(names) > _SHOWN_HOSTS else ""
    return " ".join(names[:_SHOWN_HOSTS]) + rest


def order_gain(hosts: HostOrder, step_s: float) -> str:
    """Return ``16.8 s as listed │ 13.7 s in this order │ in no order under 13.6 s``."""
    listed, here, bound = map(seconds, (hosts.listed_step_time_s, step_s, hosts.bound_step_time_s))
    return f"{listed} as listed │ {here} in this order │ in no order under {bound}"


def order_sentence(plan: Plan) -> str:
    """Return the hosts of a plan in order and what the order gains; empty where links are alike."""
    if plan.hosts is None:
        return ""
    hosts = plan.hosts
    steps = (plan.prediction.step_time_s, hosts.listed_step_time_s, hosts.bound_step_time_s)
    here, listed, bound = map(seconds, steps)
    return (
        f"Order of nodes: {host_order(hosts)}. A step takes {here} in this order and {listed} in the order "
        f"of the cluster file; no order takes less than {bound}."
    )


def kind_of_replica(configuration: Configuration) -> str:
    """``dp 16 · mbs 1, 3 micro-batches │ layers 32 │ 1 × h100-sxm-80gb, …``: one class of replicas."""
    count = configuration.num_microbatches
    share = f"{configuration_words(configuration)}, {count} micro-batch{'es' if count > 1 else ''}"
    return f"{share} │ layers {split(configuration.stage_layers)} │ {placement(configuration)}"


def nodes(stage: StageGroup) -> str:
    """Return ``8 nodes``, or GPUs where a stage does not fill its nodes."""
    if not stage.num_nodes.is_integer():
        return f"{stage.num_gpus} GPU{'s' if stage.num_gpus > 1 else ''}"
    return f"{stage.num_nodes:.0f} node{'s' if stage.num_nodes > 1 else ''}"


def times(breakdown_s: Mapping[str, float], step_time_s: float) -> str:
    """``compute 26.4 │ tensor parallel 3.9 │ rest 0.4 s``: causes that show at the step's precision."""
    factor, unit, digits = scale_of(step_time_s)
    return _terms({name: value * factor for name, value in breakdown_s.items()}, digits, unit)


def memory(memory_bytes: Mapping[str, int]) -> str:
    """Return ``weights 4.1 │ gradients 8.2 │ rest 0.1 GiB``."""
    return _terms({name: size / GIB for name, size in memory_bytes.items()}, 1, "GiB")


MOMENTS = {
    "loss": "in the loss",
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "optimizer step": "in the optimizer step",
    "evaluation": "while it evaluates",
}


def peak_title(prediction: Prediction) -> str:
    """Return ``peak (loss)``: when the heaviest stage holds most."""
    return "peak" if prediction.memory is None else f"peak ({prediction.memory.moment})"


def peak_shown(prediction: Prediction) -> str:
    """Return ``allocated 60.1 │ reserved 61.9 │ nvidia-smi 63.0 GiB``: the peak as tools show it."""
    seen = prediction.memory
    if seen is None:
        return f"nvidia-smi {gib(prediction.peak_memory_bytes)} GiB"
    shown = {
        "allocated": seen.allocated_bytes, "reserved": seen.reserved_bytes, "nvidia-smi": seen.device_bytes,
    }  # fmt: skip
    return f"{' │ '.join(f'{name} {gib(size)}' for name, size in shown.items())} GiB"


def host_words(seen: HostMemory) -> str:
    """Return ``loading 30.0 (8 ranks) │ training 58.1 of 1852 GiB``: host memory of a node."""
    readers = f" ({seen.readers} rank{'s' if seen.readers > 1 else ''})"
    shown = {
        f"loading{readers}": seen.loading_bytes, "training": seen.training_bytes,
        "saving": seen.saving_bytes,
    }  # fmt: skip
    parts = " │ ".join(f"{name} {gib(size)}" for name, size in shown.items() if size)
    return f"{parts} of {seen.limit_bytes / GIB:.0f} GiB a node"


def _terms(values: Mapping[str, float], digits: int, unit: str) -> str:
    """Return named values; those that would print as zero are summed up as the rest."""
    least = 0.5 * 10.0**-digits
    shown = {words(name): value for name, value in values.items() if abs(value) >= least}
    rest = sum(value for value in values.values() if abs(value) < least)
    if abs(rest) >= least:
        shown["rest"] = rest
    return " │ ".join(f"{name} {value:.{digits}f}" for name, value in shown.items()) + f" {unit}"


def plain_table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], *, left: Collection[str] | None = None
) -> Table:
    """Return a table without lines: ``left`` may wrap, others hold figures (None: no column does)."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for head in heads:
        wraps = left is not None and head in left
        table.add_column(head, justify="left" if left is None or wraps else "right", no_wrap=not wraps)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def tera(flops: float) -> str:
    """Return FLOP/s in TFLOP/s."""
    return f"{flops / TERA:.0f} TFLOP/s"


# --------------------------------------------------------------------------------------------------
# Lines that break between their pieces, and go on further to the right.


_HANG = 2
_LEAST_ROOM = 20  # columns of text that a continued line keeps


_UNIT = re.compile(
    r"(?<=[\d–]) (?=(?:s|ms|GB|GiB|GPUs|TFLOP/s|tokens)\b|[%×])|(?<=s) (?=±)|(?<=\d) (?=\d{3}\b)"
    r"|(?<=[×±]) (?=\S)"
)
_SIZE = re.compile(
    r"\b(tensor|pipeline|interleaved|context|expert|data|ZeRO|micro-batch|tp|pp|vpp|cp|ep|dp|zero|mbs"
    r"|stage|kind) (?=\d)"
)


# An option with its value, and the first words of a command: each stays on one line, to be pasted.
_OPTION = re.compile(r"(?<![\w-])(--[a-z][\w-]*|meshwright) (?=[\w./'\"$])")


def with_whole_options(text: str) -> str:
    """Return a sentence that is not broken within an option that can be pasted: ``--launcher trl``."""
    return _OPTION.sub(rf"\1{NO_BREAK}", text)


def with_ties(text: str) -> str:
    """Return a sentence that is not broken between a figure and its unit, or in a size."""
    return _SIZE.sub(rf"\1{NO_BREAK}", _UNIT.sub(NO_BREAK, text))


def pieces(text: str, separator: str) -> str:
    """Return ``text`` that breaks at its separators only."""
    return f" {separator} ".join(map(tied, text.split(f" {separator} ")))


def wrapped(text: str, width: int, *, indent: int = 0, hang: int = _HANG, style: str = "") -> Text:
    """Return ``text`` in lines of ``width`` columns; lines after the first are indented by ``hang``.

    Breaks at blanks, never in a ``tied`` piece or an option unless it alone is too long for a line.
    """
    after = " " * (indent + min(hang, max(width - indent - _LEAST_ROOM, 0)))
    room = width - len(after)
    words = (
        one.replace(NO_BREAK, " ") if len(one) > room else one
        for one in with_whole_options(text).split(" ")
    )
    lines = textwrap.wrap(
        " ".join(words),
        max(width, 1),
        initial_indent=" " * indent,
        subsequent_indent=after,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return Text("\n".join(lines).replace(NO_BREAK, " "), style=style)

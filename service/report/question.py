"""The question of an answer in words: model, cluster, batch, precision and launcher."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from rich.text import Text

from meshwright.profiles.figures import tied
from meshwright.profiles.frameworks import FORMATS
from meshwright.profiles.storage import WHOLE_PRECISIONS
from meshwright.profiles.trained_layers import layers_named, ranges_of
from meshwright.service.report.formatting import count, wrapped
from meshwright.solver.problem import Problem, Workload

_MOST_TYPES = 3  # of GPUs that a title names
_MOST_RANGES = 6  # of trained layers, then their number
_LAUNCHERS = {"none": "no launcher's limits", "any": "for any launcher"}


def header(problem: Problem, width: int) -> Text:
    """Return the question."""
    return wrapped(" · ".join(map(tied, question_words(problem))), width, style="bold")


def question_words(problem: Problem) -> tuple[str, str, str, str, str]:
    """Return model, cluster, batch, precision and launcher of a question."""
    model, workload = problem.model, problem.workload
    figures, recipe = problem.model_figures, workload.framework_options.get("precision_recipe")
    number = count(int(figures["num_trainable_parameters"]))
    batches = (*problem.options.batch_sizes, workload.global_batch_size)
    trained = ""
    if workload.lora_rank:
        parts = " and ".join((_kind_of(workload), *workload.trained_modules))
        base = workload.base_precision  # bf16 says that it has 16 bits
        stored = "fp16" if (base, workload.precision) == ("bf16", "fp16") else base
        trained = f" frozen in {stored}, {number} of {parts} trained"
    elif workload.trained_layers:
        trained = f", {number} of {trained_part(problem)} trained"
    elif workload.frozen:
        trained = f", {number} trained: frozen {' and '.join(workload.frozen)}"
    made, scored = samples_words(workload)
    tokens = lengths_words(workload) + images_words(problem) + scored
    return (
        f"{clean(model.title)} ({count(int(figures['num_parameters']))} parameters{trained})",
        clean(problem.cluster.title),
        f"batch {' or '.join(map(str, batches))}{made} × {workload.seq_length} tokens{tokens}",
        str(recipe) if recipe in FORMATS else workload.precision,
        _LAUNCHERS.get(problem.launcher, f"for {problem.launcher}"),
    )


def samples_words(workload: Workload) -> tuple[str, str]:
    """Return what a batch is made of, and what scores it; empty for sequences without a reference."""
    sample = workload.sample_kind
    each = f" of {sample.sequences}" if sample.sequences > 1 else ""
    made = "" if workload.sample == "sequence" else f" {sample.words}{each}"
    scored = {"frozen": ", scored by a frozen copy", "adapters-off": ", scored with adapters off"}
    return made, scored.get(workload.reference, "")


def lengths_words(workload: Workload) -> str:
    """How documents of unequal length lie in the sequences, and how many tokens are real; else nothing."""
    lengths, found = workload.lengths, workload.filled
    if lengths is None or found is None:
        return ""
    mean = found.lengths.mean()
    if lengths.batching == "padding_to_longest":
        return f" at most, padded to the longest document of a micro-batch: {mean:.0f} on average"
    verb = "packed" if lengths.batching == "packing" else "padded"
    return f", {verb} with documents of {mean:.0f} on average: {100 * found.real_share:.1f} % of them real"


def images_words(problem: Problem) -> str:
    """Return how many images a sequence has, and of how many tokens; empty without a vision tower."""
    if problem.model.tower is None:
        return ""
    load, number = problem.workload.images(problem.model.tower), problem.workload.images_per_sample
    if not load.rows:
        return ", no images"
    what = "image" if number == 1 else "images"
    return f", {number:g} {what} of {load.tokens / number:.0f} tokens each"


def title_of(problem: Problem) -> str:
    """Return the question in a line: ``Qwen3 8B LoRA on 4 × A100 40 GB``."""
    return f"{_subject(problem)} on {_hardware(problem)}"


def sweep_title(problem: Problem, axes: Collection[str], num_points: int) -> str:
    """Return the title of a sweep, without the hardware where that is what it varies."""
    about = _subject(problem) if {"num_nodes", "cluster"} & set(axes) else title_of(problem)
    return f"{about}, a sweep of {num_points} points"


def adapters_word(workload: Workload) -> str:
    """Return LoRA or OFT, with a Q where the frozen weights have 8 or 4 bits."""
    kind = _kind_of(workload)
    return kind if workload.base_precision in WHOLE_PRECISIONS else f"Q{kind}"


def _kind_of(workload: Workload) -> str:
    return "OFT" if workload.framework_options.get("oft") else "LoRA"


def trained_part(problem: Problem) -> str:
    """Return the layers and ends that are trained where the others are frozen, in words."""
    layers = layers_named(problem.workload.trained_layers)
    ranges = ranges_of(layers)
    said = f"layer{'s' * (len(layers) > 1)} {ranges}"
    if ranges.count(",") >= _MOST_RANGES:
        said = f"{len(layers)} of {problem.model.num_layers} layers"
    return " and ".join(((said,) if layers else ()) + problem.workload.trained_modules)


def _subject(problem: Problem) -> str:
    """Return the model, and what of it is trained if that is not all."""
    model, workload = clean(problem.model.title), problem.workload
    if workload.lora_rank:
        return f"{model} {adapters_word(workload)}"
    if workload.trained_layers:
        return f"{model}, {trained_part(problem)} trained"
    return f"{model} with frozen {' and '.join(workload.frozen)}" if workload.frozen else model


def _hardware(problem: Problem) -> str:
    """Return GPUs by their type: ``16 × H100 80 GB + 32 × A100 80 GB``."""
    number = Counter[str]()
    for group in problem.cluster.groups:
        number[group.gpu.display_name.replace(" SXM ", " ")] += group.num_gpus
    counts = [*number.items()]
    words = [f"{count} × {clean(name)}" for name, count in counts[:_MOST_TYPES]]
    words += ["other GPUs"] * (len(counts) > _MOST_TYPES)
    smaller = any(nodes < problem.cluster.num_nodes for nodes in problem.options.num_nodes)
    return f"{'up to ' * smaller}{' + '.join(words)}"


def clean(text: str) -> str:
    """Return a name from outside, without control characters."""
    return "".join(char for char in text if char.isprintable())

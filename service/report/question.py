"""The question of an answer in words: model, cluster, batch, precision and launcher."""

from __future__ import annotations

from rich.text import Text

from meshwright.profiles.figures import tied
from meshwright.profiles.frameworks import FORMATS
from meshwright.service.report.formatting import count, wrapped
from meshwright.solver.problem import Problem, Workload

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
        parts = " and ".join(("LoRA", *workload.trained_modules))
        trained = f" frozen in {workload.base_precision}, {number} of {parts} trained"
    elif workload.frozen:
        trained = f", {number} trained: frozen {' and '.join(workload.frozen)}"
    tokens = lengths_words(workload) + images_words(problem)
    return (
        f"{clean(model.title)} ({count(int(figures['num_parameters']))} parameters{trained})",
        clean(problem.cluster.title),
        f"batch {' or '.join(map(str, batches))} × {workload.seq_length} tokens{tokens}",
        str(recipe) if recipe in FORMATS else workload.precision,
        _LAUNCHERS.get(problem.launcher, f"for {problem.launcher}"),
    )


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


def clean(text: str) -> str:
    """Return a name from outside, without control characters."""
    return "".join(char for char in text if char.isprintable())

"""docs/glossary.md: the words of tables and reports, from the list that the report shows on hover."""

from __future__ import annotations

from collections.abc import Mapping

from service.report.figures import SHORT_NAMES
from service.report.glossary import COLUMNS, MEMORY_TERMS, TIME_TERMS, sentence_case, words

_HEAD = """# Glossary

The columns, terms and words that tables, reports and files use; the report says the same on hover.
"""
WORDS = {
    "rank": "one process of the training run",
    "GPU": "one device, as the driver sees it",
    "node": "one host with its GPUs",
    "island": "GPUs that the fast link joins; usually a node",
    "stage": "position in the pipeline; holds consecutive layers",
    "chunk": "part of a stage's layers, where stages are interleaved (vpp)",
    "axis": "dimension of the mesh of ranks: tensor, context, data, pipeline",
    "micro-batch": "sequences that pass the pipeline together",
    "problem": "what is to be decided: model, cluster, batch, limits",
    "plan": "one ranked answer: a configuration with its prediction",
    "prediction": "what the cost model expects: step time with its band, memory, chance of lacking it",
    "job": "a problem that was submitted to a service",
    "profile": "measured costs of GPUs, links and software, with where each number comes from",
    "calibration": "a cluster's own constants, learnt from a few of its measured runs",
    "launcher": "training framework that runs the plan; what it cannot run is not proposed for it",
    "optimal": "proved: under the cost model no configuration is better",
    "bound": "the step time that no configuration can go below under the cost model",
    "gap": "how far the first plan is from the bound",
    "band": "80 % interval of a prediction: how far the cost model has been from measured runs",
}


def glossary_page() -> str:
    """The whole page."""
    long_names = {short: name for name, short in SHORT_NAMES.items()}
    columns = {
        f"{title} (`{long_names[title]}`)" if title in long_names else title: meaning
        for title, meaning in COLUMNS.items()
    }
    parts = {
        "Words": WORDS,
        "Columns of the ranking": columns,
        "Terms of a step's time": {words(term): meaning for term, meaning in TIME_TERMS.items()},
        "Terms of a stage's memory": {words(term): meaning for term, meaning in MEMORY_TERMS.items()},
    }
    return "\n".join([_HEAD, *(line for title, part in parts.items() for line in _part(title, part))])


def _part(title: str, meanings: Mapping[str, str]) -> list[str]:
    """One list."""
    rows = [f"| {name} | {sentence_case(meaning)} |" for name, meaning in meanings.items()]
    return [f"## {title}", "", "| | |", "|---|---|", *rows, ""]

"""What the words of tables, pages and reports mean."""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.service.report.formatting import COLUMNS, MEMORY_TERMS, TIME_TERMS, words
from meshwright.solver.configuration import SHORT_NAMES

WORDS = {
    "rank": "one process of the training run",
    "GPU": "one device, as the driver sees it",
    "node": "one host with its GPUs",
    "island": "GPUs that the fast link joins, usually a node",
    "stage": "position in the pipeline: it holds consecutive layers",
    "chunk": "part of a stage's layers in an interleaved pipeline (vpp)",
    "axis": "dimension of the mesh of ranks: tensor, context, data, pipeline",
    "micro-batch": "sequences that pass the pipeline together",
    "problem": "your question: model, cluster, batch, limits",
    "plan": "one ranked answer: a configuration with its prediction",
    "prediction": "what the cost model expects: step time with its band, memory, out-of-memory risk",
    "job": "a problem that you submit to a service",
    "profile": "measured costs of GPUs, links and software, with the source of each number",
    "calibration": "corrections for your cluster, fitted to a few of its measured runs",
    "launcher": "training framework that runs your plan: plans that it cannot run are left out",
    "optimal": "proved under our model: no configuration of those searched is more than 1 % better",
    "bound": "under our model, no configuration searched has a shorter step time",
    "gap": "distance of the first plan from the bound",
    "band": "80 % interval of a prediction: how far the cost model has been from measured runs",
}


def glossary() -> Mapping[str, Mapping[str, str]]:
    """Return the meaning of each word, by the heading of its part."""
    long_names = {short: name for name, short in SHORT_NAMES.items()}
    columns = {
        f"{title} (`{long_names[title]}`)" if title in long_names else title: meaning
        for title, meaning in COLUMNS.items()
    }
    return {
        "Words": WORDS,
        "Columns of the ranking": columns,
        "Terms of a step's time": {words(term): meaning for term, meaning in TIME_TERMS.items()},
        "Terms of a stage's memory": {words(term): meaning for term, meaning in MEMORY_TERMS.items()},
    }

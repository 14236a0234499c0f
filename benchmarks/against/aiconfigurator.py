"""aiconfigurator (ai-dynamo/aiconfigurator): how long a sweep takes in the neighbouring field of serving.

It plans serving, ours training, so only time and number of configurations stand side by side: the same
model on as many GPUs of the same kind.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.against.process import SCRIPTS, Budget, ask, ask_ours, environment
from benchmarks.against.row import Comparison, Row, counted, seconds

NAME, REQUIREMENT = "aiconfigurator", "aiconfigurator==0.12.0"
GPUS, REPEATS = 32, 3


def compare(budget: Budget, _calculon: Path | None) -> Comparison:
    """Time both.

    Raises:
        UnavailableError: it cannot be installed or run.
    """
    python = environment(NAME, [REQUIREMENT])
    request = {"model": "meta-llama/Meta-Llama-3.1-70B", "gpus": GPUS, "system": "h200_sxm"}
    script = [str(python), str(SCRIPTS / "aiconfigurator_sweep.py")]
    theirs = [ask(NAME, script, request, budget) for _ in range(REPEATS)]
    ours = [ask_ours({"problem": problem()}, budget) for _ in range(REPEATS)]
    best = ours[0].answer["plans"][0]["step_time_s"]
    return Comparison(
        question=f"Llama 3.1 70B on {GPUS} H200: a sweep of serving (theirs) and of training (ours)",
        rows=(
            Row.of(
                f"{NAME} {theirs[0].answer['version']}",
                counted(theirs[0].answer["results"], "serving configurations"),
                theirs,
            ),
            Row.of(
                "Meshwright",
                counted(ours[0].answer["configurations"], "training configurations"),
                ours,
                by_us=seconds(best),
            ),
        ),
        remarks=("different questions: only the times can be held side by side",),
    )


def problem() -> dict[str, object]:
    """A training request of that size."""
    return {
        "model": {"name": "llama-3.1-70b"},
        "cluster": {"name": "dgx-h200", "num_nodes": GPUS // 8},
        "workload": {"global_batch_size": 256, "seq_length": 8192, "precision": "bf16"},
        "launcher": "megatron-lm",
        "search": {"top_k": 10, "time_limit_s": 60},
    }

"""torch's own pipeline runtime, run on CPU processes, against when we say that it reduces and gathers."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshwright.solver.configuration import SCHEDULES, Columns, Configuration
from meshwright.solver.cost.context import Context, context_of
from meshwright.solver.space.enumerate import enumerate_space
from tests.builders import a_model
from tests.problems.pricing import a_layout, a_problem, a_profile
from tests.processes.warm_python import python

# Two stages on two data-parallel ranks each; a stage of two layers of 16 * 16 weights (pipeline_ranks).
STAGES, LAYERS, WEIGHTS = 2, 2, 2 * 16 * 16
NAMES = {
    "GPipe": "gpipe", "1F1B": "1f1b", "Interleaved1F1B": "interleaved_1f1b", "LoopedBFS": "looped_bfs",
    "InterleavedZeroBubble": "interleaved_zb", "ZBVZeroBubble": "zb_v", "DualPipeV": "dualpipe_v",
}  # fmt: skip
CASES = (
    "1F1B:1:4:never", "1F1B:1:4:always", "GPipe:1:4:always", "Interleaved1F1B:2:4:never",
    "Interleaved1F1B:2:4:always", "Interleaved1F1B:4:4:never", "Interleaved1F1B:5:8:never",
    "LoopedBFS:4:4:never", "InterleavedZeroBubble:4:4:never", "DualPipeV:2:8:never",
    "ZBVZeroBubble:2:4:never",
)  # fmt: skip
Steps = dict[str, list[dict[str, Any]]]  # of each case, what each rank printed
LOST = ("InterleavedZeroBubble:4:4:always", "ZBVZeroBubble:2:4:always", "DualPipeV:2:8:always")


@pytest.fixture(scope="module")
def steps() -> Steps:
    """What every rank did in one step, by case."""
    command = [python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    ran = subprocess.run(
        [*command, "-m", "tests.torch.pipeline_ranks", *CASES, *LOST],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-4000:]
    found: Steps = {}
    for line in ran.stdout.splitlines():
        if line.startswith("{"):
            one = json.loads(line)
            found.setdefault(one["case"], []).append(one)
    return found


def priced(case: str) -> Context:
    """The same step in the cost model, under torchtitan."""
    name, chunks, count, policy = case.split(":")
    layers = STAGES * int(chunks) * LAYERS
    row = Configuration(
        pipeline_parallel_size=STAGES, virtual_pipeline_size=int(chunks), data_parallel_size=2,
        zero_stage=3 if policy == "always" else 2, zero_shard_size=2, num_microbatches=int(count),
        pipeline_schedule=NAMES[name], stage_layers=(LAYERS,) * STAGES * int(chunks),
    )  # fmt: skip
    problem = a_problem(a_model(num_layers=layers))
    return context_of(problem, Columns.of([row]), a_profile(problem, "fsdp"))


@pytest.mark.parametrize("case", CASES)
def test_every_gradient_is_reduced_once_a_step_from_a_whole_fp32_sum(case: str, steps: Steps) -> None:
    # fp32 sums of 512 weights for each chunk, 2048 bytes; one reduce-scatter for each of its two layers
    chunks = int(case.split(":")[1])
    ranks = steps[case]
    assert len(ranks) == 4
    for rank in ranks:
        assert rank["reductions"] == LAYERS * chunks
        assert [kept["gradient_bytes"] for kept in rank["kept"]] == [WEIGHTS * 4] * chunks
    assert priced(case).sharding.adds_whole_gradients.all()


@pytest.mark.parametrize("case", CASES)
def test_weights_are_gathered_as_often_as_we_price(case: str, steps: Steps) -> None:
    chunks, count = (int(part) for part in case.split(":")[1:3])
    ctx = priced(case)
    forward, backward = ctx.sharding.gathers_in_passes
    ours = float((ctx.sharding.gathers_once + count * (forward + backward))[0]) * LAYERS * chunks
    theirs = [float(rank["gathers"]) for rank in steps[case]]
    # exact on the first rank, whose order of passes the formula counts; later ranks differ by a few
    assert max(theirs) == pytest.approx(ours, rel=0.13)
    if case.startswith(("1F1B", "GPipe")):
        assert theirs == [ours] * 4


def test_all_weights_stand_gathered_before_the_reduction_even_where_forward_passes_drop_them(
    steps: Steps,
) -> None:
    # bf16: 512 weights, 1024 bytes
    for case in ("1F1B:1:4:never", "1F1B:1:4:always"):
        assert all(rank["kept"][0]["weight_bytes"] == WEIGHTS * 2 for rank in steps[case])
        assert np.all(priced(case).sharding.share_gathered == 1.0)


def gradients(case: str, steps: Steps) -> list[list[float]]:
    """Norms of every weight's gradient, as a set of ranks has them."""
    return sorted(rank["gradients"] for rank in steps[case])


@pytest.mark.parametrize("case", ["1F1B:1:4:always", "Interleaved1F1B:2:4:always"])
def test_whole_backward_passes_find_the_same_gradients_where_forward_passes_drop_weights(
    case: str, steps: Steps
) -> None:
    assert gradients(case, steps) == gradients(case.replace("always", "never"), steps)


@pytest.mark.parametrize("case", LOST)
def test_split_backward_passes_lose_gradients_of_weights_that_forward_passes_drop_so_no_plan_has_both(
    case: str, steps: Steps
) -> None:
    found, whole = gradients(case, steps), gradients(case.replace("always", "never"), steps)
    assert any(some != pytest.approx(all_, rel=0.01) for some, all_ in zip(found, whole, strict=True))
    problem = replace(a_problem(a_model(num_layers=LAYERS * STAGES * 4)), launcher="torchtitan")
    legal = enumerate_space(problem, legal_only=True).rows
    rows = legal.take(np.arange(len(legal)))
    split = rows.pipeline_schedule == SCHEDULES.index(NAMES[case.split(":", maxsplit=1)[0]])
    assert split.any()
    assert rows.zero_stage[split].max() == 2


def test_without_stages_torchtitan_reduces_each_micro_batch_and_accelerate_the_last_one_alone() -> None:
    row = a_layout(data_parallel_size=8, zero_stage=3, zero_shard_size=8)
    problem = a_problem()
    for framework, whole in (("fsdp", False), ("accelerate", True)):
        ctx = context_of(problem, Columns.of([row]), a_profile(problem, framework))
        assert ctx.sharding.adds_whole_gradients.all() == whole

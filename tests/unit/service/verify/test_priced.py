"""What a launcher's own code is compared with, from the prices of a plan."""

import pytest

from meshwright.launchers.target import Target
from meshwright.profiles.library import find_model
from meshwright.service.verify.priced import rank_bytes
from meshwright.solver.configuration import Configuration
from tests.launchers.cases import target


def sharded(recompute: str, layers: int) -> Target:
    """Llama 3.1 8B, a micro-batch of one on each of 8 GPUs that share weights."""
    config = Configuration(
        data_parallel_size=8, zero_stage=3, zero_shard_size=8, micro_batch_size=1, num_microbatches=1,
        recompute_granularity=recompute, recompute_layers=layers, stage_layers=(32,),
    )  # fmt: skip
    found = target(find_model("llama-3.1-8b"), config)
    return Target(plan=found.plan, problem=found.problem.under("torchtitan"))


@pytest.mark.parametrize(("recompute", "layers"), [("none", 0), ("full", 32)])
def test_gradients_are_all_of_a_shards_at_some_moment(recompute: str, layers: int) -> None:
    """With one micro-batch and activations kept, a step peaks before they are there. 8.03e9 × 4 / 8 B."""
    (rank,) = rank_bytes(sharded(recompute, layers))
    assert rank["most_gradients"] == pytest.approx(8.03e9 * 4 / 8, rel=0.001)

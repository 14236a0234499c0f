"""When memory peaks, and what it is then, as torch and nvidia-smi show it, with the arithmetic."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

import pytest

from meshwright.profiles.units import GIB
from meshwright.solver.answer import PeakMemory, Prediction
from meshwright.solver.configuration import Columns, Configuration
from meshwright.solver.cost.context import context_of
from meshwright.solver.cost.memory import passing_bytes
from meshwright.solver.cost.stages import ALLOCATED, MOMENTS
from meshwright.solver.predict import predict
from tests.builders import a_cluster, a_model
from tests.problems.pricing import GPT, a_layout, a_problem, a_profile

UNTIED = replace(GPT, tied_embeddings=False)
WEIGHTS = UNTIED.num_parameters()
ENDS = UNTIED.vocab_size * UNTIED.hidden_size  # of the head, and of the embedding
ONE_GPU = a_cluster(num_nodes=1)


def seen(framework: str, *, options: Mapping[str, object] | None = None, **layout: object) -> PeakMemory:
    problem = a_problem(UNTIED, cluster=ONE_GPU, seq_length=512, framework_options=dict(options or {}))
    found = predict(problem, a_profile(problem, framework), a_layout(**layout)).memory
    assert found is not None
    return found


def test_a_foreach_update_copies_second_moments_in_fp32_and_a_fused_one_nothing() -> None:
    fused, foreach = (
        seen("trl", options={"optimizer_kernel": kernel}).moments_bytes["optimizer step"]
        for kernel in ("fused", "foreach")
    )
    assert foreach - fused == pytest.approx(4 * WEIGHTS)


def test_adam_mini_makes_two_temporaries_of_its_largest_tensor() -> None:
    def updated(optimizer: str) -> float:
        problem = a_problem(UNTIED, cluster=ONE_GPU, seq_length=512, optimizer=optimizer)
        found = predict(problem, a_profile(problem, "trl"), a_layout()).memory
        assert found is not None
        return found.moments_bytes["optimizer step"]

    # 4 bytes less of each weight, and two copies of the embedding in fp32
    saved = updated("adamw") - updated("adam-mini")
    assert saved == pytest.approx(4 * WEIGHTS - 2 * 4 * ENDS)


def test_gradients_of_one_micro_batch_come_as_activations_go() -> None:
    # of 512 tokens 4-byte gradients outweigh activations: the peak is the end of the backward pass, with
    # all of them; in Megatron's buffers they are there at the loss as well
    once, again = (seen("trl", num_microbatches=count) for count in (1, 2))
    assert once.moment == "backward"
    assert once.moments_bytes["forward"] < again.moments_bytes["forward"] - 3.9 * WEIGHTS
    assert once.allocated_bytes < again.allocated_bytes
    same = [seen("megatron-core", num_microbatches=count) for count in (1, 2)]
    assert same[0] == same[1]


def test_autocasts_cache_ends_with_the_forward_pass_and_the_losss_gradients_come_behind_it() -> None:
    # replayed layers: all their casts, 2 bytes a weight, are gone when the head's gradient comes
    plain = seen("trl", recompute_granularity="full", recompute_layers=4).moments_bytes
    of_head = 4 * ENDS + 4 * 512 * UNTIED.hidden_size
    assert plain["forward"] - plain["loss"] == pytest.approx(2 * (WEIGHTS - 2 * ENDS) - of_head, rel=0.01)


@pytest.mark.parametrize(("framework", "fp32"), [("accelerate", 1), ("deepspeed", 0)])
def test_an_evaluation_holds_logits_and_neither_activations_nor_freed_gradients(
    framework: str, fp32: int
) -> None:
    # 32 samples of 512 tokens: logits in 2 and 4 bytes, their log-softmax in 4, the head's input in 4; of
    # fp32 weights 12 bytes with both moments (DeepSpeed: 14, and gradients of 2 stay)
    plain, found = (
        seen(framework, options={"evaluation_batch_size": size}, num_microbatches=2) for size in (0, 32)
    )
    assert "evaluation" not in plain.moments_bytes
    assert found.moment == "evaluation"
    rows = 32 * 512 * (10 * UNTIED.vocab_size + 4 * UNTIED.hidden_size)
    held = found.moments_bytes["evaluation"] - rows
    assert held == pytest.approx((12 if fp32 else 16) * WEIGHTS, rel=0.25)


def test_trls_loss_evaluates_a_part_of_the_logits_at_a_time() -> None:
    options = {"evaluation_batch_size": 32}
    whole, parts = (seen(one, options=options).moments_bytes["evaluation"] for one in ("accelerate", "trl"))
    assert whole - parts > 9 * 32 * 512 * UNTIED.vocab_size


def test_one_gpu_has_no_communicators() -> None:
    problem = a_problem(cluster=a_cluster(num_nodes=1))
    profile = a_profile(problem)
    alone, two = (
        predict(problem, profile, a_layout(data_parallel_size=ranks)).stages[0].memory_bytes["context"]
        for ranks in (1, 2)
    )
    assert two - alone == 400_000_000


def drawn(rng: random.Random) -> Prediction:
    """One configuration of a small model under a framework, both drawn."""
    model = a_model(num_layers=8, tied_embeddings=rng.random() < 0.5)
    problem = a_problem(
        model, seq_length=rng.choice([512, 8192]), cluster=a_cluster(num_nodes=1),
        lora_rank=rng.choice([0, 0, 16]), optimizer=rng.choice(["adamw", "adamw-8bit"]),
    )  # fmt: skip
    stages = rng.choice([1, 2, 4])
    ranks, zero = 8 // stages, rng.choice([0, 1, 3] if stages == 1 else [0, 1])
    recompute = rng.choice(["none", "full"])
    config = Configuration(
        data_parallel_size=ranks, pipeline_parallel_size=stages, micro_batch_size=rng.choice([1, 4]),
        num_microbatches=rng.choice([1, 2, 8]), zero_stage=zero, zero_shard_size=ranks if zero else 1,
        pipeline_schedule="none" if stages == 1 else "1f1b", stage_layers=(8 // stages,) * stages,
        recompute_granularity=recompute, recompute_layers=8 // stages if recompute == "full" else 0,
    )  # fmt: skip
    framework = rng.choice(["trl", "accelerate", "fsdp", "deepspeed", "megatron-core"])
    return predict(problem, a_profile(problem, framework), config)


@pytest.mark.parametrize("seed", range(40))
def test_the_peak_is_the_most_of_its_moments_and_each_tool_shows_more_than_the_one_before(
    seed: int,
) -> None:
    found = drawn(random.Random(seed))
    memory, stage = found.memory, found.stages[found.heaviest_stage]
    assert memory is not None
    assert memory.moment in MOMENTS
    assert memory.moments_bytes[memory.moment] == memory.allocated_bytes
    assert max(memory.moments_bytes.values()) <= memory.allocated_bytes + len(ALLOCATED)  # rounded terms
    assert sum(stage.memory_bytes[name] for name in ALLOCATED) == memory.allocated_bytes
    assert min(stage.memory_bytes.values()) >= 0
    assert memory.allocated_bytes <= memory.reserved_bytes <= memory.device_bytes
    assert memory.device_bytes == found.peak_memory_bytes == stage.peak_memory_bytes < 1000 * GIB


def test_eager_mlps_hold_three_tensors_of_their_width_for_a_moment_and_adapters_two_more_bytes() -> None:
    # width of 512 tokens: 6 bytes an element either way; adapted: 8 and an fp32 input, and 10 back
    width = 512 * GPT.ffn_hidden_size

    def passing(framework: str, **workload: object) -> tuple[float, float]:
        problem = a_problem(UNTIED, seq_length=512, **workload)  # type: ignore[arg-type]
        context = context_of(problem, Columns.of([a_layout()]), a_profile(problem, framework))
        into, back = passing_bytes(context, "dense")
        return float(into[0]), float(back[0])

    adapters = {"lora_rank": 8, "lora_targets": ("linear_fc1", "linear_fc2")}
    assert passing("trl") == (6 * width, 6 * width)
    assert passing("trl", **adapters) == (8 * width + 4 * 512 * GPT.hidden_size, 10 * width)

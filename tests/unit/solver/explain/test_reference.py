"""What one would run without a search: a published recipe, or the rule of thumb of the launcher's kind."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.profiles.profile import default_profile
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.answer import Reference
from meshwright.solver.explain.reference import reference_of
from meshwright.solver.planner.plan import ask

RECIPE, TITAN, RULE = "Megatron-Bridge's recipe", "torchtitan's recipe", "the usual rule of thumb"


def reference(
    model: str,
    gpus: int,
    launcher: str,
    batch: int,
    *,
    seq: int = 4096,
    search: dict[str, Any] | None = None,
) -> Reference:
    """The reference on nodes of up to eight H100; one GPU trains adapters of rank 16."""
    each = min(gpus, 8)
    raw: dict[str, Any] = {
        "model": {"name": model},
        "cluster": {"groups": [{"gpu": "h100-sxm-80gb", "num_nodes": gpus // each, "gpus_per_node": each}]},
        "workload": {"global_batch_size": batch, "seq_length": seq, "lora_rank": 16 * (gpus == 1)},
        "launcher": launcher,
        "search": {"top_k": 1, "certify": "none", "allow": ["none"], **(search or {})},
    }
    problem = parse_problem(raw)
    profile = default_profile(problem.cluster, problem.priced_as)
    found = reference_of(problem, profile, ask(problem, profile))
    assert found is not None
    return found


# tensor, pipeline, context, expert, data parallel; ZeRO; micro-batch; recomputation
@pytest.mark.parametrize(
    ("asked", "name", "mesh"),
    [
        # llama31_8b_pretrain_config: context parallel 2, the rest data parallel, no recomputation
        (("llama-3.1-8b", 16, "megatron-bridge", 64, 8192), RECIPE, (1, 1, 2, 1, 8, 1, 1, "none")),
        # llama2_7b_pretrain_config: tensor parallel 2
        (("llama-2-7b", 8, "megatron-lm", 64, 4096), RECIPE, (2, 1, 1, 1, 4, 1, 1, "none")),
        # llama3_8b: activation_checkpoint.mode selective, local_batch_size 1
        (("llama-3.1-8b", 8, "torchtitan", 64, 8192), TITAN, (1, 1, 1, 1, 8, 3, 1, "selective")),
        # replicas of 8 billion weights do not fit, so ZeRO-3; 0.6 billion do
        (("qwen3-8b", 8, "trl", 32, 4096), RULE, (1, 1, 1, 1, 8, 3, 4, "full")),
        (("qwen3-0.6b", 8, "trl", 64, 4096), RULE, (1, 1, 1, 1, 8, 0, 8, "full")),
        (("qwen3-8b", 1, "trl", 16, 4096), RULE, (1, 1, 1, 1, 1, 0, 8, "full")),
    ],
)
def test_a_reference_is_what_a_person_would_type(
    asked: tuple[Any, ...], name: str, mesh: tuple[object, ...]
) -> None:
    model, gpus, launcher, batch, seq = asked
    found = reference(model, gpus, launcher, batch, seq=seq)
    c = found.config
    sizes = (c.tensor_parallel_size, c.pipeline_parallel_size, c.context_parallel_size)
    rest = (c.data_parallel_size, c.zero_stage, c.micro_batch_size, c.recompute_granularity)
    assert (found.name, (*sizes, c.expert_parallel_size, *rest), found.problems) == (name, mesh, ())
    assert found.speedup >= 1.0 - 1e-9


def test_a_batch_of_odd_shares_is_no_reason_for_single_sequences() -> None:
    """Each of 4 GPUs has 25 of 100 sequences: 5 of the sizes up to 8 divides them, 8, 4 and 2 do not."""
    found = reference("llama-3.2-1b", 4, "trl", 100, seq=512)
    assert (found.config.micro_batch_size, found.problems) == (5, ())


def test_what_the_request_pins_does_not_bind_what_one_would_run_today() -> None:
    """Tensor parallel 8 is slower than Megatron-Bridge's recipe for this model, which has 4."""
    found = reference("qwen3-8b", 8, "megatron-lm", 64, search={"pin": {"tensor_parallel_size": 8}})
    assert (found.name, found.config.tensor_parallel_size, found.problems) == (RECIPE, 4, ())
    assert found.speedup < 1.0


def test_a_batch_that_no_power_of_two_divides_is_named_as_the_problem() -> None:
    """24 GPUs and 100 sequences: 24, 12, 6 and 3 replicas do not divide them, so it is priced with 120."""
    found = reference("llama-3.2-1b", 24, "megatron-lm", 100)
    assert found.config.global_batch_size == 120
    assert found.problems == ("no usual layout divides a batch of 100 over 24 GPUs",)


@pytest.mark.parametrize(
    ("limit", "gpus"),
    [
        ({"max_power_kw": 12}, 16),  # 20 GPUs of 595 W
        ({"constraints": ["num_gpus <= 20"]}, 16),  # two nodes of eight
        ({"constraints": ["num_gpus <= 7"]}, 4),
        ({"constraints": ["tensor_parallel_size <= 4"]}, 32),
        ({"num_nodes": [1, 4], "max_power_kw": 18}, 8),  # 30 GPUs of 595 W, and three nodes are not named
        ({"constraints": ["num_gpus == 12"]}, 12),  # no whole nodes, nor halves of one: the first plan's
    ],
)
def test_a_reference_has_no_more_gpus_than_the_request_s_limits_leave(
    limit: dict[str, Any], gpus: int
) -> None:
    found = reference("llama-3.1-8b", 32, "megatron-lm", 64, search=limit)
    assert found.config.num_gpus == gpus
    assert found.speedup >= 1.0

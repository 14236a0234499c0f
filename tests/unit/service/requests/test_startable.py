"""Configurations that cannot start are refused with the first cause and the sizes that do start."""

from __future__ import annotations

import pytest

from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.requests.configuration import assumed_values, assumption_notes, completed
from meshwright.service.requests.parse import parse_problem
from meshwright.service.requests.startable import idle_notes
from meshwright.solver.problem import Problem


def a_problem(launcher: str = "megatron-lm", model: str = "llama-3.1-8b", num_nodes: int = 4) -> Problem:
    return parse_problem({
        "model": model, "cluster": {"name": "dgx-h100", "num_nodes": num_nodes}, "launcher": launcher,
        "workload": {"global_batch_size": 32, "seq_length": 4096},
    })  # fmt: skip


@pytest.mark.parametrize(
    ("model", "raw", "field", "values", "words"),
    [  # Llama 3.1 8B: 32 heads, 8 key/value heads; 4 nodes are 32 GPUs
        ("llama-3.1-8b", {"tp": 2, "pp": 6}, "pp", (1, 2, 4, 8, 16), "12 does not divide the 32 GPUs"),
        ("llama-3.1-8b", {"tp": 3}, "tp", (1, 2, 4, 8, 16, 32), "attention heads"),
        ("llama-3.1-8b", {"tp": 3, "pp": 6}, "tp", (1, 2, 4, 8, 16, 32), "attention heads"),
        ("llama-3.1-8b", {"pp": 64}, "pp", (1, 2, 4, 8, 16, 32), "there are 32 GPUs"),
        ("llama-3.1-8b", {"cp": 3}, "cp", (1, 2, 4, 8, 16, 32), "divides the sequence"),
        # 8 experts on one node: of 2 stages each has 4 ranks
        ("mixtral-8x7b", {"ep": 3}, "ep", (1, 2, 4, 8), "divides the experts"),
        ("mixtral-8x7b", {"ep": 8, "pp": 2}, "ep", (1, 2, 4), "here 4"),
    ],
)
def test_the_first_cause_is_named_with_the_sizes_that_start(
    model: str, raw: dict[str, int], field: str, values: tuple[int, ...], words: str
) -> None:
    problem = a_problem(model=model, num_nodes=4 if model == "llama-3.1-8b" else 1)
    with pytest.raises(InvalidProblemError, match=words) as raised:
        completed(raw, problem)
    (fault,) = raised.value.errors
    assert (fault.pointer, fault.value, fault.values) == (f"/configuration/{field}", raw[field], values)
    assert fault.allowed == ", ".join(map(str, values))
    if (first := [one for one in raw if one != field]) == [] or field == "pp":
        for size in values:  # each starts where the other sizes stay
            completed({**{one: raw[one] for one in first}, field: size}, problem)


def test_a_mesh_that_fills_fewer_nodes_is_asked_for_with_num_nodes() -> None:
    with pytest.raises(InvalidProblemError, match="num_nodes 3 gives 24"):
        completed({"tp": 2, "pp": 6}, a_problem())
    assert completed({"tp": 2, "pp": 6}, a_problem(num_nodes=3)).data_parallel_size == 2


def test_a_stated_number_of_replicas_may_leave_gpus_idle_and_says_so() -> None:
    problem = a_problem()
    own = completed({"tp": 2, "dp": 4}, problem)
    assert (own.num_gpus, own.num_microbatches) == (8, 8)  # 32 sequences over 4 replicas
    assert "8 of 32 GPUs" in idle_notes(problem, own)[0]
    assert idle_notes(problem, completed({"tp": 2}, problem)) == ()


@pytest.mark.parametrize(
    ("launcher", "raw", "stage"),
    [
        ("megatron-lm", {"tp": 2}, 1), ("megatron-bridge", {"pp": 2}, 1), ("ms-swift", {}, 1),
        ("torchtitan", {}, 3), ("torchtitan", {"pp": 2}, 2), ("maxtext", {}, 3), ("accelerate", {}, 0),
        ("deepspeed", {}, 0), ("megatron-lm", {"tp": 8, "pp": 4}, 0),  # one rank shards nothing
    ],
)  # fmt: skip
def test_without_a_word_of_zero_the_launchers_usual_launch_is_priced(
    launcher: str, raw: dict[str, int], stage: int
) -> None:
    problem = a_problem(launcher)
    own = completed(raw, problem)
    assert own.zero_stage == stage
    assert own.zero_shard_size == (own.data_parallel_size if stage else 1)
    (note,) = assumption_notes(problem, assumed_values(raw, own))
    assert f"zero_stage {stage} is assumed for {launcher}" in note
    assert completed({**raw, "zero": 0}, problem).zero_shard_size == 1
    assert assumption_notes(problem, assumed_values({"zero": 0}, own)) == []


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ({"recompute": "full"}, {"recompute_granularity": "full"}),
        ({"recompute": "off"}, {"recompute_granularity": "none"}),
        ({"offload": "params+optimizer"}, {"offload": "optimizer+parameters"}),
        ({"offload": "params@nvme,optimizer"}, {"offload": "optimizer+parameters@nvme"}),
        (
            {"zero": 1, "mbs": 2, "dp": 16},
            {"zero_stage": 1, "micro_batch_size": 2, "data_parallel_size": 16},
        ),
        ({"sp": True, "tp": 2}, {"sequence_parallel": True, "tensor_parallel_size": 2}),
    ],
)
def test_words_that_tables_and_people_use_are_taken(
    said: dict[str, object], meant: dict[str, object]
) -> None:
    assert completed(said, a_problem()) == completed(meant, a_problem())


def test_a_field_of_the_workload_is_named_where_it_belongs() -> None:
    with pytest.raises(InvalidProblemError, match=r"--lora-rank, or workload\.lora_rank"):
        completed({"lora_rank": 8}, a_problem())

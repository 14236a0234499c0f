"""Moments in unified memory: what leaves a full GPU, when, and how long it takes."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.profiles.cluster import host_of
from meshwright.profiles.inline import cluster_from_mapping
from meshwright.profiles.library import find_model
from meshwright.profiles.profile import default_profile
from meshwright.service.requests.configuration import completed
from meshwright.solver.answer import Prediction
from meshwright.solver.configuration import Configuration
from meshwright.solver.cost.paging import paged_share
from meshwright.solver.planner.plan import ask
from meshwright.solver.predict import predict, where_pages_lie
from meshwright.solver.problem import Problem
from tests.builders import a_problem
from tests.draws import draws

LLAMA = find_model("llama-2-7b")
VOCABULARY, WIDTH = 32000, 4096
ENDS = 2 * VOCABULARY * WIDTH
ONE = Configuration(
    stage_layers=(32,), num_microbatches=8, recompute_granularity="full", recompute_layers=32
)


def training(optimizer: str, *, gpu: str = "a100-sxm-80gb", **changes: object) -> Problem:
    """Llama 2 7B on one GPU under TRL."""
    cluster = cluster_from_mapping(
        {"name": "one", "groups": [{"gpu": gpu, "gpus_per_node": 1, "num_nodes": 1}]}
    )
    found = a_problem(model=LLAMA, cluster=cluster, batch=8, certify="none", top_k=1, time_limit_s=30.0)
    work = replace(found.workload, seq_length=2048, optimizer=optimizer, **changes)  # type: ignore[arg-type]
    return replace(found, workload=work, launcher="trl")


def priced(problem: Problem, **changes: object) -> Prediction:
    profile = default_profile(problem.cluster, problem.priced_as)
    return predict(problem, profile, replace(ONE, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("optimizer", "moments", "of_embedding", "of_head"),
    [
        ("adamw-paged", 8.0, 8.0, 8.0),
        ("adamw-paged-bf16", 8.0, 8.0, 8.0),  # fp32 beside weights in bf16
        ("adamw-8bit-paged-bf16", 2.0, 8.0, 2.0),  # the embedding's stay in 32 bits
    ],
)
def test_pages_of_a_full_gpu_lie_on_its_host_and_cross_the_link_twice_a_step(
    optimizer: str, moments: float, of_embedding: float, of_head: float
) -> None:
    problem = training(optimizer)
    here, away = priced(problem), priced(problem, offload="optimizer")
    layers = LLAMA.num_parameters() - ENDS
    pages = moments * layers + (of_embedding + of_head) * ENDS / 2
    assert away.host is not None
    assert away.host.training_bytes == pytest.approx(pages, rel=1e-3)
    # an update needs the largest tensor's on the GPU: an embedding's, of 8 bytes each
    room = 8.0 * ENDS / 2
    gone = here.stages[0].memory_bytes["optimizer"] - away.stages[0].memory_bytes["optimizer"]
    assert gone == pytest.approx(pages, rel=1e-3)
    context = away.stages[0].memory_bytes["context"] - here.stages[0].memory_bytes["context"]
    assert context == pytest.approx(room)
    link = host_of(problem.cluster.groups[0]).link_bytes_per_s
    assert away.step_time_s - here.step_time_s == pytest.approx(2.0 * pages / link, rel=1e-3)


def test_moments_that_fit_stay_and_cost_what_other_moments_do() -> None:
    paged, plain = priced(training("adamw-8bit-paged-bf16")), priced(training("adamw-8bit-bf16"))
    assert paged.step_time_s == pytest.approx(plain.step_time_s)
    assert paged.peak_memory_bytes == plain.peak_memory_bytes


@pytest.mark.parametrize(("gpu", "where"), [("a100-sxm-80gb", "none"), ("a100-sxm-40gb", "optimizer")])
def test_a_run_is_priced_with_its_pages_where_its_driver_keeps_them(gpu: str, where: str) -> None:
    """42 GiB with moments, 29 without: of 40 GiB the second."""
    problem = training("adamw-8bit-paged-bf16", gpu=gpu)
    assert where_pages_lie(problem, ONE).offload == where
    stated = {"recompute_granularity": "full", "micro_batch_size": 1}
    assert completed(stated, problem).offload == where
    assert completed({**stated, "offload": "none"}, problem).offload == "none", "as it is stated"
    plan = ask(problem, default_profile(problem.cluster, problem.priced_as)).ranking[0]
    assert plan.config.offload == where


@pytest.mark.parametrize(
    ("rank", "share"),
    [
        (8, 0.0),  # 8 x 11008 = 88064 elements in the largest matrix
        # three of a layer's have 16 x 11008 = 176128 elements, the eleven others 16 x 4096 = 65536
        (16, 3 * 176128 / (3 * 176128 + 11 * 65536)),
        (32, 1.0),
    ],
)
def test_small_matrices_of_adapters_are_not_paged(rank: int, share: float) -> None:
    targets = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    assert paged_share(LLAMA, targets, rank, ()) == pytest.approx(share)


def moved(pages: int, room: int, steps: int) -> int:
    """Return the pages that come to a GPU after the first step: touched in turn, the oldest leaves."""
    there, came = list[int](), 0
    for step in range(steps):
        for page in range(pages):
            if page not in there:
                came += step > 0
                there = [*there[max(len(there) - room + 1, 0) :], page]
    return came


@settings(max_examples=draws(20), deadline=None)
@given(st.integers(1, 40), st.integers(1, 40))
def test_either_every_page_moves_in_a_step_or_none(pages: int, room: int) -> None:
    """Judged by a queue of pages: what moved there first leaves first."""
    assert moved(pages, room, 3) == (0 if pages <= room else 2 * pages)


def test_pages_leave_the_gpus_of_the_fewest_nodes_under_a_launcher_that_offloads_nothing_itself() -> None:
    # 6.7 billion weights and gradients of 2 bytes are 27 of 43 GB; with moments of 8 bytes 81 GB
    one = training("adamw-paged-bf16", gpu="a100-sxm-40gb")
    two = replace(one.cluster, groups=(replace(one.cluster.groups[0], num_nodes=2),))
    options = replace(one.options, gpus="fewest")
    problem = replace(one, launcher="axolotl", cluster=two, options=options)
    answer = ask(problem, default_profile(two, "axolotl"))
    assert [(plan.config.num_gpus, plan.config.offload) for plan in answer.plans] == [(1, "optimizer")]

"""An answer without a plan says what fits within which risk, and which changes the request leaves open."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from meshwright.profiles.profile import default_profile
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.answer import Answer
from meshwright.solver.check import closest_violations
from meshwright.solver.planner.plan import ask
from meshwright.solver.problem import Problem
from tests.draws import seldom

LORA, OFFLOAD = {"workload.lora_rank": 16}, {"search.allow": ["offload"]}
GALORE = {"optimizer": "galore-8bit-bf16-layerwise", "global_batch_size": 1, "seq_length": 256}


def request(model: str, gpu: str, gpus: int, launcher: str, **workload: object) -> dict[str, Any]:
    return {
        "model": model,
        "cluster": {"gpu": gpu, "gpus_per_node": gpus, "num_nodes": 1},
        "workload": {"global_batch_size": 16, "seq_length": 4096, **workload},
        "launcher": launcher,
        "search": {"top_k": 1, "certify": "none", "max_out_of_memory_probability": 0.01},
    }


def asked(model: str, gpu: str, gpus: int, launcher: str, **workload: object) -> Problem:
    return parse_problem(request(model, gpu, gpus, launcher, **workload))


def changed(body: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The request with values at their paths, as their options on the command line would state them."""
    new = {name: dict(part) if isinstance(part, Mapping) else part for name, part in body.items()}
    for path, value in settings.items():
        part, _, name = path.rpartition(".")
        (new[part] if part else new)["gpu" if path == "cluster.groups" else name] = value
    return new


_FOUND = dict[str, Answer]()


def answered(problem: Problem) -> Answer:
    """The answer, searched once: several tests look at one answer's other sides."""
    asked_for = repr(problem)
    if asked_for not in _FOUND:
        _FOUND[asked_for] = ask(problem, default_profile(problem.cluster, problem.launcher))
    return _FOUND[asked_for]


@pytest.mark.parametrize(
    ("problem", "words", "risk", "offered"),
    [
        # 35.4 of 40 GiB: between the 33.6 that a risk of 1 % leaves and all of it
        (
            asked("qwen3-8b", "a100-sxm-40gb", 4, "trl"),
            "within an out-of-memory risk of 1 %; the closest of",
            (0.01, 0.25),
            [{"workload.optimizer": "adamw-8bit"}, OFFLOAD, LORA, {"workload.base_precision": "nf4"}],
        ),
        # 8.03e9 weights of 16 bytes are 120 GiB, more than the 80 of one GPU
        (
            asked("llama-3.1-8b", "h100-sxm-80gb", 1, "trl"),
            "Nothing fits; even the closest of",
            (0.999, 1.0),
            [OFFLOAD, LORA, {"cluster.gpus_per_node": 2}],
        ),
        # the launcher cannot train adapters, others can
        (asked("llama-3.1-8b", "h100-sxm-80gb", 1, "megatron-lm"), "Nothing fits", (0.999, 1.0), [LORA]),
        # 70.6e9 weights in 4 bits are 33 GiB, in 16 bits 131: of one 80 GB GPU QLoRA alone; in fp32 263,
        # more than a GPU's share of its host's memory
        (
            asked("llama-3.1-70b", "h100-sxm-80gb", 1, "trl"),
            "breaks one of its rules",
            None,
            [{"workload.base_precision": "nf4"}],
        ),
    ],
    ids=["a small risk", "one GPU", "another launcher", "QLoRA"],
)
def test_an_infeasible_request_gets_its_closest_plan_and_changes_of_software_first(
    problem: Problem, words: str, risk: tuple[float, float] | None, offered: list[dict[str, Any]]
) -> None:
    answer = answered(problem)
    assert answer.status == "infeasible"
    assert not answer.plans
    assert answer.infeasible is not None
    closest, remedies = answer.infeasible.closest, answer.infeasible.remedies
    assert words in answer.certainty
    assert "No plan exists" not in answer.certainty
    if risk is None:  # no layout is legal
        assert closest is None
    else:
        assert closest is not None
        assert risk[0] < closest.prediction.out_of_memory_probability <= risk[1]
    for settings in offered:
        assert any(settings.items() <= remedy.settings.items() for remedy in remedies), settings
    hardware = [remedy.kind in ("gpus_per_node", "nodes", "gpus") for remedy in remedies]
    assert hardware == sorted(hardware)


def test_a_7b_model_trains_on_24_gb_as_galores_paper_has_it() -> None:
    # arXiv:2403.03507, abstract: "pre-training a 7B model on consumer GPUs with 24GB memory"
    answer = answered(asked("llama-7b", "rtx-4090", 1, "trl", **GALORE))
    assert answer.plans[0].prediction.out_of_memory_probability < 0.01


@pytest.mark.parametrize(
    "body",
    [
        request("qwen3-8b", "a100-sxm-40gb", 4, "trl"),
        request("llama-3.1-8b", "h100-sxm-80gb", 1, "megatron-lm"),
        pytest.param(
            request("qwen3-32b", "h100-sxm-80gb", 1, "any", optimizer="badam", trained_layers="0"),
            marks=seldom,
        ),
        pytest.param(
            request(
                "llama-3.1-70b", "h100-sxm-80gb", 1, "axolotl", trained_layers="78-79",
                trained_modules=["embed_tokens", "lm_head"], framework_options={"redraws_layers": True},
                optimizer="adamw-8bit-paged-bf16",
            ),
            marks=seldom,
        ),
    ],
    ids=["a small risk", "another launcher", "one layer after another", "layers drawn anew"],
)  # fmt: skip
def test_the_request_with_the_options_of_a_change_gets_a_plan_no_slower_than_shown(
    body: dict[str, Any],
) -> None:
    found = answered(parse_problem(body)).infeasible
    assert found is not None
    assert found.remedies
    for remedy in found.remedies:
        (plan,) = answered(parse_problem(changed(body, remedy.settings))).plans
        assert plan.prediction.step_time_s <= remedy.step_time_s * (1.0 + 1e-9), remedy.change


def test_quantized_weights_that_do_not_fit_on_one_gpu_are_cut_over_several() -> None:
    def on(gpus: int) -> Answer:
        body = request(
            "llama-2-70b", "rtx-3090", gpus, "trl", lora_rank=32, base_precision="nf4", seq_length=512
        )
        return answered(parse_problem(body))

    assert on(1).certainty.startswith("Nothing fits; even the closest of")
    assert on(4).plans[0].config.zero_stage == 3


@pytest.mark.parametrize(
    ("base", "offered", "left_out"),
    [
        # 8.19e9 weights of 4 bytes are 30.5 of 40 GiB; of 2 bytes 15.3, which leave room for the rest
        ("fp32", {"workload.base_precision": "bf16", "launcher": "trl"}, "nf4"),
        # 16 bits are too many: 4 of them
        ("bf16", {"workload.base_precision": "nf4", "launcher": "trl"}, "fp32"),
    ],
)
def test_frozen_weights_that_leave_no_room_are_offered_in_fewer_bits(
    base: str, offered: dict[str, str], left_out: str
) -> None:
    model, gpu = ("qwen3-8b", "a100-sxm-40gb") if base == "fp32" else ("llama-3.1-70b", "a100-sxm-80gb")
    body = request(model, gpu, 1, "trl", lora_rank=16, base_precision=base, seq_length=8192)
    answer = answered(parse_problem(body))
    assert answer.infeasible is not None
    changes = [dict(one.settings) for one in answer.infeasible.remedies]
    assert offered in changes  # the adapters stay as they are
    assert left_out not in [one.get("workload.base_precision") for one in changes]
    (plan,) = answered(parse_problem(changed(body, offered))).plans
    assert plan.prediction.out_of_memory_probability <= 0.05


def test_frozen_weights_in_4_bits_under_oft_are_named_by_their_blocks() -> None:
    # 14.8e9 weights of 2 bytes are 27.5 of 24 GiB; in 4 bits the blocks stay as they are (QOFT)
    body = request(
        "qwen3-14b", "rtx-4090", 1, "llama-factory-accelerate", lora_rank=32, seq_length=1024,
        framework_options={"oft": True},
    )  # fmt: skip
    found = answered(parse_problem(body)).infeasible
    assert found is not None
    (fewer,) = [one for one in found.remedies if one.kind == "qlora"]
    assert fewer.change == "QOFT with blocks of 32 under llama-factory-accelerate"
    (plan,) = answered(parse_problem(changed(body, fewer.settings))).plans
    assert plan.prediction.step_time_s <= fewer.step_time_s * (1.0 + 1e-9)


def test_changes_that_the_request_already_has_are_not_offered() -> None:
    problem = asked("llama-3.1-70b", "rtx-4090", 1, "trl")
    adapters = replace(problem, workload=replace(problem.workload, lora_rank=16))
    found = answered(adapters).infeasible
    assert found is not None
    assert not {"lora", "qlora"} & {remedy.kind for remedy in found.remedies}


@pytest.mark.parametrize(
    ("launcher", "none"), [("megatron-lm", "megatron-lm has no plan"), ("none", "No plan exists")]
)
def test_that_no_plan_exists_is_said_only_where_no_row_is_legal(launcher: str, none: str) -> None:
    # 8 tensor ranks and 2 stages are 16 GPUs, whatever their memory
    pin = {"tensor_parallel_size": 8, "pipeline_parallel_size": 2}
    problem = asked("llama-3.1-8b", "h100-sxm-80gb", 8, launcher)
    pinned = replace(problem, options=replace(problem.options, pin=pin))
    answer = answered(pinned)
    assert (answer.status, answer.legal) == ("infeasible", 0)
    assert answer.certainty.startswith(none)
    assert answer.infeasible is not None
    assert answer.infeasible.closest is None


def test_the_plan_of_a_risk_that_is_offered_is_the_closest() -> None:
    problem = asked("qwen3-8b", "a100-sxm-40gb", 4, "trl")
    found = answered(problem).infeasible
    assert found is not None
    assert found.closest is not None
    (accepted,) = (remedy for remedy in found.remedies if remedy.kind == "risk")
    assert accepted.config == found.closest.config
    stated = accepted.settings["search.max_out_of_memory_probability"]
    # rounded up to a tenth of a per cent
    assert 0.0 <= stated - found.closest.prediction.out_of_memory_probability < 1.1e-3


def test_the_check_refuses_a_closest_plan_with_another_risk() -> None:
    problem = asked("qwen3-8b", "a100-sxm-40gb", 4, "trl")
    profile = default_profile(problem.cluster, problem.launcher)
    found = answered(problem).infeasible
    assert found is not None
    assert found.closest is not None
    assert closest_violations(problem, profile, found.closest) == []
    seen = found.closest.prediction
    half = replace(seen, out_of_memory_probability=seen.out_of_memory_probability / 2)
    faults = closest_violations(problem, profile, replace(found.closest, prediction=half))
    assert any("the stated risk is" in fault for fault in faults)
    assert closest_violations(problem, profile, replace(found.closest, rank=1, ranked=True))


def test_the_closest_of_a_missed_deadline_is_the_soonest_plan_which_fits() -> None:
    problem = asked("llama-3.1-8b", "h100-sxm-80gb", 8, "trl")
    # 1e12 tokens * 6 * 8e9 FLOPs / 8 GPUs / 4e14 FLOP/s are half a year
    answer = answered(
        replace(problem, options=replace(problem.options, deadline_days=1.0, total_tokens=10**12))
    )
    assert answer.infeasible is not None
    closest = answer.infeasible.closest
    assert closest is not None
    assert closest.days > 100.0
    assert closest.prediction.out_of_memory_probability <= 0.01
    assert answer.certainty.startswith("No plan meets the deadline of 1 days; the fastest of")

"""Requests become problems, problems become canonical requests, and faults name their field."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import cast, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.optimizers import OPTIMIZERS
from meshwright.profiles.profile import default_profile
from meshwright.service.requests.parse import digest_of, parse_problem, problem_to_mapping
from meshwright.service.requests.schema import WorkloadRequest
from meshwright.solver.predict import profile_of_variant
from meshwright.solver.problem import SearchOptions, problem_digest
from meshwright.solver.space.launcher_rules import left_out, stored_notes, unwritten
from tests.served.requests import fault, faults

Request = dict[str, object]
WORKLOAD: Request = {"global_batch_size": 512, "seq_length": 8192}


def request(**parts: object) -> Request:
    """Llama 3.1 70B on 16 DGX H100, with parts replaced."""
    base: Request = {
        "model": {"name": "llama-3.1-70b"},
        "cluster": {"name": "dgx-h100", "num_nodes": 16},
        "workload": WORKLOAD,
    }
    return {**base, **parts}


def sentence(raw: Mapping[str, object]) -> str:
    return fault(raw).sentence()


def test_the_smallest_request_gets_the_documented_defaults() -> None:
    problem = parse_problem(request())
    assert problem.options == SearchOptions()
    assert (problem.launcher, problem.workload.precision, problem.workload.optimizer) == (
        "megatron-lm",
        "bf16",
        "adamw",
    )
    assert problem.cluster.num_gpus == 128


def test_a_problem_survives_its_canonical_request_and_json() -> None:
    search = {
        "pin": {"tensor_parallel_size": 8, "recompute_granularity": "full"},
        "forbid": {"micro_batch_size": [4, 2]},
        "bounds": {"micro_batch_size": [1, 4]},
        "constraints": ["zero_stage == 3 => pipeline_parallel_size == 1", "num_gpus == 128"],
        "top_k": 3,
        "time_limit_s": 5,
    }
    problem = parse_problem(request(search=search, launcher="none"))
    assert parse_problem(json.loads(json.dumps(problem_to_mapping(problem)))) == problem


@pytest.mark.parametrize("model", ["deepseek-v3", "mixtral-8x7b", "gpt-3-175b", "qwen3-235b-a22b"])
def test_every_kind_of_model_survives_its_canonical_request(model: str) -> None:
    workload = {**WORKLOAD, "seq_length": 2048}  # as many positions as the oldest of them has learned
    problem = parse_problem(request(model={"name": model}, workload=workload))
    assert parse_problem(problem_to_mapping(problem)) == problem


def test_what_was_assumed_about_a_cluster_stays_with_the_problem() -> None:
    cluster = {"groups": [{"gpu": "h100-sxm-80gb", "num_nodes": 2}]}  # no links, no GPUs per node
    problem = parse_problem(request(cluster=cluster))
    assert problem.cluster.warnings
    assert parse_problem(problem_to_mapping(problem)) == problem


def test_the_wording_of_a_warning_changes_no_digest() -> None:
    problem = parse_problem(request(cluster={"groups": [{"gpu": "h100-sxm-80gb", "num_nodes": 2}]}))
    (warning,) = problem.cluster.warnings
    reworded = replace(problem, cluster=replace(problem.cluster, warnings=(warning.upper(),)))
    assert problem_digest(reworded) == problem_digest(problem)
    assert digest_of(reworded) == digest_of(problem)


def test_the_digest_does_not_depend_on_the_order_of_keys() -> None:
    pins = {"tensor_parallel_size": 8, "pipeline_parallel_size": 4}
    forward = parse_problem(request(search={"pin": pins}))
    backward = parse_problem(dict(reversed(request(search={"pin": dict(reversed(pins.items()))}).items())))
    assert digest_of(forward) == digest_of(backward)


@pytest.mark.parametrize(
    "change",
    [
        {"workload": {**WORKLOAD, "seq_length": 4096}},
        {"search": {"seed": 1}},
        {"search": {"top_k": 9}},
        {"launcher": "none"},
        {"cluster": {"name": "dgx-h100", "num_nodes": 8}},
        {"search": {"forbid": {"micro_batch_size": [2]}}},
        {"workload": {**WORKLOAD, "framework_options": {"gradient_dtype": "bf16"}}},
        {"workload": {**WORKLOAD, "optimizer": "muon"}},
        {"workload": {**WORKLOAD, "lora_rank": 8}},
        {"workload": {**WORKLOAD, "lengths": {"percentiles": {"p50": 900, "p100": 8192}}}},
        {
            "workload": {
                **WORKLOAD,
                "lengths": {"histogram": [{"length": 9, "share": 1.0}], "batching": "padding"},
            }
        },
        {"workload": {**WORKLOAD, "lora_rank": 8, "lora_targets": ["linear_fc1"]}},
    ],
)
def test_everything_that_changes_the_answer_changes_the_digest(change: Request) -> None:
    free = {"launcher": "none"} if change.keys() == {"workload"} else {}  # of a launcher's limits
    assert digest_of(parse_problem(request(**free, **change))) != digest_of(parse_problem(request(**free)))


# --- types and ranges
def test_a_bool_is_no_integer() -> None:
    (fault,) = faults(request(workload={**WORKLOAD, "global_batch_size": True}))
    assert (fault.pointer, fault.message) == ("/workload/global_batch_size", "must be an integer")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_nan_and_infinity_are_refused_wherever_they_stand(value: float) -> None:
    assert faults(request(search={"time_limit_s": value}))[0].pointer == "/search/time_limit_s"
    assert faults(request(model={"name": "x", "num_layers": value}))[0].pointer == "/model/num_layers"


def test_a_number_out_of_range_names_the_range_and_the_nearest_legal_value() -> None:
    assert sentence(request(workload={**WORKLOAD, "seq_length": -5})) == (
        "workload.seq_length: -5 is out of range. Allowed: from 1 to 10000000. Nearest: 1"
    )
    assert sentence(request(workload={**WORKLOAD, "global_batch_size": 0})) == (
        "workload.global_batch_size: 0 is out of range. Allowed: from 1 to 2147483647. Nearest: 1"
    )
    assert sentence(request(search={"top_k": 2**40})).endswith("Allowed: from 1 to 10000. Nearest: 10000")


def test_a_number_beyond_64_bits_is_refused_without_being_repeated() -> None:
    (fault,) = faults(request(search={"seed": 2**70}))
    assert fault.sentence() == "search.seed: the number is too large. Allowed: from 0 to 2147483647"


def test_every_fault_of_a_request_is_reported_at_once() -> None:
    raw = {"workload": {"global_batch_size": 0, "seq_length": "8k"}, "serach": {}}
    assert {fault.pointer for fault in faults(raw)} == {
        "/model",
        "/cluster",
        "/workload/global_batch_size",
        "/workload/seq_length",
        "/serach",
    }


def test_an_unknown_field_names_its_nearest_sibling() -> None:
    assert sentence(request(serach={})) == "serach: unknown field. Nearest: search"
    misnamed = {name.replace("workload", "worklod"): one for name, one in request().items()}
    assert sentence(misnamed) == "worklod: unknown field. Nearest: workload", "and not that it is missing"
    assert sentence(request(search={"topk": 3})) == "search.topk: unknown field. Nearest: top_k"


def test_a_field_in_the_wrong_part_is_sent_to_its_own() -> None:
    assert sentence(request(seq_len=8192)) == "seq_len: unknown field. Nearest: workload.seq_length"
    assert sentence(request(search={"seq_length": 1})) == (
        "search.seq_length: unknown field. Nearest: workload.seq_length"
    )
    assert sentence(request(gpus="8xH100")) == (
        'gpus: unknown field. Nearest: cluster, as in "cluster: 8xH100"'
    )


def test_a_model_and_a_cluster_that_are_both_wrong_are_both_named() -> None:
    first, second = faults(request(model={"name": "lama-3.1-70b"}, cluster={"name": "dgx-h10"}))
    assert 'unknown "lama-3.1-70b". Did you mean llama-3.1-70b' in first.sentence()
    assert second.pointer == "/cluster/name"


def test_nothing_echoes_long_input() -> None:
    long = "x" * 10_000
    for raw in (
        request(launcher=long[:64]),
        request(model={"name": long}),
        request(**{long: 1}),
        request(search={"pin": {long: 1}}),
        request(search={"pin": {"pipeline_schedule": long}}),
        request(workload={**WORKLOAD, "precision": long}),
        request(workload={**WORKLOAD, "framework_options": {long: 1}}),
    ):
        assert all(len(fault.sentence()) < 1500 for fault in faults(raw))
        assert all("x" * 200 not in fault.sentence() for fault in faults(raw))


# --- what this version cannot do
def test_fields_that_ask_for_nothing_change_nothing() -> None:
    search = {"constraints": [], "allow": [], "reserve_nodes": 0, "baseline": None}
    assert parse_problem(request(search=search)) == parse_problem(request())


def test_other_objectives_are_refused() -> None:
    assert "step_time, tokens" in (faults(request(search={"objective": "cost"}))[0].allowed or "")


def test_a_launcher_is_priced_as_the_older_software_stack_that_is_named() -> None:
    asked = request(stack="megatron-lm-2021", cluster={"name": "dgx-a100", "num_nodes": 16})
    older, today = parse_problem(asked), parse_problem({**asked, "stack": None})
    assert problem_to_mapping(older)["stack"] == "megatron-lm-2021"
    assert "stack" not in problem_to_mapping(today)
    assert problem_digest(older) != problem_digest(today)
    profiles = [default_profile(one.cluster, one.priced_as) for one in (older, today)]
    assert [one.framework.name for one in profiles] == ["megatron-lm-2021", "megatron-core"]


def test_any_launcher_is_priced_at_the_one_level_of_software_that_is_named() -> None:
    problem = parse_problem(request(launcher="any", stack="megatron-core"))
    variants = [replace(problem, launcher=name) for name in ("megatron-lm", "torchtitan", "deepspeed")]
    profile = default_profile(problem.cluster, problem.priced_as)
    assert {profile_of_variant(one, profile).framework.name for one in variants} == {"megatron-core"}


def test_an_unknown_stack_names_the_nearest() -> None:
    said = sentence(request(stack="megatron-lm-2020"))
    assert said.startswith('stack: unknown "megatron-lm-2020". Did you mean megatron-lm-2021')


def test_an_unknown_launcher_names_the_nearest() -> None:
    assert 'unknown "megatron". Did you mean megatron-lm' in sentence(request(launcher="megatron"))


def test_an_unknown_framework_option_is_refused_not_ignored() -> None:
    (fault,) = faults(request(workload={**WORKLOAD, "framework_options": {"gradients": "bf16"}}))
    assert "gradient_dtype" in fault.sentence()


# --- pins, bounds, prohibitions
def test_a_batch_that_the_pinned_ranks_do_not_divide_says_which_would_do() -> None:
    # 500 / 8 = 62.5; 62 * 8 = 496 and 63 * 8 = 504
    raw = request(
        workload={**WORKLOAD, "global_batch_size": 500}, search={"pin": {"data_parallel_size": 8}}
    )
    assert sentence(raw) == (
        "workload.global_batch_size: 500 is not a multiple of data_parallel_size = 8 (pinned). "
        "Nearest: 496, 504"
    )


def test_a_batch_that_no_bounded_size_divides_says_which_would_do() -> None:
    # micro-batches of 2, 3 or 4: 7 is a multiple of none, 6 and 8 are
    raw = request(
        workload={**WORKLOAD, "global_batch_size": 7}, search={"bounds": {"micro_batch_size": [2, 4]}}
    )
    assert faults(raw)[0].nearest == "6, 8"


def test_a_batch_smaller_than_its_pinned_ranks_names_only_what_is_above() -> None:
    raw = request(workload={**WORKLOAD, "global_batch_size": 4}, search={"pin": {"data_parallel_size": 8}})
    assert faults(raw)[0].nearest == "8"


def test_an_unknown_variable_names_the_nearest_ones() -> None:
    for section, value in (("pin", 8), ("forbid", [8]), ("bounds", [1, 8])):
        (fault,) = faults(request(search={section: {"tensor_parallel": value}}))
        assert fault.pointer == f"/search/{section}"
        assert "tensor_parallel_size" in fault.message


@pytest.mark.parametrize(
    ("search", "words"),
    [
        ({"pin": {"tensor_parallel_size": 3}}, "3 does not divide num_attention_heads = 64"),
        ({"pin": {"tensor_parallel_size": 0}}, "0 is out of range"),
        ({"pin": {"tensor_parallel_size": "8.5"}}, '"8.5" is not an integer'),
        ({"pin": {"zero_stage": 4}}, "Allowed: from 0 to 3. Nearest: 3"),
        ({"pin": {"recompute_granularity": 1}}, "must be a word"),
        ({"pin": {"recompute_granularity": "ful"}}, "Did you mean full"),
        ({"pin": {"pipeline_parallel_size": 81}}, "81 is more than num_layers = 80"),
        (
            {"pin": {"expert_parallel_size": 2}},
            "2 is more than a model without experts can use. Allowed: 1",
        ),
        ({"forbid": {"zero_stage": [0, 7]}}, "7 is out of range"),
        ({"bounds": {"micro_batch_size": [4, 1]}}, "[4, 1] is empty. Nearest: [1, 4]"),
        ({"bounds": {"micro_batch_size": [1, 2, 3]}}, "must hold exactly two numbers"),
        ({"bounds": {"micro_batch_size": []}}, "must hold exactly two numbers"),
        ({"pin": {"stage_layers": []}}, "pin.stage_layers: must be a list of layers, each an integer"),
        ({"constraints": [""]}, 'constraints.0: "" is empty'),
        ({"bounds": {"pipeline_schedule": [1, 2]}}, "only integer variables have bounds"),
        ({"bounds": {"micro_batch_size": [-3, 0]}}, "holds no legal value"),
        ({"pin": {"zero_stage": 1}, "forbid": {"zero_stage": [1]}}, "1 is pinned and forbidden"),
        ({"pin": {"micro_batch_size": 8}, "bounds": {"micro_batch_size": [1, 4]}}, "Nearest: 4"),
    ],
)
def test_an_impossible_limit_says_what_would_be_possible(search: Request, words: str) -> None:
    assert words in sentence(request(search=search))


@pytest.mark.parametrize(
    ("pin", "words", "able"),
    [
        ({"pipeline_schedule": "zb_v"}, "megatron-lm cannot run pipeline_schedule = zb_v", "torchtitan"),
        (
            {"zero_stage": 3, "pipeline_parallel_size": 4},
            "= 3 (pinned) with a pipeline. Allowed: 0, 1, or the launchers torchtitan, maxtext",
            "torchtitan",
        ),
    ],
)
def test_a_pin_that_one_launcher_lacks_names_those_that_have_it(
    pin: Request, words: str, able: str
) -> None:
    raw = request(search={"pin": pin})
    assert words in sentence({**raw, "launcher": "megatron-lm"})
    assert parse_problem(raw).launcher == able, "and without a launcher it decides which"


def test_pins_that_need_more_gpus_than_there_are_name_the_largest_that_fits() -> None:
    # 128 GPUs; pp 8 leaves 16 for tp
    (fault,) = faults(request(search={"pin": {"tensor_parallel_size": 64, "pipeline_parallel_size": 8}}))
    assert "needs 512 of 128 GPUs" in fault.message
    assert fault.nearest == "16"


def test_more_chunks_than_layers_name_the_most_that_fit() -> None:
    # 80 layers on 16 stages: at most 5 chunks a stage
    (fault,) = faults(request(search={"pin": {"pipeline_parallel_size": 16, "virtual_pipeline_size": 8}}))
    assert fault.nearest == "5"


def test_stages_of_the_embedding_and_the_head_count_among_the_chunks_that_fit() -> None:
    # 126 layers, the embedding and the head: 128 chunks on 16 stages, 8 a stage
    pin = {"pipeline_parallel_size": 16, "virtual_pipeline_size": 8}
    model = {"name": "llama-3.1-405b"}
    assert sentence(request(model=model, search={"pin": pin})).endswith("from 1 to 7. Nearest: 7")
    parse_problem(request(model=model, search={"pin": pin, "allow": ["standalone_stages"]}))
    layers = [0, *[1] * 126, 0]
    parse_problem(request(model=model, search={"pin": {**pin, "stage_layers": layers}}))
    several = {"pin": {**pin, "virtual_pipeline_size": 9}, "allow": ["standalone_stages"]}
    assert fault(request(model=model, search=several)).nearest == "8"


def test_a_size_that_splits_the_heads_of_some_layers_alone_names_what_splits_all() -> None:
    # 8 divides 8 heads, not 12; 4 divides both
    model = {
        "name": "mixed", "num_layers": 24, "hidden_size": 1024, "ffn_hidden_size": 4096,
        "vocab_size": 32000, "num_attention_heads": 8, "head_dim": 64, "num_kv_heads": 4,
        "sliding_window": 1024, "sliding_window_every": 6, "local_attention": {"num_attention_heads": 12},
    }  # fmt: skip
    one = fault(request(model=model, launcher="none", search={"pin": {"tensor_parallel_size": 8}}))
    assert (one.message, one.nearest) == ("8 does not divide num_attention_heads = 8 and 12", "4")


sizes = st.sampled_from([1, 2, 4, 8])


@settings(max_examples=50, deadline=None)
@given(tp=sizes, pp=sizes, mbs=sizes, steps=st.integers(1, 4096), seq=st.integers(1, 10**7))
def test_whatever_divides_is_accepted_and_survives_its_canonical_request(
    tp: int, pp: int, mbs: int, steps: int, seq: int
) -> None:
    pins = {"tensor_parallel_size": tp, "pipeline_parallel_size": pp, "micro_batch_size": mbs}
    workload = {"global_batch_size": mbs * steps, "seq_length": seq}
    problem = parse_problem(request(workload=workload, search={"pin": pins}))
    assert parse_problem(problem_to_mapping(problem)) == problem


# Limits of a request: constraints, logical pins, and how many there may be.


def searching(**search: object) -> Request:
    return request(search=search)


def test_a_fault_of_a_constraint_names_the_character_and_the_nearest_variable() -> None:
    search = {"constraints": ["zero_stage == 1", "tp_size * tensor_parallel <= 8"]}
    found = fault(searching(**search))
    assert found.pointer == "/search/constraints/1"
    assert found.message == "character 1: tp_size is not a variable"
    assert found.allowed is None  # the nearest is enough
    assert "Allowed: tensor_parallel_size, " in sentence(searching(constraints=["foo <= 8"]))
    search = {"constraints": ["8 >= tensor_parallel * 2"]}
    assert "character 6" in sentence(searching(**search))
    assert "Nearest: tensor_parallel_size" in sentence(searching(**search))


def test_more_limits_than_a_mask_has_bits_are_refused() -> None:
    search = {"constraints": [f"micro_batch_size != {n}" for n in range(100, 124)],
              "pin": {"tensor_parallel_size": 8},
              "forbid": {name: [3] for name in ("micro_batch_size", "zero_stage", "data_parallel_size")},
              "bounds": {name: [1, 8] for name in ("zero_stage", "micro_batch_size", "num_microbatches",
                         "data_parallel_size", "context_parallel_size")}}  # fmt: skip
    assert "33 pins, prohibitions, bounds and constraints. Allowed: up to 32" in sentence(
        searching(**search)
    )


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("bucket_bytes", [1], "must be one value, not a list. Allowed: 0 to 1e+12"),
        (
            "cuda_graph",
            ["attn"],
            "Allowed: none, layer, full_iteration, attn, mlp, … (9 in all)",
        ),
        ("attention_kernel", {"a": 1}, "not an object. Allowed: flash1, flash2, flash3"),
        ("dropout", ["yes"], "not a list. Allowed: true or false"),
        ("dropout", "yes", '"yes" is not a known value. Allowed: true or false'),
    ],
)
def test_an_option_of_the_wrong_kind_is_refused_with_its_own_values(
    name: str, value: object, words: str
) -> None:
    found = sentence(request(workload={**WORKLOAD, "framework_options": {name: value}}))
    assert f"workload.framework_options.{name}: " in found
    assert words in found


def test_a_logical_variable_is_pinned_to_true_or_false() -> None:
    problem = parse_problem(searching(pin={"sequence_parallel": True}))
    assert problem.options.pin == {"sequence_parallel": True}
    assert "must be true or false" in sentence(searching(pin={"sequence_parallel": 1}))
    assert "is not an integer" in sentence(searching(pin={"zero_stage": True}))


def test_a_pinned_split_is_kept_apart_and_written_down_as_a_pin() -> None:
    split = [20, 20, 20, 20]
    problem = parse_problem(searching(pin={"stage_layers": split, "zero_stage": 1}))
    assert problem.options.stage_layers == (20, 20, 20, 20)
    assert problem.options.pin == {"zero_stage": 1}
    assert parse_problem(problem_to_mapping(problem)) == problem


def test_a_pinned_split_that_nanotron_would_not_run_names_the_one_that_it_runs() -> None:
    # Llama 3 70B, as nanotron cannot state the rotary scaling of 3.1. It counts
    # 4 x 8192^2 + 3 x 28672 x 8192 = 973 M a layer and 128256 x 8192 = 1051 M for the head, 1.08 layers.
    # Shares of 81.08 / 4 = 20.27 are exceeded by layer 21, two (40.54) by 41, three (60.81) by 61.
    nanotron = {"launcher": "nanotron", "model": {"name": "llama-3-70b"}}
    own = parse_problem(searching(pin={"stage_layers": [21, 20, 20, 19]}) | nanotron)
    assert own.options.stage_layers == (21, 20, 20, 19)
    refused = sentence(searching(pin={"stage_layers": [20, 20, 20, 20]}) | nanotron)
    assert "nanotron splits the layers itself and does not make 20 20 20 20" in refused
    assert "Nearest: 21 20 20 19" in refused
    beyond = sentence(searching(pin={"stage_layers": [1] * 80}) | nanotron)
    assert "does not make any split into 80 stages" in beyond
    assert "Allowed: fewer stages, so that each has a layer and the last one the output head" in beyond
    assert "Nearest: 3 2 2 2" in beyond


@pytest.mark.parametrize(
    ("pin", "words"),
    [
        ({"stage_layers": [40, 39]}, "2 chunks with 79 layers, but the model has 80"),
        ({"stage_layers": [40, 0, 40]}, "at least one layer in every chunk"),
        ({"stage_layers": 4}, "must be a list of layers"),
        ({"zero_stage": [1]}, "must be one value"),
        ({"stage_layers": [1.5]}, "each an integer"),
        ({"zero_stage": None}, "must be an integer or a word"),
    ],
)
def test_what_is_no_split_is_refused(pin: dict[str, object], words: str) -> None:
    assert words in sentence(searching(pin=pin))


# Limits and precisions that the GPUs of the request cannot give.


def refusal(**parts: object) -> str:
    return sentence(request(**parts))


def test_bounds_that_need_more_gpus_than_there_are_say_so_not_that_the_batch_is_wrong() -> None:
    assert refusal(search={"bounds": {"data_parallel_size": [129, 256]}}) == (
        "search.bounds.data_parallel_size: data_parallel_size >= 129 needs 129 of 128 GPUs. "
        "Allowed: from 1 to 128. Nearest: 128"
    )


def test_pins_and_bounds_count_together() -> None:
    # 8 * 20 = 160; 128 / 8 = 16
    limits = {"pin": {"tensor_parallel_size": 8}, "bounds": {"data_parallel_size": [20, 32]}}
    assert refusal(search=limits) == (
        "search.bounds.data_parallel_size: tensor_parallel_size = 8 (pinned) × data_parallel_size >= 20 "
        "needs 160 of 128 GPUs. Allowed: from 1 to 16. Nearest: 16"
    )


@pytest.mark.parametrize(
    ("gpu", "precision", "words"),
    [
        ("v100-sxm-32gb", "bf16", "v100-sxm-32gb has no bf16. Allowed: fp16, fp32. Nearest: fp16"),
        ("a100-sxm-80gb", "fp8", "a100-sxm-80gb has no fp8. Allowed: bf16, fp16, fp32. Nearest: bf16"),
    ],
)
def test_a_precision_that_a_gpu_lacks_is_refused(gpu: str, precision: str, words: str) -> None:
    cluster = {"groups": [{"gpu": "h100", "num_nodes": 1}, {"gpu": gpu, "num_nodes": 2}]}
    workload = {"global_batch_size": 64, "seq_length": 2048, "precision": precision}
    assert refusal(cluster=cluster, workload=workload) == f"workload.precision: {words}"


def test_a_launcher_that_lacks_every_precision_of_the_gpus_is_answered_with_others() -> None:
    request = {
        "model": {"name": "llama-3-8b"}, "cluster": {"gpu": "v100-sxm-32gb", "num_gpus": 8},
        "workload": {"global_batch_size": 64, "seq_length": 4096}, "launcher": "maxtext",
    }  # fmt: skip
    with pytest.raises(
        InvalidProblemError, match=r"fp16, which maxtext lacks, under megatron-lm"
    ) as caught:
        parse_problem(request)
    (fault,) = caught.value.errors
    assert (fault.nearest, fault.tip) == (None, "--precision fp16 --launcher megatron-lm")


@pytest.mark.parametrize(
    ("gpu", "usual"), [("t4", "fp16"), ("v100-sxm-32gb", "fp16"), ("a100-sxm-80gb", "bf16")]
)
def test_a_precision_that_nobody_states_is_one_that_the_gpus_have(gpu: str, usual: str) -> None:
    problem = parse_problem(
        {
            "model": {"name": "llama-3.2-1b"},
            "cluster": {"gpu": gpu, "num_gpus": 1},
            "workload": {"global_batch_size": 4, "seq_length": 1024, "lora_rank": 8},
        }
    )
    said = [one for one in problem.cluster.warnings if one.startswith("workload.precision")]
    assert (problem.workload.precision, len(said)) == (usual, int(usual != "bf16"))


def test_a_precision_recipe_that_a_gpu_lacks_is_refused_before_a_search() -> None:
    options = {"precision_recipe": "nvfp4"}
    workload = {"global_batch_size": 64, "seq_length": 2048, "framework_options": options}
    words = refusal(cluster={"name": "dgx-h100", "num_nodes": 1}, workload=workload, launcher="none")
    at = "workload.framework_options.precision_recipe"
    assert words.startswith(f"{at}: nvfp4 needs fp4, which h100-sxm-80gb lacks. Allowed: none, fp8-delayed")


def test_a_format_of_8_or_4_bits_is_fp8_with_its_recipe() -> None:
    workload = {"global_batch_size": 64, "seq_length": 2048, "precision": "mxfp8"}
    found = parse_problem(request(cluster={"name": "dgx-b200", "num_nodes": 1}, workload=workload)).workload
    assert (found.precision, found.framework_options) == ("fp8", {"precision_recipe": "mxfp8"})
    words = refusal(workload={**workload, "framework_options": {"precision_recipe": "fp8-delayed"}})
    assert words == (
        "workload.precision: mxfp8 contradicts workload.framework_options.precision_recipe = fp8-delayed. "
        "Allowed: fp8, or mxfp8 in both. Nearest: fp8"
    )


def test_blocks_with_a_scale_each_are_refused_where_the_gpu_multiplies_none() -> None:
    workload = {"global_batch_size": 64, "seq_length": 2048, "precision": "mxfp8"}
    words = refusal(cluster={"name": "dgx-h100", "num_nodes": 1}, workload=workload, launcher="none")
    assert words == (
        "workload.precision: mxfp8 needs matrix products with a scale for each block, which "
        "h100-sxm-80gb lacks. Allowed: bf16, fp8. Nearest: fp8"
    )
    for launcher, legal in (
        ("trl", "bf16, fp16. Nearest: bf16"),
        ("torchtitan", "bf16, fp8. Nearest: fp8"),
    ):
        words = refusal(workload=workload, launcher=launcher)
        assert words == f"workload.precision: {launcher} doesn't support mxfp8. Allowed: {legal}"


def test_what_is_about_experts_is_refused_for_a_model_without() -> None:
    for name, value in (("moe_capacity_factor", 1.5), ("moe_routing_groups", "8/4")):
        workload = {"global_batch_size": 64, "seq_length": 2048, "framework_options": {name: value}}
        words = refusal(model={"name": "llama-3.1-8b"}, workload=workload)
        assert words == (
            f"workload.framework_options.{name}: {value} is about experts, and Llama 3.1 8B has none. "
            "Allowed: absent"
        )
    having = "the launchers llama-factory, megatron-bridge, megatron-lm, ms-swift"
    words = refusal(
        model={"name": "llama-3.1-8b"}, launcher="deepspeed", search={"allow": ["overlap_experts"]}
    )
    assert words.endswith(f"Allowed: {having}; a model with experts")


def test_an_unknown_framework_option_names_the_nearest() -> None:
    workload = {"global_batch_size": 64, "seq_length": 2048, "framework_options": {"gradient_dtyp": "bf16"}}
    words = refusal(cluster={"name": "dgx-h100", "num_nodes": 1}, workload=workload)
    assert "Did you mean gradient_dtype" in words


def test_short_names_mean_the_long_ones_wherever_variables_are_named() -> None:
    short = {
        "pin": {"tp": 4},
        "forbid": {"ep": [2]},
        "bounds": {"pp": [1, 4]},
        "constraints": ["tp * cp <= 8"],
    }
    long = {
        "pin": {"tensor_parallel_size": 4}, "forbid": {"expert_parallel_size": [2]},
        "bounds": {"pipeline_parallel_size": [1, 4]}, "constraints": ["tp * cp <= 8"],
    }  # fmt: skip
    given = request(search={**short, "baseline": {"tp": 4, "pp": 2}})
    written = {
        **request(),
        "search": {**long, "baseline": {"tensor_parallel_size": 4, "pipeline_parallel_size": 2}},
    }
    assert parse_problem(given) == parse_problem(written)


@pytest.mark.parametrize(
    ("search", "pointer", "message"),
    [
        ({"pin": {"tp": 0}}, "/search/pin/tp", "out of range"),
        ({"pin": {"tp": 2, "tensor_parallel_size": 2}}, "/search/pin/tp", "given too"),
        ({"bounds": {"pp": [3, 1]}}, "/search/bounds/pp", ""),
        ({"baseline": {"tp": "many"}}, "/search/baseline/tp", "integer"),
        ({"constraints": ["tp * tq <= 8"]}, "/search/constraints/0", "tq"),
    ],
)
def test_faults_of_short_names_point_at_what_was_written(
    search: dict[str, object], pointer: str, message: str
) -> None:
    with pytest.raises(InvalidProblemError) as caught:
        parse_problem(request(search=search))
    assert [one.pointer for one in caught.value.errors] == [pointer]
    assert message in caught.value.errors[0].message


# --- lengths of documents
def with_lengths(seq_length: int = 8192, **lengths: object) -> Request:
    return request(workload={**WORKLOAD, "seq_length": seq_length, "lengths": lengths})


@pytest.mark.parametrize(
    "lengths",
    [
        {"percentiles": {"p50": 900, "p99.9": 8000, "p100": 8192}},
        {
            "histogram": [{"length": 512, "share": 0.25}, {"length": 8192, "share": 0.75}],
            "batching": "padding",
        },
    ],
)
def test_lengths_survive_the_canonical_request(lengths: Request) -> None:
    problem = parse_problem(request(workload={**WORKLOAD, "lengths": lengths}))
    assert parse_problem(json.loads(json.dumps(problem_to_mapping(problem)))) == problem


def test_a_document_longer_than_a_sequence_is_refused_with_the_longest_that_fits() -> None:
    found = fault(with_lengths(percentiles={"p50": 900, "p100": 9000}))
    assert (found.pointer, found.allowed, found.nearest) == (
        "/workload/lengths/percentiles/p100", "1 to 8192", "8192")  # fmt: skip


def test_a_document_longer_than_the_models_positions_is_refused_however_long_the_sequences() -> None:
    found = fault(with_lengths(262_144, histogram=[{"length": 200_000, "share": 1.0}]))
    assert found.pointer == "/workload/lengths/histogram/0/length"
    assert (found.nearest, "131072 positions" in found.message) == ("131072", True)


def test_lengths_that_are_no_object_are_refused() -> None:
    found = fault(request(workload={**WORKLOAD, "lengths": [900, 8192]}))
    assert (found.pointer, found.message) == ("/workload/lengths", "must be an object")


def test_a_catalog_name_stands_for_a_model_or_a_cluster() -> None:
    found = parse_problem(request(model="llama-3.1-8b", cluster="dgx-h100"))
    assert found == parse_problem(request(model={"name": "llama-3.1-8b"}, cluster={"name": "dgx-h100"}))


def test_unlike_nodes_take_lengths() -> None:
    group = {"gpu": "h100-sxm-80gb", "num_nodes": 2}
    mixed = {"groups": [group, {**group, "gpu": "a100-sxm-80gb"}]}
    raw = {**with_lengths(percentiles={"p100": 8192}), "cluster": mixed, "launcher": "none"}
    assert parse_problem(raw).workload.lengths is not None


def test_8_bits_mean_the_recipe_that_the_launcher_has() -> None:
    def options(launcher: str, precision: str) -> dict[str, object]:
        asked = request(launcher=launcher, workload={**WORKLOAD, "precision": precision})
        problem = parse_problem(asked)
        return dict(problem.workload.framework_options)

    assert options("torchtitan", "fp8") == {"precision_recipe": "fp8-rowwise"}
    assert options("torchtitan", "bf16") == options("megatron-lm", "fp8") == {}


def test_a_request_may_name_every_optimizer_that_is_priced() -> None:
    assert set(get_args(WorkloadRequest.model_fields["optimizer"].annotation)) == set(OPTIMIZERS)


def test_without_a_launcher_the_first_that_can_express_the_model_is_taken() -> None:
    asked = {name: value for name, value in request().items() if name != "launcher"}
    assert parse_problem(asked).launcher == "megatron-lm"
    assert parse_problem({**asked, "model": {"name": "kimi-k2"}}).launcher == "megatron-bridge"


def test_a_launcher_that_cannot_express_the_model_is_searched_with_a_warning() -> None:
    asked = parse_problem(request(model={"name": "kimi-k2"}, launcher="megatron-lm"))
    (said,) = unwritten(asked)
    assert said.startswith("megatron-lm 0.19.2 cannot express ")
    assert "you get predictions but no launch files. Launchers that can: " in said
    assert unwritten(parse_problem(request())) == ()


def test_prediction_layers_are_left_out_where_the_launchers_classes_have_none() -> None:
    asked = parse_problem(request(model={"name": "deepseek-v3"}, launcher="trl"))
    assert (asked.model.num_mtp_layers, asked.omitted_prediction) == (0, 1)
    (said,) = left_out(asked)
    assert said == "DeepSeek-V3's multi-token prediction is left out: trl's class of it has no such layers"
    whole = parse_problem(request(model={"name": "deepseek-v3"}, launcher="megatron-lm"))
    assert (whole.model.num_mtp_layers, left_out(whole), whole.under("trl").model.num_mtp_layers) == (
        1,
        (),
        0,
    )


def test_the_web_pages_and_files_may_search_no_switch() -> None:
    assert parse_problem(request(search={"allow": ["none"]})).options.allow == ("none",)
    assert parse_problem(request()).options.allow == ()


@pytest.mark.parametrize(
    ("hub_id", "workload", "words"),
    [
        ("Qwen/Qwen3-8B", {}, None),
        (
            "Qwen/Qwen3-8B-FP8",
            {},
            r"stored in fp8. The plan trains 16-bit weights \(transformers: FineGrained",
        ),
        ("Qwen/Qwen3-8B-AWQ", {}, r"can't be trained in full. .* For QLoRA, add .* --base-precision awq$"),
        ("Qwen/Qwen3-8B-AWQ", {"lora_rank": 16}, r"The plan freezes 16-bit .* add --base-precision awq$"),
        (
            "Qwen/Qwen3-8B-NVFP4",
            {"lora_rank": 16},
            r"freezes 16-bit .*: nvfp4 is for models with experts .*, unlike Qwen3 8B",
        ),
        (
            "nvidia/Qwen3-30B-A3B-NVFP4",
            {"lora_rank": 16},
            r"stored in nvfp4. The plan freezes 16-bit .* add --base-precision nvfp4$",
        ),
        ("nvidia/Qwen3-30B-A3B-NVFP4", {"lora_rank": 16, "base_precision": "nvfp4"}, None),
        (
            "Qwen/Qwen3-8B-FP8",
            {"lora_rank": 16, "base_precision": "nf4"},
            r"can't quantize a checkpoint twice",
        ),
        ("Qwen/Qwen3-30B-A3B-GPTQ-Int4", {}, r"For QLoRA, add --lora-rank 16 --base-precision nf4$"),
        (
            "Qwen/Qwen3-30B-A3B-GPTQ-Int4",
            {"lora_rank": 16},
            r"freezes 16-bit .*: experts with frozen weights in gptq can't be predicted$",
        ),
        (  # no trainer quantises to AWQ
            "Qwen/Qwen3-8B-GPTQ-Int4",
            {"lora_rank": 16, "base_precision": "awq"},
            r"freezes a checkpoint of Qwen3 8B that is stored in awq: name it",
        ),
        ("unsloth/Qwen3-8B-bnb-4bit", {"lora_rank": 16}, r"as they are stored, add --base-precision nf4$"),
        # what bitsandbytes has quantised is the base of QLoRA as it is
        ("unsloth/Qwen3-8B-bnb-4bit", {"lora_rank": 16, "base_precision": "nf4"}, None),
        ("unsloth/Qwen3-8B-bnb-4bit", {}, r"trains 16-bit weights \(transformers: model.dequantize\(\)\)"),
    ],
)
def test_an_answer_states_what_is_trained_where_the_published_weights_are_quantised(
    hub_id: str, workload: dict[str, object], words: str | None
) -> None:
    raw = request(model={"name": hub_id}, launcher="none")
    raw["workload"] = {"global_batch_size": 8, "seq_length": 1024, **workload}
    notes = stored_notes(parse_problem(raw))
    assert (re.search(words, notes[0]) is not None) if words else notes == ()


@pytest.mark.parametrize(
    ("launcher", "gpu", "added"),
    [
        ("accelerate", "h100-sxm-80gb", "add --base-precision nvfp4"),
        ("accelerate", "a100-sxm-80gb", "SonicMoE, .*, doesn't run on A100"),  # fp4_cute.py:57
        ("accelerate", "b200-sxm-180gb", "on B200 .* in 4 bits, which is not priced"),
        ("trl", "h100-sxm-80gb", "trl doesn't support frozen weights in nvfp4"),
    ],
)
def test_a_base_of_the_checkpoint_is_named_where_the_request_may_add_it(
    launcher: str, gpu: str, added: str
) -> None:
    raw = request(model={"name": "nvidia/Qwen3-30B-A3B-NVFP4"}, launcher=launcher)
    raw["cluster"] = {"gpu": gpu, "gpus_per_node": 8, "num_nodes": 1}
    work = {"global_batch_size": 8, "seq_length": 1024, "lora_rank": 8}
    (note,) = stored_notes(parse_problem({**raw, "workload": work}))
    assert re.search(f"The plan freezes 16-bit weights of the unquantized model.*{added}", note), note
    stored = {**raw, "workload": {**work, "base_precision": "nvfp4"}}
    if "--base-precision" in note:
        assert stored_notes(parse_problem(stored)) == ()
    else:
        with pytest.raises(InvalidProblemError, match=re.escape(note.rpartition(": ")[2])):
            parse_problem(stored)


_TOWER = {
    "num_layers": 2, "hidden_size": 64, "ffn_hidden_size": 128, "num_attention_heads": 4, "patch_size": 16,
    "patch_inputs": 1536, "merged_patches": 4, "projector_matrices": 256 * 512, "model_type": "qwen3_5",
}  # fmt: skip


def _with_images(**workload: object) -> dict[str, object]:
    shape = {
        "num_layers": 2, "hidden_size": 512, "ffn_hidden_size": 1024, "num_attention_heads": 8,
        "vocab_size": 1000, "tower": _TOWER,
    }  # fmt: skip
    work = {"global_batch_size": 8, "seq_length": 4096, "images_per_sample": 2, "image_tokens": 1024}
    return {
        "model": shape, "cluster": {"name": "dgx-h100"}, "workload": {**work, **workload},
        "launcher": "none",
    }  # fmt: skip


@pytest.mark.parametrize("tokens", [1024, {"p50": 256, "p100": 1024}])
def test_images_are_read_back_as_they_were_written(tokens: object) -> None:
    problem = parse_problem(_with_images(image_tokens=tokens, frozen=["projector", "vision"]))
    assert problem.workload.frozen == ("vision", "projector")
    assert parse_problem(problem_to_mapping(problem)) == problem


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"images_per_sample": 0}, "image_tokens", "no sequence has one"),
        ({"images_per_sample": None}, "images_per_sample", "is required: custom has a vision tower"),
        ({"images_per_sample": 5}, "images_per_sample", "5 images take 5120 of 4096 tokens"),
        ({"image_tokens": None}, "image_tokens", "images of any size"),
        ({"image_tokens": {"p50": 9}}, "image_tokens/p100", "is required"),
        ({"frozen": ["vision", "projector", "language"]}, "frozen", "nothing is trained"),
        ({"frozen": ["vision"], "lora_rank": 8}, "frozen", "all three parts are already frozen"),
        ({"frozen": ["audio"]}, "frozen/0", "is not supported"),
        (
            {"images_per_sample": 0, "image_tokens": None, "lora_rank": 8, "lora_targets": ["projector"]},
            "lora_targets",
            "projector: no sequence has an image",
        ),
    ],
)
def test_images_that_cannot_be_are_refused_by_field(
    changes: dict[str, object], field: str, words: str
) -> None:
    with pytest.raises(InvalidProblemError, match=words) as caught:
        parse_problem(_with_images(**changes))
    assert caught.value.errors[0].pointer == f"/workload/{field}"


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"trained_layers": "80"}, "trained_layers", "has 80 layers, counted from 0"),
        ({"trained_layers": "79-70"}, "trained_layers", "79-70 is no list of layers"),
        ({"trained_layers": "last"}, "trained_layers", "last is no list of layers"),
        ({"trained_layers": "last4"}, "trained_layers", "no list of layers.* Nearest: 76-79"),
        ({"trained_layers": "none"}, "trained_layers", "nothing is trained"),
        (
            {"trained_layers": "79", "lora_rank": 8},
            "trained_layers",
            "Allowed: lora_rank 0, or",
        ),
        ({"trained_layers": "79", "trained_modules": ["norm"]}, "trained_modules", "embedding and head"),
        ({"trained_modules": ["lm_head"]}, "trained_modules", "without adapters all weights are trained"),
        (
            {"framework_options": {"oft": True}, "lora_rank": 1, "lora_targets": ["q_proj"]},
            "lora_rank",
            "a block of one input",
        ),
    ],
)
def test_trained_layers_that_cannot_be_are_refused_by_field(
    changes: dict[str, object], field: str, words: str
) -> None:
    with pytest.raises(InvalidProblemError, match=words) as caught:
        parse_problem(request(workload={**WORKLOAD, **changes}, launcher="none"))
    assert caught.value.errors[0].pointer == f"/workload/{field}"


@pytest.mark.parametrize(
    ("changes", "tip"),
    [
        ({"trained_layers": "all"}, "without --trained-layers"),
        ({"trained_layers": "none"}, "--trained-module lm_head"),
        ({"trained_layers": "79", "lora_rank": 8}, "without --trained-layers"),
        ({"trained_layers": "79", "optimizer": "galore"}, "without --trained-layers"),
    ],
)
def test_faults_of_trained_layers_have_options_that_have_an_answer(
    changes: dict[str, object], tip: str
) -> None:
    with pytest.raises(InvalidProblemError) as caught:
        parse_problem(request(workload={**WORKLOAD, **changes}, launcher="none"))
    assert [fault.tip for fault in caught.value.errors] == [tip]


def test_trained_layers_are_for_launchers_that_freeze_others() -> None:
    work = {**WORKLOAD, "trained_layers": "76-79", "trained_modules": ["lm_head", "embed_tokens"]}
    assert parse_problem(request(workload=work, launcher="axolotl")).workload.trained_layers == "76-79"
    assert "plans for megatron-lm can't freeze some layers" in sentence(
        request(workload=work, launcher="megatron-lm")
    )


@pytest.mark.parametrize(
    ("tower", "stated", "asked"),
    [
        ({}, {}, ["images_per_sample", "image_tokens"]),
        ({}, {"image_tokens": 256}, ["images_per_sample"]),
        ({}, {"images_per_sample": 1}, ["image_tokens"]),
        ({"tile_patches": 1024}, {}, ["images_per_sample"]),  # every image is a tile of 256 tokens
    ],
)
def test_all_that_a_tower_needs_is_asked_for_at_once_and_the_answer_is_then_enough(
    tower: dict[str, int], stated: dict[str, object], asked: list[str]
) -> None:
    raw = _with_images()
    raw["model"] = {**cast("dict[str, object]", raw["model"]), "tower": {**_TOWER, **tower}}
    work: dict[str, object] = {"global_batch_size": 8, "seq_length": 4096, **stated}
    with pytest.raises(InvalidProblemError, match="is required") as caught:
        parse_problem({**raw, "workload": work})
    assert [one.pointer for one in caught.value.errors] == [f"/workload/{name}" for name in asked]
    answers = {"images_per_sample": 1.0, "image_tokens": 256}
    parse_problem({**raw, "workload": {**work, **{name: answers[name] for name in asked}}})


def test_no_images_are_text_alone_with_the_weights_of_the_tower_and_none_of_its_work() -> None:
    work = {"global_batch_size": 8, "seq_length": 4096, "images_per_sample": 0}
    seeing = parse_problem({**_with_images(), "workload": work})
    assert parse_problem(problem_to_mapping(seeing)) == seeing
    assert problem_to_mapping(seeing)["workload"]["images_per_sample"] == 0.0  # type: ignore[index]
    text = replace(seeing, model=replace(seeing.model, tower=None))
    assert (
        seeing.model.num_parameters() - text.model.num_parameters() == seeing.model.tower_parameters() > 0
    )
    assert seeing.model_flops_per_token == text.model_flops_per_token


def test_a_model_without_a_tower_has_neither_images_nor_frozen_parts() -> None:
    raw = _with_images(frozen=["vision"], image_tokens=None)
    raw["model"] = {"name": "llama-3.1-8b"}
    with pytest.raises(InvalidProblemError) as caught:
        parse_problem(raw)
    assert {one.pointer for one in caught.value.errors} == {
        "/workload/images_per_sample", "/workload/frozen",
    }  # fmt: skip

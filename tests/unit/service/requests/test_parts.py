"""Numbers of nodes, whole runs and one's own configuration in a request."""

import json

import pytest

from meshwright.profiles.adapters import ALL_LINEAR, FUSED_TARGETS, SINGLE_TARGETS
from meshwright.profiles.cluster import Reliability
from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.requests.parse import parse_problem, problem_to_mapping
from tests.served.requests import fault

Request = dict[str, object]


def request(cluster: Request | None = None, workload: Request | None = None, **search: object) -> Request:
    """Llama 3.1 8B on 4 DGX H100."""
    return {
        "model": {"name": "llama-3.1-8b"},
        "cluster": cluster or {"name": "dgx-h100", "num_nodes": 4},
        "workload": {"global_batch_size": 128, "seq_length": 8192, **(workload or {})},
        "search": search,
    }


def survives(raw: Request) -> None:
    problem = parse_problem(raw)
    assert parse_problem(json.loads(json.dumps(problem_to_mapping(problem)))) == problem


@pytest.mark.parametrize("counts", [[1, 2, 4], {"min": 1, "max": 4}, {"max": 4}])
def test_several_numbers_of_nodes_are_a_cluster_of_the_most(counts: object) -> None:
    problem = parse_problem(request(cluster={"name": "dgx-h100", "num_nodes": counts}))
    assert problem.cluster.num_nodes == 4
    assert set(problem.options.num_nodes) <= {1, 2, 3, 4}
    assert problem.options.num_nodes[-1] == 4
    assert problem == parse_problem(request(num_nodes=counts))
    survives(request(cluster={"groups": [{"gpu": "h100-sxm-80gb", "num_nodes": counts}]}))


def test_a_whole_run_survives_its_canonical_request() -> None:
    survives(
        request(
            workload={"total_tokens": 15 * 10**12},
            objective="gpu_hours_per_token",
            gpus="fewest",
            reserve_nodes=1,
            deadline_days=60,
            gpu_hour_price=2.5,
            grid_co2_g_per_kwh=380,
            max_power_kw=18.5,
            reliability={"restart_s": 60},
            baseline={"tensor_parallel_size": 2, "pipeline_parallel_size": 6},
        )
    )


def test_what_is_not_said_of_interruptions_is_the_public_figure() -> None:
    options = parse_problem(request(reliability={"restart_s": 60})).options
    assert options.reliability == Reliability(restart_s=60.0)


def test_a_baseline_is_completed() -> None:
    baseline = parse_problem(request(baseline={"tensor_parallel_size": 2})).options.baseline
    assert baseline is not None
    assert (baseline.data_parallel_size, baseline.num_microbatches, baseline.sequence_parallel) == (
        16,
        8,
        True,
    )


@pytest.mark.parametrize(
    ("search", "pointer", "words"),
    [
        ({"deadline_days": 60}, "/workload/total_tokens", "is required for a deadline"),
        ({"reserve_nodes": 4}, "/search/reserve_nodes", "4 of 4 nodes are kept spare"),
        ({"num_nodes": [8]}, "/search/num_nodes", "8 of 4 nodes"),
        ({"num_nodes": {"min": 1, "max": 5000}}, "/search/num_nodes", "too wide"),
        ({"baseline": {"tensor_parallel_size": 3}}, "/search/baseline/tensor_parallel_size", "heads"),
        ({"baseline": {"tensor": 3}}, "/search/baseline/tensor", "unknown"),
        ({"objective": "price"}, "/search/objective", "not supported"),
        ({"deadline_days": 0}, "/search/deadline_days", "out of range"),
        ({"max_power_kw": 0.5}, "/search/max_power_kw", "less than one GPU draws"),
        ({"max_power_kw": 0}, "/search/max_power_kw", "out of range"),
        ({"grid_co2_g_per_kwh": 380}, "/workload/total_tokens", "is required for CO2"),
        ({"grid_co2_g_per_kwh": -1}, "/search/grid_co2_g_per_kwh", "out of range"),
    ],
)
def test_faults_of_a_run_name_their_field(search: Request, pointer: str, words: str) -> None:
    found = fault({**request(), "search": search})
    assert found.pointer == pointer
    assert words in found.message


def test_energy_is_ranked_where_the_data_sheet_states_a_power() -> None:
    assert parse_problem(request(objective="energy_per_token")).cluster.groups[0].gpu.power_watts == 700


def test_ranges_of_nodes_need_one_kind_of_node() -> None:
    groups = [{"gpu": "h100-sxm-80gb", "num_nodes": 2}, {"gpu": "a100-sxm-80gb", "num_nodes": 2}]
    assert fault(request(cluster={"groups": groups}, reserve_nodes=1)).pointer == "/search/reserve_nodes"


@pytest.mark.parametrize(
    ("given", "sizes"),
    [([256, 64, 128, 256], (64, 128, 256)), ({"min": 100, "max": 500}, (100, 200, 400, 500)),
     ({"min": 64, "max": 64}, (64,)), (64, (64,))],
)  # fmt: skip
def test_several_global_batches_are_a_list_or_a_range_by_doubling(
    given: object, sizes: tuple[int, ...]
) -> None:
    problem = parse_problem(request(workload={"global_batch_size": given}))
    assert (*problem.options.batch_sizes, problem.workload.global_batch_size) == sizes
    survives(request(workload={"global_batch_size": given}))


@pytest.mark.parametrize("given", [[], {"min": 2}, {"min": 3, "max": 2}, "many", [0], {"from": 1, "to": 2}])
def test_what_is_no_batch_is_refused_once(given: object) -> None:
    found = fault(request(workload={"global_batch_size": given}))
    assert found.pointer == "/workload/global_batch_size"


def test_what_is_allowed_survives_in_a_fixed_order() -> None:
    problem = parse_problem(request(allow=["muon", "fp8", "offload"], pareto=True))
    assert problem.options.allow == ("offload", "fp8", "muon")
    survives(request(allow=["muon", "fp8", "offload"], pareto=True))
    assert fault(request(allow=["fp9"])).pointer == "/search/allow/0"


@pytest.mark.parametrize(
    ("search", "at"),
    [
        ({"objective": "energy_per_token"}, "/search/objective"),
        ({"objective": "tokens_per_s_per_gpu"}, "/search/objective"),
        ({"pareto": True}, "/search/pareto"),
        ({"allow": ["offload"]}, "/search/allow"),
        ({"objective": "gpu_hours_per_token"}, "/search/objective"),
        ({"pin": {"offload": "optimizer"}}, "/search/pin/offload"),
        ({"pin": {"rank_order": "tp-cp-pp-dp"}}, "/search/pin/rank_order"),
        ({"pin": {"virtual_pipeline_size": 2}}, "/search/pin/virtual_pipeline_size"),
        ({"bounds": {"virtual_pipeline_size": [2, 4]}}, "/search/bounds/virtual_pipeline_size"),
        ({"pin": {"pipeline_schedule": "interleaved_1f1b"}}, "/search/pin/pipeline_schedule"),
        ({"forbid": {"pipeline_schedule": ["none", "1f1b"]}}, "/search/forbid/pipeline_schedule"),
        ({"pin": {"rank_order": "tp-dp-cp-pp"}}, "/search/pin/rank_order"),
        ({"bounds": {"recompute_layers": [1, 4]}}, "/search/bounds/recompute_layers"),
        ({"constraints": ["virtual_pipeline_size == 2"]}, "/search/constraints/0"),
        ({"constraints": ["zero_stage < 3", "pipeline_schedule == 'zb_h1'"]}, "/search/constraints/1"),
        ({"constraints": ["zero_stage < 3 and offload == 'optimizer'"]}, "/search/constraints/0"),
        ({"constraints": ["rank_order == 'tp-cp-pp-dp'"]}, "/search/constraints/0"),
    ],
)
def test_what_placed_stages_do_not_take_is_refused_and_not_left_out(search: Request, at: str) -> None:
    groups = [{"gpu": "h100-sxm-80gb", "num_nodes": 2}, {"gpu": "a100-sxm-80gb", "num_nodes": 2}]
    mixed = {**request({"groups": groups}), "search": search, "launcher": "none"}
    assert fault(mixed).pointer == at
    alike = {**mixed, "cluster": {"groups": [groups[0], groups[0]]}}
    assert parse_problem(alike).cluster.is_homogeneous


@pytest.mark.parametrize(
    "search",
    [
        {"pin": {"pipeline_schedule": "1f1b"}},
        {"pin": {"recompute_layers": 32}},  # all of them
        {"bounds": {"virtual_pipeline_size": [1, 4]}},
        {"forbid": {"pipeline_schedule": ["none"]}},
        {"constraints": ["virtual_pipeline_size < 2", "pipeline_schedule == '1f1b'"]},
        {"constraints": ["virtual_pipeline_size == 2 => zero_stage == 1"]},
    ],
)
def test_limits_that_leave_placed_stages_a_value_are_taken(search: Request) -> None:
    groups = [{"gpu": "h100-sxm-80gb", "num_nodes": 2}, {"gpu": "a100-sxm-80gb", "num_nodes": 2}]
    survives({**request({"groups": groups}), "search": search, "launcher": "none"})


@pytest.mark.parametrize(
    ("constraint", "launcher", "words", "nearest"),
    [
        (
            "stages('a100') > 1",
            "none",
            "a100 is not a node group of this cluster",
            "stages('a100-sxm-80gb')",
        ),
        (
            "first('a100-sxm-80gb')",
            "megatron-lm",
            "megatron-lm does not place stages",
            "launcher flagscale",
        ),
        ("first('a100-sxm-80gb')", "any", "any does not place stages", "launcher flagscale"),
    ],
)
def test_a_constraint_names_node_groups_that_stages_can_be_placed_on(
    constraint: str, launcher: str, words: str, nearest: str
) -> None:
    groups = [{"gpu": "h100-sxm-80gb", "num_nodes": 2}, {"gpu": "a100-sxm-80gb", "num_nodes": 2}]
    search = {"constraints": ["zero_stage < 3", constraint]}
    found = fault({**request({"groups": groups}), "search": search, "launcher": launcher})
    assert found.pointer == "/search/constraints/1"
    assert words in found.message
    assert found.nearest == nearest
    alike = {**request({"groups": [groups[0], groups[0]]}), "search": search, "launcher": launcher}
    assert "placed only on different node groups, but here all nodes are" in fault(alike).message


def test_several_batches_are_not_searched_on_placed_stages() -> None:
    groups = [{"gpu": "h100-sxm-80gb", "num_nodes": 2}, {"gpu": "a100-sxm-80gb", "num_nodes": 2}]
    mixed = {**request({"groups": groups}, {"global_batch_size": [64, 128]}), "launcher": "none"}
    assert fault(mixed).pointer == "/workload/global_batch_size"


def test_a_batch_ramp_is_refused_and_an_empty_one_of_an_older_file_read() -> None:
    assert parse_problem(request(workload={"batch_ramp": []})) == parse_problem(request())
    found = fault(request(workload={"batch_ramp": [{"batch": 64, "until_tokens": 10**9}]}))
    assert found.pointer == "/workload/batch_ramp"
    assert "meshwright predict" in str(found.allowed)


def test_an_empty_range_of_nodes_is_refused() -> None:
    found = fault(request(cluster={"name": "dgx-h100", "num_nodes": {"min": 3, "max": 1}}))
    assert (found.pointer, found.nearest) == ("/search/num_nodes", "1 to 3")


# Requests for frozen models and other optimizers.

WORKLOAD: Request = {"global_batch_size": 512, "seq_length": 8192}


def training(workload: Request) -> Request:
    """Llama 3.1 70B on 16 DGX H100, without a launcher's limits."""
    return {
        "launcher": "none",
        "model": {"name": "llama-3.1-70b"},
        "cluster": {"name": "dgx-h100", "num_nodes": 16},
        "workload": workload,
    }


def test_adapters_and_an_optimizers_rank_survive_the_canonical_request() -> None:
    workload = {
        **WORKLOAD, "optimizer": "galore", "optimizer_rank": 128,
        "lora_rank": 16, "lora_targets": ["linear_fc2", "linear_qkv"],
    }  # fmt: skip
    problem = parse_problem(training(workload))
    assert problem.workload.lora_targets == ("linear_qkv", "linear_fc2")  # in the order of a layer
    assert parse_problem(json.loads(json.dumps(problem_to_mapping(problem)))) == problem


@pytest.mark.parametrize(
    ("launcher", "names"),
    [
        ("accelerate", ("q_proj", "v_proj")),  # peft's own
        ("trl", ("q_proj", "v_proj")),
        ("axolotl", SINGLE_TARGETS),  # lora_target_linear
        ("llama-factory-accelerate", SINGLE_TARGETS),  # lora_target: all
        ("llama-factory", SINGLE_TARGETS),  # the same program, started without Megatron-Core's adapter
        ("ms-swift", FUSED_TARGETS),  # all-linear
        ("none", FUSED_TARGETS),
        ("any", ALL_LINEAR),  # alike under every launcher, by each one's names
    ],
)
def test_by_default_adapters_are_those_of_the_launcher(launcher: str, names: tuple[str, ...]) -> None:
    problem = parse_problem({**training({**WORKLOAD, "lora_rank": 8}), "launcher": launcher})
    assert problem.workload.lora_targets == names


GATE_UP = "experts.gate_up_proj"


@pytest.mark.parametrize(
    ("model", "launcher", "named", "answer"),
    [
        ("gpt-oss-20b", "trl", GATE_UP, (*SINGLE_TARGETS, GATE_UP)),  # its experts are no linear layers
        ("gpt-oss-20b", "any", GATE_UP, (*ALL_LINEAR, GATE_UP)),
        ("qwen3-30b-a3b", "trl", GATE_UP, "other names mean the same experts"),
        ("qwen3-30b-a3b", "any", GATE_UP, "other names mean the same experts"),
        ("qwen3-30b-a3b", "megatron-bridge", GATE_UP, f"no modules called {GATE_UP}"),
        ("qwen3-8b", "trl", "linear_qkv", SINGLE_TARGETS),  # another name of three of them
        ("qwen3-8b", "megatron-bridge", "linear_qkv", FUSED_TARGETS),
        ("qwen3-8b", "trl", "w1", "w1: only Mixtral's experts have layers with this name"),
        ("mixtral-8x7b", "trl", "w1", (*SINGLE_TARGETS, "w1")),
        ("qwen3-8b", "trl", "q_proj", SINGLE_TARGETS),  # one of them
    ],
)
def test_a_name_next_to_all_linear_layers_is_kept_or_refused(
    model: str, launcher: str, named: str, answer: tuple[str, ...] | str
) -> None:
    workload = {**WORKLOAD, "seq_length": 2048, "lora_rank": 8, "lora_targets": ["all-linear", named]}
    request = {**training(workload), "model": {"name": model}, "launcher": launcher}
    if isinstance(answer, str):
        with pytest.raises(InvalidProblemError, match=answer):
            parse_problem(request)
    else:
        assert parse_problem(request).workload.lora_targets == answer


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        ({"lora_rank": 8193}, "8193 is more than hidden_size = 8192"),
        ({"lora_rank": -1}, "-1 is out of range"),
        ({"lora_rank": 8, "lora_targets": ["linear_q"]}, "linear_qkv"),
        ({"lora_rank": 8, "lora_targets": []}, "lora_targets"),
        ({"optimizer": "galore", "optimizer_rank": 9000}, "9000 is more than hidden_size = 8192"),
        ({"optimizer": "adamw", "optimizer_rank": 64}, "adamw has no rank"),
        ({"optimizer": "shampoo"}, "muon"),
    ],
)
def test_an_impossible_variant_says_what_would_be_possible(workload: Request, words: str) -> None:
    with pytest.raises(InvalidProblemError) as caught:
        parse_problem(training({**WORKLOAD, **workload}))
    (fault,) = caught.value.errors
    assert words in fault.sentence()

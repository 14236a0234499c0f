from dataclasses import fields

import pytest
import yaml

from meshwright.profiles.catalog import CATALOG
from meshwright.profiles.errors import InvalidProblemError, UnknownNameError
from meshwright.profiles.frameworks import (
    _NOT_OPTIONS,
    OPTION_NUMBERS,
    framework_facts,
    framework_names,
    with_options,
)


def sources_of(name: str) -> dict[str, str]:
    raw = yaml.safe_load((CATALOG / "frameworks" / f"{name}.yaml").read_text("utf-8"))
    other = {} if name == "common" else sources_of(raw.get("like", "common"))
    return {**other, **raw["sources"]}


@pytest.mark.parametrize("name", framework_names())
def test_every_fact_of_every_framework_names_its_source_and_no_source_lacks_its_fact(name: str) -> None:
    facts = framework_facts(name)
    stated = {f.name for f in fields(facts)} - {"name", "stack", "precision_recipe"}
    optional = ("reduced_gradient_dtype", "replicated_gradient_dtype")
    stated -= {fact for fact in optional if not getattr(facts, fact)}
    sources = sources_of(name)
    assert sources.keys() == stated
    assert all(len(source) > 10 for source in sources.values())


def test_every_number_that_a_request_may_state_has_its_range() -> None:
    facts = framework_facts("megatron-core")
    numbers = {f.name for f in fields(facts) if type(getattr(facts, f.name)) in (int, float)}
    assert numbers - _NOT_OPTIONS == set(OPTION_NUMBERS)


def test_an_option_overrides_one_fact() -> None:
    facts = with_options(framework_facts("megatron-core"), {"gradient_dtype": "bf16"})
    assert facts.gradient_bytes == 2.0
    assert framework_facts("megatron-core").gradient_bytes == 4.0


def test_flash_attention_off_means_a_kernel_with_a_score_matrix() -> None:
    facts = framework_facts("megatron-core")
    assert facts.flash
    assert not with_options(facts, {"flash_attention": False}).flash


def test_flash_attention_on_keeps_the_frameworks_own_kernel() -> None:
    assert (
        with_options(framework_facts("megatron-core"), {"flash_attention": True}).attention_kernel
        == "cudnn"
    )


def test_an_unknown_option_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="gradient_dtype"):
        with_options(framework_facts("megatron-core"), {"gradient_dtypes": "bf16"})


@pytest.mark.parametrize(
    ("name", "value", "words", "nearest"),
    [
        ("attention_kernel", "cudn", "flash1, .* cudnn", "cudnn"),
        ("cuda_graph", "attn+moe_routr", "moe_router, .* joined by \\+", "moe_router"),
        ("dropout", "ture", "true or false", "true"),
        ("gradient_dtype", "half", "fp32, bf16, fp16", None),
    ],
)
def test_an_unknown_value_names_the_known_ones_and_the_nearest(
    name: str, value: str, words: str, nearest: str | None
) -> None:
    with pytest.raises(InvalidProblemError, match=words) as caught:
        with_options(framework_facts("megatron-core"), {name: value})
    assert caught.value.errors[0].nearest == nearest


@pytest.mark.parametrize(("value", "nearest"), [(-1, "0"), (65.0, "64"), (True, None), ("x", None)])
def test_a_number_out_of_range_names_the_nearest(value: float | str, nearest: str | None) -> None:
    with pytest.raises(InvalidProblemError, match="0 to 64") as caught:
        with_options(framework_facts("megatron-core"), {"moe_capacity_factor": value})
    assert caught.value.errors[0].nearest == nearest


def test_a_switch_takes_only_true_and_false() -> None:
    with pytest.raises(InvalidProblemError, match="true or false"):
        with_options(framework_facts("megatron-core"), {"loss_fused": 3})


def test_ranks_are_counted_whole() -> None:
    facts = framework_facts("deepspeed")
    assert with_options(facts, {"secondary_shard_size": 4.0}).secondary_shard_size == 4.0
    with pytest.raises(InvalidProblemError, match=r"2\.5 is not a whole number"):
        with_options(facts, {"secondary_shard_size": 2.5})  # priced as 2.5, written as 2


def test_an_unknown_framework_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="nanotron"):
        framework_facts("nanotrom")


def test_gradients_are_reduced_as_they_are_kept_unless_the_framework_says_otherwise() -> None:
    assert framework_facts("megatron-core").reduced_gradient_bytes == 4.0
    composer = framework_facts("fsdp1")
    assert (composer.gradient_bytes, composer.reduced_gradient_bytes) == (4.0, 2.0)


def test_gradients_quantised_to_8_bits_carry_a_scale_for_each_256() -> None:
    facts = with_options(framework_facts("deepspeed"), {"reduced_gradient_dtype": "int8"})
    # kept in bf16, reduced in 1 + 4 / 256 bytes
    assert (facts.gradient_bytes, facts.reduced_gradient_bytes) == (2.0, 1.015625)


@pytest.mark.parametrize(
    ("options", "field", "choices"),
    [
        ({"moe_dispatcher": "flex"}, "moe_dispatcher", "allgather, alltoall, deepep, hybridep"),
        ({"cuda_graph": "attn+router"}, "cuda_graph", "full_iteration"),
        ({"recompute_modules": "core_attn+mlpp"}, "recompute_modules", "shared_experts"),
        ({"moe_capacity_factor": -1}, "moe_capacity_factor", "0 to 64"),
        ({"moe_capacity_factor": True}, "moe_capacity_factor", "0 to 64"),
        ({"moe_routing_groups": "4/8"}, "moe_routing_groups", "4 of 8 groups"),
        ({"delay_wgrad": True}, "delay_wgrad", "overlap_experts = true"),
        ({"overlap_experts": True, "shared_expert_overlap": True}, "shared_expert_overlap", "= false"),
        ({"overlap_experts": True, "recompute_modules": "moe"}, "recompute_modules", "moe_act"),
        ({"recompute_modules": "core_attn+attn_proj"}, "recompute_modules", "full recomputation"),
        ({"low_precision_dispatch": True}, "low_precision_dispatch", "deepep or hybridep"),
        ({"fp8_attention": True, "attention_kernel": "flash2"}, "fp8_attention", "cudnn or flash3"),
        ({"loss_kernel": "masked", "attention_kernel": "flash2"}, "attention_kernel", "sdpa or torch"),
        ({"loss_kernel": "masked", "flash_attention": True}, "flash_attention", "sdpa or torch"),
        ({"cuda_graphs": False, "cuda_graph": "layer"}, "cuda_graphs", "one of the two"),
    ],
)
def test_unknown_and_contradictory_switches_name_field_and_choices(
    options: dict[str, str | float | bool], field: str, choices: str
) -> None:
    with pytest.raises(InvalidProblemError) as caught:
        with_options(framework_facts("megatron-core"), options)
    (fault,) = caught.value.errors
    assert fault.pointer == f"/workload/framework_options/{field}"
    assert choices in (fault.allowed or "")


def test_parts_are_put_in_one_order_and_the_old_switch_of_graphs_means_whole_layers() -> None:
    facts = framework_facts("megatron-core")
    joined = with_options(facts, {"recompute_modules": "mlp+core_attn", "cuda_graphs": True})
    assert joined.recompute_modules == "core_attn+mlp"
    assert joined.cuda_graph == "layer"

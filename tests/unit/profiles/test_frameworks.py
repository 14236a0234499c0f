from dataclasses import fields

import pytest

from meshwright.profiles.errors import InvalidProblemError, UnknownNameError
from meshwright.profiles.frameworks import framework_facts, framework_names, framework_sources, with_options


@pytest.mark.parametrize("name", framework_names())
def test_every_fact_of_every_framework_names_its_source_and_no_source_lacks_its_fact(name: str) -> None:
    facts = framework_facts(name)
    stated = {f.name for f in fields(facts)} - {"name", "stack", "precision_recipe"}
    optional = ("reduced_gradient_dtype", "replicated_gradient_dtype")
    stated -= {fact for fact in optional if not getattr(facts, fact)}
    assert framework_sources(name).keys() == stated
    assert all(len(source) > 10 for source in framework_sources(name).values())


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


def test_an_unknown_value_names_the_known_ones() -> None:
    with pytest.raises(InvalidProblemError, match="fp32, bf16, fp16"):
        with_options(framework_facts("megatron-core"), {"gradient_dtype": "fp64"})


def test_a_switch_takes_only_true_and_false() -> None:
    with pytest.raises(InvalidProblemError, match="true or false"):
        with_options(framework_facts("megatron-core"), {"loss_fused": 3})


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

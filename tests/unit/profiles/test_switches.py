"""Switches that a search may choose: what a launcher takes, and what is worth trying."""

import pytest

from meshwright.profiles.cluster import GpuSpec
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.frameworks import OPTION_PARTS, FrameworkFacts, framework_facts, with_options
from meshwright.profiles.importers.huggingface import model_from_config
from meshwright.profiles.library import find_gpu, find_model
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.profile import framework_of
from meshwright.profiles.switches import (
    Combination,
    LegalCombinations,
    allowed_switches,
    clashes,
    switch_faults,
    switches,
)
from tests.builders import a_moe_model

H100, GB200, V100 = (find_gpu(name) for name in ("h100-sxm-80gb", "gb200", "v100-sxm-32gb"))
DENSE, EXPERTS, LATENT = find_model("llama-3-8b"), a_moe_model(), find_model("deepseek-v3")


def tried(
    model: ModelSpec, gpu: GpuSpec, *names: str, launcher: str = "megatron-lm", precision: str = "bf16",
    **stated: str | bool,
) -> list[Combination]:  # fmt: skip
    facts = framework_facts("megatron-core")
    return LegalCombinations.of(
        names or allowed_switches(("switches",)), launcher, model=model, gpus=[gpu], facts=facts,
        stated=stated, precision=precision,
    ).worth_a_search()  # fmt: skip


def values(found: list[Combination], option: str) -> set[object]:
    """What is tried of an option; None: the framework's own fact."""
    return {one.options.get(option) for one in found}


def test_every_setting_names_the_line_of_every_launcher_that_takes_it() -> None:
    for switch in switches().values():
        assert switch.meaning
        for one in switch.settings:
            assert one.launchers
            assert all(":" in line or ".py" in line for line in one.launchers.values())


def test_every_switch_that_needs_its_own_name_is_a_change_and_what_slows_a_gpu_one_of_energy() -> None:
    own = {name: one for name, one in switches().items() if one.beside == name}
    assert all(one.change for one in own.values())
    of_energy = {name for name, one in own.items() if one.objective == "energy_per_token"}
    assert of_energy == {"power_limit_w"}
    assert {one.also for one in own.values()} == {"", "offload"}


def test_every_setting_holds_together_with_the_facts_of_megatron_core() -> None:
    for switch in switches().values():
        for one in switch.settings:
            found = with_options(framework_facts("megatron-core"), one.options)
            assert all(getattr(found, name) == value for name, value in one.options.items())


@pytest.mark.parametrize(
    ("gpu", "dispatchers"),
    [
        (H100, {"allgather", "hybridep"}),  # which is never slower than an all-to-all or DeepEP
        (GB200, {"allgather", "hybridep"}),
        (V100, {"allgather", None}),  # all-to-all is the framework's own
    ],
)
def test_dispatchers_are_those_of_the_gpu(gpu: GpuSpec, dispatchers: set[str | None]) -> None:
    assert values(tried(EXPERTS, gpu, "moe_dispatcher"), "moe_dispatcher") == dispatchers


def test_a_launcher_without_a_dispatcher_keeps_the_others() -> None:
    found = tried(EXPERTS, H100, "moe_dispatcher", launcher="llama-factory")
    assert values(found, "moe_dispatcher") == {"allgather", None}
    found = tried(EXPERTS, H100, "moe_dispatcher", launcher="ms-swift")  # sequences of any length
    assert values(found, "moe_dispatcher") == {None}
    assert tried(EXPERTS, H100, launcher="deepspeed") == [Combination()]


def test_a_dense_model_has_graphs_and_modules_alone() -> None:
    found = tried(DENSE, H100)
    assert {name for one in found for name in one.options} == {"cuda_graph", "recompute_modules"}
    assert values(found, "cuda_graph") == {"full_iteration"}, "it beats graphs of layers, and none"
    assert values(found, "recompute_modules") == {None, "layernorm", "mlp", "layernorm+mlp"}
    # modules are about selective recomputation alone
    assert all(one.recompute == ("selective",) for one in found if "recompute_modules" in one.options)


def test_modules_of_an_mlp_are_not_replayed_where_no_layer_has_one() -> None:
    mixers = model_from_config({"model_type": "mamba2"}, name="x")
    assert values(tried(mixers, H100), "recompute_modules") == {None, "layernorm"}


def test_graphs_of_parts_leave_full_recomputation_to_none() -> None:
    found = tried(EXPERTS, H100, "cuda_graph")
    kinds = {one.options.get("cuda_graph"): one.recompute for one in found}
    assert kinds == {"attn+moe_router+moe_preprocess": ("none", "selective"), None: ("full",)}


def test_what_contradicts_is_never_tried_together() -> None:
    for one in tried(LATENT, H100):
        options = one.options
        assert not (options.get("overlap_experts") and options.get("moe_dispatcher") == "allgather")
        assert not (options.get("overlap_experts") and "mlp" in str(options.get("cuda_graph")).split("+"))
        replayed = str(options.get("recompute_modules")).split("+")
        assert not ("moe" in replayed and "moe_router" in str(options.get("cuda_graph")))
        assert not ("moe" in replayed and options.get("overlap_experts"))
        assert options.get("delay_wgrad", False) == options.get("overlap_experts", False)


def test_in_8_bits_with_delayed_scaling_neither_norms_nor_activations_are_replayed() -> None:
    found = values(tried(LATENT, H100, "recompute_modules", precision="fp8"), "recompute_modules")
    assert found == {None, "mla_up_proj"}


def test_what_the_request_states_is_not_varied() -> None:
    found = tried(EXPERTS, H100, moe_dispatcher="alltoall", cuda_graph="attn")
    assert values(found, "moe_dispatcher") == values(found, "cuda_graph") == {None}
    assert values(found, "overlap_experts") == {None, True}


@pytest.mark.parametrize(
    ("options", "wrong", "choices"),
    [
        ({"moe_dispatcher": "allgather", "overlap_experts": True}, "overlap_experts", "alltoall"),
        (
            {"moe_dispatcher": "allgather", "shared_expert_overlap": True},
            "shared_expert_overlap",
            "alltoall",
        ),
        ({"cuda_graph": "moe+moe_router"}, "cuda_graph", "moe or moe_router"),
        ({"cuda_graph": "moe_preprocess"}, "cuda_graph", "moe_router"),
        ({"cuda_graph": "mlp", "overlap_experts": True}, "cuda_graph", "without mlp"),
        ({"cuda_graph": "moe_router", "recompute_modules": "moe"}, "cuda_graph", "without moe_router"),
        (
            {"recompute_modules": "shared_experts", "shared_expert_overlap": True},
            "recompute_modules",
            "false",
        ),
        ({"offload_modules": "attn_proj"}, "offload_modules", "core_attn"),
        ({"offload_modules": "moe_act", "recompute_modules": "moe"}, "offload_modules", "outside"),
    ],
)
def test_contradictions_name_field_value_and_choices(
    options: dict[str, str | bool], wrong: str, choices: str
) -> None:
    with pytest.raises(InvalidProblemError) as caught:
        with_options(framework_facts("megatron-core"), options)
    fault = next(one for one in caught.value.errors if one.pointer.endswith(wrong))
    assert str(options[wrong]) in fault.message
    assert choices in str(fault.allowed)


def test_every_part_that_is_captured_replayed_or_offloaded_is_a_known_one() -> None:
    for switch in switches().values():
        for one in switch.settings:
            for name, value in one.options.items():
                parts, alone = OPTION_PARTS.get(name, ((), ()))
                assert not parts or value in alone or set(str(value).split("+")) <= {*parts}


def test_modules_are_offloaded_where_offload_is_allowed_and_not_by_their_own_name() -> None:
    assert "offload_modules" not in allowed_switches(("switches",))
    assert "offload_modules" not in allowed_switches(("offload_modules",))
    assert allowed_switches(("offload", "none")) == ["offload_modules"]


def test_a_set_of_offloaded_modules_is_about_configurations_that_offload_activations() -> None:
    dense = {one.options.get("offload_modules"): one for one in tried(DENSE, H100, "offload_modules")}
    # nothing; attention; attention with norms: the other sets are of experts
    assert len(dense) == 3
    assert dense[None].constraints == ()
    assert all("activations" in one.constraints[0] for name, one in dense.items() if name)
    assert len(tried(EXPERTS, H100, "offload_modules")) == 6


def test_a_graph_of_whole_steps_offloads_no_modules() -> None:
    both = {"cuda_graph": "full_iteration", "offload_modules": "core_attn+attn_proj"}
    with pytest.raises(InvalidProblemError) as caught:
        with_options(framework_facts("megatron-core"), both)
    assert {one.pointer.rsplit("/", 1)[-1] for one in caught.value.errors} == set(both)


def test_gradients_in_bf16_are_tried_by_their_own_name_and_beside_bf16_weights_alone() -> None:
    assert "gradient_dtype" not in allowed_switches(("switches",))
    assert allowed_switches(("gradient_dtype", "none")) == ["gradient_dtype"]
    assert values(tried(DENSE, H100, "gradient_dtype"), "gradient_dtype") == {"bf16"}  # it beats fp32
    assert values(tried(DENSE, H100, "gradient_dtype", precision="fp16"), "gradient_dtype") == {None}


# A launcher, a model, a precision, options, and the one that is refused; "": they are legal.
# Megatron-LM's own parser judges so too (``tests/launchers/mutants.py``).
CLASHES: list[tuple[str, ModelSpec, str, dict[str, str | bool | float], str]] = [
    ("megatron-lm", DENSE, "fp8", {"recompute_modules": "layernorm"}, "recompute_modules"),
    ("megatron-lm", DENSE, "bf16", {"recompute_modules": "layernorm"}, ""),
    ("megatron-lm", DENSE, "fp8", {"recompute_modules": "layernorm", "precision_recipe": "mxfp8"}, ""),
    ("megatron-lm", EXPERTS, "bf16", {"recompute_modules": "layernorm"}, ""),
    ("megatron-lm", LATENT, "bf16", {"recompute_modules": "moe_act"}, ""),
    ("megatron-lm", DENSE, "bf16", {"recompute_modules": "mlp+moe_act"}, "recompute_modules"),
    ("megatron-lm", DENSE, "fp16", {"gradient_dtype": "bf16"}, "gradient_dtype"),
    ("megatron-bridge", DENSE, "bf16", {"gradient_dtype": "fp16"}, "gradient_dtype"),
    ("deepspeed", DENSE, "fp16", {"gradient_dtype": "bf16"}, "gradient_dtype"),
    ("deepspeed", DENSE, "fp16", {"gradient_dtype": "fp16"}, ""),
    ("llama-factory", DENSE, "bf16", {"gradient_dtype": "bf16"}, "gradient_dtype"),
    ("none", DENSE, "fp16", {"gradient_dtype": "bf16"}, ""),
    ("torchtitan", DENSE, "bf16", {"low_precision_gathers": True}, "low_precision_gathers"),
    ("megatron-lm", DENSE, "bf16", {"cuda_graph": "attn"}, ""),
    ("megatron-lm", EXPERTS, "bf16", {"cuda_graph": "attn+mlp"}, "cuda_graph"),
    ("megatron-lm", LATENT, "bf16", {"cuda_graph": "attn+mlp"}, ""),
    ("megatron-lm", EXPERTS, "bf16", {"cuda_graph": "full_iteration"}, "cuda_graph"),
    ("megatron-lm", EXPERTS, "bf16", {"cuda_graph": "full_iteration", "moe_capacity_factor": 1.0}, ""),
    ("megatron-lm", DENSE, "bf16", {"cuda_graph": "layer", "dropout": True}, ""),  # but for selective rows
    ("ms-swift", EXPERTS, "bf16", {"moe_routing_groups": "3/1"}, "moe_routing_groups"),
]  # fmt: skip


@pytest.mark.parametrize(("launcher", "model", "precision", "stated", "refused"), CLASHES)
def test_options_that_contradict_the_model_or_the_precision_are_refused(
    launcher: str, model: ModelSpec, precision: str, stated: dict[str, str | bool | float], refused: str
) -> None:
    facts = with_options(framework_facts(framework_of(launcher)), stated)
    found = list(
        switch_faults(
            launcher, stated, facts=facts, model=model, precision=precision, gpus=[H100], pinned=None
        )
    )
    assert [one.field for one in found] == ([f"workload.framework_options.{refused}"] if refused else [])
    assert all(str(stated[refused]).lower() in one.message and one.allowed and one.nearest for one in found)


@pytest.mark.parametrize(("launcher", "model", "precision", "stated", "refused"), CLASHES)
def test_the_nearest_value_of_a_refused_option_is_legal(
    launcher: str, model: ModelSpec, precision: str, stated: dict[str, str | bool | float], refused: str
) -> None:
    assert not refused or refused in stated
    facts = with_options(framework_facts(framework_of(launcher)), stated)
    for one in clashes(launcher, facts, model, precision):
        near: str | bool = {"false": False}.get(one.nearest, one.nearest)
        mended = with_options(facts, {one.options[0]: near})
        assert not [
            left for left in clashes(launcher, mended, model, precision) if left.options == one.options
        ]


@pytest.mark.parametrize(
    ("launcher", "stated", "says"),
    [
        ("deepspeed", {"cuda_graph": "layer"}, "deepspeed's launch files have no setting for it"),
        ("torchtitan", {"cuda_graphs": True}, "torchtitan's launch files have no setting for it"),
        ("ms-swift", {"cuda_graph": "attn"}, "this launcher's training loop captures no graphs"),
        ("llama-factory", {"cuda_graphs": True}, "this launcher's training loop captures no graphs"),
        (
            "torchtitan",
            {"recompute_modules": "mlp"},
            "absent, or every_second_mm (launchers with other values: llama",
        ),
        (
            "accelerate",
            {"gradient_dtype": "bf16"},
            "absent, or fp32 (launchers with other values: deepspeed, llama-factory, maxtext, megatron-b",
        ),
        ("ms-swift", {"optimizer_offload_fraction": 0.5}, ""),  # hybrid optimizer of Megatron-Core
        ("deepspeed", {"gradient_dtype": "fp32"}, ""),  # communication_data_type, stated and not searched
        ("torchtitan", {"recompute_modules": "every_second_mm"}, ""),  # as it is anyway
        ("none", {"cuda_graph": "layer"}, ""),  # whose files nobody writes
    ],
)
def test_a_switch_that_a_launcher_does_not_have_is_refused(
    launcher: str, stated: dict[str, str | bool | float], says: str
) -> None:
    facts = with_options(framework_facts(framework_of(launcher)), stated)
    found = list(
        switch_faults(
            launcher, stated, facts=facts, model=DENSE, precision="bf16", gpus=[H100], pinned=None
        )
    )
    assert [fault.pointer for fault in found] == [
        f"/workload/framework_options/{next(iter(stated))}"
    ] * bool(says)
    assert says in " ".join(f"{fault.message} {fault.allowed}" for fault in found)


def test_a_kind_of_recomputation_that_options_exclude_is_refused_where_it_is_pinned() -> None:
    stated: dict[str, str | bool] = {"cuda_graph": "layer", "dropout": True}
    facts = with_options(framework_facts("megatron-core"), stated)
    found = [
        list(
            switch_faults(
                "megatron-lm", stated, facts=facts, model=DENSE, precision="bf16", gpus=[H100], pinned=kind
            )
        )
        for kind in (None, "none", "selective")
    ]
    assert [len(some) for some in found] == [0, 0, 1], "core attention would be drawn anew in the graph"


def test_a_searched_switch_keeps_what_its_launcher_does_anyway() -> None:
    """Megatron-Bridge reduces gradients in two bytes, which are fp16 beside fp16 weights."""
    for names in (("gradient_dtype",), ("gradient_dtype", "loss_kernel")):
        plain, found = (
            LegalCombinations.of(
                some, "megatron-bridge", model=DENSE, gpus=[V100], facts=framework_facts("nemo"),
                stated={}, precision="fp16",
            ).worth_a_search() for some in (names[1:], names)
        )  # fmt: skip
        assert found == plain


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp8"])
@pytest.mark.parametrize(
    "launcher", sorted({one for each in switches().values() for one in each.launchers})
)
def test_every_switch_more_leaves_the_combinations_that_are_tried_without_it(
    launcher: str, precision: str
) -> None:
    """Beaten ones apart: whatever holds together without a switch does beside its own setting."""
    facts = framework_facts(framework_of(launcher))
    for model, gpu in ((DENSE, V100), (EXPERTS, H100)):

        def legal(*names: str, model: ModelSpec = model, gpu: GpuSpec = gpu) -> list[FrameworkFacts]:
            found = LegalCombinations.of(
                names, launcher, model=model, gpus=[gpu], facts=facts, stated={}, precision=precision
            )
            return [*found.facts_of.values()]

        for name in switches():
            assert facts in legal(name)
            assert all(one in legal(name, "gradient_dtype") for one in legal(name))

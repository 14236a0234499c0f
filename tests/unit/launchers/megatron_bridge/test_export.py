"""Gradients of Megatron-Bridge are reduced in what was priced: the recipe has the last word over ddp."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshwright.launchers.megatron_bridge.export import override_parts
from meshwright.launchers.reading.base import LaunchFile, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.launchers.registry import export
from meshwright.launchers.target import Target
from meshwright.profiles.capabilities import launcher_capabilities, model_facts
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.library import find_model
from meshwright.service.requests.parse import parse_problem
from tests.launchers.plans import CASES

_OFFLOADED = CASES["megatron-bridge"]["llama-3.1-70b-offloaded"]  # which weights in 8 bits exclude
FOUND = replace(
    _OFFLOADED, plan=replace(_OFFLOADED.plan, config=replace(_OFFLOADED.config, offload="none"))
)
# Precision, and the dtype of gradients; nemo's own is bf16.
KINDS = [
    (precision, recipe, gradients)
    for precision, recipe in (
        ("bf16", "none"), ("fp16", "none"), ("fp8", "none"), ("fp8", "fp8-current"),
        ("fp8", "fp8-blockwise"), ("fp8", "mxfp8"), ("fp8", "nvfp4"),
    )
    for gradients in ("bf16", "fp32")
]  # fmt: skip


def of(precision: str, recipe: str, gradients: str) -> Target:
    options: dict[str, str | int | float | bool] = (
        {} if gradients == "bf16" else {"gradient_dtype": gradients}
    )
    options |= {} if recipe == "none" else {"precision_recipe": recipe}
    workload = replace(FOUND.workload, precision=precision, framework_options={**options})
    return replace(FOUND, problem=replace(FOUND.problem, workload=workload))


def files_of(found: Target) -> dict[str, str]:
    return export(found.plan, found.problem, "megatron-bridge").files


def read(files: dict[str, str]) -> LaunchFile:
    return read_launch_files(Source(name="launch.sh", text=files["launch.sh"], files=files))


@pytest.mark.parametrize(("precision", "recipe", "gradients"), KINDS)
def test_precision_and_gradients_are_written_and_read_back(
    precision: str, recipe: str, gradients: str
) -> None:
    found = of(precision, recipe, gradients)
    back = read(files_of(found))
    assert back.workload == found.workload
    assert back.notes == ()


def test_only_another_gradient_dtype_than_the_recipes_needs_a_configuration() -> None:
    plain = files_of(of("bf16", "none", "fp32"))["plan_args.sh"]
    assert "    mixed_precision=bf16_mixed\n" in plain
    own = files_of(of("bf16", "none", "bf16"))["plan_args.sh"]
    # an object of the recipe's would be merged with the new one: it is taken away first
    assert own.index("    mixed_precision=null\n") < own.index("mixed_precision={_target_:megatron.bridge.")
    assert "grad_reduce_in_fp32:false" in own


@pytest.mark.parametrize(
    ("override", "gradients", "note"),
    [
        (
            "mixed_precision=bf16_mixed",
            "fp32",
            "mixed_precision sets grad_reduce_in_fp32=true",
        ),
        ("mixed_precision=bf16-mixed", "fp32", "does nothing"),
        ("mixed_precision=bf16_mixed_bf16_grad_reduce", "bf16", None),
        ("mixed_precision.grad_reduce_in_fp32=false", "bf16", "bf16_mixed is assumed"),
    ],
)
def test_what_really_runs_is_what_mixed_precision_says(
    override: str, gradients: str, note: str | None
) -> None:
    files = files_of(of("bf16", "none", "bf16"))
    lines = [line for line in files["plan_args.sh"].splitlines() if "mixed_precision" not in line]
    place = next(place for place, line in enumerate(lines) if "ddp.grad_reduce_in_fp32=false" in line)
    lines.insert(place, override)
    found = read({**files, "plan_args.sh": "\n".join(lines)})
    assert found.workload.framework_options.get("gradient_dtype", "bf16") == gradients
    assert (note is None) == (found.notes == ())
    assert note is None or any(note in one for one in found.notes)


CURRENT = "{_target_:x.MixedPrecisionConfig,bf16:true,fp8:hybrid,fp8_recipe:tensorwise,MORE}"


def with_lines(*more: str) -> LaunchFile:
    files = files_of(of("bf16", "none", "bf16"))
    lines = [line for line in files["plan_args.sh"].splitlines() if "mixed_precision" not in line]
    place = next(place for place, line in enumerate(lines) if "ddp.grad_reduce_in_fp32=false" in line)
    lines[place:place] = [f"    '{one}'" for one in more]
    return read({**files, "plan_args.sh": "\n".join(lines)})


def test_weights_of_8_bits_are_priced_as_the_configuration_states_them() -> None:
    for stated, expected in (("true", None), ("false", False)):
        text = CURRENT.replace("MORE", f"fp8_param_gather:{stated}")
        found = with_lines("mixed_precision=null", f"mixed_precision={text}")
        assert (found.workload.precision, found.unread) == ("fp8", ())
        assert found.workload.framework_options.get("low_precision_weights") is expected


@pytest.mark.parametrize(
    ("more", "name"),
    [
        (["mixed_precision=null", f"mixed_precision={CURRENT.replace('MORE', 'fp8_wgrad:false')}"],
         "mixed_precision.fp8_wgrad"),
        (["mixed_precision.num_layers_at_end_in_bf16=4"], "mixed_precision.num_layers_at_end_in_bf16"),
        (["model.tp_comm_overlap=true", "model.tp_comm_overlap_rs=false"], "model.tp_comm_overlap_rs"),
        (["ddp.nccl_ub=true"], "ddp.nccl_ub"),
        (["model.grad_sync_func._target_=mine.sync"], "model.grad_sync_func._target_"),
    ],
)  # fmt: skip
def test_what_changes_the_step_and_is_not_priced_is_refused(more: list[str], name: str) -> None:
    with pytest.raises(InvalidProblemError, match=rf"{name}: line \d+: cannot be read"):
        with_lines(*more)


def test_what_does_nothing_is_neither_refused_nor_listed() -> None:
    found = with_lines(
        "mixed_precision=bf16_mixed",
        "model.cuda_graph_retain_backward_graph=true",  # without graphs
        "model.store_param_remainders=false",  # without the optimizer that has them
        "model.fp8=hybrid",  # mixed precision is written over it
        "ddp.bucket_size=1000",
        "model.variable_seq_lengths=false",
    )
    assert (found.unread, found.workload.precision) == ((), "bf16")
    assert any("model.fp8 does nothing" in note for note in found.notes)


def test_a_recipe_that_is_none_is_refused_with_its_line_and_all_that_are() -> None:
    files = files_of(of("bf16", "none", "fp32"))
    text = files["plan_args.sh"].replace("=bf16_mixed", "=bf17_mixed")
    with pytest.raises(InvalidProblemError, match=r'mixed_precision: line \d+: "bf17_mixed" .*bf16_mixed'):
        read({**files, "plan_args.sh": text})


@pytest.mark.parametrize("section", ["training", "x", "model", "ddp", "optimizer"])
def test_a_right_name_in_a_wrong_section_is_refused_with_the_right_one(section: str) -> None:
    files = files_of(of("bf16", "none", "fp32"))
    words = r"is not a name of that section\. Nearest: train\.micro_batch_size$"
    moved = files["plan_args.sh"].replace(" train.micro_batch_size", f" {section}.micro_batch_size")
    added = files["plan_args.sh"].replace("\n)", f"\n    {section}.micro_batch_size=2\n)")
    for text in (moved, added):
        with pytest.raises(InvalidProblemError, match=rf"^{section}\.micro_batch_size: line \d+: {words}"):
            read({**files, "plan_args.sh": text})


def test_a_name_of_megatron_lm_alone_is_refused_with_the_one_that_bridge_has() -> None:
    with pytest.raises(InvalidProblemError, match=r"model\.swiglu: .*Nearest: model\.gated_linear_unit$"):
        with_lines("model.swiglu=true")


def test_a_key_that_is_deleted_is_refused_since_the_recipe_keeps_its_value() -> None:
    """Megatron-Bridge 0.3.1, training/utils/omegaconf_utils.py: keys that are left are written back."""
    with pytest.raises(InvalidProblemError, match=r"~model\.context_parallel_size: line \d+: does"):
        with_lines("~model.context_parallel_size")
    assert with_lines("~logger.wandb_project").unread == ()


@pytest.mark.parametrize(("gated", "warned"), [(True, []), (False, ["use a recipe of a model with gelu"])])
def test_a_recipes_activation_is_warned_of_only_where_recipes_have_another(
    gated: bool, warned: list[str]
) -> None:
    """Megatron-Bridge 0.3.1, models/llama/llama_provider.py:36, qwen/qwen_provider.py:53: F.silu."""
    model = replace(FOUND.model, gated_mlp=gated)
    found = replace(FOUND, problem=replace(FOUND.problem, model=model))
    said = export(found.plan, found.problem, "megatron-bridge").warnings
    assert [one.partition(": ")[2] for one in said if "activation" in one] == warned


@pytest.mark.parametrize(
    ("stage", "name", "precision"),
    [
        (0, "muon", "bf16"),
        (1, "dist_muon", "bf16"),
        (1, "dist_muon", "mxfp8"),
        (1, "dist_muon", "fp8-blockwise"),
        (1, "dist_muon", "fp8-current"),
    ],
)
def test_muon_deals_its_matrices_to_data_parallel_ranks_and_is_read_back(
    stage: int, name: str, precision: str
) -> None:
    ranks = FOUND.config.tensor_parallel_size * FOUND.config.data_parallel_size
    config = replace(
        FOUND.config, tensor_parallel_size=1, sequence_parallel=False, data_parallel_size=ranks,
        zero_stage=stage, zero_shard_size=ranks if stage else 1,
        num_microbatches=FOUND.config.num_microbatches // FOUND.config.tensor_parallel_size,
    )  # fmt: skip
    workload = replace(FOUND.workload, optimizer="muon", precision="bf16")
    if precision != "bf16":  # its weights stay in 16 bits: NVIDIA's recipes of Kimi-K2
        options: dict[str, str | bool] = {"precision_recipe": precision, "low_precision_weights": False}
        workload = replace(workload, precision="fp8", framework_options=options)
    found = replace(
        FOUND,
        plan=replace(FOUND.plan, config=config),
        problem=replace(FOUND.problem, workload=workload),
    )
    files = files_of(found)
    assert f"    optimizer.optimizer={name}\n" in files["plan_args.sh"]
    assert "    ddp.use_distributed_optimizer=false\n" in files["plan_args.sh"]
    assert "    ddp.overlap_param_gather=false\n" in files["plan_args.sh"]
    assert "fp8_param_gather:true" not in files["plan_args.sh"]
    back = read(files)
    assert back.configuration is not None
    assert (back.workload, back.configuration.zero_stage) == (workload, stage)
    assert back.configuration.zero_shard_size == config.zero_shard_size


def test_muon_in_eight_bits_keeps_weights_in_sixteen() -> None:
    asked = {
        "model": {"name": "kimi-k2"},
        "cluster": {"name": "gb300-nvl72", "num_nodes": 64},
        "workload": {
            "global_batch_size": 4096, "seq_length": 4096, "precision": "mxfp8", "optimizer": "muon",
        },
        "launcher": "megatron-bridge",
    }  # fmt: skip
    found = parse_problem(asked)
    assert found.workload.framework_options["low_precision_weights"] is False
    asked["workload"]["framework_options"] = {"low_precision_weights": True}  # type: ignore[index]
    with pytest.raises(InvalidProblemError, match="muon has no shards of Adam's"):
        parse_problem(asked)


@pytest.mark.parametrize(
    ("changes", "written"),
    [
        ({}, ["model.beta_fast=1.0"]),
        ({"beta_slow": 2.0}, ["model.beta_fast=1.0", "model.beta_slow=2.0"]),
        ({"beta_fast": 32.0}, []),
        (
            {"beta_fast": 32.0, "original_max_position_embeddings": 8192},
            ["model.original_max_position_embeddings=8192"],
        ),
    ],
)
def test_wavelengths_of_latent_attention_are_written_unless_they_are_usual(
    changes: dict[str, Any], written: list[str]
) -> None:
    # Megatron-LM d98e8a64, transformer_config.py:3321: beta_fast 32, beta_slow 1
    kimi = find_model("kimi-k2")
    assert kimi.rotary_scaling is not None
    model = replace(kimi, rotary_scaling=replace(kimi.rotary_scaling, **changes))
    text = "\n".join(line for _, lines in override_parts(replace(FOUND, problem=replace(
        FOUND.problem, model=model))) for line in lines)  # fmt: skip
    assert [
        one for one in text.splitlines() if one.startswith(("model.beta_", "model.original_"))
    ] == written
    scaled = {fact for fact in model_facts(model) if fact.startswith("yarn")}
    assert scaled <= {*launcher_capabilities("megatron-bridge").model_facts}

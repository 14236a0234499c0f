"""LoRA and QLoRA in launch files: written where the launcher has them, read back, refused elsewhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from meshwright.launchers.reading.base import Overrides, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.launchers.registry import export
from meshwright.launchers.target import Target
from meshwright.profiles.adapters import ALL_LINEAR
from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.errors import InvalidProblemError, RefusedExportError
from meshwright.profiles.library import find_cluster, find_model
from meshwright.profiles.profile import default_profile
from meshwright.profiles.storage import BasePrecision
from meshwright.service.requests.checks import check_limits
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.configuration import Columns, Configuration
from meshwright.solver.cost.price import price
from meshwright.solver.planner.plan import ask
from meshwright.solver.predict import predict
from meshwright.solver.problem import Problem, Workload
from meshwright.solver.space.launcher_rules import problem_faults
from tests.launchers.cases import plan
from tests.launchers.plans import problem_of

NODE = Configuration(data_parallel_size=8, num_microbatches=16, stage_layers=(32,))
BASE = "nf4"
SHARDS = replace(NODE, zero_stage=3, zero_shard_size=8)


def tuned(launcher: str, config: Configuration = NODE, **changes: Any) -> Target:  # noqa: ANN401
    """A plan of Llama 3.1 8B with adapters of rank 16 on one node."""
    problem = problem_of(launcher, find_model("llama-3.1-8b"), num_nodes=1)
    adapters: dict[str, Any] = {"lora_rank": 16, "lora_targets": ("q_proj", "v_proj"), **changes}
    return Target(
        plan=plan(config), problem=replace(problem, workload=replace(problem.workload, **adapters))
    )


def files(found: Target) -> dict[str, str]:
    return export(found.plan, found.problem, found.problem.launcher).files


def read_back(found: Target) -> Workload:
    texts = files(found)
    source = Source(name="trl_sft.yaml", text=texts["trl_sft.yaml"], files=texts)
    return read_launch_files(source).workload


@pytest.mark.parametrize("base", ["bf16", "int8", "nf4", "nf4-double", "gptq", "gptq-8bit", "awq", "aqlm"])
def test_llama_factory_is_told_rank_layers_and_the_base_and_they_are_read_back(base: str) -> None:
    found = tuned("llama-factory-accelerate", base_precision=base)
    texts = files(found)
    told = yaml.safe_load(texts["llama_factory_train.yaml"])
    assert [told[name] for name in ("finetuning_type", "lora_rank", "lora_alpha", "lora_target")] == [
        "lora", 16, 32, "q_proj,v_proj",
    ]  # fmt: skip
    assert told.get("quantization_bit") == {"int8": 8, "nf4": 4, "nf4-double": 4}.get(base)
    source = Source(name="launch.sh", text=texts["launch.sh"], files=texts)
    assert read_launch_files(source).workload == found.workload


@pytest.mark.parametrize("launcher", ["trl", "axolotl", "llama-factory-accelerate"])
@pytest.mark.parametrize(
    ("name", "targets", "words"),
    [
        ("opt-6.7b", ("q_proj", "o_proj", "down_proj"), ["q_proj", "out_proj", "fc2"]),
        ("gpt-j-6b", ("v_proj", "o_proj", "up_proj"), ["v_proj", "out_proj", "fc_in"]),
        ("pythia-6.9b", ("o_proj", "qkv_proj"), ["dense", "query_key_value"]),
        ("phi-3-mini-4k", ("o_proj", "qkv_proj"), ["o_proj", "qkv_proj"]),
        ("starcoder2-7b", ("o_proj", "down_proj"), ["o_proj", "c_proj"]),
        ("gpt2-xl", ("o_proj", "down_proj"), ["attn.c_proj", "mlp.c_proj"]),
    ],
)
def test_layers_are_written_by_the_names_of_the_models_class_and_read_back(
    launcher: str, name: str, targets: tuple[str, ...], words: list[str]
) -> None:
    model = find_model(name)
    problem = problem_of(launcher, model, num_nodes=1)
    work = replace(problem.workload, seq_length=1024, lora_rank=16, lora_targets=targets)
    found = Target(
        plan=plan(replace(SHARDS, stage_layers=(model.num_layers,))),
        problem=replace(problem, workload=work),
    )
    texts = files(found)
    (file,) = [text for file, text in texts.items() if file.endswith("yaml") and "\nlora_target" in text]
    told = yaml.safe_load(file)
    listed = told.get("lora_target_modules") or told["lora_target"].split(",")
    assert listed == words
    source = Source(name="launch.sh", text=texts["launch.sh"], files=texts)
    assert read_launch_files(source).workload.lora_targets == targets


def of_llama_factory(**changes: object) -> Source:
    """LLaMA-Factory's own example of LoRA (examples/train_lora), next to accelerate's of FSDP."""
    own = {
        "model_name_or_path": "meta-llama/Meta-Llama-3-8B-Instruct", "stage": "sft", "do_train": True,
        "finetuning_type": "lora", "lora_rank": 8, "lora_target": "all", "dataset": "identity",
        "template": "llama3", "cutoff_len": 2048, "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 8, "bf16": True, **changes,
    }  # fmt: skip
    mesh = {
        "compute_environment": "LOCAL_MACHINE", "distributed_type": "FSDP", "mixed_precision": "bf16",
        "num_machines": 1, "num_processes": 2, "rdzv_backend": "static",
        "fsdp_config": {
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "fsdp_sharding_strategy": "FULL_SHARD",
            "fsdp_offload_params": False, "fsdp_state_dict_type": "FULL_STATE_DICT",
        },
    }  # fmt: skip
    script = "accelerate launch --config_file fsdp.yaml src/train.py lora.yaml\n"
    texts = {"lora.yaml": yaml.safe_dump(own), "fsdp.yaml": yaml.safe_dump(mesh)}
    return Source(name="train.sh", text=script, files=texts)


def test_llama_factorys_yaml_takes_the_mesh_of_accelerates_beside_it() -> None:
    found = read_launch_files(of_llama_factory())
    config = found.configuration
    assert found.launcher == "llama-factory-accelerate"
    assert (config.data_parallel_size, config.zero_stage, config.num_microbatches) == (2, 3, 8)
    assert config.recompute_granularity == "full"  # unless disable_gradient_checkpointing says otherwise
    assert (found.workload.global_batch_size, found.workload.lora_rank) == (2 * 8, 8)


def test_llama_factorys_yaml_takes_deepspeeds_stage_of_accelerates_beside_it() -> None:
    found = of_llama_factory()
    mesh = yaml.safe_load(found.files["fsdp.yaml"]) | {
        "distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 2},
    }  # fmt: skip
    read = read_launch_files(replace(found, files={**found.files, "fsdp.yaml": yaml.safe_dump(mesh)}))
    assert (read.launcher, read.configuration.zero_stage, read.workload.lora_rank) == ("deepspeed", 2, 8)
    assert (read.workload.global_batch_size, read.workload.seq_length) == (2 * 8, 2048)


def test_weights_of_4_bits_are_cut_by_fsdp_and_those_of_8_are_refused_with_their_line() -> None:
    found = read_launch_files(of_llama_factory(quantization_bit=4))
    assert (found.launcher, found.configuration.zero_stage) == ("llama-factory-accelerate", 3)
    assert found.workload.base_precision == "nf4-double"
    with pytest.raises(InvalidProblemError, match="line 11: weights of 8 bits cut over ranks are not"):
        read_launch_files(of_llama_factory(quantization_bit=8))


@pytest.mark.parametrize("launcher", ["trl", "llama-factory-accelerate", "axolotl"])
def test_plans_with_4_bits_over_ranks_are_written_and_read_again(launcher: str) -> None:
    problem = parse_problem(
        {
            "model": "llama-2-70b", "launcher": launcher,
            "cluster": {"groups": [{"gpu": "rtx-3090", "num_nodes": 1, "gpus_per_node": 4}]},
            "workload": {"global_batch_size": 8, "seq_length": 512, "lora_rank": 8, "base_precision": BASE},
            "search": {"top_k": 1, "certify": "none"},
        }
    )  # fmt: skip
    (plan,) = ask(problem, default_profile(problem.cluster, launcher)).plans
    assert plan.config.zero_stage == 3
    written = export(plan, problem, launcher).files
    read_back = read_launch_files(Source(name="launch.sh", text=written["launch.sh"], files=written))
    assert (read_back.launcher, read_back.workload.base_precision) == (launcher, "nf4")
    assert read_back.configuration == plan.config


def test_packed_weights_are_cut_and_their_scales_are_whole() -> None:
    def held(base: BasePrecision, zero: int) -> float:
        problem = Problem(
            model=find_model("llama-2-70b"), cluster=find_cluster("dgx-h100", num_nodes=1), launcher="none",
            workload=Workload(global_batch_size=8, seq_length=512, lora_rank=8, base_precision=base),
        )  # fmt: skip
        config = Configuration(
            data_parallel_size=8, zero_stage=zero, zero_shard_size=8 if zero else 1, stage_layers=(80,)
        )
        profile = default_profile(problem.cluster, "trl")
        prices = price(replace(problem, stack="trl"), Columns.of([config]), profile)
        return float(prices.weights_bytes[0, 0])

    matrices = 8192 * (8192 * 2 + 1024 * 2) + 3 * 8192 * 28672  # of a layer of Llama 2 70B
    scales: dict[BasePrecision, float] = {"nf4": 4 / 64, "nf4-double": 1 / 64 + 4 / (64 * 256)}
    for base, each in scales.items():
        whole, cut = held(base, 0), held(base, 3)
        assert whole == pytest.approx(matrices * (0.5 + each), rel=0.01)
        assert cut == pytest.approx(matrices * (0.5 / 8 + each), rel=0.02)


def _alone(source: Source) -> Source:
    return Source(name="lora.yaml", text=source.files["lora.yaml"])


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("TechxGenus/Meta-Llama-3-8B-Instruct-GPTQ", "gptq"),
        ("TechxGenus/Meta-Llama-3-8B-Instruct-GPTQ-Int8", "gptq-8bit"),
        ("TechxGenus/Meta-Llama-3-8B-Instruct-AWQ", "awq"),
        ("ISTA-DASLab/Meta-Llama-3-8B-Instruct-AQLM-2Bit-1x16", "aqlm"),
    ],
)
def test_llama_factory_freezes_a_checkpoint_as_it_is_stored(name: str, base: BasePrecision) -> None:
    found = of_llama_factory(model_name_or_path=name)
    with pytest.raises(InvalidProblemError, match="not cut over ranks: LLaMA-Factory refuses"):
        read_launch_files(found)  # under the FSDP file next to it
    read = read_launch_files(_alone(found), Overrides(num_gpus=2))
    assert (read.model.name, read.workload.base_precision) == ("llama-3-8b", base)
    full = of_llama_factory(model_name_or_path=name, finetuning_type="full")
    with pytest.raises(
        InvalidProblemError, match=f"weights in {base} are frozen: nothing would be trained"
    ):
        read_launch_files(_alone(full), Overrides(num_gpus=2))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"quantization_bit": 2}, "quantization_bit: line 11: 2 is not supported"),
        ({"quantization_bit": 4, "quantization_method": "hqq"}, "hqq is not supported"),
        ({"quantization_bit": 4, "finetuning_type": "full"}, "nothing would be trained"),
    ],
)
def test_other_frozen_weights_are_refused_by_name(changes: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidProblemError, match=says):
        read_launch_files(of_llama_factory(**changes))


@pytest.mark.parametrize("base", ["bf16", "int8", "nf4", "nf4-double"])
def test_trl_is_told_rank_layers_and_the_base_and_they_are_read_back(base: str) -> None:
    found = tuned("trl", base_precision=base)
    told = yaml.safe_load(files(found)["trl_sft.yaml"])
    assert (told["use_peft"], told["lora_r"], told["lora_target_modules"]) == (
        True,
        16,
        ["q_proj", "v_proj"],
    )
    assert told["dtype"] == "bfloat16"
    assert told.get("load_in_4bit", False) == base.startswith("nf4")
    again = read_back(found)
    names = ("lora_rank", "lora_targets", "base_precision")
    assert [getattr(again, name) for name in names] == [getattr(found.workload, name) for name in names]


def test_weights_of_8_bits_are_not_cut_by_fsdp() -> None:
    written = yaml.safe_load(files(tuned("trl", SHARDS, base_precision="nf4"))["trl_sft.yaml"])
    assert written["bnb_4bit_quant_storage"] == "bfloat16"
    with pytest.raises(RefusedExportError, match=r"zero_stage: 3 breaks a rule: trl needs zero_stage <= 2"):
        files(tuned("trl", SHARDS, base_precision="int8"))


def test_axolotl_is_told_rank_and_layers_and_they_are_read_back() -> None:
    found = tuned("axolotl", SHARDS)
    texts = files(found)
    told = yaml.safe_load(texts["axolotl.yaml"])
    assert [told[name] for name in ("adapter", "lora_r", "lora_alpha")] == ["lora", 16, 32]
    again = read_launch_files(Source(name="axolotl.yaml", text=texts["axolotl.yaml"], files=texts)).workload
    assert (again.lora_rank, again.lora_targets) == (16, ("q_proj", "v_proj"))


def test_axolotls_loss_without_logits_is_written_as_its_plugin_and_read_back() -> None:
    options = {"loss_kernel": "cut"}
    found = tuned("axolotl", SHARDS, framework_options=options)
    bundle = export(found.plan, found.problem, "axolotl")
    assert not any("loss_kernel" in warning for warning in bundle.warnings)
    source = Source(name="axolotl.yaml", text=bundle.files["axolotl.yaml"], files=bundle.files)
    assert read_launch_files(source).workload.framework_options == options


@pytest.mark.parametrize(
    ("word", "group", "told"),
    [
        (
            "int8-int4",
            256.0,
            {"qat": {"activation_dtype": "int8", "weight_dtype": "int4", "group_size": 256}},
        ),
        ("bf16-int4", 32.0, {"qat": {"weight_dtype": "int4", "group_size": 32}}),
        ("fp8-fp8", 32.0, {"qat": {"activation_dtype": "fp8", "weight_dtype": "fp8", "group_size": 32}}),
        ("int8-ternary", 32.0, {"use_onebitllms": True}),
        ("mxfp4", 32.0, {"qat": {"weight_dtype": "mxfp4", "group_size": 32}}),
    ],
)
def test_axolotl_is_told_what_it_rounds_and_that_is_read_back(
    word: str, group: float, told: dict[str, object]
) -> None:
    options: dict[str, object] = {"loss_kernel": "cut", "fake_quantization": word}
    options |= {} if group == 32.0 else {"fake_quantized_group": group}
    found = tuned("axolotl", SHARDS, framework_options=options, lora_rank=0)
    bundle = export(found.plan, found.problem, "axolotl")
    assert not any("fake_quant" in warning for warning in bundle.warnings)
    written = yaml.safe_load(bundle.files["axolotl.yaml"])
    assert {name: written[name] for name in written if name in ("qat", "use_onebitllms")} == told
    source = Source(name="axolotl.yaml", text=bundle.files["axolotl.yaml"], files=bundle.files)
    assert read_launch_files(source).workload.framework_options == options


def test_axolotl_is_told_to_load_8_bits_and_that_is_read_back() -> None:
    found = tuned("axolotl", SHARDS, base_precision="int8")
    texts = files(found)
    told = yaml.safe_load(texts["axolotl.yaml"])
    assert (told["adapter"], told["load_in_8bit"], told["fsdp_version"]) == ("lora", True, 2)
    again = read_launch_files(Source(name="axolotl.yaml", text=texts["axolotl.yaml"], files=texts))
    assert (again.launcher, again.workload.base_precision) == ("axolotl", "int8")


def test_ms_swift_is_told_rank_and_layers_and_they_are_read_back() -> None:
    found = tuned("ms-swift", lora_targets=("linear_qkv", "linear_fc1"))
    texts = files(found)
    assert "--tuner_type lora" in texts["plan_args.sh"]
    assert "--target_modules linear_qkv linear_fc1" in texts["plan_args.sh"]
    again = read_launch_files(Source(name="launch.sh", text=texts["launch.sh"], files=texts)).workload
    assert (again.lora_rank, again.lora_targets) == (16, ("linear_qkv", "linear_fc1"))


@pytest.mark.parametrize(("launcher", "base"), [("axolotl", "gptq"), ("ms-swift", "nf4")])
def test_frozen_weights_of_few_bits_are_refused_by_name_where_they_are_not_priced(
    launcher: str, base: str
) -> None:
    targets = ("linear_qkv",) if launcher == "ms-swift" else ("q_proj",)
    with pytest.raises(RefusedExportError, match=f"doesn't support frozen weights in {base}"):
        files(tuned(launcher, lora_targets=targets, base_precision=base))


@pytest.mark.parametrize(
    ("launcher", "optimizer", "config", "written", "dtype"),
    [
        ("trl", "adamw-8bit", NODE, "adamw_bnb_8bit", "float32"),
        ("trl", "adamw-8bit", SHARDS, "adamw_torch_8bit", "float32"),
        ("trl", "adamw-8bit-bf16", NODE, "adamw_bnb_8bit", "bfloat16"),
        ("trl", "adamw-pure-bf16", NODE, "adamw_torch_fused", "bfloat16"),
        ("trl", "galore", NODE, "galore_adamw", "float32"),
        ("trl", "galore-8bit", NODE, "galore_adamw_8bit", "float32"),
        ("trl", "galore-8bit-bf16", NODE, "galore_adamw_8bit", "bfloat16"),
        ("trl", "apollo", NODE, "apollo_adamw", "float32"),
        ("llama-factory-accelerate", "adamw-pure-bf16", NODE, "adamw_torch_fused", None),
        ("axolotl", "adamw-8bit-bf16", SHARDS, "adamw_torch_8bit", None),
        ("llama-factory-accelerate", "adamw-8bit", SHARDS, "adamw_torch_8bit", None),
        ("llama-factory-accelerate", "adamw-8bit-bf16", NODE, "adamw_bnb_8bit", None),
        ("llama-factory-accelerate", "galore", NODE, "adamw_torch", None),
        ("llama-factory-accelerate", "galore-8bit", NODE, "adamw_bnb_8bit", None),
        ("llama-factory-accelerate", "galore-8bit-bf16", NODE, "adamw_bnb_8bit", None),
        ("llama-factory-accelerate", "apollo-pure-bf16", NODE, "adamw_torch", None),
        ("llama-factory-accelerate", "adam-mini-pure-bf16", NODE, "adamw_torch_fused", None),
        ("axolotl", "apollo-pure-bf16", NODE, "apollo_adamw", None),
    ],
)
def test_8_bit_adam_is_written_by_its_name_and_read_back(
    launcher: str, optimizer: str, config: Configuration, written: str, dtype: str | None
) -> None:
    found = tuned(launcher, config, lora_rank=0, optimizer=optimizer)
    texts = files(found)
    name = {
        "trl": "trl_sft.yaml",
        "axolotl": "axolotl.yaml",
        "llama-factory-accelerate": "llama_factory_train.yaml",
    }[launcher]
    told = yaml.safe_load(texts[name])
    assert told.get("optim", told.get("optimizer")) == written
    assert told.get("dtype") == dtype
    assert (
        read_launch_files(Source(name=name, text=texts[name], files=texts)).workload.optimizer == optimizer
    )


def test_a_script_of_the_trainer_is_told_of_8_bit_adam_on_its_command_line() -> None:
    texts = files(tuned("accelerate", lora_rank=0, optimizer="adamw-8bit"))
    assert "--optim adamw_bnb_8bit" in texts["launch.sh"]


def test_a_script_of_the_trainers_own_is_asked_to_train_the_planned_adapters() -> None:
    found = tuned("accelerate", base_precision="nf4")  # which no argument of the trainer says
    bundle = export(found.plan, found.problem, "accelerate")
    asked = next(text for text in bundle.warnings if "adapters alone" in text)
    assert "LoraConfig(r=16, target_modules=['q_proj', 'v_proj'])" in asked
    assert "load_in_4bit=True" in asked
    assert asked in bundle.files["README.md"]


def test_weights_without_a_copy_are_no_shards_that_fsdp_casts_up() -> None:
    with pytest.raises(RefusedExportError, match="zero_stage == 0"):
        files(tuned("trl", SHARDS, lora_rank=0, optimizer="adamw-8bit-bf16"))


@pytest.mark.parametrize("launcher", ["torchtitan", "nanotron", "deepspeed"])
def test_a_launcher_that_is_told_of_no_adapters_refuses_them_and_names_those_that_are(
    launcher: str,
) -> None:
    with pytest.raises(
        RefusedExportError,
        match=r"LoRA adapters\. Allowed: the launchers accelerate, axolotl, llama-factory-accelerate, ",
    ):
        files(tuned(launcher))


@pytest.mark.parametrize(
    ("launcher", "said"),
    [
        ("ms-swift", "--target_modules linear_qkv linear_proj linear_fc1 linear_fc2"),
        ("trl", "all-linear"),
        ("megatron-bridge", "peft.target_modules=[linear_qkv,linear_proj,linear_fc1,linear_fc2]"),
    ],
)
def test_adapters_for_any_launcher_are_written_by_the_names_of_each(launcher: str, said: str) -> None:
    found = tuned("any", SHARDS if launcher == "trl" else NODE, lora_targets=ALL_LINEAR)
    texts = export(found.plan, found.problem, launcher).files
    assert said in texts["trl_sft.yaml" if launcher == "trl" else "plan_args.sh"]


@pytest.mark.parametrize(
    ("model", "layers"),
    [
        ("deepseek-v2-lite", "linear_q_proj,linear_kv_down_proj,linear_kv_up_proj"),
        ("deepseek-v3", "linear_q_down_proj,linear_q_up_proj,linear_kv_down_proj,linear_kv_up_proj"),
    ],
)
def test_latent_attention_is_adapted_by_the_names_of_its_layers(model: str, layers: str) -> None:
    found = tuned("megatron-bridge", lora_targets=("linear_qkv", "linear_proj"))
    problem = replace(found.problem, model=find_model(model))
    layout = replace(found.plan.config, stage_layers=(problem.model.num_layers,))
    texts = export(replace(found.plan, config=layout), problem, "megatron-bridge").files
    assert f"peft.target_modules=[{layers},linear_proj]" in texts["plan_args.sh"]
    read = read_launch_files(Source(name="launch.sh", text=texts["launch.sh"], files=texts))
    assert read.workload.lora_targets == ("linear_qkv", "linear_proj")


def test_each_routed_expert_has_an_adapter_under_megatron_bridge_or_none() -> None:
    found = tuned("megatron-bridge", lora_targets=("linear_qkv", "linear_fc1"))
    problem = replace(found.problem, model=find_model("mixtral-8x7b"))
    layout = replace(found.plan.config, stage_layers=(problem.model.num_layers,))
    found = replace(found, problem=problem, plan=replace(found.plan, config=layout))
    texts = files(found)
    assert "peft.share_expert_adapters=false" in texts["plan_args.sh"]
    read = read_launch_files(Source(name="launch.sh", text=texts["launch.sh"], files=texts))
    assert read.workload.lora_targets == ("linear_qkv", "linear_fc1")
    with pytest.raises(RefusedExportError, match=r"linear_proj; launcher_version 0\.5 or later"):
        export(found.plan, problem, "megatron-bridge", version="0.4")
    whole = replace(problem.workload, framework_options={"dora": True})
    with pytest.raises(RefusedExportError, match="share an adapter of DoRA on each rank"):
        files(replace(found, problem=replace(problem, workload=whole)))


def test_layers_that_peft_has_no_name_for_are_refused_with_those_that_it_has() -> None:
    with pytest.raises(RefusedExportError, match="trl has no modules called linear_qkv"):
        files(tuned("trl", lora_targets=("linear_qkv",)))


@pytest.mark.parametrize("launcher", ["megatron-lm", "megatron-bridge", "ms-swift"])
def test_moments_in_bf16_are_written_as_dtypes_of_the_precision_aware_optimizer_and_read_back(
    launcher: str,
) -> None:
    sharded = replace(SHARDS, zero_stage=1)
    texts = files(tuned(launcher, sharded, lora_rank=0, optimizer="adamw-bf16"))
    arguments = "".join(texts.values()).replace("_", "-").replace("=torch.bfloat16", " bf16")
    assert "exp-avg-dtype bf16" in arguments
    assert "exp-avg-sq-dtype bf16" in arguments
    read = read_launch_files(Source(name="launch.sh", text=texts["launch.sh"], files=texts))
    assert (read.workload.optimizer, read.configuration.zero_stage) == ("adamw-bf16", 1)
    with pytest.raises(RefusedExportError, match="zero_stage"):
        files(tuned(launcher, NODE, lora_rank=0, optimizer="adamw-bf16"))


def test_gradients_in_bf16_ask_ms_swift_for_the_precision_aware_optimizer() -> None:
    # Megatron-Core: "main_grads_dtype can only be fp32 when not using precision-aware optimizer"
    changes: dict[str, object] = {"lora_rank": 0, "framework_options": {"gradient_dtype": "bf16"}}
    texts = files(tuned("ms-swift", replace(SHARDS, zero_stage=1), **changes))
    arguments = "".join(texts.values())
    assert "--main_grads_dtype bf16" in arguments
    assert "--use_precision_aware_optimizer true" in arguments
    with pytest.raises(RefusedExportError, match="zero_stage == 1"):
        files(tuned("ms-swift", NODE, **changes))


def test_what_is_trained_whole_is_written_under_each_trainers_name_of_it_and_priced() -> None:
    whole = ("embed_tokens", "lm_head")
    for launcher, file, name, config, said in (
        ("trl", "trl_sft.yaml", "lora_modules_to_save", NODE, list(whole)),
        ("axolotl", "axolotl.yaml", "lora_modules_to_save", SHARDS, list(whole)),
        (
            "llama-factory-accelerate",
            "llama_factory_train.yaml",
            "additional_target",
            NODE,
            "embed_tokens,lm_head",
        ),
    ):
        found = tuned(launcher, config, trained_modules=whole)
        assert yaml.safe_load(files(found)[file])[name] == said
        alone = replace(found.problem, workload=replace(found.problem.workload, trained_modules=()))
        more = [
            predict(problem, default_profile(problem.cluster, launcher), config).stages[0].memory_bytes
            for problem in (found.problem, alone)
        ]
        weights = 2 * found.problem.model.vocab_size * found.problem.model.hidden_size
        # 2 + 2 + 4 bytes in bf16, as peft copies; 4 + 4 + 8 where LLaMA-Factory casts up; next to gradients
        # as much again in the buckets that eight replicas reduce; of FSDP2's shards an eighth, but for
        # gradients, which add up whole over 16 micro-batches
        each = {"trl": 10, "llama-factory-accelerate": 20, "axolotl": 2 / 8 + 2 + 4 / 8}[launcher]
        states = [sum(one[name] for name in ("weights", "gradients", "optimizer")) for one in more]
        assert states[0] - states[1] == pytest.approx(weights * each, rel=1e-3)


@pytest.mark.parametrize(
    ("layers", "modules", "patterns"),
    [
        ("30-31", (), ["^model.layers.(30|31)."]),
        ("none", ("lm_head",), ["^lm_head.weight$"]),
        (
            "none",
            ("embed_tokens", "lm_head"),
            ["^model.embed_tokens.weight$", "^lm_head.weight$"],
        ),
    ],
)
def test_axolotl_is_told_which_layers_it_trains_and_they_are_read_back(
    layers: str, modules: tuple[str, ...], patterns: list[str]
) -> None:
    found = tuned(
        "axolotl",
        SHARDS,
        lora_rank=0,
        trained_layers=layers,
        trained_modules=modules,
    )
    texts = files(found)
    assert yaml.safe_load(texts["axolotl.yaml"])["unfrozen_parameters"] == patterns
    source = Source(name="launch.sh", text=texts["launch.sh"], files=texts)
    work = read_launch_files(source).workload
    assert (work.trained_layers, work.trained_modules) == (layers, modules)


@pytest.mark.parametrize(
    ("layers", "modules", "told"),
    [
        ("28-31", (), {"freeze_trainable_layers": 4}),
        ("0-1", (), {"freeze_trainable_layers": -2}),
        ("7,15,23,31", (), {"freeze_trainable_layers": 4, "use_llama_pro": True}),
        ("31", ("lm_head",), {"freeze_trainable_layers": 1, "freeze_extra_modules": "lm_head"}),
        ("none", ("lm_head",), {"freeze_trainable_layers": 0, "freeze_extra_modules": "lm_head"}),
    ],
)
def test_llama_factory_is_told_how_many_layers_it_trains_and_they_are_read_back(
    layers: str, modules: tuple[str, ...], told: dict[str, object]
) -> None:
    found = tuned("llama-factory-accelerate", lora_rank=0, trained_layers=layers, trained_modules=modules)
    texts = files(found)
    values = yaml.safe_load(texts["llama_factory_train.yaml"])
    assert values["finetuning_type"] == "freeze"
    names = ("freeze_trainable_layers", "use_llama_pro", "freeze_extra_modules")
    assert {name: values[name] for name in names if name in values} == told
    source = Source(name="launch.sh", text=texts["launch.sh"], files=texts)
    work = read_launch_files(source).workload
    assert (work.trained_layers, work.trained_modules) == (layers, modules)


def test_axolotl_is_told_how_many_layers_lisa_draws_and_they_are_read_back() -> None:
    alone = replace(NODE, data_parallel_size=1, num_microbatches=128)
    ends = ("embed_tokens", "lm_head")
    own: dict[str, Any] = {
        "trained_layers": "0-3",
        "trained_modules": ends,
        "optimizer": "adamw-8bit-paged-bf16",
    }
    found = tuned("axolotl", alone, lora_rank=0, framework_options={"redraws_layers": True}, **own)
    texts = files(found)
    values = yaml.safe_load(texts["axolotl.yaml"])
    assert (values["lisa_n_layers"], values["lisa_step_interval"]) == (4, 20)
    assert "unfrozen_parameters" not in values
    source = Source(name="axolotl.yaml", text=texts["axolotl.yaml"], files=texts)
    work = read_launch_files(source, Overrides(num_gpus=1)).workload
    assert (work.trained_layers, work.trained_modules) == ("0-3", ends)
    assert work.framework_options["redraws_layers"] is True
    several = tuned("axolotl", NODE, lora_rank=0, framework_options={"redraws_layers": True}, **own)
    with pytest.raises(RefusedExportError, match="data_parallel_size == 1"):  # each draws its own
        files(several)


def test_llama_factory_is_told_to_train_each_layer_in_turn_and_it_is_read_back() -> None:
    alone = replace(NODE, data_parallel_size=1, num_microbatches=128)
    found = tuned("llama-factory-accelerate", alone, lora_rank=0, trained_layers="0", optimizer="badam")
    texts = files(found)
    values = yaml.safe_load(texts["llama_factory_train.yaml"])
    assert (values["finetuning_type"], values["use_badam"]) == ("full", True)
    assert "freeze_trainable_layers" not in values
    source = Source(name="launch.sh", text=texts["launch.sh"], files=texts)
    work = read_launch_files(source).workload
    assert (work.trained_layers, work.optimizer) == ("0", "badam")


@pytest.mark.parametrize("layers", ["", "1", "0-1"])
def test_other_layers_than_the_first_are_not_trained_in_turn(layers: str) -> None:
    found = tuned("llama-factory-accelerate", lora_rank=0, trained_layers=layers, optimizer="badam")
    faults = problem_faults(found.problem, launcher_capabilities("llama-factory-accelerate"))
    assert ("/workload/trained_layers", "0") in [(one.pointer, one.nearest) for one in faults]


def test_layers_that_llama_factory_does_not_count_are_refused_with_a_launcher() -> None:
    found = tuned("llama-factory-accelerate", lora_rank=0, trained_layers="3,9")
    (fault,) = problem_faults(found.problem, launcher_capabilities("llama-factory-accelerate"))
    assert (fault.pointer, fault.tip) == ("/workload/trained_layers", "--launcher axolotl")
    assert "the first or the last layers" in str(fault.allowed)


def test_nothing_is_trained_whole_beside_fused_layers_or_without_adapters() -> None:
    able = launcher_capabilities("ms-swift")
    problem = tuned("trl", trained_modules=("lm_head",)).problem
    problem = replace(problem, launcher="ms-swift")
    assert "/workload/trained_modules" in [fault.pointer for fault in problem_faults(problem, able)]
    bare = replace(problem, workload=replace(problem.workload, lora_rank=0))
    with pytest.raises(InvalidProblemError, match="without adapters all weights are trained"):
        check_limits(bare)


def test_all_layers_of_experts_are_counted_as_transformers_5_has_them_and_what_4_adds_is_said() -> None:
    found = read_launch_files(of_llama_factory(model_name_or_path="Qwen/Qwen3-30B-A3B"))
    more = 8 * 3 * (2048 + 768) * 128 * 48  # rank 8, three matrices of 128 experts in 48 layers
    assert any(f"{more} weights more, which are not supported" in note for note in found.notes)
    dense = read_launch_files(of_llama_factory())
    assert not any("transformers 4" in note for note in dense.notes)

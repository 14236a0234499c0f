"""Recipes of NeMo-RL and verl: what is read of them, ours included, and why others are refused."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from meshwright.launchers.post_training.read import is_recipe, read_recipe
from meshwright.launchers.post_training.recipe import script_in
from meshwright.profiles.errors import FieldError, InvalidProblemError
from meshwright.service.requests.assignments import values_by_own_names
from tests.launchers.post_training import CASES, placed_roles

GOLDEN = Path(__file__).parents[3] / "golden" / "post_training"
VERL = """\
n=8
args=(trainer.nnodes=2 trainer.n_gpus_per_node=8)
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=256 \\
    data.max_prompt_length=1024 data.max_response_length=$((1024 * 7)) \\
    actor_rollout_ref.model.path=$HOME/models/Qwen3-8B actor_rollout_ref.rollout.n=$n \\
    actor_rollout_ref.actor.ppo_mini_batch_size=64 ENGINE "${args[@]}" "$@"
"""
NEMO = (
    "policy: {model_name: Qwen/Qwen3-8B, train_global_batch_size: 128, max_total_sequence_length: 4096}\n"
)
SLIME = "ray job submit -- python3 train.py --rollout-batch-size 32 --hf-checkpoint /models/Qwen3-8B"
TRL = "trl grpo --accelerate_config fsdp2 --model_name_or_path Qwen/Qwen3-8B --use_vllm"
LORA = """\
args = GRPOConfig(use_vllm=True, num_generations=8, gradient_accumulation_steps=4, beta=0.04)
GRPOTrainer(model="Qwen/Qwen3-8B", args=args, peft_config=LoraConfig(r=32, target_modules="all-linear"))
"""
SERVER = "CUDA_VISIBLE_DEVICES=7 trl vllm-serve --model Qwen/Qwen3-8B --tensor_parallel_size 2\n"
SLIME_WHOLE = f"{SLIME} --colocate --rollout-max-response-len 2048"
ENGINE = "actor_rollout_ref.rollout.name"
# What no value mends: another algorithm, program or trainer, and files that are missing.
WITHOUT_A_TIP = ("", "/dpo", "/defaults", "/peft_config", "/FastLanguageModel", "/AsyncGRPOTrainer")
REFUSED = [
    ("a.yaml", "use_vllm: true\nuse_peft: true\nlora_r: abc\nnum_generations: 8\n", "/num_processes"),
    ("a.yaml", "dpo: {}\n", "/dpo"),
    ("a.yaml", "policy: {}\n", "/policy/model_name"),
    ("a.yaml", NEMO.replace("Qwen/Qwen3-8B", "acme/x-9b"), "/policy/model_name"),
    ("a.yaml", NEMO.replace("train_g", "draft: {enabled: true}, train_g"), "/policy/draft/enabled"),
    ("a.sh", VERL.replace("ENGINE", f"{ENGINE}=trtllm"), f"/{ENGINE}"),
    ("a.sh", VERL.replace("=grpo", "=rloo"), "/algorithm.adv_estimator"),
    (
        "a.sh",
        VERL.replace("ENGINE", "actor_rollout_ref.model.lora.rank=8"),
        "/actor_rollout_ref.model.lora.rank",
    ),
    (
        "a.sh",
        VERL.replace("=grpo", "=gae critic.model.path=Qwen/Qwen3-4B").replace("ENGINE", ""),
        "/critic.model.path",
    ),
    (
        "a.yaml",
        NEMO[:-2] + ", generation: {backend: sglang, sglang_cfg: {pp_size: 2}}}\n",
        "/policy/generation/sglang_cfg/pp_size",
    ),
    ("a.sh", "python3 train.py\n", ""),
    ("a.sh", SLIME + " --loss-type sft_loss\n", "/--loss-type"),
    ("a.sh", SLIME + " --sglang-ep-size 8\n", "/--sglang-ep-size"),
    ("a.sh", SLIME + " --advantage-estimator gspo\n", "/--advantage-estimator"),
    ("a.sh", SLIME + " --colocate\n", "/--rollout-max-response-len"),
    ("a.sh", TRL.replace("--use_vllm", "--beta 0.1"), "/use_vllm"),
    ("a.sh", TRL + " --use_peft --use_dora\n", "/use_dora"),
    ("a.sh", TRL + " --use_peft maybe\n", "/use_peft"),
    ("a.sh", TRL + " --use_peft --dtype float64\n", "/dtype"),
    ("a.py", LORA.replace("beta=", "model_init_kwargs={'dtype': kind}, beta="), "/dtype"),
    ("a.sh", TRL + " --use_peft --lora_target_modules experts\n", "/lora_target_modules"),
    ("a.sh", TRL + " --use_peft --load_in_4bit\n", "/load_in_4bit"),
    ("a.py", LORA.replace("r=32", "r=32, rank_pattern={'q_proj': 4}"), "/rank_pattern"),
    ("a.py", LORA.replace("r=32", "r=rank"), "/r"),
    ("a.py", LORA.replace("LoraConfig(", "IA3Config("), "/peft_config"),
    ("a.py", "model = FastLanguageModel.get_peft_model(m, r=8)\n" + LORA, "/FastLanguageModel"),
    ("a.sh", TRL + " --vllm_mode server\n", "/vllm_mode"),
    ("a.sh", TRL + " --num_iterations 2\n", "/num_iterations"),
    ("a.sh", TRL.replace("fsdp2", "zero2"), "/zero_stage"),
    ("a.sh", TRL.replace("--accelerate_config fsdp2", ""), "/num_processes"),
    ("a.yaml", "use_vllm: true\nvllm_mode: colocate\n", "/num_processes"),
    ("a.py", "trainer = GRPOTrainer(model='m', tools=[f], args=args)\n", "/tools"),
    ("a.py", "trainer = AsyncGRPOTrainer(model='m')\n", "/AsyncGRPOTrainer"),
    ("a.py", "trainer = DPOTrainer(model='m')\n", ""),
    ("a.sh", TRL + " --vllm_mode colocate --num_generations 0\n", "/num_generations"),
    ("a.sh", TRL + " --vllm_mode colocate --beta x\n", "/beta"),
    ("a.sh", TRL + " --generation_batch_size 100\n", "/generation_batch_size"),  # 64 a micro-batch
    ("a.sh", TRL + " --gradient_accumulation_steps 2 --steps_per_generation 3\n", "/steps_per_generation"),
    ("a.sh", TRL + " --num_generations 7\n", "/num_generations"),
    ("a.sh", TRL + " --num_machines 3\n", "/num_processes"),
    ("a.sh", "torchrun --nproc_per_node 8 grpo.py --use_vllm\n", "/num_processes"),
    ("a.py", "args = GRPOConfig(use_vllm=True, num_generations=many)\n", "/num_generations"),
    ("a.sh", SLIME_WHOLE + " --global-batch-size 0\n", "/--global-batch-size"),
    ("a.sh", SLIME_WHOLE + " --actor-num-nodes 1.5\n", "/--actor-num-nodes"),
    ("a.sh", SLIME_WHOLE + " --rollout-max-context-len nan\n", "/--rollout-max-context-len"),
    ("a.sh", VERL.replace("ENGINE", "trainer.nnodes=1e400").replace('"${args[@]}"', ""), "/trainer.nnodes"),
    ("a.yaml", "policy: 3\n", "/policy/model_name"),
    ("a.yaml", "defaults: []\n" + NEMO, "/defaults"),
    ("a.yaml", NEMO.replace("128", "0"), "/policy/train_global_batch_size"),
    ("a.yaml", NEMO + "cluster: {num_nodes: [1]}\n", "/cluster/num_nodes"),
    ("a.yaml", NEMO + "cluster: 3\n", "/cluster/num_nodes"),
    ("a.yaml", NEMO + "grpo: {num_prompts_per_step: many}\n", "/grpo/num_prompts_per_step"),
]  # fmt: skip


def beside(folder: Path, name: str) -> str | None:
    path = folder / name
    return path.read_text() if path.is_file() else None


@pytest.mark.parametrize("name", CASES)
def test_our_own_files_read_as_the_roles_that_were_placed(name: str) -> None:
    asked, plan = placed_roles(name)
    file = GOLDEN / name / ("nemo_rl_grpo.yaml" if name.startswith("nemo") else "run.sh")
    text = file.read_text()
    for variable in ("${HF_CHECKPOINT}", "${MODEL}"):
        text = text.replace(variable, f"/models/{asked.model.name}")
    found = read_recipe(file.name, text, partial(beside, file.parent))
    config = plan.training.plan.config
    assert (found.launcher, found.model, found.longest_tokens) == (asked.launcher, asked.model.name, 8192)
    copied = {"reference_precision": "fp32"} if name.startswith("trl-") else {}  # no adapters to turn off
    assert {"name": "grpo", **found.parts["algorithm"]} == {
        "name": asked.algorithm, "prompts": 128, "responses": 16, "updates": 2, "reference": True, **copied
    }  # fmt: skip
    assert found.parts["rollout"]["engine"] == asked.engine
    assert (found.parts["rollout"]["tp"], found.parts["rollout"]["memory_share"]) == (2, 0.6)
    assert found.parts["training"]["trainer"] == asked.trainer
    assert found.parts["training"]["pin"]["cp"] == config.context_parallel_size
    assert found.parts["asynchrony"]["mode"] == plan.mode
    assert found.parts["asynchrony"]["steps_off"] == plan.steps_off
    work = asked.training.workload
    assert found.parts.get("adapters", {}).get("rank", 0) == work.lora_rank
    assert found.parts.get("adapters", {}).get("base_precision", "bf16") == work.base_precision
    role, reward = plan.reward, found.parts.get("reward")
    assert (reward is None) == (role is None)
    if role is not None and reward is not None:
        assert (reward["tp"], reward.get("nodes", 0)) == (role.tensor_parallel_size, bool(role.gpus))
    assert found.parts["training"]["nodes"] == plan.training.nodes


def test_a_recipe_counts_its_base_and_the_shells_values() -> None:
    base = "cluster: {num_nodes: 4, gpus_per_node: 8}\ngrpo: {num_prompts_per_step: 64}\n"
    nemo = read_recipe("a.yaml", "defaults: ../b.yaml\n" + NEMO, {"../b.yaml": base}.get)
    assert (nemo.nodes, nemo.gpus_per_node, nemo.parts["algorithm"]["updates"]) == (4, 8, 64 * 16 // 128)
    verl = read_recipe("a.sh", VERL.replace("ENGINE", "actor_rollout_ref.rollout.name=vllm"))
    assert (verl.model, verl.nodes, verl.longest_tokens) == ("qwen3-8b", 2, 8192)
    assert (verl.parts["algorithm"]["responses"], verl.parts["algorithm"]["updates"]) == (8, 4)


def test_a_command_of_trl_counts_accelerates_file_and_the_servers_command() -> None:
    words = " --vllm_mode server --gradient_accumulation_steps 4 --steps_per_generation 16 --beta 0.04\n"
    found = read_recipe("a.sh", SERVER + TRL + words)
    assert (found.model, found.nodes, found.gpus_per_node) == ("qwen3-8b", 1 + 1, 8)
    assert found.parts["algorithm"] == {
        "prompts": 8 * 8 * 16 // 8, "responses": 8, "updates": 4, "reference": True,
        "reference_precision": "fp32",
    }  # fmt: skip
    assert (found.parts["rollout"]["tp"], found.parts["rollout"]["memory_share"]) == (2, 0.9)
    assert found.parts["asynchrony"]["mode"] == "apart"


def test_adapters_of_a_script_come_from_its_lora_config_and_weights_are_fp32_as_trl_loads_them() -> None:
    found = read_recipe("a.py", LORA)
    assert found.parts["adapters"] == {"rank": 32, "targets": ["all-linear"], "base_precision": "fp32"}
    assert found.parts["algorithm"] == {"prompts": 4, "responses": 8, "updates": 1, "reference": True}
    assert found.parts["rollout"] == {"engine": "vllm", "tp": 1, "memory_share": 0.3, "sleep": False}
    assert found.parts["training"]["pin"] == {
        "dp": 1, "cp": 1, "mbs": 8, "recompute_granularity": "full", "zero_stage": 0
    }  # fmt: skip
    half = LORA.replace("beta=", "model_init_kwargs={'dtype': torch.bfloat16}, beta=")
    assert read_recipe("a.py", half).parts["adapters"]["base_precision"] == "bf16"
    wrapped = "model = get_peft_model(m, LoraConfig(task_type='CAUSAL_LM'))\n" + LORA.replace(
        "peft_config", "x"
    )
    default = read_recipe("a.py", wrapped).parts["adapters"]  # peft's own rank and layers
    assert (default["rank"], default["targets"]) == (8, ["q_proj", "v_proj"])


@pytest.mark.parametrize(
    ("more", "precision"),
    [
        ("", "fp32"),  # TRL's dtype, which FSDP's shards keep
        (" --dtype bfloat16", "bf16"),
        (" --dtype auto", "bf16"),
        (" --beta 0", None),
        (" --use_peft", None),  # the policy without its adapters
    ],
)
def test_a_reference_of_trl_is_as_wide_as_it_is_loaded(more: str, precision: str | None) -> None:
    beta = "" if "--beta" in more else " --beta .04"
    for config in ("fsdp2", "deepspeed_zero3"):
        command = TRL.replace("fsdp2", config) + beta + more
        found = read_recipe("a.sh", command + "\n").parts["algorithm"].get("reference_precision")
        assert found == (precision and ("bf16" if "zero" in config else precision))


def test_adapters_of_verl_and_nemo_rl_count_their_own_defaults() -> None:
    """verl's FSDP actor holds fp32 by default, NeMo-RL's always; Megatron's workers bf16."""
    verl = VERL.replace("ENGINE", "actor_rollout_ref.model.lora_rank=64 MORE")
    found = read_recipe("a.sh", verl.replace("MORE", "")).parts["adapters"]
    assert found == {"rank": 64, "targets": ["all-linear"], "base_precision": "fp32"}
    named = "actor_rollout_ref.model.target_modules=[q_proj,v_proj] "
    named += "actor_rollout_ref.actor.fsdp_config.model_dtype=bf16"
    found = read_recipe("a.sh", verl.replace("MORE", named)).parts["adapters"]
    assert (found["targets"], found["base_precision"]) == (["q_proj", "v_proj"], "bf16")
    fsdp = NEMO[:-2] + ", dtensor_cfg: {lora_cfg: {enabled: true, dim: 128}}}\n"
    assert read_recipe("a.yaml", fsdp).parts["adapters"] == {
        "rank": 128, "targets": ["all-linear"], "base_precision": "fp32"
    }  # fmt: skip
    peft = "megatron_cfg: {enabled: true, peft: {enabled: true, target_modules: [linear_qkv]}}"
    found = read_recipe("a.yaml", NEMO[:-2] + f", {peft}}}\n").parts["adapters"]
    assert found == {"rank": 8, "targets": ["linear_qkv"], "base_precision": "bf16"}
    single = peft.replace("linear_qkv", "linear_qkv, q_proj")
    with pytest.raises(
        InvalidProblemError, match=r"q_proj is no layer that is priced\. Allowed: linear_qkv"
    ):
        read_recipe("a.yaml", NEMO[:-2] + f", {single}}}\n")
    fused = verl.replace("MORE", named.replace("v_proj", "linear_fc1"))
    with pytest.raises(InvalidProblemError, match="linear_fc1 matches no module"):
        read_recipe("a.sh", fused)


def test_processes_with_whole_adapters_are_replicas_and_zero_2_says_so() -> None:
    command = TRL + " --use_peft --lora_r 64 --dtype bfloat16\n"
    replicas = read_recipe("a.sh", command.replace("fsdp2", "multi_gpu"))
    fixed = replicas.parts["training"]["pin"]
    assert (fixed["dp"], fixed["zero_stage"], replicas.notes) == (8, 0, ())
    second = read_recipe("a.sh", command.replace("fsdp2", "deepspeed_zero2"))
    assert second.parts["training"]["pin"]["zero_stage"] == 0
    assert second.notes[0].startswith("ZeRO 2 of adapters is priced as whole replicas")
    shards = read_recipe("a.sh", command).parts["training"]["pin"]
    assert (shards["dp"], shards["zero_stage"], shards["zero_shard_size"]) == (8, 3, 8)


@pytest.mark.parametrize(
    ("command", "gpus"),
    {
        "accelerate launch --config_file configs/deepspeed_zero3.yaml grpo.py": 8,
        "accelerate launch --num_processes 4 -m trl.scripts.grpo": 4,
        "uv run accelerate launch --num_processes 2 src/grpo.py": 2,
        "python -u grpo.py": 1,
    }.items(),
)
def test_options_before_a_script_of_trl_end_at_it(command: str, gpus: int) -> None:
    server = SERVER.replace("--tensor_parallel_size", "-tp").replace("trl vllm-serve --model", "vllm serve")
    text = f"{server}{command} --model_name_or_path Qwen/Qwen3-8B --use_vllm --vllm_mode server\n"
    found = read_recipe("a.sh", text, {"accelerate.yaml": "num_processes: 16\n"}.get)
    assert (found.model, found.gpus_per_node, found.parts["rollout"]["tp"]) == ("qwen3-8b", gpus, 2)


def test_a_script_is_read_once_however_many_launchers_are_asked_for_it() -> None:
    text = "accelerate launch --num_processes 8 grpo.py --model_name_or_path Qwen/Qwen3-8B --use_vllm"
    before = script_in.cache_info().misses
    assert is_recipe("once.sh", text)
    read_recipe("once.sh", text)
    assert script_in.cache_info().misses == before + 1


@pytest.mark.parametrize(("file", "text", "pointer"), REFUSED)
def test_what_is_not_priced_is_refused_by_its_field_and_its_tip_moves_on(
    file: str, text: str, pointer: str
) -> None:
    (error,) = faults_of(file, text)
    assert error.pointer == pointer
    assert error.allowed or "no number" not in error.message
    assert bool(error.tip) == (pointer not in WITHOUT_A_TIP)
    if error.tip:
        stated = values_by_own_names("--set", [error.tip.removeprefix("--set ")])
        assert faults_of(file, text, stated) != (error,), error.tip


def faults_of(file: str, text: str, stated: Mapping[str, object] | None = None) -> tuple[FieldError, ...]:
    try:
        read_recipe(file, text, stated=stated)
    except InvalidProblemError as fault:
        return fault.errors
    return ()


@pytest.mark.parametrize(("written", "reference"), {"0.00": False, "0.1": True}.items())
def test_slimes_arguments_may_be_joined_and_a_coefficient_of_0_loads_no_reference(
    written: str, reference: bool
) -> None:
    text = SLIME_WHOLE.replace("size 32", "size=32")
    found = read_recipe("a.sh", f"{text} --tensor-model-parallel-size=4 --kl-coef {written}\n")
    assert (found.parts["training"]["pin"]["tp"], found.parts["algorithm"]["prompts"]) == (4, 32)
    assert found.parts["algorithm"]["reference"] is reference

"""What launch files of real projects hold: tokenizers, older flags, trainers' arguments, interpolations."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from benchmarks.corpus import FIXTURES, entries, outcome, source_of
from meshwright.launchers.reading.base import LaunchFile, Overrides, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.launchers.reading.vocabulary import counted, named_vocabulary, vocabulary_of
from meshwright.profiles.adapters import ATTENTION_TARGETS, FUSED_TARGETS
from meshwright.profiles.catalog import CATALOG
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.library import find_cluster, find_model
from meshwright.profiles.profile import default_profile
from meshwright.service.requests.launch_files import own_of_files
from meshwright.solver.predict import predict
from meshwright.solver.problem import Problem

FLAGS = (
    "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 128 "
    "--max-position-embeddings 128 "
)


def read(text: str, name: str = "a.sh", overrides: Overrides | None = None, **files: str) -> LaunchFile:
    beside = {key.replace("__", "."): value for key, value in files.items()}
    return read_launch_files(Source(name=name, text=text, include=beside.get), overrides or Overrides())


def megatron(flags: str, start: str = "torchrun --nnodes 1 --nproc_per_node 8") -> str:
    return f"{start} pretrain_gpt.py {FLAGS} {flags}\n"


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("meta-llama/Meta-Llama-3-8B", 128256),
        ("/models/Llama-2-7b-hf/tokenizer.model", 32000),
        ("Qwen/Qwen2.5-72B-Instruct", 151665),
        ("EleutherAI/gpt-neox-20b", 50277),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", 128256),  # its base's, not its teacher's 128,815
        ("/ckpt/DeepSeek-R1-Distill-Qwen-7B", 151665),
        ("open-r1/OpenR1-Distill-7B", None),
        ("somebody/mine", None),
    ],
)
def test_a_tokenizer_is_known_by_its_name(name: str, size: int | None) -> None:
    assert named_vocabulary(name) == size


def test_the_tokenizer_of_every_hub_id_fits_the_table_of_its_model() -> None:
    # DeepSeek V2 pads its 100,002 tokens to 102,400 rows; Gemma 3's image token is in its tokenizer alone
    listed = yaml.safe_load((CATALOG / "model_hub_ids.yaml").read_text("utf-8"))
    for name, hub_ids in listed.items():
        rows = find_model(name).vocab_size
        for spelt in (name, *hub_ids):
            tokens = named_vocabulary(spelt)
            assert tokens is None or rows - 2_400 < tokens <= rows + 1, (spelt, tokens, rows)


def test_a_tokenizer_that_lies_beside_counts_before_its_name() -> None:
    table = json.dumps({"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [{"id": 1}, {"id": 2}]})
    assert counted(table) == 3  # ids 0, 1 and 2
    assert vocabulary_of("HuggingFaceTokenizer", ("llama-3",), {"tokenizer.json": table}.get) == (
        3,
        "tokenizer.json",
    )


def test_the_vocabulary_is_padded_as_the_command_says() -> None:
    plain = read(megatron("--bf16 --vocab-file v.json --global-batch-size 8"))
    assert plain.model.vocab_size == 50257  # GPT-2's; every price pads it to 128 × tp
    padded = read(
        megatron("--bf16 --vocab-file v.json --global-batch-size 8 --make-vocab-size-divisible-by 1024")
    )
    assert padded.model.vocab_size == 51200  # 50 × 1024


def test_rows_that_the_command_states_are_those_of_the_table_whatever_the_tokenizer_has() -> None:
    stated = megatron("--bf16 --vocab-size 151669 --padded-vocab-size 151936 --global-batch-size 8")
    assert read(stated).model.vocab_size == 151_936  # 151 669 tokens would fill 151 680 rows of 128's
    usual = megatron("--bf16 --vocab-size 151669 --padded-vocab-size 151680 --global-batch-size 8")
    assert read(usual).model.vocab_size == 151_669  # every price's own padding
    alone = megatron("--bf16 --padded-vocab-size 51200 --global-batch-size 8")
    assert read(alone).model.vocab_size == 51_200


def test_what_is_told_counts_before_the_script_and_is_noted() -> None:
    text = megatron("--bf16 --vocab-size 512 --global-batch-size 16 --tensor-model-parallel-size 2")
    found = read(text, overrides=Overrides(num_gpus=16, values={"tensor_parallel_size": 4}))
    assert (found.configuration.tensor_parallel_size, found.configuration.data_parallel_size) == (4, 4)
    assert any("the script starts 8 processes; 16 GPUs are given" in note for note in found.notes)
    assert any("line 1: --tensor-model-parallel-size 2 is replaced by 4" in note for note in found.notes)


def test_a_flag_can_be_passed_by_and_a_missing_batch_is_one_micro_batch_a_replica() -> None:
    text = megatron("--bf16 --vocab-size 512 --num-experts nonsense --micro-batch-size 2")
    with pytest.raises(InvalidProblemError, match="not a whole number"):
        read(text)
    found = read(text, overrides=Overrides(ignored=("--num-experts",)))
    assert found.workload.global_batch_size == 16  # 8 GPUs × 2


def test_megatron_deepspeed_takes_its_stage_from_the_file_that_the_script_writes() -> None:
    text = (
        'Z=1\ncat <<EOT > ds.json\n{"zero_optimization": {"stage": $Z}}\nEOT\n'
        + megatron("--fp16 --vocab-size 512 --deepspeed --deepspeed_config ds.json --zero-stage 0 "
                   "--checkpoint-activations --pipeline-model-parallel-size 2 "
                   "--pp-partition-method 'type:transformer|embedding' --global-batch-size 8")
    )  # fmt: skip
    found = read(text)
    assert (found.launcher, found.configuration.zero_stage) == ("deepspeed", 1)
    assert found.configuration.stage_layers == (2, 2)  # 4 + embedding + head = 6 over 2 stages
    assert found.configuration.recompute_granularity == "full"


def test_an_older_flag_sets_what_the_command_leaves_open() -> None:
    start = "--bf16 --vocab-size 512 --global-batch-size 8"
    both = read(megatron(f"{start} --overlap-grad-reduce --overlapped-distributed-optimizer"))
    assert both.configuration.zero_stage == 1  # it means --use-distributed-optimizer, too
    groups = read(megatron(f"{start} --num-query-groups 2 --num-key-value-heads 2"))
    assert groups.model.num_kv_heads == 2  # it means --group-query-attention, too
    named = read(
        megatron(f"{start} --recompute-granularity selective --checkpoint-activations")
    ).configuration
    assert (named.recompute_granularity, named.recompute_layers) == ("selective", 0)


def test_what_a_launcher_runs_and_no_plan_has_is_priced_on_its_stack() -> None:
    request = {"cluster": {"name": "dgx-h100", "num_nodes": 1}}
    eight = "[float8]\nenable_float8_linear = true\n"  # before model.converters
    titan = own_of_files(request, Source(name="a.toml", text=TITAN.replace('"two"', "2") + eight))
    assert titan.problem.workload.framework_options["precision_recipe"] == "fp8-current"
    assert (titan.problem.launcher, titan.problem.stack, titan.launcher) == ("none", "fsdp", "torchtitan")
    assert not titan.unread  # the older name of 8 bits was given as read and as unread
    halves = TITAN.replace('"two"', "2").replace("seq_len", 'dtype = "bfloat16"\nseq_len')
    own = own_of_files(request, Source(name="a.toml", text=halves))
    assert own.problem.workload.optimizer == "adamw-pure-bf16"  # no fp32 copy, moments in bf16
    swift = (
        "NPROC_PER_NODE=8 swift sft --model Qwen/Qwen3-8B --train_type lora --max_length 2048 "
        "--torch_dtype bfloat16 --per_device_train_batch_size 2 --deepspeed zero2\n"
    )
    own = own_of_files(request, Source(name="a.sh", text=swift))
    assert (own.problem.workload.lora_rank, own.problem.stack) == (8, "deepspeed")
    assert any("Meshwright plans no adapters under deepspeed" in note for note in own.notes)
    assert any("The best plan runs under accelerate without DeepSpeed" in note for note in own.notes)


def test_a_vocabulary_that_is_told_is_the_models() -> None:
    text = megatron("--bf16 --tokenizer-type HuggingFaceTokenizer --global-batch-size 8")
    with pytest.raises(InvalidProblemError, match="--set vocab_size"):
        read(text)
    request = {"cluster": {"name": "dgx-h100", "num_nodes": 1}}
    own = own_of_files(request, Source(name="a.sh", text=text), values={"vocab_size": 32000})
    assert own.problem.model.vocab_size == 32000


def test_encoders_are_refused_by_the_program_that_builds_them() -> None:
    with pytest.raises(InvalidProblemError, match=r"line 1: pretrain_t5\.py trains an encoder-decoder"):
        read(megatron("--fp16 --vocab-size 512").replace("pretrain_gpt", "pretrain_t5"))


TRAINER = (
    "torchrun --nproc_per_node 8 train.py --model_name_or_path meta-llama/Meta-Llama-3-8B --bf16 True "
    "--per_device_train_batch_size 2 --gradient_accumulation_steps 4 --max_seq_length 2048"
)


def test_auto_in_deepspeeds_file_is_what_the_trainers_arguments_say() -> None:
    auto = {"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 3}, "train_batch_size": "auto",
            "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}  # fmt: skip
    found = read(f"{TRAINER} --deepspeed ds.json\n", ds__json=json.dumps(auto))
    assert (found.launcher, found.configuration.zero_stage) == ("deepspeed", 3)
    assert found.workload.global_batch_size == 64  # 8 GPUs × 2 × 4
    assert found.model.name == "llama-3-8b"


def test_a_trainer_without_a_strategy_runs_replicas_and_without_a_type_fp32() -> None:
    found = read(TRAINER + "\n")
    assert (found.launcher, found.configuration.zero_stage, found.workload.seq_length) == (
        "accelerate",
        0,
        2048,
    )
    found = read(TRAINER.replace("--bf16 True ", "") + "\n")
    assert found.workload.precision == "fp32"
    assert any("--set precision=bf16" in note for note in found.notes)


def test_a_classifier_has_a_matrix_of_labels_and_no_logits() -> None:
    model = read(f"{TRAINER} --num_labels 2\n").model
    assert (model.num_labels, model.tied_embeddings, model.head_parameters()) == (2, False, 2 * 4096)


CHAT = (
    "deepspeed --num_gpus 8 main.py --model_name_or_path facebook/opt-1.3b --zero_stage 3 --deepspeed "
    "--output_dir out"
)


@pytest.mark.parametrize(
    ("words", "folder", "sample", "labels"),
    [
        ("", "", "sequence", 0),
        ("--num_padding_at_beginning 1", "", "pair", 1),
        ("--beta 0.1 --dtype fp16", "", "pair/frozen", 0),
        ("", "training/step2_dpo_finetuning/training_scripts", "pair/frozen", 0),
        ("", "training/step2_reward_model_finetuning/training_scripts", "pair", 1),
    ],
)
def test_deepspeed_chats_programs_have_defaults_of_their_own(
    words: str, folder: str, sample: str, labels: int
) -> None:
    source = Source(name="a.sh", text=f"{CHAT} {words}\n", folder=folder)
    found = read_launch_files(source, Overrides())
    work, config = found.workload, found.configuration
    assert (work.precision, work.seq_length, config.micro_batch_size) == ("fp16", 512, 16)
    assert (work.sample_word, found.model.num_labels, config.zero_stage) == (sample, labels, 3)


def test_deepspeed_chats_adapters_leave_the_rest_trained() -> None:
    whole, alone = (read(f"{CHAT} --lora_dim 64 {one}\n") for one in ("", "--only_optimize_lora"))
    assert (whole.workload.lora_rank, whole.workload.trained_modules) == (64, ("embed_tokens", "norm"))
    assert alone.workload.trained_modules == ()


def test_an_accelerate_configuration_that_is_not_there_is_asked_for() -> None:
    text = TRAINER.replace("torchrun --nproc_per_node 8", "accelerate launch --config_file fsdp.json")
    with pytest.raises(InvalidProblemError, match=r"line 1 of a.sh: fsdp.json is not next to it"):
        read(text + "\n")


def test_llama_factory_without_megatron_runs_the_trainer_with_its_own_defaults() -> None:
    text = (
        "model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct\nstage: sft\ndo_train: true\n"
        "finetuning_type: lora\n"
        "per_device_train_batch_size: 1\ngradient_accumulation_steps: 8\n"
    )
    found = read(text, "a.yaml", Overrides(num_gpus=4))
    assert (found.launcher, found.workload.precision, found.workload.lora_rank) == (
        "llama-factory-accelerate",
        "bf16",
        8,
    )
    assert (found.workload.seq_length, found.workload.global_batch_size) == (2048, 32)  # 4 × 8
    assert found.configuration.recompute_granularity == "full"


def test_accelerates_type_no_starts_one_process() -> None:
    text = "compute_environment: X\ndistributed_type: 'NO'\nnum_processes: 8\nmixed_precision: bf16\n"
    values = {"seq_length": 128, "micro_batch_size": 1, "num_microbatches": 1}
    found = read(text, "a.yaml", Overrides(model=find_model("llama-3.1-8b"), values=values))
    assert found.configuration.num_gpus == 1


def test_the_corpus_is_counted_and_nothing_in_it_is_read_wrong() -> None:
    listed = entries()
    assert len({one["repository"] for one in listed}) == 547
    found = [outcome(one, source_of(one, [FIXTURES])) for one in listed]
    here = [one for one in found if one.kind != "absent"]
    # Those that are stored, and all that are listed: others are judged with --files or --download alone.
    assert (len(here), len(listed)) == (51, 1131)
    assert Counter(one.kind for one in here) == {"right": 43, "missed": 2, "rightly refused": 6}
    page = (Path(__file__).parents[4] / "docs" / "why-this-plan.md").read_text()
    for said in ("1,131 launch files of 547", "51 of them are stored", "43 of the 45", "The other 1,080"):
        assert said in page


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("torchrun tools/run_text_generation_server.py {flags}", "generates text"),
        ("torchrun examples/inference/gpt_static_inference.py {flags}", "generates text"),
        ("python tasks/main.py --task LAMBADA {flags}", "evaluates a model on a task"),
        ("python tools/evaluate_gpt.py {flags}", "evaluates a model"),
        ("torchrun text_generation_ptq.py {flags}", "generates text"),
        ("torchrun quantize.py {flags}", "converts a checkpoint"),
        (("swift rlhf --rlhf_type grpo --model Qwen/Qwen3-8B --per_device_train_batch_size 1 "
         "--external_plugins plugin.py"), "rlhf_type: line 1: grpo generates answers"),
        ("megatron rlhf --rlhf_type dpo --micro_batch_size 1 --global_batch_size 8", "preferences"),
        ("swift export --model a --per_device_train_batch_size 1 --tuner_type lora", "trains nothing"),
    ],
)  # fmt: skip
def test_what_takes_a_trainings_flags_and_trains_no_sequence_is_refused(command: str, reason: str) -> None:
    flags = FLAGS + "--bf16 --vocab-size 512 --micro-batch-size 1"
    with pytest.raises(InvalidProblemError, match=reason):
        read(command.format(flags=flags) + "\n", overrides=Overrides(num_gpus=8))


def test_of_a_training_and_its_evaluation_the_training_is_read() -> None:
    evaluates = megatron(
        "--bf16 --vocab-size 512 --micro-batch-size 7 --global-batch-size 56 --fp8-format hybrid"
    )
    text = evaluates.replace("pretrain_gpt.py", "tasks/main.py --task WIKI")
    found = read(text + megatron("--bf16 --vocab-size 512 --global-batch-size 16 --micro-batch-size 2"))
    assert found.configuration.micro_batch_size == 2


@pytest.mark.parametrize(
    ("flag", "reason"),
    [("--vision-model-type clip", "vision"), ("--kd", "teacher"), ("--freeze-ViT", "vision")],
)
def test_flags_of_other_models_are_refused_by_name(flag: str, reason: str) -> None:
    with pytest.raises(
        InvalidProblemError, match=f"{flag.split(maxsplit=1)[0]}: line 1: cannot be read: .*{reason}"
    ):
        read(megatron(f"--bf16 --vocab-size 512 {flag}"))


@pytest.mark.parametrize(
    ("argument", "reason"),
    [
        ("--use_4bit_quantization True", "weights of 4 bits are frozen"),
        ("--model Qwen/Qwen2.5-7B-Instruct-AWQ", "stored quantised"),
    ],
)
def test_fine_tuning_that_no_plan_describes_is_refused_by_name(argument: str, reason: str) -> None:
    text = f"torchrun --nproc_per_node 8 train.py --per_device_train_batch_size 1 --bf16 True {argument}"
    model = "" if "--model" in argument else " --model_name_or_path Qwen/Qwen2.5-7B"
    with pytest.raises(
        InvalidProblemError, match=f"{argument.split(maxsplit=1)[0][2:]}: line 1: .*{reason}"
    ):
        read(text + model + " --max_seq_length 2048\n")


def test_adapters_by_peft_are_read() -> None:
    text = (
        "torchrun --nproc_per_node 8 --nnodes 1 train.py --model_name_or_path mistralai/Mistral-7B-v0.1 "
        "--per_device_train_batch_size 8 --max_length 2048 --bf16 True --use_peft_lora True --lora_r 32\n"
    )
    assert read(text).workload.lora_rank == 32


def test_a_header_line_of_slurm_ends_with_its_line() -> None:
    text = "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --exclusive\n#SBATCH --gres=gpu:8\n"
    flags = f'CMD="pretrain_gpt.py {FLAGS} --bf16 --vocab-size 512 --global-batch-size 16"\n'
    found = read(text + flags + 'echo $CMD\nsrun bash -c "python $CMD"\n', "a.slurm")
    assert (found.num_nodes, found.gpus_per_node) == (2, 1)  # one task on each node, which sees eight GPUs
    alone = read(text + flags.replace('CMD="', "srun python ").replace('"', ""), "a.slurm")
    assert (alone.num_nodes, alone.gpus_per_node) == (2, 1)  # as without a shell between


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("dns.yaml", "apiVersion: v1\nkind: Service\nspec:\n  clusterIP: None\n", "a Kubernetes manifest"),
        ("20B.yml", '{"pipe-parallel-size": 4, "model-parallel-size": 2, "hidden": 6}\n', "GPT-NeoX's"),
        ("ppo.yaml", "actor_rollout_ref:\n  model:\n    path: a\n", "verl's"),
        ("5b.yaml", "trainer:\n  devices: 8\nmodel:\n  mcore_gpt: true\n", "NeMo 1's"),
        ("recipe.py", "import nemo_run as run\n", "a recipe of NeMo 2"),
        ("train.py", "print('hello')\n", "a Python program"),
        ("config.json", '{"model_type": "llama", "hidden_size": 64}', "a model's own configuration"),
    ],
)  # fmt: skip
def test_what_nobody_reads_is_called_by_its_name_with_the_next_step(
    name: str, text: str, what: str
) -> None:
    with pytest.raises(
        InvalidProblemError, match=f"{name} is {what}.* Meshwright can't read it. Allowed: "
    ):
        read(text, name)


def bridge(rest: str, nodes: int = 2) -> str:
    start = f"torchrun --nproc_per_node=8 --nnodes={nodes} scripts/training/run_recipe.py"
    return f"{start} {rest}\n"


def test_a_recipe_of_megatron_bridge_is_read_by_its_name_with_overrides() -> None:
    plain = read(bridge("--recipe llama3_8b_pretrain_config"))
    assert plain.model.name == "llama-3-8b"
    assert (plain.configuration.tensor_parallel_size, plain.configuration.context_parallel_size) == (1, 2)
    assert (plain.workload.global_batch_size, plain.workload.seq_length) == (512, 8192)
    found = read(
        bridge("--recipe llama3_8b_pretrain_config -tp 2 train.global_batch_size=128 --seq_length 4096")
    )
    assert found.configuration.data_parallel_size == 4  # 16 GPUs over tp 2 × cp 2, which stays the recipe's
    assert (found.workload.global_batch_size, found.workload.seq_length) == (128, 4096)
    assert any("Megatron-Bridge recipe llama3_8b_pretrain_config" in note for note in found.notes)
    by_model = read(bridge("--model llama3_70b --mode pretrain", nodes=8))
    assert (by_model.model.name, by_model.configuration.virtual_pipeline_size) == ("llama-3-70b", 5)


def test_a_recipe_that_is_not_known_names_the_nearest_and_other_adapters_are_refused() -> None:
    with pytest.raises(
        InvalidProblemError, match="line 1: llama3_8_pretrain_config is not a known recipe"
    ) as refusal:
        read(bridge("--recipe llama3_8_pretrain_config"))
    assert refusal.value.errors[0].nearest == "llama3_8b_pretrain_config"
    for words, why in (
        ("--recipe llama3_8b_pretrain_config --mode lora", "llama3_8b_pretrain_config trains all weights"),
        ("--recipe llama3_8b_peft_config peft.dim=x", "peft.dim: line 1: x is not a rank"),
        ("--recipe llama3_8b_peft_config peft.normalize_moe_lora=true", "not priced"),
        ("--recipe llama3_8b_peft_config peft.target_modules=[linear]", "linear is not priced"),
        ("--recipe qwen3_30b_a3b_peft_config peft.target_modules=[linear_fc1]", "share an adapter"),
        ("--recipe qwen3_30b_a3b_peft_config --mode dora peft.target_modules=[linear_fc1]", "share an"),
    ):
        with pytest.raises(InvalidProblemError, match=why):
            read(bridge(words, nodes=1))


@pytest.mark.parametrize(
    ("words", "rank", "targets"),
    [
        ("--recipe llama3_8b_peft_config", 8, FUSED_TARGETS),  # its own rank
        ("--model llama32_1b --mode lora", 32, FUSED_TARGETS),  # ``LoRA.dim``
        (
            "--recipe llama3_8b_peft_config peft.dim=64 peft.target_modules=[linear_fc1]",
            64,
            ("linear_fc1",),
        ),
        ("--recipe qwen3_30b_a3b_peft_config", 8, ATTENTION_TARGETS),
        ("--recipe llama3_8b_peft_config peft=null", 0, ()),
    ],
)
def test_adapters_of_a_recipe_are_read_with_its_rank_and_layers(
    words: str, rank: int, targets: tuple[str, ...]
) -> None:
    workload = read(bridge(words, nodes=1)).workload
    assert (workload.lora_rank, workload.lora_targets if rank else ()) == (rank, targets)
    assert "dora" not in workload.framework_options


def test_dora_of_megatron_bridge_is_read_priced_and_written() -> None:
    start = "--recipe llama3_8b_peft_config"
    plain, found = (
        read(bridge(f"{start}{mode}", nodes=1)) for mode in ("", " --mode dora peft.dropout=.1")
    )
    assert found.workload.framework_options == {
        **plain.workload.framework_options, "dora": True, "adapter_dropout": True,
    }  # fmt: skip
    cluster = find_cluster("dgx-h100")
    profile = default_profile(cluster, "megatron-bridge")
    lora, dora = (
        predict(
            Problem(model=run.model, cluster=cluster, workload=run.workload, launcher="megatron-bridge"),
            profile,
            run.configuration,
        )
        for run in (plain, found)
    )
    assert 1.0 < dora.step_time_s / lora.step_time_s < 2.5
    assert dora.peak_memory_bytes > lora.peak_memory_bytes


@pytest.mark.parametrize(
    (
        "recipe",
        "model",
        "sizes",
        "workload",
    ),  # tp, pp, cp; batch, micro-batch, tokens: as 0.3.1's sources say
    [
        ("qwen3_8b_pretrain_config", "qwen3-8b", (4, 1, 1), (32, 2, 4096)),
        ("gemma2_9b_pretrain_config", "gemma-2-9b", (8, 1, 1), (32, 2, 4096)),
        ("qwen25_7b_sft_config", "qwen2.5-7b", (2, 1, 1), (128, 1, 2048)),
        ("llama31_70b_pretrain_config", "llama-3.1-70b", (4, 4, 2), (512, 1, 131_072)),
    ],
)
def test_recipes_say_what_their_sources_assign(
    recipe: str, model: str, sizes: tuple[int, ...], workload: tuple[int, ...]
) -> None:
    found = read(bridge(f"--recipe {recipe}", nodes=4))  # 32 GPUs
    config, asked = found.configuration, found.workload
    assert found.model.name == model
    read_sizes = config.tensor_parallel_size, config.pipeline_parallel_size, config.context_parallel_size
    assert read_sizes == sizes
    assert (asked.global_batch_size, config.micro_batch_size, asked.seq_length) == workload


def test_a_recipe_keeps_its_experts_whole_on_tensor_ranks_and_takes_deepep() -> None:
    found = read(bridge("--recipe qwen3_30b_a3b_pretrain_config", nodes=1))  # tp 4 × pp 2; ep 4 × 1 of tp
    config = found.configuration
    assert (config.tensor_parallel_size, config.pipeline_parallel_size) == (4, 2)
    assert (config.expert_parallel_size, config.expert_tensor_parallel_size) == (4, 1)
    assert found.workload.framework_options["moe_dispatcher"] == "deepep"
    with pytest.raises(InvalidProblemError, match="deepseek_v3_pretrain_config computes it"):
        read(bridge("--recipe deepseek_v3_pretrain_config", nodes=128))  # its layout


def test_recipes_of_one_script_are_runs_to_choose_from() -> None:
    text = bridge("--recipe llama3_8b_pretrain_config") + bridge(
        "--recipe llama3_70b_pretrain_config -tp 8"
    )
    with pytest.raises(
        InvalidProblemError, match=r"starts 2 runs that differ: 1 .*llama3_8b.*; 2 .*llama3_70b"
    ):
        read(text)
    assert read(text, overrides=Overrides(run=1)).model.name == "llama-3-8b"
    again = bridge("--recipe llama3_8b_pretrain_config logger.log_interval=1")
    assert read(bridge("--recipe llama3_8b_pretrain_config") + again).model.name == "llama-3-8b"


def test_several_runs_of_a_script_are_listed_and_one_is_chosen() -> None:
    flags = "--bf16 --vocab-size 512 --global-batch-size 16"
    sizes = (1, 2)
    loop = "for TP in 1 2; do\n" + megatron(flags + " --tensor-model-parallel-size $TP") + "done\n"
    two = "".join(megatron(f"{flags} --tensor-model-parallel-size {size}") for size in sizes)
    for text in (loop, two):
        with pytest.raises(
            InvalidProblemError, match=r"a.sh starts 2 runs that differ: 1 .line .*size 1; 2"
        ):
            read(text)
        for run in sizes:
            assert read(text, overrides=Overrides(run=run)).configuration.tensor_parallel_size == run
    with pytest.raises(InvalidProblemError, match=r"--run: 3: a.sh starts 2 runs"):
        read(two, overrides=Overrides(run=3))
    same = megatron(flags + " --lr 1e-4") + megatron(flags + " --lr 3e-4")
    assert read(same).workload.global_batch_size == 16  # no price hangs on the learning rate


TITAN = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
[parallelism]
tensor_parallel_degree = "two"
data_parallel_shard_degree = -1
"""


@pytest.mark.parametrize(
    ("name", "text", "ignored", "overrides"),
    [
        ("a.toml", TITAN, "parallelism.tensor_parallel_degree", Overrides(num_gpus=8)),
        ("a.sh", ("megatron sft --model Qwen/Qwen3-8B --micro_batch_size 1 --global_batch_size 16 "
         "--max_length 2048 --context_parallel_size two\n"), "--context_parallel_size",
         Overrides(num_gpus=8)),
        ("a.sh", bridge("--recipe llama3_8b_pretrain_config model.pipeline_model_parallel_size=two"),
         "model.pipeline_model_parallel_size", Overrides()),
        ("a.sh", ("torchrun --nproc_per_node 8 train.py --model_name_or_path Qwen/Qwen3-8B --bf16 True "
         "--max_length 2048 --per_device_train_batch_size 2 --gradient_accumulation_steps two\n"),
         "--gradient_accumulation_steps", Overrides(num_gpus=8)),
    ],
)  # fmt: skip
def test_every_reader_passes_by_what_it_is_told_to(
    name: str, text: str, ignored: str, overrides: Overrides
) -> None:
    with pytest.raises(InvalidProblemError, match="two"):
        read(text, name, overrides)
    found = read(text, name, replace(overrides, ignored=(ignored,)))
    assert any("is ignored (--ignore)" in note for note in found.notes)


def test_what_is_told_overrides_every_files_sizes_and_says_so() -> None:
    request = {"cluster": {"name": "dgx-h100", "num_nodes": 2}}
    text = TITAN.replace('"two"', "2").replace("shard_degree = -1", "shard_degree = 4")
    own = own_of_files(request, Source(name="a.toml", text=text), values={"tensor_parallel_size": 4})
    assert (own.configuration.tensor_parallel_size, own.configuration.data_parallel_size) == (
        4,
        4,
    )  # 16 GPUs
    said = " ".join(own.notes)
    assert "tensor_parallel_size 2 of the files is replaced by 4" in said
    assert "the files run on 8 GPUs, but you gave 16" in said


SWIFT = (
    "NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen3-8B --micro_batch_size 1 --global_batch_size 16 "
    "--max_length 2048 --tensor_model_parallel_size 2"
)


@pytest.mark.parametrize(
    ("rest", "fault"),
    [
        ("--tuner_type adalora", "--tuner_type: line 1: adalora is not supported"),
        ("--tuner_type lora --lora_rank sixteen", "--lora_rank: line 1: sixteen is not supported"),
        ("--tuner_type lora --lora_rank $RANK_OF_IT", r"--lora_rank: line 1: .*\$RANK_OF_IT, but"),
        (
            "--tuner_type lora --target_modules linear_qkv all-router",
            "--target_modules: line 1: .*all-router",
        ),
    ],
)
def test_adapters_of_ms_swift_that_cannot_be_read_are_refused(rest: str, fault: str) -> None:
    with pytest.raises(InvalidProblemError, match=fault):  # they were priced as training of every weight
        read(f"{SWIFT} {rest}\n", overrides=Overrides(num_gpus=8))
    whole = read(f"{SWIFT} --tuner_type lora --lora_rank 10000\n", overrides=Overrides(num_gpus=8))
    assert whole.workload.lora_rank == 10_000  # five digits are read


def test_axolotls_base_model_is_the_model() -> None:
    text = "base_model: meta-llama/Llama-3.1-8B\nsequence_len: 4096\nmicro_batch_size: 1\nbf16: true\n"
    text += "optimizer: adamw_torch_fused\nsample_packing: true\nfsdp_version: 2\nfsdp_config:\n"
    text += "  reshard_after_forward: true\n  auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
    assert read(text, "a.yaml", Overrides(num_gpus=8)).model.name == "llama-3.1-8b"
    found = read(text.replace("meta-llama/", "/data/our/"), "a.yaml", Overrides(num_gpus=8))
    assert found.model.name == "llama-3.1-8b"
    assert (
        "the model is llama-3.1-8b: /data/our/Llama-3.1-8B of the files, by the last part of the path"
        in found.notes
    )
    fault = "line 1: our/Llama-3.1-8B-own is not in the catalog.*Did you mean llama-3.1-8b"
    with pytest.raises(InvalidProblemError, match=fault):
        read(
            text.replace("meta-llama/Llama-3.1-8B", "our/Llama-3.1-8B-own"), "a.yaml", Overrides(num_gpus=8)
        )
    with pytest.raises(InvalidProblemError, match='optimizer: line 5: "dion" is not supported'):
        read(text.replace("adamw_torch_fused", "dion"), "a.yaml", Overrides(num_gpus=8))


def test_a_folder_of_a_later_version_is_that_version() -> None:
    for name in ("mistralai/Mistral-7B-Instruct-v0.3", "/models/Mistral-7B-Instruct-v0.3"):
        found = read(f"{SWIFT} --tensor_model_parallel_size 2\n".replace("Qwen/Qwen3-8B", name),
                     overrides=Overrides(num_gpus=8))  # fmt: skip
        assert found.model.name == "mistral-7b-v0.3"


def test_what_is_told_leaves_the_set_of_ranks_that_shares_states() -> None:
    request = {"cluster": {"name": "dgx-h100", "num_nodes": 2}}
    text = TITAN.replace('"two"', "1").replace("shard_degree = -1", "shard_degree = 8")
    text += "data_parallel_replicate_degree = 2\n"
    own = own_of_files(request, Source(name="a.toml", text=text), values={"recompute_granularity": "full"})
    assert (own.configuration.data_parallel_size, own.configuration.zero_shard_size) == (16, 8)
    with pytest.raises(InvalidProblemError, match="recompute_granularty"):
        own_of_files(request, Source(name="a.toml", text=text), values={"recompute_granularty": "full"})


@pytest.mark.parametrize(
    ("test", "variable", "allowed"),
    [
        ('if [ -z "$IMAGE" ]; then exit 1; fi', "IMAGE", "--var IMAGE=…"),
        ('[ -z "$IMAGE" ] && exit 1', "IMAGE", "--var IMAGE=…"),
        ('test -n "${IMAGE}" || { echo set it; exit 1; }', "IMAGE", "--var IMAGE=…"),
        ('case "$SIZE" in 7b) layers=32;; *) exit 1;; esac', "SIZE", "--var SIZE=…"),
        ("NODES=1; if (( NODES < 2 )); then exit 1; fi", "NODES", "--var NODES=…"),
        ('if [ "$#" -ne 3 ]; then exit 1; fi', r"\$#", "--var 1=… (its first argument)"),
    ],
)
def test_an_exit_names_the_variable_that_decided_it(test: str, variable: str, allowed: str) -> None:
    text = f'OTHER=1\nif [ "$OTHER" = 1 ]; then echo on; fi\n{test}\n' + bridge(
        "--recipe llama3_8b_sft_config"
    )
    with pytest.raises(
        InvalidProblemError, match=f"line 3 of a.sh: .*because of {variable}, with"
    ) as caught:
        read(text)
    assert allowed in str(caught.value.errors[0].allowed)


def test_a_script_that_exits_before_it_starts_anything_is_told_where() -> None:
    text = 'IMAGE=""\nif [ -z "$IMAGE" ]; then\n  echo set IMAGE\n  exit 1\nfi\n' + bridge(
        "--recipe llama3_8b_sft_config"
    )
    with pytest.raises(
        InvalidProblemError, match=r"line 4 of a.sh: it exits there, because of IMAGE"
    ) as caught:
        read(text)
    assert "--var IMAGE=…" in str(caught.value.errors[0].allowed)
    assert read(text, overrides=Overrides(variables={"IMAGE": "a"})).model.name == "llama-3-8b"

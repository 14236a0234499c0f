"""What launch files of other people's repositories hold, each reduced to the lines that were read wrong."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.launchers.flags import flags_of
from meshwright.launchers.reading.base import LaunchFile, Overrides, Source
from meshwright.launchers.reading.commands import chosen_by, commands_of
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.launchers.reading.vocabulary import pieces, vocabulary_of
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.frameworks import framework_facts, with_options
from meshwright.profiles.switches import clashes
from meshwright.service.cli.launch_files import source_of
from meshwright.shell.script import read_script
from meshwright.shell.values import unknown_value

SIZES = (
    "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 128 "
    "--max-position-embeddings 128 --bf16 "
)


def read(text: str, overrides: Overrides | None = None, name: str = "a.sh") -> LaunchFile:
    return read_launch_files(Source(name=name, text=text), overrides or Overrides())


def echoed(text: str) -> list[str]:
    return [word.text for word in read_script(text).commands[-1]][1:]


def test_read_takes_its_words_from_a_text() -> None:
    assert echoed('read TP PP <<< "4 8"\necho $TP $PP') == ["4", "8"]
    assert echoed("IFS=',' read -ra L <<< \"a,b,c\"\necho ${L[2]}") == ["c"]
    assert echoed('read FIRST REST <<< "a b c"\necho "$REST"') == ["b c"]
    assert echoed('read -r -d "" A <<< "one line"\necho "$A"') == ["one line"]


def test_a_list_that_is_not_known_has_no_length() -> None:
    # of an unset variable it would be one word, and one GPU
    [length] = echoed("IFS=',' read -ra L <<< \"$CUDA_VISIBLE_DEVICES\"\necho ${#L[@]}")
    assert length == unknown_value("${#L[@]}")
    first, second = echoed('read A B <<< "$(head -n 1 hosts)"\necho "$A" "$B"')
    assert first == unknown_value("$(head -n 1 hosts)")
    assert second in ("", first)


def test_a_part_of_a_text_is_cut_out() -> None:
    assert echoed("V=abcdef\necho ${V:1:3} ${V:4}") == ["bcd", "ef"]
    guard = "if [ ${BASH_VERSION:0:1} -lt 4 ]; then exit 1; fi\necho on"
    assert echoed(guard) == ["on"]


def test_what_is_not_known_stays_one_word() -> None:
    # `wc -l` and `head -n 1` hold blanks, and 1 is no number of processes
    script = (
        "G=`nvidia-smi -L | wc -l`\nmpirun -np $((4 * ${G})) -x MASTER_ADDR=$(head -n 1 $HOSTS) "
        f"python pretrain_gpt.py {SIZES} --vocab-size 512 --tensor-model-parallel-size 2 "
        "--global-batch-size 8\n"
    )
    with pytest.raises(InvalidProblemError, match="the number of GPUs is missing"):
        read(script)
    assert read(script, Overrides(num_gpus=8)).configuration.data_parallel_size == 4  # 8 / tp 2


BATCH = (
    "#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --gpus-per-node=mi250:8\n#SBATCH --ntasks-per-node=8\n"
    "GBS=$((SLURM_JOB_NUM_NODES * 8))\n"
    f"srun python pretrain_gpt.py {SIZES} --vocab-size 512 --global-batch-size $GBS\n"
)


@pytest.mark.parametrize(
    ("header", "gpus"),
    [
        ("#SBATCH -N 4 --gpus-per-node=8  # all of them", 32),
        ("#SBATCH -N4\n#SBATCH --gres=gpu:a100:4,nvme:1", 16),  # was one GPU: the drive's number
        ("#SBATCH -J 'my run' --nodes 2\n#SBATCH --gres=gpu:8(S:0-1)", 16),
        ("#SBATCH --nodes=2 --gres=gpu:8\nset -e\n#SBATCH --nodes=4", 16),  # sbatch stops at a command
        ("#SBATCH --nodes=4 --gres=gpu:8 --gres=gpu:4\n#SBATCH -N 2", 8),  # what is said last counts
        ("#SBATCH -N2 -G a100:16", 16),
        ("#SBATCH -N2 --tasks-per-node=4 --gpus-per-task=2", 8),  # one process a task
    ],
)
def test_a_header_is_read_as_sbatch_reads_it(header: str, gpus: int) -> None:
    start = f"srun python pretrain_gpt.py {SIZES} --vocab-size 512 --global-batch-size 64"
    text = f"#!/bin/bash\n# of my own\n{header}\n{start} --micro-batch-size 1\n"
    assert read(text).configuration.num_gpus == gpus


@pytest.mark.parametrize(
    "header",
    [
        "#SBATCH -N1 --gres=gpu:8\n#SBATCH hetjob\n#SBATCH -N2 --gres=gpu:8",
        "#SBATCH -N2 --gres=gpu:h100:4,gpu:a100:4",
        "#SBATCH -N2 --gpus=h100:8,a100:8",
    ],
)
def test_a_header_with_several_kinds_of_nodes_is_refused(header: str) -> None:
    start = f"srun torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py {SIZES} --vocab-size 512"
    with pytest.raises(InvalidProblemError, match="asks for several kinds of nodes"):
        read(f"#!/bin/bash\n{header}\n{start} --global-batch-size 64 --micro-batch-size 1\n")


def test_a_text_that_an_unknown_condition_extends_keeps_what_it_held() -> None:
    start = f"torchrun --nproc_per_node 8 pretrain_gpt.py {SIZES} --vocab-size 512 --global-batch-size 8"
    extend = 'if nvidia-smi | grep -q H100; then A="$A {}"; fi\n'
    text = f'A="--sequence-parallel --use-distributed-optimizer"\n{extend}{start} --lr 1 $A\n'
    held = read(text.format("--log-interval 10"))
    assert held.configuration.zero_stage == 1  # the second flag is not lost
    with pytest.raises(
        InvalidProblemError, match=r"--fp8-format: line 2: \$A depends on a condition on line 2"
    ):
        read(text.format("--fp8-format hybrid"))
    one_of_two = "A=(--a)\nif nvidia-smi | grep -q H100; then A=(--b); fi\necho"
    assert [word.partition("=")[0] for word in echoed(f'{one_of_two} "${{A[@]}}"')] == ["--a", "--b"]
    assert [word.partition("=")[0] for word in echoed(f"{one_of_two} $A")] == ["--a", "--b"]


def test_data_that_a_script_names_are_no_launch_files_that_are_missing() -> None:
    script = "python train.py --data_path a/alpaca.json --vocab-file=b/vocab.json --config c/own.json\n"
    with pytest.raises(InvalidProblemError, match=r"own.json is not next to it") as caught:
        read(script)
    assert not re.search(r"(alpaca|vocab).json", str(caught.value))


def test_slurms_variables_are_those_of_the_header_or_of_the_told_nodes() -> None:
    assert read(BATCH).workload.global_batch_size == 32  # 4 nodes × 8
    assert read(BATCH, Overrides(num_gpus=16)).workload.global_batch_size == 16  # 2 nodes × 8


def test_a_vocabulary_is_what_its_path_states_and_nobodys_is_not_gpt2s() -> None:
    def size(path: str) -> int | None:
        found = vocabulary_of("GPT2BPETokenizer", (path,), lambda _: None)
        return found[0] if found else None

    assert size("/scratch/tokenizers/nordic_tokenizer_131072/vocab.json") == 131_072
    assert size("/scratch/europa-tokenizer/vocab.json") is None
    assert size("/data/gpt2-vocab.json") == size("/path/to/tokenizer/vocab.json") == 50_257


def test_a_sentencepiece_model_is_counted() -> None:
    def field(number: int, data: bytes) -> bytes:
        return bytes([number << 3 | 2, len(data)]) + data

    # ModelProto: pieces are field 1, the trainer's and the normalizer's settings are 2 and 3
    model = b"".join(field(1, field(1, word)) for word in (b"<unk>", b"<s>", b"</s>", b"a"))
    model += field(2, b"\x18\x01") + field(3, b"")
    assert pieces(model.decode("latin-1")) == 4
    assert pieces("{}") is None
    for less in (1, 3):  # it ends before a length, or in a field
        assert pieces(model[:-less].decode("latin-1")) is None


def test_yaml_takes_no_for_false() -> None:
    text = "compute_environment: LOCAL_MACHINE\ndistributed_type: NO\nnum_processes: 1\n"
    command = (
        "accelerate launch --config_file a.yaml train.py --model_name_or_path meta-llama/Llama-2-7b-hf "
        "--per_device_train_batch_size 1 --max_seq_length 1024 --bf16 True\n"
    )
    source = Source(name="run.sh", text=command, files={"a.yaml": text, "run.sh": command})
    assert read_launch_files(source, Overrides(num_gpus=1)).configuration.num_gpus == 1


def test_a_checkpoints_model_is_the_one_that_its_path_names() -> None:
    flags = (
        "mpirun -np 64 python pretrain_gpt.py --num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 "
        "--num-attention-heads 64 --seq-length 4096 --max-position-embeddings 4096 --bf16 "
        "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 8 --global-batch-size 64 "
        "--use-checkpoint-args --tokenizer-type Llama2Tokenizer --load /ckpt/{}/tp8-pp8 "
        "--tokenizer-model /hf/{}/tokenizer.model\n"
    )
    # the checkpoint has 8 groups of keys, of which the flags say nothing
    assert read(flags.replace("{}", "Llama-2-70b-hf")).model.num_kv_heads == 8
    with pytest.raises(InvalidProblemError, match="--use-checkpoint-args: line 1: can't be read"):
        read(flags.replace("{}", "mine"))


@pytest.mark.parametrize(
    ("program", "flags"),
    [("tools/create_doc_index.py", ""), ("tools/retro/main.py", "--retro-tasks db-build")],
)
def test_programs_that_prepare_data_are_refused(program: str, flags: str) -> None:
    text = f"torchrun --nproc_per_node 8 {program} {SIZES} --vocab-file bert-vocab.txt {flags}\n"
    with pytest.raises(InvalidProblemError, match="prepares data, which is not supported"):
        read(text)


def test_a_file_is_found_by_the_path_that_the_script_names(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "scripts").mkdir()
    (tmp_path / "configs" / "zero.json").write_text(
        '{"bf16": {"enabled": true}, "zero_optimization": {"stage": 2}}'
    )
    script = tmp_path / "scripts" / "train.sh"
    script.write_text(
        "deepspeed --num_gpus 8 train.py --deepspeed configs/zero.json --per_device_train_batch_size 1 "
        "--model_name_or_path meta-llama/Llama-2-7b-hf --max_seq_length 1024 --bf16 True\n"
    )
    assert read_launch_files(source_of([script]), Overrides()).configuration.zero_stage == 2


def test_told_arguments_of_a_script_are_counted() -> None:
    script = 'if [ "$#" -ne 2 ]; then exit 1; fi\necho $2 $@'
    found = read_script(script, {"1": "a", "2": "b"}).commands[-1]
    assert [word.text for word in found] == ["echo", "b", "a", "b"]
    assert read_script(script).stopped == 1


def test_eight_bits_by_megatrons_older_switches() -> None:
    script = f"torchrun --nproc_per_node 8 pretrain_gpt.py {SIZES} --vocab-size 512 --micro-batch-size 1 "
    found = read(script + "--fp8-hybrid --transformer-impl transformer_engine")
    assert (found.workload.precision, found.unread) == ("fp8", ())
    with pytest.raises(InvalidProblemError, match="--msamp: line 1: cannot be read: MS-AMP"):
        read(script + "--fp8-hybrid --msamp")


def test_a_month_in_a_path_is_no_vocabulary() -> None:
    assert vocabulary_of("", ("/data/vocab_131072/x",), lambda _: None) == (131072, "/data/vocab_131072/x")
    assert vocabulary_of("", ("/data/vocab_202401/x",), lambda _: None) is None


@pytest.mark.parametrize(
    ("command", "what"),
    [
        ("python3 launcher_scripts/main.py stages=[training] training=gpt3/5b", "a run of NeMo 1"),
        ("nemo llm pretrain --factory llama3_8b trainer.num_nodes=2 -y", "a recipe of NeMo 2"),
        (
            "torchrun --nproc_per_node=8 -m verl.trainer.fsdp_sft_trainer data.train_files=a",
            "a run of verl",
        ),
        ("composer -n 8 train/train.py mpt-7b.yaml", "a run of LLM Foundry"),
    ],
)
def test_commands_of_other_trainers_are_refused_by_name(command: str, what: str) -> None:
    with pytest.raises(InvalidProblemError, match=f"line 2 of a.sh starts {what}. .* can't read it"):
        read(f"#!/bin/bash\n{command}\n")


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        ("--first-k-dense-replace 1 --n-shared-experts 2", "which experts"),  # MindSpeed-LLM's
        ("--noop-layers 46,47", "which layers"),
        ("--post-norm --output-logit-softcapping 30.0", "which layers"),
        (
            "--experimental-attention-variant dsa",
            "other kinds of attention",
        ),  # Megatron-LM's, without a price
        ("--lora-r 8", "which weights are trained"),
        ("--swap-optimizer", "what the optimizer keeps"),
        ("--recompute-activation-function", "what is kept for the backward pass"),
        ("--export-kd-teacher-load teacher", "which model it learns from"),
        ("--enable-bidirectional-pipeline", "belongs to a fork"),  # another schedule
        ("--outer-optimizer nesterov --outer-sync-interval 50", "to a fork"),  # gradients seldom meet
        ("--load-in-4bit", "belongs to a fork"),  # though --load… says what is read from a disk
        ("--galore-rank 128", "belongs to a fork"),
        ("--early-exit-layers 4", "belongs to a fork"),
        ("--grad-data-type fp8", "belongs to a fork"),
        ("--cpu-offloading-num-layers 4", "on the host"),  # Megatron-LM's, without a price
    ],
)
def test_a_forks_flag_that_changes_the_run_is_refused_by_name(flags: str, what: str) -> None:
    command = f"torchrun --nproc-per-node 8 pretrain_gpt.py {SIZES} --vocab-size 512 --global-batch-size 8"
    with pytest.raises(InvalidProblemError, match=f"{flags.split(maxsplit=1)[0]}: line 1.*{what}"):
        read(f"{command} --micro-batch-size 1 {flags}\n")


def test_harmless_flags_of_forks_are_passed_and_unknown_ones_refused_however_harmless_they_sound() -> None:
    command = f"torchrun --nproc-per-node 8 pretrain_gpt.py {SIZES} --vocab-size 512 --global-batch-size 8"
    own = " ".join(
        f"--{name} 1" for name in ["job-name", "wandb-id", "rank", "structured-logs-dir", "lr-stable-steps"]
    )
    found = read(f"{command} --micro-batch-size 1 {own}\n")
    assert (found.configuration.num_gpus, found.unread) == (8, ())
    for name in ("--my-log-file", "--data-parallel-log", "--save-model-parallel-state"):
        with pytest.raises(InvalidProblemError, match=f"{name}: line 1: belongs to a fork"):
            read(f"{command} --micro-batch-size 1 {name} 4\n")


def test_one_of_forty_listed_flags_is_still_refused() -> None:
    # the answer lists 32 of them; what decides the run may be the last
    listed = [name for name, flag in flags_of("megatron-lm").items() if flag.role == "listed"][:40]
    details = " ".join(f"--{name.replace('_', '-')} 1" for name in listed)
    command = f"torchrun --nproc-per-node 8 pretrain_gpt.py {SIZES} --vocab-size 512 --global-batch-size 8"
    assert len(read(f"{command} --micro-batch-size 1 {details}\n").unread) == 32
    with pytest.raises(InvalidProblemError, match="--num-layer-list"):
        read(f"{command} --micro-batch-size 1 {details} --num-layer-list 2,2\n")


def test_a_forks_switch_that_is_off_changes_nothing() -> None:
    command = f"torchrun --nproc-per-node 8 pretrain_gpt.py {SIZES} --vocab-size 512 --global-batch-size 8"
    off = "--first-k-dense-replace 0 --context-parallel-algo megatron_cp_algo --stage sft"
    assert read(f"{command} --micro-batch-size 1 {off}\n").model.num_layers == 4
    with pytest.raises(InvalidProblemError, match="other ways to share attention"):
        read(f"{command} --micro-batch-size 1 --context-parallel-algo ulysses_cp_algo\n")


def test_a_tokenizer_of_ones_own_has_not_llamas_vocabulary() -> None:
    def tokens(path: str) -> int | None:
        found = vocabulary_of("Llama2Tokenizer", (path,), lambda _: None)
        return found[0] if found else None

    assert tokens("/data/tokenizer.model") == 32000  # the kind's own
    assert tokens("/models/llama-2-7b/tokenizer.model") == 32000
    assert tokens("models/ver3.0/llm-jp-tokenizer-100k.ver3.0b1.model") is None
    assert tokens(f"{unknown_value('ENV_DIR')}/src/llm-jp-tokenizer-v4/v4_alpha_1.0.model") is None
    assert tokens("/models/baichuan-7b/tokenizer.model") is None


def test_flash_attention_by_its_version_is_megatron_deepspeeds() -> None:
    command = f"torchrun --nproc-per-node 8 pretrain_gpt.py {SIZES} --vocab-size 512 --global-batch-size 8"
    found = read(f"{command} --micro-batch-size 1 --use-flash-attn-v2\n")
    assert found.workload.framework_options["attention_kernel"] == "flash2"
    assert found.unread == ()


def test_a_blank_behind_a_backslash_ends_the_command() -> None:
    # bash hands the blank over as a word of its own, and starts the next line as a command
    command = f"torchrun --nproc-per-node 8 pretrain_gpt.py {SIZES} --vocab-size 512"
    with pytest.raises(InvalidProblemError, match=r"line 1 of a\.sh: the backslash is before a blank"):
        read(command + " \\ \n --global-batch-size 8\n")
    separated = read(f"{command} --separator ' ' --global-batch-size 8\n")
    assert separated.workload.global_batch_size == 8


def test_megatrons_first_batch_is_a_replicas() -> None:
    run = "torchrun --nproc_per_node 8 pretrain_gpt2.py --model-parallel-size 2 --vocab-size 50304 "
    found = read(f"{run} {SIZES} --batch-size 8")
    assert (found.configuration.micro_batch_size, found.workload.global_batch_size) == (8, 32)  # 8 × 8 / 2
    for beside in ("--micro-batch-size 8", "--global-batch-size 64"):
        with pytest.raises(InvalidProblemError, match="--batch-size: line 1: Megatron-LM refuses it"):
            read(f"{run} {SIZES} --batch-size 8 {beside}")


def test_a_configuration_that_only_a_generator_is_given_is_refused() -> None:
    titan = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nseq_len = 8192\nlocal_batch_size = 1\n'
    begin = "torchrun --nproc_per_node 8 -m"
    trained, generated = (
        f"{begin} {program} --job.config_file conf/a.toml\n"
        for program in ("torchtitan.train", "scripts.generate.test_generate")
    )
    for run, nested, starts in (
        (trained, "", True),
        (generated, "", False),
        (f"echo a.toml\ncp conf/a.toml out/\n{generated}", "", False),  # who prints it trains nothing by it
        ("bash b.sh\n", generated, False),
        (f"bash b.sh\n{trained}", generated, True),
    ):
        source = Source(name="a.sh", text=run, files={"a.sh": run, "b.sh": nested, "a.toml": titan})
        if starts:
            assert read_launch_files(source, Overrides()).workload.global_batch_size == 8
        else:
            with pytest.raises(InvalidProblemError, match=r"test_generate\.py generates text"):
                read_launch_files(source, Overrides())
    prepares = "$(which python) --version\npython -m venv env\n"
    looks = f"{prepares}for f in conf/a.toml train.py; do ls $f; done\nls conf/a.toml\n"
    with pytest.raises(InvalidProblemError, match=r"a\.sh names a\.toml and starts no program"):
        read_launch_files(
            Source(name="a.sh", text=looks, files={"a.sh": looks, "a.toml": titan}), Overrides()
        )


def test_a_batch_in_a_name_that_is_not_known_is_no_default() -> None:
    run = "torchrun --nproc_per_node 8 train.py --model_name_or_path meta-llama/Llama-2-7b-hf --bf16 True "
    run += "--gradient_checkpointing True --model_max_length 2048 --gradient_accumulation_steps 2"
    for name in ("batch_size", "batch_size_training", "bsz", "micro_bs"):
        with pytest.raises(
            InvalidProblemError, match=rf"{name}: .*affects how many sequences a step takes"
        ):
            read(f"{run} --{name} 4")
    assert read(f"{run} --eval_batch_size 4").workload.global_batch_size == 128  # 8 ranks × 8 × 2


def test_a_batch_that_another_program_divides_is_refused_not_the_trainers_default() -> None:
    run = "torchrun --nproc_per_node 8 train.py --model_name_or_path meta-llama/Llama-2-7b-hf --bf16 True "
    run += "--gradient_checkpointing True --model_max_length 2048 --global_batch_size 64"
    with pytest.raises(InvalidProblemError, match=r"global_batch_size: .*no per_device_train_batch_size"):
        read(run)
    assert read(f"{run} --per_device_train_batch_size 2").workload.global_batch_size == 16  # 8 ranks × 2


@pytest.mark.parametrize(
    ("flags", "kept"),
    [("", "fp16"), ("--grad-reduce-in-bf16", "fp16"), ("--accumulate-allreduce-grads-in-fp32", None)],
)
def test_gradients_of_fp16_are_kept_in_it_and_the_run_is_priced(flags: str, kept: str | None) -> None:
    run = f"torchrun --nproc_per_node 8 pretrain_gpt.py --vocab-size 50304 --micro-batch-size 1 {flags} "
    found = read(run + SIZES.replace("--bf16", "--fp16"))
    assert found.workload.framework_options.get("gradient_dtype") == kept
    facts = with_options(framework_facts("megatron-core"), found.workload.framework_options)
    assert [*clashes("megatron-lm", facts, found.model, "fp16")] == []


def test_what_stages_and_steps_are_called_elsewhere_is_read_or_refused() -> None:
    # DeepSpeed's first examples: 8 GPUs of tp 4 × pp 2 are one replica of 8 micro-batches of 4
    old = f"--vocab-size 512 {SIZES} --model-parallel-size 4 --pipe-parallel-size 2 --batch-size 4 --gas 8 "
    start = f"deepspeed --num_gpus 8 pretrain_gpt2.py {old}--deepspeed --zero-stage 1\n"
    found = read(start)  # one node: no host is named
    assert (found.num_nodes, found.configuration.pipeline_parallel_size) == (1, 2)
    assert (found.configuration.data_parallel_size, found.workload.global_batch_size) == (1, 32)
    json = Source(name="ds.json", text='{"train_batch_size": 64, "zero_optimization": {"stage": 1}}')
    text = start.replace("--zero-stage 1", "--deepspeed_config ds.json").replace("--gas 8 ", "")
    beside = Source(name="a.sh", text=text, files={json.name: json.text, "a.sh": text})
    assert read_launch_files(beside, Overrides()).workload.global_batch_size == 64
    away = json.text.replace("1}", '3, "offload_optimizer": {"device": "gpu"}}')
    with pytest.raises(InvalidProblemError, match=r'"gpu" is not supported. Allowed: none, cpu, nvme'):
        read_launch_files(replace(beside, files={json.name: away, "a.sh": text}), Overrides())
    grown = json.text.replace("{", '{"curriculum_learning": {"enabled": true, "min_difficulty": 8}, ', 1)
    found = read_launch_files(replace(beside, files={json.name: grown, "a.sh": text}), Overrides())
    assert any("uses the full length" in note for note in found.notes)
    with pytest.raises(InvalidProblemError, match="the number of GPUs is missing"):
        read(start.replace("--num_gpus 8", "--hostfile hosts --num_gpus 8"))
    for flag, what in (("--enable-shared-expert", "experts"), ("--mlm-probability 0.3", "taught")):
        with pytest.raises(InvalidProblemError, match=what):
            read(f"torchrun --nproc_per_node 8 pretrain_gpt.py {SIZES} --vocab-size 512 {flag}")


def test_runs_of_the_same_words_on_other_numbers_of_gpus_are_two() -> None:
    words = f"pretrain_gpt.py {SIZES} --vocab-size 512"
    text = f"torchrun --nproc_per_node 4 {words}\ntorchrun --nproc_per_node 8 {words}\n"
    with pytest.raises(InvalidProblemError, match=r"1 \(line 1\): --nproc-per-node 4; 2 \(line 2\)"):
        read(text)
    assert read(text, Overrides(run=2)).configuration.num_gpus == 8


def test_names_of_another_launcher_s_program_are_not_taken_for_one_s_own() -> None:
    names = "--tensor_model_parallel_size 2 --micro_batch_size 4 --global_batch_size 128 --seq_length 4096"
    with pytest.raises(InvalidProblemError, match=r"finetune.py takes Megatron's names with underscores"):
        read(f"torchrun --nproc_per_node 4 finetune.py {names} --model_name qwen\n")
    text = f"torchrun --nproc_per_node 8 pretrain_llama3_70b.py {SIZES} --swiglu --vocab-size 512\n"
    assert (read(text).launcher, read(text).model.num_layers) == ("megatron-lm", 4)


def test_a_section_that_nanotron_refuses_is_not_passed_over() -> None:
    text = (
        "parallelism: {dp: 1, pp: 1, tp: 1}\ntokens: {sequence_length: 64, micro_batch_size: 1, "
        "batch_accumulation_per_replica: 1}\nmodel:\n  model_config: {hidden_size: 512, vocab_size: 512, "
        "num_hidden_layers: 2, intermediate_size: 2048, num_attention_heads: 8}\n"
        "infini_attention:\n  length: 8\n"
    )
    with pytest.raises(InvalidProblemError, match="infini_attention: is not a section of nanotron"):
        read(text, name="a.yaml")
    assert read(text, Overrides(ignored=("infini_attention",)), "a.yaml").model.num_layers == 2


def test_editions_of_a_tokenizer_are_told_apart() -> None:
    def size(name: str) -> int | None:
        found = vocabulary_of("HFTokenizer", (name,), lambda _: None)
        return found[0] if found else None

    assert size("mistralai/Mistral-Large-Instruct-2407") == 32768
    assert size("mistralai/Ministral-8B-Instruct-2410") is None
    assert size("/data/qwen25_tokenizer_flat") == 151665
    llamas = ["tmp-llama-30b", "open_llama_3b", "llama31_8b", "Llama-3.2-3B", "llama-3b"]
    assert list(map(size, llamas)) == [32000, 32000, 128256, 128256, None]  # the last: of which Llama?


def test_what_nobody_has_is_refused_and_what_no_price_hangs_on_is_listed() -> None:
    start = f"torchrun --nproc-per-node 8 pretrain_gpt.py {SIZES} --vocab-size 512 "
    # off, and an argument of Megatron-LM's
    listed = read(f"{start} --hetero-mode none --optimizer-cuda-graph\n").unread
    assert listed == ("--hetero-mode", "--optimizer-cuda-graph")
    with pytest.raises(InvalidProblemError, match=r"--hetero-mode: line 1: belongs to a fork .*--ignore"):
        read(f"{start} --hetero-mode pp\n")
    passed = read(f"{start} --hetero-mode pp\n", Overrides(ignored=("--hetero-mode",)))
    assert any("--hetero-mode is ignored" in note for note in passed.notes)


def test_a_program_by_the_name_of_a_family_that_no_flag_describes_is_refused() -> None:
    flags = f"{SIZES} --vocab-size 512\n"  # LayerNorm and a plain MLP, were it pretrain_gpt.py
    with pytest.raises(InvalidProblemError, match=r"pretrain_llama.py: is a llama by its name"):
        read(f"torchrun --nproc-per-node 8 pretrain_llama.py {flags}")
    assert read(f"torchrun --nproc-per-node 8 pretrain_llama.py --swiglu {flags}").model.gated_mlp


def test_every_other_layer_of_megatron_deepspeed_has_experts_with_room_for_their_share() -> None:
    start = f"deepspeed --num_nodes 1 --num_gpus 8 pretrain_gpt.py --deepspeed {SIZES} --vocab-size 512 "
    experts = "--num-experts 16 --moe-expert-parallel-size 4 --no-pipeline-parallel --zero-stage 0 "
    found = read(f"{start}{experts}--global-batch-size 16 --micro-batch-size 2\n")
    moe = found.model.moe
    assert moe is not None
    # layers 2 and 4 of 4; one expert a token, by its probability among 16; the gate has no bias
    assert (moe.num_dense_layers, moe.frequency, moe.num_experts, moe.top_k) == (1, 2, 16, 1)
    assert (moe.normalized_top_k, moe.router_bias, moe.ffn_hidden_size) == (False, False, 2048)
    assert moe.balance_coefficient == 0.1  # the default of --moe-loss-coeff
    stated = read(f"{start}{experts}--global-batch-size 16 --moe-loss-coeff 0.02\n").model.moe
    assert stated is not None
    assert stated.balance_coefficient == 0.02
    assert found.configuration.expert_parallel_size == 4
    assert found.workload.framework_options["moe_capacity_factor"] == 1.0
    # masks of 2 * 128 tokens against products of 2048 columns: 256 / 2048
    assert any(
        "12% of the experts' own products here, which are not supported" in one for one in found.notes
    )
    dropless = read(f"{start}{experts}--global-batch-size 16 --disable-moe-token-dropping --topk 2\n")
    assert "moe_capacity_factor" not in dropless.workload.framework_options
    for more, what in (
        ("--mlp-type residual", "--mlp-type: line 1: cannot be read: an MLP next to its experts"),
        ("--tensor-model-parallel-size 2", "next to tensor ranks, which repeat them"),
        ("--num-experts 8 16", "takes one value, not 2 by layer"),
    ):
        with pytest.raises(InvalidProblemError, match=what):
            read(f"{start}{experts}--global-batch-size 16 {more}\n")


@pytest.mark.parametrize(
    ("start", "gpus"),
    [
        ("srun -N 2 --ntasks-per-node 8 bash -c 'cd src && python {}'", 16),  # was one GPU
        ("mpirun -np 16 /usr/bin/bash -c 'python {}'", 16),
        ("deepspeed --num_nodes 2 --num_gpus 8 --no_python /usr/bin/bash -c 'cd src && python {}'", 16),
        ("srun -N 2 torchrun --nproc-per-node 8 {}", 8),  # two runs: torchrun's own --nnodes is 1
        ("bcprun -p 8 -c 'python {}'", None),
        ("srun --container-image x bash -c 'python {}'", None),
    ],
)
def test_what_starts_a_process_for_each_rank_counts_around_a_shells_text(
    start: str, gpus: int | None
) -> None:
    text = start.format(f"pretrain_gpt.py {SIZES} --vocab-size 512 --global-batch-size 64")
    if gpus is None:
        with pytest.raises(InvalidProblemError, match="num_gpus: the number of GPUs is missing"):
            read(text)
    else:
        assert read(text).configuration.num_gpus == gpus


def test_a_command_of_another_program_is_refused_once() -> None:
    flags = "--num-layers 50 --lr 1 --seed 1 --optimizer sgd --gpus 0,1 --mom 0.9 --wd 1e-4"
    text = f"python train_imagenet.py {flags}\n"
    with pytest.raises(InvalidProblemError, match=r"^train_imagenet\.py: line 1: takes .*--mom") as fault:
        read(text)
    assert len(fault.value.errors) == 1


def test_an_assignment_from_a_variable_is_no_assignment() -> None:
    start = f'E="A=1 B=2"\n$E torchrun --nproc-per-node 8 pretrain_gpt.py {SIZES} --vocab-size 512\n'
    with pytest.raises(InvalidProblemError, match=r"line 1 of a.sh: A=1 comes from a variable"):
        read(start)
    assert read(start.replace("$E", "env $E")).configuration.num_gpus == 8


def test_python_alone_is_one_process_where_nothing_speaks_of_ranks() -> None:
    start = f"python pretrain_gpt.py {SIZES} --vocab-size 512\n"
    found = read(start)
    assert found.configuration.num_gpus == 1
    assert any("one process is assumed" in note for note in found.notes)
    with pytest.raises(InvalidProblemError, match="the number of GPUs is missing"):
        read(f"#SBATCH --nodes=2\n{start}")


def test_a_bridge_configuration_may_leave_the_precision_to_the_model() -> None:
    text = (
        "model:\n  num_layers: 4\n  hidden_size: 512\n  num_attention_heads: 8\n  vocab_size: 512\n"
        "  seq_length: 128\n  bf16: true\n  cuda_graph_scope: []\n  position_embedding_type: rope\n"
        "train:\n  micro_batch_size: 1\n  global_batch_size: 8\nmixed_precision: null\n"
    )
    found = read(text, Overrides(num_gpus=8), name="run_config.yaml")
    assert (found.launcher, found.workload.precision) == ("megatron-bridge", "bf16")


def test_flags_that_start_nothing_are_refused_where_degrees_are_set_that_none_takes() -> None:
    text = f'TP_SIZE=4\nMODEL_ARGS="{SIZES} --vocab-size 512 --micro-batch-size 1"\n'
    with pytest.raises(InvalidProblemError, match=r"line 1 of a.sh: TP_SIZE is 4, and no command"):
        read(text, Overrides(num_gpus=8))
    same = text.replace("--micro-batch-size 1", "--tensor-model-parallel-size 4")
    found = read(same, Overrides(num_gpus=8))
    assert found.configuration.tensor_parallel_size == 4
    assert any("no command in the file starts a program" in note for note in found.notes)


def test_a_starter_that_tries_configurations_of_its_own_is_refused() -> None:
    start = "deepspeed --num_nodes 1 --num_gpus 8"
    flags = f"{SIZES} --vocab-size 512 --global-batch-size 8 --micro-batch-size 1\n"
    assert read(f"{start} pretrain_gpt.py {flags}").configuration.num_gpus == 8
    with pytest.raises(InvalidProblemError, match=r"--autotuning.* configurations of its own"):
        read(f"{start} --autotuning=run pretrain_gpt.py {flags}")


PAI = (
    "python pretrain_llama.py --bf16 --swiglu --num-layers 4 --hidden-size 512 --num-attention-heads 8 "
    "--max-position-embeddings 128 --seq-length 128 --global-batch-size 8 --micro-batch-size 1 "
    "--train-mode pretrain --epochs 1 "
)


@pytest.mark.parametrize(
    ("own", "vocabulary"),
    [
        ("--patch-tokenizer-type LLama3Tokenizer --extra-vocab-size 256", 128256),  # 128,000 + 256
        ("--patch-tokenizer-type Qwen2Tokenizer --extra-vocab-size 421", 152064),  # 151,643 + 421
        ("--extra-vocab-size 2400 --load /mnt/deepseek-v2-lite", 102400),  # the model that it names
        ("--padded-vocab-size 1024 --extra-vocab-size 256", 1024),
    ],
)  # fmt: skip
def test_pai_megatron_patch_adds_tokens_to_the_tokenizers_own(own: str, vocabulary: int) -> None:
    assert read(PAI + own, Overrides(num_gpus=8)).model.vocab_size == vocabulary


def test_a_tokenizer_of_pai_megatron_patch_without_a_known_size_asks_for_it() -> None:
    with pytest.raises(InvalidProblemError, match=r"tokenizer's own vocabulary.*--set vocab_size="):
        read(PAI + "--patch-tokenizer-type BaichuanTokenizer --extra-vocab-size 64", Overrides(num_gpus=8))


def test_samples_that_are_padded_to_another_length_than_the_models_are_refused() -> None:
    own = PAI + "--padded-vocab-size 1024 --max-padding-length "
    assert read(f"{own}128", Overrides(num_gpus=8)).workload.seq_length == 128
    assert (
        read(f"{own}64 --dataset LLama-Pretrain-Idxmap", Overrides(num_gpus=8)).workload.seq_length == 128
    )
    with pytest.raises(InvalidProblemError, match="padded to 64 tokens, not to --seq-length 128"):
        read(f"{own}64 --dataset LLama-SFT", Overrides(num_gpus=8))


def test_a_variable_that_nothing_sets_is_empty_behind_a_switch_or_a_whole_value() -> None:
    found = read(
        f"python pretrain_gpt.py {SIZES} --vocab-size 1024 --swiglu ${{MOE}} --micro-batch-size 1 $CP",
        Overrides(num_gpus=8),
    )
    assert [note for note in found.notes if "read as empty" in note] == [
        "line 1: $MOE is not set: read as empty",
        "line 1: $CP is not set: read as empty",
    ]
    with pytest.raises(InvalidProblemError, match="depends on \\$MBS"):
        read(
            f"python pretrain_gpt.py {SIZES} --vocab-size 1024 --micro-batch-size $MBS",
            Overrides(num_gpus=8),
        )


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (
            "--num-experts 8 --moe-router-topk 16",
            "--moe-router-topk: line 1: 16 is more than num_experts = 8",
        ),
        (
            "--pipeline-model-parallel-size 3",
            "--pipeline-model-parallel-size: line 1: tp × pp × cp = 3 does",
        ),
        (
            "--num-virtual-stages-per-pipeline-rank 2",
            "makes 2 chunks of one stage, which Megatron-LM refuses",
        ),
        ("--recompute-method uniform", "needs .*: --recompute-num-layers, or no --recompute-method"),
        ("--fp16", r"contradicts --bf16: .* Allowed: no --fp16"),
        ("--fp8-format hybrid --fp8-recipe delayd", "Nearest: delayed"),
    ],
)
def test_a_fault_names_the_flag_its_line_and_what_is_allowed(own: str, said: str) -> None:
    with pytest.raises(InvalidProblemError, match=said):
        read(f"python pretrain_gpt.py {SIZES} --vocab-size 1024 {own}", Overrides(num_gpus=8))


def test_arguments_in_a_variable_that_nothing_sets_are_named() -> None:
    with pytest.raises(
        InvalidProblemError, match=r"line 1 starts pretrain_gpt.py; .*\$PARAMS.*--var PARAMS="
    ):
        read("python pretrain_gpt.py ${PARAMS}")
    with pytest.raises(InvalidProblemError, match="line 2: GLOBAL_BATCH is a placeholder"):
        read('{"zero_optimization": {"stage": 1},\n"train_batch_size": GLOBAL_BATCH}', name="ds.json")


@pytest.mark.parametrize(
    ("flag", "said"),
    [("--split-transformers", "halves of a layer"), ("--eval-only True", "it trains nothing")],
)
def test_a_forks_flag_that_changes_what_runs_is_refused(flag: str, said: str) -> None:
    with pytest.raises(InvalidProblemError, match=said):
        read(f"python pretrain_gpt.py {SIZES} --vocab-size 1024 {flag}", Overrides(num_gpus=8))


def test_of_commands_that_train_with_a_file_the_one_that_starts_ranks_is_read() -> None:
    script = read_script(
        "python prepare.py run.yaml --seed 1\naccelerate launch train.py run.yaml --seed 1\n"
    )
    found = chosen_by("conf/run.yaml", commands_of(script), lambda name: name == "--seed")
    assert found is not None
    assert found.program.endswith("train.py")

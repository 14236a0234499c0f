"""What launch files of other people's repositories hold, each reduced to the lines that were read wrong."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.launchers.reading.base import LaunchFile, Overrides, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.library import find_model
from meshwright.service.cli.launch_files import source_of

SIZES = (
    "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 128 "
    "--max-position-embeddings 128 --bf16 "
)


def read(text: str, overrides: Overrides | None = None, name: str = "a.sh") -> LaunchFile:
    return read_launch_files(Source(name=name, text=text), overrides or Overrides())


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


def test_data_that_a_script_names_are_no_launch_files_that_are_missing() -> None:
    script = "python train.py --data_path a/alpaca.json --vocab-file=b/vocab.json --config c/own.json\n"
    with pytest.raises(InvalidProblemError, match=r"own.json is not next to it") as caught:
        read(script)
    assert not re.search(r"(alpaca|vocab).json", str(caught.value))


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


def test_names_of_another_launcher_s_program_are_not_taken_for_one_s_own() -> None:
    names = "--tensor_model_parallel_size 2 --micro_batch_size 4 --global_batch_size 128 --seq_length 4096"
    with pytest.raises(InvalidProblemError, match=r"finetune.py takes Megatron's names with underscores"):
        read(f"torchrun --nproc_per_node 4 finetune.py {names} --model_name qwen\n")
    own = f"deepspeed --num_gpus 8 train_qwen3.py --model_name q --num_layers 0 {names}\n"
    with pytest.raises(
        InvalidProblemError, match=r"train_qwen3.py takes Megatron's names with underscores"
    ):
        read(own)
    text = f"torchrun --nproc_per_node 8 pretrain_llama3_70b.py {SIZES} --swiglu --vocab-size 512\n"
    assert (read(text).launcher, read(text).model.num_layers) == ("megatron-lm", 4)


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


def test_arguments_in_a_variable_that_nothing_sets_are_named() -> None:
    with pytest.raises(
        InvalidProblemError, match=r"line 1 starts pretrain_gpt.py; .*\$PARAMS.*--var PARAMS="
    ):
        read("python pretrain_gpt.py ${PARAMS}")
    with pytest.raises(InvalidProblemError, match="line 2: GLOBAL_BATCH is a placeholder"):
        read('{"zero_optimization": {"stage": 1},\n"train_batch_size": GLOBAL_BATCH}', name="ds.json")


SIZED = f"{SIZES}--vocab-size 1000 --micro-batch-size 1 --global-batch-size 8"
STARTED = f"torchrun --nproc_per_node 2 pretrain_gpt.py {SIZED}"


@pytest.mark.parametrize(
    "command",
    [
        f'ssh -p 22 -o StrictHostKeyChecking=no user@node1 "cd /work && {STARTED}"',
        f"for at in 0 1; do ssh node$at '{STARTED}' & done; wait",
        f'pdsh -w node[1-2] "{STARTED}"',
        f"uv run --with deepspeed -p 3.11 {STARTED}",
        f"conda run -n deepspeed --no-capture-output {STARTED}",
        f'sbatch -N 1 --gpus-per-node=2 --wrap="{STARTED}"',
        f'tmux new-session -d -s train "{STARTED}"',
    ],
)
def test_a_command_behind_another_program_is_read(command: str) -> None:
    found = read(f"{command}\n")
    assert (found.configuration.num_gpus, found.workload.global_batch_size) == (2, 8)
    assert found.unread == ()


def test_a_script_with_trainings_of_two_launchers_is_not_read_as_one_of_them() -> None:
    tuned = "--model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 3 --max_length 512 --bf16"
    text = f"{STARTED}\npython tools/convert.py\ntorchrun --nproc_per_node 2 sft.py {tuned} --packing\n"
    with pytest.raises(
        InvalidProblemError,
        match=r"megatron-lm \(line 1\), transformers \(line 3\).*--launcher megatron-lm or a script",
    ):
        read(text)
    for launcher, batch in (("megatron-lm", 8), ("transformers", 2 * 3)):
        found = read_launch_files(Source(name="a.sh", text=text), launcher=launcher)
        assert found.workload.global_batch_size == batch


def test_deepspeed_alone_reads_comments_in_json() -> None:
    text = '{ // ours\n "train_batch_size": 8, # all\n "train_micro_batch_size_per_gpu": 1,\n}\n'
    files = {"a.sh": "deepspeed --num_gpus 4 train.py --deepspeed_config ds.json\n", "ds.json": text}
    given = Overrides(model=find_model("llama-3.1-8b"), values={"seq_length": 512})
    found = read_launch_files(Source(name="a.sh", text=files["a.sh"], files=files), given)
    assert (found.workload.global_batch_size, found.configuration.num_gpus) == (8, 4)
    words = "--per_device_train_batch_size 1 --max_length 512 --bf16 --deepspeed ds.json"
    files["a.sh"] = f"deepspeed --num_gpus 4 sft.py --model_name_or_path Qwen/Qwen2.5-7B {words}\n"
    with pytest.raises(
        InvalidProblemError, match=r"ds.json: line 1: a comment.*transformers and accelerate"
    ):
        read_launch_files(Source(name="a.sh", text=files["a.sh"], files=files), given)


def test_a_makefile_is_named_with_the_command_that_prints_what_it_runs() -> None:
    with pytest.raises(InvalidProblemError, match=r"is a Makefile.*make -n TARGET > train\.sh"):
        read(f"TP ?= 2\ntrain:\n\t{STARTED} --tensor-model-parallel-size $(TP)\n", name="Makefile")

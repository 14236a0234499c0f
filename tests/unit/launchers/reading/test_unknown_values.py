"""A value that only a running shell knows is refused by its line; no default takes its place."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest

from meshwright.launchers.reading.base import LaunchFile, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.profiles.errors import InvalidProblemError
from tests.draws import draws
from tests.unit.launchers.reading.written_scripts import DEEPSPEED, SCRIPTS, TRAINER

UNKNOWN = ("$(python unknown.py)", "${UNSET}", "$(cat missing)", "`cat missing`", "$(echo 8 | ./count)")
# ``--name value``, ``--name=value``, ``section.name=value``, ``NAME=value``, ``name: value`` of a heredoc
VALUE = re.compile(
    r'(--[\w.-]+[ =]|(?<=\s)[\w.]+=|^[A-Z_]+=|^ *"?\w+"?: )([^\s"{,-][^\s,}]*)', re.MULTILINE
)


def read(text: str, **files: str) -> LaunchFile:
    beside = {name.replace("__", "."): one for name, one in files.items()}
    return read_launch_files(Source(name="a.sh", text=text, files={"a.sh": text, **beside}))


def answer(text: str, files: dict[str, str]) -> object:
    """All that is priced, or the words of the refusal."""
    try:
        found = read(text, **files)
    except InvalidProblemError as fault:
        return str(fault)
    return found.launcher, found.configuration, found.workload, replace(found.model, name="")


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_value_that_cannot_be_evaluated_is_refused_by_its_line_or_decides_nothing(name: str) -> None:
    text, files = SCRIPTS[name]
    base, rng = answer(text, files), random.Random(name)
    places = list(VALUE.finditer(text))
    said = {
        found[0] + unknown: answer(text[: found.start(2)] + unknown + text[found.end(2) :], files)
        for found in places
        for unknown in rng.sample(UNKNOWN, min(draws(1), len(UNKNOWN)))
    }
    refused = {place: one for place, one in said.items() if isinstance(one, str)}
    assert [place for place, one in refused.items() if not re.search(r"line \d", one)] == []
    assert [place for place, one in said.items() if place not in refused and one != base] == []
    assert not isinstance(base, str)
    # the others are --seed, --lr, --output_dir and the like; of few words most are a file's name
    assert len(refused) > len(said) / 2 or len(places) <= 3


BRIDGE = "torchrun --nnodes 1 --nproc_per_node 8 run_recipe.py --recipe llama3_8b_pretrain_config"


def test_overrides_that_pass_through_sed_are_read() -> None:
    # they vanished, and the recipe's own 1 and 512 were priced
    more = "X='model.tensor_model_parallel_size=4; train.global_batch_size=64'\n"
    found = read(f"{more}{BRIDGE} $(echo \"$X\" | sed -E 's/; +/ /g')\n")
    assert (found.configuration.tensor_parallel_size, found.workload.global_batch_size) == (4, 64)


@pytest.mark.parametrize("name", ["megatron-bridge", "ms-swift", "transformers", "axolotl", "torchtitan"])
def test_words_that_may_be_any_arguments_are_refused(name: str) -> None:
    text, files = SCRIPTS[name]
    with pytest.raises(InvalidProblemError, match=r"arguments: line \d+: it is the output of .*"):
        read(f"X=$(./more | tr a b)\n{text.rstrip()} --seed=1 $X\n", **files)
    assert answer(f"{text.rstrip()} $NOWHERE_SET\n", files) == answer(text, files)  # no word, as in bash


def test_the_file_that_a_bridge_command_names_stands_before_its_recipe() -> None:
    # the whole file was passed over
    text = f"{BRIDGE} --config-file conf/o.yaml train.micro_batch_size=2\n"
    values = "model:\n  tensor_model_parallel_size: 4\ntrain:\n  global_batch_size: 64\n"
    found = read(text, o__yaml=f"{values}  micro_batch_size: 4\n")
    assert (found.configuration.tensor_parallel_size, found.workload.global_batch_size) == (4, 64)
    assert found.configuration.micro_batch_size == 2
    with pytest.raises(InvalidProblemError, match=r"o\.yaml is not next to it"):
        read(text)
    assert read(text, o__yaml=f"{values}peft:\n  dim: 8\n").workload.lora_rank == 8
    assert read(text, o__yaml=f"{values}peft: null\n").workload.lora_rank == 0


STAGE_2 = '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}'
START = f"deepspeed --num_gpus 8 train.py {TRAINER} --deepspeed ds.json\n"


@pytest.mark.parametrize(
    "write",
    [
        f"cat > ds.json <<EOT\n{STAGE_2}\nEOT\n",
        f"echo '{STAGE_2}' > conf/ds.json\n",
        f"S=2; printf '%s' '{STAGE_2}' | tee ds.json\n",
        f"cat <<'EOT' | tee ds.json > /dev/null\n{STAGE_2}\nEOT\n",
        f"echo '{STAGE_2}' | sed 's/2}}/2 }}/' > new.json; mv new.json ds.json\n",
        (
            '(echo "{}" > ds.json)\necho \'{"zero_optimization": {"stage": 2},\' > ds.json\n'
            'echo \'"bf16": {"enabled": true}}\' >> ds.json\n'
        ),
    ],
)
def test_the_file_that_a_script_writes_counts_before_an_older_one(write: str) -> None:
    assert read(START, ds__json=DEEPSPEED).configuration.zero_stage == 3
    assert read(write + START, ds__json=DEEPSPEED).configuration.zero_stage == 2


@pytest.mark.parametrize(
    "write",
    [
        "python make.py > ds.json\n",
        "python -c \"import json; json.dump({}, open('ds.json', 'w'))\"\n",
        "python3 - <<EOT\nfrom pathlib import Path\nPath('ds.json').write_text('{}')\nEOT\n",
        f"if nvidia-smi | grep H100; then echo '{STAGE_2}' > ds.json; fi\n",
        "jq .zero < in.json > ds.json\n",
    ],
)
def test_a_file_that_only_a_running_script_knows_is_refused_by_its_name(write: str) -> None:
    with pytest.raises(InvalidProblemError, match=r"ds\.json"):
        read(write + START, ds__json=DEEPSPEED)


TRL_FILES = SCRIPTS["trl"][1]
WITH_FILES = [
    (name, file) for name, (text, files) in SCRIPTS.items() if "EOT" not in text for file in files
]


@pytest.mark.parametrize("content", ["", "\n", "a: [", '{"a": '])
@pytest.mark.parametrize(("name", "file"), WITH_FILES)
def test_a_file_that_is_empty_or_broken_is_refused_by_its_name(name: str, file: str, content: str) -> None:
    # TRL's, LLaMA-Factory's and accelerate's was passed over: 1,024 tokens of TRL's default were priced
    text, files = SCRIPTS[name]
    with pytest.raises(InvalidProblemError, match=re.escape(file)):
        read(text, **{**files, file: content})


def test_the_file_that_trls_command_names_is_its_own_whatever_is_in_it() -> None:
    text = SCRIPTS["trl"][0].replace("--max_length 2048", "--model_name_or_path Qwen/Qwen2.5-7B")
    found = read(text, **{**TRL_FILES, "sft.yaml": "max_length: 512\nwarmup_ratio: 0.1\n"})
    assert found.workload.seq_length == 512


SWIFT = (
    "NPROC_PER_NODE=4 swift sft --model Qwen/Qwen2.5-7B --tuner_type lora --torch_dtype bfloat16 "
    "--max_length 4096 --dataset a"
)


@pytest.mark.parametrize("value", ["${UNSET:+4}", "", '""'])
def test_an_option_without_its_value_is_refused(value: str) -> None:
    # it was priced as ZeRO-0
    with pytest.raises(InvalidProblemError, match="deepspeed: line 1: "):
        read(f"{SWIFT} --deepspeed {value}\n")


@pytest.mark.parametrize("nodes", ["$NUM_NODES", "$(wc -l hosts)"])
def test_nodes_of_swift_that_are_not_known_are_refused(nodes: str) -> None:
    # one node was priced
    with pytest.raises(InvalidProblemError, match="NNODES: line 1: "):
        read(f"NNODES={nodes} {SWIFT}\n")
    with pytest.raises(InvalidProblemError, match="NNODES: line 1: "):
        read(f"export NNODES={nodes}\n{SWIFT}\n")
    assert read(f"NNODES=2 {SWIFT}\n").configuration.num_gpus == 8


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("--gpus-per-node=$(nvidia-smi -L)", "--gpus-per-node"),
        ("--gpus-per-node=eight", "--gpus-per-node"),
        ("--nodes $NODES", "--nodes"),
        ("-N ${NODES}", "--nodes"),
        ("--gres=gpu:$GPUS", "--gres"),
        ("--ntasks-per-node=`nproc`", "--ntasks-per-node"),
        ("--gpus-per-node=h100:8", ""),
        ("--gres=gpu:h100:8,nvme:1", ""),
        ("--nodes=2-4", ""),
    ],
)
def test_a_size_in_slurms_header_that_is_not_a_number_is_refused(line: str, wrong: str) -> None:
    text = f"#!/bin/bash\n#SBATCH --job-name=a\n#SBATCH {line}\n{SCRIPTS['megatron-lm'][0]}"
    if wrong:
        with pytest.raises(InvalidProblemError, match=f"^{wrong}: line 3 of a.sh: .* is not a number"):
            read(text)
    else:
        assert read(text).num_nodes == 2


@pytest.mark.parametrize(
    ("name", "old", "argument"),
    [
        ("torchtitan", "--config llama3_8b", "--config"),
        ("torchtitan, a file", "t.toml", "--job.config_file"),
        ("nanotron", "n.yaml", "--config-file"),
        ("trl", "sft.yaml", "--config"),
        ("llama-factory, a file", " a.yaml", "arguments"),
    ],
)
def test_a_file_that_is_not_known_is_refused_and_no_other_is_taken(
    name: str, old: str, argument: str
) -> None:
    text, files = SCRIPTS[name]
    new = old.replace(old.rpartition(" ")[2], "$(pick)")
    with pytest.raises(InvalidProblemError, match=rf"{argument}: line 1: it is the output of \$\(pick\)"):
        read(text.replace(old, new), **files)
    with pytest.raises(InvalidProblemError, match=rf"{argument}: line 2: it is the output of \$\(pick\)"):
        read("echo begins\n" + text.replace(old, new), **files)


@pytest.mark.parametrize("key", ["zero_optimization.stage", "gradient_cliping"])
def test_a_value_left_to_the_trainer_that_it_does_not_fill_in_is_refused_or_listed(key: str) -> None:
    # keys with a slip in them, and the stage itself, were left out where their value was auto
    stage = "auto" if key.endswith("stage") else 2
    text = (
        f'{{"zero_optimization": {{"stage": "{stage}"}}, "bf16": {{"enabled": "auto"}}, "{key}": "auto"}}'
    )
    said = answer(START, {"ds.json": text})
    assert key in (said if isinstance(said, str) else read(START, ds__json=text).unread)


# ``key: value`` of YAML, ``"key": value`` of JSON, ``key = value`` of TOML
IN_FILE = re.compile(r'((?:^ *|[{,] ?)"?[\w.]+"?(?:: | ?= ?))(?!\s)([^\s{}\[\],]+)', re.MULTILINE)
LITERAL = ("$(pick)", "${UNSET}", "`cat missing`", "{{ size }}", "<SIZE>")


@pytest.mark.parametrize(("name", "file"), WITH_FILES)
def test_a_substitution_in_a_file_is_a_text_and_no_value(name: str, file: str) -> None:
    # no launcher's parser expands it: it is refused by its line, or decides nothing
    text, files = SCRIPTS[name]
    base, rng = answer(text, files), random.Random(f"{name} {file}")
    own, quote = files[file], '"'
    for found in IN_FILE.finditer(own):
        for _ in range(draws(1)):
            literal = f"{quote}{rng.choice(LITERAL)}{quote}"
            changed = own[: found.start(2)] + literal + own[found.end(2) :]
            said, line = answer(text, {**files, file: changed}), own[: found.start(2)].count("\n") + 1
            if isinstance(said, str):
                assert re.search(rf"line {line}\b", said), (found[0], said)
            else:
                assert said == base, found[0]


HEADERS = ("--nodes={}", "-N {}", "--ntasks-per-node={}", "--gpus-per-node={}", "--gres=gpu:{}")


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_slurm_header_that_states_no_size_is_refused_under_every_launcher(name: str) -> None:
    text, files = SCRIPTS[name]
    rng = random.Random(f"header {name}")
    for header in rng.sample(HEADERS, min(draws(2), len(HEADERS))):
        unknown = rng.choice(("$(pick)", "${UNSET}", "$NODES", "`nproc`"))
        script = f"#!/bin/bash\n#SBATCH --job-name=a\n#SBATCH {header.format(unknown)}\n{text}"
        said = answer(script, files)
        assert isinstance(said, str), header
        assert "line 3 of a.sh" in said, said


TRL = "torchrun --nproc_per_node 8 trl/scripts/sft.py " + TRAINER.replace("--bf16 true ", "")


def test_what_trls_command_turns_off_is_off() -> None:
    text = TRL.replace("--gradient_checkpointing true", "--no_gradient_checkpointing")
    assert read(f"{text} --bf16 true\n").configuration.recompute_granularity == "none"


def test_accelerates_variables_count_where_no_argument_says_it() -> None:
    plain = f"torchrun --nproc_per_node 8 train.py {TRAINER.replace('--bf16 true ', '')}\n"
    assert read(f"ACCELERATE_MIXED_PRECISION=fp16 {plain}").workload.precision == "fp16"
    assert read(plain).workload.precision == "bf16"
    with pytest.raises(InvalidProblemError, match="ACCELERATE_USE_PARALLELISM_CONFIG"):
        read(f"export ACCELERATE_USE_PARALLELISM_CONFIG=true\n{plain}")
    with pytest.raises(InvalidProblemError, match=r"ACCELERATE_MIXED_PRECISION: it is the output of .*"):
        read(f"export ACCELERATE_MIXED_PRECISION=$(best)\n{plain}")  # may be set on any line


def test_the_processes_of_world_size_count_where_python_starts_alone() -> None:
    # one process was priced
    start = f"python train.py {TRAINER}\n"
    assert read(f"export WORLD_SIZE=16\n{start}").configuration.num_gpus == 16
    with pytest.raises(InvalidProblemError, match="WORLD_SIZE: line 2"):
        read(f"export WORLD_SIZE=$(wc -l hosts)\n{start}")


def test_an_elastic_number_of_nodes_is_refused_where_no_cluster_is_given() -> None:
    # the least was priced
    text = SCRIPTS["megatron-lm"][0].replace("--nnodes 2", "--nnodes 1:4")
    with pytest.raises(InvalidProblemError, match="--nnodes: line 1: 1 to 4 nodes are elastic"):
        read(text)
    assert read(text.replace("1:4", "2:2")).num_nodes == 2


def test_runs_that_differ_in_an_unknown_value_do_not_quote_it() -> None:
    run = "torchrun --nproc_per_node 8 train.py --model_name_or_path {} --per_device_train_batch_size 1\n"
    with pytest.raises(InvalidProblemError) as caught:
        read(run.format("$(cat model)") + run.format("Qwen/Qwen2.5-7B"))
    (fault,) = caught.value.errors
    assert "starts 2 runs that differ: 1 (line 1): --model_name_or_path …; 2" in fault.message

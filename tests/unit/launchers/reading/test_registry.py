"""Files that want to harm: bounded in time and memory, never run, never looked up elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshwright.launchers.reading.base import Overrides, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.launchers.registry import export
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.library import find_model
from tests.launchers.edits import EDITS, Edit, found_by_us
from tests.launchers.plans import CASES
from tests.processes.pace import work_s

TOLD = Overrides(model=find_model("llama-3.1-8b"), num_gpus=64, values={"seq_length": 4096})
SAID = "ParallelismConfig torchtitan "  # makes a Python file look like torchtitan's
TINY = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --vocab-size 128 --bf16 --seq-length 64 "
    "--global-batch-size 64 --ffn-hidden-size 14336 "
)
HOSTILE = {
    "deep brackets.py": f"# {SAID}\n" + "(" * 90_000,
    "deep unary.py": f"# {SAID}\nx = " + "-" * 90_000 + "1",
    "long chain.py": f"# {SAID}\nx = a" + ".b" * 50_000,
    "long sum.py": f"# {SAID}\nx = 1" + "+1" * 50_000,
    "long calls.py": f"# {SAID}\nx = f" + "()" * 50_000,
    "big number.py": f"# {SAID}\nx = " + "9" * 150_000,
    "tuples.py": f"# {SAID}\nParallelismConfig(a=" + "[1]," * 40_000 + ")",
    "runs.py": f"# {SAID}\nimport os\nos._exit(9)\nParallelismConfig(tensor_parallel_degree=os._exit(9))",
    "deep.json": '{"zero_optimization":' + "[" * 90_000,
    "deep objects.json": '{"a":' * 30_000 + "1" + "}" * 30_000,
    "big number.json": '{"train_batch_size": ' + "9" * 150_000 + "}",
    "many keys.json": "{" + ",".join(f'"train_batch_size{n}": 1' for n in range(1_500)) + "}",
    "huge sizes.json": '{"train_batch_size": 99999999999999, "train_micro_batch_size_per_gpu": 1,'
    ' "bf16": {"enabled": true}}',
    "bomb.yaml": "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a]\nparallelism: [*b,*b,*b,*b]\n",
    "deep.yaml": "parallelism: " + "[" * 49_000,
    "deep blocks.yaml": "".join(" " * n + "a:\n" for n in range(600)),
    "tag.yaml": "num_processes: !!python/object/apply:os._exit [9]\ncompute_environment: x\n",
    "merge.yaml": "<<: {num_processes: 8}\ncompute_environment: x\ndistributed_type: FSDP\n",
    "deep.toml": "[parallelism]\nx = " + "[" * 49_000,
    "deep tables.toml": "[" + ".".join("a" * 20_000) + "]\nx = 1",
    "doubling.sh": "".join(f"V{n}=" + "a" * 150 + "$V" * 100 + "\n" for n in range(400)),
    "copies.sh": "A=" + "a" * 90_000 + "\n" + "".join(f'B{n}="$A"\n' for n in range(9_000)),
    "commands.sh": "A=" + "a" * 90_000 + "\n" + 'echo "$A"\n' * 10_000,
    "copies in one word.sh": "A=" + "a" * 90_000 + '\nB="' + "$A" * 40_000 + '"\n',  # 3.6 GB
    "copies in a sum.sh": "A=" + "a" * 90_000 + "\nB=$((" + "A " * 40_000 + "))\n",  # as much
    "sums in sums.sh": "B=" + "$((" * 300 + "1" * 90_000 + "))" * 300 + "\n",  # read 300 times
    "batches.sh": TINY + f"--step-batch-size-schedule '{' '.join(f'{n}:64' for n in range(9_000))}'",
    "open arrays.sh": "A=(" * 30_000,
    "stages.sh": TINY + "--pipeline-model-parallel-size 100000000000000 "
    "--decoder-first-pipeline-num-layers 2 --decoder-last-pipeline-num-layers 2",
    "layout.sh": TINY + "--pipeline-model-parallel-layout '" + "(t*99999)*99999" * 50 + "'",
    "twice.sh": "python a.py --bf16 --swiglu " + "".join(f"--seq-length {n} " for n in range(6_000)),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_a_hostile_file_is_refused_at_once(name: str) -> None:
    began = work_s()
    for launcher in (None, "accelerate", "llama-factory"):
        with pytest.raises(InvalidProblemError) as caught:
            read_launch_files(Source(name=name, text=HOSTILE[name]), TOLD, launcher)
        assert len(str(caught.value)) < 8_000
    assert work_s() - began < 15.0  # five looks at it, on a machine that is shared


def test_files_that_source_others_again_and_again_are_refused_at_once() -> None:
    files = {"a.sh": ". b.sh\n" * 9_000, "b.sh": ";" * 90_000}  # 0.8 G separators; and nothing is written
    began = work_s()
    with pytest.raises(InvalidProblemError, match=r"line 4: files that it sources .* 300000 characters"):
        read_launch_files(Source(name="a.sh", text=files["a.sh"], files=files), TOLD)
    assert work_s() - began < 15.0  # an hour otherwise


def test_names_of_a_document_are_short_or_their_values_would_be_kept_with_40_mb_of_names() -> None:
    text = json.dumps({"a" * 20_000: {str(n): 1 for n in range(2_000)}})
    with pytest.raises(InvalidProblemError, match="a name is too long"):
        read_launch_files(Source(name="a.json", text=text), TOLD, "deepspeed")


def test_a_file_that_the_text_names_is_read_from_its_own_folder_only() -> None:
    asked: list[str] = []

    def include(name: str) -> str | None:
        asked.append(name)
        return None

    text = (
        "source /etc/passwd\n. ../../secret/a.sh\npython train.py --deepspeed_config /etc/b.json --bf16\n"
    )
    with pytest.raises(InvalidProblemError):
        read_launch_files(Source(name="a.sh", text=text, include=include), TOLD)
    assert asked
    assert not any("/" in name or ".." in name for name in asked)


def test_the_plugin_of_accelerate_reads_only_what_was_given() -> None:
    text = (
        "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nnum_processes: 8\n"
        "deepspeed_config: {deepspeed_config_file: /etc/ds.json}\n"
    )
    with pytest.raises(InvalidProblemError, match="is not next to the file"):
        read_launch_files(Source(name="a.yaml", text=text), TOLD)


FILES = [
    (launcher, name, text)
    for launcher, cases in CASES.items()
    for name, text in export(
        next(iter(cases.values())).plan, next(iter(cases.values())).problem, launcher
    ).files.items()
    if Path(name).suffix in (".json", ".yaml", ".toml", ".py") or name == "plan_args.sh"
]


@pytest.mark.parametrize(("launcher", "name", "text"), FILES, ids=[f"{one[0]}-{one[1]}" for one in FILES])
@given(data=st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_damaged_file_is_read_or_refused(
    data: st.DataObject, launcher: str, name: str, text: str
) -> None:
    start = data.draw(st.integers(0, len(text)))
    length = data.draw(st.integers(0, 40))
    put = data.draw(st.text(alphabet=st.characters(codec="utf-8"), max_size=5))
    damaged = text[:start] + put + text[start + length :]
    try:
        read_launch_files(Source(name=name, text=damaged), TOLD, launcher)
    except InvalidProblemError:
        return


# Files that contradict themselves, or that their launcher would not start with, are noticed when read.

EDITED = [(launcher, edit) for launcher, edits in EDITS.items() for edit in edits()]


@pytest.mark.parametrize(
    ("launcher", "edit"), EDITED, ids=[f"{launcher}: {edit.name}" for launcher, edit in EDITED]
)
def test_what_is_wrong_in_a_file_is_refused_or_listed(launcher: str, edit: Edit) -> None:
    assert found_by_us(edit, launcher) == ("listed" if edit.listed else "refused")


def test_a_script_that_starts_another_with_different_arguments_is_refused_by_that_alone() -> None:
    # the arguments are run.sh's own; none is Megatron-LM's, though --seq-length looks like it
    text = "for n in 512 1024; do\n  bash ./run.sh --model qwen3-8b --batch-size 1 --seq-length $n\ndone\n"
    with pytest.raises(InvalidProblemError) as caught:
        read_launch_files(Source(name="bench.sh", text=text), Overrides(num_gpus=8))
    (fault,) = caught.value.errors
    assert "bench.sh starts ./run.sh 2 times with different arguments (lines 2)" in fault.message
    assert fault.allowed == "one of them: meshwright capture -- bash ./run.sh …"


def test_a_fault_in_the_script_that_is_started_with_different_arguments_is_not_the_reason() -> None:
    # DeepSpeedExamples, ds_finetune_gpt2_run.sh: the started script writes a configuration for each run
    run = "deepspeed train.py --model_name_or_path gpt2 --max_seq_length 1024 --deepspeed ds_$1.json\n"
    files = {"all.sh": "bash run.sh 2 &\nbash run.sh 4 &\n", "run.sh": run}
    source = Source(name="all.sh", text=files["all.sh"], files=files)
    with pytest.raises(InvalidProblemError, match=r"starts run\.sh 2 times with different arguments"):
        read_launch_files(source, Overrides(num_gpus=8))
    once = "bash run.sh 2\n"
    with pytest.raises(InvalidProblemError, match=r"ds_\S+\.json is not next to"):
        read_launch_files(
            Source(name="all.sh", text=once, files=files | {"all.sh": once}), Overrides(num_gpus=8)
        )


def test_the_fault_of_a_script_s_own_program_is_named_after_scripts_that_prepare_it() -> None:
    text = f"bash get.sh model\nbash get.sh data\ntorchrun train.py {TRAINED} --mp_parameters 3\n"
    with pytest.raises(InvalidProblemError, match="mp_parameters: line 3"):
        read_launch_files(Source(name="a.sh", text=text), Overrides(num_gpus=8))


TRAINED = "--model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 2"


def test_the_length_that_a_program_beside_the_script_states_is_read() -> None:
    # tatsu-lab/stanford_alpaca train.py: model_max_length of its TrainingArguments is 512
    program = (
        "import transformers\nfrom dataclasses import dataclass, field\n@dataclass\n"
        "class TrainingArguments(transformers.TrainingArguments):\n"
        "    model_max_length: int = field(default=512)\n"
        "parser = transformers.HfArgumentParser((TrainingArguments,))\n"
        "args, = parser.parse_args_into_dataclasses()\n"
    )
    text = f"torchrun --nproc_per_node 8 train.py --bf16 True --output_dir o {TRAINED}\n"
    files = {"run.sh": text, "train.py": program}
    found = read_launch_files(Source(name="run.sh", text=text, files=files))
    assert found.workload.seq_length == 512
    longer = text.replace(
        "--output_dir", "--block_size 1024 --output_dir"
    )  # the command's own length counts
    stated = read_launch_files(Source(name="run.sh", text=longer, files={**files, "run.sh": longer}))
    assert stated.workload.seq_length == 1024

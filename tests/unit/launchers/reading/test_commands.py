"""Which of a script's commands is the run: their names, their ranks, and the job that they are in."""

import pytest

from meshwright.launchers.reading.base import LaunchFile, Overrides, Source
from meshwright.launchers.reading.commands import Command, best, chosen, chosen_by, commands_of
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.profiles.errors import InvalidProblemError
from meshwright.shell.script import read_script


def commands(text: str) -> tuple[Command, ...]:
    return commands_of(read_script(text))


def is_option(text: str) -> bool:
    return text.startswith("--")


def program(text: str, run: int | None = None) -> str:
    """The start of the run that is read, and its program."""
    found = chosen(commands(text), is_option, Overrides(run=run), "a.sh")[0]
    return " ".join([*(word.text for word in found.before), found.program])


def test_the_program_with_most_known_names_is_read_not_all_words_together() -> None:
    found, count = best(commands("torchrun a.py --x 1 --y 2\ntorchrun b.py --z 3\n"), is_option)
    assert (found.program, count) == ("a.py", 2)


def test_the_words_of_a_module_begin_behind_its_name() -> None:
    found = commands("torchrun --nproc_per_node 2 -m pkg.train run.yaml --x 1")[0]
    assert (found.program, [word.text for word in found.words]) == (
        "pkg/train.py",
        ["run.yaml", "--x", "1"],
    )


def test_a_command_with_less_than_half_of_the_names_is_not_another_run() -> None:
    names = " ".join(f"--x{number} 1" for number in range(6))
    assert program(f"torchrun --nproc_per_node 2 a.py {names}\ntorchrun b.py --x1 2 --x2 3\n").endswith(
        "a.py"
    )


def test_of_runs_on_other_ranks_one_must_be_selected() -> None:
    text = "torchrun --nproc_per_node 2 a.py --x 1\ntorchrun --nproc_per_node 4 a.py --x 1\n"
    assert [program(text, run) for run in (1, 2)] == [
        "torchrun --nproc_per_node 2 a.py", "torchrun --nproc_per_node 4 a.py",
    ]  # fmt: skip
    with pytest.raises(InvalidProblemError, match=r"starts 2 runs that differ: 1 .*node 2; 2 .*node 4"):
        program(text)
    with pytest.raises(InvalidProblemError, match=r"3: a\.sh starts 2 runs that differ. Allowed: 1 to 2"):
        program(text, 3)


def test_runs_without_ranks_that_differ_in_an_option_are_two() -> None:
    with pytest.raises(InvalidProblemError, match=r"starts 2 runs that differ: 1 .*--x 1; 2 .*--x 2"):
        program("python a.py --x 1\npython a.py --x 2\n")


def test_commands_that_have_only_the_file_in_common_with_the_reader_differ_in_their_ranks() -> None:
    text = "torchrun --nproc_per_node 4 a.py run.yaml\ntorchrun --nproc_per_node 8 a.py run.yaml\n"
    with pytest.raises(InvalidProblemError, match=r"2 different commands use run\.yaml"):
        chosen_by("run.yaml", commands(text), lambda _: False)


def test_torchrun_in_a_job_of_two_nodes_without_nnodes_starts_one_node() -> None:
    sizes = (
        "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 128 --bf16 --vocab-size 512"
    )
    sizes += " --max-position-embeddings 128 --micro-batch-size 1 --global-batch-size 8"
    text = "#!/bin/bash\n#SBATCH --nodes=2\nexport NPROC_PER_NODE=4\n"
    text += f"torchrun --nproc_per_node $NPROC_PER_NODE pretrain_gpt.py {sizes}\n"
    found = read_launch_files(Source(name="a.sbatch", text=text))
    assert (found.num_nodes, found.gpus_per_node) == (1, 4)
    found = read_launch_files(Source(name="a.sh", text=f"torchrun --nnodes 2 pretrain_gpt.py {sizes}\n"))
    assert (found.num_nodes, found.gpus_per_node) == (2, 1)  # torchrun's default is one process


def test_a_blank_behind_the_last_backslash_is_refused() -> None:
    with pytest.raises(InvalidProblemError, match="the backslash is before a blank"):
        chosen_by("run.yaml", commands("torchrun a.py run.yaml \\ \n"), is_option)


GPT = (
    "pretrain_gpt.py --num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 128 "
    "--max-position-embeddings 128 --bf16 --vocab-size 512"
)


def read(text: str, overrides: Overrides | None = None) -> LaunchFile:
    return read_launch_files(Source(name="a.sh", text=text), overrides or Overrides())


SIZED = f"#!/bin/bash\n# of my own\n{{}}\nsrun python {GPT} --global-batch-size 64 --micro-batch-size 1"
GPUS = {
    # what starts a process for each rank counts around a shell's text
    "srun": (f"srun -N 2 --ntasks-per-node 8 bash -c 'cd src && python {GPT}'", 2 * 8),  # was one GPU
    "mpirun": (f"mpirun -np 16 /usr/bin/bash -c 'python {GPT}'", 16),
    "deepspeed": (
        f"deepspeed --num_nodes 2 --num_gpus 8 --no_python /usr/bin/bash -c 'cd src && python {GPT}'",
        2 * 8,
    ),
    # two runs: torchrun's own --nnodes is 1
    "srun around torchrun": (f"srun -N 2 torchrun --nproc-per-node 8 {GPT}", 8),
    "bcprun": (f"bcprun -p 8 -c 'python {GPT}'", None),
    "srun of no size": (f"srun --container-image x bash -c 'python {GPT}'", None),
    # `wc -l` and `head -n 1` hold blanks, and 1 is no number of processes
    "a product of an output": (
        f"G=`nvidia-smi -L | wc -l`\nmpirun -np $((4 * ${{G}})) -x ADDR=$(head -n 1 $HOSTS) python {GPT}",
        None,
    ),
    "python alone": (f"python {GPT}", 1),
    "python where something speaks of nodes": (f"#SBATCH --nodes=2\npython {GPT}", None),
    # headers, as sbatch reads them
    "a comment": (SIZED.format("#SBATCH -N 4 --gpus-per-node=8  # all of them"), 4 * 8),
    "a drive": (SIZED.format("#SBATCH -N4\n#SBATCH --gres=gpu:a100:4,nvme:1"), 4 * 4),  # was its number
    "quotes and sockets": (
        SIZED.format("#SBATCH -J 'my run' --nodes 2\n#SBATCH --gres=gpu:8(S:0-1)"),
        2 * 8,
    ),
    # sbatch stops at a command
    "behind a command": (SIZED.format("#SBATCH --nodes=2 --gres=gpu:8\nset -e\n#SBATCH --nodes=4"), 2 * 8),
    "the last": (SIZED.format("#SBATCH --nodes=4 --gres=gpu:8 --gres=gpu:4\n#SBATCH -N 2"), 2 * 4),
    "GPUs of the job": (SIZED.format("#SBATCH -N2 -G a100:16"), 16),
    "a process a task": (SIZED.format("#SBATCH -N2 --tasks-per-node=4 --gpus-per-task=2"), 2 * 4),
}


@pytest.mark.parametrize(("text", "gpus"), GPUS.values(), ids=GPUS)
def test_as_many_gpus_are_read_as_processes_start_or_the_number_is_asked_for(
    text: str, gpus: int | None
) -> None:
    if gpus is None:
        with pytest.raises(InvalidProblemError, match="num_gpus: the number of GPUs is missing"):
            read(text)
        assert read(text, Overrides(num_gpus=8)).configuration.num_gpus == 8
    else:
        assert read(text).configuration.num_gpus == gpus


def test_one_process_of_python_alone_is_noted() -> None:
    assert any("one process is assumed" in note for note in read(f"python {GPT}").notes)


RUN = f"torchrun --nproc-per-node 8 {GPT}"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            f"#SBATCH -N1 --gres=gpu:8\n#SBATCH hetjob\n#SBATCH -N2 --gres=gpu:8\nsrun {RUN}",
            "asks for several kinds of nodes",
        ),
        (f"#SBATCH -N2 --gres=gpu:h100:4,gpu:a100:4\nsrun {RUN}", "asks for several kinds of nodes"),
        (f"#SBATCH -N2 --gpus=h100:8,a100:8\nsrun {RUN}", "asks for several kinds of nodes"),
        # bash hands the blank over as a word of its own, and starts the next line as a command
        (f"{RUN} \\ \n --global-batch-size 8\n", r"line 1 of a\.sh: the backslash is before a blank"),
        (f'E="A=1 B=2"\n$E {RUN}\n', r"line 1 of a.sh: A=1 comes from a variable"),
        (
            f"torchrun --nproc_per_node 4 {GPT}\n{RUN}\n",
            r"1 \(line 1\): --nproc-per-node 4; 2 \(line 2\)",
        ),
    ],
    ids=["kinds by parts", "kinds of a resource", "kinds of GPUs", "a blank", "an assignment", "two runs"],
)
def test_a_command_that_is_not_what_it_looks_like_is_refused_by_its_line(text: str, says: str) -> None:
    with pytest.raises(InvalidProblemError, match=says):
        read(text)


def test_a_command_that_is_what_it_looks_like_is_read() -> None:
    assert read(f"{RUN} --separator ' ' --global-batch-size 8\n").workload.global_batch_size == 8
    assert read(f'E="A=1 B=2"\nenv $E {RUN}\n').configuration.num_gpus == 8
    two = f"torchrun --nproc_per_node 4 {GPT}\n{RUN}\n"
    assert read(two, Overrides(run=2)).configuration.num_gpus == 8


def test_slurms_variables_are_those_of_the_header_or_of_the_told_nodes() -> None:
    text = (
        "#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --gpus-per-node=mi250:8\n#SBATCH --ntasks-per-node=8\n"
        f"GBS=$((SLURM_JOB_NUM_NODES * 8))\nsrun python {GPT} --global-batch-size $GBS\n"
    )
    assert read(text).workload.global_batch_size == 4 * 8
    assert read(text, Overrides(num_gpus=16)).workload.global_batch_size == 2 * 8


def test_of_commands_that_train_with_a_file_the_one_that_starts_ranks_is_read() -> None:
    script = read_script(
        "python prepare.py run.yaml --seed 1\naccelerate launch train.py run.yaml --seed 1\n"
    )
    found = chosen_by("conf/run.yaml", commands_of(script), lambda name: name == "--seed")
    assert found is not None
    assert found.program.endswith("train.py")

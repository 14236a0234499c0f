"""Which of a script's commands is the run: their names, their ranks, and the job that they are in."""

import pytest

from meshwright.launchers.reading.base import Overrides, Source
from meshwright.launchers.reading.commands import Command, best, chosen, chosen_by, commands_of
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.profiles.errors import InvalidProblemError
from meshwright.shell.script import read_script


def commands(text: str) -> list[Command]:
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

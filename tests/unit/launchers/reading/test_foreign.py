"""Programs that no reader knows are refused by what they are, and none is taken for another."""

from __future__ import annotations

import pytest

from meshwright.launchers.reading.base import Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.profiles.errors import InvalidProblemError

FLAGS = (
    "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 128 "
    "--max-position-embeddings 128 --bf16 --vocab-file bert-vocab.txt"
)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("python3 launcher_scripts/main.py stages=[training] training=gpt3/5b", "starts a run of NeMo 1. "),
        ("nemo llm pretrain --factory llama3_8b trainer.num_nodes=2 -y", "starts a recipe of NeMo 2. "),
        (
            "torchrun --nproc_per_node=8 -m verl.trainer.fsdp_sft_trainer data.train_files=a",
            "starts a run of verl. ",
        ),
        ("composer -n 8 train/train.py mpt-7b.yaml", "starts a run of LLM Foundry. "),
    ],
)
def test_commands_of_other_trainers_are_refused_by_name(command: str, says: str) -> None:
    with pytest.raises(InvalidProblemError, match=f"line 2 of a.sh {says}.*can't read it"):
        read_launch_files(Source(name="a.sh", text=f"#!/bin/bash\n{command}\n"))


@pytest.mark.parametrize(
    "program", ["tools/create_doc_index.py", "tools/retro/main.py --retro-tasks db-build"]
)
def test_programs_that_prepare_data_are_refused(program: str) -> None:
    text = f"torchrun --nproc_per_node 8 {program} {FLAGS}\n"
    with pytest.raises(InvalidProblemError, match="prepares data, which is not supported"):
        read_launch_files(Source(name="a.sh", text=text))


def test_a_command_of_another_program_is_refused_once() -> None:
    flags = "--num-layers 50 --lr 1 --seed 1 --optimizer sgd --gpus 0,1 --mom 0.9 --wd 1e-4"
    source = Source(name="a.sh", text=f"python train_imagenet.py {flags}\n")
    with pytest.raises(InvalidProblemError, match=r"^train_imagenet\.py: line 1: takes .*--mom") as fault:
        read_launch_files(source)
    assert len(fault.value.errors) == 1

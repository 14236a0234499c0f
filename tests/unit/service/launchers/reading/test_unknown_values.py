"""A value that only a running shell knows is refused by its line; no default takes its place."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest

from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.launchers.reading.base import LaunchFile, Source
from meshwright.service.launchers.reading.registry import read_launch_files
from tests.unit.service.launchers.reading.written_scripts import DEEPSPEED, SCRIPTS, TRAINER

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
        found[0]: answer(text[: found.start(2)] + rng.choice(UNKNOWN) + text[found.end(2) :], files)
        for found in places
    }
    refused = {place: one for place, one in said.items() if isinstance(one, str)}
    assert [place for place, one in refused.items() if not re.search(r"line \d", one)] == []
    assert [place for place, one in said.items() if place not in refused and one != base] == []
    assert not isinstance(base, str)
    assert len(refused) > len(said) / 2  # the others are --seed, --lr, --output_dir and the like


BRIDGE = "torchrun --nnodes 1 --nproc_per_node 8 run_recipe.py --recipe llama3_8b_pretrain_config"


def test_overrides_that_pass_through_tr_and_sed_are_read() -> None:
    # they vanished, and the recipe's own 1 and 512 were priced
    more = "X='model.tensor_model_parallel_size=4;\n train.global_batch_size=64'\n"
    found = read(f"{more}{BRIDGE} $(echo \"$X\" | tr '\\n' ' ' | sed -E 's/; +/ /g')\n")
    assert (found.configuration.tensor_parallel_size, found.workload.global_batch_size) == (4, 64)


@pytest.mark.parametrize("name", ["megatron-bridge", "ms-swift", "transformers", "axolotl", "torchtitan"])
def test_words_that_may_be_any_arguments_are_refused(name: str) -> None:
    text, files = SCRIPTS[name]
    with pytest.raises(InvalidProblemError, match=r"arguments: line \d+: it is what .* prints"):
        read(f"X=$(./more | tr a b)\n{text.rstrip()} --seed=1 $X\n", **files)
    assert answer(f"{text.rstrip()} $NOWHERE_SET\n", files) == answer(text, files)  # no word, as in bash


def test_the_file_that_a_bridge_command_names_stands_before_its_recipe() -> None:
    # the whole file was passed over
    text = f"{BRIDGE} --config-file conf/o.yaml train.micro_batch_size=2\n"
    values = "model:\n  tensor_model_parallel_size: 4\ntrain:\n  global_batch_size: 64\n"
    found = read(text, o__yaml=f"{values}  micro_batch_size: 4\n")
    assert (found.configuration.tensor_parallel_size, found.workload.global_batch_size) == (4, 64)
    assert found.configuration.micro_batch_size == 2
    with pytest.raises(InvalidProblemError, match=r"o\.yaml is not beside it"):
        read(text)
    with pytest.raises(InvalidProblemError, match=r"peft.dim: line 6: trains adapters"):
        read(text, o__yaml=f"{values}peft:\n  dim: 8\n")
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


NAME = re.compile(r"(?<=\s--)[\w.-]+(?=[ =])|(?<=\s)\w+\.[\w.]+(?==)")


def slip(name: str, rng: random.Random) -> str:
    """Return a name that is near another: a letter more, less or twice, or a word more."""
    at = rng.randrange(len(name) // 2, len(name))
    mark = "-" if "-" in name else "_"
    return rng.choice(
        (
            name[:at] + name[at + 1 :],
            name[:at] + name[at] * 2 + name[at + 1 :],
            f"{name}{mark}x",
            f"{name}s",
        )
    )


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_name_that_is_near_an_argument_is_refused_or_listed(name: str) -> None:
    text, files = SCRIPTS[name]
    base, rng = answer(text, files), random.Random(f"near {name}")
    for found in NAME.finditer(text):
        near = slip(found[0], rng)
        changed = text[: found.start()] + near + text[found.end() :]
        if isinstance(answer(changed, files), str):
            continue
        read_as, plain = read(changed, **files), near.rpartition(".")[2].replace("-", "_")[:30]
        listed = any(plain in one.replace("-", "_") for one in (*read_as.unread, *read_as.notes))
        shortened = found[0].startswith(near) and answer(changed, files) == base  # as argparse takes it
        assert listed or shortened, (found[0], near, read_as.unread, read_as.notes)

"""A name that is one slip away from an argument is refused or listed; no launcher's default is priced."""

from __future__ import annotations

import random
import re

import pytest

from meshwright.launchers.flags import flags_of
from meshwright.profiles.errors import InvalidProblemError
from tests.draws import draws
from tests.property.test_every_reader import CASES, files_of
from tests.property.test_every_reader import read as read_exported
from tests.unit.launchers.reading.test_unknown_values import answer, read
from tests.unit.launchers.reading.written_scripts import PROGRAMS, SCRIPTS

# ``--name``, ``section.name=``, ``name:`` of YAML, ``"name":`` of JSON, ``name=`` of TOML
NAME = re.compile(
    r"(?<=\s--)[\w.-]+(?=[ =])|(?<=\s)\w+\.[\w.]+(?==)|(?:(?<=^)|(?<=^ )|(?<=^  )|(?<=^    ))\w+(?=: ?|=)"
    r'|(?<=")\w+(?=": )',
    re.MULTILINE,
)
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def slip(name: str, rng: random.Random) -> str:
    """Return a name that is near another: a letter more, less, other, twice or swapped, or a word more."""
    at = rng.randrange(name.rfind(".") + 1, len(name))
    mark = "-" if "-" in name else "_"
    letter = rng.choice(LETTERS)
    return rng.choice(
        (
            name[:at] + name[at + 1 :],
            name[:at] + name[at] * 2 + name[at + 1 :],
            name[:at] + letter + name[at + 1 :],
            name[:at] + letter + name[at:],
            name[:at] + name[at + 1 : at + 2] + name[at] + name[at + 2 :],
            f"{name}{mark}x",
            f"{name}s",
        )
    )


def plain(name: str) -> str:
    """Return the last part of a name as answers list it."""
    return name.rpartition(".")[2].replace("-", "_")[:24]


def require_seen(near: str, right: str, text: str, files: dict[str, str], base: object) -> None:
    """Fail where a name is neither refused nor listed; argparse takes the beginning of a name for it."""
    if isinstance(answer(text, files), str):
        return
    found = read(text, **files)
    said = [one.replace("-", "_") for one in (*found.unread, *found.notes)]
    whole = near.replace("-", "_")[:36]  # answers cut long names
    listed = any(plain(near) in one or whole in one for one in said)
    shortened = right.startswith(near) and answer(text, files) == base
    assert listed or shortened, (right, near, found.unread, found.notes)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_name_that_is_near_an_argument_is_refused_or_listed(name: str) -> None:
    text, files = SCRIPTS[name]
    base, rng = answer(text, files), random.Random(f"near {name}")
    assert not isinstance(base, str), base
    written = "EOT" in text  # which replaces the older file of its name
    for file, own in {"": text, **({} if written else files)}.items():
        for found in NAME.finditer(own):
            if found[0].isupper():
                continue  # a variable of the environment, which may have any name
            for _ in range(draws(1)):
                near = slip(found[0], rng)
                if near == found[0] or not plain(near):
                    continue
                changed = own[: found.start()] + near + own[found.end() :]
                given = (text, {**files, file: changed}) if file else (changed, files)
                require_seen(near, found[0], *given, base)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_slip_of_any_argument_of_a_launcher_is_refused_or_listed(name: str) -> None:
    text, files = SCRIPTS[name]
    known = sorted({one for program in PROGRAMS[name] for one in flags_of(program)})
    base, rng = answer(text, files), random.Random(f"any {name}")
    mark = "-" if "--num-layers" in text or "--micro-batch" in text else "_"
    form = " {}=3" if name == "megatron-bridge" else " --{} 3"
    for right in rng.sample([one for one in known if len(one.rpartition(".")[2]) > 3], draws(12)):
        near = slip(right, rng)
        if near in known or any(one.startswith(near) for one in known):
            continue  # another argument, or the beginning of one, which argparse takes for it
        given = form.format(near.replace("_", mark))
        require_seen(near, right, text.rstrip() + given + "\n", files, base)


# Files of launchers with parsers that stop at unknown names, and a typo of a name that is given, too.
BOTH_GIVEN = {
    "trl": ("trl_sft.yaml", "per_device_train_batch_size:", "per_device_train_batch_sise: 7"),
    "accelerate": ("accelerate.yaml", "num_processes:", "num_proceses: 7"),
    "maxtext": ("maxtext.yml", "per_device_batch_size:", "per_device_batch_sise: 7"),
    "nanotron": ("nanotron.yaml", "  micro_batch_size:", "  micro_batch_sise: 7"),
    "llama_factory_accelerate": ("llama_factory_train.yaml", "cutoff_len:", "cutof_len: 7"),
    "torchtitan": ("torchtitan_0_2.toml", "local_batch_size =", "local_batch_sise = 7"),
    "megatron_lm": ("megatron_args.sh", "    --micro-batch-size ", "    --micro-batch-sise 7"),
    "ms_swift": ("plan_args.sh", "    --micro_batch_size ", "    --micro_batch_sise 7"),
}


@pytest.mark.parametrize("launcher", BOTH_GIVEN)
def test_a_typo_next_to_the_right_name_is_refused_where_the_launcher_stops_at_it(launcher: str) -> None:
    file, right, near = BOTH_GIVEN[launcher]
    files = files_of(launcher, CASES[launcher][0])
    assert f"\n{right}" in files[file]
    changed = files | {file: files[file].replace(f"\n{right}", f"\n{near}\n{right}", 1)}
    with pytest.raises(InvalidProblemError, match="is unknown") as fault:
        read_exported(launcher, changed)
    assert right.strip(" :=") in str(fault.value)

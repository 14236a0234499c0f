"""A name that is one slip away from an argument is refused or listed; no launcher's default is priced."""

from __future__ import annotations

import random
import re

import pytest

from meshwright.launchers.flags import flags_of
from tests.draws import draws
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

"""Reads Slurm's ``topology.conf``: trees of switches, and blocks.

Format: slurm.schedmd.com/topology.conf.html. Names of parameters ignore case, ``#`` starts a comment,
a backslash at the end of a line continues it, and lists of hosts use brackets: ``tux[0-3,12,18-20]``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from meshwright.profiles.cluster import MAX_NODES
from meshwright.profiles.importers.foreign_file import ForeignFile
from meshwright.profiles.measurements import NetworkSwitch, SwitchTree
from meshwright.profiles.reading import shown

MAX_SWITCHES = 100_000
MAX_DIMENSIONS = 8
_KEYS = ("switchname", "blockname", "nodes", "switches", "linkspeed", "blocksizes")
_RANGE = re.compile(r"([0-9]{1,12})(?:-([0-9]{1,12}))?")
_HOST = re.compile(r"[A-Za-z0-9_.-]{1,255}")
_PART = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")


@dataclass(frozen=True, slots=True)
class _ConfLine:
    where: str
    values: dict[str, str]


def split_hostlist(text: str) -> list[str]:
    """Split a list of hosts at the commas outside brackets."""
    entries, depth, current = [], 0, ""
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            entries.append(current)
            current = ""
        else:
            current += letter
    return [*entries, current]


def _numbers(file: ForeignFile, text: str, where: str) -> list[str]:
    """Return the numbers of one pair of brackets, with their leading zeros."""
    found: list[str] = []
    for entry in text.split(","):
        bounds = _RANGE.fullmatch(entry)
        if bounds is None:
            raise file.fault(where, f"{shown(entry)} is not a number or range such as 01-32")
        low, high = int(bounds[1]), int(bounds[2] or bounds[1])
        if high < low or high - low >= MAX_NODES:
            raise file.fault(where, f"{shown(entry)}: expected a rising range of at most {MAX_NODES} hosts")
        found += [str(number).zfill(len(bounds[1])) for number in range(low, high + 1)]
    return found


def expand_hostlist(file: ForeignFile, text: str, where: str) -> tuple[str, ...]:
    """Return the hosts that ``rack[0-1]node[01-04],login`` names, in order.

    Raises:
        ProfileError: unbalanced brackets, an empty entry, or more than a million hosts.
    """
    hosts: list[str] = []
    for entry in split_hostlist(text):
        parts = [(part[1], part[2]) for part in _PART.finditer(entry)]
        rebuilt = "".join(plain or f"[{inside}]" for inside, plain in parts)
        if not entry or rebuilt != entry or sum(not plain for _, plain in parts) > MAX_DIMENSIONS:
            raise file.fault(where, f"{shown(entry)} is not a list of hosts such as tux[0-3,12]")
        found = [""]
        for inside, plain in parts:
            choices = [plain] if plain else _numbers(file, inside, where)
            if len(found) * len(choices) + len(hosts) > MAX_NODES:
                raise file.fault(where, f"expected at most {MAX_NODES} hosts")
            found = [start + choice for start in found for choice in choices]
        if not _HOST.fullmatch(found[0]):
            raise file.fault(where, f"{shown(found[0])} is not a name of a host or switch")
        hosts += found
    return tuple(hosts)


def _lines(file: ForeignFile) -> Iterator[_ConfLine]:
    held, start = "", 0
    for number, line in file.lines():
        start = start if held else number
        text = held + line.split("#", 1)[0].rstrip()
        if text.endswith("\\"):
            held = text[:-1]
            continue
        held = ""
        if text.strip():
            yield _ConfLine(f"line {start}", _parameters(file, text.split(), f"line {start}"))
    if held.strip():
        raise file.fault(f"line {start}", "the file ends inside a continued line")


def _parameters(file: ForeignFile, words: Sequence[str], where: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if key.lower() not in _KEYS or not equals or not value or key.lower() in values:
            expected = "SwitchName, BlockName, Nodes, Switches, LinkSpeed or BlockSizes"
            raise file.fault(where, f"{shown(word)}: expected {expected}, each once, with =value")
        values[key.lower()] = value
    return values


def _switch(file: ForeignFile, line: _ConfLine) -> NetworkSwitch:
    name = line.values.get("switchname", line.values.get("blockname", ""))
    if not _HOST.fullmatch(name) or not {"nodes", "switches"} & set(line.values):
        raise file.fault(line.where, "expected SwitchName=… (or BlockName=…) with Nodes=… or Switches=…")
    nodes, switches = (
        expand_hostlist(file, line.values[key], line.where) if key in line.values else ()
        for key in ("nodes", "switches")
    )
    return NetworkSwitch(name=name, nodes=nodes, switches=switches, parent=None)


def _with_parents(file: ForeignFile, switches: dict[str, NetworkSwitch]) -> tuple[NetworkSwitch, ...]:
    """Return the switches with their parents: every switch below at most one other, no node twice."""
    parents: dict[str, str] = {}
    owners: dict[str, str] = {}
    for switch in switches.values():
        for child in switch.switches:
            if child not in switches:
                raise file.fault(f"switch {switch.name}", f"{shown(child)} is not defined in the file")
            if parents.setdefault(child, switch.name) != switch.name:
                raise file.fault(f"switch {shown(child)}", "is below two switches, expected a tree")
        for node in switch.nodes:
            if owners.setdefault(node, switch.name) != switch.name:
                raise file.fault(f"node {shown(node)}", "is below two switches, expected a tree")
    _check_roots(file, switches, parents)
    return tuple(
        NetworkSwitch(
            name=switch.name,
            nodes=tuple(dict.fromkeys(switch.nodes)),
            switches=switch.switches,
            parent=parents.get(switch.name),
        )
        for switch in switches.values()
    )


def _check_roots(file: ForeignFile, switches: dict[str, NetworkSwitch], parents: dict[str, str]) -> None:
    """Check that every switch is reached from a root; otherwise some of them form a ring."""
    reached = [name for name in switches if name not in parents]
    for name in reached:
        reached += switches[name].switches
    if len(reached) < len(switches):
        raise file.fault("", "some switches form a ring, expected a tree")


def looks_like(file: ForeignFile) -> bool:
    """Return whether the text defines switches or blocks."""
    lines = (line.strip().lower() for _, line in file.lines())
    return any(re.match(r"(switchname|blockname)\s*=", line) for line in lines)


def read_slurm_topology(path: Path | str) -> SwitchTree:
    """Return the tree of switches with the nodes of each.

    Raises:
        ProfileError: an unknown parameter, a broken list of hosts, an unknown switch, or no tree.
    """
    file = ForeignFile.open(path)
    switches: dict[str, NetworkSwitch] = {}
    sizes: tuple[int, ...] = ()
    for line in _lines(file):
        if set(line.values) == {"blocksizes"}:
            entries = line.values["blocksizes"].split(",")
            sizes = tuple(file.whole(size, f"{line.where}, BlockSizes", high=MAX_NODES) for size in entries)
            continue
        switch = _switch(file, line)
        if switch.name in switches or len(switches) >= MAX_SWITCHES:
            raise file.fault(line.where, f"expected up to {MAX_SWITCHES} different switches")
        switches[switch.name] = switch
    if not switches:
        raise file.fault("", "expected lines such as SwitchName=s0 Nodes=tux[0-3]")
    return SwitchTree(switches=_with_parents(file, switches), block_sizes=sizes)

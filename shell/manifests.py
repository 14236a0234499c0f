"""Manifests of schedulers: the commands that their containers run, as a script with the same lines.

Read are pods of Kubernetes in any object (Job, PyTorchJob, TrainJob, JobSet, MPIJob, Volcano's Job, RayJob,
LeaderWorkerSet), tasks of SkyPilot and dstack, and Compose files. Nothing is run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import yaml

from meshwright.shell.values import UNKNOWN

_SHIELD = "\uf8fe"  # replaces the mark of an unknown value, which YAML does not accept
_MAX_TEXT = 200_000  # characters
_MAX_SIZE = 500_000  # nodes and their characters, where each alias counts as what it repeats
_MAX_DEPTH = 100  # of lists and mappings
_MAX_JOINED = 20_000  # lines that words of commands are spread over; other commands are one line
_MAX_FILLED = 100_000  # characters of variables in others' values; later ones stay $(NAME)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a manifest starts."""

    script: str = ""  # every command in the lines where the manifest has it
    environment: Mapping[str, str] = field(default_factory=dict)
    num_nodes: int | None = None  # pods with GPUs
    gpus_per_node: int | None = None
    files: Mapping[str, str] = field(default_factory=dict)  # of its ConfigMaps, by name
    fault: str = ""  # why it cannot be read, and what is allowed


def holds_manifest(text: str) -> bool:
    """Return whether a text is YAML of a scheduler; a script that only writes one is not."""
    return _kind_of(text) is not None


@lru_cache(maxsize=64)  # asked for wherever a name is looked at
def _kind_of(text: str) -> str | None:
    if len(text) > _MAX_TEXT or _BEGINS.match(text) is None:
        return None
    return next((kind for kind, marks in _KINDS.items() if all(one.search(text) for one in marks)), None)


@lru_cache(maxsize=16)
def manifest_of(text: str) -> Manifest | None:
    """Return what a manifest starts; None for another text."""
    kind = _kind_of(text)
    if kind is None:
        return None
    if (template := _TEMPLATE.search(text)) is not None:
        line = text.count("\n", 0, template.start()) + 1
        return Manifest(
            fault=f"line {line}: a Helm template (allowed: what helm template . > job.yaml writes)"
        )
    text = text.replace(UNKNOWN, _SHIELD)
    try:
        if fault := _excess_of(text):
            return Manifest(fault=fault)
        documents = list(yaml.compose_all(text, Loader=yaml.CSafeLoader))
    except yaml.YAMLError as fault:
        mark = getattr(fault, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark is not None else ""
        return Manifest(fault=f"{where}not YAML: {getattr(fault, 'problem', None) or 'it cannot be read'}")
    return _Reader().read(kind, documents)


_TEMPLATE = re.compile(r"\{\{-?\s*(?:\.|if\b|range\b|include\b|with\b|toYaml\b)")


def _excess_of(text: str) -> str:
    """Return why the nodes of a text are too deep or too many to be looked at, or empty text."""
    size, sizes, around = 0, dict[str, int](), list[tuple[str | None, int]]()
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        line = event.start_mark.line + 1 if event.start_mark is not None else 0
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, before = around.pop()
            sizes[anchor or ""] = size - before
        elif isinstance(event, yaml.CollectionStartEvent):
            around.append((event.anchor, size))
            size += 1
            if len(around) > _MAX_DEPTH:
                return f"line {line}: lists and mappings are nested deeper than {_MAX_DEPTH}"
        elif isinstance(event, yaml.ScalarEvent):
            sizes[event.anchor or ""] = 1 + len(event.value)
            size += 1 + len(event.value)
        elif isinstance(event, yaml.AliasEvent):
            if any(event.anchor == anchor for anchor, _ in around):
                return f"line {line}: *{event.anchor} repeats what it is part of"
            size += sizes.get(event.anchor or "", 1)
            if size > _MAX_SIZE:
                return f"line {line}: aliases repeat more than {_MAX_SIZE} characters"
    return ""


# --------------------------------------------------------------------------------------------------
# Nodes of a document.


def _at(node: yaml.Node | None, *path: str) -> yaml.Node | None:
    """Return what lies at a path of keys; merge keys count."""
    for key in path:
        node = _value(node, key)
    return node


def _value(node: yaml.Node | None, key: str) -> yaml.Node | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    own = next((value for name, value in node.value if name.value == key), None)
    merged = (value for name, value in node.value if name.value == "<<")
    return own or next((found for one in merged if (found := _value(one, key)) is not None), None)


def _text(node: yaml.Node | None) -> str:
    return node.value.replace(_SHIELD, UNKNOWN) if isinstance(node, yaml.ScalarNode) else ""


def _items(node: yaml.Node | None) -> list[yaml.Node]:
    return list(node.value) if isinstance(node, yaml.SequenceNode) else [] if node is None else [node]


def _pairs(node: yaml.Node | None) -> list[tuple[str, str]]:
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    return [(_text(key), _text(value)) for key, value in pairs if isinstance(value, yaml.ScalarNode)]


def _number(node: yaml.Node | None) -> int | None:
    return _whole(_text(node))


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 7 else None  # noqa: PLR2004


# --------------------------------------------------------------------------------------------------
# Commands in their lines.


_SHELLS = ("bash", "sh", "zsh", "ash", "dash")
_REFERENCE = re.compile(r"\$\(([A-Za-z_]\w*)\)")  # Kubernetes' own, which counts before a shell's


class _Rows:
    """Lines of a script that is made of pieces of another file, in the lines where they are."""

    def __init__(self) -> None:
        self._rows: dict[int, list[str]] = {}
        self._seen = set[str]()
        self._joined = 0

    def script(self) -> str:
        """Return the lines."""
        last = max(self._rows, default=0)
        return "".join(f"{' ; '.join(self._rows.get(line, ()))}\n" for line in range(1, last + 1))

    def run(self, words: Sequence[yaml.Node], environment: Mapping[str, str]) -> None:
        """Add a command, which is started without a shell unless it names one; the same one once."""
        texts = [_text(one) for one in words]
        if not texts or "\n".join(texts) in self._seen:
            return
        self._seen.add("\n".join(texts))
        given = texts[0].rsplit("/", 1)[-1] in _SHELLS
        at = next((at for at, text in enumerate(texts) if given and re.fullmatch("-[a-z]*c", text)), None)
        while at is not None and texts[at + 1 : at + 2] == ["--"]:
            at += 1
        if at is None:
            self._spread(
                [(one.start_mark.line + 1, _quoted(text)) for one, text in zip(words, texts, strict=True)]
            )
        elif at + 1 < len(texts):
            self.shell(words[at + 1], environment)

    def shell(self, node: yaml.Node, environment: Mapping[str, str]) -> None:
        """Add the text of a shell."""

        def known(found: re.Match[str]) -> str:
            return f"${{{found[1]}}}" if found[1] in environment else found[0]

        is_block = isinstance(node, yaml.ScalarNode) and node.style in ("|", ">")
        first = node.start_mark.line + 1 + is_block
        for line, text in enumerate(_REFERENCE.sub(known, _text(node)).split("\n"), start=first):
            self._rows.setdefault(line, []).append(text)

    def _spread(self, words: Sequence[tuple[int, str]]) -> None:
        """Add words of one command in their lines, which backslashes join."""
        line, rows = words[0][0], dict[int, str]()
        for own, word in words:
            line = max(line, own)
            rows[line] = f"{rows[line]} {word}" if line in rows else word
        first = words[0][0]
        self._joined += line - first
        if self._joined > _MAX_JOINED:
            first, rows = line, {line: " ".join(rows.values())}
        for one in range(first, line + 1):
            self._rows.setdefault(one, []).append(rows.get(one, "") + (" \\" if one < line else ""))


def _quoted(text: str) -> str:
    """Return a word that a shell reads as it stands, but for ``$(NAME)``."""
    if _REFERENCE.search(text) is None:
        return shlex.quote(text)
    bare = re.sub(r"([\\\"`]|\$(?!\(\w+\)))", r"\\\1", text)
    return f'"{_REFERENCE.sub(lambda found: f"${{{found[1]}}}", bare)}"'


# --------------------------------------------------------------------------------------------------
# Kinds of manifests.


@dataclass(slots=True)
class _Pod:
    """A container with how many pods run it."""

    node: yaml.Node
    count: int
    gpus: int = 0


class _Reader:
    """What is found in the documents of a manifest."""

    def __init__(self) -> None:
        self.rows = _Rows()
        self.environment: dict[str, str] = {}
        self.files: dict[str, str] = {}
        self.pods: list[_Pod] = []
        self._filled = 0

    def read(self, kind: str, documents: Sequence[yaml.Node]) -> Manifest:
        """Return what documents of a kind start."""
        for document in documents:
            getattr(self, kind)(document)
        script = self.rows.script()
        if not script.strip():
            why = "no container has a command: what its image starts is not in the file"
            return Manifest(fault=f"{why} (allowed: command and args of the container)")
        with_gpus = [one for one in self.pods if one.gpus] or self.pods
        each = {one.gpus for one in with_gpus if one.gpus}
        return Manifest(
            script=script, environment=self.environment, files=self.files,
            num_nodes=sum(one.count for one in with_gpus) or None,
            gpus_per_node=each.pop() if len(each) == 1 else None,
        )  # fmt: skip

    def kubernetes(self, document: yaml.Node) -> None:
        """Add the containers of an object, or the files of a ConfigMap."""
        kind, spec = _text(_value(document, "kind")), _value(document, "spec")
        if kind == "ConfigMap":
            self.files |= dict(_pairs(_value(document, "data")))
            return
        first = len(self.pods)
        self._look_at(document, 1)
        pods = self.pods[first:]
        with_gpus = [one for one in pods if one.gpus] or pods
        nodes, gpus = sum(one.count for one in with_gpus), max((one.gpus for one in with_gpus), default=0)
        stated = _number(_value(spec, "nprocPerNode")) or _number(_at(spec, "trainer", "numProcPerNode"))
        if kind in ("PyTorchJob", "TrainJob"):  # their operators set what torchrun reads without options
            of_pod = stated or gpus
            self._set("PET_NNODES", nodes)
            self._set("PET_NPROC_PER_NODE", of_pod)
            self._set("WORLD_SIZE", nodes * (stated or 1))
        elif "volcano" in _text(_value(document, "apiVersion")):
            self._set("WORLD_SIZE", nodes)
        for one in pods:
            self._add_environment(_value(one.node, "env"))
        for one in pods:
            self.rows.run(
                [*_items(_value(one.node, "command")), *_items(_value(one.node, "args"))], self.environment
            )
        if (entry := _value(spec, "entrypoint")) is not None:  # RayJob's
            self.rows.shell(entry, self.environment)

    def _look_at(self, node: yaml.Node, count: int, key: str = "") -> None:
        if isinstance(node, yaml.SequenceNode):
            for one in node.value:
                self._look_at(one, count, key)
        if not isinstance(node, yaml.MappingNode):
            return
        is_container = key in ("containers", "container", "trainer")
        if is_container:
            self.pods.append(_Pod(node, count * (_number(_value(node, "numNodes")) or 1), _gpus_of(node)))
            return
        replicas = _replicas(node)
        for name, value in node.value:
            if _text(name) != "initContainers":
                self._look_at(value, count * replicas.get(_text(name), 1), _text(name))

    def _set(self, name: str, number: int) -> None:
        if number:
            self.environment.setdefault(name, str(number))

    def _add_environment(self, node: yaml.Node | None) -> None:
        """Add ``[{name, value}]``, ``[NAME=value]`` or ``{NAME: value}``, but no references to secrets."""

        def known(found: re.Match[str]) -> str:
            value = self.environment.get(found[1], found[0])
            self._filled += len(value)
            return value if self._filled <= _MAX_FILLED else found[0]

        def filled(text: str) -> str:
            return _REFERENCE.sub(known, text)

        for name, value in _pairs(node):
            self.environment.setdefault(name, filled(value))
        for one in _items(node) if isinstance(node, yaml.SequenceNode) else ():
            name, equals, text = _text(one).partition("=")
            if equals:
                self.environment.setdefault(name, filled(text))
            elif _value(one, "value") is not None:
                self.environment.setdefault(_text(_value(one, "name")), filled(_text(_value(one, "value"))))

    def skypilot(self, document: yaml.Node) -> None:
        """Add a task of SkyPilot (its docs/source/running-jobs/environment-variables.rst)."""
        nodes = _number(_value(document, "num_nodes")) or 1
        cards = _at(document, "resources", "accelerators")
        said = _text(cards) or next((f"{name}:{count}" for name, count in _pairs(cards)), "")
        gpus = _counted(said) if said else 0
        self._set("SKYPILOT_NUM_NODES", nodes)
        self._set("SKYPILOT_NUM_GPUS_PER_NODE", gpus)
        self._add_environment(_value(document, "envs"))
        self._add_task(document, nodes, gpus, _items(_value(document, "run")))

    def dstack(self, document: yaml.Node) -> None:
        """Add a task of dstack (its docs/docs/concepts/tasks.md)."""
        nodes = _number(_value(document, "nodes")) or 1
        card = _at(document, "resources", "gpu")
        said = _text(card)
        gpus = _number(_value(card, "count")) or (_counted(said) if said else 0)
        self._set("DSTACK_NODES_NUM", nodes)
        self._set("DSTACK_GPUS_PER_NODE", gpus)
        self._set("DSTACK_GPUS_NUM", nodes * gpus)
        self._add_environment(_value(document, "env"))
        self._add_task(document, nodes, gpus, _items(_value(document, "commands")))

    def _add_task(self, document: yaml.Node, nodes: int, gpus: int, texts: Sequence[yaml.Node]) -> None:
        self.pods.append(_Pod(document, nodes, gpus))
        for one in texts:
            self.rows.shell(one, self.environment)

    def compose(self, document: yaml.Node) -> None:
        """Add the services of a Compose file."""
        services = _value(document, "services")
        for _, service in services.value if isinstance(services, yaml.MappingNode) else ():
            devices = _items(_at(service, "deploy", "resources", "reservations", "devices"))
            gpus = max((_number(_value(one, "count")) or 0 for one in devices), default=0)
            self.pods.append(_Pod(service, 1, gpus))
            self._add_environment(_value(service, "environment"))
            parts = [_value(service, "entrypoint"), _value(service, "command")]
            if isinstance(parts[1], yaml.ScalarNode):
                self.rows.shell(parts[1], self.environment)
            else:
                self.rows.run([item for part in parts for item in _items(part)], self.environment)


def _replicas(node: yaml.Node) -> Mapping[str, int]:
    """Return how many pods or jobs an object makes of each of its templates."""
    ways = (_number(_value(node, "completions")), _number(_value(node, "parallelism")))
    return {
        "template": (_number(_value(node, "replicas")) or 1) * next((one for one in ways if one), 1),
        # LeaderWorkerSet: the leader is one of its size
        "workerTemplate": max(
            (_number(_value(node, "size")) or 1) - (_value(node, "leaderTemplate") is not None), 1
        ),
    }


def _gpus_of(container: yaml.Node) -> int:
    """Return the GPUs of a container (``nvidia.com/gpu``), or of a TrainJob's node."""
    found = 0
    for resources in (_value(container, "resources"), _value(container, "resourcesPerNode")):
        for which in ("limits", "requests"):
            pairs = _pairs(_value(resources, which))
            found = max((found, *(_whole(text) or 0 for name, text in pairs if name.endswith("/gpu"))))
    return found


def _counted(text: str) -> int:
    """Return the number in ``H100:8`` or ``H100:80GB:8``; 1 without one."""
    parts = [part for part in re.split(r"[:\s]+", text) if part.isdecimal()]
    return int(parts[-1][:6]) if parts else 1


def _marks(*patterns: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern, re.MULTILINE) for pattern in patterns)


_BEGINS = re.compile(r"(?:[ \t\r]*(?:#[^\n]*)?\n)*(?:---|[\w.\"'-]+:(?=\s))")
_KINDS: Mapping[str, tuple[re.Pattern[str], ...]] = {
    "kubernetes": _marks(
        r"^apiVersion:\s*\S", r"^kind:\s*\S", r"[\s{,\"'](?:containers?|trainer|entrypoint)[\"']?:"
    ),
    "skypilot": _marks(r"^resources:", r"^run:[ \t]*[^\s#]"),
    "dstack": _marks(r"^type:\s*[\"']?(?:task|dev-environment|service)\b", r"^commands:\s*$"),
    "compose": _marks(r"^services:\s*$", r"^[ \t]+(?:command|entrypoint):"),
}

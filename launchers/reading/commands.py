"""The commands of a launch script: the programs it starts, their arguments, and their number of GPUs."""

from __future__ import annotations

import re
import shlex
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from itertools import chain, pairwise, zip_longest

from meshwright.launchers.flags import flags_of, plain_name
from meshwright.launchers.reading.base import MAX_BYTES, Include, Overrides, Source, refused
from meshwright.launchers.reading.fields import meant
from meshwright.launchers.reading.own_defaults import (
    WIDENS,
    beyond_arguments,
    may_start,
    trained_by,
    trains,
    with_defaults,
)
from meshwright.launchers.table import command_names, launchers
from meshwright.launchers.templates import data
from meshwright.profiles.documents import shown
from meshwright.profiles.errors import FieldError, InvalidProblemError
from meshwright.shell.commands import Starters, is_python
from meshwright.shell.manifests import manifest_of
from meshwright.shell.script import read_script
from meshwright.shell.values import Script, Word, plainly, split_words, unknown_fault, unknown_in

_DIRECTIVE = "#SBATCH"
_SIZES = (
    "--nodes", "--ntasks", "--ntasks-per-node", "--gpus", "--gpus-per-node", "--gpus-per-task", "--gres",
)  # fmt: skip
_SPELLED = {"-N": "--nodes", "-n": "--ntasks", "-G": "--gpus", "--tasks-per-node": "--ntasks-per-node"}
_NODES = ("--nnodes", "--num-nodes", "--num-machines", "--nodes", "-N")
_PER_NODE = ("--nproc-per-node", "--num-gpus", "--gpus-per-node", "--gres", "--ntasks-per-node")
_TOTAL = ("--num-processes",)  # accelerate counts the processes of all nodes
_COUNTS = ("--nnodes", "--nproc-per-node", "--num-processes", "--num-nodes", "--num-gpus", "--num-machines")
_VARIABLES = (  # torchrun reads the first ones
    ("PET_NNODES", "NNODES", "NUM_NODES"),
    ("PET_NPROC_PER_NODE", "NPROC_PER_NODE", "GPUS_PER_NODE", "NGPU"),
)
_STARTERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch")
_TITANS = "run_train.sh"  # torchtitan's
_FILES = (".json", ".yaml", ".yml", ".toml", ".sh")
_GPUS = re.compile(r"(?:^|,)(?:gres/)?gpu(?::[A-Za-z][\w.-]*)?(?:[:=](\d+))?(?=$|[,(])")  # of --gres
_ONE_NUMBER = re.compile(r"\bGPUS_PER_NODE=\d")
MARK = re.compile(  # of an exported file
    r"(?:^# |\")[^\n\"]{1,80}, plan ([0-9a-zA-Z]{1,64}) \(rank \d+\), by Meshwright", re.MULTILINE
)
_IDLE = re.compile(r"\bNodes: (\d{1,9}) of (\d{1,9}) .*, (\d{1,9}) idle on the last\b")
_Texts = tuple[tuple[str, str], ...]  # by name
_MODULES = ("trl.scripts.",)  # programs that python -m starts
_PRINTERS = ("echo", "printf", "cat", "tee")
HANDLERS = (  # train without a file argument
    *_PRINTERS, "cp", "mv", "ln", "rm", "ls", "test", "[", "[[", "sed", "grep", "head", "tail", "wget",
    "curl", "chmod", "touch", "mkdir", "cd",
)  # fmt: skip


@dataclass(frozen=True)
class Command:
    """A started program with the words before and after its name."""

    program: str
    words: Sequence[Word]
    before: Sequence[Word] = ()
    environment: Mapping[str, tuple[str, ...]] | None = None  # None: the script's at its end
    known_as: str = ""  # TRL's own program that trains as this one of the user's does

    @cached_property
    def prepares_data(self) -> bool:
        """Return whether it has arguments of Megatron-LM's preparation of data (tools/retro/main.py)."""
        return any(word.text.startswith("--retro-") for word in self.words)


@dataclass(frozen=True, slots=True)
class World:
    """Number of nodes and of GPUs on each; None where not given."""

    num_nodes: int | None = None
    gpus_per_node: int | None = None
    processes: int | None = None  # of all nodes, if given as a total
    lacking: FieldError | None = None  # the first number that depends on the running shell
    idle_gpus: int = 0  # of the last node, which starts no rank on them

    @property
    def processes_per_node(self) -> int | None:
        """Return how many processes a node starts; None if unknown."""
        nodes, processes = self.num_nodes, self.processes
        return self.gpus_per_node or (processes // nodes if nodes and processes else None)

    @property
    def num_gpus(self) -> int | None:
        """All GPUs that start a rank."""
        if self.num_nodes and self.gpus_per_node:
            return self.num_nodes * self.gpus_per_node - self.idle_gpus
        return self.processes


def script_of(source: Source, overrides: Overrides) -> Script:
    """Return the script's commands and variables.

    Raises:
        InvalidProblemError: the script is too long, or a quote, bracket or expansion does not end.
    """
    if len(source.text) > MAX_BYTES:
        raise refused(f"{source.name[:64]}: the file is too big", allowed=f"{MAX_BYTES} characters")
    variables = tuple(sorted((overrides.variables or source.variables).items()))
    manifest = manifest_of(source.text) if source.is_script else None
    if manifest is not None and manifest.fault:
        raise refused(f"{source.name[:64]}: {manifest.fault}")
    text, environment = source.text, {**_slurm_variables(source.text, overrides), **source.environment}
    if manifest is not None:
        text, environment = manifest.script, {**manifest.environment, **source.environment}
        source = replace(source, files={**manifest.files, **source.files})
    found = _read(text, variables, tuple(environment.items()), source.other)
    if isinstance(found, str):
        raise refused(found)
    return found


def readable_script(source: Source, overrides: Overrides | None = None) -> Script:
    """Return a script's commands and variables, or an empty script.

    It is empty for other files, and for a script that cannot be read, which its own reader reports.
    """
    try:
        return script_of(source, overrides or Overrides()) if source.is_script else Script()
    except InvalidProblemError:
        return Script()


PARALLEL = ("mpirun", "mpiexec", "srun")  # start one process per rank
RANK_STARTERS = (
    *PARALLEL,
    "bcprun",
)  # the last is NVIDIA Base Command's, which takes its command as a text
_AROUND_TEXTS = Starters(
    texts={**dict.fromkeys((*PARALLEL, "deepspeed"), ()), "bcprun": ("-c", "--cmd")},
    keeps=lambda words: is_python(words[0]) and not any("torch.distributed" in word.text for word in words),
)


_Reading = tuple[Mapping[str, str | None], Script | str]  # the files that it asked for, and what it came to


@lru_cache(maxsize=16)
def _readings(_text: str, _variables: _Texts, _environment: _Texts) -> deque[_Reading]:
    """Return the place of what a script was read as beside different files."""
    return deque(maxlen=4)


def _read(text: str, variables: _Texts, environment: _Texts, other: Include) -> Script | str:
    """Parse a script, or return the message of its fault; kept, so the result must not be changed.

    It counts again where the files that it asked for are the same, whatever else stands beside it.
    """
    kept = _readings(text, variables, environment)
    for asked, found in tuple(kept):
        if all(other(name) == told for name, told in asked.items()):
            return found
    told: dict[str, str | None] = {}

    def noted(name: str) -> str | None:
        told[name] = other(name)
        return told[name]

    found = _parsed(text, variables, environment, noted)
    kept.append((told, found))
    return found


_NODE_RANKS = ("NODE_RANK", "MACHINE_RANK", "GROUP_RANK", "SLURM_NODEID", "SLURM_PROCID")
_NAMES_RANK = re.compile(rf"\b(?:{'|'.join(_NODE_RANKS)})\b")


def _parsed(text: str, variables: _Texts, environment: _Texts, other: Include) -> Script | str:
    try:
        found = _with_defaults(
            read_script(text, dict(variables), other, dict(environment), _AROUND_TEXTS), other
        )
        for rank in _last_ranks(text, found):
            there = dict(environment) | dict.fromkeys(_NODE_RANKS, str(rank))
            found.on_nodes += (read_script(text, dict(variables), other, there, _AROUND_TEXTS),)
    except ValueError as fault:
        return str(fault)[:200]
    except RecursionError:
        return "the script is nested too deeply"
    return found


def _last_ranks(text: str, script: Script) -> Sequence[int]:
    """Return the ranks of the last two nodes, if a script that we have not exported names a node's rank."""
    if not _NAMES_RANK.search(text) or MARK.search(text):
        return ()
    nodes = _world_of(text, script, None, script.commands).num_nodes or 1
    return range(nodes - 2, nodes) if nodes > 1 else ()


def _with_defaults(script: Script, other: Include) -> Script:
    """Return a script with what each Python program next to it trains with unless it is told otherwise."""
    for at, words in enumerate(script.commands):
        programs = [word.text for word in words if word.text.endswith(".py")]
        names = {program.rsplit("/", 1)[-1] for program in programs}
        texts = {name: text for name in names if may_start(words) and (text := other(name)) is not None}
        script.known_as |= {one: _known_as(one, texts) for one in programs}
        script.commands[at] = with_defaults(words, texts)
        for name, (beyond, line) in ((name, beyond_arguments(text)) for name, text in texts.items()):
            if beyond:
                script.note(f"{name}, line {line}: {beyond} sets in code what no argument says: not read")
        if any(WIDENS in text for text in texts.values()):
            script.note(f"{WIDENS} keeps embeddings and norms in fp32: priced in 16 bits")
        if added := [
            word.text[2:] for word in script.commands[at] if word.text[:2] == "--" and word not in words
        ]:
            script.note(f"{', '.join(sorted(names))} itself sets {', '.join(added[:12])}")
    return script


def _known_as(program: str, texts: Mapping[str, str]) -> str:
    """Return TRL's program that trains as one does, or itself if it has transformers' trainer; or empty."""
    text = texts.get(program.rsplit("/", 1)[-1], "")
    return trained_by(text) or (program if trains(text) else "")


def _slurm_variables(text: str, overrides: Overrides) -> dict[str, str]:
    """Return the variables that sbatch sets from the header and the supplied nodes (sbatch(1))."""
    batch = {} if manifest_of(text) is not None else _header(text)
    nodes, tasks = _first(("--nodes",), batch), _first(("--ntasks-per-node",), batch)
    gpus = _first(("--gpus-per-node", "--gres"), batch)
    each = gpus or tasks
    if overrides.num_gpus and each and overrides.num_gpus % each == 0:
        nodes = overrides.num_gpus // each if batch else None
    found = {
        "SLURM_JOB_NUM_NODES": nodes,
        "SLURM_NNODES": nodes,
        "SLURM_NTASKS_PER_NODE": tasks,
        "SLURM_NTASKS": nodes * tasks if nodes and tasks else _first(("--ntasks",), batch),
        "SLURM_GPUS_ON_NODE": gpus,
        "SLURM_GPUS_PER_NODE": batch.get("--gpus-per-node"),  # with a type if given; not set by --gres
        "SLURM_GPUS": batch.get("--gpus"),
    }
    return {name: str(value) for name, value in found.items() if value}


@lru_cache(maxsize=16)
def _header(text: str) -> Mapping[str, str]:
    """Return the options of ``#SBATCH`` lines before the first command, as sbatch reads them.

    Pods of a manifest with GPUs count as the nodes of a job.

    A line holds one or more, quoted and commented as in a shell (Slurm, sbatch/opt.c, _opt_batch_script). A
    script inside another begins its own header with ``#!``. GPUs of a job or task become ``--gres``.

    Raises:
        InvalidProblemError: GPUs of several kinds, or a heterogeneous job.
    """
    found: dict[str, str] = {}
    if (manifest := manifest_of(text)) is not None:
        sizes = {"--nodes": manifest.num_nodes, "--gpus-per-node": manifest.gpus_per_node}
        return {name: str(size) for name, size in sizes.items() if size}
    for number, line, words in _directives(text):
        found |= _options_of_job(words)
        kinds = found.get("--gpus", "") + found.get("--gpus-per-node", "")
        unlike = "," in kinds or len(_GPUS.findall(found.get("--gres", ""))) > 1
        if unlike or {"hetjob", "packjob"} & set(words):
            raise refused(
                f"line {number}: {shown(line)} asks for several kinds of nodes", allowed="one kind"
            )
    tasks = _first(("--ntasks-per-node",), found) or 0
    nodes, in_all = _first(("--nodes",), found), _first(("--gpus",), found)
    each = tasks * (_first(("--gpus-per-task",), found) or 0)
    if in_all and nodes:
        each = 0 if in_all % nodes else in_all // nodes
    return (
        found
        if _first(("--gpus-per-node", "--gres"), found) or not each
        else {**found, "--gres": f"gpu:{each}"}
    )


@lru_cache(maxsize=16)
def _directives(text: str) -> tuple[tuple[int, str, list[str]], ...]:
    """Return ``#SBATCH`` lines before the first command: their number, line and words."""
    return tuple(_directives_in(text))


def _directives_in(text: str) -> Iterator[tuple[int, str, list[str]]]:
    before = True
    for number, line in enumerate(text.splitlines(), 1):
        before = line.startswith("#!") or (before and line.lstrip()[:1] in ("", "#"))
        if before and line.startswith(_DIRECTIVE):
            with suppress(ValueError):  # an open quote, which sbatch refuses
                yield number, line, shlex.split(line.removeprefix(_DIRECTIVE), comments=True)


def _options_of_job(words: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        name, _, value = word.partition("=") if word.startswith("--") else (word[:2], "", word[2:])
        if word.startswith("-"):
            value = value or ("" if following.startswith("-") else following)
            found[_SPELLED.get(name, name)] = value
    return found


def require_job(text: str, name: str) -> None:
    """Refuse ``#SBATCH`` lines with a size that is not a number; sbatch expands nothing in them.

    Raises:
        InvalidProblemError: the first of those values, with its line.
    """
    for number, _, words in _directives(text):
        for option, value in _options_of_job(words).items():
            form = _GRES if option == "--gres" else _TYPED if "gpu" in option else _COUNT_OF_JOB
            wrong = not form.fullmatch(value)
            if option in _SIZES and wrong:
                example = "--gres=gpu:8" if option == "--gres" else f"{option}=8"
                raise InvalidProblemError.of(
                    option,
                    f"line {number} of {shown(name)}: {shown(value)} is not a number, and sbatch expands "
                    "nothing in its header",
                    allowed=f"{example}, or --cluster with --num-nodes",
                )


_COUNT_OF_JOB = re.compile(r"\d+[km]?(?:-\d+[km]?)?(?:,\d+(?:-\d+)?)*", re.IGNORECASE)  # --nodes=2-4
_TYPED = re.compile(r"(?:[\w.-]+:)?\d+(?:,[\w.-]+:\d+)*")
_GRES = re.compile(r"[^$`]+")


def size_of_job(header: str) -> dict[str, int | None]:
    """Return the sizes of the job in ``#SBATCH`` lines, by option; None where it is not a number."""
    found = _header(header)
    return {name: _first((name,), found) for name in _SIZES if name in found}


def commands_beside(
    source: Source, overrides: Overrides | None = None
) -> Iterator[tuple[Source, tuple[Word, ...]]]:
    """Yield the commands of all scripts given with a file; scripts that cannot be read yield none."""
    for script in source.scripts():
        yield from ((script, words) for words in readable_script(script, overrides).commands)


@lru_cache(maxsize=16)  # scripts, by identity
def commands_of(script: Script) -> tuple[Command, ...]:
    """Return the programs that a script starts, then all of its words and the contents of its variables."""
    found = [
        replace(command, environment=environment, known_as=script.known_as.get(command.program, ""))
        for words, environment in zip(script.commands, script.environments, strict=True)
        if (command := program_of(words)) is not None
    ]
    everything = [word for words in script.commands for word in words]
    stored = [
        Word(piece, word.line)
        for words in script.words.values()
        for word in words
        for piece in split_words(word.text)
    ]
    return *found, Command("", everything), Command("", stored)


def best(commands: Sequence[Command], is_known: Callable[[str], bool]) -> tuple[Command, int]:
    """Return the command with the most known names, and their number; programs go first."""
    counts = [sum(is_known(word.text) for word in command.words) for command in commands]
    started = [place for place, command in enumerate(commands) if command.program and counts[place]]
    places = started or range(len(commands))
    chosen = max(places, key=lambda place: (not other_use(commands[place]), counts[place]))
    return commands[chosen], counts[chosen]


def chosen(
    commands: Sequence[Command],
    is_known: Callable[[str], bool],
    overrides: Overrides,
    name: str,
    *,
    all_train: bool = False,
    decides: Callable[[str], bool] | None = None,
) -> tuple[Command, int]:
    """Return the command to read: the result of ``best``, or the selected one of several different runs.

    With ``all_train`` each command is a run, however few names it has. ``decides`` accepts the names by
    which runs differ; by default, all known ones.

    Raises:
        InvalidProblemError: the script starts several runs, and none is selected.
    """
    command, count = best(commands, is_known)
    decides = decides or is_known
    runs = _runs(commands, is_known, decides, 0 if all_train else count) if command.program else []
    if overrides.run is not None and not 1 <= overrides.run <= max(len(runs), 1):
        message = f"{overrides.run}: {name[:64]} starts {len(runs)} runs that differ"
        if len(runs) < 2:  # noqa: PLR2004
            message = f"{overrides.run}: {name[:64]} starts one run"
        raise InvalidProblemError.of("--run", message, allowed=f"1 to {max(len(runs), 1)}")
    if len(runs) < 2:  # noqa: PLR2004
        return command, count
    if overrides.run is None:
        said = [_said(one, decides) | _ranks(one) for one in runs]
        shared = set.intersection(*(set(one.items()) for one in said))
        own = [
            " ".join(f"{flag} {plainly(value)}" for flag, value in sorted(one.items() - shared))
            for one in said
        ]
        lines = [one.words[0].line for one in runs]
        listed = [f"{at + 1} (line {lines[at]}): {text[:80]}" for at, text in enumerate(own[:8])]
        message = f"{name[:64]} starts {len(runs)} runs that differ: {'; '.join(listed)}"
        raise refused(message, allowed=f"--run 1 to {len(runs)}")
    found = runs[overrides.run - 1]
    return found, sum(is_known(word.text) for word in found.words)


def chosen_by(file: str, commands: Sequence[Command], is_known: Callable[[str], bool]) -> Command | None:
    """Return the command that trains with a file; None if no command takes the file.

    Raises:
        InvalidProblemError: as ``require_training``, or several different commands train with it.
    """
    base = file.rpartition("/")[2]
    given = [command for command in commands if any(holds_file(word, base) for word in command.words)]
    if not given:
        return None
    given.sort(key=lambda command: len(command.before) < 2)  # noqa: PLR2004 - Python's own go last

    def is_said(text: str) -> bool:  # LLaMA-Factory accepts name=value, too
        return is_known(text) or text.endswith(base) or ("=" in text and is_known(f"--{text}"))

    runs = _runs(given, is_said, is_said, 0) or given[:1]
    if len(runs) > 1:
        raise given_to_several(base, [one.words[0].line for one in runs])
    require_training(runs[0], f"a script next to {base}")
    return runs[0]


def given_to_several(file: str, lines: Sequence[int]) -> InvalidProblemError:
    """Return the refusal of a file that different commands take, in these lines of their scripts."""
    where = ", ".join(map(str, lines[:8]))
    return refused(
        f"{len(lines)} different commands use {shown(file)} (lines {where})",
        allowed="a script with one of them",
    )


def _runs(
    commands: Sequence[Command],
    is_known: Callable[[str], bool],
    decides: Callable[[str], bool],
    most: int,
) -> list[Command]:
    """Return the training commands with at least half of the most known names, if these or ranks differ."""
    found: dict[tuple[tuple[str, str], ...], dict[tuple[tuple[str, str], ...], Command]] = {}
    for command in commands:
        known = sum(is_known(word.text) for word in command.words)
        if command.program and 2 * known >= max(most, 2) and not other_use(command):
            same = found.setdefault(tuple(_said(command, decides).items()), {})
            ranks = tuple(_ranks(command).items())
            if ranks or not same:  # without ranks it only prepares the run, or is its fallback
                same.setdefault(ranks, command)
    return [one for same in found.values() for ranks, one in same.items() if ranks or len(same) == 1]


def _ranks(command: Command) -> dict[str, str]:
    texts = [word.text for word in command.before]
    pairs = options_of(texts)
    said = {one.replace("_", "-"): value for one, value in pairs if one.replace("_", "-") in _COUNTS}
    usual = {"--nnodes": "1"} if said and any(text == "torchrun" for text in texts) else {}
    return dict(sorted({**usual, **said}.items()))


def options_of(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Return every ``NAME=VALUE``, and every word with the next one, which may be its value."""
    return [*(text.partition("=")[::2] for text in texts if "=" in text), *pairwise(texts)]


def _said(command: Command, is_known: Callable[[str], bool]) -> dict[str, str]:
    """Return the known names among a command's words with their values; the last of equal names counts."""
    found: dict[str, str] = {}
    name = ""
    for word in command.words:
        if is_known(word.text):
            name, equals, value = word.text.partition("=")
            found[name] = value
            name = "" if equals else name
        elif word.text.startswith("-") or "=" in word.text:
            name = ""
        elif name:
            found[name] = f"{found[name]} {word.text}".strip()
    return dict(sorted(found.items()))


def require_training(command: Command, name: str) -> None:
    """Refuse a program that takes the flags of a training but does not train.

    Raises:
        InvalidProblemError: it generates, evaluates, converts, or does not train on sequences; or is
            given a blank word, which no parser accepts; or follows an expanded assignment.
    """
    blank = command.words[-1] if command.words else None  # earlier ones may be quoted separators
    if blank is not None and blank.text.isspace():
        raise refused(
            f"line {blank.line} of {name[:64]}: the backslash is before a blank, not before the line's "
            "end: the command ends there, with a blank as an argument, which its parser refuses",
            allowed="no blank behind the backslash",
        )
    first = command.before[0] if command.before else None
    if first is not None and _ASSIGNED.match(first.text):
        raise refused(
            f"line {first.line} of {name[:64]}: {shown(first.text)} comes from a variable, and the shell "
            "takes it for the command's name: none is found",
            allowed="env before it, or the assignment itself in the line",
        )
    does = other_use(command)
    if does:
        line = next((word.line for word in (*command.before, *command.words)), 0)
        program = command.program.rsplit("/", 1)[-1][:64]
        raise refused(
            f"line {line} of {name[:64]}: {program or 'the command'} {does}, which is not supported",
            allowed="a script that pre-trains or fine-tunes on sequences",
        )


_ASSIGNED = re.compile(r"[A-Za-z_]\w*=")  # the shell has already removed real ones


# Programs that start processes, with the table of their options (launchers.flags).
_WITH_OPTIONS = {
    "torchrun": "torchrun", "torch.distributed.run": "torchrun", "torch.distributed.launch": "torchrun",
    "deepspeed": "deepspeed-launcher",
}  # fmt: skip


def require_options(script: Script, name: str) -> None:
    """Refuse options that torchrun and deepspeed do not have and stop at.

    Raises:
        InvalidProblemError: such an option, with its line and the nearest one.
    """
    for command in commands_of(script):
        texts = [word.text.rsplit("/", 1)[-1] for word in command.before]
        at = next((at for at, text in enumerate(texts) if text in _WITH_OPTIONS), None)
        if at is None or not command.program:
            continue
        table = flags_of(_WITH_OPTIONS[texts[at]])
        options = [*table]
        for word in command.before[at + 1 :]:
            said = plain_name(word.text.partition("=")[0]) if word.text.startswith("--") else ""
            if said in table and table[said].role == "refused":
                where = f"line {word.line} of {shown(name)}"
                raise refused(f"{where}: {shown(word.text)} cannot be read: {table[said].why}")
            if not word.text.startswith("--") or word.unknown or said in ("", *options):
                continue
            whole = [one for one in options if one.startswith(said)]  # argparse accepts prefixes
            near = whole[0] if len(whole) == 1 else meant(said, options)
            raise refused(
                f"line {word.line} of {shown(name)}: {shown(word.text)} is not an option of {texts[at]}",
                allowed=f"--{near}" if near else f"its options ({texts[at]} --help)",
            )


def holds_file(word: Word, base: str) -> bool:
    """Return whether a word is a file, or passes it to an option."""
    return word.text.rpartition("=")[2].rpartition("/")[2] == base


def started_program(words: Sequence[Word]) -> Command | None:
    """Return the program that a command starts, also as a module: ``python -m scripts.generate``."""
    at = next((at for at, word in enumerate(words[:-1]) if word.text == "-m"), None)
    if at is None or words[at + 1].text.startswith(_STARTERS):
        return program_of(words)
    return Command(words[at + 1].text.replace(".", "/") + ".py", words[at + 2 :], words[: at + 1])


def other_use(command: Command) -> str:
    """Return the use of a program that does not train on sequences; empty for all others."""
    base = command.program.rsplit("/", 1)[-1]
    if base == "main.py" and any(word.text == "--task" for word in command.words):
        return "evaluates a model on a task"  # Megatron-LM, tasks/main.py
    if command.prepares_data and not base.startswith("pretrain"):
        return "prepares data"
    return _use_of(command.known_as or command.program)


@lru_cache(maxsize=256)
def _use_of(program: str) -> str:
    if _TRLS_OWN.search(program) or any(one.kind_of(program) for one in launchers().values()):
        return ""
    base = program.rsplit("/", 1)[-1]
    name = base.replace("-", "_").lower() if base.endswith(".py") else base
    return next((does for pattern, does in _others() if pattern.fullmatch(name)), "")


# TRL's scripts of training on preferences, which are read (``reading.preferences``).
_TRLS_OWN = re.compile(
    r"(?:^|/)(?:trl|examples)/scripts/(?:dpo(?:_vlm)?|kto|bco|cpo|orpo|reward(?:_modeling)?|prm)\.py$"
)


@cache
def _others() -> list[tuple[re.Pattern[str], str]]:
    return [(re.compile(pattern), does) for pattern, does in data("reading/programs.yaml")["others"]]


# Arguments with data or a tokenizer as JSON, which is not needed for reading.
_DATA = re.compile(r"_*(\w*(data|vocab|tokenizer|merge)\w*|(train|validation|eval|test)_(file|path)s?)")


@lru_cache(maxsize=64)  # scripts, by identity
def files_named(
    script: Script, *, programs: bool = True, data: bool = True, trained: bool = False
) -> tuple[Word, ...]:
    """Return base names of files and modules that the script's commands name, also in ``bash -c '…'``.

    Args:
        script: the script.
        programs: include Python files, which seldom set the run.
        data: include the training data.
        trained: leave out commands that start no program, or one that does not train.
    """
    return tuple(_files_named(script, programs=programs, data=data, trained=trained))


def _files_named(script: Script, *, programs: bool, data: bool, trained: bool) -> Iterator[Word]:
    for words, environment in zip(script.commands, script.environments, strict=True):
        if trained and ((command := program_of(words)) is None or other_use(command)):
            continue
        if any(word.text.endswith(_TITANS) for word in words):
            usual = "".join(environment.get("CONFIG_FILE", ())).rsplit("/", 1)[-1]
            yield from [Word(usual, words[0].line)] if usual.endswith(_FILES) else []
        for at, word in enumerate(words):
            for piece in word.text.split():
                name, _, value = piece.rpartition("=")
                base = value.rsplit("/", 1)[-1]
                flag = name or (words[at - 1].text if at else "")
                if not data and base.endswith(".json") and _DATA.fullmatch(flag.replace("-", "_")):
                    continue
                if base.endswith(_FILES) or (programs and base.endswith(".py")):
                    yield Word(base, word.line)
            if word.text == "--module" and at + 1 < len(words):
                yield Word(f"{words[at + 1].text.rsplit('.', 1)[-1]}.py", word.line)


def unknown_file(path: str) -> str | None:
    """Return the unknown part of a file's base name; unknown folders do not matter."""
    return unknown_in(path.rpartition("/")[2])


def require_beside(source: Source, script: Source, word: Word) -> None:
    """Refuse a named file that is missing, or with a name that only a running shell knows."""
    if (unknown := unknown_file(word.text)) is not None:
        raise InvalidProblemError([unknown_fault("the file of arguments", unknown, word.line)])
    if source.other(word.text) is None:
        where, name = f"line {word.line} of {shown(script.name)}", shown(word.text.rpartition("/")[2])
        raise refused(f"{where}: {name} is not next to it", allowed="give that file too, or its folder")


def file_of_commands(source: Source, named: Iterable[tuple[Source, Word]]) -> Source | None:
    """Return the file that commands next to a file train with, that file first; None without a single one.

    Args:
        source: the file.
        named: the words that name files, each with its script.

    Raises:
        InvalidProblemError: one of the files is missing, or only a running shell knows its name.
    """
    names = set[str]()
    for script, word in named:
        require_beside(source, script, word)
        names.add(word.text.rpartition("/")[2])
    found = {source.name} & names or names
    return source.at(*found) if len(found) == 1 else None


def world_of(text: str, script: Script, command: Command | None = None) -> World:
    """Return how many processes start by the launcher's options, Slurm's header, or the usual variables.

    Of an exported file whose nodes start unlike numbers: as its header says.
    """
    if (own := short_world(text)) is not None:
        return own
    lists = [command.before] if command else script.commands
    lacking = _lacking(script, command, lists)
    return replace(_shortened(_world_of(text, script, command, lists), text, script), lacking=lacking)


def _shortened(world: World, text: str, script: Script) -> World:
    """Return the world with its last node's idle GPUs, if a script starts fewer processes there.

    Raises:
        InvalidProblemError: other nodes start unlike numbers.
    """
    if not script.on_nodes:
        return world
    worlds = (_world_of(text, one, None, one.commands) for one in (script, *script.on_nodes))
    numbers, each = [one.processes_per_node for one in worlds], world.processes_per_node
    if each is None or each != numbers[0] or len({*numbers}) == 1 or None in numbers:
        return world  # a node that starts nothing waits for another's launcher
    first, before, last = (number for number in numbers if number is not None)
    if last < before == first:
        return replace(world, gpus_per_node=first, processes=None, idle_gpus=first - last)
    raise refused(
        f"nodes start unlike numbers of processes: {first} on the first node, "
        f"{before} and {last} on the last two",
        allowed="the same on every node, or fewer on the last one alone",
    )


def short_world(text: str) -> World | None:
    """Return the ranks of an exported file whose last node starts fewer than the others; None of others.

    Of a script in which someone has set one number for all nodes the header no longer counts.
    """
    found = None if _ONE_NUMBER.search(text) else _IDLE.search(text)
    nodes, each, idle = map(int, found.groups()) if found else (0, 0, 0)
    return World(nodes, each, idle_gpus=idle) if idle < each else None


def _lacking(script: Script, command: Command | None, lists: Sequence[Sequence[Word]]) -> FieldError | None:
    """Return the fault of the first number of nodes or processes that is unknown; None if all are known."""
    for words in lists:
        for word, following in pairwise([*words, Word("", 0)]):
            name, equals, value = word.text.partition("=")
            unknown = unknown_in(value if equals else following.text)
            if name.replace("_", "-") in _COUNTS and unknown is not None:
                return unknown_fault(name, unknown, word.line)
            low, colon, high = (value if equals else following.text).partition(":")
            if name == "--nnodes" and colon and low != high:
                many = f"{shown(low)} to {shown(high)} nodes are elastic"
                return FieldError(
                    pointer=name,
                    message=f"line {word.line}: {many}, and the number that starts is not given",
                    allowed="one number, or --cluster with --num-nodes",
                )
    environment = environment_of(script, command)
    for name in chain(*_VARIABLES):
        unknown = unknown_in("".join(environment.get(name, ())))
        if unknown is not None:
            line = next((word.line for word in script.words.get(name, ())), 0)
            line = line or next((words[0].line for words in lists if words), 0)
            return unknown_fault(name, unknown, line)
    return None


def _world_of(text: str, script: Script, command: Command | None, lists: Sequence[Sequence[Word]]) -> World:
    said: dict[str, str] = {}
    for words in lists:
        for at, word in enumerate(words):
            name, equals, value = word.text.replace("_", "-").partition("=")
            said.setdefault(name, value if equals else words[at + 1].text if at + 1 < len(words) else "")
    batch = _header(text)
    if (slots := next(filter(None, map(_included, lists)), None)) is not None:
        return World(len(slots), slots[0]) if len(set(slots)) == 1 else World(processes=sum(slots))
    started = any(word.text.rsplit("/", 1)[-1] in _STARTERS for words in lists for word in words)
    elsewhere = any(word.unknown for words in lists for word in words)  # it may set the nodes
    alone = command is not None and started and "--nnodes" not in said and not elsewhere
    nodes = None if alone else _first(_NODES, said, batch)  # torchrun's own default, not the job's nodes
    tasks = _first(("--ntasks-per-node",), said, batch) if command and _is_task(command) else None
    per_node = tasks or _first(_PER_NODE, said, batch)
    usual = [_variable(environment_of(script, command), names) for names in _VARIABLES]
    here = not batch and not any(name in said for name in _NODES) and any(map(_starts_here, lists))
    if nodes is None and usual[0] is None and here:
        nodes = 1
    parallel = any(word.text in PARALLEL for words in lists for word in words)
    if any(word.text.endswith(_TITANS) for words in lists for word in words):  # one node of 8 GPUs
        usual = [usual[0] or 1, usual[1] or 8]
    if started and usual[0] is None and "--nnodes" not in said and (alone or not batch):
        nodes = nodes or 1  # torchrun's own default
    if started and usual[1] is None and "--nproc-per-node" not in said and not batch:
        per_node = per_node or 1
    tasks_of_all = ("-np", "--np", "-n", "--ntasks") if parallel else ()  # mpirun -np 64, srun -n 64
    processes = _first((*_TOTAL, *tasks_of_all), said)
    if command is not None and not (nodes or usual[0] or per_node or usual[1] or processes):
        stated = _variable(environment_of(script, command), ("WORLD_SIZE",))  # others start elsewhere
        return World(processes=(stated or 1) if _is_alone(text, command) else None)
    return World(nodes or usual[0], per_node or usual[1], processes)


def _is_alone(text: str, command: Command) -> bool:
    """Return whether ``python pretrain_gpt.py`` starts alone, with no sign of other ranks in the script."""
    python = bool(command.before) and is_python(command.before[0])
    return python and "-m" not in [word.text for word in command.before] and not _OF_RANKS.search(text)


def _is_task(command: Command) -> bool:
    """Return whether each Slurm task runs ``srun python train.py``, however many GPUs it sees."""
    python = bool(command.before) and is_python(command.before[-1])
    texts = [word.text.rsplit("/", 1)[-1] for word in command.before]
    return python and "srun" in texts and not any(word.unknown for word in command.before)


_OF_RANKS = re.compile(r"#SBATCH|#PBS|#BSUB|\$\{?\w*(?:SLURM|PMI_|MPI|RANK|WORLD_SIZE|NNODES|NUM_NODES)")


def _starts_here(words: Sequence[Word]) -> bool:
    """Return whether processes start on this machine alone: no other hosts are named, and no file."""
    texts = {word.text.partition("=")[0].rpartition("/")[2].replace("_", "-") for word in words}
    if accelerates_options(words) is not None:
        return "--config-file" not in texts
    return "deepspeed" in texts and not {"--hostfile", "-H", "--include", "-i", "--exclude", "-e"} & texts


def accelerates_options(words: Sequence[Word]) -> int | None:
    """Return the index of the first word after ``accelerate launch`` in any of its forms, or None."""
    texts = [word.text.rpartition("/")[2] for word in words]
    for at, (text, following) in enumerate(pairwise([*texts, ""])):
        if text in ACCELERATES[2:] or (text in ACCELERATES[:2] and following == "launch"):
            return at + (1 if text in ACCELERATES[2:] else 2)
    return None


ACCELERATES = (  # the first two take a subcommand (setup.py's programs, and those of python -m)
    "accelerate", "accelerate.commands.accelerate_cli", "accelerate-launch", "accelerate.commands.launch",
)  # fmt: skip


def _included(words: Sequence[Word]) -> list[int]:
    """Return the GPUs on each host of ``deepspeed --include h0:0,1@h1:0,1``; empty if one has no list."""
    texts = [word.text for word in words]
    if not any(text.rpartition("/")[2] == "deepspeed" for text in texts):
        return []
    hosts = next((value for name, value in options_of(texts) if name in ("--include", "-i")), "")
    slots = [host.partition(":")[2] for host in hosts.split("@")]
    return [len(one.split(",")) for one in slots] if all(slots) and not unknown_in(hosts) else []


def takes_every_gpu(words: Sequence[Word]) -> bool:
    """Return whether torchrun starts one process per visible GPU: ``--nproc-per-node gpu`` or ``auto``."""
    texts = [word.text for word in words]
    counts = [said for name, said in options_of(texts) if name.replace("_", "-") == "--nproc-per-node"]
    return bool({"gpu", "auto"} & set(counts))


def started_gpus(world: World, overrides: Overrides, note: Callable[[str], None]) -> int | None:
    """Return the number of GPUs; a supplied number overrides the script's, with a note."""
    if overrides.num_gpus and world.num_gpus and overrides.num_gpus != world.num_gpus:
        note(other_gpus_note(world.num_gpus, overrides.num_gpus))
    return overrides.num_gpus or world.num_gpus


def other_gpus_note(started: int, supplied: int) -> str:
    """Return the note on a supplied number of GPUs that differs from the script's processes."""
    own = "one process" if started == 1 else f"{started} processes"
    return f"the script starts {own}; {supplied} GPUs are given and counted, with a process each"


def program_of(words: Sequence[Word]) -> Command | None:
    """Return the program that a command starts: a ``.py`` file, or a subcommand of a known tool."""
    if (words and words[0].text in _PRINTERS) or _installs(words):
        return None
    words, tools = _started_last(words), command_names()
    tool = next((i for i, word in enumerate(words[:-1]) if word.text in tools), None)
    at = next((i for i, word in enumerate(words) if word.text.endswith(".py")), None)
    if tool is not None and (at is None or tool < at):
        return Command(f"{words[tool].text} {words[tool + 1].text}", words[tool + 2 :], words[: tool + 1])
    module = next((i for i, word in enumerate(words) if word.text.startswith(_MODULES)), _module(words))
    if at is None and module is not None:
        return Command(words[module].text.replace(".", "/") + ".py", words[module + 1 :], words[:module])
    if at is None and any(word.text == "torchrun" for word in words[:2]):
        at = _first_unknown(words)
    return None if at is None else Command(words[at].text, words[at + 1 :], words[:at])


def _installs(words: Sequence[Word]) -> bool:
    first = [word.text.rsplit("/", 1)[-1] for word in words[:4]]
    return "install" in first and any(name in _INSTALLERS for name in first)


_INSTALLERS = ("pip", "pip3", "uv", "conda", "mamba", "apt", "apt-get", "poetry")


def _module(words: Sequence[Word]) -> int | None:
    """Return the index of a launcher's module: ``torchrun -m a.b``, ``deepspeed --module a.b``."""
    for at, word in enumerate(words[:-1]):
        named = word.text in ("-m", "--module") and not words[at + 1].text.startswith(_LAUNCHERS)
        if named and any(one.text.rsplit("/", 1)[-1].startswith(_SUBMITTED) for one in words[:at]):
            return at + 1
    return None


_LAUNCHERS = ("torch.distributed", "accelerate", "deepspeed")  # modules that start other programs


def _started_last(words: Sequence[Word]) -> Sequence[Word]:
    """Return the command after ``--`` of a submitter: ``python submit.py … -- accelerate launch …``.

    If the submitter sets nodes, the command's processes are those of one node, and the total is unknown.
    """
    ends = [at for at, word in enumerate(words[:-1]) if word.text == "--"]
    behind = [at + 1 for at in ends if words[at + 1].text.rsplit("/", 1)[-1] in _SUBMITTED]
    if not behind:
        return words
    kept, before = list(words[behind[-1] :]), words[: behind[-1]]
    if any(word.text.partition("=")[0].replace("_", "-") in _NODES for word in before):
        counts = [at for at, word in enumerate(kept) if word.text in ("--num_processes", "--num_machines")]
        for at in reversed(counts):
            del kept[at : at + 2]
    return kept


_SUBMITTED = (*_STARTERS, "accelerate", "deepspeed", "python", "python3")


def _first_unknown(words: Sequence[Word]) -> int | None:
    """Return the index of a word that is only an undefined variable: the user's own script."""
    for at in range(1, len(words)):
        if words[at].unknown and words[at].text[:1] != "-" and words[at - 1].text[:1] != "-":
            return at
    return None


def environment_of(script: Script, command: Command | None) -> Mapping[str, tuple[str, ...]]:
    """Return the environment of a command, or without a command the script's at its end."""
    said = None if command is None else command.environment
    return script.environment if said is None else said


def _variable(environment: Mapping[str, tuple[str, ...]], names: Sequence[str]) -> int | None:
    numbers = (_number("".join(environment.get(name, ()))) for name in names)
    return next((number for number in numbers if number), None)


def _first(names: Sequence[str], *places: Mapping[str, str]) -> int | None:
    for name in names:
        for place in places:
            if number := _counted(name, place.get(name, "")):
                return number
    return None


def _counted(name: str, text: str) -> int | None:
    """Return the count in an option: the GPUs of ``--gres gpu:4,nvme:1``, the first number of ``2:2``."""
    if name == "--gres":
        found = _GPUS.search(text)
        return None if found is None else _number(found[1] or "1")
    typed = name in ("--gpus-per-node", "--gpus", "--gpus-per-task")
    low, _, high = text.partition(":")
    if name == "--nnodes" and high not in ("", low):
        return None  # elastic
    return _number(text.rpartition(":")[2] if typed else low)


def _number(text: str) -> int | None:
    """Return a count of up to seven digits."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 8 else None  # noqa: PLR2004

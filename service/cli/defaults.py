"""A person's defaults: a variable for each option (MESHWRIGHT_CLUSTER), and a configuration file.

An option counts before a problem file, that before the environment, that before
``$XDG_CONFIG_HOME/meshwright/config.toml``. Only the command line reads them: a service answers the same
for everyone. ``OPTIONS`` marks the options that have one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

from meshwright.profiles.documents import shown, without_version
from meshwright.profiles.errors import FieldError, InvalidProblemError, faults_as
from meshwright.service.requests.fields import OPTIONS
from meshwright.service.requests.numbers import written_out

PREFIX = "MESHWRIGHT_"
PROFILE = "profile"  # a command's own option: a calibration, or a measured profile
REMEMBERED = (*(name for name, row in OPTIONS.items() if row.option and row.option.remembered), PROFILE)
_CLUSTER = ("cluster", "gpu")
_OF_A_CLUSTER = ("num_nodes", "gpus_per_node", PROFILE)  # belong to the default cluster, if there is one
# Options that say which GPUs are meant.
_HARDWARE = frozenset({*_CLUSTER, "gpus", "nodes", "num_nodes", "num_gpus", "gpus_per_node"})
# Of a launch file: what it trains, and what starts it.
_OF_A_LAUNCH_FILE = frozenset({"launcher", "global_batch_size", "seq_length", "precision", "optimizer"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Default:
    """One option of a person's."""

    name: str  # of the option: num_nodes
    value: Any
    source: str  # an environment variable, or a file

    @property
    def option(self) -> str:
        """Return the option as it is typed."""
        return typed(self.name)


def typed(name: str) -> str:
    """Return an option as it is typed: --num-nodes."""
    return f"--{name.replace('_', '-')}"


def variable(name: str) -> str:
    """Return the environment variable of an option."""
    return f"{PREFIX}{name.upper()}"


def config_file() -> Path:
    """Return the configuration file (XDG base directory specification; ``XDG_CONFIG_HOME`` is absolute)."""
    base = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    if not base.is_absolute():
        base = Path(os.path.expanduser("~")) / ".config"  # noqa: PTH111 - Path.home raises without one
    return base / "meshwright" / "config.toml"


def shown_file() -> str:
    """Return the configuration file as messages name it: ~/.config/meshwright/config.toml."""
    text, home = str(config_file()), os.path.expanduser("~")  # noqa: PTH111 - as above
    return f"~{text.removeprefix(home)}" if text.startswith(f"{home}/") else text


def _wrong(source: str, message: str, **more: str | None) -> InvalidProblemError:
    """Return what is wrong with a variable, or with the configuration file, which it names."""
    if source.startswith(PREFIX):
        return InvalidProblemError.of(source, message, **more)
    return InvalidProblemError.of("config", f"{source}: {message}", **more)


class Defaults:
    """The defaults of this person, each read at its first use."""

    def __init__(self, options: Collection[str] = REMEMBERED) -> None:
        """Take the options of a command, which alone have defaults there."""
        self._options = options
        self.used: dict[str, Default] = {}

    @cached_property
    def found(self) -> Mapping[str, Default]:
        """Return every default by its option.

        Raises:
            InvalidProblemError: the file cannot be read, or holds an unknown name or a value of a wrong
                kind; names the file.
        """
        found = {one.name: one for one in (*_of_file(config_file()), *_of_environment())}
        stated = [found[name] for name in _CLUSTER if name in found]
        of_file = [one for one in stated if one.source == shown_file()]
        if len(stated) > 1 and len(of_file) == 1:  # the environment counts before the file
            del found[of_file[0].name]
        elif len(stated) > 1:
            message = "cluster and gpu both describe the cluster. Keep one of them"
            raise _wrong(stated[0].source, message)
        return found

    def for_request(
        self, given: Mapping[str, Any], stated: Mapping[str, object], *, has_files: bool
    ) -> dict[str, Any]:
        """Return the defaults that a request takes: those of what it leaves open.

        Args:
            given: the options.
            stated: the request of the problem file.
            has_files: launch files state the model, the batch and the launcher.
        """
        of_files = _OF_A_LAUNCH_FILE if has_files else frozenset()
        own = {name: one for name, one in self.found.items() if name in (*self._options, PROFILE)}
        taken = {name: one for name, one in own.items() if self._is_open(name, given, stated)}
        taken = {name: one for name, one in taken.items() if name not in of_files}
        if "x" in str(given.get("global_batch_size", "")).lower():  # 512x8192 states the length
            taken.pop("seq_length", None)
        if has_files:
            taken.pop("num_nodes", None)
        self.used |= taken
        return {name: one.value for name, one in taken.items() if name != PROFILE}

    def _is_open(self, name: str, given: Mapping[str, Any], stated: Mapping[str, object]) -> bool:
        if name in given:
            return False
        if name not in _HARDWARE and name != PROFILE:
            return not _is_stated(OPTIONS[name].path, stated)
        words = {"gpus": ("all", "fewest")}
        hardware = {one for one in _HARDWARE & given.keys() if given[one] not in words.get(one, ())}
        if "cluster" in stated:
            return False
        has_own = any(one in self.found for one in _CLUSTER)
        if name in _OF_A_CLUSTER and not has_own:
            return name == PROFILE or not hardware - {*_CLUSTER}
        counts = {"num_nodes", "num_gpus", "gpus_per_node"}
        return not hardware - counts and (name in (*_CLUSTER, PROFILE) or not hardware & counts)

    @property
    def profile(self) -> list[Path] | None:
        """Return the profile that the request takes; None: none."""
        one = self.used.get(PROFILE)
        return None if one is None else [Path(path).expanduser() for path in one.value]

    def note(self) -> str:
        """Return which defaults were taken, and from where; empty: none."""
        sources = dict[str, list[str]]()
        for one in self.used.values():
            value = " ".join(one.value) if isinstance(one.value, list) else one.value
            sources.setdefault(one.source, []).append(f"{one.option} {value}")
        return "; ".join(f"{' '.join(words)} from {source}" for source, words in sources.items())

    @contextmanager
    def named(self) -> Iterator[None]:
        """Name the source in the faults of the block that a default causes."""
        try:
            yield
        except InvalidProblemError as fault:
            raise type(fault)(map(self._with_source, fault.errors)) from None

    def _with_source(self, error: FieldError) -> FieldError:
        from meshwright.service.cli.tips import option_of  # noqa: PLC0415 - only for an error

        name = option_of(error.pointer)[0].removeprefix("--").replace("-", "_")
        one = self.used.get(name)
        if one is None:
            return error
        ended = "" if error.message.endswith("?") else "."
        words = f"{error.message.rstrip('.')}{ended} It is your default, from {one.source}"
        return replace(error, message=words)


def say_defaults(defaults: Defaults) -> None:
    """Print on stderr which defaults an answer is given with."""
    if words := defaults.note():
        sys.stderr.write(f"note: {words}\n")


def _is_stated(path: str, stated: Mapping[str, object]) -> bool:
    part: object = stated
    for name in path.split("."):
        if not isinstance(part, Mapping) or name not in part:
            return False
        part = part[name]
    return True


# --------------------------------------------------------------------------------------------------
# Where they are kept.


def _of_environment() -> Iterator[Default]:
    for name in REMEMBERED:
        text = os.environ.get(variable(name), "").strip()
        if text:
            yield Default(name=name, value=_value(name, text, variable(name)), source=variable(name))


def _of_file(path: Path) -> Iterator[Default]:
    values = read_file(path)
    source = shown_file()
    with faults_as(lambda one: _wrong(source, f"schema_version {one.message}").errors[0]):
        values = dict(without_version(values))
    for key, value in values.items():
        name = key.replace("-", "_")
        if name not in REMEMBERED:
            near = next(iter(get_close_matches(name, REMEMBERED, n=1)), None)
            known = None if near else ", ".join(REMEMBERED)
            raise _wrong(source, f'unknown key "{shown(key)}"', allowed=known, nearest=near)
        yield Default(name=name, value=_value(name, value, source), source=source)


def read_file(path: Path) -> dict[str, Any]:
    """Return what a configuration file holds; nothing if there is none.

    Raises:
        InvalidProblemError: it cannot be read, or is not TOML; names it.
    """
    import tomllib  # noqa: PLC0415 - most commands have no such file

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as fault:
        raise _wrong(shown_file(), fault.strerror or "cannot be read") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as fault:
        raise _wrong(shown_file(), f"is not TOML: {fault}") from None


def _value(name: str, value: object, source: str) -> Any:  # noqa: ANN401 - of the option's kind
    """Return a value as the option's words become it.

    Raises:
        InvalidProblemError: it is of another kind; names the source.
    """
    if name == PROFILE:
        paths = value if isinstance(value, list) else [value]
        if all(isinstance(one, str) for one in paths):
            return paths
        raise _wrong(source, "profile is not a path, or a list of paths")
    row = OPTIONS[name].option
    kind: Callable[[str], Any] = str if row is None else row.kind
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        message = f"{name} is not one value"
        raise _wrong(source, message, allowed='a word ("2,4") or a number')
    text = str(value)
    try:
        return kind(written_out(name, text, whole=kind is int) if kind in (int, float) else text)
    except ValueError:
        words = "an integer" if kind is int else "a number"
        raise _wrong(source, f'{name}: "{shown(text)}" is not {words}') from None

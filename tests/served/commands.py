"""``meshwright COMMAND`` in the process of the test, with stand-ins for what is outside of it.

A command runs in a folder of its own that has the same input files, so that what it prints, writes and asks
of others can be held against another start of it. Stand-ins record what they are asked: a service (HTTP), a
server that would start, the launchers and runs of ``tune`` and ``verify``, PyTorch, a browser.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, field, is_dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.exceptions import TyperException
from typer.main import get_command

from meshwright.profiles.errors import InternalError, PlannerError
from meshwright.profiles.profile import Profile
from meshwright.service.capture import Captured
from meshwright.service.cli.main import app
from meshwright.service.cli.terminal import report, report_usage
from meshwright.service.tuning.runs import RunOptions, RunResult
from meshwright.service.verify.verify import Verification
from meshwright.solver.answer import Plan, Why
from meshwright.solver.configuration import Configuration
from meshwright.solver.planner.plan import ask
from meshwright.solver.problem import Problem
from meshwright_client import choosing, launching, nodes
from meshwright_client.records import Configuration as PlannedSizes

BAD_INPUT = 2
STATE = "state"  # where commands keep answers
_ECHOES = ("problem", "plan_id", "elapsed_s", "versions", "seed")
_PLAN_ID = re.compile(r"\b[0-9a-f]{12}\b")
_TOKEN = re.compile(r"\bmw_[\w-]+")
_TOOK = re.compile(r"\b(in|after) [\d.]+ m?s\b")


@cache
def commands() -> Any:  # noqa: ANN401 - Typer keeps the type of commands to itself
    """Return every command; they are built once for all tests."""
    return get_command(app)


def leaves(group: Any = None, path: str = "") -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - the same
    """Yield every command that runs, by its words: ``jobs list``."""
    for name, one in (group or commands()).commands.items():
        if hasattr(one, "commands"):
            yield from leaves(one, f"{path}{name} ")
        else:
            yield f"{path}{name}", one


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one start of a command came to."""

    code: int
    errors: str
    printed: Any
    files: Mapping[str, Any]
    asked: Sequence[Any]  # of the stand-ins

    @property
    def answer(self) -> tuple[Any, ...]:
        """What a user has of it: its exit code, what it prints, writes and starts."""
        return self.code, self.printed, self.files, self.asked


@dataclass(slots=True)
class Outside:
    """The stand-ins, and what they were asked."""

    replies: Mapping[str, Any] = field(default_factory=dict)  # of the service, by path
    asked: list[Any] = field(default_factory=list)

    def record(self, name: str, *given: object) -> None:
        """Keep one request as plain values."""
        self.asked.append((name, *map(_plain, given)))

    def stand_in(self, patch: pytest.MonkeyPatch) -> None:
        """Take the places of all of them."""
        patch.setattr(httpx, "Client", partial(httpx.Client, transport=httpx.MockTransport(self._reply)))
        for target, name in (
            ("os.execv", "process"),
            ("webbrowser.open", "browser"),
            ("meshwright.service.cli.serve.serve", "server"),
            ("meshwright.service.cli.profile.measure", "measurements"),
            ("meshwright.service.cli.verify.make", "environment"),
        ):
            patch.setattr(target, partial(self._nothing, name))
        patch.setattr("meshwright.service.cli.profile.open_device", self._device)
        patch.setattr("meshwright.service.cli.tune.run_plan", self._run)
        patch.setattr("meshwright.service.cli.verify.verify", self._verified)
        patch.setattr("meshwright.service.capture.capture", self._captured)
        patch.setattr("meshwright.service.cli.demo.running_service", self._service)
        patch.setattr(choosing, "choose", self._chosen)
        patch.setattr(launching, "start", self._started)
        patch.setattr(nodes, "detect", self._nodes)

    def _nothing(self, name: str, *given: object, **more: object) -> None:
        kept = {option: value for option, value in more.items() if not callable(value)}
        self.record(name, given, kept)

    def _reply(self, request: httpx.Request) -> httpx.Response:
        headers = {name: request.headers[name] for name in ("idempotency-key",) if name in request.headers}
        self.record("service", request.method, str(request.url), request.content.decode(), headers)
        found = self.replies[max((one for one in self.replies if request.url.path.endswith(one)), key=len)]
        if isinstance(found, str):
            return httpx.Response(200, text=found)
        return httpx.Response(200, json=found)

    def _device(self, kind: str, *, dtype: str, index: int = 0) -> str:
        self.record("device", kind, dtype, index)
        return kind

    def _run(
        self, plan_id: str, config: Configuration, _: Path, start: RunOptions, **__: object
    ) -> RunResult:
        self.record("run", config, start)
        return RunResult(
            plan_id=plan_id, outcome="measured", seconds=6.0, gpu_minutes=0.1, noise=0.01,
            step_time_s=0.1 + 0.001 * config.micro_batch_size,
        )  # fmt: skip

    def _verified(self, plan: Plan, _: object, launcher: str | None, **limits: object) -> Verification:
        self.record("verification", plan.rank, launcher, limits)
        return Verification(
            plan_id=plan.plan_id, launcher=launcher or "megatron-lm", version="1", verdict="verified",
            reasons=(), ranks=(), quantities=(), peak_memory_bytes=None,
        )  # fmt: skip

    def _captured(self, command: Sequence[str], *, max_seconds: float) -> Captured:
        self.record("capture", command, max_seconds)
        document: dict[str, object] = {"calls": [list(command)]}
        return Captured(document=document, exit_code=0, stopped=None, last_command=None, output="")

    @contextmanager
    def _service(self, out: Path) -> Iterator[tuple[str, Path]]:
        yield "http://service", out / "service.log"

    def _chosen(self, problem: object, **given: object) -> choosing.Choice:
        self.record("choice", problem, given)
        return choosing.Choice(
            plan_id="0" * 12, job_id="0" * 32, launcher="megatron-lm", config=PlannedSizes(),
            step_time_s=1.0, step_time_low_s=0.9, step_time_high_s=1.1, peak_memory_bytes=1, profile="",
            files={}, warnings=(), question="", run_id="", source="service",
        )  # fmt: skip

    def _started(self, command: Sequence[str], _: object, *, report: bool, **__: object) -> int:
        self.record("start", command, report)
        return 0

    def _nodes(self, source: str | None) -> nodes.Nodes:
        self.record("nodes", source)
        return nodes.Nodes(source=source or "", run_id="1", rank=0, num_nodes=1)


@contextmanager
def without_reasons() -> Iterator[None]:
    """Leave out why a plan is the best one and what else helps: most of the time of a small question."""
    nothing = Why(waterfall_s={}, losses=(), limits=())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("meshwright.solver.planner.plan.with_reasons", lambda _, __, plans, ___: tuple(plans))
        without_levers(patch)
        patch.setattr("meshwright.solver.planner.launchers.reference_of", lambda *_: None)
        patch.setattr(
            "meshwright.service.library.reasons_of", lambda _, __, configs, ___: [nothing] * len(configs)
        )
        yield


def remembering(work: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that does the same work once for the same question."""
    known: dict[tuple[str, ...], Any] = {}

    def done(*given: object, **more: object) -> Any:  # noqa: ANN401 - whatever the work comes to
        named = (f"{name}={_named(one)}" for name, one in sorted(more.items()))
        key = (*map(_named, given), *named)
        if key not in known:
            known[key] = work(*given, **more)
        return known[key]

    return done


_ANSWER = remembering(ask)


def known_answer(
    problem: Problem, profile: Profile, *, known: Sequence[Configuration] = (), **_watching: object
) -> Any:  # noqa: ANN401 - an answer
    """Answer a question once in this process, whichever command asks it."""
    return _ANSWER(problem, profile, known=known)


def without_levers(patch: pytest.MonkeyPatch) -> None:
    """Search no changes that would train faster: they take longer than the plans of a small question."""
    patch.setattr("meshwright.solver.planner.launchers.levers_of", lambda *_, **__: ())


def answer_once(patch: pytest.MonkeyPatch) -> None:
    """Let commands and workers answer the same question once, and search no levers."""
    for asker in (
        "solver.planner.launchers",
        "solver.fleet.durations",
        "service.cli.explain",
        "workers.fleet",
    ):
        patch.setattr(f"meshwright.{asker}.ask", known_answer)
    without_levers(patch)


def _named(value: object) -> str:
    """A profile by its version, a function by its name, anything else by what it holds."""
    if isinstance(value, Profile):
        return value.version
    return getattr(value, "__qualname__", repr(value))


@dataclass(slots=True)
class Place:
    """Folders with the same input files, each for one start of a command."""

    inputs: Path
    runs: Path
    outside: Outside
    patch: pytest.MonkeyPatch
    started: int = 0

    def run(self, *words: str, explained: bool = True) -> Outcome:
        """Run ``meshwright WORDS`` in a folder of its own; not ``explained``: without reasons."""
        self.started += 1
        folder = self.runs / str(self.started)
        _laid_out(self.inputs, folder)
        before = _files(folder)
        self.patch.chdir(folder)
        self.patch.setenv("XDG_STATE_HOME", str(folder / STATE))
        self.outside.asked = []
        with nullcontext() if explained else without_reasons():
            code, out, err = _run(words)
        plain = partial(_without_echoes, folder)
        return Outcome(
            code=code,
            errors=err,
            printed=plain(out),
            files={
                str(path.relative_to(folder)): plain(_content(path))
                for path, state in _files(folder).items()
                if before.get(path) != state
            },
            asked=json.loads(json.dumps(self.outside.asked).replace(str(folder), ".")),
        )


def _run(words: Sequence[str]) -> tuple[int, str, str]:
    """Run a command as the console script does: its exit code and both streams."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = commands().main([*words], prog_name="meshwright", standalone_mode=False)
        except SystemExit as ended:
            code = ended.code
        except InternalError:
            raise
        except PlannerError as fault:
            code = report(fault, commands(), words)
        except TyperException as fault:
            code = report_usage(fault, commands(), words)
    return int(code or 0), out.getvalue(), err.getvalue()


def _laid_out(inputs: Path, folder: Path) -> None:
    """Give a folder the input files: links, which a command that writes replaces, and copied records."""
    folder.mkdir()
    for path in inputs.iterdir():
        if path.suffix == ".db":
            shutil.copyfile(path, folder / path.name)
        elif path.is_dir():
            _laid_out(path, folder / path.name)
        else:
            (folder / path.name).symlink_to(path)


def _files(folder: Path) -> dict[Path, tuple[int, ...]]:
    """Return the files of a folder with what changes where they are written, but for what commands keep."""
    found = dict[Path, tuple[int, ...]]()
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            found |= {} if path.name == STATE else _files(path)
        else:
            state = path.lstat()
            found[path] = (state.st_ino, state.st_mtime_ns, state.st_size)
    return found


def _content(path: Path) -> object:
    """Return the records of a database, or the text of any other file."""
    return _rows(path) if path.suffix == ".db" else path.read_text(encoding="utf-8", errors="replace")


def _rows(path: Path) -> list[dict[str, Any]]:
    """Return the keys in the records of a service without what is drawn at random."""
    with closing(sqlite3.connect(path)) as opened:
        opened.row_factory = sqlite3.Row
        if not opened.execute("SELECT 1 FROM sqlite_master WHERE name = 'api_keys'").fetchone():
            return []
        return [*map(_lasting, opened.execute("SELECT * FROM api_keys ORDER BY tenant"))]


def _lasting(row: sqlite3.Row) -> dict[str, Any]:
    """Return a key without its id and secret, with whether it ends, but not when."""
    given = {name: row[name] for name in row.keys()}  # noqa: SIM118
    fixed = {n: given[n] for n in ("tenant", "scope", "title", "max_cpu_s_per_day") if n in given}
    ends = {name: value is None for name, value in given.items() if name.endswith("_at_s")}
    return fixed | ends


def _plain(value: object) -> object:
    """A record, or anything with a text, as values that can be compared."""
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _without_echoes(folder: Path, value: object) -> object:
    """A document without what repeats the question, or differs between two starts that are alike."""
    if isinstance(value, str):
        try:
            document = json.loads(value)
        except ValueError:
            document = None
        if isinstance(document, dict | list):
            return ["JSON", _without_echoes(folder, document)]
        text = _TOOK.sub(r"\1 TIME", _PLAN_ID.sub("ID", value.replace(str(folder), ".")))
        return _TOKEN.sub("KEY", text)
    if isinstance(value, Mapping):
        return {name: _without_echoes(folder, one) for name, one in value.items() if name not in _ECHOES}
    if isinstance(value, list | tuple):
        return [_without_echoes(folder, one) for one in value]
    return value

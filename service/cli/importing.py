"""Turns a foreign file into one of ours, and says what was read, what was not, and how to use it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from profiles.cluster import GpuSpec
from profiles.documents import shown, shown_path
from profiles.errors import InvalidProblemError, ProfileError, UnknownNameError
from profiles.importers.foreign_file import ForeignFile
from profiles.importers.huggingface import looks_like_config
from profiles.importers.layer_times import Taken, measured_from_layers
from profiles.importers.product_times import measured_from_products
from profiles.importers.registry import FORMATS, detect_format, format_names, import_profile
from profiles.importers.sailor import CATALOG_NAMES
from profiles.importers.simumax import SystemTimings
from profiles.inline import model_from_mapping
from profiles.library import find_gpu, gpu_names, model_names
from profiles.measured_profile import MeasuredProfile, Session
from profiles.measured_profile_reading import DTYPES
from profiles.measurements import LayerProfile, MeasuredRun
from profiles.model import ModelSpec
from profiles.shape import model_to_mapping
from service.cli.assignments import settings_of
from service.cli.exits import FOUND, say_warnings
from service.cli.imported_clusters import cluster_text
from service.cli.kept import KeptPlan, find_plan, plan_of_file
from service.cli.problem_options import model_part
from service.files import ANSWER_FILE, write_text
from service.imported_runs import NEEDED, OF_A_PLAN, RunFacts, plan_row, run_row, table_with
from service.versions import version_of

HUGGING_FACE = "huggingface"
# Sailor and Metis time a layer on all its tensor-parallel ranks at once, Galvatron on one GPU.
_WITH_COLLECTIVES = {"sailor": True, "metis": True, "galvatron": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRequest:
    """The options as they were typed."""

    file: Path
    format_name: str | None = None
    out: Path | None = None
    into: Path | None = None
    model: str | None = None
    gpu: str | None = None
    num_nodes: int | None = None
    group: int = 0
    seq_length: int | None = None
    dtype: str = "bf16"
    cluster: str | None = None
    assign: tuple[str, ...] = ()
    plan: str | None = None  # its id, or the file or folder of a saved answer
    rank: int = 1  # which plan of that answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What became of the file."""

    text: str
    read: str  # what was read, in words
    notes: tuple[str, ...]  # what was ignored or assumed
    usage: str  # how to use it


def run_import(request: ImportRequest) -> int:
    """Import, write (or print) the outcome, and say on stderr what was made of it; the exit code.

    Raises:
        InvalidProblemError: an option is missing or wrong, or the file says nothing that can be used.
        ProfileError: the file is broken.
    """
    if request.out is not None and request.into is not None:
        raise InvalidProblemError.of("--into", "give --out or --into, not both")
    imported = _imported(request)
    target = request.into or request.out
    sys.stderr.write(f"read {shown_path(request.file)}: {imported.read}\n")
    say_warnings(imported.notes)
    if target is None:
        sys.stdout.write(imported.text)
        return FOUND
    try:
        write_text(target, imported.text)
    except OSError as fault:
        reason = fault.strerror or "cannot be written"
        raise InvalidProblemError.of("--out", f"{shown_path(target)}: {reason}") from None
    sys.stderr.write(f"wrote {target}; use it with: {imported.usage.format(target)}\n")
    return FOUND


def _imported(request: ImportRequest) -> Imported:
    """The outcome by the kind of file."""
    name = _format(request)
    if request.plan is not None:
        return _run_of_plan(request, name)
    if name == HUGGING_FACE:
        return _model(request)
    found = import_profile(request.file, name)
    title = FORMATS[name].title
    if isinstance(found, LayerProfile):
        return _layers(request, name, found)
    if isinstance(found, SystemTimings):
        profile, notes = measured_from_products(found, _taken(request, with_collectives=False))
        return _measured(profile, f"{title}, {len(profile.measurements)} matrix products", notes)
    if isinstance(found, MeasuredRun):
        return _run(request, title, found)
    gpu = find_gpu(request.gpu, pointer="--gpu") if request.gpu else None
    text, read, notes = cluster_text(
        found,
        gpu=gpu,
        into=request.into,
        group=request.group,
        num_nodes=request.num_nodes,
        name=request.cluster,
        source=f"{title}, {request.file.name}",
    )
    return Imported(text=text, read=f"{title}, {read}", notes=notes, usage="meshwright plan --cluster {}")


def _format(request: ImportRequest) -> str:
    """The file's format, as given or as its content tells."""
    known = (*format_names(), HUGGING_FACE)
    if request.format_name is not None:
        if request.format_name not in known:
            raise UnknownNameError.among("--format", request.format_name, known)
        return request.format_name
    file = ForeignFile.open(request.file)
    if file.text.lstrip().startswith("{"):
        try:
            if looks_like_config(file.json()):
                return HUGGING_FACE
        except ProfileError:
            pass  # detect_format names the fault of the file
    return detect_format(request.file)


def _model(request: ImportRequest) -> Imported:
    """A Hugging Face config as a model of ours."""
    model = model_from_mapping(model_part(str(request.file)))
    billions = model.num_parameters() / 1e9
    read = f"Hugging Face config, {model.num_layers} layers, {billions:.1f} billion parameters"
    text = json.dumps(model_to_mapping(model), indent=1) + "\n"
    return Imported(text=text, read=read, notes=(), usage="meshwright plan --model {}")


def _layers(request: ImportRequest, name: str, found: LayerProfile) -> Imported:
    """Layer times as a measured profile."""
    gpu = request.gpu or _hint(found.gpu)
    model = request.model or _hint(found.model)
    taken = _taken(
        ImportRequest(
            file=request.file, gpu=gpu, model=model, seq_length=request.seq_length, dtype=request.dtype
        ),
        with_collectives=_WITH_COLLECTIVES.get(name, False),
    )
    profile, notes = measured_from_layers(found, taken)
    times = len({one.task for one in profile.measurements})
    read = f"{FORMATS[name].title}, {times} timed parts of {taken.model.name} on {taken.gpu.slug}"
    return _measured(profile, read, notes)


def _hint(word: str | None) -> str | None:
    """A name that a source gives, where the catalog knows it."""
    name = CATALOG_NAMES.get(word, word.lower()) if word else None
    return name if name in (*gpu_names(), *model_names()) else None


def _measured(profile: MeasuredProfile, read: str, notes: tuple[str, ...]) -> Imported:
    """A measured profile as its file."""
    text = json.dumps(profile.to_json(), indent=1, allow_nan=False) + "\n"
    return Imported(text=text, read=read, notes=notes, usage="meshwright plan --profile {}")


def _taken(request: ImportRequest, *, with_collectives: bool) -> Taken:
    """What a foreign profile leaves to the options."""
    model, gpu = _model_of(request), _gpu_of(request)
    if request.dtype not in DTYPES:
        raise UnknownNameError.among("--dtype", request.dtype, DTYPES)
    if not request.seq_length or request.seq_length < 1:
        message = "is required: the file does not say how long its sequences were"
        raise InvalidProblemError.of("--seq-length", message, allowed="1 or more tokens")
    session = Session(
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        command=f"meshwright import {request.file.name}"[:200],
        meshwright=version_of("meshwright"),
    )
    return Taken(
        model=model,
        gpu=gpu,
        seq_length=request.seq_length,
        dtype=request.dtype,
        with_collectives=with_collectives,
        session=session,
    )


def _model_of(request: ImportRequest) -> ModelSpec:
    """The model that was measured."""
    if request.model is None:
        raise InvalidProblemError.of("--model", "is required: the file does not say what was measured")
    try:
        return model_from_mapping(model_part(request.model))
    except UnknownNameError as fault:
        near = fault.errors[0]
        raise InvalidProblemError.of(
            "--model", near.message, allowed=near.allowed, nearest=near.nearest
        ) from None


def _gpu_of(request: ImportRequest) -> GpuSpec:
    """The GPU type that was measured."""
    if request.gpu is None:
        raise InvalidProblemError.of("--gpu", "is required: the file does not say what it was measured on")
    return find_gpu(request.gpu, pointer="--gpu")


def _run_of_plan(request: ImportRequest, name: str) -> Imported:
    """A log of a plan's run as a row of a table of runs, with the plan's facts.

    Raises:
        InvalidProblemError: the file is no training log, an option says again what the plan says, or the
            log contradicts the plan.
    """
    _refuse_facts(request)
    run = None if name == HUGGING_FACE else import_profile(request.file, name)
    if not isinstance(run, MeasuredRun):
        raise InvalidProblemError.of("--plan", "goes with a training log; the file is none")
    kept = _plan_of(request.plan or "", request.rank)
    settings = settings_of("--set", request.assign)
    wrong = sorted(settings.keys() - set(OF_A_PLAN))
    if wrong:
        raise InvalidProblemError.of("--set", f"{wrong[0]} is the plan's", allowed=", ".join(OF_A_PLAN))
    stem = request.file.stem.removeprefix(f"{kept.plan.plan_id}-")
    names: dict[str, object] = {
        "run_id": f"{kept.plan.plan_id}-{stem}"[:100], "source": FORMATS[name].title,
    }  # fmt: skip
    names |= {"cluster": request.cluster} if request.cluster else {}
    row = plan_row(run, kept.plan, kept.problem, names | settings)
    predicted_s = kept.plan.prediction.step_time_s
    ran = f"{run.step_time_s:.4g} s a step" if run.step_time_s else "it ran out of memory"
    return Imported(
        text=table_with(_existing(request), row),
        read=f"{FORMATS[name].title}, {ran}; plan {kept.plan.plan_id} was predicted {predicted_s:.4g} s",
        notes=(),
        usage="meshwright calibrate {}",
    )


def _refuse_facts(request: ImportRequest) -> None:
    """Refuse options for what a plan says.

    Raises:
        InvalidProblemError: one is given.
    """
    for option, value in (
        ("--model", request.model), ("--gpu", request.gpu), ("--num-nodes", request.num_nodes),
        ("--seq-length", request.seq_length),
    ):  # fmt: skip
        if value is not None:
            raise InvalidProblemError.of(option, "is the plan's; leave it out with --plan")


def _plan_of(word: str, rank: int) -> KeptPlan:
    """The kept plan of an id, or the plan of a rank in a saved answer.

    Raises:
        InvalidProblemError: there is no such plan.
    """
    path = Path(word)
    if path.is_dir():
        path /= ANSWER_FILE
    return plan_of_file(path, rank) if path.is_file() else find_plan(word)


def _existing(request: ImportRequest) -> str:
    """The table of runs that a row is added to; empty where there is none yet."""
    if request.into is None or not request.into.exists():
        return ""
    return ForeignFile.open(request.into).text


def _run(request: ImportRequest, title: str, run: MeasuredRun) -> Imported:
    """A training log as a row of a table of runs."""
    settings: Mapping[str, object] = settings_of("--set", request.assign)
    facts = RunFacts(
        run_id=request.file.stem[:100],
        cluster=request.cluster or "imported",
        source=title,
        model=_model_of(request),
        gpu=_gpu_of(request),
        settings=settings,
    )
    row = run_row(run, facts)
    time = f"{run.step_time_s:.4g} s a step" if run.step_time_s else "it ran out of memory"
    empty = [name for name in NEEDED if not row[name]]
    notes = tuple(f"{shown(name)} is not in the log: give --set {name}=…" for name in empty)
    usage = "meshwright calibrate {}"
    return Imported(
        text=table_with(_existing(request), row), read=f"{title}, {time}", notes=notes, usage=usage
    )

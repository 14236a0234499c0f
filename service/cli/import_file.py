"""``meshwright import``: its options; the work is done in ``meshwright.service.cli.import_file``."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
import yaml

from meshwright.profiles.cluster import GpuSpec
from meshwright.profiles.collectives.measured import measured_from
from meshwright.profiles.documents import read_config, shown, shown_path, with_version
from meshwright.profiles.errors import InvalidProblemError, UnknownNameError
from meshwright.profiles.gpus import NAME, gpu_from_mapping, gpu_to_mapping, link_from
from meshwright.profiles.importers.foreign_file import ForeignFile
from meshwright.profiles.importers.huggingface import looks_like_config
from meshwright.profiles.importers.node_groups import (
    GroupFields,
    fields_of_collectives,
    fields_of_switches,
    fields_of_topology,
)
from meshwright.profiles.importers.registry import FORMATS, detect_format, format_names, import_profile
from meshwright.profiles.inline import cluster_from_mapping, model_from_mapping
from meshwright.profiles.library import find_gpu
from meshwright.profiles.measurements import (
    CollectiveTables,
    MeasuredRun,
    NodeTopology,
    SwitchTree,
)
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.model_shapes import Json, model_to_mapping
from meshwright.profiles.profile import borrowed_words
from meshwright.profiles.reading import FieldReader
from meshwright.profiles.units import GB, GIB, TERA
from meshwright.service.cli.problem_options import model_part
from meshwright.service.cli.saved_plans import plan_named
from meshwright.service.cli.terminal import FOUND, say_warnings, write_file
from meshwright.service.report.formatting import seconds
from meshwright.service.report.measured import off_by
from meshwright.service.requests.assignments import values_of
from meshwright.service.requests.documents import read_problem_file
from meshwright.service.requests.measured_runs import (
    NEEDED,
    OF_A_PLAN,
    PLAN,
    plan_row,
    run_row,
    shape_of_plan,
    table_with,
)
from meshwright.solver.calibration.calibrate import calibrate, default_profile_of
from meshwright.solver.calibration.observations import Observation
from meshwright.solver.predict import predict
from meshwright.solver.runs.table import read_runs


def import_file(
    file: Annotated[
        list[str],
        typer.Argument(metavar="[FORMAT] FILE", help="File to import, optionally preceded by its format."),
    ],
    *,
    format_name: Annotated[
        str | None,
        typer.Option("--format", help="Format of the file [default: detected]"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File to write [default: stdout].")] = None,
    into: Annotated[Path | None, typer.Option(help="Cluster file or table of runs to add it to.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Model that was measured: catalog name or config.json.")
    ] = None,
    gpu: Annotated[str | None, typer.Option(help="GPU type that it was measured on.")] = None,
    num_nodes: Annotated[int | None, typer.Option(help="Nodes of a new cluster file.")] = None,
    group: Annotated[int, typer.Option(min=0, help="Number of the node group in the cluster file.")] = 0,
    cluster: Annotated[str | None, typer.Option(help="Name of the new cluster.")] = None,
    assign: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Value that is missing from the training log."),
    ] = None,
    plan: Annotated[
        str | None,
        typer.Option(metavar="ID|FILE", help="Plan that the training log ran. Its values fill the row."),
    ] = None,
    rank: Annotated[int, typer.Option(min=1, help="Rank of the plan in that file.")] = 1,
) -> None:
    """Convert a file of another tool to a cluster file, a model or a row of runs.

    nccl-tests log, nvidia-smi topo -m, NCCL topology XML, Slurm topology.conf, the figures of a GPU
    (peak_tflops, memory_gib, hbm_gb_per_s): a cluster file, for --cluster; a log of nccl-tests with runs of
    every pair of nodes becomes a matrix of links. Hugging Face config.json: a model file, for --model.
    Training logs, and runs that W&B or MLflow tracked: a row of runs, for calibrate; with --plan every fact
    of the run is the plan's, and a log that contradicts it is refused.
    """
    *formats, path = file
    if len(formats) > 1 or (formats and format_name is not None):
        raise InvalidProblemError.of(
            "FILE", f"{shown(file[0])} and more", allowed="one format and one file"
        )
    request = ImportRequest(
        file=Path(path),
        format_name=formats[0] if formats else format_name,
        out=out,
        into=into,
        model=model,
        gpu=gpu,
        num_nodes=num_nodes,
        group=group,
        cluster=cluster,
        assign=tuple(assign or ()),
        plan=plan,
        rank=rank,
    )
    raise typer.Exit(run_import(request))


# --------------------------------------------------------------------------------------------------
# Cluster files: what a topology or a log of collectives says, put into a node group.


def cluster_text(
    found: object,
    *,
    gpu: GpuSpec | None,
    into: Path | None,
    group: int,
    num_nodes: int | None,
    name: str | None,
    source: str,
) -> tuple[str, str, tuple[str, ...]]:
    """The text of a cluster file with what a foreign file says, what that is, and notes.

    Raises:
        InvalidProblemError: the file says nothing of a cluster, the GPU or the group is missing, or the
            cluster would be impossible.
    """
    document = dict(read_problem_file(into)) if into is not None and into.exists() else {}
    groups = _groups(document, gpu, group)
    mine = groups[group]
    stated, at = mine.get("gpu"), f"/groups/{group}/gpu"
    usual = gpu_from_mapping(stated, at) if isinstance(stated, dict) else find_gpu(str(stated), pointer=at)
    said = _said(found, usual, FieldReader(mine, f"/groups/{group}"), source)
    mine.update(said.fields)
    if num_nodes is not None:
        mine["num_nodes"] = num_nodes
    mine.setdefault("num_nodes", 1)
    document = {"name": name or document.get("name") or "imported", **document, "groups": groups}
    cluster = cluster_from_mapping(document)
    written = yaml.safe_dump(with_version(document), sort_keys=False, allow_unicode=True)
    read = ", ".join(f"{key} = {_words(value)}" for key, value in said.fields.items())
    assumed = tuple(warning for warning in cluster.warnings if "not given" in warning)
    return written, read, (*said.notes, *assumed)


def _groups(document: Mapping[str, object], gpu: GpuSpec | None, group: int) -> list[dict[str, Json]]:
    raw = document.get("groups")
    groups = [dict(one) for one in raw if isinstance(one, dict)] if isinstance(raw, list) else []
    if group > len(groups):
        raise InvalidProblemError.of("--group", f"the file has {len(groups)} node groups")
    if group == len(groups):
        if gpu is None:
            raise InvalidProblemError.of("--gpu", "is required: the file does not name the GPU type")
        groups.append({"gpu": gpu.slug})
    elif gpu is not None:
        groups[group]["gpu"] = gpu.slug
    return groups


def _said(found: object, gpu: GpuSpec, before: FieldReader, source: str) -> GroupFields:
    if isinstance(found, NodeTopology):
        return fields_of_topology(found, gpu, source)
    if isinstance(found, SwitchTree):
        return fields_of_switches(found)
    if isinstance(found, CollectiveTables):
        return fields_of_collectives(
            found,
            measured_from(before.child("measured")),
            source,
            network=link_from(before.child("inter_node")) or gpu.inter_node,
        )
    raise InvalidProblemError.of("/file", f"{source}: states no cluster, model or run")


def _words(value: Json) -> str:
    if not isinstance(value, dict):
        return str(value)
    if isinstance(hosts := value.get("hosts"), list):
        return f"a matrix of {len(hosts)} hosts"
    rate = value.get("bytes_per_s")
    return f"{value.get('kind')} {rate / 1e9:g} GB/s" if isinstance(rate, int | float) else "measured"


# --------------------------------------------------------------------------------------------------
# Turns a foreign file into one of ours, and says what was read, what was not, and how to use it.


HUGGING_FACE = "huggingface"
GPU = "gpu"


# A data sheet's figures state a peak by precision, which no other file does.
_GPU_FIELD = re.compile(r"^\s*[\"']?peak_(?:tflops|flops)[\"']?\s*:", re.MULTILINE)


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
    cluster: str | None = None
    assign: tuple[str, ...] = ()
    plan: str | None = None  # its id, or the file or folder of a saved answer
    rank: int = 1  # which plan of that answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """The outcome of an import."""

    text: str
    read: str  # what was read, in words
    notes: tuple[str, ...]  # what was ignored or assumed
    usage: str  # how to use it
    run: Observation | None = None  # a timed run of a plan, in the cluster of its row
    cluster: str = ""
    predicted_s: float = 0.0  # of that plan, when it was found


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
    else:
        write_file(target, imported.text, "--out")
    _say_outcome(imported, target)
    if target is not None:
        sys.stderr.write(f"wrote {target}. Use it with: {imported.usage.format(target)}\n")
    return FOUND


def _imported(request: ImportRequest) -> Imported:
    name = _format(request)
    if request.plan is not None:
        return _run_of_plan(request, name)
    if name == HUGGING_FACE:
        return _model(request)
    if name == GPU:
        return _gpu(request)
    found = import_profile(request.file, name)
    title = FORMATS[name].title
    if isinstance(found, MeasuredRun):
        return _run(request, title, found)
    text, read, notes = cluster_text(
        found,
        gpu=find_gpu(request.gpu, pointer="--gpu") if request.gpu else None,
        into=request.into,
        group=request.group,
        num_nodes=request.num_nodes,
        name=request.cluster,
        source=f"{title}, {request.file.name}",
    )
    return Imported(text=text, read=f"{title}, {read}", notes=notes, usage="meshwright plan --cluster {}")


def _format(request: ImportRequest) -> str:
    known = (*format_names(), GPU, HUGGING_FACE)
    if request.format_name is not None:
        if request.format_name not in known:
            raise UnknownNameError.among("--format", request.format_name, known)
        return request.format_name
    if request.file.is_dir():
        return detect_format(request.file)
    file = ForeignFile.open(request.file)
    if file.text.lstrip().startswith("{"):
        try:
            if looks_like_config(read_config(file.text)):
                return HUGGING_FACE
        except InvalidProblemError:
            pass  # detect_format names the fault of the file
    return GPU if _GPU_FIELD.search(file.text) else detect_format(request.file)


def _gpu(request: ImportRequest) -> Imported:
    name, notes = request.file.stem, list[str]()
    named = {"name": name} if NAME.fullmatch(name) else {}
    gpu = gpu_from_mapping({**named, **read_problem_file(request.file)}, "/gpu", notes)
    nodes = 1 if request.num_nodes is None else request.num_nodes
    group: dict[str, Json] = {"gpu": gpu_to_mapping(gpu), "num_nodes": nodes}
    document: dict[str, Json] = {"name": request.cluster or gpu.slug, "groups": [group]}
    cluster_from_mapping(document)
    if gpu.nearest:
        notes.append(borrowed_words(gpu))
    peak = f"{gpu.peak_bf16_flops / TERA:g} TFLOP/s in 16 bits"
    memory = f"{gpu.memory_bytes / GIB:g} GiB at {gpu.hbm_bytes_per_s / GB:g} GB/s"
    return Imported(
        text=yaml.safe_dump(with_version(document), sort_keys=False, allow_unicode=True),
        read=f"GPU {gpu.display_name}, {peak}, {memory}",
        notes=tuple(notes),
        usage="meshwright plan --cluster {}",
    )


def _model(request: ImportRequest) -> Imported:
    model = model_from_mapping(model_part(str(request.file)))
    billions = model.num_parameters() / 1e9
    return Imported(
        text=json.dumps(model_to_mapping(model), indent=1) + "\n",
        read=f"Hugging Face config, {model.num_layers} layers, {billions:.1f} billion parameters",
        notes=(),
        usage="meshwright plan --model {}",
    )


def _model_of(request: ImportRequest) -> ModelSpec:
    if request.model is None:
        raise InvalidProblemError.of("--model", "is required: the file does not state what was measured")
    try:
        return model_from_mapping(model_part(request.model))
    except UnknownNameError as fault:
        raise InvalidProblemError(replace(one, pointer="--model") for one in fault.errors) from None


def _run_of_plan(request: ImportRequest, name: str) -> Imported:
    facts = {"--model": request.model, "--gpu": request.gpu, "--num-nodes": request.num_nodes}
    for option in (option for option, value in facts.items() if value is not None):
        raise InvalidProblemError.of(option, "comes from the plan: leave it out with --plan")
    run = None if name == HUGGING_FACE else import_profile(request.file, name)
    if not isinstance(run, MeasuredRun):
        raise InvalidProblemError.of("--plan", "goes with a training log or a tracked run")
    kept = plan_named(request.plan or "", request.rank)
    settings = values_of("--set", request.assign)
    wrong = sorted(settings.keys() - set(OF_A_PLAN))
    if wrong:
        raise InvalidProblemError.of("--set", f"{wrong[0]} is the plan's", allowed=", ".join(OF_A_PLAN))
    stem = request.file.stem.removeprefix(f"{kept.plan.plan_id}-")
    names: dict[str, object] = {
        "run_id": f"{kept.plan.plan_id}-{stem}"[:100], "source": FORMATS[name].title,
    }  # fmt: skip
    names |= {"cluster": request.cluster} if request.cluster else {}
    row = plan_row(run, kept.plan, kept.problem, names | settings)
    ran = f"{run.step_time_s:.4g} s a step" if run.step_time_s else "it ran out of memory"
    return Imported(
        text=table_with(_existing(request), row),
        read=f"{FORMATS[name].title}, {ran}",
        notes=(),
        usage="meshwright calibrate {}",
        run=replace(
            Observation.of_shape(shape_of_plan(row[PLAN])), name=row["run_id"], step_time_s=run.step_time_s
        )
        if run.step_time_s
        else None,
        cluster=row["cluster"],
        predicted_s=kept.plan.prediction.step_time_s,
    )


def _say_outcome(imported: Imported, table: Path | None) -> None:
    run = imported.run
    if run is None or run.step_time_s is None:
        return
    words = f"{shown(run.name)}: predicted {seconds(imported.predicted_s)}"
    words += f" ({off_by(imported.predicted_s, run.step_time_s)}), measured {seconds(run.step_time_s)}"
    try:
        rows = [] if table is None else [one for one in read_runs(table, shape_of_plan) if one.shape]
        seen = [Observation.of(one) for one in rows if one.cluster == imported.cluster]
        learnt = calibrate([one for one in seen if one is not None] or [run], cluster=imported.cluster)
    except InvalidProblemError as fault:
        sys.stderr.write(f"{words}; nothing to calibrate yet: {fault.errors[0].message}\n")
        return
    now_s = predict(run.problem, learnt.applied(default_profile_of(run)), run.configuration).step_time_s
    now = f"predicted now {seconds(now_s)} ({off_by(now_s, run.step_time_s)})"
    runs = "this run" if learnt.num_runs == 1 else f"{learnt.num_runs} measured runs"
    sys.stderr.write(f"{words}; {now}, calibrated on {runs}\n")


def _existing(request: ImportRequest) -> str:
    return ForeignFile.open(request.into).text if request.into is not None and request.into.exists() else ""


def _run(request: ImportRequest, title: str, run: MeasuredRun) -> Imported:
    settings: Mapping[str, object] = values_of("--set", request.assign)
    model = _model_of(request)
    if request.gpu is None:
        raise InvalidProblemError.of(
            "--gpu", "is required: the file does not state what it was measured on"
        )
    row = run_row(
        run,
        model,
        find_gpu(request.gpu, pointer="--gpu"),
        run_id=request.file.stem[:100],
        cluster=request.cluster or "imported",
        source=title,
        settings=settings,
    )
    time = f"{run.step_time_s:.4g} s a step" if run.step_time_s else "it ran out of memory"
    empty = [name for name in NEEDED if not row[name]]
    notes = [f"{shown(name)} is not in the log: give --set {name}=…" for name in empty]
    for name in _SIZES:
        logged, own = run.configuration.get(name), getattr(model, name)
        if logged not in (None, own):
            unlike = f"{name} is {logged} in the log, {own} in {model.name}"
            notes.append(f"{unlike}: using the log's value. Missing values come from that model")
    return Imported(
        text=table_with(_existing(request), row),
        read=f"{title}, {time}",
        notes=tuple(notes),
        usage="meshwright calibrate {}",
    )


_SIZES = ("num_layers", "hidden_size", "num_attention_heads")  # that tell one model from another

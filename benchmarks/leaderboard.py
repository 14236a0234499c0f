"""Public predictors of step times, scored on the same published runs: docs/leaderboard.md.

    make bench ARGS="leaderboard"                             # score the entries and print the tables
    make bench ARGS="leaderboard --write"                     # the same, and write the page
    make bench ARGS="leaderboard --ours"                      # predict again with Meshwright; minutes
    make bench ARGS="leaderboard --ask calculon=CHECKOUT"     # or llm-analysis=, simumax=

An entry is a CSV file in ``benchmarks/data/leaderboard``; ``COLUMNS`` are its columns. Predictors run in
environments of their own (``benchmarks/peers``); none of their code is here.
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.accuracy import profile_of_strangers
from benchmarks.against.process import SCRIPTS, Budget, UnavailableError, ask, environment
from benchmarks.fit.evidence import Evidence
from meshwright.solver.accuracy import validate
from meshwright.solver.runs.table import CATALOG_RUNS, Run, read_runs

ROOT = Path(__file__).parent.parent
ENTRIES = ROOT / "benchmarks" / "data" / "leaderboard"
PAGE = ROOT / "docs" / "leaderboard.md"
COLUMNS = ("run_id", "predicted_step_time_s", "predictor", "version", "commit", "settings")
OURS = "Meshwright"
LIMIT_S = 1500.0


class EntryError(Exception):
    """An entry is not as the format asks; the message names file, line and value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One predictor's step times."""

    predictor: str
    version: str
    commit: str
    settings: str
    seconds: Mapping[str, float]  # by run_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Mean and median errors in per cent of some runs; the bias is the median signed error."""

    runs: int
    clusters: int
    by_cluster: float  # every cluster with one vote
    by_run: float
    median_of_runs: float
    bias: float


def read_entry(path: Path, known: Mapping[str, float]) -> Entry:
    """Read one entry.

    Args:
        path: the CSV file.
        known: measured seconds of the runs, by run_id.

    Raises:
        EntryError: a column is missing, a run unknown or named twice, a time not positive, or the file
            names several predictors or settings.
    """
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows or set(rows[0]) != set(COLUMNS):
        raise EntryError(f"{path.name}: the columns must be {', '.join(COLUMNS)}, with one row at least")
    seconds: dict[str, float] = {}
    for line, row in enumerate(rows, start=2):
        seconds[_run_id(row, seconds, known, f"{path.name}, line {line}")] = _seconds(
            row["predicted_step_time_s"], f"{path.name}, line {line}"
        )
    for name in COLUMNS[2:]:
        values = sorted({row[name] for row in rows})
        if len(values) > 1:
            raise EntryError(f'{path.name}: {name} is "{values[0]}" and "{values[1]}"; one entry has one')
    first = rows[0]
    return Entry(**{name: first[name] for name in COLUMNS[2:]}, seconds=seconds)


def _run_id(
    row: Mapping[str, str], seen: Mapping[str, float], known: Mapping[str, float], place: str
) -> str:
    name = row["run_id"]
    if name in seen:
        raise EntryError(f'{place}: run_id "{name}" was predicted above')
    if name not in known:
        raise EntryError(f'{place}: run_id "{name}" is not a timed run of {CATALOG_RUNS.name}')
    return name


def _seconds(text: str, place: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise EntryError(f'{place}: predicted_step_time_s "{text[:20]}" must be a positive number')
    return value


def write_entry(path: Path, entry: Entry) -> None:
    """Write one entry, its runs in the order of their names."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        facts = (entry.predictor, entry.version, entry.commit, entry.settings)
        for name, seconds in sorted(entry.seconds.items()):
            writer.writerow([name, f"{seconds:.5g}", *facts])


def score(seconds: Mapping[str, float], runs: Mapping[str, Run], names: Iterable[str]) -> Score | None:
    """Score the named runs; None without any."""
    signed: dict[str, list[float]] = defaultdict(list)
    for name in names:
        measured = runs[name].measured.step_time_s
        if name in seconds and measured:
            signed[runs[name].cluster].append(100.0 * (seconds[name] / measured - 1.0))
    every = [error for mine in signed.values() for error in mine]
    if not every:
        return None
    return Score(
        runs=len(every),
        clusters=len(signed),
        by_cluster=fmean(fmean(abs(error) for error in mine) for mine in signed.values()),
        by_run=fmean(abs(error) for error in every),
        median_of_runs=median(abs(error) for error in every),
        bias=median(every),
    )


# --------------------------------------------------------------------------------------------------
# Entries that are made here.


def ours(runs: Sequence[Run]) -> Entry:
    """Meshwright's times: constants that saw no run of the same cluster, family of models or release."""
    report = validate(
        runs, profile_of=profile_of_strangers(Evidence.of_times(runs), Evidence.of_peaks(runs))
    )
    seconds = {
        row.run.run_id: row.prediction.step_time_s
        for row in report.runs
        if row.prediction is not None and row.run.measured.step_time_s
    }
    settings = (
        "left out: cluster, family of models and release together; formulas were written with runs in view"
    )
    return Entry(predictor=OURS, version="this checkout", commit="", settings=settings, seconds=seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """How another predictor is asked."""

    title: str
    requirements: tuple[str, ...]
    script: str
    settings: str


PEERS: Mapping[str, Peer] = {
    "calculon": Peer(
        title="Calculon",
        requirements=("numpy", "pandas", "psutil"),
        script="calculon_runs.py",
        settings="its a100_80g.json and h100_80g_nvl8.json with unlimited memory; grouped queries as full "
        "heads; a gated MLP as one 1.5 times as wide; gradients overlapped",
    ),
    "llm-analysis": Peer(
        title="llm-analysis",
        requirements=("llm-analysis==0.2.2",),
        script="llm_analysis_runs.py",
        settings="its GPU files; 0.5 of the peak, which the user must state; memory is not checked",
    ),
    "simumax": Peer(
        title="SimuMax",
        requirements=("numpy", "pandas", "sympy", "tabulate", "graphviz", "matplotlib", "tqdm"),
        script="simumax_runs.py",
        settings="its b200_bf16_ceperm.json, whose efficiencies were measured on the machine of the "
        "`simumax-b200` runs, which its authors published; memory is not checked; the only other file that "
        "it ships is of an A100 on PCIe, which no run has",
    ),
}
NOT_RUN: Mapping[str, str] = {
    "vTrain": "its public release replays kernels that it first traces with CUPTI on a GPU of the kind; "
    "the repository has only tables of all-reduces, and we had no GPU",
    "Galvatron's cost model": "it prices a model by a profile of its layers on the same GPU, and "
    "the runs publish no such profiles",
}


def facts_of(run: Run) -> dict[str, Any]:
    """What a predictor may know of a run: everything but what was measured."""
    if run.shape is None:
        return {}
    problem, c = run.shape.problem, run.shape.configuration
    model, workload, group = problem.model, problem.workload, problem.cluster.groups[0]
    moe = model.moe
    return {
        "gpu": group.gpu.slug, "gpus": problem.cluster.num_gpus, "gpus_per_node": group.gpus_per_node,
        "num_layers": model.num_layers, "hidden_size": model.hidden_size, "head_dim": model.head_dim,
        "ffn_hidden_size": model.ffn_hidden_size, "heads": model.num_attention_heads,
        "kv_heads": model.num_kv_heads, "vocab_size": model.vocab_size, "gated_mlp": model.gated_mlp,
        "latent_attention": asdict(model.mla) if model.mla else None,
        "prediction_layers": model.num_mtp_layers,
        "experts": moe.num_experts if moe else 0, "top_k": moe.top_k if moe else 0,
        "expert_ffn": moe.ffn_hidden_size if moe else 0,
        "shared_ffn": moe.shared_ffn_hidden_size if moe else 0,
        "dense_layers": model.layer_kinds().count("dense") if moe else model.num_layers,
        "seq_length": workload.seq_length, "batch": workload.global_batch_size,
        "precision": workload.precision, "lora_rank": workload.lora_rank,
        "tensor": c.tensor_parallel_size, "pipeline": c.pipeline_parallel_size,
        "context": c.context_parallel_size, "expert": c.expert_parallel_size,
        "expert_tensor": c.expert_tensor_parallel_size, "data": c.data_parallel_size,
        "chunks": c.virtual_pipeline_size, "micro_batch": c.micro_batch_size, "zero": c.zero_stage,
        "sequence_parallel": c.sequence_parallel, "recompute": c.recompute_granularity,
        "recompute_layers": c.recompute_layers, "even": len(set(c.stage_layers)) <= 1,
        "schedule": c.pipeline_schedule, "offload": c.offload,
    }  # fmt: skip


def asked(name: str, checkout: Path | None, runs: Sequence[Run]) -> tuple[Entry, Counter[str]]:
    """Another predictor's entry, and why it could not state the other runs.

    Raises:
        UnavailableError: it cannot be installed or run.
    """
    peer = PEERS[name]
    if checkout is None:
        raise UnavailableError(f"{peer.title}: give --ask {name}=CHECKOUT")
    timed = [run for run in runs if run.measured.step_time_s and run.shape is not None]
    python = environment(f"leaderboard-{name}", peer.requirements)
    command = [str(python), str(SCRIPTS / peer.script), str(checkout.resolve())]
    answer = ask(
        peer.title, command, {"rows": [facts_of(run) for run in timed]}, Budget(limit_s=LIMIT_S)
    ).answer
    found = list(zip(timed, answer["steps"], strict=True))
    entry = Entry(
        predictor=peer.title,
        version=answer["version"],
        commit=answer["commit"],
        settings=peer.settings,
        seconds={run.run_id: step for run, step in found if isinstance(step, float) and step > 0},
    )
    return entry, Counter(str(step) for _, step in found if not isinstance(step, float))


# --------------------------------------------------------------------------------------------------
# The page.


SUBSETS: Mapping[str, Callable[[Run], bool]] = {
    "all": lambda _: True,
    "dense": lambda run: run.shape is not None and run.shape.problem.model.moe is None,
    "experts": lambda run: run.shape is not None and run.shape.problem.model.moe is not None,
    "A100": lambda run: _gpu(run).startswith("a100"),
    "H100": lambda run: _gpu(run).startswith("h100"),
    "B200": lambda run: _gpu(run).startswith("b200"),
}


def _gpu(run: Run) -> str:
    return run.shape.problem.cluster.groups[0].gpu.slug if run.shape is not None else ""


HEAD = """# Leaderboard

Compare here how far public predictors of step times are from the same published runs
(`profiles/catalog/runs`), without a run of yours to calibrate on. Run
`make bench ARGS="leaderboard --write"` to generate this page from the entries in
`benchmarks/data/leaderboard`. An error is `predicted / measured - 1`. *By cluster* is the mean over
clusters of the mean over their runs: a cluster with 800 runs has one vote, like a cluster with two.
*Coverage* is the share of the timed runs that a predictor can state at all.

Meshwright is scored **left out**: for each run, its constants were fitted again without every run that
shares the cluster, the model family or the release. Its formulas were written with these runs in
view. Other predictors' formulas were not, except for their authors' runs. Read [how accurate it
is](accuracy.md) for runs that we predicted before we saw them. If a run's source leaves out a value, all
predictors get the same one.
"""
FORMAT = """## Add an entry

Write a CSV file in `benchmarks/data/leaderboard` with one row for each run. Leave out runs that your
predictor cannot state.

| column | meaning |
|---|---|
| `run_id` | of a timed run in `profiles/catalog/runs/measured_runs.csv` |
| `predicted_step_time_s` | seconds of one optimizer step, computed without the measured columns |
| `predictor` | its name, the same in every row |
| `version`, `commit` | which release, and which commit if it is a checkout |
| `settings` | the hardware files and options that you used, in one line |

Run `make bench ARGS=leaderboard` to score it. If you fitted constants on these runs, state them in
`settings`.
"""


def page(entries: Sequence[Entry], runs: Mapping[str, Run]) -> str:
    """Write the page."""
    mine = next(entry for entry in entries if entry.predictor == OURS)
    others = [entry for entry in entries if entry is not mine]
    parts = [HEAD, "## All that each can state", "", *_whole(entries, runs), ""]
    for other in others:
        parts += [f"## {other.predictor} and {OURS}, on the same runs", "", *_pair(other, mine, runs), ""]
    if len(others) > 1:
        parts += ["## On the runs that all can state", "", *_common(entries, runs), ""]
    parts += ["## Where a peer is nearer", "", *_nearer(others, mine, runs), ""]
    parts += ["## Settings", ""]
    parts += [f"* **{one.predictor}** {one.version} {one.commit}: {one.settings}." for one in entries]
    parts += [f"* **{name}**: not run. {why[0].upper()}{why[1:]}." for name, why in NOT_RUN.items()]
    parts += [f"* **{peer.title}**: not run here." for peer in PEERS.values()
              if peer.title not in {entry.predictor for entry in entries}]  # fmt: skip
    return "\n".join([*parts, "", FORMAT])


_TITLES = "| runs | clusters | by cluster % | by run % | median % | bias % |"
_RULE = "|---" * 6 + "|"


def _cells(found: Score | None) -> str:
    if found is None:
        return "| 0 | 0 | – | – | – | – |"
    errors = f"{found.by_cluster:.1f} | {found.by_run:.1f} | {found.median_of_runs:.1f} | {found.bias:+.1f}"
    return f"| {found.runs} | {found.clusters} | {errors} |"


def _whole(entries: Sequence[Entry], runs: Mapping[str, Run]) -> list[str]:
    lines = [f"| predictor | coverage {_TITLES}", f"|---|---{_RULE}"]
    for entry in entries:
        share = len(entry.seconds) / len(runs)
        lines.append(f"| {entry.predictor} | {share:.0%} {_cells(score(entry.seconds, runs, runs))}")
    return lines


def _pair(other: Entry, mine: Entry, runs: Mapping[str, Run]) -> list[str]:
    """Both on the runs that both state, by subset."""
    both = other.seconds.keys() & mine.seconds.keys()
    lines = [f"| subset | predictor {_TITLES}", f"|---|---{_RULE}"]
    for subset, holds in SUBSETS.items():
        names = [name for name in both if holds(runs[name])]
        if names:
            lines += [
                f"| {subset} | {one.predictor} {_cells(score(one.seconds, runs, names))}"
                for one in (other, mine)
            ]
    return lines


def _common(entries: Sequence[Entry], runs: Mapping[str, Run]) -> list[str]:
    names = set.intersection(*(set(entry.seconds) for entry in entries))
    if not names:
        return ["No run can be stated by all."]
    lines = [f"| predictor {_TITLES}", f"|---{_RULE}"]
    return [*lines, *(f"| {one.predictor} {_cells(score(one.seconds, runs, names))}" for one in entries)]


def _nearer(others: Sequence[Entry], mine: Entry, runs: Mapping[str, Run]) -> list[str]:
    """The subsets and clusters on which another predictor has the smaller mean error."""
    said = []
    for other in others:
        both = other.seconds.keys() & mine.seconds.keys()
        for subset, holds in SUBSETS.items():
            names = [name for name in both if holds(runs[name])]
            theirs, here = score(other.seconds, runs, names), score(mine.seconds, runs, names)
            if theirs and here and theirs.by_cluster < here.by_cluster:
                pair = f"{theirs.by_cluster:.1f} against {here.by_cluster:.1f} %"
                said.append(f"* {other.predictor}, {subset}: {pair}, {here.runs} runs.")
        clusters = sorted({runs[name].cluster for name in both})
        nearer = []
        for cluster in clusters:
            names = [name for name in both if runs[name].cluster == cluster]
            theirs, here = score(other.seconds, runs, names), score(mine.seconds, runs, names)
            if theirs and here and theirs.by_run < here.by_run:
                nearer.append(
                    f"`{cluster}` ({theirs.by_run:.1f} against {here.by_run:.1f} %, {here.runs} runs)"
                )
        listed = ", ".join(nearer) if nearer else "none"
        said.append(f"* {other.predictor}, single clusters, {len(nearer)} of {len(clusters)}: {listed}.")
    return said or ["No other entry yet."]


def entries_of(folder: Path, known: Mapping[str, float]) -> list[Entry]:
    """All entries, ours first, then by coverage."""
    found = [read_entry(path, known) for path in sorted(folder.glob("*.csv"))]
    return sorted(found, key=lambda one: (one.predictor != OURS, -len(one.seconds), one.predictor))


def main(words: Sequence[str] | None = None) -> int:
    """Score, and make what is asked for; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write docs/leaderboard.md")
    parser.add_argument("--ours", action="store_true", help="predict again with Meshwright")
    parser.add_argument(
        "--ask", action="append", default=[], metavar="PEER=CHECKOUT", help="ask a peer again"
    )
    options = parser.parse_args(words)
    every = read_runs(CATALOG_RUNS)
    runs = {run.run_id: run for run in every if run.measured.step_time_s}
    if options.ours:
        write_entry(ENTRIES / "meshwright.csv", ours(every))
    for word in options.ask:
        name, _, checkout = word.partition("=")
        if name not in PEERS:
            parser.error(f'--ask: "{name}" is unknown. Allowed: {", ".join(PEERS)}')
        try:
            entry, refused = asked(name, Path(checkout) if checkout else None, every)
        except UnavailableError as fault:
            print(f"error: {fault}")
            return 2
        write_entry(ENTRIES / f"{name}.csv", entry)
        print(f"{entry.predictor}: {len(entry.seconds)} runs stated; not: {refused.most_common(12)}")
    try:
        entries = entries_of(ENTRIES, {name: run.measured.step_time_s or 0.0 for name, run in runs.items()})
    except EntryError as fault:
        print(f"error: {fault}")
        return 2
    text = page(entries, runs)
    if options.write:
        PAGE.write_text(text, encoding="utf-8")
    print(text if not options.write else PAGE.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

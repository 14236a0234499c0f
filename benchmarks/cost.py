"""How many configurations a second the cost model prices, beside two published tools.

    .venv/bin/python -m benchmarks.cost [--calculon PATH] [--write]

All tools estimate the same configurations of GPT-3 175B on 1 024 A100, one process each, pinned to one
core, and are timed in CPU seconds. llm-analysis is installed into an environment of its own
(``.venv-peers/llm-analysis``, left in place); Calculon runs from a checkout. ``--write`` puts the table
into docs/how-the-cost-model-works.md, ``--no-peers`` leaves the others out.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.against.process import UnavailableError, environment
from benchmarks.cost_rows import Batch

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs" / "how-the-cost-model-works.md"
LLM_ANALYSIS = "llm-analysis==0.2.2"
REPEATS = 7
BEGIN, END = "<!-- bench-cost -->", "<!-- /bench-cost -->"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Configurations a second of one tool, over repeats."""

    tool: str
    what: str
    count: int
    seconds: tuple[float, ...]

    @property
    def per_second(self) -> float:
        """The median repeat's."""
        return self.count / median(self.seconds)

    @property
    def spread(self) -> str:
        """Slowest and fastest repeat."""
        return f"{self.count / max(self.seconds):,.0f} … {self.count / min(self.seconds):,.0f}"


def ours(batch: Batch) -> list[Rate]:
    """Meshwright's rates: prices alone, and with time and memory of every stage."""
    batch.cpu_seconds()  # the first run reads files and tables
    runs = [batch.cpu_seconds() for _ in range(REPEATS)]
    n, stages = len(batch.columns), batch.num_chunks.mean()
    whole = f"time and memory of every stage ({stages:.1f} on average)"
    return [
        Rate(tool="Meshwright", what=whole, count=n, seconds=tuple(sum(run) for run in runs)),
        Rate(
            tool="Meshwright",
            what="prices, splits left open",
            count=n,
            seconds=tuple(run[0] for run in runs),
        ),
    ]


def _rate_of(tool: str, command: list[str], batch: Batch) -> Rate | None:
    """Run a peer's script on the batch; None, with its last words, where it fails."""
    request = json.dumps({"rows": batch.rows(), "repeats": REPEATS})
    run = subprocess.run(command, input=request, capture_output=True, text=True, check=False)
    if run.returncode:
        last = (run.stderr.strip().splitlines() or ["no message"])[-1]
        print(f"{tool} did not run: {last}")
        return None
    answer = json.loads(run.stdout.strip().splitlines()[-1])
    return Rate(
        tool=f"{tool} {answer['version']}",
        what="one stage and one micro-batch, scaled",
        count=answer["done"],
        seconds=tuple(answer["seconds"]),
    )


def llm_analysis(batch: Batch) -> Rate | None:
    """llm-analysis in an environment of its own, made on first use."""
    try:
        python = environment("llm-analysis", [LLM_ANALYSIS])
    except UnavailableError as fault:
        print(fault)
        return None
    script = ROOT / "benchmarks" / "peers" / "llm_analysis_rate.py"
    return _rate_of("llm-analysis", [str(python), str(script)], batch)


def calculon(batch: Batch, checkout: Path | None) -> Rate | None:
    """Calculon from a checkout."""
    if checkout is None:
        print("Calculon is not measured; give --calculon PATH, a checkout of calculon-ai/calculon")
        return None
    if not (checkout / "calculon" / "llm" / "llm.py").is_file():
        print(f"Calculon is not measured: {checkout} has no calculon/llm/llm.py")
        return None
    script = ROOT / "benchmarks" / "peers" / "calculon_rate.py"
    return _rate_of("Calculon", [sys.executable, str(script), str(checkout)], batch)


def table(title: str, rates: list[Rate]) -> list[str]:
    """Rates of one set of configurations; ratios are to the first row."""
    head = (
        "tool",
        "what it computes",
        "rows",
        "rows a second (median)",
        "slowest … fastest",
        "Meshwright is",
    )
    lines = [f"**{title}**", "", f"| {' | '.join(head)} |", "|---|---|---|---|---|---|"]
    for rate in rates:
        ratio = rates[0].per_second / rate.per_second
        times = "–" if rate.tool == "Meshwright" else f"{ratio:,.0f} × as fast"
        cells = (rate.tool, rate.what, f"{rate.count:,}", f"{rate.per_second:,.0f}", rate.spread, times)
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def document(peers: bool, checkout: Path | None) -> str:
    """Measure everything."""
    gpt = Batch.of("gpt-3-175b", "dgx-a100", 128, 1536, 2048)
    same = gpt.common()
    rates = ours(same)
    if peers:
        rates += [rate for rate in (llm_analysis(same), calculon(same, checkout)) if rate]
    lines = table(f"{gpt.problem.model.title} on 1 024 A100: the {same.name}", rates)
    for batch in (gpt, Batch.of("deepseek-v3", "dgx-h100", 128, 4096, 4096)):
        lines += table(batch.name, ours(batch))
    where = f"Python {platform.python_version()}, NumPy {np.__version__}, one core of {processor()}"
    return "\n".join([*lines, f"{where}; CPU seconds, {REPEATS} repeats. Command: `make bench ARGS=cost`."])


def processor() -> str:
    """The processor's name."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "an unknown processor"


def main() -> None:
    """Print the tables, and write them where asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--calculon", type=Path, metavar="PATH", help="a checkout of calculon-ai/calculon")
    parser.add_argument("--no-peers", action="store_true", help="measure Meshwright alone")
    parser.add_argument("--write", action="store_true", help=f"write the tables into docs/{DOCS.name}")
    chosen = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # children inherit it
    text = document(not chosen.no_peers, chosen.calculon)
    print(text)
    if chosen.write:
        page = DOCS.read_text()
        before, rest = page.split(BEGIN, 1)
        DOCS.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.split(END, 1)[1]}")


if __name__ == "__main__":
    main()

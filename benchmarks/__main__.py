"""``make bench ARGS="NAME …"``: the benchmarks by name; what follows the name are options of its own.

Most print their tables, and with ``--write`` put them into the document that is named.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SIMAI = "tests/fixtures/foreign/simai"


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A module to run with the options that it always has."""

    title: str
    module: str
    options: tuple[str, ...] = ()
    environment: str | None = None  # of .ci/environment; None: this one


BENCHMARKS = {
    "search": Benchmark(
        "search times and proofs; --write: search, any-time and by-switch of how-the-search-works.md, with "
        "--growth docs/search-growth.svg",
        "benchmarks.search",
    ),
    "decisions": Benchmark(
        "what CP-SAT decides on equal nodes and in which time; --write: decisions of what-decides-what.md; "
        "--draws 500: drawn requests against all that they mean",
        "benchmarks.decisions",
    ),
    "inner": Benchmark(
        "the split of layers alone; --write: inner of how-the-search-works.md", "benchmarks.inner"
    ),
    "robust": Benchmark(
        "robust next to plain choices on published runs, docs/howto/robust-plans.md", "benchmarks.robust"
    ),
    "mixed": Benchmark(
        "searches of mixed clusters; --write: mixed-problems and mixed of how-the-search-works.md, with "
        "--drawn mixed-drawn of it, with --chunks the table of docs/adr/0011, with --uniform that of "
        "what-decides-what.md",
        "benchmarks.mixed",
    ),
    "sbom": Benchmark(
        "what the image ships: out/sbom.cdx.json (CycloneDX) and out/licences.md", "benchmarks.sbom"
    ),
    "post-training": Benchmark(
        "prices of post-training next to public measurements, docs/howto/post-training.md",
        "benchmarks.post_training",
    ),
    "fleet": Benchmark("fleets of jobs next to simple rules, docs/howto/fleet.md", "benchmarks.fleet"),
    "placement": Benchmark(
        "orders of nodes with links that differ, docs/howto/links-that-differ.md, minutes",
        "benchmarks.placement",
    ),
    "default-switches": Benchmark(
        "the default search of 12 models of experts next to every switch, a CPU minute",
        "benchmarks.default_switches",
    ),
    "default-answer": Benchmark(
        "20 default answers next to all that a user could allow beyond; --write: default-answer of "
        "how-the-search-works.md, --only MODEL, half an hour",
        "benchmarks.default_answer",
    ),
    "fit": Benchmark(
        "constants of the software stacks; writes (--spreads: intervals alone; --check: compares)",
        "benchmarks.fit_stacks",
    ),
    "cost": Benchmark("configurations priced a second, next to published tools", "benchmarks.cost"),
    "examples": Benchmark(
        "examples of the fine-tuning launchers, read; --files DIR of checkouts; --write: data/examples.md",
        "benchmarks.examples",
    ),
    "weight-shards": Benchmark(
        "weak scaling with weights that ranks share, next to the published one", "benchmarks.weight_shards"
    ),
    "across-islands": Benchmark(
        "what tensor parallelism across islands would win, which is not offered",
        "benchmarks.across_islands",
    ),
    "published": Benchmark(
        "published gains next to our predictions, docs/comparison-with-peers.md", "benchmarks.published"
    ),
    "fits": Benchmark("what others say fits on which cards, next to our answers", "benchmarks.fits"),
    "published-models": Benchmark(
        "published figures for this year's models next to our predictions", "benchmarks.published_models"
    ),
    "recipes": Benchmark("published recipes next to our plans, docs/recipes.md", "benchmarks.recipes"),
    "fix": Benchmark(
        "fixes of every stored launch file, read back; --every 5: some of them, --only NAME",
        "benchmarks.fix",
    ),
    "verify": Benchmark(
        "measured peaks next to priced and traced ones, a minute a run; --every 9: some of them",
        "benchmarks.verify",
    ),
    "ablation": Benchmark("what each part of the cost model buys; writes", "benchmarks.ablation"),
    "peers": Benchmark(
        "other planners on the same questions, minutes each; --write: docs/comparison-with-peers.md",
        "benchmarks.bench_peers",
    ),
    "leaderboard": Benchmark(
        "public predictors on the same published runs, docs/leaderboard.md", "benchmarks.leaderboard"
    ),
    "service": Benchmark(
        "requests, claims and job starts, docs/reliability.md", "benchmarks.service_speed"
    ),
    "size": Benchmark(
        "requests with 1,000 and 1,000,000 jobs on record, docs/reliability.md, half an hour",
        "benchmarks.service_size",
    ),
    "soak": Benchmark("the memory of a server under requests, the same", "benchmarks.service_soak"),
    "sign-ins": Benchmark(
        "how long other addresses take while a sign-in provider hangs", "benchmarks.service_sign_ins"
    ),
    "cancels": Benchmark("how soon a running job is cancelled, the same", "benchmarks.service_cancels"),
    "scaling": Benchmark("jobs a minute by 1 and 2 workers, docs/scaling.md", "benchmarks.scaling"),
    "replan": Benchmark(
        "re-planning: answer times, a replay of Llama 3, docs/howto/replan.md", "benchmarks.replanning"
    ),
    "tune": Benchmark(
        "what tune chooses, next to a full sweep, Megatron-LM and torchtitan on this CPU, half an hour",
        "tests.launchers.tuned",
    ),
    "startup": Benchmark(
        "CPU seconds and modules of the first commands and of a server", "benchmarks.startup"
    ),
    "newcomer": Benchmark("from a clone to the first table, docs/quickstart.md", "benchmarks.newcomer"),
    "faults": Benchmark(
        "what the tests of F1 to F28 measured, docs/reliability.md; writes (--long: chaos too)",
        "tests.reliability.document",
        ("--measure",),
    ),
    "mutants": Benchmark(
        "the share of 1,000 drawn faults that the tests notice, about an hour",
        "benchmarks.mutation",
        environment="mutants",
    ),
    "cpu-training": Benchmark(
        "plan, train on this CPU, send back, predict again, docs/accuracy.md",
        "examples.cpu_training.closed_loop",
        environment="torch",
    ),
    "pages": Benchmark(
        "pictures, weight and speed of the page, docs/live-page.md; writes", "tests.browser", (), "browser"
    ),
    "operators": Benchmark(
        "rebuilds the operator tables: --wheel aiconfigurator_core-0.12.0-….whl",
        "benchmarks.catalog.aiconfigurator",
        ("--out", "profiles/catalog/operators"),
    ),
    "backward": Benchmark(
        "rebuilds the tables of backward operators",
        "benchmarks.foreign.simumax",
        (
            "a100-pcie-80gb=tests/fixtures/simumax/a100_pcie.json",
            "b200-sxm-180gb=tests/fixtures/simumax/b200_bf16_ceperm.json",
            "--out",
            "profiles/catalog/operators/backward.json",
        ),
    ),
    "collectives": Benchmark(
        "rebuilds the shares of networks from SimAI's tables",
        "benchmarks.catalog.network_shares",
        (
            *("--ring", f"{SIMAI}/nic_ratio.csv", "--all-to-all", f"{SIMAI}/ata_ratio.csv"),
            *("--out", "profiles/catalog/collectives/network.json"),
        ),
    ),
}


def main(words: Sequence[str]) -> int:
    """Run one benchmark, or list them; its exit code."""
    if not words or words[0] in {"-h", "--help"}:
        print(__doc__)
        for name, benchmark in BENCHMARKS.items():
            print(f"  {name:<17}{benchmark.title}")
        return 0
    name, *rest = words
    if name not in BENCHMARKS:
        print(f"error: no benchmark {name}; there are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    chosen = BENCHMARKS[name]
    run = ["-m", chosen.module, *chosen.options, *rest]
    if chosen.environment is not None:
        command = [str(ROOT / ".ci" / "environment"), chosen.environment, "python", *run]
    else:
        command = [sys.executable, *run]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

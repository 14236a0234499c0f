"""Meshwright beside other planners and cost models, in one run.

    python -m benchmarks.bench_peers [--only NAME] [--calculon PATH] [--sailor PATH]
        [--simumax PATH] [--galvatron-checkout PATH] [--limit S] [--write]

Each peer runs in an environment of its own (``.venv-peers/NAME``, made on first use, left in place) or from
a checkout, on one core, each search in a process whose CPU time counts from its start to its end. A peer
that cannot be installed, started or finished in time is a line. ``--write`` puts the tables into
docs/comparison-with-peers.md.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.against import aiconfigurator, calculon, galvatron, llm_analysis, sailor, simumax
from benchmarks.against.process import ROOT, Budget, UnavailableError
from benchmarks.against.row import Comparison
from benchmarks.cost import processor

DOCUMENT = ROOT / "docs" / "comparison-with-peers.md"
BEGIN, END = "<!-- bench-peers: {} -->", "<!-- /bench-peers: {} -->"  # of one peer
PEERS: Mapping[str, Callable[[Budget, Path | None], Comparison]] = {
    "galvatron": galvatron.compare,
    "galvatron-checkout": galvatron.compare_checkout,
    "calculon": calculon.compare,
    "sailor": sailor.compare,
    "sailor-mixed": sailor.compare_mixed,
    "simumax": simumax.compare,
    "llm-analysis": llm_analysis.compare,
    "aiconfigurator": aiconfigurator.compare,
}


def compared(name: str, budget: Budget, checkout: Path | None) -> list[str]:
    """The lines of one comparison; one line where the peer cannot be asked."""
    try:
        return PEERS[name](budget, checkout).lines()
    except UnavailableError as fault:
        return [f"**{name}**", "", str(fault), ""]


def written(page: str, name: str, text: str) -> str:
    """The page with the text between the marks of a peer.

    Raises:
        ValueError: the page lacks a mark.
    """
    begin, end = BEGIN.format(name), END.format(name)
    before, rest = page.split(begin, 1)
    _old, after = rest.split(end, 1)
    return f"{before}{begin}\n{text}\n{end}{after}"


def main() -> None:
    """Print the tables as they come, and write them where asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--only", choices=PEERS, help="compare with this peer alone")
    parser.add_argument("--calculon", type=Path, metavar="PATH", help="a checkout of calculon-ai/calculon")
    parser.add_argument("--sailor", type=Path, metavar="PATH", help="a checkout of eth-easl/sailor")
    parser.add_argument("--simumax", type=Path, metavar="PATH", help="a checkout of MooreThreads/SimuMax")
    parser.add_argument(
        "--galvatron-checkout", type=Path, metavar="PATH", help="a checkout of PKU-DAIR/Hetu-Galvatron"
    )
    parser.add_argument("--limit", type=float, default=1800.0, metavar="SECONDS", help="for all together")
    parser.add_argument("--write", action="store_true", help=f"write the tables into docs/{DOCUMENT.name}")
    chosen = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # children inherit it
    budget = Budget(limit_s=chosen.limit)
    core = f"One core of {processor()}. CPU time counts whole processes, their start included."
    for name in [chosen.only] if chosen.only else PEERS:
        found = compared(name, budget, getattr(chosen, name.removesuffix("-mixed").replace("-", "_"), None))
        text = "\n".join([*found, core])
        print(text, flush=True)
        if chosen.write:
            page = written(DOCUMENT.read_text(encoding="utf-8"), name, text)
            DOCUMENT.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()

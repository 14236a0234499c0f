"""How the search grows: CPU seconds against GPUs, layers, plans asked for and nodes, as a picture.

``python -m benchmarks.growth [--write]``. All questions are asked in one process as a user asks them, each
to its proof without CP-SAT. Numbers of nodes without factors are next to the powers of two behind them:
they take the plans on fewer nodes, too. ``--write`` puts the picture into docs. It is written as SVG
directly: panels of lines need no plotting library, and the file stays readable in a diff.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from meshwright.profiles.profile import default_profile
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.planner.plan import ask
from meshwright.solver.problem import Problem

PICTURE = Path(__file__).parents[1] / "docs" / "search-growth.svg"
WIDTH, HEIGHT, LEFT, TOP, GAP = 250, 220, 56, 40, 70


@dataclass(frozen=True, slots=True)
class Panel:
    """One line of measurements."""

    title: str
    x_name: str
    points: tuple[tuple[float, float], ...]  # what grows, CPU seconds


def _problem(model: str, cluster: str, num_nodes: int, *, batch: int, seq: int, top_k: int = 10) -> Problem:
    """A problem of catalog entries, without CP-SAT's certificate."""
    request: dict[str, Any] = {
        "model": {"name": model},
        "cluster": {"name": cluster, "num_nodes": num_nodes},
        "workload": {"global_batch_size": batch, "seq_length": seq},
        "launcher": "megatron-lm",
        "search": {"top_k": top_k, "certify": "none", "time_limit_s": 300},
    }
    return parse_problem(request)


def by_gpus() -> Iterator[tuple[float, Problem]]:
    """Llama 3.1 405B on 128 to 131 072 H100."""
    for num_nodes in (16, 64, 256, 1024, 4096, 16384):
        yield 8 * num_nodes, _problem("llama-3.1-405b", "dgx-h100", num_nodes, batch=2048, seq=8192)


def by_layers() -> Iterator[tuple[float, Problem]]:
    """GPT-3's layers, 12 to 192 of them, on 1 024 A100."""
    plain = _problem("gpt-3-175b", "dgx-a100", 128, batch=1536, seq=2048)
    for layers in (12, 24, 48, 96, 192):
        yield layers, replace(plain, model=replace(plain.model, num_layers=layers))


def by_plans() -> Iterator[tuple[float, Problem]]:
    """1 to 100 plans of GPT-3 175B on 1 024 A100."""
    for top_k in (1, 3, 10, 30, 100):
        yield top_k, _problem("gpt-3-175b", "dgx-a100", 128, batch=1536, seq=2048, top_k=top_k)


def by_nodes() -> Iterator[tuple[float, Problem]]:
    """Llama 3.1 70B on prime numbers of H100 nodes, and on the powers of two behind them."""
    for num_nodes in (7, 8, 13, 16, 31, 32, 127, 128):
        yield num_nodes, _problem("llama-3.1-70b", "dgx-h100", num_nodes, batch=512, seq=8192)


def measured(title: str, x_name: str, problems: Callable[[], Iterator[tuple[float, Problem]]]) -> Panel:
    """CPU seconds of every search."""
    points = []
    for value, problem in problems():
        profile = default_profile(problem.cluster, problem.launcher)
        began_s = time.process_time()
        answer = ask(problem, profile)
        points.append((value, time.process_time() - began_s))
        print(
            f"{title}: {value:g} {points[-1][1]:.2f} s, {answer.space_size} rows, {answer.status}",
            flush=True,
        )
    return Panel(title, x_name, tuple(points))


def drawn(panels: Sequence[Panel]) -> str:
    """The panels side by side, both axes logarithmic, as one SVG document."""
    width = LEFT + len(panels) * (WIDTH + GAP)
    seconds = [second for panel in panels for _, second in panel.points]
    low, high = math.floor(math.log10(min(seconds))), math.ceil(math.log10(max(seconds)))
    size = f'viewBox="0 0 {width} {TOP + HEIGHT + 60}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for number, panel in enumerate(panels):
        parts += _panel(panel, LEFT + number * (WIDTH + GAP), low, high)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(panel: Panel, left: int, low: int, high: int) -> Iterator[str]:
    """Frame, axes, line and figures of one panel."""
    values = [math.log(value) for value, _ in panel.points]
    bottom = TOP + HEIGHT
    middle = left + WIDTH / 2

    def place(value: float, seconds: float) -> tuple[float, float]:
        across = (math.log(value) - values[0]) / (values[-1] - values[0])
        up = (math.log10(seconds) - low) / (high - low)
        return left + 12 + across * (WIDTH - 24), bottom - up * HEIGHT

    yield f'<text x="{middle}" y="{TOP - 16}" text-anchor="middle" font-weight="bold">{panel.title}</text>'
    yield f'<rect x="{left}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#888"/>'
    for power in range(low, high + 1):
        _, y = place(panel.points[0][0], 10.0**power)
        yield f'<line x1="{left}" x2="{left + WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
        yield f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g} s</text>'
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in panel.points))
    yield f'<polyline points="{line}" fill="none" stroke="#1f5fa8" stroke-width="2"/>'
    for value, seconds in panel.points:
        x, y = place(value, seconds)
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#1f5fa8"/>'
        yield f'<text x="{x:.1f}" y="{y - 8:.1f}" text-anchor="middle" font-size="10">{seconds:.2g}</text>'
        yield f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle" font-size="10">{value:g}</text>'
    yield f'<text x="{middle}" y="{bottom + 38}" text-anchor="middle">{panel.x_name}</text>'


def grow(*, write: bool) -> None:
    """Measure all four, and draw them where it is asked for."""
    panels = [
        measured("Llama 3.1 405B", "H100 GPUs", by_gpus),
        measured("GPT-3 on 1 024 A100", "layers", by_layers),
        measured("GPT-3 175B on 1 024 A100", "plans asked for", by_plans),
        measured("Llama 3.1 70B", "nodes of 8 H100", by_nodes),
    ]
    if write:
        PICTURE.write_text(drawn(panels), encoding="utf-8")


def main() -> None:
    """Run as a command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--write", action="store_true", help="put the picture into docs")
    grow(write=parser.parse_args().write)


if __name__ == "__main__":
    main()

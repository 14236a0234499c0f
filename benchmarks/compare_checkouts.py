"""Compare two checkouts: answers, predictions and speed. Each has its own ``.venv``.

    python -m benchmarks.compare_checkouts ../before . [--answers 46] [--rounds 5]

Both are asked through their command line alone, so it does not matter how their modules are called.
Compared are all requests of ``tests/golden/answers`` (whole answers, byte for byte, but for elapsed
seconds and versions) with the launch files of each first plan; the prediction of every catalogued run,
uncalibrated and calibrated (each figure to 1e-12); and, in turn, the CPU seconds of six searches and of
pricing all runs (ratio of medians). ``--problems`` times the searches of ``benchmarks/problems`` instead
and compares nothing; more configurations in one checkout than in the other are named beside the seconds.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import yaml

REQUESTS = Path("tests") / "golden" / "answers" / "requests.yaml"
_RUNS = Path("profiles") / "catalog" / "runs" / "measured_runs.csv"
_MAY_DIFFER = {"elapsed_s", "versions"}
_TOLERANCE = 1e-12
_PROMISED = 1.05  # times the seconds of before
_TIMED = (
    "llama-8b-megatron-certified", "gpt3-none", "deepseek-v3-megatron", "h100-and-a100", "long-context",
    "llama-8b-any-launcher",
)  # fmt: skip


class Checkout:
    """One checkout, asked through its command line."""

    def __init__(self, root: Path, scratch: Path) -> None:
        self.root, self.scratch = root.resolve(), scratch
        self.scratch.mkdir()
        self.cpu_s = 0.0  # of the last command

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """One command; counts its CPU seconds. No question was asked before."""
        if words[0] == "plan":
            shutil.rmtree(self.scratch / "state", ignore_errors=True)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        environment = {**os.environ, "XDG_STATE_HOME": str(self.scratch / "state")}
        done = subprocess.run(
            [str(self.root / ".venv" / "bin" / "meshwright"), *words],
            check=False, capture_output=True, text=True, cwd=self.scratch, env=environment,
        )  # fmt: skip
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return done

    def answer(self, request: Path) -> object:
        """The answer to one request, without what may differ, and the launch files of its first plan."""
        done = self.run("plan", str(request), "--json")
        if not done.stdout.strip():
            return {"exit": done.returncode, "said": done.stderr}
        document = _without(json.loads(done.stdout))
        plans = document.get("plans") or [{}]
        files = self.run("export", plans[0]["plan_id"]).stdout if "plan_id" in plans[0] else ""
        return {"exit": done.returncode, "document": document, "files": files}

    def predictions(self, runs: Path, calibrate: int) -> list[dict[str, str]]:
        """Every catalogued run with its prediction."""
        out = self.scratch / f"runs-{calibrate}.csv"
        done = self.run(
            "validate", str(runs), "--calibrate", str(calibrate), "--per-run", str(out), "--json"
        )
        if done.returncode:
            raise SystemExit(done.stderr)
        with out.open(encoding="utf-8") as handle:
            return list(csv.DictReader(handle))


def _without(value: Any) -> Any:  # noqa: ANN401 - JSON
    """A JSON value without the fields that may differ."""
    if isinstance(value, dict):
        return {name: _without(one) for name, one in value.items() if name not in _MAY_DIFFER}
    return [_without(one) for one in value] if isinstance(value, list) else value


def differences(old: object, new: object, at: str = "") -> Iterator[str]:
    """Where two JSON values differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted({*old, *new}):
            if name not in old or name not in new:
                yield f"{at}/{name} is in one only"
            else:
                yield from differences(old[name], new[name], f"{at}/{name}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from differences(one, other, f"{at}/{index}")
    elif old != new:
        yield f"{at}: {str(old)[:80]} -> {str(new)[:80]}"


def _far(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    """Cells of a prediction that differ by more than the tolerance."""
    for name in old:
        one, other = old[name], new.get(name, "")
        try:
            alike = abs(float(one) - float(other)) <= _TOLERANCE * max(abs(float(one)), abs(float(other)))
        except ValueError:
            alike = one == other
        if not alike:
            yield f"{old['run_id']} {name}: {one} -> {other}"


def main() -> None:
    """Compare, print, and fail where something differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--answers", type=int, default=10**6, help="compare so many requests at most")
    parser.add_argument("--calibrate", type=int, default=16, help="runs of each cluster to calibrate on")
    parser.add_argument("--rounds", type=int, default=5, help="of the timing; 0: none")
    parser.add_argument("--problems", action="store_true", help="time benchmarks/problems alone")
    wish = parser.parse_args()
    if wish.rounds < (1 if wish.problems else 0):
        parser.error(f"--rounds {wish.rounds}: allowed are 1 or more with --problems, else 0 or more")
    with TemporaryDirectory() as folder:
        old, new = Checkout(wish.old, Path(folder) / "old"), Checkout(wish.new, Path(folder) / "new")
        if wish.problems:
            ratios = list(_problems(old, new, wish.rounds))
            sys.exit(1 if max(ratios) > _PROMISED else 0)
        found = [
            *_answers(old, new, wish.answers, Path(folder)),
            *_predictions(old, new, wish.calibrate),
        ]
        slower = list(_speed(old, new, wish.rounds, Path(folder)))
    print("\n".join(found[:40]) or "nothing differs")
    sys.exit(1 if found or any(ratio > _PROMISED for ratio in slower) else 0)


def _requests(checkout: Checkout, folder: Path) -> dict[str, Path]:
    """Every golden request as a file."""
    found = {}
    for name, request in yaml.safe_load((checkout.root / REQUESTS).read_text(encoding="utf-8")).items():
        found[name] = folder / f"{name}.json"
        found[name].write_text(json.dumps(request), encoding="utf-8")
    return found


def _answers(old: Checkout, new: Checkout, most: int, folder: Path) -> list[str]:
    """Differences of the answers and launch files."""
    requests = list(_requests(old, folder).items())[:most]
    found = []
    for name, path in requests:
        found += [f"{name}{one}" for one in differences(old.answer(path), new.answer(path))]
    print(f"answers: {len(requests)} requests, {len(found)} differences")
    return found


def _predictions(old: Checkout, new: Checkout, calibrate: int) -> list[str]:
    """Differences of the predictions of the old checkout's runs."""
    found = []
    for runs in (0, calibrate) if calibrate else (0,):
        rows = [one.predictions(old.root / _RUNS, runs) for one in (old, new)]
        far = [one for pair in zip(*rows, strict=True) for one in _far(*pair)]
        print(
            f"predictions, calibrated on {runs} runs a cluster: {len(rows[0])} runs, {len(far)} differences"
        )
        found += far
    return found


def _problems(old: Checkout, new: Checkout, rounds: int) -> Iterator[float]:
    """The ratio of the median CPU seconds, new to old, of each problem that both have, without CP-SAT."""
    for path in sorted((old.root / "benchmarks" / "problems").glob("*.json")):
        request = json.loads(path.read_text(encoding="utf-8"))
        request["search"] = {**request.get("search", {}), "certify": "none"}
        asked = old.scratch / path.name
        asked.write_text(json.dumps(request), encoding="utf-8")
        times: tuple[list[float], list[float]] = ([], [])
        sizes = ["", ""]
        for _ in range(rounds):
            for at, checkout in enumerate((old, new)):
                done = checkout.run("plan", str(asked), "--json")
                if not done.stdout.strip():
                    raise SystemExit(f"{checkout.root}: {done.stderr}")
                sizes[at] = f"{json.loads(done.stdout)['space_size']:,}"
                times[at].append(checkout.cpu_s)
        ratio, counted = median(times[1]) / median(times[0]), " -> ".join(dict.fromkeys(sizes))
        said = f"{median(times[0]):7.2f} -> {median(times[1]):7.2f} CPU-s  x {ratio:.3f}"
        print(f"{path.stem:<32} {said}  {counted} configurations", flush=True)
        yield ratio


def _speed(old: Checkout, new: Checkout, rounds: int, folder: Path) -> Iterator[float]:
    """The ratio of the median CPU seconds, new to old, of each timed command."""
    requests = _requests(old, folder)
    commands = {name: ("plan", str(requests[name]), "--json") for name in _TIMED if name in requests}
    commands["pricing of all runs"] = ("validate", str(old.root / _RUNS), "--json")
    for name, words in commands.items() if rounds else ():
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(rounds):
            for checkout, seconds in zip((old, new), times, strict=True):
                checkout.run(*words)
                seconds.append(checkout.cpu_s)
        ratio = median(times[1]) / median(times[0])
        print(f"{name:<32} {median(times[0]):7.2f} -> {median(times[1]):7.2f} CPU-s  x {ratio:.3f}")
        yield ratio


if __name__ == "__main__":
    main()

"""One GPU, at most 24 minutes: profile, predict, train, compare (docs/howto/gpu-hour.md).

    make gpu-hour ARGS=--pack       # where there is a network: the wheels, into out/gpu-hour/wheels
    make gpu-hour                   # on the GPU: one part of at most 8 minutes; again until all is done
    make gpu-hour ARGS=--rehearse   # on this CPU, with tiny models
    make gpu-hour ARGS=--keep       # copy the folder into benchmarks/data/measured_here
    make gpu-hour ARGS=--page       # docs/measured-here.md from that folder

This process imports nothing but the standard library. Workers measure; where one dies, or a part's time is
up, the journal says how far it came and the next worker goes on.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu_hour import wheels

ROOT = Path(__file__).parents[2]
FOLDER = Path("out/gpu-hour")
PART_S, ALL_S = 8 * 60.0, 24 * 60.0
SPARE_S = 20.0  # at the end of a part, for an item that takes longer than estimated
MOST_WORKERS = 6  # of one part: each that dies is replaced
PART_OVER, BROKEN = 0, 3  # exit codes of a worker


def parsed(words: list[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="make gpu-hour", description=__doc__.partition("\n")[0])
    parser.add_argument("--pack", action="store_true", help="download the wheels; needs a network")
    parser.add_argument("--rehearse", action="store_true", help="tiny models on this CPU")
    parser.add_argument("--keep", action="store_true", help="copy the results to where they are committed")
    parser.add_argument("--page", action="store_true", help="write docs/measured-here.md")
    parser.add_argument("--out", type=Path, help="folder of the results [default: out/gpu-hour/results]")
    parser.add_argument("--resume", type=Path, help="folder of an earlier part's results, copied first")
    parser.add_argument("--wheels", type=Path, default=FOLDER / "wheels", help="folder of the wheels")
    parser.add_argument("--minutes", type=float, default=PART_S / 60, help="of this part [default: 8]")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="[default: cuda]")
    parser.add_argument("--gpu", help="the GPU's name in the catalog, where it is not recognised")
    parser.add_argument("--work", type=float, help=argparse.SUPPRESS)  # a worker with so many seconds
    parser.add_argument("--trainers", action="store_true", help="train with TRL and transformers alone")
    options = parser.parse_args(words)
    if not 0 < options.minutes <= PART_S / 60:
        parser.error(f"--minutes: {options.minutes:g} is out of range. Allowed: above 0 to {PART_S / 60:g}")
    if options.out is None:
        options.out = FOLDER / ("rehearsal" if options.rehearse else "results")
    return options


def main() -> int:
    """Do what the options ask; the exit code."""
    options = parsed()
    try:
        if options.pack:
            size = wheels.pack(options.wheels)
            count = len(list(options.wheels.glob("*.whl")))
            print(f"{options.wheels}: {count} wheels, {size / 2**20:.1f} MiB")
            return 0
        path = wheels.unpacked(options.wheels, FOLDER)
    except wheels.PackError as error:
        return _refuse(str(error))
    if path is not None:
        sys.path.insert(0, str(path))
    fault = _missing(options)
    if fault is not None:
        return _refuse(fault)
    if options.keep or options.page:
        from benchmarks.gpu_hour import page  # noqa: PLC0415 - needs the packages

        return page.kept(options.out) if options.keep else page.written()
    if options.work is not None:
        return _worker(options)
    return _part(options, path)


def _refuse(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 2


def _missing(options: argparse.Namespace) -> str | None:
    """What cannot be imported here, and the remedy."""
    links = ROOT / "src" / "meshwright" / "solver"
    if not (links / "problem.py").is_file():
        return f"{links} is not a folder: copy the checkout with its symbolic links, as tar and rsync -a do"
    if sys.version_info < (3, 11):  # noqa: UP036 - this is what finds out
        return f"Python {sys.version.split()[0]} is too old: 3.11 or newer is needed"
    lacking = [name for name in wheels.MODULES if importlib.util.find_spec(name) is None]
    if lacking:
        return (
            f"{', '.join(lacking)}: not installed, and {options.wheels} has no wheels for this Python; "
            "run make gpu-hour ARGS=--pack where there is a network and copy that folder"
        )
    if not options.page and not options.keep and importlib.util.find_spec("torch") is None:
        return f"{sys.executable} has no torch: name the Python that has it, make gpu-hour GPU_PYTHON=…"
    return None


# --------------------------------------------------------------------------------------------------
# One part: a worker at a time, none beyond the part's time.


def _part(options: argparse.Namespace, path: Path | None) -> int:
    """Let workers do what the journal lacks; 0 where nothing is left to do."""
    from benchmarks.gpu_hour.work import Journal  # noqa: PLC0415 - needs the packages

    began_s = time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.resume is not None:
        _copied(options.resume, options.out)
    journal = Journal(options.out)
    left_s = ALL_S - journal.spent_s()
    if left_s <= SPARE_S:
        return _refuse(f"{options.out}: all {ALL_S / 60:.0f} minutes are spent; see {journal.path.name}")
    part = f"part-{1 + sum(line['item'].startswith('part-') for line in journal.lines)}"
    most_s = min(60.0 * options.minutes, left_s)
    code: int | None = PART_OVER
    # The trainers have the GPU to themselves: the worker that holds it has ended before theirs begins.
    kinds: list[list[str]] = [["--trainers"]] if options.trainers else [[], ["--trainers"]]
    for kind in kinds:
        for _ in range(MOST_WORKERS):
            rest_s = most_s - (time.monotonic() - began_s)
            if rest_s <= SPARE_S / 2:
                break
            code = _supervised(options, path, rest_s, kind)
            journal = Journal(options.out)
            for item in journal.open_items():
                journal.write(item, "cut off", why=_why(code))
            if code in (PART_OVER, BROKEN, None):
                break
        if code == BROKEN:
            break
    journal = Journal(options.out)
    journal.write(part, "done", seconds=time.monotonic() - began_s)
    return _told(options, journal, code)


def _why(code: int | None) -> str:
    return "the part's time was up" if code is None else f"its process ended with code {code}"


def _supervised(
    options: argparse.Namespace, path: Path | None, rest_s: float, kind: list[str]
) -> int | None:
    """Run one worker for so many seconds at most; its exit code, None where it was ended."""
    words = [word for word in sys.argv[1:] if not word.startswith(("--resume", "--trainers"))] + kind
    if options.resume is not None:
        words = [word for word in words if word != str(options.resume)]
    words += ["--work", f"{rest_s - SPARE_S / 2:.1f}"]
    command = [sys.executable, "-m", "benchmarks.gpu_hour", *words]
    places = [
        *([str(path)] if path else []),
        str(ROOT / "src"),
        str(ROOT),
        os.environ.get("PYTHONPATH", ""),
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}
    # Memory of one draw must not be in pieces of the wrong size for the next.
    environment.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    if options.rehearse:
        environment["OMP_NUM_THREADS"] = "1"
    worker = subprocess.Popen(command, env=environment)
    try:
        return worker.wait(timeout=rest_s - SPARE_S / 4)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if worker.poll() is None:
            worker.kill()
            worker.wait()


def _worker(options: argparse.Namespace) -> int:
    """Measure until the time is up; 3 where nothing can be measured here at all."""
    deadline_s = time.monotonic() + options.work - SPARE_S / 2
    from benchmarks.gpu_hour import trainers, work  # noqa: PLC0415 - needs the packages
    from benchmarks.gpu_hour.megatron import megatron_items  # noqa: PLC0415
    from meshwright.profiles.errors import PlannerError  # noqa: PLC0415

    if options.trainers:
        trainers.work(options.out, deadline_s, gpu=options.gpu, tiny=options.rehearse)
        return PART_OVER
    try:
        hour = work.opened(vars(options), deadline_s)
    except PlannerError as fault:
        _refuse(str(fault))
        return BROKEN
    work.work(hour, megatron_items(hour))
    return PART_OVER


def _copied(earlier: Path, into: Path) -> None:
    for file in sorted(earlier.iterdir()):
        if file.is_file() and not (into / file.name).exists():
            shutil.copyfile(file, into / file.name)


def _told(options: argparse.Namespace, journal: Any, code: int | None) -> int:  # noqa: ANN401 - a Journal
    """Write the table, print how far it came, and what to do next."""
    if code == BROKEN:
        return 2
    from benchmarks.gpu_hour import page  # noqa: PLC0415 - needs the packages

    print(page.summary(options.out))
    left = page.left_over(journal)
    spent = journal.spent_s() / 60
    said = f"after {spent:.1f} of {ALL_S / 60:.0f} minutes"
    if left:
        print(f"{left} items are left {said}: the same command goes on")
    else:
        print(f"all done {said}: make gpu-hour ARGS=--keep, then ARGS=--page")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A GPU hour without a GPU: what is packed, drawn, begun in time, recorded and shown."""

import importlib.util
import json
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_hour import __main__ as command
from benchmarks.gpu_hour import page, wheels
from benchmarks.gpu_hour.drawn import Draw, drawn, families, kept_bytes
from benchmarks.gpu_hour.work import Item, Journal, work
from meshwright.profiles.library import find_gpu

ROOT = Path(__file__).parents[3]


# Wheels.


@pytest.mark.parametrize(
    ("wheel", "expected"),
    [
        ("numpy-2.4.6-cp312-cp312-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl", True),
        ("numpy-2.4.6-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl", False),
        ("einops-0.8.2-py3-none-any.whl", True),
        ("six-1.17.0-py2.py3-none-any.whl", True),
        ("some-1.0-cp39-abi3-manylinux_2_28_x86_64.whl", True),
        ("some-1.0-cp313-abi3-manylinux_2_28_x86_64.whl", False),
        ("notes.txt", False),
    ],
)
def test_python_3_12_takes_the_wheels_that_run_under_it(wheel: str, *, expected: bool) -> None:
    assert wheels.fits(wheel, (3, 12)) is expected


def test_wheels_are_unpacked_once_and_again_when_they_change(tmp_path: Path) -> None:
    packed, target = tmp_path / "wheels", tmp_path / "here"
    packed.mkdir()
    assert wheels.unpacked(packed, target) is None
    with zipfile.ZipFile(packed / "one-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("one.py", "answer = 42\n")
    into = wheels.unpacked(packed, target)
    assert into is not None
    assert (into / "one.py").read_text() == "answer = 42\n"
    (into / "one.py").write_text("answer = 43\n")
    assert wheels.unpacked(packed, target) == into
    assert (into / "one.py").read_text() == "answer = 43\n"  # not unpacked a second time
    (packed / "two-1.0-py3-none-any.whl").write_bytes(b"half a wheel")
    with pytest.raises(wheels.PackError, match=r"two-1.0-py3-none-any.whl: .*; pack it again"):
        wheels.unpacked(packed, target)


def test_what_is_packed_is_pinned_as_constraints_have_it() -> None:
    lines = (ROOT / "constraints.txt").read_text().lower().splitlines()
    assert all(wheels._pinned(name).lower() in lines for name in wheels.NEEDED)


def test_the_measuring_and_the_planner_import_nothing_but_what_is_packed() -> None:
    script = (
        "import sys; from benchmarks.gpu_hour import megatron, page, work;"
        "from meshwright.profiles.library import find_model; find_model('tinyllama-1.1b');"
        "print(sorted({name.partition('.')[0] for name in sys.modules if name[0] != '_'}"
        " - set(sys.stdlib_module_names)))"
    )
    environment = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PATH": ""}
    run = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    found = set(eval(run.stdout))  # noqa: S307 - a list of names that the line above prints
    assert found - {"benchmarks", "meshwright", "cython_runtime"} == set(wheels.MODULES), run.stderr


# What cannot be started says why, in one line.


def test_a_machine_without_the_packages_is_told_how_to_pack_them(tmp_path: Path) -> None:
    line = [sys.executable, "-S", "-m", "benchmarks.gpu_hour", "--wheels", str(tmp_path)]
    run = subprocess.run(
        line,
        env={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert run.returncode == 2
    assert run.stderr.startswith("error: numpy, yaml: not installed, and ")
    assert run.stderr.endswith(
        "run make gpu-hour ARGS=--pack where there is a network and copy that folder\n"
    )


def test_a_python_without_torch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else name)
    fault = command._missing(command.parsed([]))
    assert (
        fault == f"{sys.executable} has no torch: name the Python that has it, make gpu-hour GPU_PYTHON=…"
    )


@pytest.mark.parametrize("minutes", ["0", "8.1", "-1"])
def test_a_part_is_at_most_eight_minutes(minutes: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.parsed(["--minutes", minutes])
    assert (
        f"--minutes: {float(minutes):g} is out of range. Allowed: above 0 to 8" in capsys.readouterr().err
    )


# The draw.


def test_twenty_configurations_are_drawn_alike_every_time_and_none_twice() -> None:
    kinds, memory_bytes = families(tiny=False), find_gpu("h100-sxm-80gb").memory_bytes
    draws = drawn(kinds, memory_bytes)
    assert draws == drawn(kinds, memory_bytes)
    assert [draw.name for draw in draws] == [f"train-{number:02d}" for number in range(1, 21)]
    assert len({tuple(list(draw.to_json().values())[1:]) for draw in draws}) == 20
    assert {draw.family for draw in draws} == {"dense", "experts", "lora"}
    sizes = {kind.name: kind for kind in kinds}
    assert max(kept_bytes(sizes[draw.family], draw) for draw in draws) <= 0.8 * memory_bytes


def test_the_room_of_a_draw_by_hand() -> None:
    dense = families(tiny=False)[0]
    draw = Draw(
        number=1, family="dense", micro_batch_size=2, seq_length=4096, num_microbatches=4, recompute="none",
        optimizer="adamw",
    )  # fmt: skip
    # 1.1e9 weights · 18 B; 8 192 tokens · 2 048 · (51 B + 2 B) · 22 layers; 8 192 · 32 000 logits · 12 B
    expected = 1_100_048_384 * 18 + 8192 * 2048 * 53 * 22 + 8192 * 32_000 * 12
    assert kept_bytes(dense, draw) == expected


# The journal, and the work that it lets go on.


class Answering:
    """A device that does nothing but answer."""

    name = "cuda:0"

    def __init__(self, *, lost: bool = False) -> None:
        self.lost = lost

    def answers(self) -> bool:
        return not self.lost

    def release(self) -> None: ...


@dataclass
class Todo:
    """An hour of given items."""

    journal: Journal
    deadline_s: float
    todo: list[Item]
    device: Answering = field(default_factory=Answering)

    def items(self) -> list[Item]:
        return self.todo


def item(
    name: str, run: Callable[[], Any] = dict, estimate_s: float = 1.0, **order: tuple[str, ...]
) -> Item:
    return Item(name=name, estimate_s=estimate_s, run=run, **order)


def worked(folder: Path, *items: Item, left_s: float = 100.0, **device: bool) -> Journal:
    journal = Journal(folder)
    hour = Todo(journal, time.monotonic() + left_s, list(items), Answering(**device))
    work(hour)  # type: ignore[arg-type]
    return Journal(folder)


def fails(fault: Exception) -> Callable[[], dict[str, Any]]:
    def run() -> dict[str, Any]:
        raise fault

    return run


class OutOfMemoryError(RuntimeError):
    """As torch calls it."""


def test_an_item_that_would_end_too_late_waits_for_the_next_part(tmp_path: Path) -> None:
    long, short = item("long", estimate_s=60.0), item("short", estimate_s=5.0)
    first = worked(tmp_path, long, short, left_s=30.0)
    assert (first.ended("long"), first.ended("short")) == (False, True)
    second = worked(tmp_path, item("long"), item("short", fails(ValueError("done a second time"))))
    assert (second.found("long") is not None, second.fault("short")) == (True, None)


def test_memory_and_missing_operators_are_recorded_and_the_next_item_runs(tmp_path: Path) -> None:
    missing = NotImplementedError(
        "Could not run 'aten::_grouped_mm' with arguments\nfrom the 'CUDA' backend"
    )
    journal = worked(
        tmp_path,
        item("large", fails(OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB"))),
        item("new", fails(missing)),
        item("last"),
    )
    assert journal.fault("large") == "out of memory"
    assert journal.fault("new") == "NotImplementedError: Could not run 'aten::_grouped_mm' with arguments"
    assert journal.found("last") is not None


def test_a_device_that_answers_nothing_ends_the_worker_after_the_record(tmp_path: Path) -> None:
    broken = item("one", fails(RuntimeError("CUDA error: an illegal memory access was encountered")))
    with pytest.raises(RuntimeError, match="cuda:0 answers nothing any more"):
        worked(tmp_path, broken, item("two"), lost=True)
    journal = Journal(tmp_path)
    assert journal.fault("one") == "RuntimeError: CUDA error: an illegal memory access was encountered"
    assert not journal.ended("two")


def test_no_draw_is_trained_before_its_prediction_is_written(tmp_path: Path) -> None:
    train = item("train-01", wants=("predict-dense",))
    waiting = worked(tmp_path, train, item("predict-dense", estimate_s=60.0), left_s=10.0)
    assert not waiting.ended("train-01")
    done = worked(tmp_path, item("predict-dense"), train)
    events = [(line["item"], line["event"]) for line in done.lines]
    assert events.index(("predict-dense", "done")) < events.index(("train-01", "began"))


def test_what_wants_a_failed_item_fails_with_its_name(tmp_path: Path) -> None:
    journal = worked(
        tmp_path,
        item("predict-megatron", fails(ModuleNotFoundError("No module named 'megatron'"))),
        item("megatron-01", wants=("predict-megatron",)),
    )
    assert journal.fault("megatron-01") == "predict-megatron failed"


def test_half_a_line_of_a_killed_process_is_passed_and_the_next_line_is_whole(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write("one", "began")
    with journal.path.open("a") as file:
        file.write('{"item": "one", "event": "do')
    again = Journal(tmp_path)
    assert again.open_items() == ["one"]
    again.write("one", "cut off", why="the part's time was up")
    assert not Journal(tmp_path).ended("one")  # it has another try
    again.write("one", "began")
    again.write("one", "cut off", why="the part's time was up")
    assert Journal(tmp_path).ended("one")
    assert Journal(tmp_path).open_items() == []


# The page.


def written_by_a_gpu(folder: Path, **changes: object) -> Path:
    journal = Journal(folder)
    draw = drawn(families(tiny=False), 80e9)[0].to_json()
    machine = {
        "kind": "cuda", "device": "NVIDIA H100 80GB HBM3", "torch": "2.9.0", "cuda": "12.8",
        "priced_as": "h100-sxm-80gb", "seed": 7, "draws": [draw, {**draw, "number": 2}], **changes,
    }  # fmt: skip
    forecasts = [
        {"origin": "profile", "step_time_s": 0.99, "peak_memory_bytes": 33 * 2**30},
        {"origin": "catalog", "step_time_s": 1.20, "peak_memory_bytes": 30 * 2**30},
    ]
    journal.write("machine", "done", result=machine)
    both = {"train-01": forecasts, "train-02": forecasts}
    journal.write("predict-dense", "done", result={"forecasts": both})
    journal.write("train-01", "began")
    journal.write("train-01", "done", result={"step_time_s": 1.0, "peak_memory_bytes": 30 * 2**30})
    journal.write("train-02", "failed", why="out of memory")
    journal.write("predict-megatron", "failed", why="ModuleNotFoundError: No module named 'megatron'")
    return folder


def test_the_page_states_that_nothing_has_been_measured(tmp_path: Path) -> None:
    text = page.text_of(tmp_path)
    assert "**Nothing has been measured on a GPU yet**" in text
    assert text.count("| – | – | – |") == 20


def test_the_page_of_this_repository_is_the_one_that_the_command_writes() -> None:
    assert page.PAGE.read_text() == page.text_of(page.KEPT), "make gpu-hour ARGS=--page"


def test_a_rehearsal_is_shown_as_no_result_and_kept_nowhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rehearsed = tmp_path / "rehearsed"
    rehearsed.mkdir()
    written_by_a_gpu(rehearsed, kind="cpu")
    assert "Nothing has been measured" in page.text_of(tmp_path)
    assert page.kept(rehearsed) == 2
    assert capsys.readouterr().out == f"error: {rehearsed} has no journal.jsonl of a GPU\n"


def test_a_measured_page_has_every_run_with_its_errors(tmp_path: Path) -> None:
    folder = tmp_path / "h100-sxm-80gb-seed-7"
    folder.mkdir()
    written_by_a_gpu(folder, commit="1234abcd")
    text, words = page.text_of(tmp_path), page.summary(folder)
    assert "Seed 7, " in text
    assert ", commit 1234abcd. torch 2.9.0" in text
    # .99 s over 1 s, 1.2 s over 1 s; 33 GiB over 30 GiB
    assert "| 990.0 ms | 1200.0 ms | 1000.0 ms | -1.0 % | +20.0 % | 30.0 GiB | +10.0 % |" in text
    assert "| 990.0 ms | 1200.0 ms | out of memory | – | – | – | – |" in text
    assert "Megatron-Core: not run (ModuleNotFoundError: No module named 'megatron')." in text
    assert words.startswith(
        "1 of 2 runs measured; mean error of the step: 1.0 % from the profile (median 1.0)"
    )
    assert (folder / "results.csv").read_text().splitlines()[1].startswith("train-01,dense,")
    assert json.loads((folder / "journal.jsonl").read_text().splitlines()[0])["item"] == "machine"

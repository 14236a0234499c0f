"""Ordinary questions of ``docs/tasks.md``, asked as they are typed: the substance of each answer."""

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from typer.testing import CliRunner

from meshwright.profiles.units import GIB
from meshwright.service.cli.main import app
from tests.draws import some_of
from tests.e2e.transcripts import ROOT
from tests.served.commands import without_reasons

PAGE = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")
QUESTION = re.compile(r"^### (?P<title>.+)\n\n```sh\nmeshwright (?P<command>.+)\n```", re.MULTILINE)
ASKED = {found["title"]: found["command"] for found in QUESTION.finditer(PAGE)}
TRAINERS = ("trl", "accelerate", "axolotl", "llama-factory-accelerate", "ms-swift")
PLAN, NOTHING_FITS, REFUSED = 0, 3, 1


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What holds of an answer, whatever its words."""

    code: int = PLAN
    launchers: tuple[str, ...] = ("megatron-lm",)
    gpus: int | None = None
    offloads: bool = False
    would_fit: tuple[str, ...] = ()  # parts of remedies
    risk_below: float = 0.05
    says: str = ""  # in warnings and notes


EXPECTED = {
    "LoRA of an 8B model on one RTX 4090": Expected(launchers=TRAINERS, gpus=1),
    "QLoRA of an 8B model on one RTX 4090": Expected(launchers=TRAINERS, gpus=1),
    "LoRA on a GPTQ checkpoint, as it is stored": Expected(launchers=("llama-factory-accelerate",), gpus=1),
    "QLoRA of a 70B model on one H100": Expected(launchers=TRAINERS, gpus=1),
    "Train all weights of a 1B model on one RTX 4090": Expected(launchers=TRAINERS, gpus=1),
    # 6.7 B weights in 16 bytes are 108 GB
    "Train all weights of a 7B model on one RTX 4090": Expected(
        code=NOTHING_FITS, launchers=TRAINERS, would_fit=("offload", "LoRA", "QLoRA")
    ),
    "Train all weights of a 7B model on one RTX 4090 with offload": Expected(
        launchers=("trl", "deepspeed", "torchtitan"), gpus=1, offloads=True
    ),
    "A 13B model on one V100 with offload": Expected(launchers=("deepspeed",), gpus=1, offloads=True),
    # 8 B weights, gradients and both moments in 2 bytes each are 60 of 80 GiB: Axolotl in pure bf16
    "Train all weights of an 8B model on one H100": Expected(launchers=TRAINERS, gpus=1),
    "Use an 8-bit optimizer on one A10G": Expected(launchers=TRAINERS, gpus=1),
    "Train a model that sees on text alone": Expected(launchers=TRAINERS, gpus=1),
    "LoRA of a 70B model on 8 H100": Expected(launchers=TRAINERS, gpus=8),
    # FSDP with 4-bit storage runs such a model with offload (Answer.AI, fsdp_qlora)
    "QLoRA of a 70B model on two RTX 3090": Expected(
        code=NOTHING_FITS, launchers=("trl",), would_fit=("'search.allow': ['offload']",)
    ),
    "Train all weights of an 8B model on 4 A100 of 40 GB": Expected(launchers=("trl",), gpus=4),
    "Accept an out-of-memory risk of 1 % at most": Expected(
        code=NOTHING_FITS, launchers=("trl",), would_fit=("adamw-8bit", "out-of-memory risk", "LoRA")
    ),
    "Pre-train an 8B model on 8 H100": Expected(gpus=8),
    "Which launcher is fastest for an 8B model": Expected(launchers=("any",), gpus=8),
    "A 70B model on one DGX H100 with offload": Expected(gpus=8, offloads=True),
    "LoRA of a mixture of experts on 8 H100": Expected(launchers=TRAINERS, gpus=8),
    "Train on 128k tokens with 8 H100": Expected(gpus=8),
    "Train an 8B model in FP8": Expected(gpus=8),
    "Train an 8B model under DeepSpeed": Expected(launchers=("deepspeed",), gpus=8),
    "Pre-train an 8B model under torchtitan": Expected(launchers=("torchtitan",), gpus=8),
    "LoRA with LLaMA-Factory": Expected(launchers=("llama-factory-accelerate",), gpus=4),
    "LoRA with Axolotl": Expected(launchers=("axolotl",), gpus=4),
    "Train the last four layers with Axolotl": Expected(launchers=("axolotl",), gpus=4),
    "Train from a quantised checkpoint": Expected(gpus=8, says="16-bit weights"),
    "Pre-train a 70B model on 16 DGX H100": Expected(gpus=128),
    # 17 nodes leave tensor and data ranks no divisor but 17 stages
    "Use an odd number of nodes": Expected(gpus=128, says="is idle"),
    "Use nodes of two kinds together": Expected(launchers=("flagscale",), gpus=32),
    "Use cloud machines by their names": Expected(gpus=16),
    "Train on TPUs": Expected(launchers=("maxtext",), gpus=64),
    "Train on AMD GPUs": Expected(gpus=16),
    "Train on Gaudi": Expected(launchers=("deepspeed", "accelerate"), gpus=16),
    "LoRA of a 70B model on two nodes": Expected(launchers=("ms-swift",), gpus=16),
    "Use as few nodes as possible": Expected(gpus=24),
    "How many days will my run take?": Expected(gpus=32),
}


@pytest.fixture(autouse=True)
def _plans_alone() -> Iterator[None]:
    """Search no reasons and no changes that would train faster: they take longer, and are not judged."""
    with without_reasons():
        yield


@cache
def asked(title: str) -> tuple[int, Any]:
    run = CliRunner().invoke(app, [*shlex.split(ASKED[title]), "--json"])
    return run.exit_code, json.loads(run.stdout)


def test_every_question_of_the_page_is_expected() -> None:
    others = {title for title, command in ASKED.items() if not command.startswith("plan ")}
    assert set(EXPECTED) | others == set(ASKED)


@pytest.mark.parametrize("title", some_of([*EXPECTED], each=2))
def test_an_ordinary_question_gets_its_answer(title: str) -> None:
    code, answer = asked(title)
    expected = EXPECTED[title]
    assert code == expected.code
    assert answer["problem"]["launcher"] in expected.launchers
    said = " ".join([*answer["warnings"], *map(str, answer["notes"].values()), answer["certainty"]])
    assert expected.says in said
    if code == NOTHING_FITS:
        assert answer["plans"] == []
        closest = answer["infeasible"]["closest"]  # a whole plan, with its risk
        assert closest is None or closest["prediction"]["out_of_memory_probability"] > 0.01
        offered = " ".join(str(remedy) for remedy in answer["infeasible"]["remedies"])
        assert [part for part in expected.would_fit if part not in offered] == []
        return
    best = answer["plans"][0]
    assert answer["num_gpus_used"] == expected.gpus
    assert (best["config"]["offload"] != "none") == expected.offloads
    assert best["prediction"]["out_of_memory_probability"] <= expected.risk_below


def test_memory_is_answered_by_method_and_launcher() -> None:
    _, rows = asked("How much memory does training an 8B model take?")
    least = {
        row["method"]: min(one["num_gpus"] for one in rows if one["method"] == row["method"])
        for row in rows
    }
    assert least["LoRA"] == least["QLoRA"] == 1
    assert least["full"] == 1  # 8 B weights in 8 bytes are 60 GiB: those that Axolotl trains in bf16
    _, rows = asked("Does it fit on the GPUs that I have?")
    fits = {(row["method"], row["launcher"]): row["fits"] for row in rows}
    # 8 B weights on 24 GiB: 16 of them bf16 alone, so LoRA just fits, and all of them trained never do
    assert fits["LoRA", "trl"] == fits["QLoRA", "trl"] == "yes"
    assert {fits[one] for one in fits if one[0] == "full"} == {"no"}


def test_a_configuration_is_priced_as_its_launcher_runs_it() -> None:
    _, found = asked("What does my configuration take?")
    assert found["config"]["zero_stage"] == 1  # every recipe of Megatron-LM sets its distributed optimizer
    assert found["prediction"]["peak_memory_bytes"] < 80 * GIB
    _, full = asked("What does full recomputation cost?")
    assert full["config"]["recompute_granularity"] == "full"
    assert full["prediction"]["time_breakdown_s"]["recompute"] > 0.0


def test_a_configuration_that_cannot_start_is_refused_with_the_sizes_that_do() -> None:
    code, found = asked("Why can't my configuration start?")
    assert code != 0
    (fault,) = found["errors"]
    assert (fault["value"], fault["values"]) == (6, [1, 2, 4, 8, 16])

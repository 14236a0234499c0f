"""Every option that a command lists changes, on some request, what the command prints, writes or starts.

``COMMANDS`` states that request for each option of each command, so that an option without one fails, as
does an option that is no longer listed. What is outside of a command (a service, GPUs, launchers' own code)
is a stand-in that records what it is asked: ``STAND_INS`` names these commands.
"""

import csv
import json
import shlex
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from meshwright.profiles.calibration import Calibration
from meshwright.profiles.profile import default_profile
from meshwright.service.auth.keys import Keys, NewKey
from meshwright.service.db.database import Database
from meshwright.service.fixing.fixes import fixes_of
from meshwright.service.fixing.search import _singles
from meshwright.service.here import Machine
from meshwright.service.jobs.answers import answer_document
from meshwright.service.methods import what_fits, with_speeds
from meshwright.service.requests.parse import parse_problem
from meshwright.service.tuning.decide import short_list, standing
from meshwright.solver.calibration.calibrate import calibrate
from meshwright.solver.calibration.measured import compared
from meshwright.solver.explain.remedies import fastest_on_all, first_plans
from meshwright.solver.planner.fits import fit_of
from meshwright.solver.runs.table import CATALOG_RUNS
from meshwright.solver.space.launcher_choice import launchers_able
from tests.draws import some_of
from tests.problems.tight import tight_answer, tight_problem
from tests.served.commands import (
    BAD_INPUT,
    STATE,
    Outcome,
    Outside,
    Place,
    answer_once,
    known_answer,
    leaves,
    remembering,
)
from tests.served.migrated import migrated
from tests.unit.service.cli.test_import_file import FILES, PROFILES
from tests.unit.service.replan.test_replan_command import Entry, saved

STAND_INS = {
    "capture": "the processes of the launch command",
    "demo": "a service",
    "jobs": "a service",
    "launch": "a scheduler, a service and the job that is started",
    "profile": "PyTorch and what it measures",
    "replan": "a scheduler (--cluster-from)",
    "report": "a service (--url) and a browser (--open)",
    "serve": "the server that would start",
    "tune": "the runs of the short list",
    "verify": "launchers' own code, and the environments that it needs",
    "worker": "the process that this one becomes",
}
# What takes the most time is done once for the same question, whichever command asks it, and less of it.
_FEW = ("accelerate", "axolotl", "deepspeed", "llama-factory-accelerate", "trl")  # launchers that fit
SHARED = {
    "meshwright.service.cli.mcp.serve_stdio": print,
    "meshwright.service.here.this_machine": lambda: Machine(
        run=lambda words: "NVIDIA L4, 23034, 4, 16, [N/A]" if words[0] == "nvidia-smi" else None,
        read=lambda path: Path(path).read_text() if path == "hosts" else None,
        list_folder=lambda _: (),
        environment={},
        release=lambda _: None,
    ),
    "meshwright.service.cli.doctor.shutil.disk_usage": lambda _: SimpleNamespace(free=2**40),
    "meshwright.service.cli.fits.what_fits": remembering(what_fits),
    "meshwright.service.cli.fits.with_speeds": remembering(with_speeds),
    "meshwright.service.cli.fix.fixes_of": partial(fixes_of, most=2),
    "meshwright.service.fixing.search._singles": lambda *given: islice(_singles(*given), 16),
    "meshwright.service.fixing.search._MOVES_BY_TIME": 3,  # of pairs
    "meshwright.service.fixing.search._MOVES_BY_MEMORY": 1,
    "meshwright.service.fixing.search._FASTEST": 2,
    "meshwright.service.fixing.search._SMALLEST": 1,
    "meshwright.service.cli.calibrate.calibrate": remembering(calibrate),
    "meshwright.service.cli.calibrate.compared": remembering(compared),
    "meshwright.service.cli.tune.short_list": remembering(short_list),
    "meshwright.service.cli.tune.standing": remembering(standing),
    "meshwright.service.replan.finish.first_plans": remembering(first_plans),
    "meshwright.solver.explain.model_shapes.fastest_on_all": remembering(fastest_on_all),
    "meshwright.solver.planner.fits.fit_of": remembering(fit_of),
    "meshwright.solver.space.launcher_choice.launchers_able": (
        lambda problem: tuple(name for name in launchers_able(problem) if name in _FEW)
    ),
}


@dataclass(frozen=True)
class Case:
    """A request on which an option counts.

    ``value`` is the option's, or all words that give it. ``beside`` are words that are given with and
    without the option; ``base`` takes the place of the command's own words, and an argument that of the
    word ``instead``. ``refused`` is what the option is refused with where no request here has an answer
    with it. ``explained``: the option counts in the reasons of an answer alone, which the others leave out.
    """

    value: str = ""
    beside: str = ""
    base: str | None = None
    instead: str = ""
    refused: str = ""
    explained: bool = False


@dataclass(frozen=True)
class Command:
    """The words that a command is always given, and for each option a case, or its value in one."""

    base: str
    cases: Mapping[str, Case | str]


# --------------------------------------------------------------------------------------------------
# What commands are asked.


MODEL = {
    "name": "small", "num_layers": 2, "hidden_size": 1024, "ffn_hidden_size": 4112,
    "num_attention_heads": 16, "num_kv_heads": 1, "vocab_size": 32016,
}  # fmt: skip
SEEING = {
    **MODEL, "name": "seeing",
    "tower": {
        "num_layers": 2, "hidden_size": 64, "ffn_hidden_size": 128, "num_attention_heads": 4,
        "patch_size": 16, "patch_inputs": 1536, "merged_patches": 4, "projector_matrices": 256 * 1024,
    },
}  # fmt: skip
LARGE = {
    **MODEL, "name": "large", "num_layers": 3, "hidden_size": 8192, "ffn_hidden_size": 40960,
    "num_attention_heads": 64,
}  # fmt: skip
CLUSTER = {"groups": [{"gpu": "h100-sxm-80gb", "num_nodes": 1, "gpus_per_node": 2}]}
SEARCH = {"top_k": 2, "certify": "none", "allow": ["none"]}
PROBLEM: dict[str, Any] = {
    "model": MODEL,
    "cluster": CLUSTER,
    "workload": {"global_batch_size": 8, "seq_length": 512},
    "launcher": "megatron-lm",
    "search": {**SEARCH, "objective": "tokens_per_s_per_gpu"},  # ranks the same on one GPU and on both
}
TRAIN = (
    "torchrun --nproc_per_node=2 pretrain_gpt.py --num-layers 2 --hidden-size 1024 --bf16 --swiglu "
    "--num-attention-heads 16 --seq-length 512 --max-position-embeddings 512 --vocab-size 32000 "
    "--micro-batch-size 1 --global-batch-size ${BATCH:-8}"
)
MEASURED_ON = ("mosaic-a100-80gb-fsdp", "zerobubble-a100")  # clusters of the catalog's runs

FILE, PRICED = "cluster.json --json", "problem.json --set mbs=1 --json"
LENGTHS, ADAPTERS = "--lengths p50=100,p100=512", "--lora-rank 8 --launcher accelerate"
TIGHT = "--model tight.json --pin tp=1 --pin pp=1 --pin zero=0"  # its fastest plan: out of memory with 9 %
IMAGES = "--model seeing.json --launcher none --image-tokens 64 --images-per-sample 1"
OF_A_PROBLEM: dict[str, Case | str] = {
    "problem": Case("other.json", instead="problem.json"),
    "--model": "wider.json",
    "--cluster": "dgx-a100 --num-nodes 1",
    "--num-nodes": "2",
    "--gpu": "l40s --num-nodes 1",
    "--gpus": "2xA100-40GB",
    "--nodes": "1xdgx-a100",
    "--num-gpus": "4",
    "--gpus-per-node": "1",
    "--global-batch-size": "16",
    "--seq-length": "256",
    "--lengths": "p50=100,p100=512",
    "--batching": Case("padding", beside=f"{LENGTHS} --launcher accelerate"),
    "--images-per-sample": Case("2", beside=IMAGES),
    "--image-tokens": Case("32", beside=IMAGES),
    "--freeze": Case("vision", beside=IMAGES),
    "--precision": "fp8",
    "--optimizer": "adamw-bf16",
    "--lora-rank": Case("8", beside="--launcher accelerate"),
    "--sample": Case("pair", beside="--launcher trl"),
    "--reference": Case("frozen", beside="--sample pair --launcher trl"),
    "--lora-target": Case("q_proj", beside=ADAPTERS),
    "--base-precision": Case("nf4", beside=ADAPTERS),
    "--trained-module": Case("lm_head", beside=ADAPTERS),
    "--trained-layers": Case("1", beside="--launcher axolotl"),
    "--launcher": "torchtitan",
    "--stack": "megatron-lm-2021",
    "--reserve-nodes": Case("1", beside="--num-nodes 2"),
    "--framework-options": "gradient_dtype=bf16",
    "--max-oom-probability": Case("0.4", beside=TIGHT),
}
OF_A_SHAPE: dict[str, Case | str] = {  # of what a search looks for
    "--objective": "energy_per_token",
    "--max-power-kw": "0.6",  # of its two GPUs one
    "--deadline-days": Case("0.0001", beside="--total-tokens 1e9"),
    "--pin": "tp=1",
    "--bound": "tp=1:1",
    "--forbid": "tp=2",
    "--constraint": "'tp <= 1'",
}
OF_A_SEARCH: dict[str, Case | str] = {
    **OF_A_SHAPE,
    "--time-limit-s": "0.001",
    "--seed": Case("7", beside="--objective step_time"),
    "--gpus": Case("fewest", beside="--num-nodes 2"),
    "--total-tokens": "1e9",
    "--gpu-hour-price": Case("2.5", beside="--total-tokens 1e9"),
    "--grid-co2-g-per-kwh": Case("400", beside="--total-tokens 1e9"),
    "--certify": "cp-sat",
    "--allow": "none --allow cuda_graph",
}
OF_A_RANKING: dict[str, Case | str] = {
    "--top-k": "1",
    "--diverse": Case("--no-diverse", beside="--num-nodes 2 --top-k 6"),
    "--pareto": "",
    "--differ": "tp",
    "--within": Case("0.001", beside="--differ tp"),
    "--baseline": "own.json",
}
OF_A_CONFIGURATION: dict[str, Case | str] = {
    "--config": Case("own.json", base="problem.json --json"),
    "--set": Case("mbs=2", base="problem.json --json"),
    "--from-args": Case("train.sh", base=FILE),
    "--var": Case("BATCH=16", base=FILE, beside="--from-args train.sh"),
    "--ignore": Case("--ignore --swiglu", base=FILE, beside="--from-args train.sh"),
    "--run": Case("2", base=FILE, beside="--from-args two.sh"),
    "--profile": "mine.json",
    "--json": Case(base="problem.json --set mbs=1"),
}
OF_AN_ANSWER: dict[str, Case | str] = {
    "plan_id": Case("SECOND", base="FIRST", instead="FIRST"),
    "--from": Case("answer.json", base=""),
    "--rank": "2",
    "--launcher": "megatron-lm",
}
OF_A_SERVICE: dict[str, Case | str] = {"--url": "http://other"}
OF_A_JOB: dict[str, Case | str] = {
    **OF_A_SERVICE,
    "job_id": Case("OTHER-JOB", instead="JOB"),
    "--json": Case(base="JOB"),
}
OF_RECORDS: dict[str, Case | str] = {"--database-url": "sqlite:///other.db"}
LOST = "--lost-nodes 1 --steps-done 100 --steps-total 1000"
UNCHANGED = "--from wide.json --steps-total 1000 --json"
REPORT = "--what-if none --out report.html"

LORA = "--model llama-3.1-8b --gpus 1xh100 --lora-rank 16 --global-batch-size 16 --seq-length 2048"

FIXED, UNPLACED = "--gpus 2xh100 --no-search --json", "train.sh --no-search --json"

SMALLEST = "smollm-135m --optimizer adamw"  # which leaves out the methods with other optimizers
FITS = f"{SMALLEST} --gpus 1xH100"
_SEEING = "--gpus 1xH100 --optimizer adamw --launcher llama-factory-accelerate --json"
COMMANDS = {
    "plan": Command("problem.json --json", {
        **OF_A_PROBLEM, **OF_A_SEARCH, **OF_A_RANKING,
        "--profile": "mine.json",
        "--json": Case(base="problem.json"),
        "--csv": Case(base="problem.json"),
        "--full": Case(base="problem.json"),
        "--save-dir": "run",
        "--force": Case(beside="--save-dir taken"),
        "--sweep": "tp=1,2",
        "--measure-next": "1",
        "--help-all": "",
        "--from-capture": Case("train.sh", base=FILE),
        "--set": Case("global_batch_size=16", base=FILE, beside="--from-capture train.sh"),
        "--var": Case("BATCH=16", base=FILE, beside="--from-capture train.sh"),
        "--ignore": Case("--ignore --swiglu", base=FILE, beside="--from-capture train.sh"),
        "--run": Case("2", base=FILE, beside="--from-capture two.sh"),
    }),
    "predict": Command(PRICED, {
        **OF_A_PROBLEM, **OF_A_CONFIGURATION,
        "--max-oom-probability": Case("0.4", beside="--model tight.json --set zero=0", explained=True),
        "--plan": Case("answer.json", base=""),
    }),
    "explain": Command(PRICED, {
        **OF_A_PROBLEM, **OF_A_SEARCH, **OF_A_CONFIGURATION,
        "--plan": Case("FIRST", base=""),
        "--levers": Case(base=LORA),
        "--why-not": Case("tp=1", base="problem.json --json"),
    }),
    "fix": Command(f"train.sh {FIXED}", {
        **{name: OF_A_PROBLEM[name] for name in (
            "--model", "--global-batch-size", "--seq-length", "--lengths", "--precision", "--optimizer",
            "--stack",
        )},
        "--launcher": Case("torchtitan", refused="torchtitan 0.3"),
        "--cluster": Case("dgx-a100 --num-nodes 1", base=UNPLACED),
        "--num-nodes": Case("2", base=f"{UNPLACED} --gpu h100 --gpus-per-node 1"),
        "--gpu": Case("l40s", base=f"{UNPLACED} --num-gpus 2"),
        "--gpus": Case("2xA100-40GB", base=UNPLACED),
        "--nodes": Case("1xdgx-a100", base=UNPLACED),
        "--num-gpus": Case("1", base=f"{UNPLACED} --gpu h100"),
        "--gpus-per-node": Case("1", base=f"{UNPLACED} --gpu h100 --num-nodes 2"),
        "--batching": Case("padding", beside=LENGTHS),
        "--images-per-sample": Case("2", beside="--model seeing.json --image-tokens 64"),
        "--image-tokens": Case("32", beside="--model seeing.json --images-per-sample 1"),
        "--max-oom-probability": "0.4",
        "script": Case("two.sh --run 2", base=f"train.sh {FIXED}", instead="train.sh"),
        "--edits": Case("2", base="train.sh --gpus 2xh100 --no-search"),
        "--in-place": Case(
            "--in-place=a/b", base="train.sh --gpus 2xh100", refused="the ending of a backup has no /"
        ),
        "--compare": Case("train.sh two.sh", base="--gpus 2xh100 --run 1"),
        "--fail-above": Case("0%", base="--compare train.sh wide.sh --gpus 2xh100"),
        "--set": "recompute_granularity=full",
        "--var": "BATCH=16",
        "--ignore": "--ignore --swiglu",
        "--run": Case("2", base=f"two.sh {FIXED}"),
        "--search": Case("--no-search", base="train.sh --gpus 2xh100 --json"),
        "--verify": Case(refused="--install megatron-lm"),
        "--base-precision": Case("bf16", refused="your files train no LoRA adapters"),
        "--profile": "mine.json",
        "--json": Case(base="train.sh --gpus 2xh100 --no-search"),
    }),
    "capture": Command("-- bash train.sh", {
        "command": Case("-- bash train.sh", base=""),
        "--out": Case("--out run.json -- bash train.sh", base=""),
        "--timeout": Case("--timeout 5 -- bash train.sh", base=""),
    }),
    "compare": Command("FIRST SECOND --json", {
        "plan_a": Case("SECOND", instead="FIRST"),
        "plan_b": Case("FIRST", instead="SECOND"),
        "--from": Case("answer.json", base="1 2 --json"),
        "--json": Case(base="FIRST SECOND"),
    }),
    "shapes": Command("problem.json --tolerance 0 --json", {
        **OF_A_PROBLEM, **OF_A_SHAPE,
        "--total-tokens": Case("1e9", beside="--deadline-days 9"),
        "--allow": Case("offload", beside="--model large.json --pin tp=1 --pin pp=1"),
        "--tolerance": "0.006",
        "--most": Case("1", base="problem.json --tolerance 0.006 --json"),
        "--profile": "mine.json",
        "--json": Case(base="problem.json --tolerance 0"),
    }),
    "export": Command("--from answer.json", {
        **OF_AN_ANSWER,
        "--launcher-version": Case("0.2", refused="0.2"),
        "--scheduler": "trainjob",
        "--image": Case("train:1", beside="--scheduler trainjob"),
        "--save-dir": "run",
        "--zip": "run.zip",
        "--force": Case(beside="--save-dir taken"),
        "--accept-risk": Case(base="--from risky.json"),
    }),
    "plot": Command("--out plan.svg --from answer.json", {
        "plan_id": Case("SECOND", base="--out plan.svg"),
        "--from": Case("answer.json", base="--out plan.svg"),
        "--rank": "2",
        "--profile": "titan.json",
        "--out": "plan.png",
    }),
    "memory": Command(f"{SMALLEST} --launcher trl --json", {
        "model": Case("smollm-360m", base=f"{SMALLEST} --launcher trl --json", instead="smollm-135m"),
        "--gpu": "a100-sxm-80gb",
        "--num-gpus": "2",
        "--launcher": Case("trl", base=f"{SMALLEST} --json"),
        "--seq-length": "1024",
        "--precision": Case("fp16", base=f"{SMALLEST} --json"),  # of some launcher
        "--optimizer": "adamw-bf16",
        "--lora-rank": "64",
        "--json": Case(base=f"{SMALLEST} --launcher trl"),
    }),
    "fits": Command(f"{FITS} --launcher trl --json", {
        "model": Case("smollm-360m", base=f"{FITS} --launcher trl --json", instead="smollm-135m"),
        "--gpus": "1xRTX-4090",
        "--cluster": Case("dgx-h100", base=f"{SMALLEST} --launcher trl --json"),
        "--launcher": "accelerate",
        "--seq-length": "1024",
        "--global-batch-size": "64",
        "--precision": "fp16",
        "--optimizer": "adamw-bf16",
        "--lora-rank": "64",
        "--sample": "pair",
        "--reference": Case("frozen", base=f"{FITS} --launcher trl --json --sample pair"),
        "--images-per-sample": Case("1", base=f"internvl3.5-1b {_SEEING}"),
        "--image-tokens": Case("512", base=f"internvl3.5-1b {_SEEING} --images-per-sample 1"),
        "--tokens": "20M",
        "--commands": Case(base=FITS),
        "--full": Case(base=FITS),
        "--json": Case(base=f"{FITS} --launcher trl"),
    }),
    "mcp": Command("", {"--server": "http://127.0.0.1:1", "--cpu-seconds": "7", "--memory-gib": "2"}),
    "here": Command("--json", {  # two machines are alike, but for what the options state
        "--out": Case("here.yaml", base=""),
        "--hostfile": "hosts",
        "--num-nodes": "3",
        "--json": Case(base=""),
    }),
    "fleet": Command("fleet.json --json", {
        "file": Case("shorter.json", instead="fleet.json"),
        "--running": "running.json",
        "--skip-impossible": Case(base="impossible.json --json"),
        "--effort": Case("1e9", refused="Allowed: up to 3600. "),
        "--seed": Case("--seed -1", refused="Allowed: from 0"),
        "--profile": "mine.json",
        "--out": "starts",
        "--force": Case(beside="--out taken"),
        "--json": Case(base="fleet.json"),
    }),
    "report": Command(f"--from answer.json {REPORT}", {
        "plan_or_job": Case("SECOND", base=f"FIRST {REPORT}", instead="FIRST"),
        "--from": Case("answer.json", base=REPORT),
        "--rank": "2",
        "--url": Case("http://service", base=f"JOB {REPORT}"),
        "--profile": "titan.json",
        "--what-if": "predict",
        "--out": "page.html",
        "--open": "",
        "--timeline": "step.json",
    }),
    "calibrate": Command("runs.csv --json", {
        "runs": Case("fewer.csv", instead="runs.csv"),
        "--cluster": Case(MEASURED_ON[0], base="clusters.csv --json"),
        "--out": "learnt.json",
        "--measure-next": "1",
        "--log": Case("fewer.csv", base="problem.json --json", refused="no part of a step"),
        "--json": Case(base="runs.csv"),
    }),
    "validate": Command("runs.csv --json", {
        "runs": Case("fewer.csv", instead="runs.csv"),
        "--calibrate": "1",
        "--choose": Case("random", beside="--calibrate 1"),
        "--seed": Case("3", beside="--calibrate 1 --choose random"),
        "--per-run": "predictions.csv",
        "--json": Case(base="runs.csv"),
    }),
    "profile": Command("--model llama-3.1-8b --seq-length 512 --out layers.json", {
        "--model": "gpt2",
        "--seq-length": "256",
        "--out": "other.json",
        "--tp": "1,2",
        "--micro-batch": "2",
        "--ep": Case("2", base="--model mixtral-8x7b --seq-length 512 --out layers.json"),
        "--lora-rank": "8",
        "--lora-target": Case("linear_qkv", beside="--lora-rank 8"),
        "--only": "gemm",
        "--dtype": "fp16",
        "--device": "cpu",
        "--budget-s": "60",
        "--quick": "",
    }),
    "import": Command("topology.txt --gpu h100", {
        "file": Case("hf.json", instead="topology.txt"),
        "--format": Case("torchtitan-log", base="memory.log --model llama-3.1-70b --gpu h100"),
        "--out": "cluster.yaml",
        "--into": "nodes.yaml",
        "--model": Case("llama-3.1-8b", base="titan.log --gpu h100"),
        "--gpu": "h200",
        "--num-nodes": "4",
        "--group": Case("1", beside="--into nodes.yaml"),
        "--cluster": "mine",
        "--set": Case("mbs=1", base="titan.log --model llama-3.1-8b --gpu h100"),
        "--plan": Case("answer.json", base="plan.log"),
        "--rank": Case("2", base="plan.log --plan answer.json"),
    }),
    "tune": Command("FIRST --top 1 --json", {
        "plan_id": Case("WIDE-1", instead="FIRST"),
        "command": "-- train.sh {steps}",
        "--from": Case("answer.json", base="--top 1 --json"),
        "--save-dir": "mine",
        "--top": "2",
        "--steps": "20",
        "--confidence": Case("0.5", base="FIRST --top 2 --json"),
        "--budget-gpu-minutes": "0.01",
        "--run-limit-s": "5",
        "--launcher": "megatron-lm",
        "--profile": "titan.json",
        "--json": Case(base="FIRST --top 1"),
    }),
    "verify": Command("--from answer.json --json", {
        **OF_AN_ANSWER,
        "--install": Case("accelerate", base=""),
        "--memory-gib": "4",
        "--time-limit": "9",
        "--json": Case(base="FIRST"),
    }),
    "replan": Command(f"--from wide.json {LOST} --json", {
        "plan_id": Case("WIDE-2", base=f"WIDE-1 {LOST} --json", instead="WIDE-1"),
        "--from": Case("wide.json", base=f"{LOST} --json"),
        "--rank": "2",
        "--lost-nodes": Case("1", base=UNCHANGED),
        "--slow-node": "0=.5",
        "--num-nodes": Case("2", base=UNCHANGED),
        "--cluster-from": Case("slurm", base=UNCHANGED),
        "--steps-done": "500",
        "--steps-total": "9000",
        "--saved-step": "50",
        "--checkpoint": "saved",
        "--checkpoint-format": "dcp",
        "--checkpoint-place": "local",
        "--spare-nodes": "1",
        "--repair-hours": "1",
        "--top-k": "1",
        "--profile": "mine.json",
        "--save-dir": "run",
        "--way": Case("2", beside="--save-dir run"),
        "--force": Case(beside="--save-dir taken"),
        "--json": Case(base=f"--from wide.json {LOST}"),
    }),
    **{name: Command("", {"words": "h200", "--json": ""}) for name in ("clusters", "gpus")},
    "models": Command("", {"words": "qwen3", "--json": ""}),
    "config": Command("", {"--json": ""}),
    "values": Command("launcher", {
        "option": Case("optimizer", instead="launcher"),
        "--json": Case(base="launcher"),
    }),
    "serve": Command("", {
        "--host": "0.0.0.0",  # noqa: S104 - nothing is bound
        "--port": "9000",
        "--database-url": "sqlite:///other.db",
        "--redis-url": "redis://queue",
        "--workers": "3",
        "--insecure": "",
        "--allowed-hosts": "planner",
    }),
    "worker": Command("", {
        "--database-url": "sqlite:///other.db",
        "--redis-url": "redis://queue",
        "--celery": "",
    }),
    "launch": Command("--problem problem.json", {
        "command": "-- train.sh",
        "--problem": "other.json",
        "--cluster-from": "slurm",
        "--save-dir": "run",
        "--limit-s": "9",
        "--launcher": "torchtitan",
        "--report": "--no-report",
        "--url": "http://other",
    }),
    "demo": Command("problem.json", {
        "problem": Case("other.json", instead="problem.json"),
        "--out": "mine",
    }),
    "jobs submit": Command("problem.json --json", {
        **OF_A_PROBLEM, **OF_A_SEARCH, **OF_A_RANKING, **OF_A_SERVICE,
        "--idempotency-key": "mine",
        "--fresh": "",
        "--wait": "",
        "--sweep": "tp=1,2",
        "--priority": "0",
        "--deadline-s": "60",
        "--label": "team=nlp",
        "--json": Case(base="problem.json"),
    }),
    "jobs list": Command("--json", {
        **OF_A_SERVICE,
        "--limit": "5",
        "--label": "team=nlp",
        "--model": "llama-3.1-70b",
        "--owner": "me",
        "--state": "failed",
        "--json": Case(base=""),
    }),
    "jobs plans": Command("--json", {
        **OF_A_SERVICE,
        "--where": "cluster=dgx-h100",
        "--max-memory-gib": "60",
        "--measured": "",
        "--sort": "--sort -step_time_s",
        "--limit": "5",
        "--json": Case(base=""),
    }),
    "jobs show": Command("JOB --json", {**OF_A_JOB, "--full": Case(base="JOB")}),
    "jobs wait": Command("JOB --json", {**OF_A_JOB, "--full": Case(base="JOB")}),
    "jobs cancel": Command("JOB --json", OF_A_JOB),
    "jobs delete": Command("JOB", {**OF_A_SERVICE, "job_id": Case("OTHER-JOB", instead="JOB")}),
    "jobs share": Command("JOB --json", {**OF_A_JOB, "--days": "30"}),
    "jobs links": Command("JOB --json", OF_A_JOB),
    "jobs unshare": Command("JOB LINK", {
        **OF_A_SERVICE,
        "job_id": Case("OTHER-JOB", instead="JOB"),
        "link_id": Case("OTHER-LINK", instead="LINK"),
    }),
    "keys create": Command("", {
        **OF_RECORDS, "--tenant": "vision", "--scope": "read", "--title": "mine", "--expires-in-days": "90",
        "--max-cpu-s-per-day": "600",
    }),
    "keys list": Command("--json", {**OF_RECORDS, "--tenant": "vision", "--json": Case(base="")}),
    "keys revoke": Command("KEY", {
        **OF_RECORDS, "key_id": Case("OTHER-KEY", instead="KEY"), "--with-links": "",
    }),
    "keys revoke-since": Command("2026-01-01", {
        "--database-url": "sqlite:///other.db",
        "since": Case("2100-01-01", base="2026-01-01 --seen-in sqlite:///revoked.db", instead="2026-01-01"),
        "--seen-in": "sqlite:///revoked.db",
        "--keep": "KEY",
    }),
    "doctor": Command("", {**OF_RECORDS, "--json": ""}),
    "db upgrade": Command("", {"--database-url": "sqlite:///new.db"}),
    "db downgrade": Command(
        "0014",
        {
            "revision": Case("0013", instead="0014"),
            "--database-url": Case("sqlite:///new.db", refused="the schema is at None"),
        },
    ),
    "db check": Command("", {"--database-url": Case("sqlite:///new.db", refused="the schema is empty")}),
    "db delete-tenant": Command(
        "first --yes",
        {
            "--database-url": Case("sqlite:///new.db", refused="Run: meshwright db upgrade"),
            "tenant": Case("second", instead="first"),
            "--yes": Case(base="first"),
        },
    ),
    "db backup": Command("copy.db", {**OF_RECORDS, "target": Case("mine.db", instead="copy.db")}),
    "db restore": Command("other.db", {**OF_RECORDS, "source": Case("records.db", instead="other.db")}),
}  # fmt: skip


# --------------------------------------------------------------------------------------------------
# The files that they are given.


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("inputs")
    _write_questions(folder)
    _write_answers(folder)
    _write_runs(folder)
    _write_foreign(folder)
    _write_records(folder)
    (folder / "taken").mkdir()
    (folder / "taken" / "notes.txt").write_text("keep")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    yield folder
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def _write_questions(folder: Path) -> None:
    """Write problems and their parts, launch files and calibrations."""
    documents = {
        "problem.json": PROBLEM,
        "other.json": {**PROBLEM, "launcher": "torchtitan"},
        "cluster.json": {"cluster": CLUSTER, "search": PROBLEM["search"]},
        "own.json": {"tensor_parallel_size": 2},
        "tight.json": LARGE,
        "seeing.json": SEEING,
        "large.json": {**LARGE, "num_layers": 7},
        "wider.json": {**MODEL, "ffn_hidden_size": 8192},
        "mine.json": a_calibration("megatron-core"),
        "titan.json": a_calibration("fsdp"),
        "fleet.json": a_fleet(steps=1000),
        "shorter.json": a_fleet(steps=500),
        "impossible.json": a_fleet(steps=1000, least_nodes=9),
        "running.json": {"now_hours": 1, "jobs": {"first": {"state": "done", "steps_done": 1000}}},
    }
    for name, content in documents.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "train.sh").write_text(TRAIN)
    (folder / "wide.sh").write_text(f"{TRAIN} --tensor-model-parallel-size 2\n")
    (folder / "hosts").write_text("one\ntwo\n")
    (folder / "two.sh").write_text(f"{TRAIN}\n{TRAIN} --tensor-model-parallel-size 2\n")


def a_fleet(**second: object) -> dict[str, Any]:
    """Two jobs on two nodes, with fields of the second."""
    cluster = {"groups": [{**CLUSTER["groups"][0], "num_nodes": 2}]}
    asked = {**PROBLEM, "search": SEARCH}
    del asked["cluster"]
    jobs = [
        {"name": "first", "problem": asked, "steps": 1000},
        {"name": "second", "problem": asked, **second},
    ]
    return {"cluster": cluster, "jobs": jobs}


def a_calibration(stack: str) -> dict[str, Any]:
    """A calibration of one constant."""
    return Calibration(
        cluster="mine", stack=stack, gpu="h100-sxm-80gb", num_runs=1, residual=None,
        log_offsets={"gemm": -0.1}, memory_residual=None, log_memory_sigma=None,
    ).to_json()  # fmt: skip


def _write_answers(folder: Path) -> None:
    """Write answers, also where commands look for the plan of an id, and a checkpoint of a plan."""
    kept = folder / STATE / "meshwright" / "answers"
    kept.mkdir(parents=True)
    for name, nodes, launcher in (("answer.json", 1, "torchtitan"), ("wide.json", 4, "megatron-lm")):
        cluster = {"groups": [{**CLUSTER["groups"][0], "num_nodes": nodes}]}
        # on all GPUs; a schedule and shards that other launchers and releases have
        search = {
            **PROBLEM["search"],
            "num_nodes": [nodes],
            "forbid": {"pipeline_schedule": ["gpipe"], **({"zero_stage": [0]} if nodes == 1 else {})},
        }
        work = {**PROBLEM["workload"], "global_batch_size": 8 if nodes == 1 else 64}
        problem = parse_problem(
            {**PROBLEM, "cluster": cluster, "launcher": launcher, "search": search, "workload": work}
        )
        answer = known_answer(problem, default_profile(problem.cluster, problem.launcher))
        for path in (folder / name, kept / name):
            path.write_text(json.dumps(answer_document(answer, problem)))
    (folder / "risky.json").write_text(json.dumps(answer_document(tight_answer(), tight_problem())))
    saved(folder / "saved" / "iter_0000090", weights=Entry(problem.model.num_parameters(), 1))


def _write_runs(folder: Path) -> None:
    """Write tables of measured runs: one without a time, fewer, and those of two clusters."""
    with CATALOG_RUNS.open(encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    first, second = ([row for row in rows if row["cluster"] == name][:4] for name in MEASURED_ON)
    untimed = {**first[3], "step_time_s": "", "tokens_per_s_per_gpu": ""}
    for name, some in (
        ("runs.csv", [*first[:3], untimed]),
        ("fewer.csv", first[:2]),
        ("clusters.csv", [*first[:2], *second[:2]]),
    ):
        with (folder / name).open("w", encoding="utf-8", newline="") as handle:
            writer = csv.DictWriter(handle, list(rows[0]))
            writer.writeheader()
            writer.writerows(some)


def _write_foreign(folder: Path) -> None:
    """Write files of other programs."""
    for name, source in (
        ("topology.txt", FILES / "topology" / "topo_h100_8.txt"),
        ("hf.json", PROFILES / "qwen2.5-7b.json"),
        ("titan.log", FILES / "logs" / "torchtitan.log"),
        ("memory.log", FILES / "logs" / "megatron_out_of_memory.log"),
        ("plan.log", FILES / "logs" / "torchtitan_no_sizes.log"),
    ):
        shutil.copyfile(source, folder / name)
    group = {"gpu": "h100-sxm-80gb", "num_nodes": 2}
    (folder / "nodes.yaml").write_text(yaml.safe_dump({"name": "ours", "groups": [group]}))


def _write_records(folder: Path) -> None:
    """Write the records of a service with two keys, and others that hold one more."""
    urls = [migrated(folder / "records.db"), f"sqlite:///{folder / 'other.db'}"]
    for url, tenants in zip(urls, (("first", "second"), ("third",)), strict=True):
        database = Database(url)
        for tenant in tenants:
            Keys(database, actor="test").create(NewKey(tenant=tenant))
        database.close()
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as opened, opened:
            opened.execute("UPDATE api_keys SET created_at_s = 1.7e9")  # before every backup
        if url == urls[0]:
            shutil.copyfile(folder / "records.db", folder / "other.db")
    shutil.copyfile(folder / "records.db", folder / "revoked.db")
    before = Database(f"sqlite:///{folder / 'revoked.db'}")
    keys = Keys(before, actor="test")
    keys.revoke(keys.page("first", page_size=1).items[0].id)
    before.close()


def ids_of(inputs: Path) -> dict[str, str]:
    """Return the ids that commands are given, by their names in a case."""
    ids = {"JOB": "1" * 32, "OTHER-JOB": "2" * 32}
    for names, file in ((("FIRST", "SECOND"), "answer.json"), (("WIDE-1", "WIDE-2"), "wide.json")):
        plans = json.loads((inputs / file).read_text())["plans"]
        ids |= dict(zip(names, (plan["plan_id"] for plan in plans), strict=True))
    with closing(sqlite3.connect(inputs / "records.db")) as opened:
        keys = opened.execute("SELECT id FROM api_keys ORDER BY tenant")
        ids |= dict(zip(("KEY", "OTHER-KEY"), (key for (key,) in keys), strict=True))
    return ids


@pytest.fixture
def place(inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    answer = json.loads((inputs / "answer.json").read_text())
    job = {
        "id": "1" * 32, "state": "succeeded", "created_at": "2026-11-27T12:00:00Z",
        "expires_at": "2026-12-27T12:00:00Z", "cancel_requested": False, "priority": 0,
        "attempts": 1,
        "request": PROBLEM, "links": {"plans": "/"},
    }  # fmt: skip
    link = {"id": "a1", "path": "/shared/a1", "created_at": "today", "expires_at": "later"}
    replies = {
        "/v1/jobs": {**job, "jobs": [job]},
        "1" * 32: job,
        "2" * 32: {**job, "id": "2" * 32},
        ":cancel": job,
        "/share-links": {**link, "links": [link]},
        "LINK": {},
        "/plans": answer,
        "/v1/plans": {"plans": []},
        "/export": {"files": {"launch.sh": ""}, "warnings": []},
        "/report": "a page",
    }
    outside = Outside(replies=replies)
    outside.stand_in(monkeypatch)
    answer_once(monkeypatch)
    for target, shared in SHARED.items():
        monkeypatch.setattr(target, shared)
    monkeypatch.setenv("MESHWRIGHT_DATABASE_URL", "sqlite:///records.db")
    return Place(inputs=inputs, runs=tmp_path, outside=outside, patch=monkeypatch)


# --------------------------------------------------------------------------------------------------
# Each option with and without its value.


@dataclass
class Starts:
    """Starts of one command, each made once."""

    place: Place
    command: str
    ids: Mapping[str, str]
    known: dict[tuple[str, bool], Outcome] = field(default_factory=dict)

    def of(self, words: str, *, explained: bool = False) -> Outcome:
        """Return the outcome of these words."""
        if (words, explained) not in self.known:
            self.known[words, explained] = self.again(words, explained=explained)
        return self.known[words, explained]

    def again(self, words: str, *, explained: bool = False) -> Outcome:
        """Return the outcome of another start."""
        split = [self.ids.get(word, word) for word in shlex.split(words)]
        return self.place.run(*self.command.split(), *split, explained=explained)

    def fault(self, base: str, option: str, case: Case) -> str | None:
        """Return what is wrong with an option; None where it counts."""
        own = base if case.base is None else case.base
        without = own if case.instead else f"{own} {case.beside}"
        words = [case.value if one == case.instead else one for one in own.split()]
        with_it = " ".join(words) if case.instead else _given(without, option, case.value)
        before, after = (self.of(words, explained=case.explained) for words in (without, with_it))
        if case.refused:
            refused = after.code == BAD_INPUT and case.refused in after.errors
            return None if refused else f"is not refused as it should be: {after.errors}"
        if after.code == BAD_INPUT:
            return f"is refused: {after.errors}"
        return "changes nothing" if after.answer == before.answer else None


def _given(words: str, option: str, value: str) -> str:
    """Return the words with the option's value, in place of the one that they give it.

    A value that begins with a dash gives it by itself.
    """
    if value.startswith("-") or not option.startswith("-"):
        return f"{words} {value}"
    before, _, given = f"{words} ".partition(f"{option} ")
    return f"{before} {option} {value} {given.partition(' ')[2]}"


def names_of(command: Any) -> list[str]:  # noqa: ANN401 - Typer keeps the type of commands to itself
    """Return the options and arguments that a command lists."""
    listed = [one for one in command.params if not getattr(one, "hidden", False)]
    return [one.opts[0] if one.param_type_name == "option" else one.name for one in listed]


LISTED = {name: names_of(command) for name, command in leaves()}


SHARED_CASES = {**OF_A_PROBLEM, **OF_A_SEARCH}  # of several commands, each of which tries a third of them
SHARING = [name for name in COMMANDS if set(OF_A_PROBLEM) <= set(COMMANDS[name].cases)]


def tried_of(name: str) -> list[str]:
    """Return the options that this command tries: its own, and its third of the shared ones."""
    if name not in SHARING:
        return [*COMMANDS[name].cases]
    own_third = some_of([*SHARED_CASES], each=3, first=SHARING.index(name))
    return [one for one in COMMANDS[name].cases if one not in SHARED_CASES or one in own_third]


def test_every_shared_option_is_tried_on_one_of_the_commands_that_have_it() -> None:
    assert set(SHARED_CASES) <= {option for name in SHARING for option in tried_of(name)}


@pytest.mark.parametrize("name", LISTED)
def test_every_option_of_a_command_changes_what_comes_of_it(name: str, place: Place) -> None:
    command, starts = COMMANDS[name], Starts(place, name, ids_of(place.inputs))
    cases = {one: Case(case) if isinstance(case, str) else case for one, case in command.cases.items()}
    assert set(cases) == set(LISTED[name])
    assert starts.again(command.base) == starts.of(command.base)  # else any option would seem to count
    tried = tried_of(name)
    faults = {option: starts.fault(command.base, option, cases[option]) for option in tried}
    assert {option: fault for option, fault in faults.items() if fault} == {}
    asks = any(outcome.asked for outcome in starts.known.values())
    assert asks == (name.partition(" ")[0] in STAND_INS)

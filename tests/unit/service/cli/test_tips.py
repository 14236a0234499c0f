"""Every error ends with a command to paste, which the command line takes.

Errors are those of the reviewed requests (``tests/golden/requests``), of every option with a value that it
does not take, and of what people type (``TYPED``).
"""

import itertools
import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.exceptions import TyperException

from meshwright.profiles.errors import FieldError, InvalidProblemError, PlannerError, UnknownNameError
from meshwright.service.cli.main import app
from meshwright.service.cli.meant import BY_NAME
from meshwright.service.cli.options import read_request
from meshwright.service.cli.terminal import report, report_usage
from meshwright.service.cli.tips import Line, tips_of
from meshwright.service.requests.fields import OPTIONS, patch_of, tip_of
from meshwright.service.requests.jobs import read_job_request
from meshwright.service.requests.parse import parse_problem
from tests.golden.requests.test_requests import FILE, request_with
from tests.served.commands import commands, leaves

EVERY = 1 if os.environ.get("MESHWRIGHT_TEST_DRAWS") else 3  # of the reviewed requests
BATCH = "--global-batch-size 64 --seq-length 4096"
LONG_LIST = re.compile(r"[^\s,]+(?:, (?!or )[^\s,]+){8,}")
BAD_VALUES = ("x", "-1", "0", "1e30", "foo=1", "[", "")
PIECES = ["a", "b,c", "dgx-h10", "tp=x,9"]


def requires_a_tip(typed: Sequence[str], printed: str) -> str:
    """Return the last line's command, after checking what holds of every error."""
    assert not re.search(r"Allowed: 0(?![ .,\d])", printed), printed
    assert not LONG_LIST.search(printed.partition("\ntip: ")[0]), printed
    *_, last = printed.rstrip("\n").split("\n")
    assert last.startswith("tip: meshwright "), printed
    words = shlex.split(last.removeprefix("tip: "))[1:]
    assert words != list(typed), f"{last} is what was typed"
    require_command(words)
    return shlex.join(words)


def require_command(words: Sequence[str]) -> None:
    """Require that the command line takes the words: a command, its options and their values."""
    command, rest = commands(), list(words)
    while hasattr(command, "commands") and rest and rest[0] in command.commands:
        command = command.commands[rest.pop(0)]
    if rest in (["--help"], ["--help-all"]):
        assert any(rest[0] in one.opts for one in command.params) or rest == ["--help"]
        return
    assert not hasattr(command, "commands"), words
    command.make_context("meshwright", rest)


def printed_of(typed: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return what a command line prints on stderr."""
    try:
        app([*typed], prog_name="meshwright", standalone_mode=False)
    except PlannerError as fault:
        report(fault, commands(), typed)
    except TyperException as fault:
        report_usage(fault, commands(), typed)
    return capsys.readouterr().err


# --------------------------------------------------------------------------------------------------
# What people type.

TYPED = (  # words, and the command under the error
    ("fits qwen3-8b --gpu 4090 --num-gpus 2", "fits qwen3-8b --gpus 2x4090"),
    ("fits qwen3-8b --gpu 4090", "fits qwen3-8b --gpus 4090"),
    ("memory qwen3-8b --gpus 8xh100", "memory qwen3-8b --gpu h100 --num-gpus 8"),
    ("plan qwen3-8b --gpus 8xh100 --batch-size 64 --seq-lenght 4k",
     "plan qwen3-8b --gpus 8xh100 --global-batch-size 64 --seq-length 4k"),
    ("plan qwen3-8b --gpus 8xh100 --seq-len 4k --batch-size 64",
     "plan qwen3-8b --gpus 8xh100 --seq-length 4k --global-batch-size 64"),
    (
        f"plan llama-3.1-8b --cluster dgx-h100 --num-nodes 2 --cluster dgx-a100 --num-nodes 4 {BATCH}",
        f"plan llama-3.1-8b {BATCH} --nodes 2xdgx-h100,4xdgx-a100",
    ),
    (
        f"plan llama-3.1-8b --gpus 4xh100 --lora-rank 16 --launcher megatron-lm {BATCH}",
        f"plan llama-3.1-8b --gpus 4xh100 --lora-rank 16 --launcher trl {BATCH}",
    ),
    (f"plan llama-3.1-8b --gpus 8xh100 {BATCH} --launcher=fsdp",
     f"plan llama-3.1-8b --gpus 8xh100 {BATCH} --launcher torchtitan"),
    (f"plan llama-3.1-8b --gpus 8xh100 {BATCH} --launcher zzz", "values launcher"),
    (f"plan llama-3.1-8b --gpus 8xh100 {BATCH} --launcher verl", "values launcher"),  # not trl
    (f"plan llama-3.1-8b --gpus 8xh100 {BATCH} --launcher nemo",
     f"plan llama-3.1-8b --gpus 8xh100 {BATCH} --launcher megatron-bridge"),
    (f"plan llama-3.1-8b --gpu 'M3 Max' {BATCH}", "gpus"),
    (f"plan llama-3.1-8b --cluster dgx-h10 {BATCH}", f"plan llama-3.1-8b --cluster dgx-h100 {BATCH}"),
    (f"plan llama-3.1-8b --cluster nowhere {BATCH}", "clusters"),
    (f"plan llama-3.1-8c --gpus 8xh100 {BATCH}", f"plan llama-3.1-8b --gpus 8xh100 {BATCH}"),
    (f"plan --model llama-3.1-8c --gpus 8xh100 {BATCH}",
     f"plan --model llama-3.1-8b --gpus 8xh100 {BATCH}"),
    ("plan llama-3.1-8b --num-nodes '32 gpus' --gpu h100", "plan llama-3.1-8b --gpu h100 --num-gpus 32"),
    ("plan llama-3.1-8b --gpus 8xh100 --global-batch-size 4M",
     "plan llama-3.1-8b --gpus 8xh100 --global-batch-size 4M --seq-length 8192"),
    (f"plan llama-3.1-8b --gpu h100,a100 {BATCH}", f"plan llama-3.1-8b {BATCH} --nodes 1xh100,1xa100"),
    (f"plan llama-3.1-8b --gpus h100 {BATCH}", f"plan llama-3.1-8b --gpus 8xh100 {BATCH}"),
    ("fits llama-3.1-8b --gpus 1xv100 --launcher axolotl",
     "fits llama-3.1-8b --gpus 1xv100 --launcher trl --precision fp16"),
    ("fits gpt2 --gpus t4 --seq-length 2048", "fits gpt2 --gpus t4 --seq-length 1024"),
    ("fits qwen3-8b --gpus m3-max", "gpus"),
    ("fits qwen3-8b --gpus mi300y", "fits qwen3-8b --cluster mi300x-8"),
    (f"plan llama-3.1-8b --gpus 8xh100 {BATCH} --pin tpp=4 --pin pp=2",
     f"plan llama-3.1-8b --gpus 8xh100 {BATCH} --pin tp=4 --pin pp=2"),
    (f"plan llama-3.1-8b --gpus 8xh100 {BATCH} --pin mbs=0 --pin pp=2",
     f"plan llama-3.1-8b --gpus 8xh100 {BATCH} --pin mbs=1 --pin pp=2"),
    (f"plan llama-3.1-8b --gpus 8xh100 {BATCH} --pin foo=4", "values pin"),
    (f"plan llama-3.1-8b --gpus 8xh100 {BATCH} --allow foo", "values allow"),
    (f"plan llama-3.1-8b --gpus 8xh100 {BATCH} --bound tp=8:4",
     f"plan llama-3.1-8b --gpus 8xh100 {BATCH} --bound tensor_parallel_size=4:8"),
    (f"plan my-org/private-model --gpus 8xh100 {BATCH}",
     f"plan --gpus 8xh100 {BATCH} --model ./config.json"),
    (f"plan train.py --gpus 8xh100 {BATCH}", f"plan --gpus 8xh100 {BATCH} --from-capture train.py"),
    (f"predict llama-3.1-8b --gpus 8xh100 {BATCH} --pin tp=8 --pin mbs=1",
     f"predict llama-3.1-8b --gpus 8xh100 {BATCH} --set tp=8 --set mbs=1"),
    (f"plan llama-3.1-8b --gpus 8xh100 --cluster=dgx-h100 {BATCH}",
     f"plan llama-3.1-8b --gpus 8xh100 {BATCH}"),
    ("plan --gpus 8xh100",
     "plan --gpus 8xh100 --model llama-3.1-8b --global-batch-size 64 --seq-length 4096"),
    ("plan gpt2 --gpus 8xh100 --global-batch-size 64",  # which has 1024 positions
     "plan gpt2 --gpus 8xh100 --global-batch-size 64 --seq-length 1024"),
    ("plan --gpus 8xh100,8xa100",
     "plan --gpus 8xh100,8xa100 --model llama-3.1-8b --global-batch-size 512 --seq-length 8192"),
    ("plan llama-3.1-8b --modle x", "plan llama-3.1-8b --model x"),
    ("plan llama-3.1-8b --num-nodes 2 --num-nodes 4", "plan llama-3.1-8b --num-nodes 2,4"),
    (f"plan llama-3.1-8b --gpus 8xh100 --gpus fewest {BATCH}",
     f"plan llama-3.1-8b {BATCH} --gpu h100 --num-gpus 8 --gpus fewest"),
    (f"plan llama-3.1-8b --gpus 8xh100 --gpus 8xa100 {BATCH}",
     f"plan llama-3.1-8b {BATCH} --gpus 8xh100,8xa100"),
    (f"plan llama-3.1-8b --gpus 8xh100,8xa100 --gpus fewest {BATCH}", "plan --help"),
    (f"plan llama-3.1-8b --gpus 8xh100 --bound tp=16:32 {BATCH}",
     f"plan llama-3.1-8b --gpus 8xh100 --bound tensor_parallel_size=8:8 {BATCH}"),
    (f"plan llama-3.1-8b --gpus 8xh100 --constraint 'tpp >= 2' {BATCH}", "values constraint"),
    (f"plan llama-3.1-8b --nodes 2xh100,0xa100 {BATCH}", "plan --help"),
    (f"plan llama-3.1-8b --gpu h100 --num-nodes 3 --num-gpus 8 {BATCH}",
     f"plan llama-3.1-8b --gpu h100 --num-nodes 3 --num-gpus 6 {BATCH}"),
    (f"plan llama-3.1-8b --gpus 4xh100 --num-nodes 2 --gpus-per-node 4 {BATCH}",
     f"plan llama-3.1-8b --gpus 8xh100 --num-nodes 2 --gpus-per-node 4 {BATCH}"),
    (f"plan llama-3.1-8b --gpus 5xh100 --num-nodes 2 {BATCH}",
     f"plan llama-3.1-8b --gpus 4xh100 --num-nodes 2 {BATCH}"),
    (f"plan llama-3.1-8b --nodes 2xh100 --gpus 5 {BATCH}",
     f"plan llama-3.1-8b --nodes 2xh100 --gpus 4 {BATCH}"),
    (f"plan llama-3.1-8b --gpus 2x4xh100 --num-nodes 3 {BATCH}",
     f"plan llama-3.1-8b --gpus 2x4xh100 {BATCH}"),
    (f"plan llama-3.1-8b --gpus 16xh100 --num-nodes 2,4 {BATCH}",
     f"plan llama-3.1-8b --gpus 16xh100 --num-nodes 4 {BATCH}"),
    (f"plan llama-3.1-8b --gpus 8 {BATCH}", f"plan llama-3.1-8b --gpus 8 {BATCH} --gpu h100"),
    (f"plan llama-3.1-8b --gpus 8xh100 --trained-module lm_head {BATCH}",
     f"plan llama-3.1-8b --gpus 8xh100 --trained-module lm_head {BATCH} --lora-rank 16"),
    ("plan llama-3.1-8b --forc jsn", "plan --help"),  # --force takes no value
    (f"plan llama-3.1-8b --gpus 8xh100 --base-precision nf4 {BATCH}",
     f"plan llama-3.1-8b --gpus 8xh100 --base-precision nf4 {BATCH} --lora-rank 16"),
    ("serve --database-url postgresql://me:secret@db/x --prot 1",
     "serve --database-url 'postgresql://me:***@db/x' --port 1"),
    ("plan llama-3.1-8b --seq-length 8q", "plan --help"),
    # what other tools call a thing
    (f"plan qwen3-4b --gpus 2xrtx-3090 --tp 2 {BATCH}",
     f"plan qwen3-4b --gpus 2xrtx-3090 --pin tensor_parallel_size=2 {BATCH}"),
    (f"predict qwen3-4b --gpus 2xrtx-3090 {BATCH} --tensor-parallel-size 2",
     f"predict qwen3-4b --gpus 2xrtx-3090 {BATCH} --set tensor_parallel_size=2"),
    (f"plan --lora qwen3-4b --gpus 2xrtx-3090 {BATCH}",
     f"plan --lora-rank 16 qwen3-4b --gpus 2xrtx-3090 {BATCH}"),
    (f"plan qwen3-4b --method qlora --gpus 2xrtx-3090 {BATCH}",
     f"plan qwen3-4b --lora-rank 16 --base-precision nf4 --gpus 2xrtx-3090 {BATCH}"),
    ("plan qwen3-4b --gpus 2xrtx-3090 --batchsize 64 --seq-length 4096",
     "plan qwen3-4b --gpus 2xrtx-3090 --global-batch-size 64 --seq-length 4096"),  # not --batching
    ("plan qwen3-4b --gpus 2xrtx-3090 --globalbatchsize 64 --seq_length 4096 --tensorparallel 2",
     ("plan qwen3-4b --gpus 2xrtx-3090 --global-batch-size 64 --seq-length 4096"
      " --pin tensor_parallel_size=2")),
    (f"plan qwen3-4b --gpus 2xrtx-3090 {BATCH} --lora 8",
     f"plan qwen3-4b --gpus 2xrtx-3090 {BATCH} --lora-rank 8"),
    (f"plan qwen3-4b --gpus 2xrtx-3090 {BATCH} --qlora=64",
     f"plan qwen3-4b --gpus 2xrtx-3090 {BATCH} --lora-rank 64 --base-precision nf4"),
    (f"plan lama-9b --gpus 8xh100 {BATCH}", f"plan llama-7b --gpus 8xh100 {BATCH}"),  # not glm4-9b
    ("explain qwen3-30b-a3b --gpus 24xh100 --global-batch-size 256 --seq-length 4096",
     ("explain qwen3-30b-a3b --gpus 24xh100 --global-batch-size 256 --seq-length 4096"
      " --set pipeline_parallel_size=3")),  # 24 replicas do not share the batch, and 16 leave GPUs idle
    (f"plan qwen3-4b --sft --gpus 2xrtx-3090 {BATCH}", f"plan qwen3-4b --gpus 2xrtx-3090 {BATCH}"),
    (f"plan qwen3-4b --dpo true --gpus 2xrtx-3090 {BATCH}",
     f"plan qwen3-4b --sample pair --reference frozen --gpus 2xrtx-3090 {BATCH}"),
    ("plan qwen3-4b --gpus 1xl4 --batch-size 64 --max_length 2048 --load_in_8bit --gradient_checkpointing",
     ("plan qwen3-4b --gpus 1xl4 --global-batch-size 64 --seq-length 2048 --lora-rank 16"
      " --base-precision int8 --pin recompute_granularity=full")),
    (f"plan qwen3-4b --use_peft false --gpus 2xrtx-3090 {BATCH}", "plan --help"),
    (f"plan qwen3-4b --load_in_4bit --lora_r 64 --gpus 2xrtx-3090 {BATCH}",  # a rank wins over the example
     f"plan qwen3-4b --base-precision nf4 --lora-rank 64 --gpus 2xrtx-3090 {BATCH}"),
    (f"plan qwen3-4b --lora --bf16 --gpus 2xrtx-3090 {BATCH} --lora-rank 8 --precision bf16",
     f"plan qwen3-4b --precision bf16 --gpus 2xrtx-3090 {BATCH} --lora-rank 8"),
    (f"plan qwen3-4b --gpus 2xrtx-3090 {BATCH} --fsdp full_shard --offload_optimizer cpu",
     f"plan qwen3-4b --gpus 2xrtx-3090 {BATCH} --pin zero_stage=3 --allow offload"),
    (f"plan qwen3-4b --epochs 3 --gpus 2xrtx-3090 {BATCH}", "plan --help"),  # nor is it --csv
    ("fits qwen3-4b --help-all", "fits --help"),
    ("plan llama-3.1-8b --max-oom-probability x", "plan --help-all"),
    ("memory llama-3.1-8b --num-gpus 9", "memory llama-3.1-8b --num-gpus 8"),
    (f"plan llama-3.1-8b --gpus 8xh100 {BATCH} --pin tp=8,pp=4",
     f"plan llama-3.1-8b --gpus 8xh100 {BATCH} --pin tensor_parallel_size=2 --pin pp=4"),
    (f"plan llama-3.1-8b --gpus 8xh100 {BATCH} --tensor-model-parallel-size 2 --expert-parallel=1",
     f"plan llama-3.1-8b --gpus 8xh100 {BATCH} --pin tensor_parallel_size=2 --pin expert_parallel_size=1"),
    (f"plan Qwen/Qwen3-VL-8B-Instruct --gpus 8xh100 {BATCH} --images-per-sample 1",
     f"plan Qwen/Qwen3-VL-8B-Instruct --gpus 8xh100 {BATCH} --images-per-sample 1 --image-tokens 1024"),
    (f"plan llama-3.1-8b --gpus 8xh100 {BATCH} --images-per-sample 1",  # a model without a tower
     f"plan llama-3.1-8b --gpus 8xh100 {BATCH}"),
    ("explain train.sh", "explain --from-args train.sh"),
    ("plan train.sh", "explain --from-args train.sh"),
    ("predict train.sh --gpus 8xh100", "predict --gpus 8xh100 --from-args train.sh"),
    ("explain train.py --gpus 8xh100", "explain --from-args train.py --gpus 8xh100"),
    ("plan flux-9-dev", "models"),
    ("gpus h10o", "gpus"),
    ("exprot 1", "export 1"),
    ("plna", "plan --help"),
    ("jobs lits", "jobs list --help"),
    ("launchers trl", "values launcher"),  # not launch, which is spelled like it
    ("optimizers", "values optimizer"),
    ("explain 1", "explain --plan 1"),
    ("plan 1", "models"),
)  # fmt: skip


@pytest.mark.parametrize(("words", "command"), TYPED)
def test_the_tip_is_the_command_that_was_typed_with_the_one_change(
    words: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = shlex.split(words)
    assert requires_a_tip(typed, printed_of(typed, capsys)) == command


def test_what_is_turned_off_means_nothing_here(capsys: pytest.CaptureFixture[str]) -> None:
    for typed in ("--use_peft false", "--load-in-4bit=no", "--peft none"):
        printed = printed_of(shlex.split(f"plan qwen3-4b --gpus 2xrtx-3090 {typed}"), capsys)
        assert "here it is" not in printed


@pytest.mark.parametrize("switch", sorted({ours for ours in BY_NAME.values() if "{}" not in ours}))
def test_every_switch_of_other_tools_is_a_plan_that_is_legal(switch: str) -> None:
    words = ["--model", "qwen3-4b", "--gpus", "8xh100", *BATCH.split(), *switch.split()]
    given = commands().commands["plan"].make_context("meshwright plan", words).params
    parse_problem(
        read_request(**{name: value for name, value in given.items() if name in OPTIONS and value})
    )


@pytest.mark.parametrize("ours", sorted({ours for ours in BY_NAME.values() if "{}" in ours}))
def test_every_value_of_other_tools_belongs_to_an_option_of_plan(ours: str) -> None:
    assert Line.of(["plan"], commands()).option(ours.split(maxsplit=1)[0]) is not None


# --------------------------------------------------------------------------------------------------
# Every error that is drawn.


def refused_requests() -> Iterator[tuple[dict[str, Any], InvalidProblemError]]:
    rows = (json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines())
    refused = [(base, changes) for base, changes, found in rows if isinstance(found, str)]
    for base, changes in refused[::EVERY]:
        request = request_with(base, changes)
        request.pop("configuration", None)
        try:
            read_job_request(request, parse_problem)
        except InvalidProblemError as fault:
            yield request, fault


def test_every_error_of_a_request_ends_with_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    typed, seen = ["plan", "problem.json"], 0
    for seen, (_, fault) in enumerate(refused_requests(), start=1):  # noqa: B007 - the number is held below
        report(fault, commands(), typed)
        requires_a_tip(typed, capsys.readouterr().err)
    assert seen > 60


def test_the_tip_of_a_refused_request_has_an_answer_or_another_error() -> None:
    seen = 0
    for request, fault in refused_requests():
        for error in fault.errors:
            patch = patch_of(error.tip) if error.tip else None
            if patch is not None:
                seen += 1
                assert error not in errors_of(merged(request, patch)), error.tip
    assert seen > 2


def errors_of(request: dict[str, Any]) -> tuple[FieldError, ...]:
    try:
        read_job_request(request, parse_problem)
    except InvalidProblemError as fault:
        return fault.errors
    return ()


def merged(request: dict[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request with a JSON merge patch (RFC 7396)."""
    kept = {name: value for name, value in request.items() if patch.get(name, value) is not None}
    parts = {
        name: merged(kept.get(name) or {}, value) if isinstance(value, dict) else value
        for name, value in patch.items()
        if value is not None
    }
    return {**kept, **parts}


def test_every_option_with_a_value_that_it_does_not_take_ends_with_a_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    usual = {"model": "llama-3.1-8b", "global_batch_size": "64", "seq_length": 4096, "gpus": "8xh100"}
    seen = set[str]()
    for (name, row), value in itertools.product(OPTIONS.items(), (*BAD_VALUES, *PIECES)):
        kind = row.option.kind if row.option else str
        try:
            given = value if kind in (str, bool) else kind(value)
            given = [given] if row.option and row.option.repeats else given
            asked: dict[str, Any] = {**usual, name: given}
            parse_problem(read_request(**asked))
        except InvalidProblemError as fault:
            typed = ["plan", "llama-3.1-8b", *shlex.split(BATCH), f"--{name.replace('_', '-')}={value}"]
            report(fault, commands(), typed)
            requires_a_tip(typed, capsys.readouterr().err)
            seen.add(name)
        except (ValueError, OverflowError):
            continue
    assert len(seen) > 35


@pytest.mark.parametrize("path", sorted(path for path, _ in leaves()))
def test_every_usage_error_ends_with_a_command(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = dict(leaves())[path]
    options = [one.opts[-1] for one in command.params if one.param_type_name == "option"]
    numbers = [one for one in options if dict_of(command)[one].type_descriptor.annotation in (int, float)]
    for words in (["--nosuch"], *([one, "x"] for one in numbers), *([one] for one in options[:2])):
        typed = [*path.split(), *words]
        try:
            command.make_context(path, list(words))
        except TyperException as fault:
            report_usage(fault, commands(), typed)
            printed = capsys.readouterr().err
            if printed.startswith("error: "):
                requires_a_tip(typed, printed)


def dict_of(command: Any) -> dict[str, Any]:  # noqa: ANN401 - Typer keeps the type of commands to itself
    return {one.opts[-1]: one for one in command.params}


# --------------------------------------------------------------------------------------------------
# Lists of names.


def test_of_many_names_a_sentence_shows_the_nearest_five_and_their_number() -> None:
    names = [f"name-{letter}" for letter in "abcdefghi"]
    few = UnknownNameError.among("/x", "zzzz", names[:8]).errors[0].sentence()
    many = UnknownNameError.among("/x", "zzzz", names).errors[0].sentence()
    assert few.endswith(f"Allowed: {', '.join(names[:8])}")
    assert many.endswith("Allowed: name-a, name-b, name-c, name-d, name-e, … (9 in all)")
    near = FieldError(pointer="/x", message='"name-i" is wrong', allowed=", ".join(names))
    assert "name-i, … (9 in all)" in near.sentence()


def test_a_tip_is_a_merge_patch_for_a_program() -> None:
    assert patch_of("--launcher trl") == {"launcher": "trl"}
    assert patch_of("--seq-length 8192") == {"workload": {"seq_length": 8192}}
    assert patch_of("--force") is None
    assert tip_of({"workload": {"seq_length": 8192}}) == "--seq-length 8192"
    assert tip_of(None) == ""


def test_the_patch_of_a_tip_gives_the_request_an_answer() -> None:
    request = {
        "model": "llama-3.1-8b", "cluster": "dgx-h100", "launcher": "megatron-lm",
        "workload": {"global_batch_size": 64, "seq_length": 4096, "lora_rank": 16},
    }  # fmt: skip
    with pytest.raises(InvalidProblemError) as refused:
        parse_problem(request)
    patch = patch_of(refused.value.errors[0].tip)
    assert parse_problem({**request, **(patch or {})}).launcher == "trl"


@pytest.mark.parametrize("given", ["a.sh", "fsdp.yaml"])
def test_an_option_of_accelerates_command_in_its_file_is_replaced_by_the_command_of_the_tip(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """accelerate 1.15 stops at other names in its file (config_args.py:155): use_fsdp is an option."""
    monkeypatch.chdir(tmp_path)
    own = "compute_environment: LOCAL_MACHINE\nuse_fsdp: true\nmixed_precision: bf16\nnum_processes: 8\n"
    Path("fsdp.yaml").write_text(own)
    Path("a.sh").write_text(
        "accelerate launch --config_file fsdp.yaml train.py --model_name_or_path Qwen/Qwen3-0.6B "
        "--max_seq_length 2048 --per_device_train_batch_size 2 --bf16 true\n"
    )
    typed = ["explain", "--from-args", given, "--gpus", "8xH100"]
    *_, last = printed_of(typed, capsys).strip().split("\n")
    command = shlex.split(last.removeprefix("tip: "))
    assert command == ["sed", "-i.bak", "s/^use_fsdp:.*/distributed_type: FSDP/", "fsdp.yaml"]
    subprocess.run(command, check=True)
    assert Path("fsdp.yaml").read_text() == own.replace("use_fsdp: true", "distributed_type: FSDP")


def test_a_command_without_the_option_of_a_tip_gets_its_help() -> None:
    fault = FieldError(pointer="/plan", message="x", tip="--launcher trl")
    assert tips_of([fault], Line.of(["compare", "1", "2"], commands())) == ["meshwright compare --help"]


def test_files_behind_one_option_are_each_given_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, plugin = tmp_path / "run.sh", tmp_path / "ds.json"
    run.write_text("torchrun train.py\n")
    plugin.write_text("{}")
    typed = ["explain", "--from-args", str(run), str(plugin), str(plugin), "--gpus", "8xh100"]
    tip = requires_a_tip(typed, printed_of(typed, capsys))
    assert tip == f"explain --from-args {run} --from-args {plugin} --gpus 8xh100"
    typed[4] = "qwen3-8b"  # no file: the model
    tip = requires_a_tip(typed, printed_of(typed, capsys))
    assert tip == f"explain --from-args {run} --from-args {plugin} qwen3-8b --gpus 8xh100"


def test_a_file_of_another_kind_gets_no_option_that_it_refuses(tmp_path: Path) -> None:
    fault = FieldError(pointer="/launcher", message="trl is not priced yet", nearest="nemo-rl")
    for text, tip in {
        "kind: post_training\n": "meshwright plan --help",
        "model: a\n": "meshwright plan a.yaml --launcher nemo-rl",
    }.items():
        (tmp_path / "a.yaml").write_text(text)
        (found,) = tips_of([fault], Line.of(["plan", str(tmp_path / "a.yaml")], commands()))
        assert found.replace(f"{tmp_path}/", "") == tip


@pytest.mark.parametrize(
    ("name", "text", "edit"),
    [
        ("a.yaml", "workload: {global_batch_size: 64, seq_len: 4096}", "s/seq_len:/seq_length:/"),
        ("a.json", '{"workload": {"seq_len" : 4096}}', 's/seq_len" :/seq_length" :/'),
        ("b.yaml", "workload: {seq_len: 4096, max_seq_len: 1}", ""),  # which would be renamed too
    ],
)
def test_a_misspelt_field_of_a_file_is_renamed_there(
    tmp_path: Path, name: str, text: str, edit: str
) -> None:
    fault = FieldError(pointer="/workload/seq_len", message="unknown field", nearest="seq_length")
    file = tmp_path / name
    file.write_text(text)
    (tip,) = tips_of([fault], Line.of(["plan", str(file)], commands()))
    if not edit:
        assert tip == "meshwright plan --help"
        return
    assert shlex.split(tip) == ["sed", "-i.bak", edit, str(file)]
    subprocess.run(shlex.split(tip), check=True)
    assert "seq_length" in file.read_text()
    assert (tmp_path / f"{name}.bak").read_text() == text


@pytest.mark.parametrize(
    ("nearest", "text", "right"),
    [
        ("2048", '{"hidden_size": "2048", "num_layers": 4}', '{"hidden_size": 2048, "num_layers": 4}'),
        ("2048", '{"hidden_size":2048.0}', '{"hidden_size":2048}'),
        ("2048", '{"hidden_size": [2048]}', ""),
        (
            "2048",
            '{"hidden_size": "2048", "text_config": {"hidden_size": "2048"}}',
            "",
        ),  # which of the two?
        ("1", '{"hidden_size": -5, "text_config": {"hidden_size": 64}}', ""),  # the other is right
        ("silu", '{"hidden_size": "sillu"}', '{"hidden_size": "silu"}'),  # a word keeps its quotes
        ("none", '{"hidden_size": "nvfp4-merged"}', '{"hidden_size": "none"}'),  # all of the word
        ("none", '{"hidden_size": "two words", "b": 1}', '{"hidden_size": "none", "b": 1}'),
        ("none", '{"hidden_size": "a/b"}', ""),  # which sed would take for its end
    ],
)
def test_a_wrong_value_of_a_models_file_is_corrected_there(
    tmp_path: Path, nearest: str, text: str, right: str
) -> None:
    fault = FieldError(pointer="/model/hidden_size", message="is wrong", nearest=nearest)
    (tmp_path / "config.json").write_text(text)
    (tip,) = tips_of([fault], Line.of(["plan", str(tmp_path)], commands()))
    if not right:
        assert tip == "meshwright plan --help"
        return
    subprocess.run(shlex.split(tip), check=True)
    assert (tmp_path / "config.json").read_text() == right


@pytest.mark.parametrize(
    ("typed", "tip"),
    [
        ("fix", "fix run.slurm --cluster dgx-h100 --num-nodes 8"),  # the script in the folder
        ("validate", "validate rows.csv"),
        ("calibrate", "calibrate rows.csv --out mine.json"),
        ("jobs show", "jobs list"),
        ("export", "export 1 --save-dir run/"),  # of the last answer
        ("verify", "verify 1"),
        ("memory", "memory llama-3.1-8b --gpu h100-sxm-80gb"),
        ("memory qwen3-8b --gpus 2xh100,1xa100", "memory qwen3-8b --gpu h100 --num-gpus 2"),
    ],
)
def test_a_command_without_its_argument_says_what_to_give_it_here(
    typed: str,
    tip: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "run.slurm").write_text("#!/bin/bash\n", encoding="utf-8")
    (tmp_path / "rows.csv").write_text("run_id\n", encoding="utf-8")
    answers = tmp_path / "meshwright" / "answers"
    answers.mkdir(parents=True)
    if typed in ("export", "verify"):  # there is no plan yet: how to find one
        assert requires_a_tip([typed], printed_of([typed], capsys)).startswith("plan ")
    (answers / "a.json").write_text("{}", encoding="utf-8")
    assert requires_a_tip(typed.split(), printed_of(typed.split(), capsys)) == tip

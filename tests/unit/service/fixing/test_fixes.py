"""``meshwright fix``: a diff that reads back as what was priced, files written whole, changes compared."""

import json
import os
import subprocess
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from meshwright.launchers.reading.base import Overrides
from meshwright.service.cli.launch_files import source_of
from meshwright.service.files import replace_texts
from meshwright.service.fixing.fixes import Fixes, edited_files, fixes_of, verified
from meshwright.service.fixing.lines import fix_lines
from meshwright.service.requests.launch_files import own_of_files
from tests.served.requests import run_here

SCRIPT = """\
#!/bin/bash
# our run: --tensor-model-parallel-size 1 was tried, too
source env.sh
TP=8   # one node
MBS=${MBS:-1}
SAVE=/ckpt/tp${TP}
ARGS=(
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
    --seq-length 4096 --max-position-embeddings 4096 --vocab-size 32000 --swiglu --bf16
    --untie-embeddings-and-output-weights --disable-bias-linear --normalization RMSNorm
    --tensor-model-parallel-size $TP
    --sequence-parallel
    --micro-batch-size $MBS
    --global-batch-size 64
    --recompute-granularity full
    --recompute-method uniform   # saves memory
    --recompute-num-layers 1
    --use-distributed-optimizer
    --wandb-project ours
)
torchrun --nproc_per_node 8 pretrain_gpt.py "${ARGS[@]}" --data-path "$DATA" 2>&1 | tee log
"""
CLUSTER = {"groups": [{"gpu": "h100-sxm-80gb", "num_nodes": 1, "gpus_per_node": 8}]}
ON_ONE_NODE = ["--gpu", "h100-sxm-80gb", "--num-gpus", "8", "--no-search"]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.sh"
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def _few_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the search go on from the best set of each level with three moves, where commands are judged."""
    for name, most in {"_FASTEST": 1, "_SMALLEST": 0, "_MOVES_BY_TIME": 3, "_MOVES_BY_MEMORY": 0}.items():
        monkeypatch.setattr(f"meshwright.service.fixing.search.{name}", most)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Fixes:
    path = tmp_path_factory.mktemp("fix") / "train.sh"
    path.write_text(SCRIPT)
    return fixes_of(source_of([path]), {"cluster": CLUSTER}, searched=False)


def test_sets_of_edits_grow_and_each_is_faster_than_the_one_before(found: Fixes) -> None:
    steps = [found.prediction.step_time_s, *(one.prediction.step_time_s for one in found.sets)]
    assert len(steps) > 2
    assert all(before - later >= 0.02 * steps[0] for before, later in pairwise(steps))
    assert [one.number for one in found.sets] == sorted({one.number for one in found.sets})
    assert all(one.number == len(one.edits) for one in found.sets)
    assert found.recommended is not None
    least = steps[0] - 0.9 * (steps[0] - min(steps))
    smaller = [one for one in found.sets if one.number < found.recommended.number]
    assert found.recommended.prediction.step_time_s <= least
    assert all(one.prediction.step_time_s > least for one in smaller)


def test_a_search_that_is_stopped_has_the_sets_so_far(found: Fixes) -> None:
    asked = iter([False] * 12)
    stopped = fixes_of(
        found.source, {"cluster": CLUSTER}, searched=False, should_stop=lambda: next(asked, True)
    )
    assert {one.number for one in stopped.sets} == {1}
    assert len(stopped.sets) < len(found.sets)


def test_every_set_reads_back_as_it_was_priced_and_keeps_the_rest(found: Fixes, tmp_path: Path) -> None:
    for one in found.sets:
        path = tmp_path / "train.sh"
        path.write_text(one.files["train.sh"])
        own = own_of_files({"cluster": CLUSTER}, source_of([path]))
        assert own.configuration == one.own.configuration
        assert own.problem.workload.global_batch_size == 64
        for line in ("# our run: --tensor-model-parallel-size 1 was tried, too", "source env.sh",
                     "    --wandb-project ours", SCRIPT.splitlines()[-1]):  # fmt: skip
            assert line in path.read_text().splitlines()
    sizes = {change.line for one in found.sets for edit in one.edits for change in edit
             if change.name == "--tensor-model-parallel-size"}  # fmt: skip
    assert sizes == {4}  # the assignment, not the comment nor the argument


@pytest.mark.usefixtures("_few_sets")
def test_the_diff_is_alone_on_stdout_and_applies(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, errors = run_here(monkeypatch, capsys, "fix", "train.sh", *ON_ONE_NODE)
    assert code == 0
    assert out.startswith("--- a/train.sh\n+++ b/train.sh\n@@")
    assert max(map(len, errors.splitlines())) <= 80
    assert "train.sh, megatron-lm: " in errors
    assert "Recommended: " in errors
    assert "train.sh, line 6 uses TP, too: SAVE=/ckpt/tp${TP}" in errors
    subprocess.run(["git", "apply", "-"], input=out.encode(), check=True, cwd=script.parent)
    changed = script.read_text()
    script.write_text(SCRIPT)
    code, out, _ = run_here(monkeypatch, capsys, "fix", "train.sh", *ON_ONE_NODE, "--in-place=.bak")
    assert (code, out, script.read_text()) == (0, "", changed)
    assert script.with_name("train.sh.bak").read_text() == SCRIPT


@pytest.mark.usefixtures("_few_sets")
def test_a_number_of_edits_can_be_chosen(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, errors = run_here(monkeypatch, capsys, "fix", script.name, *ON_ONE_NODE, "--edits", "1")
    assert code == 0
    assert "* 1 edit " in errors
    assert sum(line.startswith("+") for line in out.splitlines()) == 2  # its own, and the header's
    code, _, errors = run_here(monkeypatch, capsys, "fix", script.name, *ON_ONE_NODE, "--edits", "6")
    assert code == 2
    assert "--edits: no set of 6 edits" in errors


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "SCRIPT: give the launch script"),
        (["nowhere.sh"], "nowhere.sh: No such file"),
        (["broken.sh"], "line 2: a quote stays open"),
        (["computed.sh"], "line 2"),
        (["run.json"], "is a capture, which nothing runs"),
        (["train.sh", "--fail-above", "2%"], "--fail-above: needs --compare"),
        (["train.sh", "--compare", "a", "b"], "SCRIPT: does not go with --compare"),
        (["--compare", "a", "b"], "a is neither a path nor a revision"),
        (["--compare", "train.sh", "train.sh", "--fail-above", "much"], '"much" is not a percentage'),
        (["train.sh", "--in-place=/x"], "the ending of a backup has no /"),
    ],
)
def test_wrong_input_is_named(
    script: Path, words: list[str], said: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    script.with_name("broken.sh").write_text("#!/bin/bash\nX='open\ntorchrun pretrain_gpt.py --bf16\n")
    script.with_name("run.json").write_text('{"meshwright_capture": 1, "calls": [], "files": {}}')
    flags = '--micro-batch-size "$(nproc)"'
    script.with_name("computed.sh").write_text(f"#!/bin/bash\ntorchrun pretrain_gpt.py --bf16 {flags}\n")
    code, out, errors = run_here(monkeypatch, capsys, "fix", *words, *ON_ONE_NODE)
    assert (code, out) == (2, "")
    assert said in errors


def test_a_run_that_no_edit_makes_fit_says_so(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script.write_text(
        SCRIPT.replace("--num-layers 32 --hidden-size 4096", "--num-layers 320 --hidden-size 8192")
    )
    code, out, errors = run_here(monkeypatch, capsys, "fix", "train.sh", *ON_ONE_NODE)
    assert (code, out) == (3, "")
    assert "No edit that we can make lets the run fit into memory." in errors
    code, out, errors = run_here(monkeypatch, capsys, "fix", "train.sh", *ON_ONE_NODE, "--edits", "1")
    assert (code, out) == (2, "")
    assert "no set of 1 edits lets the run fit into memory. Allowed: none: no edits let it fit." in errors


TRAINER = (
    "accelerate launch --num_processes 2 trl/scripts/dpo.py --model_name_or_path Qwen/Qwen3-1.7B"
    " --max_length 2048 --per_device_train_batch_size 2 --gradient_accumulation_steps 4"
    " --gradient_checkpointing false --bf16 --use_liger_kernel --optim adamw_8bit --dtype bfloat16\n"
)


def test_the_closest_edits_of_a_run_that_does_not_fit_come_with_the_risk_that_they_take(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Full DPO of 1.7 B on 24 GiB: 37 GiB, and 21.5 GiB with recomputation and one pair a pass."""
    script.write_text(TRAINER)
    words = ("fix", "train.sh", "--gpus", "2xrtx-4090", "--no-search")
    code, out, errors = run_here(monkeypatch, capsys, *words)
    assert (code, out) == (3, "")
    assert "No edit that we can make lets the run fit into memory." in errors
    option, risk = errors.partition("--max-oom-probability")[1:]
    accepted = risk.split()[0]
    assert 0.05 < float(accepted) <= 0.5
    shown = [line.split("OOM risk")[0] for line in errors.splitlines() if " edits " in line]
    for number in ("2", "5"):
        code, out, refusal = run_here(monkeypatch, capsys, *words, "--edits", number)
        assert (code, out) == (2, "")
        assert f"--edits: no set of {number} edits lets the run fit into memory" in refusal
        assert f"Allowed: {shown[0].split()[0]} edits, with --max-oom-probability {accepted}" in refusal
    code, out, errors = run_here(monkeypatch, capsys, *words, option, accepted)
    assert code == 0
    assert "+" in out
    assert len(shown) == 1
    assert shown[0].strip() in errors


def test_files_are_replaced_all_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "a.sh", tmp_path / "b.yaml"
    first.write_bytes(b"\xef\xbb\xbfone\r\n")
    second.write_text("two\n")
    first.chmod(0o750)
    link = tmp_path / "link.sh"
    link.symlink_to(first)
    writable = os.access
    monkeypatch.setattr("os.access", lambda path, mode: path != second and writable(path, mode))
    with pytest.raises(PermissionError):
        replace_texts({link: "new\r\n", second: "new\n"}, backup=".bak")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.sh", "b.yaml", "link.sh"]
    assert first.read_bytes() == b"\xef\xbb\xbfone\r\n"
    monkeypatch.setattr("os.access", writable)
    replace_texts({link: "new\r\n", second: "new\n"})
    assert (first.read_bytes(), second.read_text()) == (b"\xef\xbb\xbfnew\r\n", "new\n")
    assert first.stat().st_mode & 0o777 == 0o750
    assert link.is_symlink()


def committed(script: Path, *links: tuple[str, str]) -> None:
    """Commit the script with tp 2, and then with tp 8 and links beside it."""

    def git(*words: str) -> None:
        asked = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
        subprocess.run(asked, check=True, capture_output=True, cwd=script.parent)

    git("init", "-q")
    script.write_text(SCRIPT.replace("TP=8", "TP=2"))
    git("add", ".")
    git("commit", "-qm", "one")
    script.write_text(SCRIPT)
    for name, target in links:
        (script.parent / name).symlink_to(target)
    git("add", ".")
    git("commit", "-qm", "two")


def test_a_link_of_a_revision_is_followed_to_its_files_and_no_further(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    outside = tmp_path_factory.mktemp("outside") / "theirs.sh"
    outside.write_text(SCRIPT)
    theirs = f"up/{outside.parent.name}/{outside.name}"
    within = [("same.sh", script.name), ("loop.sh", "loop.sh")]
    committed(script, *within, ("outside.sh", str(outside)), ("up", ".."), ("through.sh", theirs))
    _, out, _ = run_here(monkeypatch, capsys, "fix", "--compare", "HEAD~1", "HEAD", *ON_ONE_NODE, "--json")
    assert [one["name"] for one in json.loads(out)["files"]] == ["same.sh", "train.sh"]


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ("120000 blob {link}\tevil\n040000 tree {tree}\tevil\n", "behind a link or file of the same tree"),
        ("100644 blob {file}\tevil\n040000 tree {tree}\tevil\n", "behind a link or file of the same tree"),
        ("040000 tree {tree}\t..\n", "leaves its tree"),
    ],
)
def test_no_entry_of_a_revision_is_written_outside_of_its_folder(
    entries: str, said: str, script: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Git makes such trees and checks out none of them."""
    committed(script)
    outside, temporary = script.parent / "outside", script.parent / "temporary"
    for folder in (outside, temporary):
        folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))

    def made(*words: str, of: str) -> str:
        asked = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
        seen = subprocess.run(
            asked, input=of.encode(), check=True, capture_output=True, cwd=script.parent
        )  # fmt: skip
        return seen.stdout.decode().strip()

    file, link = (made("hash-object", "-w", "--stdin", of=text) for text in (SCRIPT, str(outside)))
    tree = made("mktree", of=f"100755 blob {file}\tx.sh\n")
    root = made("mktree", of=entries.format(file=file, link=link, tree=tree))
    head = made("commit-tree", root, "-p", "HEAD", of="two")
    code, out, errors = run_here(monkeypatch, capsys, "fix", "--compare", "HEAD", head, *ON_ONE_NODE)
    assert [*script.parent.rglob("x.sh")] == []
    assert (code, out) == (2, "")
    assert said in errors
    assert "/x.sh" in errors


def test_a_change_is_stated_as_markdown_and_may_fail(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    committed(script)
    words = ["fix", "--compare", "HEAD~1", "HEAD", *ON_ONE_NODE]
    code, out, _ = run_here(monkeypatch, capsys, *words)
    assert code == 0
    assert "| `train.sh` | " in out
    assert "tp 2 → 8" in out
    code, out, _ = run_here(monkeypatch, capsys, *words, "--fail-above", "2%")
    assert code == 4
    assert "more time, and the limit is 2 %" in out
    words = ["fix", "--compare", "HEAD", "HEAD~1", *ON_ONE_NODE, "--fail-above", "2%", "--json"]
    code, out, _ = run_here(monkeypatch, capsys, *words)
    assert code == 0
    assert json.loads(out)["files"][0]["time_change"] < -0.02


def test_the_launcher_builds_the_edited_files(found: Fixes) -> None:
    one = found.sets[-1]
    arguments = edited_files(found.source, one, Overrides())["megatron_args.sh"].split()
    size = arguments[arguments.index("--tensor-model-parallel-size") + 1]
    assert int(size) == one.own.configuration.tensor_parallel_size != 8
    assert not {"--data-path", "--wandb-project"} & {*arguments}
    with_json = replace(found.source, files={"ds.json": '{"train_micro_batch_size_per_gpu": 1}'})
    of_deepspeed = replace(one, own=replace(one.own, launcher="deepspeed"))
    edited = replace(of_deepspeed, files={"ds.json": '{"train_micro_batch_size_per_gpu": 2}'})
    assert edited_files(with_json, edited, Overrides()) == {
        "ds_config.json": '{"train_micro_batch_size_per_gpu": 2}'
    }
    assert edited_files(found.source, of_deepspeed, Overrides()) == {}


def test_a_launcher_that_builds_nothing_without_a_gpu_is_named(found: Fixes) -> None:
    one = replace(found.sets[-1], own=replace(found.sets[-1].own, launcher="trl"))
    seen = verified(replace(found, sets=(one,), recommended=one)).recommended
    assert seen is not None
    assert seen.verdict == f"{one.verdict}; not verified: trl builds no rank without a GPU"


def test_adapters_on_deepspeed_are_compared_with_what_edits_reach_and_a_switch_is_named(
    tmp_path: Path,
) -> None:
    """No plan has adapters under DeepSpeed, so the search plans without it: that takes more than edits."""
    command = (
        "deepspeed --num_gpus 8 train.py --deepspeed ds.json --model_name_or_path Qwen/Qwen3-0.6B --bf16 "
        "true --use_peft --lora_r 16 --max_length 1024 --per_device_train_batch_size 1 "
        "--gradient_accumulation_steps 8 --gradient_checkpointing true --dtype bfloat16\n"
    )
    engine = {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}}
    (tmp_path / "a.sh").write_text(command)
    (tmp_path / "ds.json").write_text(json.dumps(engine))
    found = fixes_of(source_of([tmp_path / "a.sh"]), {"cluster": CLUSTER}, most=1)
    assert (found.own.launcher, found.switches_to) == ("deepspeed", "accelerate")
    (best,) = found.sets
    assert found.possible_s == best.prediction.step_time_s
    assert not found.possible_is_searched
    assert found.recommended is best
    switched = found.switched
    assert switched is not None
    assert switched.step_time_s < found.possible_s
    _, second, third, *_ = fix_lines(found, found.recommended, 300, given=["my runs/a.sh"])
    assert second.startswith("The best set of edits takes ")
    assert third.startswith("A switch to accelerate without DeepSpeed takes ")
    assert third.endswith(": meshwright explain --from-args 'my runs/a.sh'")
    plain = found.to_json()["switched"]
    assert (plain["launcher"], plain["step_time_s"]) == ("accelerate", switched.step_time_s)

"""The file as it grows: written after every task, resumed, never mixed with other measurements."""

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.profiles.errors import InvalidProblemError, ProfileError
from meshwright.profiles.library import find_model, model_names
from meshwright.profiles.measure.collectives import Ranks, ranks_from
from meshwright.profiles.measure.session import open_notebook
from meshwright.profiles.measure.shard import Shard, ShardGemm
from meshwright.profiles.measure.timing import Effort, timed_running, timing_of
from meshwright.profiles.measured.profile import Skipped
from meshwright.profiles.measured.read import read_measured_profile
from meshwright.profiles.model import ModelSpec
from tests.problems.measured_profiles import MACHINE, SESSION, SUBJECT, measurement

FORWARD = measurement("qkv", "forward", 1e-3, m=32)


def test_every_task_is_on_disk_at_once_and_held_by_the_next_start(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    first = open_notebook(path, SUBJECT, MACHINE, SESSION)
    assert read_measured_profile(path).measurements == ()
    first.add("gemm/qkv", [FORWARD])
    assert read_measured_profile(path).measurements == (FORWARD,)
    second = open_notebook(path, SUBJECT, MACHINE, replace(SESSION, command="again"))
    assert second.holds("gemm/qkv")
    assert not second.holds("gemm/mlp_up")
    assert [session.command for session in second.profile.sessions] == [SESSION.command, "again"]


def test_a_skipped_task_is_tried_again_and_no_longer_skipped_once_measured(tmp_path: Path) -> None:
    notebook = open_notebook(tmp_path / "p.json", SUBJECT, MACHINE, SESSION)
    notebook.skip("gemm/qkv", "not enough memory")
    notebook.skip("gemm/qkv", "not enough memory")
    assert notebook.profile.skipped == (Skipped(task="gemm/qkv", reason="not enough memory"),)
    assert not notebook.holds("gemm/qkv")
    notebook.add("gemm/qkv", [FORWARD])
    assert list(notebook.profile.skipped) == []


@pytest.mark.parametrize(
    ("subject", "machine", "message"),
    [
        (replace(SUBJECT, seq_length=64), MACHINE, "seq_length: 64 here, 32 there"),
        (replace(SUBJECT, model=replace(SUBJECT.model, num_layers=3)), MACHINE, "of another shape"),
        (SUBJECT, replace(MACHINE, torch="2.12.0"), r"torch: 2\.12\.0 here, 2\.13\.0 there"),
        (SUBJECT, replace(MACHINE, driver=None), r"driver: None here, 570\.86\.15 there"),
    ],
)
def test_other_measurements_are_refused_and_the_file_stays_as_it_was(
    tmp_path: Path, subject: object, machine: object, message: str
) -> None:
    path = tmp_path / "p.json"
    open_notebook(path, SUBJECT, MACHINE, SESSION).add("gemm/qkv", [FORWARD])
    before = path.read_bytes()
    with pytest.raises(InvalidProblemError, match=f"--out: p.json has other measurements .*{message}"):
        open_notebook(path, subject, machine, SESSION)  # type: ignore[arg-type]
    assert path.read_bytes() == before


def test_a_file_of_something_else_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "thesis.json"
    path.write_text('{"title": "ten years of work"}')
    with pytest.raises(ProfileError, match=r"thesis\.json is not a measured profile"):
        open_notebook(path, SUBJECT, MACHINE, SESSION)
    assert path.read_text() == '{"title": "ten years of work"}'


def test_a_missing_folder_is_made_and_a_file_in_its_place_is_named(tmp_path: Path) -> None:
    open_notebook(tmp_path / "new" / "p.json", SUBJECT, MACHINE, SESSION)
    assert (tmp_path / "new").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(ProfileError, match=r"p\.json: (Not a directory|File exists)"):
        open_notebook(tmp_path / "file" / "p.json", SUBJECT, MACHINE, SESSION)


# What torchrun says about the processes, and what a clock says about repeats.

TORCHRUN = {"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "8"}


def test_without_torchrun_there_is_one_process() -> None:
    assert ranks_from({}) == Ranks()
    assert Ranks().leads


def test_torchrun_tells_ranks_and_nodes() -> None:
    ranks = ranks_from(TORCHRUN)
    assert ranks == Ranks(rank=9, world_size=16, local_rank=1, local_world_size=8)
    assert not ranks.leads
    assert ranks.words() == "8x2"


@pytest.mark.parametrize(
    "wrong",
    [
        {"RANK": "16"},
        {"RANK": "-1"},
        {"RANK": "²"},
        {"WORLD_SIZE": ""},
        {"WORLD_SIZE": "1" * 400},
        {"LOCAL_RANK": "8"},
        {"LOCAL_WORLD_SIZE": "0"},
        {"LOCAL_WORLD_SIZE": "3", "LOCAL_RANK": "0"},
        {"LOCAL_WORLD_SIZE": "32"},
    ],
)
def test_ranks_that_contradict_each_other_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidProblemError, match="torchrun"):
        ranks_from({**TORCHRUN, **wrong})


def test_percentiles_of_eleven_repeats_are_the_second_sixth_and_tenth() -> None:
    timing = timing_of([float(value) for value in range(10, -1, -1)], [3.0, 1.0, 2.0])
    assert (timing.p10_s, timing.median_s, timing.p90_s) == (1.0, 5.0, 9.0)
    assert (timing.repeats, timing.host_s) == (11, 2.0)


class Clock:
    """Seconds that pass only while steps run; a device of which both marks and issuing read them."""

    kind = "cuda"
    now_s = 0.0

    def mark(self) -> float:
        return self.now_s

    def seconds_between(self, first: float, second: float) -> float:
        return second - first

    def synchronize(self) -> None:
        pass


def test_steps_are_timed_in_the_second_half_of_rounds_once_clocks_have_settled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, rounds = Clock(), list[int]()
    for name in ("monotonic", "perf_counter"):
        monkeypatch.setattr(time, name, lambda: clock.now_s)

    def forward() -> None:  # 10 ms a round after 3 of 1 ms to time issuing, 20 ms from the sixth one on
        rounds.append(len(rounds))
        clock.now_s += 1e-3 if len(rounds) <= 3 else 10e-3 if len(rounds) <= 8 else 20e-3

    def backward() -> None:
        clock.now_s += 5e-3

    effort = Effort(
        warmups=0, min_repeats=3, max_repeats=3, steady_spread=0.0, budget_s=9.0, running_s=0.19
    )
    first, second = timed_running([forward, backward], clock, effort)  # type: ignore[arg-type]
    # 5 rounds of 15 ms and 5 of 25 ms are 200 ms; the last five are all alike
    assert first.repeats == 5
    assert [first.p10_s, first.p90_s] == pytest.approx([20e-3, 20e-3])
    assert [first.host_s, second.host_s] == pytest.approx([1e-3, 5e-3])


# What one rank holds of a layer: the catalog's models, cut.


def shard(model: ModelSpec, *, tp: int = 1, ep: int = 1, micro_batch: int = 1, seq: int = 4096) -> Shard:
    return Shard(
        model=model,
        tensor_parallel_size=tp,
        expert_parallel_size=ep,
        micro_batch_size=micro_batch,
        seq_length=seq,
    )


def is_measured(model: ModelSpec) -> bool:
    """Layers with an indexer, a gate, a mixer, several streams, or sizes of their own are refused."""
    others = model.indexer or model.local_attention or model.streams or model.mixer
    alike = not (model.layer_pattern or model.unlike_layers or model.compression)
    return others is None and alike and model.attention_gate == "none"


MEASURED = [name for name in model_names() if is_measured(find_model(name))]


@pytest.mark.parametrize("name", MEASURED)
def test_the_matrices_of_an_uncut_layer_hold_all_its_weights_but_norms_and_biases(name: str) -> None:
    model = find_model(name)
    whole = shard(model)
    for kind in set(model.layer_kinds()):
        weights = sum(n * k for n, k in whole.matrices(kind).values())
        if kind == "moe":
            weights += whole.local_experts * sum(n * k for n, k in whole.expert_matrices().values())
        small = sum(one.size for one in model.layer(kind).vectors)
        if model.moe and kind == "moe":
            small += model.moe.num_experts * model.expert_bias_parameters()
            small += model.hidden_size * int(model.moe.shared_expert_gate)  # one row, which is not measured
        assert weights == model.layer_parameters(kind) - small


@pytest.mark.parametrize("name", MEASURED)
def test_an_uncut_layer_does_the_models_flops(name: str) -> None:
    model = find_model(name)
    whole = shard(model, micro_batch=2)
    for kind in set(model.layer_kinds()):
        if model.sliding_window is None:
            per_token = model.layer_forward_flops_per_token(kind, 4096)
            if model.moe and model.moe.shared_expert_gate:
                per_token -= 2 * model.hidden_size  # one row, which is not measured
            visits = 2 * 4096 * (model.moe.top_k if model.moe else 1)
            even = (
                visits % (model.moe.num_experts if model.moe else 1) == 0
            )  # else an expert's rows are rounded
            vectors = bool(model.moe and model.moe.selection_bias_counted)  # of the router, no product
            rel = 2e-3 if not even else 1e-6 if vectors else 1e-12
            wanted = pytest.approx(2 * 4096 * per_token, rel=rel)
            assert whole.layer_forward_flops(kind) == wanted


def test_the_gemms_of_llama_3_1_8b_on_two_ranks() -> None:
    gemms = {gemm.operator: gemm for gemm in shard(find_model("llama-3.1-8b"), tp=2, seq=1024).gemms()}
    # 32 + 2·8 heads of 128 on two ranks: 3072 columns; MLP 14336 / 2, gate and up in one
    assert gemms["qkv"] == ShardGemm(operator="qkv", m=1024, n=3072, k=4096)
    assert gemms["attention_out"] == ShardGemm(operator="attention_out", m=1024, n=4096, k=2048)
    assert gemms["mlp_up"] == ShardGemm(operator="mlp_up", m=1024, n=14336, k=4096)
    assert gemms["mlp_down"] == ShardGemm(operator="mlp_down", m=1024, n=4096, k=7168)
    assert gemms["head"] == ShardGemm(operator="head", m=1024, n=64128, k=4096)


def test_key_value_heads_are_copied_once_there_are_more_ranks_than_heads() -> None:
    assert shard(find_model("llama-3.1-8b"), tp=16).kv_heads == 1
    assert shard(find_model("llama-3.1-8b"), tp=4).kv_heads == 2


def test_experts_get_equal_loads() -> None:
    # 4096 tokens × 2 experts each × 4 ranks that send here, over 8 experts: 4096 rows each
    mixtral = shard(find_model("mixtral-8x7b"), tp=2, ep=4)
    assert (mixtral.local_experts, mixtral.expert_rows) == (2, 4096)
    up = next(gemm for gemm in mixtral.gemms() if gemm.operator == "experts_up")
    assert up == ShardGemm(operator="experts_up", m=4096, n=14336, k=4096, experts=2)
    # 2 FLOPs · 2 experts · 4096 · 14336 · 4096
    assert up.flops == 2 * 2 * 4096 * 14336 * 4096


@pytest.mark.parametrize(
    ("name", "tp", "ep", "message"),
    [
        ("llama-3.1-8b", 3, 1, "--tp: 3 does not divide num_attention_heads = 32"),
        ("llama-3.1-8b", 1, 2, "--ep: this model has no experts"),
        ("mixtral-8x7b", 1, 3, "--ep: 3 does not divide num_experts = 8"),
        ("megatron-1t", 64, 1, "--tp: 64 does not divide num_attention_heads = 160"),
    ],
)
def test_a_cut_that_leaves_a_rest_is_refused(name: str, tp: int, ep: int, message: str) -> None:
    with pytest.raises(InvalidProblemError, match=message):
        shard(find_model(name), tp=tp, ep=ep)


# torch is optional: nothing loads it before something is measured.

ROOT = Path(__file__).parents[4]


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_no_module_loads_torch_when_it_is_imported() -> None:
    files = sorted((ROOT / "profiles" / "measure").glob("*.py"))
    names = [f"meshwright.profiles.measure.{file.stem}" for file in files if file.stem != "__init__"]
    code = f"import importlib, sys\n[importlib.import_module(name) for name in {names!r}]\n"
    run = python(code + "import meshwright.service.cli.profile\nprint('torch' in sys.modules)")
    assert run.stdout.strip() == "False", run.stderr


def test_without_torch_the_command_says_what_to_install_and_ends_with_2(tmp_path: Path) -> None:
    arguments = ["meshwright", "profile", "--model", "llama-3.1-8b", "--seq-length", "128", "--out"]
    code = (
        f"import sys\nsys.modules['torch'] = None\nsys.argv = {[*arguments, str(tmp_path / 'p.json')]!r}\n"
    )
    run = python(code + "from meshwright.service.cli.main import main\nmain()")
    assert run.returncode == 2
    assert run.stderr.startswith(
        "error: measuring needs PyTorch 2.5 or newer, which is not installed: .venv/bin/pip"
    )
    assert run.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []

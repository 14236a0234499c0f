"""``compare``, ``explain`` and ``predict --from-args`` through the command line."""

import json
from functools import partial
from math import prod
from pathlib import Path

import pytest

from meshwright.service.report.sentences import option_words
from meshwright.solver.clock import Watch
from meshwright.solver.explain.node_groups import with_one_more_node
from meshwright.solver.space.launcher_choice import launchers_able
from tests.draws import seldom, some_of
from tests.served.commands import answer_once, remembering
from tests.served.requests import run_here
from tests.unit.launchers.megatron_lm.test_read import SCRIPT

QUESTION = ["--model", "llama-3.1-8b", "--cluster", "dgx-h100", "--num-nodes", "1",
            "--global-batch-size", "64", "--seq-length", "4096", "--certify", "none"]  # fmt: skip
FEW = ("accelerate", "llama-factory", "llama-factory-accelerate")
PLAN = ["plan", *QUESTION, "--top-k", "3"]
_ONE_MORE = remembering(partial(with_one_more_node, watch=Watch(time_limit_s=1e6)))


@pytest.fixture(autouse=True)
def _each_question_is_answered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words and JSON tell the same answer, and no test here is about its levers."""
    answer_once(monkeypatch)
    monkeypatch.setattr(
        "meshwright.solver.explain.node_groups.with_one_more_node",
        lambda *given: _ONE_MORE(*given[:-1]),
    )


@pytest.fixture
def of_few_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Search the changes that would fit under launchers of Hugging Face's trainer alone."""
    monkeypatch.setattr(
        "meshwright.solver.space.launcher_choice.launchers_able",
        lambda problem: tuple(name for name in launchers_able(problem) if name in FEW),
    )


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.sh"
    path.write_text(SCRIPT)
    return path


def test_two_plans_are_compared_by_rank_and_by_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    _, text, _ = run_here(monkeypatch, capsys, *PLAN, "--json", "--measure-next", "2")
    answer = json.loads(text)
    assert len(answer["measure_next"]) == 2
    ids = [plan["plan_id"] for plan in answer["plans"]]
    code, text, _ = run_here(monkeypatch, capsys, "compare", ids[0], ids[2], "--json")
    found = json.loads(text)
    assert code == 0
    steps = [plan["prediction"]["step_time_s"] for plan in answer["plans"]]
    total = sum(step["step_change_s"] for step in found["steps"])
    assert total == pytest.approx(steps[2] - steps[0])
    file = tmp_path / "answer.json"
    file.write_text(json.dumps(answer))
    code, text, _ = run_here(monkeypatch, capsys, "compare", "1", "3", "--from", str(file))
    assert code == 0
    assert f"#1 {ids[0][:4]}" in text
    code, _, error = run_here(monkeypatch, capsys, "compare", ids[0], "ffffffffffff")
    assert code == 2
    assert "no saved plan starts with" in error


def test_a_plan_that_was_found_is_told_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "160")
    _, text, _ = run_here(monkeypatch, capsys, *PLAN, "--json")
    second = json.loads(text)["plans"][1]
    code, text, _ = run_here(monkeypatch, capsys, "explain", "--plan", second["plan_id"][:8])
    assert code == 0
    assert "from ideal to real" in text
    assert sum(line.strip().startswith("costs: ") for line in text.splitlines()) == 3
    assert "chance of being the fastest of its ranking" in text
    code, text, _ = run_here(monkeypatch, capsys, "explain", "--plan", second["plan_id"], "--json")
    assert json.loads(text)["why"] == second["why"]
    code, _, error = run_here(monkeypatch, capsys, "explain", "--plan", "ab", "--set", "tp=2")
    assert code == 2
    assert "remove the other options" in error
    alone = {name: part for name, part in json.loads(text).items() if name != "status"}
    (tmp_path / "plan.json").write_text(json.dumps({"plans": [alone], "problem": {}}))
    code, _, error = run_here(monkeypatch, capsys, "report", "--from", str(tmp_path / "plan.json"))
    assert (code, "--from: the file has a plan without its search" in error) == (2, True)


def test_a_launch_script_is_priced_and_explained(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    cluster = ("--from-args", str(script), "--cluster", "dgx-h100", "--json")
    code, text, _ = run_here(monkeypatch, capsys, "predict", *cluster)
    priced = json.loads(text)
    assert code == 0
    assert priced["config"]["data_parallel_size"] == 4
    assert priced["unread"] == ["--optimizer-cuda-graph"]
    code, text, _ = run_here(monkeypatch, capsys, "explain", *cluster, "--certify", "none")
    found = json.loads(text)
    assert code == 0
    assert found["comparison"]["first"]["step_time_s"] == priced["prediction"]["step_time_s"]
    best = found["best"]["prediction"]["step_time_s"]
    assert found["comparison"]["second"]["step_time_s"] == pytest.approx(best)
    assert best < priced["prediction"]["step_time_s"]


def test_what_is_missing_or_too_much_is_said(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = ("predict", "--from-args", str(script))
    for words, says in (
        ((), "no launch file names the GPUs"),
        (("--cluster", "dgx-h100", "--seq-length", "1"), "do not divide 1 tokens"),
        (("--cluster", "dgx-h100", "--var", "TP"), "is not NAME=VALUE"),
    ):
        code, _, error = run_here(monkeypatch, capsys, *file, *words)
        assert code == 2
        assert says in error
    own = "from peft import LoraConfig\nfrom trl import SFTConfig\nLoraConfig(r=8)\n"
    script.with_name("own.py").write_text(own)
    _, _, error = run_here(monkeypatch, capsys, *file[:2], str(script.with_name("own.py")))
    kinds = [
        "no launch file names the GPUs",
        "launch file: ",
        "own.py --cluster dgx-h100",
    ]
    assert [kind in line for kind, line in zip(kinds, error.splitlines(), strict=True)] == [True] * 3


def test_files_that_count_their_processes_run_on_cards_of_two_types(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "two.yaml").write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nmixed_precision: bf16\n"
        "num_machines: 1\nnum_processes: 2\n"
    )
    script = tmp_path / "train.sh"
    script.write_text(
        "accelerate launch --config_file two.yaml run_clm.py --do_train"
        " --model_name_or_path Qwen/Qwen2.5-0.5B --block_size 1024 --bf16"
        " --per_device_train_batch_size 1 --gradient_accumulation_steps 2\n"
    )
    words = ("predict", "--from-args", str(script), "--gpus", "1xrtx-4090,1xrtx-3090", "--json")
    code, text, _ = run_here(monkeypatch, capsys, *words)
    assert (code, json.loads(text)["config"]["data_parallel_size"]) == (0, 2)


def test_the_users_own_configuration_is_explained_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    code, text, _ = run_here(monkeypatch, capsys, "explain", *QUESTION, "--set", "tp=8", "--set", "zero=1")
    assert code == 0
    assert text.splitlines()[1].startswith("yours")
    assert "tp 8 → " in text
    _, text, _ = run_here(monkeypatch, capsys, "explain", *QUESTION)
    assert text.splitlines()[1].startswith("assumed")  # nobody stated a layout


def test_the_levers_alone_are_those_of_the_newest_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr("meshwright.solver.planner.levers.levers.every_lever", lambda *_: ())
    code, _, error = run_here(monkeypatch, capsys, "explain", "--levers")
    assert (code, "model: is required" in error) == (2, True)  # no answer is kept
    run_here(monkeypatch, capsys, *PLAN)
    alone = run_here(monkeypatch, capsys, "explain", "--levers")
    assert alone == run_here(monkeypatch, capsys, "explain", "--levers", "--plan", "1")
    assert (alone[0], alone[1].startswith("Llama 3.1 8B")) == (0, True)


def test_a_layout_that_nobody_set_is_not_called_one_of_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """24 replicas of one GPU, or 12 of two, do not share 256 sequences equally."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    asked = ("explain", "llama-3.1-8b", "--gpus", "24xh100", "--global-batch-size", "256",
             "--seq-length", "4096")  # fmt: skip
    each = "you set no layout, so each of the 24 GPUs would be a replica"
    for values, says in (
        ((), f"{each}, and 256 sequences do not divide by 24"),
        (("--set", "tp=2"), "24 GPUs would be 12 of them, and 256 sequences do not divide by 12"),
        (("--set", "dp=24"), "24 replicas share the sequences equally, but the global batch is 256"),
    ):
        code, _, error = run_here(monkeypatch, capsys, *asked, *values)
        assert (code, says in error) == (2, True), error


def test_shapes_are_told_as_json_and_as_a_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["shapes", "--model", "gpt-3-350m", "--cluster", "dgx-h100", "--num-nodes", "1"]
    words += ["--global-batch-size", "64", "--seq-length", "2048"]
    code, text, _ = run_here(monkeypatch, capsys, *words, "--json")
    found = json.loads(text)
    assert code == 0
    # heads of 64 feed attention kernels badly (profiles: a narrow head reaches 0.6 to 0.8 of the rate)
    assert any(shape["change"].startswith("heads 16 × 64 → 8 × 128") for shape in found["shapes"])
    code, text, _ = run_here(monkeypatch, capsys, *words)
    assert code == 0
    assert "heads 16 × 64" in text.replace("\n", " ")


def test_an_explanation_by_energy_says_what_plans_are_ranked_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    words = ["explain", *QUESTION, "--objective", "energy_per_token", "--set", "tp=4"]
    _, text, _ = run_here(monkeypatch, capsys, *words, "--json")
    ranked = json.loads(text)["ranked_by"]
    assert (ranked["name"], ranked["unit"]) == ("energy per token", "J/token")
    assert ranked["values"][1] < ranked["values"][0]
    code, text, _ = run_here(monkeypatch, capsys, *words)
    assert code == 0
    assert "ranked by energy per token: yours" in text.replace("\xa0", " ")
    _, text, _ = run_here(monkeypatch, capsys, "explain", *QUESTION, "--set", "tp=4", "--json")
    assert json.loads(text)["ranked_by"] is None


# The DPO example of LLaMA-Factory's documentation, of 4 bits: too large for a card of 12 GB.
PREFERENCES = """\
model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
quantization_bit: 4
quantization_method: bnb
stage: dpo
do_train: true
finetuning_type: lora
lora_rank: 8
lora_target: all
dataset: dpo_en_demo
template: llama3
cutoff_len: 2048
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
bf16: true
"""


@pytest.mark.usefixtures("of_few_launchers")
def test_each_option_of_an_explanation_without_a_plan_works_on_the_command_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "dpo.yaml").write_text(PREFERENCES)
    words = ("explain", "--from-args", str(tmp_path / "dpo.yaml"), "--gpus", "1xrtx-3060")
    code, text, _ = run_here(monkeypatch, capsys, *words)
    question = next(
        line.split() for line in text.splitlines() if line.strip().startswith("meshwright plan ")
    )
    assert code == 3
    code, text, _ = run_here(monkeypatch, capsys, *words, "--json")
    found = json.loads(text)
    assert (code, found["status"], found["yours"]["micro_batch_size"]) == (3, "infeasible", 1)
    remedies = found["answer"]["infeasible"]["remedies"]
    assert len(remedies) > 3
    for remedy in remedies:
        options = option_words(remedy["settings"]).split()
        _, text, error = run_here(monkeypatch, capsys, *question[1:], *options, "--json")
        assert error.startswith("error") is False, (options, error)
        best = json.loads(text)["plans"][0]["prediction"]
        assert best["step_time_s"] == pytest.approx(remedy["step_time_s"], rel=0.01), options
    code, text, _ = run_here(monkeypatch, capsys, *question[1:], "--full")
    assert (code, "What would fit" in text) == (3, True)


@pytest.mark.usefixtures("of_few_launchers")
@pytest.mark.parametrize("gpus", some_of(["1xrtx-3090", "1xrtx-4090,1xrtx-3090"], each=2))
def test_hardware_that_is_offered_next_to_counted_gpus_is_what_the_options_buy(
    gpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``--gpus 1x… --num-nodes 2`` would be one GPU: an offer states all numbers, or has no option."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    asked = ("plan", "llama-3.1-8b", "--gpus", gpus, "--global-batch-size", "8", "--seq-length", "4096",
             "--launcher", "megatron-lm", "--certify", "none")  # fmt: skip
    _, text, _ = run_here(monkeypatch, capsys, *asked, "--json")
    remedies = json.loads(text)["infeasible"]["remedies"]
    offered = [one for one in remedies if {"cluster.num_nodes", "cluster.groups"} & one["settings"].keys()]
    assert offered
    for remedy in offered:
        options = option_words(remedy["settings"]).split()
        code, _, error = run_here(monkeypatch, capsys, *asked, *options)
        tip = error.partition("tip: meshwright ")[2].split()
        assert (code, "both describe the cluster" in error) == (2, True)
        code, text, _ = run_here(monkeypatch, capsys, *tip, "--json")
        assert code == 0, remedy
        best = json.loads(text)["plans"][0]
        sizes = [
            best["config"][f"{name}_parallel_size"] for name in ("tensor", "pipeline", "context", "data")
        ]
        assert prod(sizes) == remedy["num_gpus"]
        assert best["prediction"]["step_time_s"] == pytest.approx(remedy["step_time_s"], rel=0.01)


@seldom
@pytest.mark.usefixtures("of_few_launchers")
def test_a_command_to_paste_is_not_cut_at_the_edge_of_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "40")
    words = ("plan", "gemma-2-9b", "--gpus", "1xa100-40gb", "--global-batch-size", "1",
             "--seq-length", "4096", "--launcher", "llama-factory",
             "--optimizer", "galore-pure-bf16-layerwise")  # fmt: skip
    _, text, _ = run_here(monkeypatch, capsys, *words)
    offered = [line for line in text.splitlines() if " --launcher llama" in line]
    assert offered
    assert all(line.endswith(" --launcher llama-factory-accelerate") for line in offered)


ADAPTERS = {
    "axolotl": "base_model: Qwen/Qwen2.5-0.5B\nadapter: lora\nlora_r: 16\nlora_target_linear: true\n"
    "sequence_len: 2048\nmicro_batch_size: 1\ngradient_accumulation_steps: 4\noptimizer: adamw_torch\n"
    "bf16: true\nflash_attention: true\ndatasets: [{path: tatsu-lab/alpaca, type: alpaca}]\n"
    "deepspeed: deepspeed_configs/zero2.json\n",
    "llama-factory-accelerate": "model_name_or_path: Qwen/Qwen2.5-0.5B\nstage: sft\ndo_train: true\n"
    "finetuning_type: lora\nlora_rank: 16\ncutoff_len: 2048\nper_device_train_batch_size: 1\n"
    "gradient_accumulation_steps: 4\nbf16: true\ndeepspeed: examples/deepspeed/ds_z2_config.json\n",
}


@pytest.mark.parametrize("launcher", ADAPTERS)
def test_adapters_on_deepspeed_are_compared_with_a_plan_that_their_trainer_starts(
    launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "run.yaml").write_text(ADAPTERS[launcher])
    own = ("--from-args", str(tmp_path / "run.yaml"), "--gpus", "2xrtx-3090", "--json")
    _, text, _ = run_here(monkeypatch, capsys, "predict", *own)
    priced = json.loads(text)
    code, text, _ = run_here(monkeypatch, capsys, "explain", *own)
    found = json.loads(text)
    assert code == 0
    (note,) = (one for one in found["notes"] if "Meshwright plans no adapters under deepspeed" in one)
    assert note.endswith(f"The best plan runs under {launcher} without DeepSpeed")
    assert found["best"]["config"]["pipeline_parallel_size"] == 1  # which these trainers don't have
    # yours costs the same alone as next to a plan of another stack
    assert found["comparison"]["first"]["step_time_s"] == priced["prediction"]["step_time_s"]
    changes = [step["change"] for step in found["comparison"]["steps"]]
    assert changes[0] == f"launcher deepspeed → {launcher}"
    code, text, _ = run_here(monkeypatch, capsys, "export", found["best"]["plan_id"][:8])
    assert code == 0, text


MIXED = {
    "model": {"name": "llama-3.1-8b"},
    "cluster": {
        "name": "two-kinds",
        "groups": [
            {"gpu": "h100-sxm-80gb", "num_nodes": 1, "gpus_per_node": 2},
            {"gpu": "a100-sxm-80gb", "num_nodes": 1, "gpus_per_node": 2},
        ],
    },
    "workload": {"global_batch_size": 16, "seq_length": 4096},
    "launcher": "none",
    "search": {"top_k": 1, "certify": "none", "pin": {"data_parallel_size": 2}},
}


def test_a_placed_plan_states_what_each_node_group_does_and_what_one_more_node_brings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "160")
    file = tmp_path / "mixed.json"
    file.write_text(json.dumps(MIXED))
    _, text, _ = run_here(monkeypatch, capsys, "plan", str(file), "--json")
    (plan,) = json.loads(text)["plans"]
    code, text, _ = run_here(monkeypatch, capsys, "explain", "--plan", plan["plan_id"], "--json")
    groups = json.loads(text)["node_groups"]
    assert code == 0
    assert [one["group"] for one in groups] == ["h100-sxm-80gb", "a100-sxm-80gb"]
    assert sum(one["layers"] for one in groups) == 32
    assert all(one["one_more_node"]["saves_s"] >= 0.0 for one in groups)
    code, text, _ = run_here(monkeypatch, capsys, "explain", "--plan", plan["plan_id"])
    assert code == 0
    assert len([line for line in text.splitlines() if " its busiest stage computes for " in line]) == 2
    assert " ".join(text.split()).count("one more node: ") == 2

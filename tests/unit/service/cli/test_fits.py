"""Whether a model trains on some GPUs, by method and launcher."""

import json
import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.fits import judged, statements
from meshwright.service.cli.main import app
from meshwright.service.methods import methods_of, what_fits, with_speeds
from tests.served.commands import remembering

_WHAT_FITS = remembering(what_fits)
_WITH_SPEEDS = remembering(with_speeds)


@pytest.fixture(autouse=True)
def _each_question_is_answered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table, a short one and JSON show the same rows."""
    monkeypatch.setattr("meshwright.service.cli.fits.what_fits", _WHAT_FITS)
    monkeypatch.setattr("meshwright.service.cli.fits.with_speeds", _WITH_SPEEDS)


@pytest.fixture
def only_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out how fast what fits is."""
    monkeypatch.setattr("meshwright.service.cli.fits.with_speeds", lambda rows, *_: rows)


@pytest.fixture
def only_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the methods that train every weight."""
    monkeypatch.setattr(
        "meshwright.service.methods.methods_of",
        lambda *asked: (one for one in methods_of(*asked) if "lora_rank" in one.workload),
    )


@cache
def rows(*words: str) -> list[dict[str, Any]]:
    run = CliRunner().invoke(app, ["fits", *words, "--json"])
    assert run.exit_code in (0, 3), run.output
    found: list[dict[str, Any]] = json.loads(run.stdout)
    return found


def of(method: str, launcher: str) -> dict[str, Any]:
    found = rows("Qwen/Qwen3-8B", "--gpus", "1xRTX-4090")
    (row,) = [one for one in found if (one["method"], one["launcher"]) == (method, launcher)]
    return row


@pytest.mark.parametrize(
    ("method", "launcher", "verdict"),
    [
        ("full", "trl", "no"),  # 8.2 B weights in 16 bytes are 122 GiB
        ("LoRA", "trl", "yes"),  # 15.3 GiB of frozen weights
        ("QLoRA", "trl", "yes"),
        ("offload", "deepspeed", "yes"),  # the states are on the host
    ],
)
def test_each_method_is_answered_by_launcher(method: str, launcher: str, verdict: str) -> None:
    assert of(method, launcher)["fits"] == verdict


def test_hours_are_the_tokens_over_the_speed() -> None:
    row = of("QLoRA", "trl")
    assert row["hours"] == pytest.approx(10_000_000 / row["tokens_per_s"] / 3600)
    assert of("full", "trl")["hours"] is None


def test_what_fits_comes_first_and_the_largest_micro_batch_shrinks_with_memory() -> None:
    found = rows("Qwen/Qwen3-8B", "--gpus", "1xRTX-4090")
    order = [("yes", "tight", "no").index(one["fits"]) for one in found]
    assert order == sorted(order)
    assert of("QLoRA", "trl")["largest_micro_batch"] > of("LoRA", "trl")["largest_micro_batch"] >= 1


def test_the_command_of_a_row_plans_it_and_writes_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = shlex.split(of("LoRA", "trl")["command"])
    run = CliRunner().invoke(app, command[1:])
    assert run.exit_code == 0, run.output
    assert (tmp_path / "trl-lora" / "answer.json").is_file()


@pytest.mark.parametrize("launcher", ["axolotl", "llama-factory-accelerate"])
def test_a_loss_in_parts_is_turned_on_where_whole_logits_do_not_fit(launcher: str) -> None:
    lora, qlora = (of(method, launcher) for method in ("LoRA", "QLoRA"))
    assert (lora["fits"], lora["allow"]) == ("yes", ["loss_kernel"])
    assert "--allow loss_kernel" in lora["command"]
    assert (qlora["fits"], qlora["allow"]) == ("yes", [])  # it fits as it is


@pytest.mark.usefixtures("only_what_fits")
def test_a_sequence_has_no_more_tokens_than_the_model_has_positions() -> None:
    assert "--seq-length 1024" in rows("gpt2", "--gpus", "1xT4", "--launcher", "trl")[0]["command"]
    run = CliRunner().invoke(app, ["fits", "gpt2", "--gpus", "1xT4", "--seq-length", "4096"])
    assert "4096 is longer than the 1024 learned positions" in str(run.exception)


@pytest.mark.usefixtures("only_adapters", "only_what_fits")
def test_experts_have_few_bits_where_they_do_not_fit_otherwise() -> None:
    found = rows("Qwen/Qwen3-30B-A3B", "--gpus", "1xRTX-5090", "--launcher", "axolotl")
    (row,) = [one for one in found if one["method"] == "QLoRA"]
    assert (row["fits"], row["allow"]) == ("yes", ["quantizes_experts"])


@pytest.mark.usefixtures("only_adapters", "only_what_fits")
@pytest.mark.parametrize(("gpu", "launchers"), [("H100", {"accelerate"}), ("A100", set())])
def test_experts_in_nvfp4_are_a_base_of_adapters_where_they_are_multiplied(
    gpu: str, launchers: set[str]
) -> None:
    found = rows("nvidia/Qwen3-30B-A3B-NVFP4", "--gpus", f"1x{gpu}")
    stored = [one for one in found if one["method"] == "on nvfp4"]
    assert {one["launcher"] for one in stored if one["fits"] != "no"} == launchers
    assert all("--base-precision nvfp4" in one["command"] for one in stored)


@pytest.mark.usefixtures("only_adapters", "only_what_fits")
def test_a_stored_checkpoint_is_one_more_base_of_adapters() -> None:
    found = rows("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "--gpus", "1xRTX-4090")
    stored = [one for one in found if one["method"] == "on GPTQ"]
    launchers = {one["launcher"]: one["fits"] for one in stored}
    assert launchers == {"accelerate": "yes", "llama-factory-accelerate": "yes"}
    assert all("--base-precision gptq" in one["command"] for one in stored)
    plain = rows("Qwen/Qwen2.5-7B-Instruct", "--gpus", "1xRTX-4090", "--launcher", "accelerate")
    assert "on GPTQ" not in {one["method"] for one in plain}


@pytest.mark.usefixtures("only_adapters")
def test_text_alone_is_asked_of_a_model_with_a_tower_unless_images_are_stated() -> None:
    asked = (
        "Qwen/Qwen2.5-VL-7B-Instruct",
        "--gpus",
        "1xRTX-5090",
        "--launcher",
        "llama-factory-accelerate",
    )
    plain = rows(*asked)
    seen = rows(*asked, "--images-per-sample", "2", "--image-tokens", "1024")
    assert "--images-per-sample 0" in plain[0]["command"]
    assert "--images-per-sample 2 --image-tokens 1024" in seen[0]["command"]
    assert seen[0]["tokens_per_s"] < plain[0]["tokens_per_s"]


def test_adapters_are_turned_off_for_the_reference_of_preferences() -> None:
    found = rows(
        "Qwen/Qwen3-8B", "--gpus", "1xA100-SXM-80GB", "--launcher", "trl", "--sample", "pair",
        "--reference", "frozen",
    )  # fmt: skip
    by_method = {one["method"]: one for one in found}
    assert "--reference adapters-off" in by_method["QLoRA"]["command"]
    assert "--reference frozen" in by_method["full"]["command"]
    assert (by_method["QLoRA"]["fits"], by_method["full"]["fits"]) == ("yes", "no")


def test_the_table_fits_a_terminal_of_80_columns() -> None:
    run = CliRunner().invoke(app, ["fits", "Qwen/Qwen3-8B", "--gpus", "1xRTX-4090"], env={"COLUMNS": "80"})
    lines = run.output.splitlines()
    assert lines[0] == "Qwen3 8B on 1 × RTX 4090 (bf16, 4096 tokens a sequence)"
    assert any("llama-factory-accelerate" in line for line in lines)
    assert max(len(line) for line in lines if not line.startswith("tip: ")) <= 80


@pytest.mark.usefixtures("only_what_fits")
def test_the_table_has_twelve_lines_unless_every_launcher_is_asked_for() -> None:
    for asked in ("Qwen/Qwen3-8B --gpus 1xRTX-4090", "gpt2 --gpus 1xL4 --optimizer adamw"):
        whole, short = (
            CliRunner().invoke(app, ["fits", *asked.split(), *more], env={"COLUMNS": "80"}).output
            for more in (["--full"], [])
        )
        lines = [one.split("\n\n")[1].splitlines()[2:] for one in (short, whole)]
        tables = [[line for line in one if line[:1].strip()] for one in lines]  # long names take two lines
        assert 8 < len(tables[0]) <= 12 < len(tables[1])
        assert "All launchers: --full" in short.splitlines()
        counts = [int(found[1]) for found in re.finditer(r" (\d+) others +yes", short)]
        others = [line for line in tables[0] if re.search(r"\b(yes|tight)\b", line)]
        assert len(others) - len(counts) + sum(counts) == sum(
            bool(re.search(r"\b(yes|tight)\b", line)) for line in tables[1]
        )


@pytest.mark.parametrize(
    ("launcher", "who"), [("any", "no launcher trains"), ("maxtext", "maxtext doesn't train")]
)
def test_methods_without_a_launcher_are_named(launcher: str, who: str) -> None:
    words = ["fits", "qwen3-0.6b", "--gpus", "1xtpu-v5e", "--launcher", launcher]
    run = CliRunner().invoke(app, words, env={"COLUMNS": "80"})
    assert f"8-bit Adam, LoRA, QLoRA: {who} Qwen3 0.6B so on 1 × TPU v5e" in run.output


@pytest.mark.usefixtures("only_adapters")
def test_a_type_alone_is_one_card() -> None:
    assert rows("qwen3-4b", "--gpus", "T4", "--launcher", "trl") == rows(
        "qwen3-4b", "--gpus", "1xT4", "--launcher", "trl"
    )


@pytest.mark.usefixtures("only_adapters", "only_what_fits")
def test_a_problem_file_counts_with_its_cluster_and_its_commands_name_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(
        "model: gpt2\ncluster: {gpu: l4, num_gpus: 2}\nworkload: {global_batch_size: 8, seq_length: 512}"
    )
    trl = ("--launcher", "trl")
    (own, *_), (other, *_) = rows("job.yaml", *trl), rows("job.yaml", "--gpus", "a10g", *trl)
    assert own["command"].startswith("meshwright plan job.yaml --global-batch-size 8 --seq-length 512 ")
    assert other["command"].startswith("meshwright plan job.yaml --gpus 1xa10g --global-batch-size 8 ")


@pytest.mark.usefixtures("only_adapters", "only_what_fits")
def test_a_folder_of_a_model_stays_in_the_command(tmp_path: Path) -> None:
    config = {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
        "num_hidden_layers": 2, "vocab_size": 512,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    for named in (tmp_path, tmp_path / "config.json"):
        row, *_ = rows(str(named), "--gpus", "T4", "--launcher", "trl")
        assert shlex.split(row["command"])[2] == str(named)


def test_a_launch_file_is_no_model(tmp_path: Path) -> None:
    file = tmp_path / "lora.yml"
    file.write_text("base_model: meta-llama/Llama-3.1-8B\nadapter: lora\nsequence_len: 2048\n")
    run = CliRunner().invoke(app, ["fits", str(file), "--gpus", "4090"])
    assert "is a launch file (axolotl)" in str(run.exception)


def test_nothing_that_fits_is_exit_code_3() -> None:
    run = CliRunner().invoke(app, ["fits", "llama-3.1-405b", "--gpus", "1xRTX-4060", "--launcher", "trl"])
    assert run.exit_code == 3
    assert "No: nothing fits" in run.output


def test_published_statements_have_sources_and_one_is_right() -> None:
    found = statements()
    assert len(found) == len({one["id"] for one in found}) == 30
    assert all(one["source"] and one["published"] for one in found)
    assert judged(found[0]).is_right

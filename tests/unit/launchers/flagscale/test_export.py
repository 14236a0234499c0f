"""FlagScale's files: process meshes of a mixed cluster, what it cannot run, and lists of recomputation."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from meshwright.launchers.flags import flags_of
from meshwright.launchers.flagscale.export import train_values
from meshwright.launchers.reading.base import Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.launchers.registry import export
from meshwright.launchers.target import Target
from meshwright.profiles.errors import InvalidProblemError, RefusedExportError
from meshwright.solver.configuration import Configuration
from tests.launchers.plans import CASES

PLACED = CASES["flagscale"]["llama-3.1-70b-placed"]
BY_STAGE = replace(PLACED.config, recompute_layers=0, stage_recompute_layers=(26, 12, 0))


def with_config(config: Configuration) -> Target:
    return replace(PLACED, plan=replace(PLACED.plan, config=config))


def read(**changes: tuple[str, str]) -> Configuration:
    """Read the files of the placed plan, with texts of the training arguments replaced."""
    files = export(PLACED.plan, PLACED.problem, "flagscale").files
    text = files["train_plan.yaml"]
    for old, new in changes.values():
        assert old in text
        text = text.replace(old, new)
    files = {**files, "train_plan.yaml": text}
    source = Source(name="experiment.yaml", text=files["experiment.yaml"], files=files)
    return read_launch_files(source).configuration


def test_two_stages_of_a100_at_tp_8_and_one_of_h100_at_tp_4_are_two_process_meshes() -> None:
    hetero = train_values(PLACED)["system"]["hetero"]
    assert isinstance(hetero, dict)
    assert hetero["hetero_process_meshes"] == [8, 1, 1, 2, 2, 4, 1, 1, 2, 1]  # 8·2·2 + 4·2·1 = 40 GPUs
    assert hetero["hetero_device_types"] == ["a100-sxm-80gb", "h100-sxm-80gb"]
    assert hetero["hetero_pipeline_layer_split"] == [26, 27, 27]


def test_the_written_files_are_read_as_the_plan_on_its_node_groups() -> None:
    assert read() == PLACED.config


def test_equal_meshes_of_one_kind_of_node_must_fill_all_hosts() -> None:
    alike = ("[8, 1, 1, 2, 2, 4, 1, 1, 2, 1]", "[8, 1, 1, 2, 2, 8, 1, 1, 2, 1]")
    with pytest.raises(InvalidProblemError, match=r"5 nodes of 8 processes are 40, but tp 8 .* is 48"):
        read(sizes=alike, kinds=("[a100-sxm-80gb, h100-sxm-80gb]", "[a100-sxm-80gb, a100-sxm-80gb]"))


def test_stages_that_recompute_unlike_numbers_of_layers_get_a_list_each_and_are_read_back() -> None:
    target = with_config(BY_STAGE)
    system = train_values(target)["system"]
    assert system["recompute_num_layers_per_stage_micro_batch"] == [[1, 64, 26], [1, 64, 12], [1, 64, 0]]
    assert system["recompute_granularity_per_stage_micro_batch"] == [[1, 64, 1], [1, 64, 1], [1, 64, 0]]
    files = export(target.plan, target.problem, "flagscale").files
    source = Source(name="experiment.yaml", text=files["experiment.yaml"], files=files)
    assert read_launch_files(source).configuration == BY_STAGE


def test_flags_of_its_own_are_of_its_parser() -> None:
    own = {"hetero", *flags_of("flagscale"), *flags_of("megatron-lm")}
    for target in (PLACED, with_config(BY_STAGE)):
        values = train_values(target)
        hetero = values["system"]["hetero"]
        assert isinstance(hetero, dict)
        assert {*values["system"], *values["model"], *hetero} - {"logging"} <= own


OLD, _, NEW = PLACED.config.stage_groups
REFUSED = {
    "stages of a group that do not follow one another": (
        replace(PLACED.config, stage_groups=(OLD, NEW, OLD)), "do not follow one another"),
    "context parallelism": (
        replace(PLACED.config, context_parallel_size=2, data_parallel_size=1), "context_parallel_size"),
    "more recomputed layers than a stage has": (
        replace(BY_STAGE, stage_recompute_layers=(27, 12, 0)), "27 of 26 layers"),
    "unlike replicas": (
        Configuration(replicas=(PLACED.config, PLACED.config), stage_layers=(80,)), "different sizes"),
    "more GPUs than the group has": (
        replace(PLACED.config, stage_groups=(NEW, NEW, NEW)), "which has 8"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_placed_plan_that_it_cannot_run_is_refused_by_name(name: str) -> None:
    config, reason = REFUSED[name]
    with pytest.raises(RefusedExportError, match=reason):
        export(with_config(config).plan, PLACED.problem, "flagscale")


def test_ends_of_tied_embeddings_are_split_alike() -> None:
    problem = replace(PLACED.problem, model=replace(PLACED.model, tied_embeddings=True))
    with pytest.raises(RefusedExportError, match="first stage of tp 8, last of tp 4"):
        export(PLACED.plan, problem, "flagscale")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("[8, 1, 1, 2, 2, 4, 1, 1, 2, 1]", "[8, 1, 1, 2, 2, 4, 1, 1, 2]", "has 9 sizes"),
        ("[8, 1, 1, 2, 2, 4, 1, 1, 2, 1]", "[8, 1, 1, 2, 2, 4, 1, 1, 4, 1]", "different cp, ep or dp"),
        ("[a100-sxm-80gb, h100-sxm-80gb]", "[a100-sxm-80gb]", "2 meshes, 1 hetero_device_types"),
        ("[26, 27, 27]", "[26, 27, 26]", "79"),
    ],
)
def test_meshes_that_contradict_one_another_are_refused_with_their_line(
    old: str, new: str, reason: str
) -> None:
    with pytest.raises(InvalidProblemError, match=reason):
        read(change=(old, new))


def test_the_script_writes_the_hosts_in_the_order_of_the_stages_and_starts_the_runner(
    tmp_path: Path,
) -> None:
    for name, text in export(PLACED.plan, PLACED.problem, "flagscale").files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "python3").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "python3").chmod(0o755)
    needs = dict.fromkeys(("DATA_PATH", "TOKENIZER_TYPE", "TOKENIZER_PATH", "TRAIN_ITERS", "LR"), "x")
    more = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "FLAGSCALE_DIR": str(tmp_path),
        "HOSTS": "a b c d e",
    }
    run = ["bash", str(tmp_path / "launch.sh"), "dryrun"]
    done = subprocess.run(run, env=needs | more, capture_output=True, text=True, check=True)
    assert done.stdout == f"run.py --config-path {tmp_path} --config-name experiment.yaml action=dryrun\n"
    hosts = (tmp_path / "experiment" / "hostfile").read_text().splitlines()
    assert hosts[:1] + hosts[-1:] == ["a slots=8 type=a100-sxm-80gb", "e slots=8 type=h100-sxm-80gb"]
    for name in needs:
        rest = {one: value for one, value in (needs | more).items() if one != name}
        lacking = subprocess.run(run, env=rest, capture_output=True, text=True, check=False)
        assert lacking.returncode
        assert f"{name}: set it to" in lacking.stderr
    few = subprocess.run(
        run, env=needs | more | {"HOSTS": "a b"}, capture_output=True, text=True, check=False
    )
    assert (few.returncode, few.stderr) == (2, "error: HOSTS names 2 hosts, the plan needs 5\n")


def test_an_experiment_names_its_runner_and_its_training_file() -> None:
    found = yaml.safe_load(export(PLACED.plan, PLACED.problem, "flagscale").files["experiment.yaml"])
    assert found["defaults"] == ["train_plan@train", "_self_"]
    assert found["experiment"]["runner"]["rdzv_backend"] == "static"


def test_a_repeated_key_of_the_training_arguments_is_refused_as_omegaconf_does() -> None:
    twice = ("  sequence_parallel:", "  sequence_parallel: true\n  sequence_parallel:")
    with pytest.raises(InvalidProblemError, match="which OmegaConf refuses"):
        read(twice=twice)

"""Every script stops before it starts anything, and names the variable or the package that it misses."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.launchers.export import required
from meshwright.launchers.reading.base import Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.launchers.registry import export, launcher_names
from meshwright.launchers.resume import with_resume_files
from meshwright.launchers.target import Target
from meshwright.solver.configuration import Configuration
from tests.launchers.cases import A100, LLAMA_70B, target
from tests.launchers.cases import CASES as MEGATRON
from tests.launchers.plans import CASES

EVERY = {"megatron-lm": MEGATRON, **CASES}
LISTED = re.compile(r"^- `([A-Z][A-Z_]+)`: ([^;\n]+)", re.MULTILINE)  # a README's line of a variable
CHECKED = re.compile(r"\$\{([A-Z][A-Z_]+):\?")  # a script's check of one
PROGRAMS = (
    "bash", "cat", "dirname", "find", "grep", "head", "ls", "mktemp", "sed", "sort", "tail", "wc",
)  # fmt: skip
STAND_INS = {
    **dict.fromkeys(("torchrun", "accelerate", "srun"), "echo started"),
    "python3": f'if [ "$1" = -m ]; then echo started; exit; fi\nexec {sys.executable} "$@"',  # -m: MaxText
    "squeue": "exit 1", "scontrol": "printf 'host%s\\n' 1 2 3 4",
}  # fmt: skip
SLURM = {"SLURM_SUBMIT_DIR": ".", "SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "host[1-4]"}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All that a script can call: programs of the system, and starters that only print a word."""
    folder = tmp_path_factory.mktemp("bin")
    for name in PROGRAMS:
        found = shutil.which(name)
        assert found, name
        (folder / name).symlink_to(found)
    for name, text in STAND_INS.items():
        (folder / name).write_text(f"#!{folder / 'bash'}\n{text}\n")
        (folder / name).chmod(0o755)
    return folder


def run(script: Path, programs: Path, environment: Mapping[str, str]) -> tuple[int, str, str]:
    done = subprocess.run(
        [programs / "bash", script],
        env={"PATH": str(programs), **environment},
        cwd=script.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def check_each(script: Path, programs: Path, given: Mapping[str, str], hints: Mapping[str, str]) -> None:
    """The script starts with all variables, and without any one of them stops with that one's message."""
    subprocess.run(["bash", "-n", script], check=True)
    text = script.read_text()
    assert set(CHECKED.findall(text)) <= set(given), "the test gives every variable that is checked"
    assert run(script, programs, given)[:2] == (0, "started\n")
    for name in hints:
        code, out, error = run(script, programs, {key: one for key, one in given.items() if key != name})
        assert (code != 0, out) == (True, ""), f"{script.name} starts without {name}"
        assert f"{name}: " in error
        assert hints[name] in error
        assert error.count("\n") == 1, f"{name} swallows the lines behind it: {error}"


@pytest.mark.parametrize("launcher", sorted({*launcher_names()} - {"flagscale"}))  # its own: flagscale
def test_a_script_without_one_of_its_variables_names_it_and_starts_nothing(
    launcher: str, tmp_path: Path, programs: Path
) -> None:
    found = max(EVERY[launcher].values(), key=lambda one: one.num_nodes)
    files = export(found.plan, found.problem, launcher).files
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "own.yaml").write_text("base_model: x\n")  # Axolotl's RUN_CONFIG is read
    hints = {**dict(LISTED.findall(files["README.md"])), "MASTER_ADDR": "the host of node rank 0"}
    assert set(CHECKED.findall(files["launch.sh"])) == set(hints)
    given = dict.fromkeys(hints, "own.yaml")
    check_each(tmp_path / "launch.sh", programs, {**given, "CHECK_PACKAGES": "0"}, hints)


def late_graphs(launcher: str, dispatcher: str) -> Target:
    """Experts under their exchange, with late weight gradients, in CUDA graphs of attention."""
    found = MEGATRON["mixtral-8x7b-overlapped"]
    options: dict[str, str | int | float | bool] = {
        "overlap_experts": True, "delay_wgrad": True, "cuda_graph": "attn", "moe_dispatcher": dispatcher,
    }  # fmt: skip
    workload = replace(found.workload, framework_options=options)
    return replace(found, problem=replace(found.problem, workload=workload, launcher=launcher))


def installed(folder: Path, **releases: str) -> str:
    """Return a folder of distributions that only have a name, a release and a module."""
    for name, release in releases.items():
        place = folder / f"{name}-{release}.dist-info"
        place.mkdir(parents=True)
        (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {release}\n")
        (folder / f"{name}.py").write_text("HybridEPBuffer = None\n")
    return str(folder)


@pytest.mark.parametrize("launcher", ["megatron-lm", "megatron-bridge"])
def test_a_script_without_a_package_of_its_plan_names_it_with_what_is_there_and_what_to_do(
    launcher: str, tmp_path: Path, programs: Path
) -> None:
    found = late_graphs(launcher, "hybridep")
    files = export(found.plan, found.problem, launcher).files
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    given = {**dict.fromkeys(CHECKED.findall(files["launch.sh"]), "x"), "HOSTNAME": "node7"}

    def tried(**releases: str) -> tuple[int, str, str]:
        path = installed(tmp_path / "-".join(("site", *releases.values())), **releases)
        return run(tmp_path / "launch.sh", programs, {**given, "PYTHONPATH": path})

    code, out, error = tried(transformer_engine="2.12.0")
    assert (code, out) == (2, "")
    assert "error: the plan needs HybridEP (moe_dispatcher hybridep runs " in error
    assert "node7 has no deep_ep\nbuild the branch hybrid-ep of github.com/deepseek-ai/DeepEP, or " in error
    assert "or plan with workload.framework_options: {moe_dispatcher: alltoall}" in error
    code, out, error = tried(transformer_engine="2.10.0", deep_ep="1.2.1")
    assert (code, out) == (2, "")
    assert "the plan needs Transformer Engine 2.12 or newer (a CUDA graph captures the weight " in error
    assert "node7 has transformer_engine 2.10.0" in error
    assert tried(transformer_engine="2.12.0", deep_ep="1.2.1")[:2] == (0, "started\n")
    assert run(tmp_path / "launch.sh", programs, {**given, "CHECK_PACKAGES": "0"})[0] == 0
    for text in (files["README.md"], files["launch.sh"], files["launch.sbatch"]):
        assert "HybridEP" in text
        assert "Transformer Engine 2.12 or newer" in text


def test_no_file_of_megatron_bridge_denies_the_offloaded_modules_that_it_sets() -> None:
    found = CASES["megatron-bridge"]["llama-3.1-70b-offloaded"]
    options: dict[str, str | int | float | bool] = {"offload_modules": "core_attn+attn_proj"}
    workload = replace(found.workload, framework_options=options)
    config = replace(found.config, offload="activations")
    bundle = export(
        replace(found.plan, config=config), replace(found.problem, workload=workload), "megatron-bridge"
    )
    assert "model.offload_modules=" in bundle.files["plan_args.sh"]
    assert not [one for one in bundle.warnings if "these files don't set" in one]


@pytest.mark.parametrize("launcher", ["accelerate", "deepspeed"])
def test_files_without_the_model_name_the_attention_that_was_priced(launcher: str) -> None:
    found = next(iter(CASES[launcher].values()))
    for kernel, name in (("flash2", "flash_attention_2 (or sdpa"), ("torch", "eager,")):
        workload = replace(found.workload, framework_options={"attention_kernel": kernel})
        files = export(found.plan, replace(found.problem, workload=workload), launcher).files
        assert f"load the model in your script with attn_implementation {name}" in files["README.md"]


@pytest.mark.parametrize("launcher", ["megatron-lm", "megatron-bridge"])
def test_a_plan_that_needs_packages_is_read_back_as_it_was(launcher: str) -> None:
    found = late_graphs(launcher, "deepep")
    files = export(found.plan, found.problem, launcher).files
    back = read_launch_files(Source(name="launch.sh", text=files["launch.sh"], files=files))
    assert back.workload == found.workload
    assert back.configuration == found.config


def test_a_message_may_hold_whatever_bash_reads_as_its_own(tmp_path: Path, programs: Path) -> None:
    message = """the model's "own" } folder, $HOME, `ls` or \\n"""
    (tmp_path / "a.sh").write_text(f"set -u\n{required('FOLDER', message)}\necho started\n")
    check_each(tmp_path / "a.sh", programs, {"FOLDER": "it's *"}, {"FOLDER": message})


def test_a_slurm_script_without_one_of_its_variables_names_it_and_starts_nothing(
    tmp_path: Path, programs: Path
) -> None:
    found = on_unlike_nodes()
    for name, text in export(found.plan, found.problem, "megatron-lm").files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "hosts").write_text("host1\nhost2\nhost3\nhost4\n")
    hints = {
        "SLURM_SUBMIT_DIR": "start this file with sbatch", "SLURM_JOB_ID": "start this file with sbatch",
        "HOSTS_FILE": "set it to a file of 4 hosts",
    }  # fmt: skip
    check_each(tmp_path / "launch.sbatch", programs, {**SLURM, "HOSTS_FILE": "hosts"}, hints)


def test_a_script_that_goes_on_from_a_checkpoint_stops_without_its_folder(
    tmp_path: Path, programs: Path
) -> None:
    found = on_unlike_nodes()
    bundle = export(found.plan, found.problem, "megatron-lm")
    files = with_resume_files(
        bundle, "megatron-lm", found.plan, found.plan, saved_step=7, checkpoint_format="torch_dist"
    ).files
    (tmp_path / "resume.sh").write_text(files["resume.sh"])
    (tmp_path / "iter_0000007").mkdir()
    (tmp_path / "iter_0000007" / ".metadata").write_text("")
    hints = {"CHECKPOINTS": "set it to the folder of the checkpoints"}
    given = {"CHECKPOINTS": str(tmp_path), "START": "torchrun"}
    code, out, _ = run(tmp_path / "resume.sh", programs, given)
    assert (code, out) == (0, "started\n")
    code, out, error = run(tmp_path / "resume.sh", programs, {"START": "torchrun"})
    assert (code != 0, out) == (True, "")
    assert hints["CHECKPOINTS"] in error


def on_unlike_nodes() -> Target:
    """Two nodes of one kind, then two of another, so that Slurm has to be given an order."""
    found = target(
        LLAMA_70B, Configuration(data_parallel_size=4, tensor_parallel_size=8, stage_layers=(80,))
    )
    (group,) = found.problem.cluster.groups
    groups = (replace(group, num_nodes=2), replace(group, num_nodes=2, gpu=A100))
    cluster = replace(found.problem.cluster, groups=groups)
    return replace(found, problem=replace(found.problem, cluster=cluster))

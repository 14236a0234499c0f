"""Files that resume a run from a checkpoint with another layout than the one that wrote it.

Nothing is converted beforehand: Megatron-Core's distributed checkpoints and torch.distributed.checkpoint
hold whole tensors in parts, and every rank reads the parts that its own layout needs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from meshwright.launchers.export import ARGUMENTS_FILE, TORCHRUN_FILE
from meshwright.launchers.megatron_bridge.export import RESHARDABLE
from meshwright.launchers.megatron_lm.export import ARGUMENTS_FILE as MEGATRON_LM_FILE
from meshwright.launchers.target import ExportBundle
from meshwright.solver.answer import Plan
from meshwright.solver.configuration import Configuration

RESUME_SCRIPT = "resume.sh"
RESUME_FACTS = "resume.json"
RESUME_MODULE = "resume.py"

_SCRIPT = """\
#!/usr/bin/env bash
# Goes on from @WHICH@ under plan @PLAN@, whatever layout wrote the checkpoint: every rank reads the
# parts that it needs. On every node as launch.sh; under Slurm: START="sbatch launch.sbatch" bash resume.sh
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
: ${CHECKPOINTS:?"set it to the folder of the checkpoints that the run before has written"}
CHECKPOINTS="$(cd "${CHECKPOINTS}" && pwd)"
step="${STEP:-@STEP@}"
step="${step:+$((10#${step}))}" # also as folders spell it, 0000100
if [[ ! -f "${CHECKPOINTS}/@FOLDER@/.metadata" ]]; then
    echo "error: ${CHECKPOINTS}/@FOLDER@ holds no whole checkpoint of @FORMAT@" >&2
    exit 2
fi
echo "goes on from ${CHECKPOINTS}/@FOLDER@" >&2
export CHECKPOINTS
cd "${here}"
# shellcheck disable=SC2086 # START is a command with its arguments
exec ${START:-bash @LAUNCH@} @ARGUMENTS@ "$@"
"""
# A run that is killed during a save leaves a folder without .metadata, which is written last.
_NEWEST = """$(ls "${CHECKPOINTS}" | sed -nE 's/^@NAMES@([0-9]+)$/\\1/p' | sort -rn | while read -r step; do
    if [[ -f "${CHECKPOINTS}/@FOLDER@/.metadata" ]]; then echo "${step}"; cat >/dev/null; fi
done)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ResumeOptions:
    """A launcher's way to resume from a checkpoint."""

    folder: str  # of a step, in Bash
    names: str  # prefix of the number in the names of steps, a regular expression
    loads: tuple[str, ...]  # arguments that load the step
    in_parts: tuple[str, ...] = ()  # arguments with which replicas share reading, if the format allows it
    file: str = ""  # of the plan's arguments
    sharded: str = ""  # saves and loads states as the distributed optimizer does


_STARTS: Mapping[str, _ResumeOptions] = {
    # Megatron-Core 0.19, training/checkpointing.py and config/training_config.py.
    "megatron-lm": _ResumeOptions(
        folder='iter_$(printf %07d "${step:-0}")', names="iter_0*",
        loads=(
            "--auto-detect-ckpt-format", "--ckpt-step", '"${step}"', "--exit-on-missing-checkpoint",
        ),
        in_parts=("--ckpt-fully-parallel-load",), file=MEGATRON_LM_FILE,
        sharded="--use-distributed-optimizer --dist-ckpt-optim-fully-reshardable",
    ),
    # Megatron-Bridge 0.3.1, training/config.py (CheckpointConfig) and checkpointing.py.
    "megatron-bridge": _ResumeOptions(
        folder='iter_$(printf %07d "${step:-0}")', names="iter_0*",
        loads=(  # quoted for Hydra, too
            """checkpoint.load="'${CHECKPOINTS}'\"""", """checkpoint.save="'${CHECKPOINTS}'\"""",
            'checkpoint.ckpt_step="${step}"', "checkpoint.exit_on_missing_checkpoint=true",
        ),
        in_parts=("checkpoint.fully_parallel_load=true",), file=ARGUMENTS_FILE,
        sharded="ddp.use_distributed_optimizer=true optimizer.use_distributed_optimizer=true "
        f"checkpoint.ckpt_format=torch_dist {RESHARDABLE}=true",
    ),
    # ms-swift 4.6.0, megatron/utils/megatron_lm_utils.py (load_mcore_checkpoint), trainers/base.py: a
    # folder for each step, with Megatron-Core's in it; it resumes its data unless it fine-tunes.
    "ms-swift": _ResumeOptions(
        folder='checkpoint-${step:-0}/iter_$(printf %07d "${step:-0}")', names="checkpoint-",
        loads=("--mcore_model", '"${CHECKPOINTS}/checkpoint-${step}"', "--finetune", "false"),
        file=ARGUMENTS_FILE,
        sharded="--use_distributed_optimizer true --dist_ckpt_optim_fully_reshardable true",
    ),
    # torchtitan 0.2.2, config/job_config.py; 0.3.0, components/checkpointer/base.py: the same names.
    "torchtitan": _ResumeOptions(
        folder="step-${step:-0}", names="step-",
        loads=(
            "--checkpoint.enable", "--checkpoint.folder", '"${CHECKPOINTS}"', "--checkpoint.load_step",
            '"${step}"',
        ),
    ),
}  # fmt: skip

_MODULE = '''\
"""Save and load a training state in any layout: torch.distributed.checkpoint reshards it as it is read.

    save(folder, step, model, optimizer)         # every rank; folder/step-N
    step = resume(folder, model, optimizer)      # every rank, of however many, under any layout

Model and optimizer are those of this rank: plain, DDP, FSDP2 (fully_shard), tensor parallel (DTensor).
"""

from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict


def save(folder, step, model, optimizer):
    """Write folder/step-N; it counts once its .metadata is there, which is written last."""
    weights, states = get_state_dict(model, optimizer)
    path = Path(folder) / f"step-{step}"
    dcp.save({"model": weights, "optimizer": states, "step": torch.tensor(step)}, checkpoint_id=path)


def newest(folder):
    """The last step that was saved whole; None: none was."""
    steps = [int(path.parent.name[5:]) for path in Path(folder).glob("step-*/.metadata")]
    return max(steps, default=None)


def resume(folder, model, optimizer, step=None):
    """Load folder/step-N into this rank's model and optimizer, and give back the step.

    Raises:
        ValueError: there is no such checkpoint, or it is another model's; nothing was loaded.
    """
    step = newest(folder) if step is None else step
    path = Path(folder) / f"step-{step}"
    if step is None or not (path / ".metadata").is_file():
        raise ValueError(f"{folder} holds no whole checkpoint{'' if step is None else f' of step {step}'}")
    weights, states = get_state_dict(model, optimizer)
    refuse_another_model(path, weights)
    state = {"model": weights, "optimizer": states, "step": torch.tensor(0)}
    dcp.load(state, checkpoint_id=path)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=states)
    return int(state["step"])


def refuse_another_model(path, weights):
    """Compare names and shapes with the checkpoint's before anything is read.

    Raises:
        ValueError: they differ.
    """
    saved = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    saved = {name[6:]: tuple(one.size) for name, one in saved.items() if name.startswith("model.")}
    own = {name: tuple(one.shape) for name, one in weights.items()}
    other = sorted(name for name in own.keys() | saved.keys() if own.get(name) != saved.get(name))
    if other:
        shown = "; ".join(f"{name}: {saved.get(name)} saved, {own.get(name)} here" for name in other[:3])
        raise ValueError(f"{path} is another model's: {len(other)} tensors differ ({shown})")
'''


def with_resume_files(
    bundle: ExportBundle,
    launcher: str,
    before: Plan,
    after: Plan,
    *,
    saved_step: int | None,
    checkpoint_format: str,
) -> ExportBundle:
    """Return launch files with those that resume the run from its checkpoint.

    Args:
        bundle: the new layout's launch files.
        launcher: launcher of the files.
        before: the plan that wrote the checkpoint.
        after: the plan that resumes.
        saved_step: step of the checkpoint; None: unknown, take the newest.
        checkpoint_format: format, as spelled in requests.
    """
    files, warnings = dict(bundle.files), list(bundle.warnings)
    facts = {
        "plan_id": after.plan_id, "saved_step": saved_step, "checkpoint_format": checkpoint_format,
        "global_batch_size": after.config.global_batch_size, "before": _sizes(before.config),
        "after": _sizes(after.config),
    }  # fmt: skip
    files[RESUME_FACTS] = json.dumps(facts, indent=1) + "\n"
    start = _STARTS.get(launcher)
    if start is not None and start.file in files and checkpoint_format != "fsdp_dtensor":
        files[start.file] = _as_it_was_saved(files[start.file], start, before.config, after.config)
    if checkpoint_format == "dcp":
        files[RESUME_MODULE] = _MODULE
    if start is not None and checkpoint_format != "torch":
        files[RESUME_SCRIPT] = _script(start, after, saved_step, checkpoint_format)
    else:
        warnings.append(f"the script of {launcher} decides how it loads a checkpoint; see {RESUME_FACTS}")
    return ExportBundle(files=files, warnings=warnings)


def _as_it_was_saved(
    arguments: str, start: _ResumeOptions, before: Configuration, after: Configuration
) -> str:
    """Give a single replica, which shards nothing, the distributed optimizer if the checkpoint has it."""
    if not before.zero_stage or after.zero_stage:
        return arguments
    body, end, rest = arguments.rpartition("\n)")
    return f"{body}\n    # As the checkpoint was saved\n    {start.sharded}{end}{rest}"


def _script(start: _ResumeOptions, after: Plan, saved_step: int | None, checkpoint_format: str) -> str:
    arguments = (*start.loads, *(start.in_parts if checkpoint_format.startswith("torch_dist") else ()))
    newest = _NEWEST.replace("@NAMES@", start.names)
    values = {
        "STEP": newest if saved_step is None else str(saved_step), "PLAN": after.plan_id,
        "WHICH": "the newest step" if saved_step is None else f"step {saved_step}", "FOLDER": start.folder,
        "FORMAT": checkpoint_format, "LAUNCH": TORCHRUN_FILE, "ARGUMENTS": " ".join(arguments),
    }  # fmt: skip
    text = _SCRIPT
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text


def _sizes(config: Configuration) -> dict[str, object]:
    placed = ("stage_groups", "replicas")
    return {name: value for name, value in asdict(config).items() if name not in placed}

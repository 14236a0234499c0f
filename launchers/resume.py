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
from meshwright.launchers.templates import filled, template
from meshwright.solver.answer import Plan
from meshwright.solver.configuration import Configuration

RESUME_SCRIPT = "resume.sh"
RESUME_FACTS = "resume.json"
RESUME_MODULE = "resume.py"

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
        files[RESUME_MODULE] = template("scripts/resume.py.txt")
    if start is not None and checkpoint_format != "torch":
        files[RESUME_SCRIPT] = _script(start, after, saved_step, checkpoint_format)
    else:
        warnings.append(f"your {launcher} script decides how it loads a checkpoint: see {RESUME_FACTS}")
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
    return filled(template("scripts/resume.sh"), values)


def _sizes(config: Configuration) -> dict[str, object]:
    placed = ("stage_groups", "replicas")
    return {name: value for name, value in asdict(config).items() if name not in placed}

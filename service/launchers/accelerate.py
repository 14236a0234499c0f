"""Hugging Face accelerate: a plan becomes a YAML file (FSDP2 and its mesh) and the scripts that use it."""

from __future__ import annotations

from collections.abc import Iterator

from service.launchers.accelerate_file import CONFIG_FILE, accelerate_file
from service.launchers.base import ExportBundle
from service.launchers.bundle import bundled
from service.launchers.common_rules import refuse_first
from service.launchers.common_warnings import common_warnings, model_is_in_the_script
from service.launchers.target import Target
from service.launchers.torchrun import Start

PRODUCT = "accelerate 1.15.0"
NEEDS = (("TRAIN_SCRIPT", "a training script that takes the TrainingArguments of transformers"),)


class Accelerate:
    """Exports to ``accelerate launch``."""

    name = "accelerate"

    def export(self, target: Target) -> ExportBundle:
        """The configuration file and the two scripts that start it.

        Raises:
            RefusedExportError: accelerate cannot run the plan; one FieldError per fault.
        """
        refuse_first(target, self.name)
        return bundled(
            target,
            product=PRODUCT,
            shape=True,
            start=Start(program=accelerate_command(target), needs=NEEDS, command=True),
            warnings=found_warnings(target),
            own=lambda head: {CONFIG_FILE: accelerate_file(head, target)},
        )


def accelerate_command(target: Target) -> str:
    """``accelerate launch``: the file, this node's place, and the batch, which no file of it holds."""
    config = target.config
    checkpointing = config.recompute_granularity == "full" and config.zero_stage == 0
    lines = [
        f'exec accelerate launch --config_file "${{here}}/{CONFIG_FILE}" \\',
        '    --machine_rank "${NODE_RANK}" --main_process_ip "${MASTER_ADDR}" \\',
        '    --main_process_port "${MASTER_PORT}" \\',
        f"    --gradient_accumulation_steps {config.num_microbatches} \\",
        '    "${TRAIN_SCRIPT}" \\',
        f"    --per_device_train_batch_size {config.micro_batch_size} \\",
        f"    --gradient_accumulation_steps {config.num_microbatches} \\",
        f"    --gradient_checkpointing {str(checkpointing).lower()} \\",
        f'    --{target.workload.precision} true "$@"',
    ]
    return "\n".join(lines)


def found_warnings(target: Target) -> Iterator[str]:
    """What accelerate does differently from the plan, or what the plan leaves to the script."""
    config = target.config
    yield from common_warnings(target)
    yield model_is_in_the_script(target)
    yield f"the script must pack its data into sequences of {target.workload.seq_length} tokens"
    if config.zero_stage == 2:  # noqa: PLR2004 - ZeRO-2
        yield "ZeRO-2 is FSDP2 that does not reshard weights after the forward pass"
    if config.tensor_parallel_size > 1:
        yield 'the model needs a tensor-parallel plan: load it with tp_plan="auto" and the mesh\'s tp axis'
    if config.context_parallel_size > 1:
        yield "context parallelism needs accelerator.maybe_context_parallel around each step, and SDPA"

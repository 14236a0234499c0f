"""DeepSpeed: a plan becomes its JSON, and a Python module with what lives in code, beside the scripts."""

from __future__ import annotations

from collections.abc import Iterator

from service.launchers.accelerate_file import CONFIG_FILE, deepspeed_plugin_file
from service.launchers.base import ExportBundle
from service.launchers.bundle import bundled
from service.launchers.common_rules import refuse_first
from service.launchers.common_warnings import common_warnings, model_is_in_the_script
from service.launchers.deepspeed_code import CODE_FILE, code_file
from service.launchers.deepspeed_json import JSON_FILE, json_file
from service.launchers.target import Target
from service.launchers.torchrun import Start

PRODUCT = "DeepSpeed 0.19.8"
START = Start(
    program=f'"${{TRAIN_SCRIPT}}" --deepspeed --deepspeed_config "${{here}}/{JSON_FILE}"',
    needs=(("TRAIN_SCRIPT", f"a script that takes the arguments of DeepSpeed and reads {CODE_FILE}"),),
)


class DeepSpeed:
    """Exports to ``deepspeed.initialize``."""

    name = "deepspeed"

    def export(self, target: Target) -> ExportBundle:
        """DeepSpeed's JSON, the values that live in code, and the two scripts that start it.

        Raises:
            RefusedExportError: DeepSpeed cannot run the plan; one FieldError per fault.
        """
        refuse_first(target, self.name)
        return bundled(
            target,
            product=PRODUCT,
            shape=True,
            start=START,
            warnings=found_warnings(target),
            own=lambda head: own_files(head, target),
        )


def own_files(head: str, target: Target) -> dict[str, str]:
    """The JSON, what lives in code, and accelerate's file where its plugin can start the plan too."""
    files = {JSON_FILE: json_file(head, target), CODE_FILE: code_file(head, target)}
    if is_plain_data_parallel(target):
        files[CONFIG_FILE] = deepspeed_plugin_file(head, target, JSON_FILE)
    return files


def is_plain_data_parallel(target: Target) -> bool:
    """Whether nothing but data parallelism is planned, so that accelerate's plugin can start it too."""
    config = target.config
    return config.num_gpus == config.data_parallel_size and config.expert_parallel_size == 1


def found_warnings(target: Target) -> Iterator[str]:
    """What DeepSpeed does differently from the plan, or what lives in code."""
    config = target.config
    yield from common_warnings(target)
    yield model_is_in_the_script(target)
    yield f"{CODE_FILE} holds what DeepSpeed takes in code; its JSON alone is not the plan"
    if config.pipeline_parallel_size > 1:
        yield "the embedding and the head must not be of the class that the stages are balanced by"
    if config.tensor_parallel_size > 1:
        yield "AutoTP splits the linear layers of Hugging Face models; its own ranks must be consecutive"
    if config.offload != "none":
        yield "the script's optimizer must be deepspeed.ops.adam.DeepSpeedCPUAdam, or the JSON's own"
    if config.expert_parallel_size > 1:
        yield "the experts must be deepspeed.moe.layer.MoE"

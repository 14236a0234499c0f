"""Reads a Megatron-LM launch command back: a script becomes a model, a workload and a configuration.

The inverse of ``meshwright.service.launchers.megatron_lm``. What the script leaves to Megatron-LM's
defaults is read
as those, and the ones that cost time are named; what is not understood is listed, never guessed.
"""

from __future__ import annotations

from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.profile import framework_of
from meshwright.service.launchers.megatron_names import FLAGS
from meshwright.service.launchers.reading.base import LaunchFile, Source, Told, refused
from meshwright.service.launchers.reading.commands import (
    World,
    best,
    commands_of,
    script_of,
    world_of,
)
from meshwright.service.launchers.reading.given import Given, given_flags
from meshwright.service.launchers.reading.megatron_lm_refusals import refuse_contradictions
from meshwright.service.launchers.reading.megatron_model import model_of
from meshwright.service.launchers.reading.megatron_run import (
    batch_ramp,
    configuration_of,
    settled,
    workload_of,
)

_LEAST_FLAGS = 2


class MegatronLmReader:
    """Reads launch scripts of Megatron-LM."""

    name = "megatron-lm"

    def recognises(self, source: Source) -> bool:
        """Whether a script holds flags of Megatron-LM."""
        if not source.is_script:
            return False
        try:
            return _count(source, Told()) >= _LEAST_FLAGS
        except InvalidProblemError:
            return False

    def read(self, source: Source, told: Told) -> LaunchFile:
        """The run that a script starts.

        Raises:
            InvalidProblemError: what cannot be read, or contradicts itself, with line and flag.
        """
        script = script_of(source, told)
        command, count = best(commands_of(script), _is_flag)
        if count < _LEAST_FLAGS:
            raise refused(
                f"{source.name[:64]}: no command with flags of Megatron-LM is in it "
                "(pretrain_gpt.py --num-layers …)"
            )
        given = given_flags(command.words)
        for note in script.notes:
            given.note(note)
        world = world_of(source.text, script, command)
        return launch_file(self.name, given, told, world, name=source.name.partition(".")[0])


def launch_file(launcher: str, given: Given, told: Told, world: World, *, name: str) -> LaunchFile:
    """What flags in Megatron-LM's names say, whichever launcher they come from.

    Raises:
        InvalidProblemError: sizes are missing or contradict one another.
    """
    shape = told.model or model_of(given, name[:64] or "launch file")
    if told.model is not None:
        _agree(given, told.model)
    if launcher == "megatron-lm":
        refuse_contradictions(given, shape)
    workload = workload_of(given, framework_of(launcher))
    configuration = configuration_of(given, shape, workload, world.num_gpus or told.num_gpus)
    given.stop()
    return LaunchFile(
        launcher=launcher,
        model=shape,
        workload=settled(workload, configuration, shape),
        configuration=configuration,
        num_nodes=world.num_nodes,
        gpus_per_node=world.gpus_per_node,
        notes=tuple(given.notes),
        unread=tuple(given.unread),
        batch_ramp=batch_ramp(given),
        places={
            "tensor_parallel_size": given.place("tensor-model-parallel-size"),
            "seq_length": given.place("seq-length"),
        },
    )


def _count(source: Source, told: Told) -> int:
    """Flags of Megatron-LM in the best command of a script."""
    return best(commands_of(script_of(source, told)), _is_flag)[1]


def _is_flag(text: str) -> bool:
    """Whether a word is a flag of Megatron-LM that decides a plan."""
    return text.partition("=")[0] in FLAGS


_SIZES = {
    "num-layers": "num_layers",
    "hidden-size": "hidden_size",
    "ffn-hidden-size": "ffn_hidden_size",
    "num-attention-heads": "num_attention_heads",
    "kv-channels": "head_dim",
}


def _agree(given: Given, model: ModelSpec) -> None:
    """Flags that say another size than the named model has."""
    for flag, field in _SIZES.items():
        size = given.optional(flag)
        if size is not None and size != getattr(model, field) and not (flag == "kv-channels" and model.mla):
            given.fault(flag, f"{size}, but {model.title[:64]} has {getattr(model, field)}")

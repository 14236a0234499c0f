"""Megatron-LM: a plan becomes an arguments file, a torchrun script and a Slurm script.

Three laws: what Megatron-LM cannot run as planned is refused first (its own parser lets much of
it through); every value that the plan decided is written; what is only approximated is a warning,
in the files and in the answer.
"""

from __future__ import annotations

from collections.abc import Iterator

from service.launchers.base import ExportBundle
from service.launchers.capability_rules import model_is_stated
from service.launchers.header import header
from service.launchers.megatron_lm_arguments import padded_vocabulary, sections
from service.launchers.megatron_lm_facts import (
    ATTENTION_BACKENDS,
    FIXED_FACTS,
    facts,
    is_fsdp,
    lacks_flash,
)
from service.launchers.megatron_lm_model_rules import MODEL_RULES
from service.launchers.megatron_lm_ramp import ramp_is_whole, ramp_warnings
from service.launchers.megatron_lm_rules import PARALLEL_RULES, sizes_are_positive
from service.launchers.megatron_lm_scripts import (
    ARGUMENTS_FILE,
    PRODUCT,
    arguments_file,
    torchrun_script,
)
from service.launchers.rules import refuse
from service.launchers.slurm import SLURM_FILE, TORCHRUN_FILE, slurm_script
from service.launchers.target import Target
from solver.launcher_own import overlap_notes


class MegatronLm:
    """Exports to Megatron-LM's ``pretrain_gpt.py``."""

    name = "megatron-lm"

    def export(self, target: Target) -> ExportBundle:
        """The arguments file and the two scripts that start it.

        Raises:
            RefusedExportError: Megatron-LM cannot run the plan; one FieldError per fault.
        """
        refuse((sizes_are_positive,), target)  # the other rules divide by sizes
        rules = (*PARALLEL_RULES, ramp_is_whole, *MODEL_RULES, model_is_stated(self.name))
        refuse(rules, target)
        warnings = list(found_warnings(target))
        head = header(target, warnings, PRODUCT)
        return ExportBundle(
            files={
                ARGUMENTS_FILE: arguments_file(head, sections(target)),
                TORCHRUN_FILE: torchrun_script(head, target),
                SLURM_FILE: slurm_script(head, target),
            },
            warnings=warnings,
        )


def found_warnings(target: Target) -> Iterator[str]:
    """What Megatron-LM will do differently from the plan, or what the plan leaves open."""
    yield from _placement_warnings(target)
    yield from ramp_warnings(target)
    yield from _value_warnings(target)
    yield from _model_warnings(target)
    yield from _fact_warnings(target)


def _placement_warnings(target: Target) -> Iterator[str]:
    config, near = target.config, target.near_gpus
    tp, cp = config.tensor_parallel_size, config.context_parallel_size
    if cp > 1 and near % (tp * cp) and config.num_gpus > near:
        yield f"tp * cp = {tp * cp} ranks cross the network: {near} GPUs are near each other"
    if not target.problem.cluster.is_homogeneous:
        yield "node ranks must follow the order of the cluster's groups; Slurm sorts its hosts by name"


def _value_warnings(target: Target) -> Iterator[str]:
    config, padded = target.config, padded_vocabulary(target)
    if padded != target.model.vocab_size:
        yield f"the vocabulary of {target.model.vocab_size} is padded to {padded} (a multiple of 128 * tp)"
    if config.sequence_parallel and config.tensor_parallel_size == 1:
        yield "sequence parallelism does nothing at tp 1 and is not written"
    count, chunks = config.recompute_layers, config.stage_layers
    if config.recompute_granularity == "full" and min(chunks) < count < max(chunks):
        yield f"chunks of fewer than {count} layers recompute all of theirs"
    if is_fsdp(target) and (config.tensor_parallel_size > 1 or config.context_parallel_size > 1):
        yield "Megatron-FSDP with tp or cp cannot have the single hardware queue that tp and cp want"
    precision = target.workload.precision
    if precision == "bf16" and "bf16" not in target.gpu.peak_flops:
        yield f"{target.gpu.display_name} has no bf16 units; fp16 is what it runs fast"


def _model_warnings(target: Target) -> Iterator[str]:
    model = target.model
    if model.has_rotary_positions and model.rotary_base is None:
        yield "the model does not state its rotary base: add --rotary-base if it is not 10000"
    if model.sliding_window and target.config.context_parallel_size > 1:
        yield "sliding-window attention under context parallelism depends on the Transformer Engine version"


def _fact_warnings(target: Target) -> Iterator[str]:
    known = facts(target)
    for name, fixed in FIXED_FACTS.items():
        if getattr(known, name) != fixed:
            yield f"{name} is always {str(fixed).lower()} in Megatron-LM; the prediction assumed otherwise"
    if known.attention_kernel not in ATTENTION_BACKENDS:
        yield f"attention kernel {known.attention_kernel} has no flag; Transformer Engine chooses"
    yield from overlap_notes(target.problem, target.config)
    if lacks_flash(target):
        yield f"{target.gpu.display_name} keeps the attention scores; the prediction assumed otherwise"

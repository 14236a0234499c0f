"""nanotron: a plan becomes its YAML and the scripts that start ``run_train.py``.

Its own parser cannot be run here (the published 0.4 does not import); the file follows its sources.
"""

from __future__ import annotations

from collections.abc import Iterator

from service.launchers.base import ExportBundle
from service.launchers.bundle import bundled
from service.launchers.common_rules import refuse_first
from service.launchers.common_warnings import common_warnings
from service.launchers.nanotron_file import nanotron_file
from service.launchers.target import Target
from service.launchers.torchrun import Start, Variable

PRODUCT = "nanotron (repository, April 2026)"
CONFIG_FILE = "nanotron.yaml"
ONE_QUEUE = Variable(
    name="CUDA_DEVICE_MAX_CONNECTIONS",
    value="1",
    reason="nanotron's trainer asks for one hardware queue, so that communication keeps its order.",
)
START = Start(
    program=f'"${{NANOTRON_DIR}}/run_train.py" --config-file "${{here}}/{CONFIG_FILE}"',
    needs=(("NANOTRON_DIR", "a checkout of huggingface/nanotron"),),
    environment=(ONE_QUEUE,),
)


class Nanotron:
    """Exports to nanotron's ``run_train.py``."""

    name = "nanotron"

    def export(self, target: Target) -> ExportBundle:
        """The YAML and the two scripts that start it.

        Raises:
            RefusedExportError: nanotron cannot run the plan; one FieldError per fault.
        """
        refuse_first(target, self.name)
        return bundled(
            target,
            product=PRODUCT,
            start=START,
            warnings=found_warnings(target),
            own=lambda head: {CONFIG_FILE: nanotron_file(head, target)},
        )


def found_warnings(target: Target) -> Iterator[str]:
    """What nanotron does differently from the plan, or what is left to the user."""
    model, tp = target.model, target.config.tensor_parallel_size
    yield from common_warnings(target)
    yield "not verified by nanotron's own parser"
    yield "data, tokenizer, number of steps and learning rate are a dry start's: set your own"
    if model.vocab_size % tp:
        yield f"the vocabulary of {model.vocab_size} is padded to a multiple of tp = {tp}"
    if model.rotary_base is None:
        yield "the model does not state its rotary base: 10000 is written"

"""torchtitan: a plan becomes a Python module for 0.3, a TOML with its model for 0.2, and scripts."""

from __future__ import annotations

from collections.abc import Iterator

from service.launchers.base import ExportBundle
from service.launchers.bundle import bundled
from service.launchers.common_rules import refuse_first
from service.launchers.common_warnings import common_warnings
from service.launchers.target import Target
from service.launchers.torchrun import Start, Variable
from service.launchers.torchtitan_python import MODULE, PYTHON_FILE, python_file
from service.launchers.torchtitan_toml import FLAVOR_FILE, TOML_FILE, flavor_file, toml_file
from service.launchers.torchtitan_values import SPLITS_BACKWARD

PRODUCT = "torchtitan 0.3.0 and 0.2.2"
_BESIDE = Variable(
    name="PYTHONPATH",
    value='"${here}${PYTHONPATH:+:${PYTHONPATH}}"',
    reason="torchtitan imports the plan's module by its name.",
    is_expression=True,
)
_SEGMENTS = Variable(
    name="PYTORCH_ALLOC_CONF",
    value="expandable_segments:True",
    reason="torchtitan's own run_train.sh sets it: less memory is lost between blocks.",
)
PROGRAMS = f"""\
program=(-m torchtitan.train --job.config_file "${{here}}/{TOML_FILE}")
if [[ "${{TORCHTITAN_VERSION:-0.3}}" != 0.2* ]]; then
    program=(-m torchtitan.train --module {MODULE} --config plan)
fi
# The time of every step is logged; torchtitan's own interval is 10 steps.
program+=(--metrics.log_freq "${{LOG_INTERVAL:-1}}")"""
START = Start(program='"${program[@]}"', environment=(_BESIDE, _SEGMENTS), before=PROGRAMS)


class Torchtitan:
    """Exports to ``torchtitan.train``."""

    name = "torchtitan"

    def export(self, target: Target) -> ExportBundle:
        """The module, the TOML with its model, and the two scripts that start either.

        Raises:
            RefusedExportError: torchtitan cannot run the plan; one FieldError per fault.
        """
        refuse_first(target, self.name)
        return bundled(
            target,
            product=PRODUCT,
            start=START,
            warnings=found_warnings(target),
            own=lambda head: {
                PYTHON_FILE: python_file(head, target),
                TOML_FILE: toml_file(head, target),
                FLAVOR_FILE: flavor_file(head, target),
            },
        )


def found_warnings(target: Target) -> Iterator[str]:
    """What torchtitan does differently from the plan, or what the plan leaves open."""
    config = target.config
    yield from common_warnings(target)
    yield "set TORCHTITAN_VERSION=0.2 to start the TOML instead of the module for 0.3"
    yield "0.3 computes attention with FlexAttention; the prediction assumed a flash attention kernel"
    if config.zero_stage == 2:  # noqa: PLR2004 - ZeRO-2
        yield "ZeRO-2 is FSDP2 that does not reshard weights after the forward pass"
    if config.pipeline_schedule in SPLITS_BACKWARD:
        yield "its schedule refuses compiled stages: only the loss is compiled, the prediction is of both"
    if config.pipeline_schedule == "zb_v":
        yield "the prediction lets ranks begin the next step one by one; clipping gradients makes them wait"
    if config.pipeline_schedule == "dualpipe_v":
        yield "that a forward and a backward pass overlap is not predicted"
    if config.recompute_granularity == "selective":
        yield "selective recomputation is torchtitan's own: it keeps attention and every second product"
    if target.model.rotary_base is None:
        yield "the model does not state its rotary base: 10000 is written"

"""The shape that every export has: a launcher's own files, and the two scripts that start them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from service.launchers.base import ExportBundle
from service.launchers.header import header
from service.launchers.slurm import SLURM_FILE, TORCHRUN_FILE, slurm_script
from service.launchers.target import Target
from service.launchers.torchrun import Start, launch_script

OwnFiles = Callable[[str], Mapping[str, str]]


def bundled(
    target: Target,
    *,
    product: str,
    start: Start,
    warnings: Iterable[str],
    own: OwnFiles,
    shape: bool = False,
) -> ExportBundle:
    """``own`` files under one header, which names the product and every warning, and both scripts.

    Args:
        target: the plan and its problem; already held against the launcher's rules.
        product: the launcher with its version.
        start: how a node starts its processes.
        warnings: what is only approximated, or left to the user.
        own: from the header's text to the launcher's own files by name.
        shape: whether the header names the model's shape, which no file of the launcher does.
    """
    told = list(warnings)
    head = header(target, told, product, shape=shape)
    scripts = {TORCHRUN_FILE: launch_script(head, target, start), SLURM_FILE: slurm_script(head, target)}
    return ExportBundle(files={**own(head), **scripts}, warnings=told)

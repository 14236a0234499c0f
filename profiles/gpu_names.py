"""Which GPU type of the catalog a driver's device name means."""

from __future__ import annotations

import re

from profiles.library import find_gpu, gpu_alias_note, gpu_names

MEMORY_TOLERANCE = 0.04  # what the driver keeps of a GPU's memory, and torch does not report
_FORMS = re.compile(r"sxm|gcd|\d+gb|hbm\w+")  # words of a slug that drivers spell otherwise or leave out
_UNKNOWN_FORMS = ("nvl", "max")  # boards of their own, which the catalog has not


def gpu_of_device(name: str, memory_bytes: int) -> str | None:
    """The slug of ``NVIDIA A100-SXM4-40GB`` and its like; None where no type, or several, fit.

    Args:
        name: as ``torch.cuda.get_device_name`` says it.
        memory_bytes: the device's total memory, which tells the sizes of one type apart.
    """
    said = set(re.findall(r"[a-z0-9]+", name[:200].lower()))
    if said & set(_UNKNOWN_FORMS):
        return None
    fitting = [
        (abs(find_gpu(slug).memory_bytes - memory_bytes), slug)
        for slug in gpu_names()
        if gpu_alias_note(slug) is None and _fits(slug, said, memory_bytes)
    ]
    return min(fitting)[1] if fitting else None


def _fits(slug: str, said: set[str], memory_bytes: int) -> bool:
    """Whether a device that says so, with so much memory, may be of that type."""
    words = {word for word in slug.split("-") if not _FORMS.fullmatch(word)}
    has_bytes = find_gpu(slug).memory_bytes
    near = abs(has_bytes - memory_bytes) <= MEMORY_TOLERANCE * has_bytes
    return near and words <= said and ("pcie" in words) == ("pcie" in said)

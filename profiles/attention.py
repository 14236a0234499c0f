"""Which attention a model of transformers takes, and which of its kernels torch runs for it.

Without ``attn_implementation`` transformers asks torch's ``scaled_dot_product_attention`` (``sdpa``) of
each model whose class allows it, and ``eager`` of others. torch then chooses a kernel by GPU, head size and
mask.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from meshwright.profiles.catalog import CATALOG, catalog_file

if TYPE_CHECKING:
    from meshwright.profiles.model import ModelSpec

# Words of ``attention_kernel``: what transformers takes unless told otherwise; torch's choice; scores in
# plain operators; torch's compiled kernel, which skips blocks of scores that no query needs; FlashAttention
# 2 in the layers whose heads it takes, torch's choice in others.
AUTO, SDPA, EAGER, FLEX, HYBRID = "auto", "sdpa", "torch", "flex", "flash2+sdpa"
_WIDEST_FLASH = 256
_FILE = CATALOG / "attention.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """What runs, by the words of ``attention_kernel``, and why."""

    kernel: str
    why: str


@cache
def transformers_releases() -> tuple[str, ...]:
    """Return the releases that were read, ascending; each stands for those up to the next."""
    return tuple(catalog_file(_FILE)["releases"])


def implementation(model: ModelSpec, release: str) -> Attention:
    """Return what a whole model takes without ``attn_implementation``: ``SDPA`` or another kernel, and why.

    Args:
        model: the whole model, whose layers may differ.
        release: one of ``transformers_releases``.
    """
    others: Mapping[str, Mapping[str, str]] = catalog_file(_FILE)["releases"][release]
    for fact, taken in others.items():
        if _has(model, fact):
            return Attention(**taken)
    return Attention(kernel=SDPA, why="the default of transformers")


def runnable(kernel: str, model: ModelSpec) -> str:
    """Return the kernel that transformers' modules run: another where FlashAttention can't.

    FlashAttention's heads are at most 256 wide (flash-attention ``csrc/flash_attn/flash_api.cpp:416``,
    ``:868``), those of Gemma 4's global layers 512. No class has it with ALiBi: BLOOM, MPT and remote code
    state none (transformers 5.6 modeling_utils.py ``_flash_attn_can_dispatch``), and Falcon stops in its
    first pass (models/falcon/modeling_falcon.py:482).
    """
    local = 0 if model.local_attention is None else model.local_attention.head_dim or 0
    widest = max(model.head_dim, model.v_head_dim, local)
    flash = kernel.startswith("flash") and kernel != HYBRID
    if flash and model.alibi_positions:
        return EAGER
    return SDPA if flash and widest > _WIDEST_FLASH else kernel


def asked_kernel(kernel: str, model: ModelSpec, release: str) -> str:
    """Return the kernel that transformers is asked for, of a model whose layers share one."""
    asked = implementation(model, release).kernel if kernel == AUTO else kernel
    return "flash2" if asked == HYBRID else runnable(asked, model)


def of_layers(kernel: str, model: ModelSpec) -> str:
    """Return the kernel of layers that all attend as this model's do."""
    return runnable("flash2", model) if kernel == HYBRID else kernel


def _has(model: ModelSpec, fact: str) -> bool:
    of_local: Any = getattr(model.local_attention, fact, None)
    return bool(getattr(model, fact)) or bool(of_local)


def torchs_kernel(architecture: str, sizes: tuple[int, int], *, masked: bool, bits: int = 16) -> Attention:
    """Return the kernel of ``scaled_dot_product_attention``: the first of torch's order that takes all.

    Args:
        architecture: of the GPU, as the catalog names it.
        sizes: elements of a head of queries and keys, and of values.
        masked: an explicit mask is given, in place of ``is_causal``.
        bits: of an element.
    """
    rows: Mapping[str, Mapping[str, Any]] = catalog_file(_FILE)["kernels"]
    refused = list[str]()
    for name, row in rows.items():
        why = _refusal(row, architecture, sizes, masked=masked, bits=bits)
        if not why:
            return Attention(
                kernel=row["kernel"], why=f"torch's {name}" + "".join(f"; {one}" for one in refused)
            )
        refused.append(f"{name} {why}")
    raise AssertionError("the last row takes everything")


def _refusal(
    row: Mapping[str, Any], architecture: str, sizes: tuple[int, int], *, masked: bool, bits: int
) -> str:
    """Return why a kernel is not taken; empty if it is."""
    pairs = [tuple(pair) for pair in row.get("pairs", ())]
    first = "is not first on" if row.get("preferred") else "has none for"
    rules = {
        f"{first} {architecture}": architecture not in row.get("architectures", (architecture,)),
        f"takes no {bits} bits": bits not in row.get("bits", (bits,)),
        "takes no mask": masked and not row.get("masks", True),
        f"takes no values of {sizes[1]} next to keys of {sizes[0]}": row.get("equal")
        and sizes[0] != sizes[1],
        f"takes no heads of {max(sizes)}": max(sizes) > _widest(row, architecture, max(sizes))
        and sizes not in pairs,
        "needs heads that 8 divides": any(size % row.get("aligned", 1) for size in sizes),
    }
    return next((why for why, broken in rules.items() if broken), "")


def _widest(row: Mapping[str, Any], architecture: str, size: int) -> int:
    """Return the widest head that a kernel takes; ``size`` if it takes any."""
    widest: Any = row.get("widest", size)
    return int(widest.get(architecture, size)) if isinstance(widest, Mapping) else int(widest)

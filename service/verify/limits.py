"""Plans that a launcher cannot build without a GPU, although others of its plans are built."""

from __future__ import annotations

from meshwright.solver.answer import Plan
from meshwright.solver.problem import Problem

FULLY_SHARDED = (
    "Megatron-FSDP (ZeRO-2 and ZeRO-3) reads the data of tensors, which a build without a GPU lacks"
)


def unbuilt(plan: Plan, problem: Problem) -> str:
    """Return why ``meshwright verify`` cannot build a plan; empty: it can, or its launcher builds none."""
    launcher = plan.launchers[0] if plan.launchers else problem.launcher
    return FULLY_SHARDED if launcher == "megatron-lm" and plan.config.zero_stage > 1 else ""


def unbuilt_words(plan: Plan, problem: Problem) -> str:
    """Return the same as a sentence about a ranked plan; empty if there is none."""
    why = unbuilt(plan, problem)
    return f"#{plan.rank} cannot be built by meshwright verify: {why}." if why else ""

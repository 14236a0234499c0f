"""Pipeline splits that the launchers of post-training can state.

NeMo-RL and verl state the layers of the first and of the last stage, and share the rest out evenly.
"""

from __future__ import annotations

from collections.abc import Sequence

_ENDS = 2  # stages of which a launcher states the layers


def is_expressible(stage_layers: Sequence[int]) -> bool:
    """Return whether all stages but the first and the last hold equally many layers."""
    return len(set(stage_layers[1:-1])) <= 1


def split_of(layers: int, stages: int) -> tuple[int, ...]:
    """Return a split with equal inner stages: even, or with smaller ones at both ends."""
    if layers % stages == 0 or stages <= _ENDS:
        return tuple(layers // stages + (at < layers % stages) for at in range(stages))
    inner = -(-layers // stages)
    ends = layers - inner * (stages - _ENDS)
    return (ends // 2, *(inner,) * (stages - _ENDS), ends - ends // 2)

"""How Megatron-LM writes a pipeline split.

``--pipeline-model-parallel-layout``: stages in model order, ``|`` between them; E is the
embedding, t a transformer layer, m a multi-token-prediction layer, L the loss; ``x*N`` repeats x.
Stage i runs on pipeline rank i mod pp as virtual stage i div pp
(megatron/core/transformer/pipeline_parallel_layer_layout.py, Megatron-Core 0.19.2).
"""

from __future__ import annotations

from collections.abc import Sequence


def is_even(stage_layers: Sequence[int]) -> bool:
    """Whether all chunks hold the same number of layers, so that the plain flags express the split."""
    return len(set(stage_layers)) == 1


def layout(stage_layers: Sequence[int], num_mtp_layers: int = 0) -> str:
    """The layout string of ``stage_layers`` (pp * vpp entries, model order): ``Et*7|t*9|t*9|t*7L``.

    Multi-token-prediction layers stand before the loss, in the last stage.
    """
    stages = [_repeated("t", count) for count in stage_layers]
    stages[0] = "E" + stages[0]
    stages[-1] += _repeated("m", num_mtp_layers) + "L"
    return "|".join(stages)


def _repeated(letter: str, count: int) -> str:
    if count <= 1:
        return letter * count
    return f"{letter}*{count}"

"""How a launcher that takes no split divides the layers among its stages.

nanotron (huggingface/nanotron, src/nanotron/models/base.py ``build_model``): blocks are handed out in
model order; a new stage begins with the block that lifts the running cost over the stage's share of the
whole. Costs are the weights of a block's matrices (``get_block_compute_costs`` of its models): attention
and MLP of a layer, the output head; the embedding costs nothing.
"""

from __future__ import annotations

from profiles.model import ModelSpec


def own_balance(model: ModelSpec, num_stages: int) -> tuple[int, ...]:
    """Layers of each stage, in order; the last entries are 0 where the costs of the head starve them."""
    heads = model.num_attention_heads * model.head_dim
    layer = 4 * heads * model.hidden_size + 3 * model.ffn_hidden_size * model.hidden_size
    whole = model.num_layers * layer + model.vocab_size * model.hidden_size
    counts, stage = [0] * num_stages, 0
    for block in range(1, model.num_layers + 1):
        # over its share of the whole: the comparison in integers, so that no rounding decides it
        if stage < num_stages - 1 and block * layer * num_stages > whole * (stage + 1):
            stage += 1
        counts[stage] += 1
    return tuple(counts)

"""The sizes that a model may have: one table, for the dataclasses and for whoever reads them."""

from __future__ import annotations

from meshwright.profiles.errors import FieldError, InvalidProblemError

Limits = dict[str, tuple[int, int] | tuple[float, float]]  # whole numbers, or any numbers

MODEL_LIMITS: Limits = {
    "num_layers": (1, 10_000),
    "hidden_size": (1, 2**20),
    "ffn_hidden_size": (1, 2**24),
    "num_attention_heads": (1, 2**16),
    "num_kv_heads": (1, 2**16),
    "head_dim": (1, 2**14),
    "vocab_size": (1, 2**27),
    "embedding_size": (1, 2**20),
    "num_mtp_layers": (0, 64),
    "sliding_window": (1, 2**31 - 1),
    "sliding_window_every": (1, 10_000),
    "max_position_embeddings": (1, 2**31 - 1),
    "learned_position_offset": (0, 1024),
    "rotary_base": (1, 10**12),
    "rotary_local_base": (1, 10**12),
    "no_rotary_every": (0, 10_000),
    "norm_epsilon": (0.0, 1.0),
    "activation_clamp": (1e-6, 1e6),
    "gate_offset": (-1e6, 1e6),
    "rotary_fraction": (1e-3, 1.0),
    "rotary_local_fraction": (1e-3, 1.0),
    "attention_softcap": (1e-6, 1e9),
    "logit_softcap": (1e-6, 1e9),
    "attention_scale": (1e-9, 1e9),
    "attention_clip": (1e-6, 1e9),
    "embedding_scale": (1e-9, 1e9),
    "residual_scale": (1e-9, 1e9),
    "logit_scale": (1e-9, 1e9),
}
MOE_LIMITS: Limits = {
    "num_experts": (1, 65_536),
    "top_k": (1, 65_536),
    "ffn_hidden_size": (1, 2**24),
    "num_shared_experts": (0, 1024),
    "shared_ffn_hidden_size": (0, 2**24),
    "num_dense_layers": (0, 10_000),
    "frequency": (1, 10_000),
    "router_groups": (0, 65_536),
    "router_top_groups": (0, 65_536),
    "router_scaling": (1e-6, 1e6),
}
MLA_LIMITS: Limits = {
    "q_lora_rank": (0, 2**20),
    "kv_lora_rank": (1, 2**20),
    "qk_nope_head_dim": (1, 2**14),
    "qk_rope_head_dim": (1, 2**14),
    "v_head_dim": (1, 2**14),
}
INDEXER_LIMITS: Limits = {
    "num_heads": (1, 2**16),
    "head_dim": (1, 2**14),
    "top_k": (1, 2**31 - 1),
}
ROTARY_SCALING_LIMITS: Limits = {
    "factor": (1e-3, 1e6),
    "original_max_position_embeddings": (1, 2**31 - 1),
    "low_freq_factor": (1e-3, 1e6),
    "high_freq_factor": (1e-3, 1e6),
    "beta_fast": (1e-3, 1e6),
    "beta_slow": (1e-3, 1e6),
    "mscale": (0.0, 1e6),
    "mscale_all_dim": (0.0, 1e6),
}


def refuse_out_of_range(spec: object, pointer: str, limits: Limits) -> None:
    """Check the numbers of a dataclass; fields that are None pass.

    Raises:
        InvalidProblemError: fields that are no numbers (no whole ones, where the limits are whole) or
            lie outside their limits.
    """
    errors = []
    for name, (low, high) in limits.items():
        value = getattr(spec, name)
        if value is None:
            continue
        whole = isinstance(low, int)
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
            message = "must be a whole number" if whole else "must be a number"
            errors.append(FieldError(pointer=f"{pointer}/{name}", message=message))
        elif not low <= value <= high:
            allowed = f"{low} to {high}"
            message = f"{value if abs(value) < 10**20 else 'the value'} is out of range"
            errors.append(FieldError(pointer=f"{pointer}/{name}", message=message, allowed=allowed))
    if errors:
        raise InvalidProblemError(errors)

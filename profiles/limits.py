"""The sizes that a model may have: one table, for the dataclasses and for whoever reads them."""

from __future__ import annotations

from profiles.errors import FieldError, InvalidProblemError

MODEL_LIMITS: dict[str, tuple[int, int]] = {
    "num_layers": (1, 10_000),
    "hidden_size": (1, 2**20),
    "ffn_hidden_size": (1, 2**24),
    "num_attention_heads": (1, 2**16),
    "num_kv_heads": (1, 2**16),
    "head_dim": (1, 2**14),
    "vocab_size": (1, 2**27),
    "num_mtp_layers": (0, 64),
    "sliding_window": (1, 2**31 - 1),
    "sliding_window_every": (1, 10_000),
    "max_position_embeddings": (1, 2**31 - 1),
}
MOE_LIMITS: dict[str, tuple[int, int]] = {
    "num_experts": (1, 65_536),
    "top_k": (1, 65_536),
    "ffn_hidden_size": (1, 2**24),
    "num_shared_experts": (0, 1024),
    "shared_ffn_hidden_size": (0, 2**24),
    "num_dense_layers": (0, 10_000),
    "frequency": (1, 10_000),
}
MLA_LIMITS: dict[str, tuple[int, int]] = {
    "q_lora_rank": (0, 2**20),
    "kv_lora_rank": (1, 2**20),
    "qk_nope_head_dim": (1, 2**14),
    "qk_rope_head_dim": (1, 2**14),
    "v_head_dim": (1, 2**14),
}


def refuse_out_of_range(spec: object, pointer: str, limits: dict[str, tuple[int, int]]) -> None:
    """Check the integer fields of a dataclass; fields that are None pass.

    Raises:
        InvalidProblemError: fields that are no whole numbers or lie outside their limits.
    """
    errors = []
    for name, (low, high) in limits.items():
        value = getattr(spec, name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            errors.append(FieldError(pointer=f"{pointer}/{name}", message="must be a whole number"))
        elif not low <= value <= high:
            allowed = f"{low} to {high}"
            message = f"{value if abs(value) < 10**20 else 'the value'} is out of range"
            errors.append(FieldError(pointer=f"{pointer}/{name}", message=message, allowed=allowed))
    if errors:
        raise InvalidProblemError(errors)

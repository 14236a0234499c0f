"""How launchers divide what a file leaves to them."""

from __future__ import annotations

from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.launchers.rules import near_divisors


def first_larger(num_layers: int, chunks: int, *, field: str) -> tuple[int, ...]:
    """As even as can be, the first chunks one layer more: DeepSpeed's and torchtitan's own split.

    DeepSpeed 0.19.8, runtime/utils.py:627 ``partition_balanced`` of the transformer layers, and
    torchtitan 0.3.0 (``torchtitan_split``).

    Raises:
        InvalidProblemError: more chunks than layers; ``field`` is what asks for them.
    """
    if not 1 <= chunks <= num_layers:
        message = f"{chunks} stages for {num_layers} layers"
        nearest = str(min(max(chunks, 1), num_layers))
        raise InvalidProblemError.of(field, message, allowed=f"1 to {num_layers}", nearest=nearest)
    least, more = divmod(num_layers, chunks)
    return tuple(least + (place < more) for place in range(chunks))


def divided(total: int, by: int, *, field: str, what: str) -> int:
    """``total / by``, which must be whole.

    Raises:
        InvalidProblemError: it is not; ``what`` says in words what is divided by what.
    """
    if by < 1 or total % by:
        raise InvalidProblemError.of(
            field,
            f"{what}: {by} does not divide {total}",
            allowed=f"divisors of {total}",
            nearest=near_divisors(max(by, 1), total) or None,
        )
    return total // by

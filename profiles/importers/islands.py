"""Which GPUs links join into islands."""

from __future__ import annotations

from collections.abc import Iterable


def connected(count: int, pairs: Iterable[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
    """Groups of the members 0 … count − 1 that the pairs join, each sorted, by first member."""
    leader = list(range(count))

    def first(member: int) -> int:
        while leader[member] != member:
            member = leader[member]
        return member

    for one, other in pairs:
        low, high = sorted((first(one), first(other)))
        leader[high] = low
    groups: dict[int, list[int]] = {}
    for member in range(count):
        groups.setdefault(first(member), []).append(member)
    return tuple(tuple(group) for group in groups.values())

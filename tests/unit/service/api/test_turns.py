"""Turns go round the tenants, and none of them holds all."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack

import pytest

from meshwright.service.api.turns import Turns
from meshwright.service.errors import BusyError


def in_a_loop(test: Callable[[], Coroutine[object, object, None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(test())

    run.__name__ = test.__name__
    return run


def made(max_wait_s: float = 5.0) -> Turns:
    return Turns("things", size=3, share=2, max_wait_s=max_wait_s)


@in_a_loop
async def test_a_tenant_that_floods_leaves_a_turn_to_others() -> None:
    turns = made(max_wait_s=0.02)
    async with AsyncExitStack() as held:
        for _ in range(2):
            await held.enter_async_context(turns.turn("flood"))
        with pytest.raises(BusyError, match="too many concurrent things"):
            await held.enter_async_context(turns.turn("flood"))
        await held.enter_async_context(turns.turn("quiet"))
    assert not turns._held
    assert not turns._waiting


@in_a_loop
async def test_free_turns_go_round_the_tenants() -> None:
    turns, order = made(), list[str]()

    async def work(tenant: str) -> None:
        async with turns.turn(tenant):
            order.append(tenant)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for tenant in "aaaaaabc":
            group.create_task(work(tenant))
    assert max(order.index("b"), order.index("c")) <= 4
    assert sorted(order) == sorted("aaaaaabc")


@in_a_loop
async def test_a_client_that_leaves_gives_its_turn_back() -> None:
    turns = made()
    async with turns.turn("a"), turns.turn("a"), turns.turn("b"):
        waiting = [asyncio.create_task(turns._take(tenant)) for tenant in "abc"]
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        late = asyncio.create_task(turns._take("c"))
        await asyncio.sleep(0)
        turns._held["b"] -= 1
        turns._grant()
        late.cancel()  # after its turn was granted, before it knows
        await asyncio.wait([late])
        turns._held["b"] += 1
    assert not turns._held
    assert not turns._waiting

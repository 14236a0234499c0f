"""Turns that tenants take one after the other, so that none of them waits for another's queue."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from meshwright.service.errors import BusyError


class Turns:
    """A number of turns, of which one tenant holds at most a share; of one event loop.

    A free turn goes to the tenant that holds the fewest, and among these to the one that waited longest
    since it last got one.
    """

    def __init__(self, what: str, *, size: int, share: int, max_wait_s: float) -> None:
        self._what = what
        self._size = size
        self._share = share
        self._max_wait_s = max_wait_s
        self._held: Counter[str] = Counter()
        self.refused = {"late": 0, "left": 0}  # no turn came free in time; the client left first
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # the next tenant first

    @property
    def num_held(self) -> int:
        """Return how many turns are held."""
        return self._held.total()

    @property
    def num_waiting(self) -> int:
        """Return how many wait for a turn."""
        return sum(len(queue) for queue in tuple(self._waiting.values()))

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[None]:
        """Hold one of the turns.

        Raises:
            BusyError: none was free for this tenant within ``max_wait_s``.
        """
        await self._take(tenant)
        try:
            yield
        finally:
            self._release(tenant)

    async def _take(self, tenant: str) -> None:
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(granted)
        self._grant()
        try:
            async with asyncio.timeout(self._max_wait_s):
                await granted
        except BaseException as fault:
            if granted.done() and not granted.cancelled():
                self._release(tenant)  # it came too late
            else:
                self._forget(tenant, granted)
            self.refused["late" if isinstance(fault, TimeoutError) else "left"] += 1
            if isinstance(fault, TimeoutError):
                raise BusyError(f"too many concurrent {self._what}: retry in a few seconds") from None
            raise

    def _forget(self, tenant: str, granted: asyncio.Future[None]) -> None:
        queue = self._waiting.get(tenant, deque())
        if granted in queue:
            queue.remove(granted)
        if not queue:
            self._waiting.pop(tenant, None)

    def _release(self, tenant: str) -> None:
        self._held[tenant] -= 1
        if not self._held[tenant]:
            del self._held[tenant]
        self._grant()

    def _grant(self) -> None:
        while self._held.total() < self._size:
            ready = [one for one in self._waiting if self._held[one] < self._share]
            if not ready:
                return
            tenant = min(ready, key=lambda one: self._held[one])
            queue = self._waiting.pop(tenant)
            granted = queue.popleft()
            if queue:
                self._waiting[tenant] = queue  # behind all others
            if not granted.done():
                self._held[tenant] += 1
                granted.set_result(None)

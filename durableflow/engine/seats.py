"""How many branches of a group of an ``async def run`` may be at work at once (design 7, 12). All of it in the loop's thread."""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import ContextVar


class Places:
    """The places of one group."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        """Wait for a place, in the order of those who ask."""
        if self._free and not self._waiting:
            self._free -= 1
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.give_back()
            raise

    def give_back(self) -> None:
        """Hand it to the next who waits."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._free += 1


class Seat:
    """A branch's claim to a place of its group. ``outer``: that of the branch around the group.

    A branch that waits leaves its place to others: one of whose calls in the engine all wait.
    """

    def __init__(self, places: Places, outer: Seat | None) -> None:
        self._places, self._outer = places, outer
        self._held = False
        self._calls = 0
        self._parked = 0

    async def take(self) -> None:
        """Wait for a place, unless the branch has one."""
        if self._outer is not None:
            await self._outer.take()
        if not self._held:
            self._held = True
            try:
                await self._places.take()
            except BaseException:
                self._held = False
                raise

    def leave(self) -> None:
        """The branch is over."""
        if self._held:
            self._held = False
            self._places.give_back()

    def begin(self) -> None:
        """One more call of the branch is in the engine."""
        self._calls += 1
        if self._outer is not None:
            self._outer.begin()

    def end(self) -> None:
        """One less. What the branch does next is to be seen first: it may call again."""
        self._calls -= 1
        asyncio.get_running_loop().call_soon(self._look)
        if self._outer is not None:
            self._outer.end()

    def park(self) -> None:
        """One more of its calls waits."""
        self._parked += 1
        self._look()
        if self._outer is not None:
            self._outer.park()

    def wake(self) -> None:
        """One of them goes on, or nobody waits for it any more."""
        self._parked -= 1
        if self._outer is not None:
            self._outer.wake()

    def _look(self) -> None:
        if self._parked and self._parked >= self._calls:
            self.leave()


current_seat: ContextVar[Seat | None] = ContextVar("durableflow_seat", default=None)
"""The seat of the branch that runs in this context."""

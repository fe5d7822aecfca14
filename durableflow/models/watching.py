"""Waiting until an instance may have changed, without asking again and again (reference 12).

PostgreSQL: a mark in the instance's row asks those who write its history, end it or put it to rest for a notice after their
commit. Because the mark takes the row's lock, whoever wrote before it has committed and shows at the next look, and whoever
writes after it sees it. SQLite: every commit is heard. Where nothing can be heard (a database in memory, an open transaction)
it is polled.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from asgiref.sync import sync_to_async
from django.db import Error, connections

from durableflow.core import clock
from durableflow.core.hearing import Hub, Member, hub_of
from durableflow.core.notices import CHANNEL
from durableflow.core.outages import locked, read_only
from durableflow.core.transactions import alias_of
from durableflow.models.instance_fields import InstanceFields

MARKED_FOR: Final = 60
"""Seconds for which a mark asks for notices."""
MARK_EVERY = 15.0
"""Seconds after which a mark is renewed, and looked at what a lost notice would have told. Less than half of ``MARKED_FOR``."""
DEAF_PAUSE: Final = 1.0
FIRST_POLL, LAST_POLL = 0.01, 0.5
HEAR_AFTER = 0.1
"""Seconds for which whoever waits for an end polls first. Many instances end within them: a connection, a mark and notices would
cost more than those few looks, and the mark would hold the row just when a worker wants to claim it."""

# One short transaction: nobody who holds the row is waited for longer than a second, and it need not reach the disk. The notice
# that it gives shows whoever marks that notices arrive.
_MARK: Final = """
    WITH t AS MATERIALIZED (
        SELECT set_config('lock_timeout', '1s', true) AS v, set_config('synchronous_commit', 'off', true) AS w),
    m AS (UPDATE {table} AS i SET {column} = clock_timestamp() + make_interval(secs => {seconds})
        FROM t WHERE i.id = %s AND t.v IS NOT NULL AND t.w IS NOT NULL RETURNING i.id)
    SELECT count(*), pg_notify(%s, %s) FROM m"""


class Watch:
    """Watches one instance. Use: look; then again and again ``arm``, look, wait. What is committed after ``arm`` ends the next
    wait. ``arm`` asks the database, the rest does not. ``ends``: it is waited for the end, or for rest, alone; then it polls for
    the first ``HEAR_AFTER`` seconds."""

    def __init__(self, instance: InstanceFields, *, ends: bool = False) -> None:
        self._ends = ends
        self._hear_from = time.monotonic() + (HEAR_AFTER if ends else 0.0)
        self._using = alias_of(instance)
        self._pk = instance.pk
        column = "awaited_until" if ends else "followed_until"
        self._sql = _MARK.format(table=instance._meta.db_table, column=column, seconds=MARKED_FOR)
        self._hub: Hub | None = None
        self._member: Member | None = None
        self._marked_in = 0
        self._mark_at = 0.0
        self._unsure = False
        self._poll = FIRST_POLL
        self._state = threading.Lock()
        self._closed = False

    def arm(self) -> None:
        """From now on a commit is told. Raises what the database raises."""
        self._forget()
        connection = connections[self._using]
        if connection.in_atomic_block or clock.stopped() is not None or time.monotonic() < self._hear_from:
            self._leave()
            return
        hub = self._joined()
        if hub is not None and connection.vendor == "postgresql":
            self._mark_when_due(hub)
        elif hub is not None:
            self._mark_at = time.monotonic() + MARK_EVERY

    def close(self) -> None:
        """Let go of everything, for good."""
        with self._state:
            self._closed = True
        self._leave()

    def _joined(self) -> Hub | None:
        # Whoever follows in a task may be cancelled, and has closed the watch, while a thread still arms it.
        with self._state:
            if self._member is None and not self._closed:
                self._hub = hub_of(self._using)
                if self._hub is not None:
                    self._member = self._hub.join(self._pk, self._poke)
            return self._hub

    def _leave(self) -> None:
        with self._state:
            if self._member is not None and self._hub is not None:
                self._hub.leave(self._member)
            self._hub = self._member = None

    def _mark_when_due(self, hub: Hub) -> None:
        now, generation = time.monotonic(), hub.generation
        if not generation or (generation == self._marked_in and now < self._mark_at):
            return
        marked = hub.marked_at(self._pk, self._ends)
        if marked is None or now >= marked + MARK_EVERY:
            self._unsure = not self._mark(hub)
            marked = now
            if not self._unsure:
                hub.note_mark(self._pk, self._ends, generation, now)
        else:
            self._unsure = False
        self._marked_in, self._mark_at = generation, marked + (DEAF_PAUSE if self._unsure else MARK_EVERY)

    def _mark(self, hub: Hub) -> bool:
        """Renew the mark; False where somebody holds the row for long, or nobody may write here."""
        text = hub.expect()
        try:
            with connections[self._using].cursor() as cursor:
                cursor.execute(self._sql, [self._pk, CHANNEL, text])
        except Error as error:
            hub.forget(text)
            if not (locked(error) or read_only(error)):
                raise
            return False
        except BaseException:
            hub.forget(text)
            raise
        return True

    def _longest(self) -> float:
        """Seconds that one may wait without a look."""
        if self._hub is None:
            pause, self._poll = self._poll, min(1.5 * self._poll, LAST_POLL)
            return pause
        if self._hub.deaf or self._unsure:
            return DEAF_PAUSE
        return max(0.0, self._mark_at - time.monotonic())

    def _poke(self) -> None:
        raise NotImplementedError

    def _forget(self) -> None:
        raise NotImplementedError


class ThreadWatch(Watch):
    """A watch by which a thread waits."""

    def __init__(self, instance: InstanceFields, *, ends: bool = False) -> None:
        super().__init__(instance, ends=ends)
        self._event = threading.Event()

    def wait(self, most: float) -> None:
        """Return when another look is worth it, at the latest after ``most`` seconds."""
        self._event.wait(max(0.0, min(most, self._longest())))

    def _poke(self) -> None:
        self._event.set()

    def _forget(self) -> None:
        self._event.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class TaskWatch(Watch):
    """A watch by which a task waits: no thread does. Made in the event loop; ``arm`` may run in any thread."""

    def __init__(self, instance: InstanceFields, *, ends: bool = False) -> None:
        super().__init__(instance, ends=ends)
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    async def wait(self, most: float) -> None:
        """The same as ``ThreadWatch.wait``."""
        try:
            async with asyncio.timeout(max(0.0, min(most, self._longest()))):
                await self._event.wait()
        except TimeoutError:
            pass

    def _poke(self) -> None:
        self._loop.call_soon_threadsafe(self._event.set)

    def _forget(self) -> None:
        self._loop.call_soon_threadsafe(self._event.clear)


def wait_until(instance: InstanceFields, done: Callable[[], bool], seconds: float | None) -> bool:
    """Wait until ``done()``, which asks the database for the instance's state and nothing else; False when ``seconds`` (None:
    any number) are over before. Raises what it raises. Must not run in a transaction, in which nothing new would show."""
    end = _end_of(seconds)
    with ThreadWatch(instance, ends=True) as watch:
        while not done():
            if (left := end - time.monotonic()) <= 0:
                return False
            watch.wait(left)
            watch.arm()
        return True


async def await_until(instance: InstanceFields, done: Callable[[], bool], seconds: float | None) -> bool:
    """The same for ``await``: no thread waits. The database is asked in Django's thread for synchronous code."""
    end = _end_of(seconds)
    watch = TaskWatch(instance, ends=True)

    def look_again() -> bool:
        watch.arm()
        return done()

    try:
        ended = await sync_to_async(done)()
        while not ended:
            if (left := end - time.monotonic()) <= 0:
                return False
            await watch.wait(left)
            ended = await sync_to_async(look_again)()
        return True
    finally:
        watch.close()


def _end_of(seconds: float | None) -> float:
    return math.inf if seconds is None else time.monotonic() + seconds

"""Following an instance: its history, then what happens as it happens (reference 12)."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from asgiref.sync import sync_to_async
from django.db.models import OuterRef, Subquery

from durableflow.core import atomicity, clock
from durableflow.core.entries import HISTORY_TYPES, stored_types
from durableflow.core.statuses import FINISHED
from durableflow.core.transactions import alias_of
from durableflow.models.instance_fields import InstanceFields
from durableflow.models.watching import TaskWatch, ThreadWatch

if TYPE_CHECKING:
    from durableflow.models.history import HistoryEntry
else:
    HistoryEntry = Any

BATCH: Final = 500
"""Entries that are read at once: a history may be long."""
Runner = Callable[[Callable[[], Any]], Coroutine[Any, Any, Any]]


class FollowVerbs(InstanceFields):
    """``follow``."""

    class Meta:
        abstract = True

    def follow(self, after: int = 0, types: Collection[str] | None = None) -> Generator[HistoryEntry]:
        """The history after the entry ``after``, oldest first, and then each entry as it is committed.

        Ids rise in the order of commit, so ``after=`` the last id that was seen goes on exactly there, in any process.
        ``types``: only entries of these types, and those that stand for one of them (a step that succeeded at once is one
        entry, ``step_completed``; see ``HistoryEntry.types``).

        It ends when the instance has ended and all is told, also when the type of the end is left out; a restart or retry
        that was made before it looked belongs to it. It also ends when the instance is deleted. Raises ValueError at
        the call; RuntimeError inside ``atomic()``, where nothing new could become visible (unless the instance has ended);
        and what the database raises. Closing the iterator frees all that it holds. On PostgreSQL it does not poll:
        an entry whose notice got lost with a process that died comes at most ``MARK_EVERY`` (15) seconds late.
        """
        return _entries(Follower(self, after, types))

    def afollow(self, after: int = 0, types: Collection[str] | None = None) -> AsyncGenerator[HistoryEntry]:
        """``follow`` for ``async for``: no thread waits."""
        return _aentries(Follower(self, after, types))


@dataclass(frozen=True)
class Found:
    """What a look has found. ``more``: there was more to read; ``ended``: nothing will follow; ``status``: None once the
    instance is deleted."""

    entries: list[HistoryEntry]
    more: bool
    ended: bool
    status: str | None


class Follower:
    """Reads a history from a place on. ``cursor``: all up to this id has been read."""

    def __init__(self, instance: InstanceFields, after: int = 0, types: Collection[str] | None = None) -> None:
        self.instance = instance
        self.cursor = _checked_cursor(after)
        self.types = _checked_types(types)
        self._using = alias_of(instance)

    def look(self, batch: int = BATCH) -> Found:
        """What is there now, at most ``batch`` entries. One query where there is nothing new, else two."""
        model: Any = type(self.instance)
        newest = self.instance.history.model._default_manager.filter(instance=OuterRef("pk")).order_by("-id")
        row = (
            model._default_manager.using(self._using)
            .filter(pk=self.instance.pk)
            .values("status", newest=Subquery(newest.values("id")[:1]))
            .first()
        )
        if row is None:
            return Found([], more=False, ended=True, status=None)
        if row["status"] not in FINISHED and (where := atomicity.opened()):
            raise RuntimeError(
                f"follow() of {self.instance.label} inside {where} can never see the end: call it after the commit."
            )
        # Status and newest entry are of one moment: of an instance that has ended then, no entry up to that one is
        # missing, and later ones belong to a later run.
        top = row["newest"] or 0
        entries: list[HistoryEntry] = []
        if top > self.cursor:
            found = self.instance.history.using(self._using).filter(id__gt=self.cursor, id__lte=top).order_by("id")
            if self.types is not None:
                found = found.filter(type__in=stored_types(self.types))
            entries = list(found[:batch])
        more = len(entries) == batch
        self.cursor = entries[-1].pk if more else max(self.cursor, top)
        if self.types is not None:
            entries = [entry for entry in entries if not self.types.isdisjoint(entry.types)]
        return Found(entries, more, ended=row["status"] in FINISHED and not more, status=row["status"])

    def refuse_to_wait(self, status: str | None) -> None:
        """Raise RuntimeError where nothing new can come."""
        if clock.stopped() is not None:
            raise RuntimeError(
                f"{self.instance.label} is {status} and the test's clock stands still: nothing more would follow."
            )

    def batches(self, every: float = math.inf) -> Generator[Found]:
        """What is found, look by look, to the end; and an empty one after each ``every`` seconds in which there was
        nothing."""
        with ThreadWatch(self.instance) as watch:
            waiting = _Waiting(self, every)
            while True:
                found = self.look()
                if waiting.worth(found):
                    yield found
                if found.ended:
                    return
                if not found.more:
                    if waiting.armed:
                        watch.wait(waiting.left())
                    waiting.arm(found, watch.arm)

    async def abatches(self, every: float = math.inf, run: Runner | None = None) -> AsyncGenerator[Found]:
        """The same without a thread that waits. ``run``: calls a function that asks the database; default: in Django's
        thread for synchronous code."""
        asked = run or _in_djangos_thread
        watch = TaskWatch(self.instance)
        waiting = _Waiting(self, every)
        try:
            while True:
                found = await asked(self.look)
                if waiting.worth(found):
                    yield found
                if found.ended:
                    return
                if not found.more:
                    if waiting.armed:
                        await watch.wait(waiting.left())
                    await asked(lambda found=found: waiting.arm(found, watch.arm))  # type: ignore[misc]
        finally:
            watch.close()


class _Waiting:
    """What both ways of waiting have in common."""

    def __init__(self, follower: Follower, every: float) -> None:
        self.armed = False
        self._follower = follower
        self._every = every
        self._quiet_since = time.monotonic()

    def worth(self, found: Found) -> bool:
        """Whether it is to be handed on."""
        if found.entries or found.ended or self.left() <= 0:
            self._quiet_since = time.monotonic()
            return True
        return False

    def left(self) -> float:
        """Seconds until the next sign of life is due."""
        return self._quiet_since + self._every - time.monotonic()

    def arm(self, found: Found, arm: Callable[[], None]) -> None:
        """Arm the watch: what is committed between this and the next look shows at that look."""
        self._follower.refuse_to_wait(found.status)
        arm()
        self.armed = True


def _entries(follower: Follower) -> Generator[HistoryEntry]:
    batches = follower.batches()
    try:
        for found in batches:
            yield from found.entries
    finally:
        batches.close()


async def _aentries(follower: Follower) -> AsyncGenerator[HistoryEntry]:
    batches = follower.abatches()
    try:
        async for found in batches:
            for entry in found.entries:
                yield entry
    finally:
        await batches.aclose()


async def _in_djangos_thread(function: Callable[[], Any]) -> Any:
    return await sync_to_async(function, thread_sensitive=True)()


def _checked_cursor(after: Any) -> int:
    if isinstance(after, bool) or not isinstance(after, int) or after < 0:
        raise ValueError(f"after must be the id of a history entry, or 0 for all of them, not {after!r}.")
    return int(after)


def _checked_types(types: Any) -> frozenset[str] | None:
    if types is None:
        return None
    if isinstance(types, str) or not isinstance(types, Collection):
        raise ValueError(f"types must be a list of history types, such as ['step_completed'], not {types!r}.")
    unknown = sorted(str(type) for type in types if type not in HISTORY_TYPES)
    if unknown:
        raise ValueError(f"Unknown history types: {', '.join(unknown)}. Known: {', '.join(HISTORY_TYPES)}.")
    return frozenset(types)

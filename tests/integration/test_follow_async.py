"""``afollow``: the same for ``async for``, and following in the testing kit (design 12)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import aclosing
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import transaction

from durableflow.core import hearing
from durableflow.models import HistoryEntry, WorkflowInstance, watching
from durableflow.testing import Harness
from tests.integration.follow_flows import FollowedOrder, FollowedSteps
from tests.support.concurrency import PATIENCE, Task, eventually
from tests.support.engine import drain_all, drained, types_of

transactional = pytest.mark.django_db(transaction=True)


def awaited(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run it in an event loop of this thread, with a time limit."""

    async def bounded() -> Any:
        async with asyncio.timeout(PATIENCE):
            return await coroutine

    return async_to_sync(bounded)()


async def types(row: WorkflowInstance, **options: Any) -> list[str]:
    """The types of all that is told."""
    return [entry.type async for entry in row.afollow(**options)]


@transactional
def test_a_whole_history() -> None:
    """Scenario L, asynchronous: what has ended is told and ends."""
    row = drained(FollowedSteps.create(2))
    assert awaited(types(row)) == types_of(row)
    assert awaited(types(row, types=["workflow_completed"])) == ["workflow_completed"]


@transactional
def test_live(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario L, asynchronous: many tasks follow; each is told all, by notices alone, and no thread waits for any of them."""
    monkeypatch.setattr(watching, "MARK_EVERY", 3600.0)
    rows = [FollowedOrder.create() for _ in range(3)]
    started = threading.Event()

    async def follow_all() -> list[list[str]]:
        tasks = [asyncio.create_task(types(row)) for row in rows for _ in range(10)]
        hub = hearing.hub_of("default")
        while hub is None or hub.deaf or sum(map(len, hub._members.values())) < 30:
            await asyncio.sleep(0.005)
        waiting = [thread for thread in threading.enumerate() if thread.name not in before]
        assert len(waiting) <= 3, waiting  # the loop's own, Django's, and the one that hears
        started.set()
        return await asyncio.gather(*tasks)

    before = {thread.name for thread in threading.enumerate()}
    followers = Task(lambda: awaited(follow_all()))
    eventually(lambda: started.is_set() or followers.error, "all follow")
    drain_all()
    for row in rows:
        row.send_event("go", 1)
    drain_all()
    told = followers.result()
    assert [told[number] for number in (0, 10, 20)] == [types_of(row) for row in rows]
    assert all(told[number] == told[number - number % 10] for number in range(30))


@transactional
def test_breaking_off_and_being_cancelled() -> None:
    """Closing the generator, and cancelling who reads it, free what it holds."""
    row = FollowedOrder.create()
    hub = hearing.hub_of("default")
    assert hub is not None

    async def follow() -> None:
        async with aclosing(row.afollow()) as entries:
            async for entry in entries:
                assert entry.type == "workflow_queued"
                break
        task = asyncio.create_task(types(row))
        while not hub._members:
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    awaited(follow())
    assert not hub._members


@transactional
def test_a_thread_that_still_arms_the_watch_of_one_who_was_cancelled() -> None:
    """The watch is closed by the cancelled task; what its thread does after that leaves nothing behind."""
    hub = hearing.hub_of("default")
    assert hub is not None
    watch = watching.ThreadWatch(FollowedOrder.create())
    watch.close()
    watch.arm()
    assert not hub._members


@transactional
def test_not_inside_a_transaction() -> None:
    """Design 12: as ``follow()``."""
    row = FollowedOrder.create()

    def inside() -> Any:
        with transaction.atomic():
            return async_to_sync(types)(row)

    async def follow() -> None:
        with pytest.raises(RuntimeError, match="inside atomic"):
            await sync_to_async(inside)()

    awaited(follow())


@pytest.mark.django_db
def test_in_the_testing_kit(workflows: Harness) -> None:
    """Of one that has not ended: what is there, and then an error, because the test's clock stands still. No statement of it
    stays in the test's transaction."""
    row = workflows.run(FollowedOrder)
    seen: list[HistoryEntry] = []
    with pytest.raises(RuntimeError, match=r"is waiting and the test's clock stands still"):
        for entry in row.follow():
            seen.append(entry)
    assert [entry.type for entry in seen] == types_of(row)
    row.send_event("go", 1)
    workflows.run_due()
    assert [entry.type for entry in row.follow(after=seen[-1].pk)] == types_of(row)[len(seen) :]
    assert row.followed_until is None

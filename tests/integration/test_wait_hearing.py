"""Waiting for a result: what is asked of the database meanwhile, and what happens where nothing is heard (design 9)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection

from durableflow import WorkflowFailed
from durableflow.core import clock, ears, hearing, notices
from durableflow.engine.claims import claim
from durableflow.models import WorkflowInstance, watching
from tests.integration.wait_flows import AwaitedOrder, AwaitedSteps, Waiter, threads_of_hearing
from tests.support.concurrency import PATIENCE, Task, eventually, together
from tests.support.engine import drain_all, drained

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _notices_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(watching, "MARK_EVERY", 3600.0)
    monkeypatch.setattr(watching, "HEAR_AFTER", 0.0)
    yield
    eventually(lambda: hub()._thread is None, "the end of the thread")
    hearing._hubs.clear()


def hub() -> hearing.Hub:
    """What this process hears."""
    found = hearing.hub_of("default")
    assert found is not None
    return found


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """For how long somebody was going to wait without a look."""
    found: list[float] = []
    real = watching.ThreadWatch.wait

    def wait(self: watching.ThreadWatch, most: float) -> None:
        found.append(min(most, self._longest()))
        real(self, most)

    monkeypatch.setattr(watching.ThreadWatch, "wait", wait)
    return found


@pytest.mark.postgresql_only
def test_nothing_is_asked_while_it_waits(waits: list[float]) -> None:
    """Scenario L: neither time that passes nor what others do, nor its own steps; then one look, and the output."""
    row, other = AwaitedOrder.create(), AwaitedSteps.create(5)
    row.pause()
    waiter = Waiter(row)
    eventually(lambda: waits and waits[-1] > 50, "a long wait")
    before = list(waiter.statements)
    drain_all()
    assert drained(other).is_finished
    row.history.create(run_number=1, type="note", at=row.created)
    assert waiter.statements == before
    row.terminate()
    with pytest.raises(WorkflowFailed, match="terminated"):
        waiter.task.result()
    assert len(waiter.statements) == len(before) + 2
    assert sum("pg_notify" in sql for sql in waiter.statements) == 1


def test_the_first_looks_are_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ends at once costs neither a connection nor a mark, and its row is nobody's for a moment."""
    monkeypatch.setattr(watching, "HEAR_AFTER", 3600.0)
    row = AwaitedSteps.create(2)
    waiting = Task(lambda: AwaitedSteps.get(row.instance_id).result(timeout=60))
    drain_all()
    assert waiting.result() == [0, 1]
    with pytest.raises(TimeoutError, match="is queued"):
        AwaitedOrder.create().result(timeout=0.05)
    assert (hub()._thread, hub().generation) == (None, 0)
    assert not WorkflowInstance.objects.filter(awaited_until__isnull=False).exists()


def test_whoever_comes_while_it_ends_misses_nothing() -> None:
    """The mark races with claim, checkpoints and end; each round ends, by notices alone."""
    for number in range(40):
        row = AwaitedSteps.create(number % 3 + 1)

        def wait(row: WorkflowInstance = row) -> Any:
            return AwaitedSteps.get(row.instance_id).result(timeout=60)

        def execute(row: WorkflowInstance = row) -> None:
            eventually(lambda: drained(AwaitedSteps.get(row.instance_id)).is_finished, "the end")

        first, _, second = together(wait, execute, wait)
        assert first.result() == second.result() == list(range(number % 3 + 1))


@pytest.mark.postgresql_only
def test_a_lost_notice_heals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever renews the mark looks."""
    monkeypatch.setattr(watching, "MARK_EVERY", 0.3)
    row = AwaitedSteps.create(1)
    waiter = Waiter(row)
    monkeypatch.setattr(notices, "_give", lambda using, pk: None)
    drain_all()
    assert waiter.task.result() == [0]


def test_many_share_one_connection_and_leave_nothing() -> None:
    """Scenario L: one thread hears for all; who waits no longer is forgotten."""
    rows = [AwaitedOrder.create() for _ in range(3)]
    waiters = [Waiter(row) for row in rows for _ in range(3)]
    eventually(lambda: sum(map(len, hub()._members.values())) == 9, "all wait")
    assert threads_of_hearing() == 1
    with pytest.raises(TimeoutError, match="is queued"):
        rows[0].result(timeout=0.05)
    assert sum(map(len, hub()._members.values())) == 9
    for row in rows:
        row.send_event("go", row.pk)
    drain_all()
    assert [waiter.task.result() for waiter in waiters] == [row.pk for row in rows for _ in range(3)]
    assert not hub()._members and not hub()._marked


def test_awaiting() -> None:
    """Many tasks wait, no thread does; one that is cancelled is forgotten at once, and so is one whose time is over."""
    rows = [AwaitedOrder.create() for _ in range(3)]
    started = threading.Event()
    before = {thread.name for thread in threading.enumerate()}

    async def wait() -> list[Any]:
        tasks = [asyncio.create_task(row.aresult(timeout=PATIENCE)) for row in rows for _ in range(5)]
        broken = asyncio.create_task(rows[0].aresult())
        while hub().deaf or hub()._marks or sum(map(len, hub()._members.values())) < 16:
            await asyncio.sleep(0.005)
        waiting = [thread for thread in threading.enumerate() if thread.name not in before]
        assert len(waiting) <= 3, waiting  # the loop's own, Django's, and the one that hears
        broken.cancel()
        with pytest.raises(asyncio.CancelledError):
            await broken
        with pytest.raises(TimeoutError, match="is queued"):
            await rows[0].aresult(timeout=0.05)
        assert sum(map(len, hub()._members.values())) == 15
        started.set()
        return await asyncio.gather(*tasks)

    waiters = Task(lambda: async_to_sync(wait)())
    eventually(lambda: started.is_set() or waiters.error, "all wait")
    for row in rows:
        row.send_event("go", row.pk)
    drain_all()
    assert waiters.result() == [row.pk for row in rows for _ in range(5)]
    assert not hub()._members


@pytest.mark.postgresql_only
def test_a_session_that_may_only_read(waits: list[float]) -> None:
    """It cannot mark the row, so it looks each second."""
    row = AwaitedSteps.create(1)

    def wait() -> Any:
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")
        return AwaitedSteps.get(row.instance_id).result(timeout=60)

    task = Task(wait)
    eventually(lambda: task.error or (len(waits) > 1 and hub().generation), "a look")
    drain_all()
    assert task.result() == [0]
    assert max(waits) <= watching.DEAF_PAUSE


@pytest.mark.postgresql_only
def test_behind_a_pooler_it_looks_each_second(monkeypatch: pytest.MonkeyPatch, waits: list[float]) -> None:
    """From the first moment on: nobody relies on what has not been heard yet."""
    monkeypatch.setattr(ears.PostgresEar, "hear", lambda self, seconds: time.sleep(0.05) or [])
    row = AwaitedSteps.create(1)
    task = Task(lambda: AwaitedSteps.get(row.instance_id).result(timeout=60))
    eventually(lambda: task.error or hub()._marks, "a mark")
    drain_all()
    assert task.result() == [0]
    assert max(waits) <= watching.DEAF_PAUSE


@pytest.mark.postgresql_only
def test_once_it_hears_it_waits_for_notices(monkeypatch: pytest.MonkeyPatch, waits: list[float]) -> None:
    """Whoever waited for a second only, because nothing had been heard yet, is told that something has."""
    monkeypatch.setattr(watching, "DEAF_PAUSE", 1800.0)
    mark, hear, marked_at = watching.Watch._mark, ears.PostgresEar.hear, [0]

    def note(self: watching.Watch, found: hearing.Hub) -> bool:
        marked_at[0] = len(waits)
        return mark(self, found)

    def late(self: ears.PostgresEar, seconds: float) -> list[str]:
        found = hear(self, seconds)
        if found:  # the notice of the mark comes when it is waited for
            eventually(lambda: len(waits) > marked_at[0], "a wait")
        return found

    monkeypatch.setattr(watching.Watch, "_mark", note)
    monkeypatch.setattr(ears.PostgresEar, "hear", late)
    row = AwaitedOrder.create()
    waiter = Waiter(row, lambda instance: instance.result())
    eventually(lambda: waits and waits[-1] > 1801, "a long wait")
    row.terminate()
    with pytest.raises(WorkflowFailed, match="terminated"):
        waiter.task.result()


def marks_of(row: WorkflowInstance) -> tuple[datetime | None, datetime | None]:
    """The marks in the row: of those who follow, and of those who wait for the end."""
    return WorkflowInstance.objects.values_list("followed_until", "awaited_until").get(pk=row.pk)


@pytest.mark.postgresql_only
def test_the_two_kinds_of_marks() -> None:
    """Each is renewed by its own kind and leaves the other alone; one for the end alone asks nobody who writes a step."""
    row = AwaitedOrder.create()
    follows, waiting = watching.ThreadWatch(row), watching.ThreadWatch(row, ends=True)
    waiting._mark(hub())
    followed, awaited = marks_of(row)
    assert followed is None and notices.marked(awaited)
    (claimed,) = claim("default")
    assert not claimed.lease.followed
    follows._mark(hub())
    followed, same = marks_of(row)
    assert notices.marked(followed) and same == awaited
    waiting._mark(hub())
    same, later = marks_of(row)
    assert same == followed and later is not None and awaited is not None and later > awaited
    hub()._marks.clear()


@pytest.mark.postgresql_only
@pytest.mark.parametrize("other", [None, -600])
def test_a_mark_that_is_over_asks_for_nothing(other: int | None) -> None:
    """Of either kind, whatever the other says, for those who write in SQL and for those who have read the row."""
    row = AwaitedOrder.create()

    def at(seconds: int | None) -> datetime | None:
        return None if seconds is None else clock.host_now() + timedelta(seconds=seconds)

    for seconds, wanted in ((60, True), (-600, False)):
        for marks in ((at(seconds), at(other)), (at(other), at(seconds))):
            assert notices.marked(*marks) is wanted
            rows = WorkflowInstance.objects.filter(pk=row.pk)
            rows.update(followed_until=marks[0], awaited_until=marks[1])
            with connection.cursor() as cursor:
                cursor.execute(f"SELECT {notices.marked_sql('now()')} FROM {rows.model._meta.db_table}")
                assert cursor.fetchone() == (wanted,)
    assert not notices.marked(None, None)

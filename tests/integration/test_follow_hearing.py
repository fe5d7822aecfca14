"""What following rests on: hearing, and what happens where nothing is heard (design 9)."""

from __future__ import annotations

import logging
import os
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction

from durableflow.core import ears, hearing, notices
from durableflow.models import WorkflowInstance, watching
from tests.integration.follow_flows import FollowedOrder, FollowedSteps, following
from tests.support.concurrency import eventually, together
from tests.support.engine import drained, types_of
from tests.support.logs import logged

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _notices_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(watching, "MARK_EVERY", 3600.0)
    yield
    eventually(lambda: hub()._thread is None, "the end of the thread")
    hearing._hubs.clear()  # it remembers what it has complained of


def hub() -> hearing.Hub:
    """What this process hears."""
    found = hearing.hub_of("default")
    assert found is not None
    return found


def hears(row: WorkflowInstance) -> bool:
    """Whether somebody waits for notices of ``row``, and they arrive."""
    row.refresh_from_db()
    marked = connection.vendor == "sqlite" or row.followed_until is not None
    return row.pk in hub()._members and not hub().deaf and not hub()._marks and marked


def test_whoever_comes_while_it_ends_misses_nothing() -> None:
    """Scenario L: the mark races with claim, checkpoints and end; each round ends, by notices alone, with the whole list."""
    for number in range(60):
        row = FollowedSteps.create(number % 3)
        seen: list[list[str]] = []

        def follow(row: WorkflowInstance = row, seen: list[list[str]] = seen) -> None:
            seen.append([entry.type for entry in FollowedSteps.get(row.instance_id).follow()])

        def execute(row: WorkflowInstance = row) -> None:
            # A drain leaves a row alone that somebody marks at this very moment, and may find nothing else to do.
            eventually(lambda: drained(FollowedSteps.get(row.instance_id)).is_finished, "the end")

        tasks = together(follow, execute, follow)
        for task in tasks:
            task.result()
        assert seen == [types_of(row)] * 2


def test_a_verb_in_a_transaction_is_told_after_its_commit() -> None:
    """Nobody is told of what is rolled back, and nobody looks before it can be seen."""
    row = FollowedOrder.create()
    with following(row) as follower:
        eventually(lambda: hears(row), "hearing")
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            FollowedOrder.get(row.instance_id).pause()
            raise ZeroDivisionError
        with transaction.atomic():
            mine = FollowedOrder.get(row.instance_id)
            mine.pause()
            mine.resume()
            mine.terminate()
            assert follower.types == ["workflow_queued"]
    assert follower.types == ["workflow_queued", "workflow_paused", "workflow_queued", "workflow_terminated"]


@pytest.mark.postgresql_only
def test_a_connection_that_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    """It connects again, says so once, and whoever follows looks at what was missed."""
    row = FollowedOrder.create()
    with following(row) as follower:
        eventually(lambda: hears(row), "hearing")
        generation = hub().generation
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'durableflow follow'"
                " AND datname = current_database()"
            )
        row.pause()
        follower.sees("workflow_paused")
        eventually(lambda: hub().generation > generation and hears(row), "hearing again")
        row.resume()
        follower.sees("workflow_queued", 2)
        row.terminate()
    told = logged(caplog, "durableflow.notices")
    assert [record.levelno for record in told] == [logging.WARNING]


@pytest.mark.postgresql_only
def test_no_connection_at_all(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """It looks each second instead, and warns once."""

    def refused(self: Any) -> None:
        raise OperationalError("no more connections")

    monkeypatch.setattr(ears.PostgresEar, "open", refused)
    monkeypatch.setattr(hearing, "RECONNECT_AFTER", 0.05)
    row = FollowedOrder.create()
    with following(row) as follower:
        follower.sees("workflow_queued")
        eventually(lambda: hub()._complaint, "the complaint")
        row.pause()
        follower.sees("workflow_paused")
        row.terminate()
    told = logged(caplog, "durableflow.notices")
    assert [record.levelno for record in told] == [logging.WARNING]
    assert "no more connections" in told[0].getMessage()


@pytest.mark.postgresql_only
def test_a_pooler_that_swallows_notifications(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The notice of the mark itself does not arrive: it says what to set, once, and looks each second; and is glad when it hears."""
    real, swallows = ears.PostgresEar.hear, [True]

    def hear(self: ears.PostgresEar, seconds: float) -> list[str]:
        found = real(self, min(seconds, 0.05))
        return [] if swallows else found

    monkeypatch.setattr(ears.PostgresEar, "hear", hear)
    monkeypatch.setattr(hearing, "ECHO_WITHIN", 0.2)
    monkeypatch.setattr(hearing, "RECONNECT_DEAF_EVERY", 0.2)
    row = FollowedOrder.create()
    with following(row) as follower:
        eventually(lambda: hub()._complaint, "the complaint")
        row.pause()
        follower.sees("workflow_paused")
        swallows.clear()
        eventually(lambda: hears(row) and not hub()._complaint, "hearing")
        row.terminate()
    told = logged(caplog, "durableflow.notices")
    assert [record.levelno for record in told if record.levelno >= logging.WARNING] == [logging.WARNING]
    assert "LISTEN_DATABASE" in told[0].getMessage()


def test_a_process_that_was_forked_hears_for_itself() -> None:
    """The thread stays in the parent; the child has none of it, and closes nothing that is the parent's."""
    row = FollowedOrder.create()
    with following(row):
        eventually(lambda: hears(row), "hearing")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks beside threads
            child = os.fork()
        if not child:
            os._exit(0 if not hearing._hubs and hearing._hubs_lock.acquire(blocking=False) else 1)
        assert os.waitpid(child, 0)[1] == 0
        row.terminate()


def test_nothing_is_open_when_nobody_follows() -> None:
    """Thread and connection end soon after the last has gone; the next one gets new ones."""
    for _ in range(3):
        row = FollowedOrder.create()
        with following(row):
            eventually(lambda row=row: hears(row), "hearing")  # type: ignore[misc]
            row.terminate()
        eventually(lambda: hub()._thread is None, "the end of the thread")


def test_where_nothing_can_be_heard_it_is_polled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A database in memory, or one of another kind."""
    monkeypatch.setattr(watching, "hub_of", lambda using: None)
    row = FollowedOrder.create()
    with following(row) as follower:
        row.pause()
        follower.sees("workflow_paused")
        row.terminate()
    assert follower.types[-1] == "workflow_terminated"


@pytest.mark.postgresql_only
def test_a_notice_that_cannot_be_given_harms_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What was written is written."""
    row = FollowedOrder.create()
    with following(row) as follower:
        eventually(lambda: hears(row), "hearing")
        with monkeypatch.context() as patched:
            patched.setattr(notices, "_NOTIFY", "SELECT no_such_function(%s, %s)")
            row.pause()
        assert WorkflowInstance.objects.get(pk=row.pk).status == "paused"
        row.terminate()
    assert follower.types == ["workflow_queued", "workflow_paused", "workflow_terminated"]
    assert ["A notice was not given" in record.getMessage() for record in logged(caplog, "durableflow.notices")] == [
        True
    ]


@pytest.mark.postgresql_only
def test_one_mark_serves_all_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many follow, the row is written to once."""
    real, marks = watching.Watch._mark, [0]

    def count(self: watching.Watch, hub: hearing.Hub) -> bool:
        marks[0] += 1
        return real(self, hub)

    monkeypatch.setattr(watching.Watch, "_mark", count)
    row = FollowedOrder.create()
    with following(row) as first:
        eventually(lambda: hears(row), "hearing")
        with following(row) as second, following(row) as third:
            eventually(lambda: len(hub()._members[row.pk]) == 3, "all three")
            row.pause()
            for follower in (first, second, third):
                follower.sees("workflow_paused")
            row.terminate()
    assert marks == [1]
    assert not hub()._marked


def test_no_thread_to_be_had(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Then it is looked each second."""

    def refused(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    watch = watching.ThreadWatch(FollowedOrder.create())
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        watch.arm()
    pause = watch._longest()
    watch.close()
    assert (pause, hub()._thread) == (watching.DEAF_PAUSE, None)
    assert ["can't start" in record.getMessage() for record in logged(caplog, "durableflow.notices")] == [True]


@pytest.mark.sqlite_only
def test_on_sqlite_no_row_is_marked() -> None:
    """Every commit is heard there: who follows writes nothing."""
    row = FollowedOrder.create()
    with following(row):
        eventually(lambda: hears(row), "hearing")
        row.terminate()
    row.refresh_from_db()
    assert row.followed_until is None

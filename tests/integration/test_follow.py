"""Following an instance live (reference 12, scenario L)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from durableflow.core import hearing
from durableflow.models import HistoryEntry, WorkflowInstance, watching
from tests.integration.follow_flows import FollowedFailure, FollowedOrder, FollowedSteps, following
from tests.support.concurrency import Task, eventually, held
from tests.support.engine import drain_all, drained, types_of

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def notices_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but a notice (PostgreSQL) or a commit (SQLite) wakes who follows."""
    monkeypatch.setattr(watching, "MARK_EVERY", 3600.0)


def heard(row: WorkflowInstance) -> bool:
    """Whether a follower of ``row`` waits for notices alone."""
    hub = hearing.hub_of("default")
    if hub is None or hub.deaf or hub._marks:
        return False
    if connection.vendor == "sqlite":
        return row.pk in hub._members
    row.refresh_from_db()
    return row.followed_until is not None


@pytest.mark.usefixtures("notices_alone")
def test_each_thing_that_happens_is_told_when_it_happens() -> None:
    """Scenario L: verb, claim, step, delivery, end: each is told by its own notice, none waits for the next."""
    row = FollowedOrder.create()
    with following(row) as follower:
        follower.sees("workflow_queued")
        eventually(lambda: heard(row), "listening")
        drain_all()
        follower.sees("workflow_started")
        follower.sees("wait_started")
        row.send_event("go", 7)
        drain_all()
        follower.sees("event_received")
        follower.sees("workflow_completed")
    assert follower.types == types_of(row)
    ids = [entry.pk for entry in follower.seen]
    assert ids == sorted(set(ids))


@pytest.mark.usefixtures("notices_alone")
def test_verbs_of_people_are_told(superuser: Any) -> None:
    """Scenario L: pause, resume and terminate by a person, each alone."""
    row = FollowedOrder.create()
    with following(row) as follower:
        eventually(lambda: heard(row), "listening")
        row.pause(by=superuser, reason="lunch")
        follower.sees("workflow_paused")
        row.resume()
        follower.sees("workflow_queued", 2)
        row.terminate()
    assert follower.types == ["workflow_queued", "workflow_paused", "workflow_queued", "workflow_terminated"]
    assert (follower.seen[1].actor_name, follower.seen[1].reason) == ("superuser", "lunch")


@pytest.mark.usefixtures("notices_alone")
def test_an_event_that_is_only_delivered_is_told() -> None:
    """Scenario L: what a paused instance is sent shows at once."""
    row = FollowedOrder.create()
    row.pause()
    with following(row) as follower:
        eventually(lambda: heard(row), "listening")
        row.send_event("go", 7)
        drain_all()
        follower.sees("event_received")
        row.terminate()


@pytest.mark.usefixtures("notices_alone")
def test_the_end_alone_is_told() -> None:
    """Scenario L: a mark that is set while the last body runs is seen by the statement that ends the instance."""
    row = FollowedSteps.create(0)
    with following(row, types=["workflow_completed"]) as follower:
        eventually(lambda: heard(row), "listening")
        drain_all()
    assert follower.types == ["workflow_completed"]


@pytest.mark.usefixtures("notices_alone")
def test_a_deleted_instance_ends_it() -> None:
    """Scenario L: who follows an instance that is deleted is at the end, without an error."""
    row = FollowedOrder.create()
    with following(row) as follower:
        eventually(lambda: heard(row), "listening")
        row.delete()
    assert follower.types == ["workflow_queued"]


def test_a_cursor_goes_on_exactly() -> None:
    """Scenario L: break after any entry, follow again with its id: the next one comes first, nothing twice."""
    row = FollowedOrder.create()
    row.send_event("go", 7)
    drained(row)
    whole = list(row.follow())
    assert [entry.type for entry in whole] == types_of(row)
    assert whole[-1].type == "workflow_completed"
    for number, entry in enumerate(whole):
        assert list(row.follow(after=entry.pk)) == whole[number + 1 :]
    assert list(row.follow(after=whole[-1].pk + 10**6)) == []


def test_breaking_off_frees_everything() -> None:
    """Scenario L: closing the iterator ends the listening."""
    row = FollowedOrder.create()
    entries = row.follow()
    assert next(entries).type == "workflow_queued"
    task = Task(lambda: next(FollowedOrder.get(row.instance_id).follow(after=entries_id(row))))
    eventually(lambda: heard(row), "listening")
    entries.close()
    row.terminate()
    assert task.result().type == "workflow_terminated"
    eventually(lambda: not any(thread == hearing.THREAD for thread in threads()), "the end of the thread")


def entries_id(row: WorkflowInstance) -> int:
    """The id of the newest entry."""
    return int(row.history.latest("id").pk)


def threads() -> list[str]:
    """The names of all threads."""
    return [thread.name for thread in threading.enumerate()]


def test_types_leave_out_but_the_end_ends() -> None:
    """Scenario L: a filter for the end alone; a filter without it ends all the same."""
    row = FollowedOrder.create()
    row.send_event("go", 7)
    drained(row)
    assert [entry.type for entry in row.follow(types=["workflow_completed"])] == ["workflow_completed"]
    assert [entry.step for entry in row.follow(types={"step_completed"})] == ["first-1", "last-1"]
    assert list(row.follow(types=["workflow_errored"])) == []


def test_a_type_that_another_entry_stands_for() -> None:
    """A step that succeeded at once is one entry: it stands for its start."""
    row = drained(FollowedSteps.create(1))
    (entry,) = row.follow(types=["step_started"])
    assert entry.type == "step_completed"
    assert entry.types == ("step_started", "attempt_started", "attempt_completed", "step_completed")
    assert [each.type for each in row.follow(types=["attempt_completed"])] == ["step_completed"]


@pytest.mark.parametrize("after", [-1, True, 1.5, "1", None])
def test_wrong_cursors(after: Any) -> None:
    """Scenario L: refused at the call."""
    row = FollowedOrder.create()
    with pytest.raises(ValueError, match="after must be the id of a history entry"):
        row.follow(after=after)
    with pytest.raises(ValueError, match="after must be"):
        row.afollow(after=after)


@pytest.mark.parametrize("types", [["no_such"], "workflow_completed", 3, [3]])
def test_wrong_types(types: Any) -> None:
    """Scenario L: an unknown type is refused at the call."""
    with pytest.raises(ValueError, match="history types"):
        FollowedOrder.create().follow(types=types)


def test_across_a_retry_and_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """An end is the end only if nothing of a later run follows when it is looked at."""
    row = drained(FollowedFailure.create())
    assert row.status == "errored"
    assert [entry.type for entry in row.follow()][-1] == "workflow_errored"
    row.retry()
    with following(row) as follower:
        follower.sees("workflow_queued", 2)
        monkeypatch.setattr(FollowedFailure, "fails", False)
        drained(row)
    assert follower.types == types_of(row)
    assert follower.types.count("workflow_errored") == follower.types.count("workflow_completed") == 1


def test_not_inside_a_transaction() -> None:
    """Design 12: there the end could never show; of an instance that has ended all is there."""
    row = FollowedOrder.create()
    with transaction.atomic(), pytest.raises(RuntimeError, match="inside atomic"):
        next(row.follow())
    done = drained(FollowedSteps.create(1))
    with transaction.atomic():
        assert [entry.type for entry in done.follow()][-1] == "workflow_completed"


def test_a_long_history_comes_in_batches() -> None:
    """What is read at once is bounded; the queries are few."""
    row = drained(FollowedSteps.create(1))
    HistoryEntry.objects.bulk_create(
        HistoryEntry(instance=row, run_number=1, type="event_received", at=row.created) for _ in range(1200)
    )
    with CaptureQueriesContext(connection) as captured:
        seen = list(row.follow())
    assert [entry.type for entry in seen] == types_of(row)
    assert (len(seen) > 1200, len(captured)) == (True, 6)


@pytest.mark.postgresql_only
@pytest.mark.usefixtures("notices_alone")
def test_who_waits_asks_nothing() -> None:
    """No polling: while others work and commit, who follows sends no statement at all."""
    row = drained(FollowedOrder.create())
    statements: list[str] = []

    def follow() -> list[str]:
        def count(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
            statements.append("mark" if "pg_notify" in sql else sql)
            return execute(sql, params, many, context)

        with connection.execute_wrapper(count):
            return [entry.type for entry in FollowedOrder.get(row.instance_id).follow(types=["workflow_terminated"])]

    task = Task(follow)
    eventually(lambda: heard(row) and "mark" in statements[:-1], "the look after the mark")
    before = list(statements)
    for _ in range(3):
        drained(FollowedSteps.create(10))
    assert statements == before
    row.terminate()
    assert task.result() == ["workflow_terminated"]
    assert statements.count("mark") == 1


@pytest.mark.postgresql_only
def test_a_lost_notice_costs_a_renewal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies between its commit and its notice: the next renewal of the mark looks."""
    monkeypatch.setattr(watching, "MARK_EVERY", 0.2)
    row = FollowedOrder.create()
    with following(row) as follower:
        eventually(lambda: heard(row), "listening")
        monkeypatch.setattr("durableflow.core.notices._give", lambda using, pk: None)
        row.terminate()
    assert follower.types[-1] == "workflow_terminated"


@pytest.mark.postgresql_only
@pytest.mark.usefixtures("notices_alone")
def test_a_row_that_somebody_holds_is_polled() -> None:
    """Who follows neither waits for a lock for long nor misses what happens meanwhile."""
    row = FollowedOrder.create()
    with ExitStack() as holding:
        holding.enter_context(held(row, lock="FOR NO KEY UPDATE"))  # before anybody could mark it
        with following(row) as follower:
            for type in ("event_received", "decided"):
                HistoryEntry.objects.create(instance=row, run_number=1, type=type, at=row.created)
                follower.sees(type)
            holding.close()
            row.terminate()


def test_nobody_is_notified_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of an instance that nobody follows, or follows no longer, give no notice."""
    given: list[int] = []
    monkeypatch.setattr("durableflow.core.notices._give", lambda using, pk: given.append(pk))
    row = drained(FollowedSteps.create(3))
    stale = FollowedSteps.create(3)
    WorkflowInstance.objects.filter(pk=stale.pk).update(followed_until=stale.created.replace(year=2020))
    drained(stale)
    assert (row.status, stale.status, given) == ("complete", "complete", [])


@pytest.fixture(autouse=True)
def _all_leave() -> Iterator[None]:
    """A test that leaves somebody behind would count in the next one."""
    yield
    hub = hearing.hub_of("default")
    eventually(lambda: hub is None or not hub._members, "the end of all who followed")

"""Is due work executed, and does it show if not? (cases OPS-12, OPS-14)"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from datetime import datetime, timedelta
from typing import Any
from unittest import mock

import pytest
from django.contrib.auth.models import Group
from django.db import OperationalError, ProgrammingError, connection, transaction
from django.test.utils import CaptureQueriesContext

from durableflow import Step, Workflow, WorkflowEvent, health
from durableflow.core.statuses import Hold
from durableflow.engine.heartbeat import Beat, beat
from durableflow.engine.sql import run
from durableflow.health import Health, Level, probes
from durableflow.models import WorkflowInstance
from tests.support.engine import drained

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status
LEASE = timedelta(seconds=15)


class Idle(Workflow):
    """Does nothing."""

    def run(self, event: WorkflowEvent, step: Step) -> None:
        return None


def cluster(key: int = 1, **changed: Any) -> None:
    """A live cluster has told of itself."""
    assert beat("default", Beat(**{"key": key, "kind": "cluster", "workers": 2, "busy": 0, **changed}))


@pytest.fixture
def row(stopped_clock: Any) -> Callable[..., WorkflowInstance]:
    """``row("name", due=seconds_ago, **columns)``: an instance; without ``due`` nothing will wake it."""

    def make(name: str, *, due: float | None = None, **columns: Any) -> WorkflowInstance:
        instance = Idle.create(instance_id=name)
        wake_at = None if due is None else stopped_clock.now - timedelta(seconds=due)
        WorkflowInstance.objects.filter(pk=instance.pk).update(wake_at=wake_at, **columns)
        return instance

    return make


def codes(found: Health) -> list[tuple[str, str]]:
    return [(str(reason.level), reason.code) for reason in found.reasons]


def test_a_process_of_a_kind_that_only_newer_code_knows(stopped_clock: Any) -> None:
    """In a deploy the web server may be the older one: it still answers."""
    cluster(kind="later")
    assert health.check().live[0].kind == "drain"


# Nobody executes ------------------------------------------------------------------------------------------------------


def test_no_cluster_and_three_new_instances(stopped_clock: Any) -> None:
    """OPS-14: they stay queued, and the check tells the oldest due one and that no worker was ever seen."""
    first = Idle.create(instance_id="first")
    stopped_clock.advance("90 seconds")
    rest = [Idle.create() for _ in range(2)]
    found = health.check()
    assert {WorkflowInstance.objects.get(pk=each.pk).status for each in (first, *rest)} == {S.QUEUED}
    assert (found.status, found.workers, found.last_seen, found.last_claim) == (Level.CRITICAL, 0, None, None)
    assert found.oldest_due is not None
    assert (found.oldest_due.label, found.oldest_due.seconds) == ("idle/first", 90)
    assert found.overdue == 1
    assert codes(found) == [("critical", "no_worker"), ("critical", "overdue")]
    assert "idle/first has been due for 1 min 30 s" in found.reasons[1].text


def test_a_cluster_that_falls_silent(stopped_clock: Any) -> None:
    """OPS-14: the last sight and the last claim are told; nothing due is a warning, something due is critical."""
    cluster(claimed_ago=4, pid=4711)
    assert (health.check().status, health.check().workers) == (Level.OK, 2)
    stopped_clock.advance("30 seconds")
    assert health.check().status == Level.OK
    stopped_clock.advance("1 second")
    found = health.check()
    assert (found.status, found.workers, found.last_seen, found.last_claim) == (Level.WARNING, 0, 31, 35)
    assert "The last one was seen 31 s ago. Nothing is due now." in found.reasons[0].text
    assert found.processes[0].pid == "4711"
    Idle.create(instance_id="late")
    found = health.check()
    assert (found.status, codes(found)) == (Level.CRITICAL, [("critical", "no_worker")])
    assert "idle/late has been due for 0 s" in found.reasons[0].text


def test_a_cluster_that_ended_in_good_order_is_not_live(stopped_clock: Any) -> None:
    """It has said so, and is not waited for until its silence is noticed."""
    cluster()
    cluster(stopping=True)
    assert health.check().workers == 0
    cluster(key=2)
    assert health.check().workers == 2


def test_live_workers_that_take_nothing(row: Any) -> None:
    """Ten seconds are a warning, a minute is critical."""
    cluster(busy=2)
    row("slow", due=9)
    assert health.check().status == Level.OK
    row("slower", due=10.5)
    assert codes(health.check()) == [("warning", "overdue")]
    row("slowest", due=60.5)
    found = health.check()
    assert codes(found) == [("critical", "overdue")]
    assert (found.oldest_due and found.oldest_due.instance_id, found.overdue, found.busy) == ("slowest", 2, 2)


def test_a_scheduler_that_comes_by_each_minute(stopped_clock: Any, row: Any) -> None:
    """The fallback and cron: what waits for the next minute is not overdue, who was here a minute ago is live."""
    beat("default", Beat(key=1, kind="drain", workers=1, busy=0))
    stopped_clock.advance("100 seconds")
    row("next-minute", due=100)
    found = health.check()
    assert (found.status, found.workers, found.terms) == (Level.OK, 1, health.DRAIN_TERMS)
    row("late", due=121)
    assert codes(health.check()) == [("warning", "overdue")]
    stopped_clock.advance("81 seconds")
    assert codes(health.check())[0] == ("critical", "no_worker")


def test_a_drain_that_has_ended_is_no_live_worker(stopped_clock: Any, row: Any) -> None:
    """It has taken leave; the next one is missed after three minutes, not before. A killed one is live as long as its sign is
    fresh."""
    beat("default", Beat(key=1, kind="drain", workers=1, busy=0))
    assert health.check().workers == 1
    beat("default", Beat(key=1, kind="drain", workers=1, busy=0, stopping=True))
    row("next-minute", due=0)
    found = health.check()
    assert (found.status, found.workers, found.live, found.terms) == (Level.OK, 0, (), health.DRAIN_TERMS)
    stopped_clock.advance("180 seconds")
    assert codes(health.check()) == [("warning", "overdue")]
    stopped_clock.advance("1 second")
    assert codes(health.check())[0] == ("critical", "no_worker")


def test_a_drain_by_hand_does_not_make_a_dead_cluster_look_well(stopped_clock: Any, row: Any) -> None:
    """What is due is measured by what a cluster does, as long as one is missed."""
    cluster()
    stopped_clock.advance("10 minutes")
    beat("default", Beat(key=2, kind="drain", workers=1, busy=0))
    row("late", due=11)
    assert codes(health.check()) == [("warning", "overdue")]
    beat("default", Beat(key=2, kind="drain", workers=1, busy=0, stopping=True))
    assert codes(health.check()) == [("critical", "no_worker"), ("warning", "overdue")]
    cluster(stopping=True)
    assert health.check().status == Level.OK


# What is not due ------------------------------------------------------------------------------------------------------


def test_every_kind_of_waiting_is_not_overdue(row: Any) -> None:
    """OPS-12: asleep, waiting without a deadline, on hold, parked, paused, leased and ended ones are in order; the blocked one is
    listed with its reason."""
    cluster()
    row("asleep", due=-3600, status=S.WAITING)
    row("waits", status=S.WAITING)
    row("parked", hold=Hold.LIMIT)
    row("unknown", due=300, hold=Hold.UNKNOWN_WORKFLOW)
    row("newer", due=300, hold=Hold.NEWER_CODE, status=S.WAITING)
    row("paused", status=S.PAUSED)
    row("runs", due=-10, status=S.RUNNING, lease_token=1)
    row("done", status=S.COMPLETE)
    row("broken", status=S.PAUSED, blocked="CodecError: the record of step 'a' cannot be read")
    found = health.check()
    assert (found.oldest_due, found.overdue) == (None, 0)
    assert found.holds == {Hold.LIMIT: 1, Hold.UNKNOWN_WORKFLOW: 1, Hold.NEWER_CODE: 1}
    assert [(each.label, each.reason) for each in found.blocked_latest] == [
        ("idle/broken", "CodecError: the record of step 'a' cannot be read")
    ]
    assert codes(found) == [("warning", "blocked")]


def test_a_lost_lease_is_due_when_it_may_be_taken(row: Any, stopped_clock: Any) -> None:
    """After the lease and another third of it; a suspect one has had that third."""
    cluster()
    row("lost", due=0, status=S.RUNNING, lease_token=1)
    row("suspect", due=0, status=S.RUNNING, lease_token=2, suspect=True)
    found = health.check().oldest_due
    assert (found and found.instance_id, found and found.seconds) == ("suspect", 0)
    WorkflowInstance.objects.filter(instance_id="suspect").delete()
    stopped_clock.advance(LEASE / 3 - timedelta(seconds=1))
    assert health.check().oldest_due is None
    stopped_clock.advance("3 seconds")
    found = health.check().oldest_due
    assert (found and found.instance_id, found and found.seconds) == ("lost", 2)


def test_the_oldest_of_all_classes(row: Any) -> None:
    """Whatever its priority is."""
    for claim_class in range(6):
        row(f"class-{claim_class}", due=100 + (claim_class * 7) % 6, claim_class=claim_class)
    found = health.check()
    assert (found.oldest_due and found.oldest_due.instance_id, found.overdue) == ("class-5", 6)


def test_a_broken_journal_is_listed(stopped_clock: Any) -> None:
    """OPS-12: the engine gives up on it at once, without a loop; the check names it, and the reason without secrets."""

    class Two(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> None:
            step.do("token", lambda: "hunter2-secret", sensitive=True)
            step.sleep("nap", 1)

    instance = drained(Two.create(instance_id="two"))
    instance.steps.filter(name="nap").update(kind="now")
    stopped_clock.advance("2 seconds")
    assert drained(instance).status == S.PAUSED
    WorkflowInstance.objects.filter(pk=instance.pk).update(blocked=instance.blocked + " hunter2-secret")
    (listed,) = health.check().blocked_latest
    assert (listed.label, listed.since is not None) == ("two/two", True)
    assert "nap" in listed.reason
    assert "hunter2-secret" not in listed.reason


def test_events_that_nobody_passes_on(stopped_clock: Any, row: Any) -> None:
    """A sent event is delivered within milliseconds where anybody looks."""
    instance = row("waits", status=S.WAITING)
    instance.send_event("paid", 1)
    stopped_clock.advance("5 seconds")
    cluster()
    assert (health.check().status, health.check().undelivered) == (Level.OK, 5)
    stopped_clock.advance("1 second")
    assert codes(health.check()) == [("warning", "undelivered")]
    stopped_clock.advance("55 seconds")
    cluster()
    assert codes(health.check()) == [("critical", "undelivered")]


# Robust and cheap -----------------------------------------------------------------------------------------------------


def test_a_database_that_is_away_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line, and without an exception."""
    error = OperationalError("connection refused\nIs the server running?")
    monkeypatch.setattr(probes, "heartbeats", mock.Mock(side_effect=error))
    found = health.check()
    assert (found.status, codes(found)) == (Level.CRITICAL, [("critical", "database")])
    assert found.reasons[0].text == "The database 'default' does not answer: connection refused Is the server running?"


def test_missing_tables_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not migrated: the cure is told, and the caller's transaction is left usable."""
    monkeypatch.setattr(probes, "SENT", "no_such_table")
    with transaction.atomic():
        found = health.check()
        assert WorkflowInstance.objects.count() == 0
    assert codes(found) == [("critical", "database")]
    assert "run migrate" in found.reasons[0].text


@pytest.mark.postgresql_only
def test_a_process_that_asks_again_and_again_finds_the_database_back() -> None:
    """OPS-07: a connection that broke while nobody used it is made anew; only a database that is away is a finding."""
    cluster()
    assert health.check().status == Level.OK
    with closing(connection.copy()) as killer, killer.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", [connection.connection.info.backend_pid])
    assert health.check().status == Level.OK


def test_a_transaction_by_hand_is_left_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    """With autocommit switched off too, what the caller has written is not lost by a look that fails."""
    monkeypatch.setattr(probes, "SENT", "no_such_table")
    transaction.set_autocommit(False)
    try:
        Group.objects.create(name="mine")
        assert codes(health.check())[0] == ("critical", "database")
        transaction.commit()
    finally:
        transaction.set_autocommit(True)
    assert Group.objects.filter(name="mine").exists()


@pytest.mark.postgresql_only
def test_only_missing_tables_are_cured_by_migrate() -> None:
    """A right that is missing, and a caller's transaction that is broken, are told as they are."""
    with transaction.atomic():
        with pytest.raises(ProgrammingError), transaction.atomic():
            run("default", "SELECT no_such_column FROM durableflow_heartbeat")
        run("default", "SET LOCAL ROLE pg_monitor")
        (denied,) = health.check().reasons
        run("default", "RESET ROLE")
        transaction.get_connection().needs_rollback = True
        (broken,) = health.check().reasons
        transaction.set_rollback(False)
    assert "permission denied" in denied.text and "migrate" not in denied.text
    assert "current transaction" in broken.text and "migrate" not in broken.text


def test_a_missing_column_is_cured_by_migrate(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables of an older release, on either database."""
    monkeypatch.setattr(probes, "SENT", "(SELECT 1 AS delivered) AS sent")
    (found,) = health.check().reasons
    assert "run migrate" in found.text


def test_the_gravest_comes_first(row: Any, stopped_clock: Any) -> None:
    """Whatever it is: a person reads the first line, a log keeps it."""
    row("waits", status=S.WAITING).send_event("paid", 1)
    stopped_clock.advance("61 seconds")
    cluster()
    row("late", due=11)
    assert codes(health.check()) == [("critical", "undelivered"), ("warning", "overdue")]


def test_a_sign_from_the_future_is_no_sign_of_life(stopped_clock: Any) -> None:
    """A cluster that died before the host's clock was set back by an hour must not look alive for that hour."""
    cluster()
    stopped_clock.go_back("30 seconds")
    assert health.check().workers == 2, "a live one tells of itself within ten seconds"
    stopped_clock.go_back("1 second")
    found = health.check()
    assert (found.workers, found.status) == (0, Level.WARNING)


def test_counts_stop(row: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million blocked instances cost what a thousand do."""
    monkeypatch.setattr(probes, "MOST_COUNTED", 2)
    monkeypatch.setattr(health.rules, "MOST_COUNTED", 2)
    monkeypatch.setattr(probes, "MOST_LISTED", 1)
    for number in range(5):
        row(f"blocked-{number}", status=S.PAUSED, blocked="why")
        row(f"parked-{number}", hold=Hold.LIMIT)
        row(f"due-{number}", due=100)
    found = health.check()
    assert (found.blocked, found.holds, found.overdue) == (3, {Hold.LIMIT: 3}, 3)
    assert [each.instance_id for each in found.blocked_latest] == ["blocked-4"]
    assert "2+ instances are blocked" in found.reasons[-1].text


def test_the_number_of_queries_is_constant(row: Any) -> None:
    """A glance takes two, a check seven and one for each blocked instance that it lists."""
    cluster()
    counted = []
    for _ in range(2):
        for look in (health.glance, health.check):
            with CaptureQueriesContext(connection) as queries:
                look()
            counted.append(len(queries))
        for number in range(10):
            row(f"due-{len(counted)}-{number}", due=100)
    assert counted == [2, 4, 2, 5]


@pytest.mark.postgresql_only
def test_probes_read_the_heads_of_indexes(stopped_clock: Any) -> None:
    """No plan reads the instance table as a whole."""
    run(
        "default",
        """INSERT INTO durableflow_workflowinstance (workflow, instance_id, run_number, execution, seed, status, blocked, hold, priority,
               created_by_name, trigger, cron, on_parent_end, concurrency_key, holds_slot, code_version, interruptions, give_backs,
               request_key, request_digest, created, claim_class, suspect, woken, wake_at)
           SELECT 'w', 'i' || n, 1, 0, gen_random_uuid(), 'waiting', '', '', 1,
               '', 'code', '', '', '', false, 0, 0, 0, '', '', now(), n %% 6,
               false, false, %s::timestamptz + make_interval(secs => n) FROM generate_series(1, 20000) AS n""",
        [stopped_clock.now],
    )
    run("default", "ANALYZE durableflow_workflowinstance")
    plans: list[str] = []

    def explain(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.lstrip().startswith("SELECT") and "EXPLAIN" not in sql:
            with context["connection"].connection.cursor() as cursor:
                cursor.execute(f"EXPLAIN {sql}", params)
                plans.append("\n".join(line for (line,) in cursor.fetchall()))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(explain):
        found = health.check()
    assert found.oldest_due is None
    assert len(plans) >= 4
    assert not [plan for plan in plans if "Seq Scan on durableflow_workflowinstance" in plan]


def test_the_moment_is_the_databases(stopped_clock: Any) -> None:
    """Hosts may be wrong."""
    now, rows = probes.heartbeats("default")
    assert (now, rows) == (stopped_clock.now, [])
    cluster()
    now, rows = probes.heartbeats("default")
    assert (now, len(rows)) == (stopped_clock.now, 1)
    assert isinstance(now, datetime)

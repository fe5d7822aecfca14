"""Bodies in threads that no alarm reaches: given up at their deadline, recorded by the watcher (RET-02, RET-04, OPS-08)."""

from __future__ import annotations

import inspect
import logging
import sys
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection, transaction

from durableflow import Retries, Step, Workflow, WorkflowEvent, drain, get_step_context
from durableflow.engine import endings, executor, replacement, watcher
from durableflow.engine.journal import Identity
from durableflow.engine.session import Session
from durableflow.models import WorkflowInstance
from tests.integration.ret_flows import catching_timeouts
from tests.support.concurrency import Gate, Task, eventually
from tests.support.engine import drained, history_of, steps_of, types_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


def status_of(instance: WorkflowInstance) -> str:
    instance.refresh_from_db()
    return instance.status


def test_an_attempt_is_recorded_while_its_body_hangs(caplog: pytest.LogCaptureFixture) -> None:
    """RET-04: the next attempt runs elsewhere while the first body still hangs; what that returns late is dropped, and noted
    in the log."""
    gate = Gate()

    def body() -> str:
        if get_step_context().attempt == 1:
            gate.stop_here()
            return "A"
        return "B"

    instance = catching_timeouts(body, retries=Retries(limit=1, delay=0), timeout=0.3).create()
    task = Task(lambda: drain(30))
    gate.wait_until_reached()
    eventually(lambda: status_of(instance) == S.WAITING, "the attempt is recorded")
    drain(30)
    assert (status_of(instance), instance.output) == (S.COMPLETE, "B")
    assert not task.done
    with caplog.at_level(logging.WARNING, "durableflow"):
        gate.open()
        task.result()
    assert "attempt 1 of work-1 had timed out" in caplog.text
    assert (status_of(instance), instance.output) == (S.COMPLETE, "B")
    (first,) = history_of(instance, "attempt_errored")
    assert first["attempt"] == 1 and first["error"]["type"] == "durableflow.StepTimeout"
    assert instance.steps.get().attempts == 2


@pytest.mark.parametrize("late", ["value", "error"])
def test_what_a_body_gives_before_its_timeout_is_written_is_dropped(
    late: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """RET-04: the attempt is given up while its value is encoded, or its body swallows that and fails; the lease still holds.
    So only the attempt's own state keeps the outcome out."""
    stopped, asking = Gate(), Gate()

    def body() -> str:
        if late == "error" and get_step_context().attempt == 1:
            try:
                stopped.stop_here()
            except BaseException as error:  # the exception that gives it up
                raise LookupError("late") from error
        return "AB"[get_step_context().attempt - 1]

    encode = Session.encode

    def slowly(session: Session, value: Any, identity: Identity) -> str:
        if late == "value" and value == "A":
            stopped.stop_here()
        return encode(session, value, identity)

    def delay(_context: Any, _error: Any) -> timedelta:
        asking.stop_here()
        return timedelta(0)

    monkeypatch.setattr(Session, "encode", slowly)
    instance = catching_timeouts(body, retries=Retries(limit=1, delay=delay), timeout=0.3).create()
    try:
        with caplog.at_level(logging.WARNING, "durableflow"):
            task = Task(lambda: drain(0))
            asking.wait_until_reached()
            stopped.open()
            task.result()
        assert (status_of(instance), steps_of(instance)) == (S.RUNNING, [])
        assert f"attempt 1 of work-1 had timed out; its late {late}" in caplog.text
    finally:
        asking.open()
    eventually(lambda: status_of(instance) == S.WAITING, "the attempt is recorded")
    assert (drained(instance).status, instance.output) == (S.COMPLETE, "B")
    (first,) = history_of(instance, "attempt_errored")
    assert first["error"]["type"] == "durableflow.StepTimeout"


def test_out_of_retries_the_error_is_raised_into_run() -> None:
    """RET-02: the watcher writes the failed record and queues the instance; another execution raises it into run."""
    gate = Gate()
    instance = catching_timeouts(gate.stop_here, retries=0, timeout=0.2).create()
    task = Task(lambda: drain(30))
    gate.wait_until_reached()
    eventually(lambda: status_of(instance) == S.QUEUED, "the instance is queued again")
    assert steps_of(instance) == [("work-1", "failed")]
    drain(30)
    assert status_of(instance) == S.COMPLETE and instance.output[0] == "timed out"
    assert "0.2 seconds" in instance.output[1]
    assert types_of(instance).count("attempt_errored") == types_of(instance).count("step_errored") == 1
    gate.open()
    task.result()


def test_a_loop_in_python_is_interrupted() -> None:
    """Design 6: the exception in the thread is a courtesy, but it ends what runs Python code; nothing of ours is hurt."""
    running = threading.Event()

    def body() -> str:
        if get_step_context().attempt == 1:
            while True:
                running.set()
        return "done"

    instance = catching_timeouts(body, retries=Retries(limit=1, delay=0), timeout=0.2).create()
    task = Task(lambda: drain(30))
    task.result()  # the same thread goes on
    assert running.is_set()
    eventually(lambda: drained(instance).status == S.COMPLETE)
    assert instance.output == "done"


@pytest.mark.postgresql_only
@pytest.mark.parametrize("atomic", [False, True])
def test_locks_of_an_abandoned_body_go(atomic: bool) -> None:
    """Design 6: what the thread has open in the database is ended, though the thread hangs."""
    gate = Gate()
    group = Group.objects.create(name="before")

    def body() -> str:
        with transaction.atomic():
            Group.objects.filter(pk=group.pk).update(name=f"by {get_step_context().attempt}")
            if get_step_context().attempt == 1:
                gate.stop_here()
        return "done"

    instance = catching_timeouts(body, retries=Retries(limit=1, delay=0), timeout=0.3, atomic=atomic).create()
    task = Task(lambda: drain(30))
    gate.wait_until_reached()
    eventually(lambda: status_of(instance) == S.WAITING)
    drain(30)
    group.refresh_from_db()
    assert (status_of(instance), group.name, task.done) == (S.COMPLETE, "by 2", False)
    gate.open()
    task.result()
    group.refresh_from_db()
    assert group.name == "by 2"


@pytest.mark.postgresql_only
def test_a_query_of_an_abandoned_body_is_cancelled() -> None:
    """Spike 4: the thread waits in a query for minutes: the server stops it, and the thread goes on."""

    def body() -> str:
        if get_step_context().attempt == 1:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_sleep(600)")
        return "done"

    instance = catching_timeouts(body, retries=Retries(limit=1, delay=0), timeout=0.3).create()
    Task(lambda: drain(30)).result()
    eventually(lambda: drained(instance).status == S.COMPLETE)
    assert history_of(instance, "attempt_errored")[0]["error"]["type"] == "durableflow.StepTimeout"


@pytest.mark.sqlite_only
def test_a_body_that_keeps_the_write_lock_has_its_process_replaced() -> None:
    """OPS-08: nobody can end a transaction of SQLite from outside; the process takes no new work until it is over."""
    gate = Gate()

    def body() -> str:
        if get_step_context().attempt == 1:
            with transaction.atomic():
                Group.objects.create(name="half")
                gate.stop_here()
        return "done"

    instance = catching_timeouts(body, retries=Retries(limit=1, delay=0), timeout=0.2).create()
    task = Task(lambda: drain(30))
    gate.wait_until_reached()
    assert "write lock" in eventually(replacement.wanted)
    assert drain(0) == 0
    gate.open()
    task.result()
    assert replacement.wanted() == ""
    eventually(lambda: drained(instance).status == S.COMPLETE)
    assert instance.output == "done"


def test_a_start_mark_comes_with_the_renewal(settings: Any) -> None:
    """Design 6, "Interruptions": a long step shows as started; its checkpoint is not disturbed."""
    settings.DURABLEFLOW = {"LEASE": 1}
    gate = Gate()
    instance = catching_timeouts(lambda: (gate.stop_here(), "done")[1]).create()
    task = Task(lambda: drain(30))
    gate.wait_until_reached()
    eventually(lambda: steps_of(instance) == [("work-1", "started")], "a start mark")
    assert instance.steps.get().attempts == 1
    gate.open()
    task.result()
    assert (status_of(instance), instance.output) == (S.COMPLETE, "done")
    assert steps_of(instance) == [("work-1", "complete")]
    assert types_of(instance).count("step_completed") == 1


def connected() -> int:
    """The server's sessions of this test."""
    if connection.vendor != "postgresql":
        return 0
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"
        )
        return int(cursor.fetchone()[0])


def test_a_hundred_timeouts_leave_no_thread_and_no_connection_behind() -> None:
    """OPS-08: what was given up is gone as soon as its body ends; ten at a time, since a process may not lose more."""
    at_once = 10

    def ten() -> None:
        ended = threading.Event()
        flow = catching_timeouts(lambda: (Group.objects.count(), ended.wait(60)), retries=0, timeout=0.05)
        instances = [flow.create() for _ in range(at_once)]
        tasks = [Task(lambda: drain(1)) for _ in range(at_once)]
        eventually(lambda: all(steps_of(instance) == [("work-1", "failed")] for instance in instances))
        ended.set()
        for task in tasks:
            task.result()
        assert [drained(instance).status for instance in instances] == [S.COMPLETE] * at_once

    ten()
    threads, sessions = threading.active_count(), connected()
    for _ in range(9):
        ten()
    eventually(lambda: threading.active_count() <= threads)
    eventually(lambda: connected() <= sessions)


def test_the_clock_of_the_watcher_does_not_hurt_a_body_in_time() -> None:
    """A body that returns at its deadline is either recorded or given up, never both."""
    bodies: list[int] = []

    def body() -> str:
        bodies.append(get_step_context().attempt)
        if len(bodies) <= 5:
            time.sleep(0.05)
        return "done"

    instance = catching_timeouts(body, retries=Retries(limit=9, delay=0), timeout=0.05).create()
    Task(lambda: drain(30)).result()
    eventually(lambda: drained(instance).status == S.COMPLETE)
    assert instance.steps.get().attempts == len(bodies)
    assert types_of(instance).count("attempt_errored") == len(bodies) - 1


def test_a_body_that_lowers_the_recursion_limit_spoils_nothing() -> None:
    """Poison: the engine goes on in that process, with the limit that was there before."""
    before = sys.getrecursionlimit()
    instance = catching_timeouts(lambda: sys.setrecursionlimit(len(inspect.stack()) + 20)).create()
    assert drained(instance).status == S.COMPLETE
    assert sys.getrecursionlimit() == before


def test_a_body_that_closes_the_drivers_connection_spoils_nothing() -> None:
    """Poison: the checkpoint is written on a new connection, no retry is used up."""
    instance = catching_timeouts(
        lambda: (Group.objects.count(), connection.connection.close(), "done")[2], retries=0
    ).create()
    assert drained(instance).status == S.COMPLETE
    assert (instance.output, instance.steps.get().attempts) == ("done", 1)


@pytest.mark.postgresql_only
def test_an_ending_that_meets_a_locked_row_frees_the_thread() -> None:
    """Design 4, "Executor exits": the watcher makes it when the row is free; the lease is renewed meanwhile."""
    gate = Gate()
    held = Gate()
    instance = catching_timeouts(lambda: (gate.stop_here(), "done")[1]).create()

    def hold() -> None:
        gate.wait_until_reached()
        eventually(lambda: not WorkflowInstance.objects.filter(pk=instance.pk, status=S.QUEUED).exists())
        patched.wait(60)
        with transaction.atomic():
            WorkflowInstance.objects.select_for_update(no_key=True).get(pk=instance.pk)
            held.stop_here()

    patched = threading.Event()
    original = endings.complete
    holder = Task(hold)
    with pytest.MonkeyPatch.context() as patch:

        def complete(*args: Any, **kwargs: Any) -> None:
            if not patched.is_set():
                patched.set()
                held.wait_until_reached()
            original(*args, **kwargs)

        patch.setattr(endings, "complete", complete)
        release = Task(lambda: (gate.wait_until_reached(), gate.open()))
        drain(30)  # returns although the row is locked
        release.result()
        assert (status_of(instance), watcher.held()) == (S.RUNNING, 1)
        held.open()
        holder.result()
        eventually(lambda: status_of(instance) == S.COMPLETE)
    eventually(lambda: watcher.held() == 0)


@pytest.mark.postgresql_only
@pytest.mark.parametrize("end", [S.COMPLETE, S.ERRORED])
def test_an_ending_that_meets_an_approvers_transaction_frees_the_thread(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Design 4, "Executor exits": the open wait, which the end would cancel, is being decided. The decision comes first and
    stays."""

    class Asking(Workflow):
        class Meta:
            name = "asking"
            max_duration = "1 hour"

        def run(self, event: WorkflowEvent, step: Step) -> str:
            return "done" if over else step.wait_for_approval("ok", timeout=None).comment

    over: list[bool] = []
    instance = Asking.create()
    drain(0)
    pending = instance.pending_events.get()
    WorkflowInstance.objects.filter(pk=instance.pk).update(wake_at=instance.created)
    if end == S.COMPLETE:
        over.append(True)
        monkeypatch.setattr(executor, "_check_end", lambda _execution: None)  # which would block it
    else:
        WorkflowInstance.objects.filter(pk=instance.pk).update(deadline_at=instance.created)
    decided = Gate()

    def decide() -> None:
        with transaction.atomic():
            pending.approve(by=None)
            decided.stop_here()

    approver = Task(decide)
    try:
        decided.wait_until_reached()
        drain(0)  # returns although the row of the wait is locked
        assert (status_of(instance), watcher.held(), approver.done) == (S.RUNNING, 1, False)
    finally:
        decided.open()
    approver.result()
    eventually(lambda: status_of(instance) == end)
    eventually(lambda: watcher.held() == 0)
    pending.refresh_from_db()
    assert (pending.status, pending.approved) == ("received", True)


def test_the_deadline_of_a_wait_counts_while_its_notify_is_to_be_tried_again() -> None:
    """Design 5: a notify that was given up waits for its next attempt no longer than its wait is open."""
    gate = Gate()

    class Asking(Workflow):
        class Meta:
            step_retries = Retries(limit=3, delay="1 hour")
            step_timeout = 0.2

        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return step.wait_for_approval("ok", timeout="1 minute", notify=lambda pending: gate.stop_here())

    instance = Asking.create()
    task = Task(lambda: drain(30))
    gate.wait_until_reached()
    eventually(lambda: status_of(instance) == S.WAITING, "the attempt is recorded")
    assert instance.wake_at == instance.pending_events.get().deadline
    gate.open()
    task.result()

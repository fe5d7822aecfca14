"""Bodies in threads that no alarm reaches: given up at their deadline, recorded by the watcher (RET-02, RET-04, OPS-08)."""

from __future__ import annotations

import inspect
import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection, transaction

from durableflow import Retries, Step, StepTimeout, Workflow, WorkflowEvent, drain, get_step_context
from durableflow.engine import endings, replacement, watcher
from durableflow.models import WorkflowInstance
from tests.support.concurrency import Gate, Task, eventually
from tests.support.engine import drained, history_of, steps_of, types_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


def one_step(body: Callable[[], Any], **options: Any) -> type[Workflow]:
    """A workflow of one step that catches the step's timeout."""

    class OneStep(Workflow):
        class Meta:
            name = "one-step"

        def run(self, event: WorkflowEvent, step: Step) -> Any:
            try:
                return step.do("work", body, **options)
            except StepTimeout as error:
                return ["timed out", str(error)]

    return OneStep


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

    instance = one_step(body, retries=Retries(limit=1, delay=0), timeout=0.3).create()
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


def test_out_of_retries_the_error_is_raised_into_run() -> None:
    """RET-02: the watcher writes the failed record and queues the instance; another execution raises it into run."""
    gate = Gate()
    instance = one_step(gate.stop_here, retries=0, timeout=0.2).create()
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

    instance = one_step(body, retries=Retries(limit=1, delay=0), timeout=0.2).create()
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

    instance = one_step(body, retries=Retries(limit=1, delay=0), timeout=0.3, atomic=atomic).create()
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

    instance = one_step(body, retries=Retries(limit=1, delay=0), timeout=0.3).create()
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

    instance = one_step(body, retries=Retries(limit=1, delay=0), timeout=0.2).create()
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
    instance = one_step(lambda: (gate.stop_here(), "done")[1]).create()
    task = Task(lambda: drain(30))
    gate.wait_until_reached()
    eventually(lambda: steps_of(instance) == [("work-1", "started")], "a start mark")
    assert instance.steps.get().attempts == 1
    gate.open()
    task.result()
    assert (status_of(instance), instance.output) == (S.COMPLETE, "done")
    assert steps_of(instance) == [("work-1", "complete")]
    assert types_of(instance).count("step_completed") == 1


def test_a_hundred_timeouts_leave_no_thread_and_no_connection_behind() -> None:
    """OPS-08: what was given up is gone as soon as its body ends."""
    ended = threading.Event()
    instances = [one_step(lambda: ended.wait(60), retries=0, timeout=0.05).create() for _ in range(10)]
    before = threading.active_count()
    tasks = [Task(lambda: drain(1)) for _ in range(10)]
    eventually(lambda: all(steps_of(instance) == [("work-1", "failed")] for instance in instances))
    ended.set()
    for task in tasks:
        task.result()
    eventually(lambda: threading.active_count() <= before + 1)
    assert [drained(instance).status for instance in instances] == [S.COMPLETE] * 10


def test_the_clock_of_the_watcher_does_not_hurt_a_body_in_time() -> None:
    """A body that returns at its deadline is either recorded or given up, never both."""
    bodies: list[int] = []

    def body() -> str:
        bodies.append(get_step_context().attempt)
        if len(bodies) <= 5:
            time.sleep(0.05)
        return "done"

    instance = one_step(body, retries=Retries(limit=9, delay=0), timeout=0.05).create()
    Task(lambda: drain(30)).result()
    eventually(lambda: drained(instance).status == S.COMPLETE)
    assert instance.steps.get().attempts == len(bodies)
    assert types_of(instance).count("attempt_errored") == len(bodies) - 1


def test_a_body_that_lowers_the_recursion_limit_spoils_nothing() -> None:
    """Poison: the engine goes on in that process, with the limit that was there before."""
    before = sys.getrecursionlimit()
    instance = one_step(lambda: sys.setrecursionlimit(len(inspect.stack()) + 20)).create()
    assert drained(instance).status == S.COMPLETE
    assert sys.getrecursionlimit() == before


def test_a_body_that_closes_the_drivers_connection_spoils_nothing() -> None:
    """Poison: the checkpoint is written on a new connection, no retry is used up."""
    instance = one_step(lambda: (Group.objects.count(), connection.connection.close(), "done")[2], retries=0).create()
    assert drained(instance).status == S.COMPLETE
    assert (instance.output, instance.steps.get().attempts) == ("done", 1)


@pytest.mark.postgresql_only
def test_an_ending_that_meets_a_locked_row_frees_the_thread() -> None:
    """Design 4, "Executor exits": the watcher makes it when the row is free; the lease is renewed meanwhile."""
    gate = Gate()
    held = Gate()
    instance = one_step(lambda: (gate.stop_here(), "done")[1]).create()

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

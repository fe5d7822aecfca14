"""The fence: who has lost the lease writes nothing; who has it loses nothing (design 4)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction

from durableflow import EventTimeout, Step, Workflow, WorkflowEvent, drain
from durableflow.engine import endings, steps, waits
from durableflow.engine.claims import claim
from durableflow.engine.executor import execute
from durableflow.engine.journal import Identity, Record
from durableflow.engine.lease import Claim
from durableflow.engine.steps import Entry, StepWrite, write_step
from durableflow.engine.unwind import LeaseLost
from durableflow.engine.verdicts import MAX_GIVE_BACKS
from durableflow.models import HistoryEntry, PendingEvent, StepRecord, WorkflowInstance
from tests.integration.con_flows import expire_leases
from tests.integration.conftest import StoppedClock
from tests.integration.fence_flows import At, blocked, one_step, state
from tests.support.concurrency import Gate, Task, eventually

pytestmark = pytest.mark.django_db(transaction=True)
Status = WorkflowInstance.Status


def taken_over() -> tuple[Claim, Claim]:
    """A claim whose lease has ended, and the claim of who took it over."""
    one_step().create()
    (first,) = claim("default")
    expire_leases()
    (second,) = claim("default")
    return first, second


def write(by: Claim) -> StepWrite:
    record = Record(Identity("", "do", "a", 1), 1, by.execution, 1, "complete", output='"zombie"')
    return StepWrite(record=record, run_number=1, started=by.now, entries=(Entry("step_completed"),))


ZOMBIE_WRITES: list[Callable[[Claim], object]] = [
    lambda zombie: write_step(zombie.lease, write(zombie)),
    lambda zombie: endings.suspend(zombie.lease, None),
    lambda zombie: endings.complete(zombie.lease, '"zombie"', leftovers=False),
    lambda zombie: endings.complete(zombie.lease, '"zombie"', leftovers=True),
    lambda zombie: endings.fail(zombie.lease, {"type": "E", "message": "zombie"}, leftovers=True),
    lambda zombie: endings.block(zombie.lease, "zombie"),
    lambda zombie: endings.give_back(zombie.lease),
    lambda zombie: endings.set_progress(zombie.lease, '"zombie"'),
]


def snapshot() -> list[Any]:
    tables = (WorkflowInstance, StepRecord, PendingEvent, HistoryEntry)
    return [list(table._default_manager.order_by("pk").values()) for table in tables]


@pytest.mark.parametrize("number", range(len(ZOMBIE_WRITES)))
def test_after_a_takeover_the_old_executor_writes_nothing(number: int) -> None:
    """On a connection of its own, as a zombie has."""
    zombie, _owner = taken_over()
    before = snapshot()
    task = Task(lambda: ZOMBIE_WRITES[number](zombie)).join()
    assert isinstance(task.error, LeaseLost)
    assert zombie.lease.lost
    assert snapshot() == before


def test_a_zombies_checkpoint_that_waited_for_the_new_owner_writes_nothing() -> None:
    """It looked at the row before the takeover and gets it after: a plain condition would let it through."""
    one_step().create()
    (zombie,) = claim("default")
    expire_leases()
    held = Gate()

    def take_over() -> None:
        with transaction.atomic():
            WorkflowInstance.objects.select_for_update().get()
            WorkflowInstance.objects.update(lease_token=4711)
            held.stop_here()

    owner = Task(take_over)
    held.wait_until_reached()
    late = Task(lambda: write_step(zombie.lease, write(zombie)))
    if connection.vendor == "postgresql":
        eventually(blocked, "the zombie's wait for the row")
    held.open()
    owner.result()
    assert isinstance(late.join().error, LeaseLost)
    assert not StepRecord.objects.exists()


def test_a_lost_lease_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    row = one_step().create()
    (claimed,) = claim("default")

    def lose() -> None:
        WorkflowInstance.objects.update(lease_token=4711)

    with caplog.at_level(logging.INFO, "durableflow"):
        execute(claimed, interceptor=At(lose), renew=False)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.INFO].count(
        f"{row.label}: the lease was lost; this execution's work is dropped"
    ) == 1
    assert not StepRecord.objects.exists() and not row.history.filter(type="step_completed").exists()


# Answers that get lost ------------------------------------------------------------------------------------------------


class Lossy:
    """Lets the COMMIT succeed and its answer get lost, once for each named place."""

    def __init__(self) -> None:
        self.lost = 0

    def after(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            value = function(*args, **kwargs)
            if not self.lost:
                self.lost += 1
                raise OperationalError("server closed the connection unexpectedly")
            return value

        return wrapped

    def around(self, block: Callable[..., Any]) -> Callable[..., Any]:
        @contextmanager
        def wrapped(*args: Any, **kwargs: Any) -> Iterator[Any]:
            with block(*args, **kwargs) as value:
                yield value
            if not self.lost:
                self.lost += 1
                raise OperationalError("server closed the connection unexpectedly")

        return wrapped


def wait_flow(timeout: Any = None) -> type[Workflow[Any, Any]]:
    class WaitFlow(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            seen = []
            for _ in range(2):
                try:
                    seen.append(step.wait_for_event("n", type="n", timeout=timeout).payload)
                except EventTimeout:
                    seen.append("timeout")
            return seen

    return WaitFlow


def test_a_look_whose_answer_is_lost_takes_one_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise 1: the repeated look must not take the second event in the place of the first."""
    row = wait_flow().create()
    for number in (1, 2):
        row.send_event("n", number)
    lossy = Lossy()
    monkeypatch.setattr(waits, "fenced", lossy.around(waits.fenced))
    drain()
    assert lossy.lost
    assert state(row) == (Status.COMPLETE, [1, 2])
    assert row.pending_events.count() == 2
    assert row.history.filter(type="wait_completed").count() == 2


def test_a_look_that_took_the_only_event_does_not_wait_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Single(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            return step.wait_for_approval("ok", title="Ok?", timeout=None).approved

    row = Single.create()
    drain()
    row.pending_events.get().approve(by=None)
    lossy = Lossy()
    monkeypatch.setattr(waits, "fenced", lossy.around(waits.fenced))
    monkeypatch.setattr(waits, "take", lossy.after(waits.take))
    drain()
    assert lossy.lost and state(row) == (Status.COMPLETE, True)


def test_a_timeout_whose_answer_is_lost_is_no_new_wait(
    monkeypatch: pytest.MonkeyPatch, stopped_clock: StoppedClock
) -> None:
    row = wait_flow(timeout=10).create()
    drain()
    stopped_clock.advance(10)
    lossy = Lossy()
    monkeypatch.setattr(waits, "fenced", lossy.around(waits.fenced))
    drain()
    assert lossy.lost
    assert list(row.pending_events.order_by("id").values_list("count", "status")) == [(1, "timed_out"), (2, "open")]
    assert row.history.filter(type="wait_timed_out").count() == 1


@pytest.mark.parametrize("name", ["complete", "fail", "suspend", "block"])
def test_an_exit_whose_answer_is_lost_is_done_once(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The repeated write finds no lease of ours and lets it be."""

    class Exits(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            if name == "fail":
                raise ValueError("x")
            if name == "suspend":
                step.wait_for_event("x", type="x")
            return object() if name == "never" else "done"

    row = Exits.create()
    if name == "block":
        WorkflowInstance.objects.update(code_version=9, give_backs=MAX_GIVE_BACKS)
    lossy = Lossy()
    monkeypatch.setattr(endings, "run", _lose_exit(endings.run, lossy))
    monkeypatch.setattr(endings, "record", lossy.after(endings.record) if name == "block" else endings.record)
    monkeypatch.setattr(endings, "fenced", lossy.around(endings.fenced))
    monkeypatch.setattr(endings, "raw_transaction", lossy.around(endings.raw_transaction))
    drain()
    assert lossy.lost == 1
    expected = {"complete": Status.COMPLETE, "fail": Status.ERRORED, "suspend": Status.WAITING, "block": Status.PAUSED}
    assert state(row)[0] == expected[name] and row.lease_token is None
    ends = row.history.filter(type__in=["workflow_completed", "workflow_errored", "workflow_paused"])
    assert ends.count() == (0 if name == "suspend" else 1)


def _lose_exit(run: Callable[..., Any], lossy: Lossy) -> Callable[..., Any]:
    # On PostgreSQL suspend and finish are one statement each; on SQLite the transaction around them is what is lost.
    return lossy.after(run) if connection.vendor == "postgresql" else run


def test_a_checkpoint_whose_answer_is_lost_runs_no_body_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []

    class Counted(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            return step.do("a", lambda: ran.append(1) or "done")  # type: ignore[func-returns-value]

    row = Counted.create()
    lossy = Lossy()
    name = "run" if connection.vendor == "postgresql" else "_write_sqlite"
    monkeypatch.setattr(steps, name, lossy.after(getattr(steps, name)))
    drain()
    assert lossy.lost == 1 and ran == [1]
    assert state(row) == (Status.COMPLETE, "done")
    assert row.history.filter(type="step_completed").count() == 1

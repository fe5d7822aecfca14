"""The watcher's hands: nothing keeps the leases of a process from being renewed (design 4, "Renewal"; CON-05)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import OperationalError, connection, transaction

from durableflow import Retries, Step, Workflow, WorkflowEvent, drain, get_step_context
from durableflow.engine import bodies, hands, renewal, watcher
from durableflow.engine.claims import claim
from durableflow.engine.executor import execute
from durableflow.engine.hands import Hand
from durableflow.models import WorkflowInstance
from tests.integration.con_flows import expire_leases
from tests.support.concurrency import PATIENCE, Gate, Task, eventually
from tests.support.engine import drained, history_of, steps_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


def hanging(gate: Gate, retries: Retries, attempt: int = 1) -> type[Workflow]:
    """One attempt stops at the gate until long after its timeout."""

    def body() -> str:
        if get_step_context().attempt == attempt:
            gate.stop_here()
        return "done"

    class Hanging(Workflow):
        class Meta:
            name = "watched"

        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return step.do("work", body, retries=retries, timeout=0.2)

    return Hanging


def renewals(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Labels of the leases of each renewal that succeeds."""
    seen: list[list[str]] = []
    original = renewal.renew

    def renew(leases: Any) -> None:
        original(leases)
        seen.append([lease.label for lease in leases])

    monkeypatch.setattr(renewal, "renew", renew)
    return seen


def test_a_delay_function_that_blocks_keeps_nobody_from_renewing(
    monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    """An abandoned attempt's delay is the author's code: it hangs, the leases are renewed, others' endings are made."""
    settings.DURABLEFLOW = {**settings.DURABLEFLOW, "LEASE": 1}
    monkeypatch.setattr(watcher, "HANGS", 0.5)
    asking, body, other = Gate(), Gate(), Gate()

    def delay(_context: Any, _error: Any) -> timedelta:
        asking.stop_here()
        return timedelta(0)

    first = hanging(body, Retries(limit=1, delay=delay)).create()
    seen = renewals(monkeypatch)
    one = Task(lambda: drain(0))
    asking.wait_until_reached()
    count = len(seen)
    eventually(lambda: len(seen) > count + 2, "renewals go on")
    assert first.label in seen[-1]
    second = hanging(other, Retries(limit=1, delay=0)).create()  # in its turn its thread is given up as well
    two = Task(lambda: drain(0))
    eventually(lambda: history_of(second, "attempt_errored"), "the other one's timeout")
    asking.open()
    eventually(lambda: history_of(first, "attempt_errored"), "the first one's timeout")
    for gate, task in ((body, one), (other, two)):
        gate.open()
        task.result()
    eventually(lambda: watcher.held() == 0)
    assert (drained(first).output, drained(second).output) == ("done", "done")
    assert first.interruptions == second.interruptions == 0


def test_an_ending_that_never_ends_is_left_to_a_takeover(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the instance would be leased as long as the process lives. What comes late is dropped."""
    monkeypatch.setattr(watcher, "HANGS", 0.2)
    monkeypatch.setattr(watcher, "HOPELESS", 0.4)
    asking, body = Gate(), Gate()

    def delay(_context: Any, _error: Any) -> timedelta:
        asking.stop_here()
        return timedelta(0)

    instance = hanging(body, Retries(limit=2, delay=delay)).create()
    task = Task(lambda: drain(0))
    asking.wait_until_reached()
    eventually(lambda: watcher.held() == 0, "the lease is renewed no longer")
    expire_leases()
    assert (drained(instance).status, instance.output) == (S.COMPLETE, "done")
    asking.open()
    body.open()
    task.result()
    assert history_of(instance, "attempt_errored") == []
    assert history_of(instance, "attempt_lost") == [{"attempt": 1}]


@pytest.mark.parametrize("error", [SystemExit(1), RuntimeError("wrong"), KeyboardInterrupt()])
def test_a_delay_function_that_raises_anything(error: BaseException) -> None:
    """The instance is let go whatever it is: by the record, or by the end of its lease."""
    body = Gate()
    raised: list[BaseException] = []

    def delay(_context: Any, _error: Any) -> timedelta:
        raised.append(error)
        raise error

    instance = hanging(body, Retries(limit=2, delay=delay)).create()
    task = Task(lambda: drain(0))
    eventually(lambda: raised)
    eventually(lambda: watcher.held() == 0)
    body.open()
    task.result()
    expire_leases()
    drained(instance)
    assert instance.status in (S.COMPLETE, S.ERRORED)


def test_a_renewal_that_hangs_is_made_by_another_thread(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    """A connection that is dead without saying so: its thread is left behind, the next renewal has a new connection."""
    settings.DURABLEFLOW = {**settings.DURABLEFLOW, "LEASE": 1}
    monkeypatch.setattr(renewal, "patience", lambda: 0.1)
    gate = Gate()
    original, threads = renewal._renew, []

    def hang(*args: Any) -> None:
        threads.append(threading.current_thread())
        if len(threads) == 1:
            gate.stop_here()
        original(*args)

    monkeypatch.setattr(renewal, "_renew", hang)
    hanging(Gate(), Retries(limit=0)).create()
    (claimed,) = claim("default")
    before = claimed.lease.renewed
    with watcher.watcher().holding(claimed.lease):
        gate.wait_until_reached()
        eventually(lambda: claimed.lease.renewed > before)
        assert threads[1] is not threads[0]
        late = claimed.lease.renewed
        gate.open()
        eventually(lambda: not threads[0].is_alive())
        assert claimed.lease.renewed >= late


@pytest.mark.postgresql_only
def test_a_table_lock_does_not_hold_a_renewal_for_ever(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    """A migration has the table: the server ends the statement, so that its thread can try again."""
    monkeypatch.setattr(renewal, "patience", lambda: 0.2)
    hanging(Gate(), Retries(limit=0)).create()
    (claimed,) = claim("default")
    locked = Gate()

    def migrate() -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("LOCK TABLE durableflow_workflowinstance IN ACCESS EXCLUSIVE MODE")
            locked.stop_here()

    migration = Task(migrate)
    locked.wait_until_reached()
    with pytest.raises(OperationalError, match="statement timeout"):
        renewal.renew([claimed.lease])
    locked.open()
    migration.result()
    renewal.renew([claimed.lease])
    with connection.cursor() as cursor:
        cursor.execute("SHOW statement_timeout")
        assert cursor.fetchone()[0] == "0", "the limit is the renewal's alone"


@pytest.mark.sqlite_only
def test_errands_give_up_sqlites_lock_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long write of somebody else keeps one errand for a second, not for the project's busy timeout."""
    seen: list[int] = []

    def look() -> None:
        hands.hurry("default")
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA busy_timeout")
            seen.append(cursor.fetchone()[0])

    hand = Hand("test")
    hand.ask("look", look)
    eventually(lambda: seen)
    hand.dismiss()
    assert seen == [hands.SQLITE_PATIENCE]


def test_a_timeout_that_is_rolled_back_clears_the_counts_when_it_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last attempt after a lost worker: its failed record is a checkpoint like any other."""
    body = Gate()
    instance = hanging(body, Retries(limit=1, delay=0), attempt=2).create()
    claim("default")
    expire_leases()
    (claimed,) = claim("default")
    assert claimed.interruptions == 1
    original, failures = bodies.locked_row, []

    class Once:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.block = original(*args, **kwargs)

        def __enter__(self) -> Any:
            return self.block.__enter__()

        def __exit__(self, *raised: Any) -> Any:
            if raised[0] is None and not failures:
                failures.append(OperationalError("the connection broke before the COMMIT"))
                return self.block.__exit__(OperationalError, failures[0], None) or self.fail()
            return self.block.__exit__(*raised)

        def fail(self) -> None:
            raise failures[0]

    monkeypatch.setattr(bodies, "locked_row", Once)
    task = Task(lambda: execute(claimed))
    body.wait_until_reached()
    eventually(lambda: steps_of(instance) == [("work-1", "failed")])
    eventually(lambda: watcher.held() == 0)
    instance.refresh_from_db()
    assert failures and instance.interruptions == 0
    body.open()
    task.result()


# The hand itself --------------------------------------------------------------------------------------------------------


def counted(log: list[str], what: str) -> Callable[[], None]:
    return lambda: log.append(what)


def test_the_same_errand_is_not_asked_for_twice() -> None:
    """While it waits or is being done; afterwards it is."""
    gate, log = Gate(), list[str]()
    hand = Hand("test")
    hand.ask("a", lambda: (gate.stop_here(), log.append("a")) and None)
    gate.wait_until_reached()
    for _ in range(2):
        hand.ask("a", counted(log, "a again"))
        hand.ask("b", counted(log, "b"))
    gate.open()
    eventually(lambda: log == ["a", "b"])
    hand.ask("b", counted(log, "b again"))
    eventually(lambda: log == ["a", "b", "b again"])
    hand.dismiss()
    eventually(lambda: hand._runner is None)


def test_threads_that_hang_are_bounded() -> None:
    """Then what is asked for waits until one of them comes back."""
    gates = [Gate() for _ in range(hands.MOST_STUCK + 1)]
    hand, log = Hand("test"), list[str]()
    for number, gate in enumerate(gates):
        hand.ask(number, gate.stop_here)
        gate.wait_until_reached()
        assert hand.relieve(-1) == number + 1
    assert set(hand.stuck_at(-1)) == set(range(len(gates)))
    hand.ask("more", counted(log, "more"))
    assert hand._runner is None
    gates[0].open()
    eventually(lambda: log == ["more"])
    for gate in gates:
        gate.open()
    hand.dismiss()
    eventually(lambda: not hand._stuck and hand._runner is None)


def test_an_errand_that_fails_keeps_no_other_one(caplog: pytest.LogCaptureFixture) -> None:
    """And is told of once, though it is tried again for as long as the database is away."""
    hand, log = Hand("test"), list[str]()

    def fail() -> None:
        raise SystemExit

    for number in range(1, 4):
        hand.ask("fails", fail)
        hand.ask("works", counted(log, "works"))
        eventually(lambda expected=number: log == ["works"] * expected)
    hand.dismiss()
    assert [record.levelname for record in caplog.records if "fails failed" in record.message].count("WARNING") == 1


def test_who_has_nothing_to_do_has_no_thread_and_no_connection() -> None:
    hand, threads = Hand("test"), list[threading.Thread]()
    hand.ask("look", lambda: (Group.objects.count(), threads.append(threading.current_thread())) and None)
    hand.dismiss()
    eventually(lambda: threads)
    threads[0].join(PATIENCE)
    assert not threads[0].is_alive()
    hand.ask("look", lambda: threads.append(threading.current_thread()))
    eventually(lambda: len(threads) == 2)
    hand.dismiss()


def test_a_hand_whose_waiting_fails_is_replaced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Python cannot allocate a lock in a process without memory: the thread ends, the next request starts another."""
    monkeypatch.setattr(threading, "excepthook", lambda _args: None)
    hand, log = Hand("test"), list[str]()
    hand.ask("one", counted(log, "one"))
    eventually(lambda: log == ["one"])
    runner = hand._runner
    assert runner is not None
    with monkeypatch.context() as patch:

        def fail(*_args: Any) -> None:
            raise RuntimeError("can't allocate lock")

        patch.setattr(hand._state, "wait", fail)
        with hand._state:
            hand._state.notify_all()
        hand.ask("two", counted(log, "two"))
        eventually(lambda: not runner.thread.is_alive())
    hand.ask("three", counted(log, "three"))
    eventually(lambda: log[-1] == "three")
    hand.dismiss()

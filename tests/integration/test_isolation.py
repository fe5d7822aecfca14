"""An instance whose worker was lost runs alone in its process until it has made progress (design 6, "Interruptions")."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from durableflow import Step, Workflow, WorkflowEvent
from durableflow.engine.claims import claim
from durableflow.engine.executor import execute
from durableflow.engine.isolation import room
from durableflow.models import WorkflowInstance
from tests.integration.con_flows import expire_leases
from tests.support.concurrency import Gate, Task, eventually
from tests.support.engine import drained, history_of, steps_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


def take() -> Any:
    (claimed,) = claim("default")
    return claimed


def test_the_others_leave_and_nobody_enters() -> None:
    """One in a body is waited for, and leaves at its next durable call without a charge; one that comes later is turned
    away; after the first checkpoint others may run again."""
    gate, alone = Gate(), Gate()
    log: list[str] = []

    class Other(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> None:
            step.do("first", gate.stop_here)
            step.do("second", log.append, "other goes on")

    class Lost(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> None:
            step.do("work", log.append, "lost goes on")
            step.do("more", alone.stop_here)

    class Late(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> None:
            step.do("late", log.append, "late")

    lost = Lost.create()
    take()  # and its worker dies
    expire_leases()
    interrupted = take()
    assert interrupted.interruptions == 1 and interrupted.lost_token is not None
    other = Other.create()
    taken = take()
    first = Task(lambda: execute(taken))
    gate.wait_until_reached()
    second = Task(lambda: execute(interrupted))
    late = Late.create()
    turned_away = take()
    eventually(room().occupied)
    execute(turned_away)
    late.refresh_from_db()
    assert (late.status, late.interruptions, log) == (S.QUEUED, 0, [])
    gate.open()
    first.result()
    other.refresh_from_db()
    assert (other.status, other.give_backs, steps_of(other)) == (S.QUEUED, 0, [("first-1", "complete")])
    alone.wait_until_reached()
    assert log == ["lost goes on"]
    assert not room().occupied()
    assert drained(late).status == S.COMPLETE
    alone.open()
    second.result()
    assert drained(lost).status == drained(other).status == S.COMPLETE
    assert history_of(lost, "attempt_lost") == [{"attempt": 1}]


def test_one_that_is_turned_away_keeps_what_it_is_to_be_charged() -> None:
    """RET-03: two instances lost their workers; the second is taken over again elsewhere, as if nobody had looked."""
    gate = Gate()

    class Lost(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> None:
            step.do("work", gate.stop_here if event.params == 1 else threading.get_ident)

    one, two = Lost.create(1), Lost.create(2)
    take(), take()
    expire_leases()
    claims = {claimed.lease.pk: claimed for claimed in (take(), take())}
    first = Task(lambda: execute(claims[one.pk]))
    gate.wait_until_reached()
    execute(claims[two.pk])
    two.refresh_from_db()
    assert (two.status, two.interruptions, two.lease_token) == (S.RUNNING, 0, claims[two.pk].lost_token)
    gate.open()
    first.result()
    assert drained(two).status == S.COMPLETE
    assert history_of(one, "attempt_lost") == history_of(two, "attempt_lost") == [{"attempt": 1}]

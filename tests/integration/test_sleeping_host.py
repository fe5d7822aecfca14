"""A laptop or a virtual machine that was asleep for longer than a lease: others may have taken what it executes (CON-05; design 4,
"Renewal")."""

from __future__ import annotations

import time
from typing import Any

import pytest

from durableflow import Step, Workflow, WorkflowEvent
from durableflow.engine.claims import claim
from durableflow.engine.executor import execute
from durableflow.engine.lease import elapsed
from durableflow.models import WorkflowInstance
from tests.integration.con_flows import expire_leases
from tests.support.engine import drained, history_of, steps_of

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="no clock that goes on in a sleep"),
]
S = WorkflowInstance.Status
NIGHT = 8 * 3600.0


@pytest.mark.parametrize("retries", [0, 5])
def test_no_body_starts_on_a_lease_that_has_ended_in_the_sleep(monkeypatch: pytest.MonkeyPatch, retries: int) -> None:
    """The clock of Python's choice stands still in a sleep. What had finished is stored, and nothing is charged for a body that
    never began."""
    asleep, bodies = [0.0], list[str]()
    original = time.clock_gettime
    monkeypatch.setattr(
        time, "clock_gettime", lambda which: original(which) + (asleep[0] if which == time.CLOCK_BOOTTIME else 0)
    )

    def sleep() -> None:
        asleep[0] = NIGHT

    class Sleeping(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            step.do("sleep", lambda: None)
            sleep()
            return step.do("work", bodies.append, "work", retries=retries)

    row = Sleeping.create()
    (claimed,) = claim("default")
    execute(claimed, renew=False)
    row.refresh_from_db()
    assert (row.status, bodies, steps_of(row)) == (S.RUNNING, [], [("sleep-1", "complete")])
    expire_leases()
    assert (drained(row).status, bodies) == (S.COMPLETE, ["work"])
    assert len(history_of(row, "attempt_lost")) == (1 if retries else 0)


def test_a_checkpoint_of_a_lease_that_nobody_has_taken_renews_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds the row, and finds its own token there: what follows has a lease."""
    asleep, original = [0.0], time.clock_gettime
    monkeypatch.setattr(
        time, "clock_gettime", lambda which: original(which) + (asleep[0] if which == time.CLOCK_BOOTTIME else 0)
    )

    class Awake(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            step.do("sleep", lambda: asleep.__setitem__(0, NIGHT))
            return step.do("work", str, "done", retries=0)

    row = Awake.create()
    (claimed,) = claim("default")
    execute(claimed, renew=False)
    row.refresh_from_db()
    assert (row.status, row.output, row.execution) == (S.COMPLETE, "done", 1)


def test_time_goes_by_in_the_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a claim takes for the database's time is right afterwards: timers are due, ``max_duration`` is over."""

    class Plain(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> None:
            """Nothing."""

    Plain.create()
    (claimed,) = claim("default")
    before, awake = claimed.db_now(), elapsed()
    original = time.clock_gettime
    monkeypatch.setattr(time, "clock_gettime", lambda which: original(which) + NIGHT)
    assert elapsed() - awake >= NIGHT
    assert (claimed.db_now() - before).total_seconds() >= NIGHT

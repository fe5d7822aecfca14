"""Ctrl-C at any line of a drain: the instance is given back as it was (design 4 "Executor exits", 6 "Interruptions")."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from durableflow import Step, Workflow, WorkflowEvent, drain, get_step_context
from durableflow.engine import drain as drains
from durableflow.engine import shutdown
from durableflow.engine.claims import claim
from durableflow.models import WorkflowInstance
from tests.integration.con_flows import expire_leases
from tests.support.engine import drained

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


def interrupt() -> None:
    """Ctrl-C now: Python handles the signal before it goes on."""
    signal.raise_signal(signal.SIGINT)


class Pressed(Workflow[Any, Any]):
    """Ctrl-C in the first execution, before the first durable call."""

    class Meta:
        name = "ctrl-c-pressed"

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        if event.params:
            os.environ.pop(event.params, None) and interrupt()
        return step.do("work", lambda: get_step_context().attempt)


@pytest.mark.parametrize("where", ["look", "sign"])
def test_between_the_claim_and_the_execution(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Nobody waits for the lease to end: the signal is put off until somebody can give the instance back."""
    row = Pressed.create()
    original, pressed = drains.look if where == "look" else drains.heartbeat.sign, []

    def press(*args: Any, **kwargs: Any) -> Any:
        value = original(*args, **kwargs)
        if not pressed and WorkflowInstance.objects.filter(lease_token__isnull=False).exists():
            pressed.append(True)
            interrupt()
        return value

    monkeypatch.setattr(drains if where == "look" else drains.heartbeat, where, press)
    with pytest.raises(KeyboardInterrupt):
        drain()
    row.refresh_from_db()
    assert (row.status, row.lease_token, row.interruptions) == (S.QUEUED, None, 0)
    assert not shutdown.requested()
    assert drained(row).output == 1


def test_while_nothing_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is put off, not forgotten."""
    deliver = drains.deliver
    monkeypatch.setattr(drains, "deliver", lambda using: (interrupt(), deliver(using))[1])
    with pytest.raises(KeyboardInterrupt):
        drain()
    assert not shutdown.requested()


def test_a_second_one_is_not_put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever presses again does not want to wait for a database that hangs."""
    passed: list[int] = []

    def hang(using: str) -> bool:
        for number in range(3):
            interrupt()
            passed.append(number)
        return False

    monkeypatch.setattr(drains, "deliver", hang)
    with pytest.raises(KeyboardInterrupt):
        drain()
    assert passed == [0]


def test_what_a_lost_worker_is_to_be_charged_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """RET-03: an instance that was taken over, and given back before its first step, still owes the lost attempt."""
    monkeypatch.setenv("DURABLEFLOW_TEST_PRESS", "1")
    row = Pressed.create("DURABLEFLOW_TEST_PRESS")
    assert claim("default")  # and this worker dies
    expire_leases()
    with pytest.raises(KeyboardInterrupt):
        drain()
    row.refresh_from_db()
    assert row.interruptions == 0 and row.suspect, "as if nobody had taken it over"
    assert drained(row).output == 2
    assert row.history.filter(type="attempt_lost").count() == 1

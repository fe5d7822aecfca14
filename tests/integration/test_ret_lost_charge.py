"""An instance that was taken over and is given back before its first step still owes the lost attempt (RET-03; design 6,
"Interruptions")."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import OperationalError

from durableflow import Step, Workflow, WorkflowEvent, drain, get_step_context
from durableflow.engine import executor
from durableflow.engine.claims import claim
from durableflow.models import WorkflowInstance
from tests.integration.con_flows import expire_leases
from tests.support.engine import drained

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


def owing(monkeypatch: pytest.MonkeyPatch, fault: BaseException) -> WorkflowInstance:
    """Its first worker dies, its second one meets ``fault`` before the first step."""
    faults = [fault]

    class Owing(Workflow[Any, Any]):
        class Meta:
            name = "owing"

        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            if faults and isinstance(faults[0], SystemExit):
                raise faults.pop()
            return step.do("work", lambda: get_step_context().attempt)

    original = executor.load_journal

    def load(*args: Any, **options: Any) -> Any:
        if faults and isinstance(faults[0], OperationalError):
            raise faults.pop()
        return original(*args, **options)

    monkeypatch.setattr(executor, "load_journal", load)
    row = Owing.create()
    assert claim("default")  # and this worker dies
    expire_leases()
    return row


@pytest.mark.parametrize("fault", [OperationalError("server closed the connection unexpectedly"), SystemExit(1)])
def test_it_is_charged_after_a_give_back(monkeypatch: pytest.MonkeyPatch, fault: BaseException) -> None:
    """An outage of the database, or run() that ends the process: the takeover is undone, and counts as a give-back, so that
    it does not go on for ever."""
    row = owing(monkeypatch, fault)
    if isinstance(fault, SystemExit):
        with pytest.raises(SystemExit):
            drain(0)
    else:
        drain(0)
    row.refresh_from_db()
    assert (row.interruptions, row.suspect, row.give_backs) == (0, True, 1)
    assert row.wake_at is not None and row.wake_at > row.created, "not at once"
    expire_leases()
    assert (drained(row).status, row.output) == (S.COMPLETE, 2)
    assert (row.interruptions, row.give_backs) == (0, 0)
    assert row.history.filter(type="attempt_lost").count() == 1

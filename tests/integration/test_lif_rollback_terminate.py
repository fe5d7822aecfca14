"""``terminate(rollback=True)`` (LIF-17, design 7, reference 8)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User

from durableflow import InvalidTransition, NonRetryableError, Retries, Rollback, Step, Undo, Workflow, WorkflowEvent
from durableflow.core.statuses import ACTIVE
from durableflow.engine import endings
from durableflow.engine.claims import claim
from durableflow.models import WorkflowInstance
from durableflow.testing import Harness
from tests.conftest import UserFactory
from tests.integration.eng_flows import workflow
from tests.support.engine import history_of, types_of

pytestmark = pytest.mark.django_db
S = WorkflowInstance.Status
UNDONE: list[Undo[Any]] = []


@pytest.fixture(autouse=True)
def undone() -> list[Undo[Any]]:
    UNDONE.clear()
    return UNDONE


def two(wait: Callable[[Step], object], **options: Any) -> type[Workflow[Any, Any]]:
    """Two steps that can be undone, then a wait."""

    def run(step: Step, log: list[str]) -> None:
        for name in ("flight", "hotel"):
            step.do(name, lambda name=name: name.upper(), rollback=Rollback(UNDONE.append, **options))
        wait(step)

    return workflow(run, [])


def names() -> list[str]:
    return [undo.context.name for undo in UNDONE]


def test_plain_terminate_undoes_nothing(workflows: Harness) -> None:
    """LIF-17: undo must be asked for."""
    row = workflows.run(two(lambda step: step.sleep("night", "8 hours")))
    row.terminate()
    workflows.advance("1 day")
    assert (row.status, row.rollback, UNDONE) == (S.TERMINATED, None, [])
    assert "rollback_started" not in types_of(row)


def test_terminate_with_rollback_while_sleeping(workflows: Harness, user_factory: UserFactory) -> None:
    """LIF-17, reference G: both, in reverse order, then terminated; the handlers get an error named Terminated."""
    operator: User = user_factory("operator", permissions=["durableflow.operate_workflowinstance"])
    row = workflows.run(two(lambda step: step.sleep("night", "8 hours")))
    row.terminate(rollback=True, by=operator, reason="called off", via="admin")
    assert (row.status, row.error, row.finished) == (S.ROLLING_BACK, None, None)
    workflows.run_due()
    assert names() == ["hotel", "flight"]
    assert {type(undo.error).__name__ for undo in UNDONE} == {"Terminated"} and "terminated" in str(UNDONE[0].error)
    assert [(undo.completed, undo.output) for undo in UNDONE] == [(True, "HOTEL"), (True, "FLIGHT")]
    assert (row.status, row.error, row.rollback) == (S.TERMINATED, None, {"outcome": "complete", "failed": []})
    assert row.finished is not None and row.wake_at is None and row.lease_token is None
    entry = row.history.get(type="rollback_started")
    assert (entry.actor, entry.reason, entry.via, entry.data) == (
        operator,
        "called off",
        "admin",
        {"verb": "terminate"},
    )
    assert types_of(row)[-5:] == [
        "rollback_started",
        "rollback_step_completed",
        "rollback_step_completed",
        "rollback_completed",
        "workflow_terminated",
    ]
    assert row.steps.get(name="night").status == "cancelled"


def test_terminate_with_rollback_while_somebody_is_asked(workflows: Harness) -> None:
    """LIF-03, LIF-17: the wait is cancelled at once, not when the handlers have run."""
    row = workflows.run(two(lambda step: step.wait_for_approval("ok", timeout=None)))
    pending = workflows.pending(row)
    row.terminate(rollback=True)
    pending.refresh_from_db()
    assert pending.status == "cancelled"
    with pytest.raises(InvalidTransition):
        row.send_event("x")
    workflows.run_due()
    assert (row.status, names()) == (S.TERMINATED, ["hotel", "flight"])


def test_terminate_with_rollback_while_paused(workflows: Harness) -> None:
    """Reference G: a blocked instance too."""
    broken = True

    def run(step: Step, log: list[str]) -> None:
        step.do("a", lambda: "A", rollback=UNDONE.append)
        if not broken:
            step.do("b", lambda: "B")
        step.wait_for_event("x", type="x", timeout=None)

    broken = False
    row = workflows.run(workflow(run, []))
    broken = True
    row.send_event("x")
    workflows.run_due()
    assert row.status == S.PAUSED and row.blocked
    row.terminate(rollback=True)
    assert (row.status, row.blocked, row.paused_at) == (S.ROLLING_BACK, "", None)
    workflows.run_due()
    assert (row.status, names()) == (S.TERMINATED, ["a"])


def test_with_nothing_to_undo_it_ends_at_once(workflows: Harness) -> None:
    def run(step: Step, log: list[str]) -> None:
        step.do("a", lambda: "A")
        step.sleep("night", 5)

    row = workflows.run(workflow(run, []))
    row.terminate(rollback=True)
    assert (row.status, row.rollback) == (S.TERMINATED, None) and row.finished is not None
    fresh = workflow(run, []).create(start_at="1 hour")
    fresh.terminate(rollback=True)
    assert fresh.status == S.TERMINATED


def test_no_other_verb_knows_it(workflows: Harness) -> None:
    """LIF-17: on other commands it does not exist."""
    row = workflows.run(two(lambda step: step.sleep("night", 5)))
    for verb in ("resume", "retry"):
        with pytest.raises(TypeError, match="rollback"):
            getattr(row, verb)(rollback=True)


@pytest.mark.parametrize("status", sorted(ACTIVE))
def test_from_every_open_status_but_rolling_back(workflows: Harness, status: str) -> None:
    """Design 2, "Transitions"."""
    row = workflows.run(two(lambda step: step.sleep("night", 5)))
    WorkflowInstance.objects.filter(pk=row.pk).update(status=status, wake_at=None)
    if status == S.ROLLING_BACK:
        with pytest.raises(InvalidTransition, match="rolling_back"):
            row.terminate(rollback=True)
        with pytest.raises(InvalidTransition, match="rolling_back"):
            row.terminate()
        return
    row.terminate(rollback=True)
    assert row.status == S.ROLLING_BACK
    workflows.run_due()
    assert (row.status, len(UNDONE)) == (S.TERMINATED, 2)


def test_failed_handlers_of_a_terminated_instance_can_be_retried(workflows: Harness, superuser: User) -> None:
    """LIF-16: visible and retryable by an operator, however the instance has ended."""
    broken = [NonRetryableError("no")]

    def handler(undo: Undo[Any]) -> None:
        UNDONE.append(undo)
        if broken:
            raise broken.pop()

    def run(step: Step, log: list[str]) -> None:
        step.do("a", lambda: "A", rollback=handler)
        step.do("b", lambda: "B", rollback=UNDONE.append)
        step.sleep("night", 5)

    row = workflows.run(workflow(run, []))
    row.terminate(rollback=True)
    workflows.run_due()
    assert (row.status, row.rollback) == (S.TERMINATED, {"outcome": "failed", "failed": ["a-1"]})
    assert "retry" in row.available_actions(superuser)
    assert list(WorkflowInstance.objects.not_undone()) == list(WorkflowInstance.objects.failed()) == [row]
    row.retry()
    workflows.run_due()
    assert (row.status, names()) == (S.TERMINATED, ["b", "a", "a"])
    assert row.rollback == {"outcome": "complete", "failed": []}
    assert not WorkflowInstance.objects.failed(), "nothing is left to do"
    assert "retry" not in row.available_actions(superuser)
    with pytest.raises(InvalidTransition, match="has been undone"):
        row.retry()


def test_a_running_instance_is_taken_from_its_executor(workflows: Harness) -> None:
    """Design 9: what the executor still does finds no lease; an interrupted step is undone as not completed."""

    def run(step: Step, log: list[str]) -> None:
        step.do("a", lambda: "A", rollback=UNDONE.append)
        step.do(
            "b",
            lambda: WorkflowInstance.objects.get(instance_id="mine").terminate(rollback=True),
            rollback=UNDONE.append,
        )

    row = workflows.run(workflow(run, []), instance_id="mine")
    assert [(undo.context.name, undo.completed, undo.output) for undo in UNDONE] == [
        ("b", False, None),
        ("a", True, "A"),
    ]
    assert (row.status, row.rollback) == (S.TERMINATED, {"outcome": "complete", "failed": []})
    assert [step.status for step in row.steps.order_by("seq")] == ["complete", "cancelled"]


def test_blocked_in_the_middle_of_a_rollback(workflows: Harness) -> None:
    """Design 6: an engine failure ends nothing. ``resume()`` goes on with the rollback; ``terminate()`` gives it up."""
    row = workflows.run(two(lambda step: step.sleep("night", 5), retries=Retries(limit=1, delay=5)))
    other = workflows.run(two(lambda step: step.sleep("night", 5)))
    for each in (row, other):
        each.terminate(rollback=True)
        (claimed,) = claim("default", pk=each.pk)
        endings.block(claimed.lease, "the engine failed")
        each.refresh_from_db()
        assert (each.status, each.blocked) == (S.PAUSED, "the engine failed")
        with pytest.raises(InvalidTransition, match="middle of its rollback"):
            each.terminate(rollback=True)
    row.resume()
    assert row.status == S.ROLLING_BACK and history_of(row, "rollback_started")[-1] == {"verb": "resume"}
    workflows.run_due()
    assert (row.status, names()) == (S.TERMINATED, ["hotel", "flight"])
    other.terminate()
    assert (other.status, other.rollback) == (S.TERMINATED, {"outcome": "failed", "failed": ["hotel-1", "flight-1"]})
    workflows.advance("1 day")
    assert len(UNDONE) == 2


def test_a_wrong_type_of_the_verb(workflows: Harness) -> None:
    class Plain(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> None:
            step.sleep("night", 5)

    row = workflows.run(Plain)
    with pytest.raises(TypeError):
        row.terminate(True)  # type: ignore[misc]


def test_a_durable_call_in_a_handler_of_a_waiting_instance(workflows: Harness) -> None:
    """Reference 8: refused as in a body, also where the replay that has found the handler was left in the middle of ``run``."""

    def run(step: Step, log: list[str]) -> None:
        step.do("a", lambda: "A", rollback=UNDONE.append)
        step.do("b", lambda: "B", rollback=lambda undo: step.sleep("inside", 5))
        step.gather(
            "both",
            lambda: step.do("c", lambda: "C", rollback=lambda undo: step.now()),
            lambda: step.sleep("d", 5),
        )

    row = workflows.run(workflow(run, []))
    row.terminate(rollback=True)
    workflows.run_due()
    assert (row.status, names()) == (S.TERMINATED, ["a"])
    assert row.rollback == {"outcome": "failed", "failed": ["both-1[1]/c-1", "b-1"]}
    for step in row.steps.filter(rollback_status="failed"):
        assert f"inside the rollback handler of step {step.label!r}" in step.rollback_error["message"]
    assert not row.steps.filter(name="inside").exists()

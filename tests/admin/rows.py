"""Rows made by hand, in the shape in which the engine leaves them."""

from __future__ import annotations

from datetime import timedelta
from itertools import count
from typing import Any

from django import forms
from django.utils import timezone

from durableflow.core.statuses import SentKind, StepKind, StepStatus
from durableflow.models import HistoryEntry, PendingEvent, SentEvent, StepRecord, WorkflowInstance

S = WorkflowInstance.Status
_numbers = count(1)


class RefundForm(forms.Form):
    """The form of a wait."""

    amount = forms.DecimalField(label="Amount", max_digits=8, decimal_places=2)
    comment = forms.CharField(label="Note to the customer", required=False)
    shops = forms.MultipleChoiceField(choices=[("a", "A"), ("b", "B")], required=False)


REFUND = f"{RefundForm.__module__}.{RefundForm.__qualname__}"


def make_instance(**fields: Any) -> WorkflowInstance:
    """An instance; without ``wake_at`` nothing is due."""
    number = next(_numbers)
    values: dict[str, Any] = {
        "workflow": "checkout",
        "instance_id": f"order-{number}",
        "status": S.WAITING,
        "created": timezone.now(),
        "params": {"cart_id": number},
    }
    values |= fields
    user = values.get("created_by")
    values.setdefault("created_by_name", user.get_username() if user else "")
    return WorkflowInstance.objects.create(**values)


def make_step(instance: WorkflowInstance, name: str = "charge card", **fields: Any) -> StepRecord:
    """A finished step; give other fields for another state."""
    now = timezone.now()
    values: dict[str, Any] = {
        "run_number": instance.run_number,
        "kind": StepKind.DO,
        "count": 1,
        "seq": instance.steps.count() + 1,
        "execution": 1,
        "status": StepStatus.COMPLETE,
        "attempts": 1,
        "started": now - timedelta(seconds=2),
        "finished": now,
    }
    return StepRecord.objects.create(instance=instance, name=name, **{**values, **fields})


def make_wait(instance: WorkflowInstance, name: str = "manager approval", **fields: Any) -> PendingEvent:
    """An open approval with its step. ``users`` and ``groups`` restrict it."""
    users, groups = fields.pop("users", ()), fields.pop("groups", ())
    kind = fields.pop("kind", StepKind.WAIT_FOR_APPROVAL)
    step = make_step(instance, name, kind=kind, status=StepStatus.PENDING, attempts=0, finished=None)
    values: dict[str, Any] = {
        "run_number": instance.run_number,
        "opened": timezone.now(),
        "restricted": bool(users or groups or fields.get("permission")),
    }
    wait = PendingEvent.objects.create(instance=instance, step=step, kind=kind, name=name, **{**values, **fields})
    wait.users.set(users)
    wait.groups.set(groups)
    return wait


def make_failed(**fields: Any) -> WorkflowInstance:
    """A failed instance: one step done, one failed for good after three attempts."""
    error = {
        "type": "shop.services.CardDeclined",
        "message": "no money",
        "traceback": "Traceback\n  boom",
        "step": "charge card-1",
    }
    steps = [["", "do", "charge card", 1]]
    instance = make_instance(status=S.ERRORED, error_data={**error, "steps": steps}, finished=timezone.now(), **fields)
    make_step(instance, "load cart", raw_output={"total": 600})
    make_step(instance, "charge card", status=StepStatus.FAILED, attempts=3, error_data=error)
    for attempt in (1, 2, 3):
        add_history(
            instance,
            "attempt_errored",
            step="charge card-1",
            kind="do",
            data={"attempt": attempt, "error": {**error, "message": f"no money {attempt}"}, "retry_delay": 10},
        )
    return instance


def failed_third() -> tuple[WorkflowInstance, list[StepRecord]]:
    """Three steps in their order, the third failed."""
    error = {"type": "E", "message": "no", "traceback": "", "step": "three-1", "steps": [["", "do", "three", 1]]}
    instance = make_instance(status=S.ERRORED, finished=timezone.now(), error_data=error)
    made = [make_step(instance, name, raw_output=name) for name in ("one", "two")]
    made.append(make_step(instance, "three", status=StepStatus.FAILED, error_data=error))
    return instance, made


def make_blocked(**fields: Any) -> WorkflowInstance:
    """An instance that needs a person."""
    return make_instance(status=S.PAUSED, blocked="NonDeterminismError: step 'b' was not met", **fields)


def add_history(instance: WorkflowInstance, type: str, **fields: Any) -> HistoryEntry:
    """One history entry of the present run."""
    return instance.history.create(run_number=instance.run_number, type=type, at=timezone.now(), **fields)


def send(instance: WorkflowInstance, type: str, payload: Any = None) -> SentEvent:
    """An event that nobody has consumed."""
    return instance.sent_events.create(
        run_number=instance.run_number, kind=SentKind.EVENT, type=type, payload=payload, sent_at=timezone.now()
    )


def snapshot() -> list[tuple[Any, ...]]:
    """What must not change where a request is refused: rows, history, inbox."""
    return [
        *WorkflowInstance.objects.order_by("id").values_list(
            "id", "status", "run_number", "blocked", "finished", "wake_at"
        ),
        *PendingEvent.objects.order_by("id").values_list("id", "status", "approved", "comment", "decided_by"),
        *StepRecord.objects.order_by("id").values_list("id", "status", "attempts"),
        ("history", HistoryEntry.objects.count()),
        ("sent", SentEvent.objects.count()),
    ]

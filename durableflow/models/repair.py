"""Repair by an operator: run failed steps again (design 9)."""

from __future__ import annotations

from typing import Any

from django.db import connections
from django.db.models import F

from durableflow.core import clock, dispatch, registry
from durableflow.core.aio import async_twin
from durableflow.core.fields import Unreadable
from durableflow.core.statuses import Status, StepKind, StepStatus, Via
from durableflow.models.audit import record, verb
from durableflow.models.instance_fields import InstanceFields, Who

WAITS = (StepKind.WAIT_FOR_EVENT, StepKind.WAIT_FOR_APPROVAL)


class RepairVerbs(InstanceFields):
    """``retry``."""

    class Meta:
        abstract = True

    def retry(self, *, by: Who = None, reason: str = "", via: str = Via.CODE) -> None:
        """Run the step that ended an errored instance again; everything else and all idempotency keys are kept (design
        9, case LIF-10).

        The failed step gets a fresh budget and its attempt numbers go on rising; a timed-out wait opens anew with a new
        deadline. Errors that the workflow caught stay caught. ``max_duration`` starts again. Raises PermissionDenied,
        InvalidTransition.
        """
        with verb(self, "retry", by) as row:
            full = type(row)._default_manager.using(row._state.db).only("id", "error_data").get(pk=row.pk)
            steps = _reset_failed(row, full.error_data)
            row.status = Status.QUEUED
            row.error_data = row.output = row.finished = None
            row.deadline_at = _deadline(row)
            row.interruptions = row.give_backs = 0
            row.wake_at = clock.expression(connections[row._state.db].vendor)
            row.save(
                update_fields=[
                    "status", "error_data", "output", "finished", "deadline_at", "interruptions", "give_backs", "wake_at",
                ]
            )  # fmt: skip
            record(row, "workflow_queued", by=by, via=via, reason=reason, data={"verb": "retry", "steps": steps})
            dispatch.wake(row._state.db)

    aretry = async_twin(retry)


def _deadline(row: Any) -> Any:
    """``max_duration`` starts again now; None where the workflow has none, or is not known here."""
    cls = registry.find(row.workflow)
    duration = None if cls is None else cls.options.max_duration
    return None if duration is None else clock.expression(connections[row._state.db].vendor, duration)


def _reset_failed(row: Any, error: Any) -> list[str]:
    """Make the failed records that ended the run pending again, and free what was started after them. Returns their
    labels."""
    # What the end cancelled was still open: it goes on as it was (a wait opens anew).
    row.steps.filter(run_number=row.run_number, status=StepStatus.CANCELLED).exclude(kind=StepKind.NOTIFY).update(
        status=StepStatus.PENDING, finished=None
    )
    identities = [] if error is None or isinstance(error, Unreadable) else error.get("steps", [])
    labels = []
    for scope, kind, name, count in identities:
        kinds = [kind, StepKind.NOTIFY] if kind in WAITS else [kind]
        steps = row.steps.filter(run_number=row.run_number, scope=scope, name=name, count=count, kind__in=kinds)
        failed = steps.filter(status=StepStatus.FAILED).order_by("seq").first()
        if failed is None:
            continue
        labels.append(failed.label)
        steps.exclude(status=StepStatus.COMPLETE).update(
            status=StepStatus.PENDING,
            error_data=None,
            finished=None,
            wake_at=None,
            token=None,
            attempts_before_retry=F("attempts"),
        )
        row.steps.filter(run_number=row.run_number, seq__gt=failed.seq).exclude(pk=failed.pk).update(freed=True)
    return labels

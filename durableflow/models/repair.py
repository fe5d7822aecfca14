"""Repair by an operator: run failed steps again (design 9)."""

from __future__ import annotations

from typing import Any

from django.db import connections
from django.db.models import F, Q

from durableflow.core import clock, dispatch, registry
from durableflow.core.aio import async_twin
from durableflow.core.scopenames import component, groups_of
from durableflow.core.statuses import Hold, Status, StepKind, StepStatus, Via
from durableflow.models import family, undoing
from durableflow.models.audit import record, verb
from durableflow.models.completable import broken, ending
from durableflow.models.instance_fields import InstanceFields, Who

GROUPS = (StepKind.GATHER, StepKind.MAP, StepKind.RACE)
WAITS = (StepKind.WAIT_FOR_EVENT, StepKind.WAIT_FOR_APPROVAL)
WITHOUT_BODY = (*WAITS, StepKind.CHILD)
DECIDED = (StepStatus.COMPLETE, StepStatus.FAILED)
"""A race that was cancelled was open still: it goes on with all that it waits for."""


class RepairVerbs(InstanceFields):
    """``retry``."""

    class Meta:
        abstract = True

    def retry(self, *, by: Who = None, reason: str = "", via: str = Via.CODE) -> None:
        """Run the step that ended an errored instance again; everything else and all idempotency keys are kept (design
        9, case LIF-10).

        The failed step gets a fresh budget and its attempt numbers go on rising; a timed-out wait opens anew with a new
        deadline. Errors that the workflow caught stay caught. ``max_duration`` starts again.

        Of an instance that was rolled back only the handlers that failed run again, with a fresh budget, and then it ends as
        before; where all succeeded there is nothing left to go on from (design 7). Raises PermissionDenied, InvalidTransition.
        """
        with verb(self, "retry", by) as row:
            if row.rollback:
                _undo_again(row, by=by, reason=reason, via=via)
                return
            steps = reset_failed(row)
            queue_again(row)
            record(row, "workflow_queued", by=by, via=via, reason=reason, data={"verb": "retry", "steps": steps})
            dispatch.wake(row._state.db)

    aretry = async_twin(retry)


def _undo_again(row: Any, *, by: Who, reason: str, via: str) -> None:
    """Only handlers that have failed: nothing of an undone run goes forward again."""
    steps = undoing.again(row)
    family.forget_end(row)
    row.status = Status.ROLLING_BACK
    row.rollback = row.finished = None
    row.interruptions = row.give_backs = 0
    row.wake_at = clock.expression(connections[row._state.db].vendor)
    row.save(update_fields=["status", "rollback", "finished", "interruptions", "give_backs", "wake_at"])
    record(row, "rollback_started", by=by, via=via, reason=reason, data={"verb": "retry", "steps": steps})
    dispatch.wake(row._state.db)


def deadline(row: Any) -> Any:
    """``max_duration`` starts again now; None where the workflow has none, or is not known here."""
    cls = registry.find(row.workflow)
    duration = None if cls is None else cls.options.max_duration
    if duration is None:
        return None
    if row.hold == Hold.WINDOW:  # it begins when its turn comes: what is added then is counted from its creation
        return row.created + duration
    return clock.expression(connections[row._state.db].vendor, duration)


def queue_again(row: Any) -> None:
    """A failed instance goes on: its error is cleared, ``max_duration`` starts again, it is due now. The caller holds its lock."""
    family.forget_end(row)
    row.status = Status.QUEUED
    row.error_data = row.output = row.finished = None
    row.deadline_at = deadline(row)
    row.interruptions = row.give_backs = 0
    row.wake_at = clock.expression(connections[row._state.db].vendor)
    row.save(
        update_fields=[
            "status", "error_data", "output", "finished", "deadline_at", "interruptions", "give_backs", "wake_at",
        ]
    )  # fmt: skip


def reset_failed(row: Any) -> list[str]:
    """Make the failed records that ended the run pending again, and free what was started after them. Returns their
    labels. The caller holds the row's lock."""
    error = stored_error(row)
    records = row.steps.filter(run_number=row.run_number)
    reopen_cancelled(records)
    reopen_broken(records, error)
    labels, starts = [], []
    for scope, kind, name, count in ending(error):
        steps = records.filter(scope=scope, kind=kind, name=name, count=count)
        failed = steps.filter(status=StepStatus.FAILED).first()
        if failed is None:
            continue
        labels.append(failed.label)
        starts.append(failed.seq)
        reset(steps)
        _reopen_around(records, failed)
        if kind in WAITS:
            reset(_notifies(records, failed))
    if starts:  # once: for each of a thousand children that failed it would write thousands of rows
        records.filter(seq__gt=min(starts), freed=False).update(freed=True)
    return labels


def stored_error(row: Any) -> Any:
    """What ended a row whose big columns are not loaded."""
    return type(row)._default_manager.using(row._state.db).only("id", "error_data").get(pk=row.pk).error_data


def reopen_broken(records: Any, error: Any) -> None:
    """The groups by whose failure the run has ended go on, with those around them: where a branch itself has raised it, no
    record says so, and the code may be put right."""
    for own in broken(error):
        if records.filter(**_named(own), status=StepStatus.FAILED).exists():
            for group in (own, *groups_of(own[0])):
                records.filter(**_named(group)).update(status=StepStatus.PENDING, finished=None)


def _named(group: tuple[str, str, int]) -> dict[str, Any]:
    scope, name, count = group
    return {"scope": scope, "name": name, "count": count, "kind__in": (StepKind.GATHER, StepKind.MAP)}


def reopen_cancelled(records: Any) -> None:
    """What the end of an instance has cancelled was still open: it goes on as it was (a wait opens anew)."""
    cancelled = records.filter(status=StepStatus.CANCELLED).exclude(pk__in=_lost_races(records))
    for wait in cancelled.filter(kind__in=WAITS):
        reset(_notifies(records, wait))
    cancelled = cancelled.exclude(kind=StepKind.NOTIFY)
    # A child has ended with its parent, or is about to: it is started anew, with its whole time.
    ended = cancelled.filter(kind=StepKind.CHILD, remaining=None)
    ended.update(attempts_before_retry=F("attempts"), wake_at=None)
    # A body that had begun, and whose worker was lost with it, is not forgotten: without retries it never begins again.
    begun = Q(attempts__gt=F("attempts_before_retry"), error_data=None, wake_at=None) & ~Q(kind__in=WITHOUT_BODY)
    cancelled.filter(begun).update(status=StepStatus.STARTED, finished=None)
    cancelled.update(status=StepStatus.PENDING, finished=None)


def _lost_races(records: Any) -> list[int]:
    """What decided races have cancelled, and not the end: it stays as it is."""
    decided = set(records.filter(kind=StepKind.RACE, status__in=DECIDED).values_list("scope", "name", "count"))
    if not decided:
        return []
    found = records.filter(status=StepStatus.CANCELLED).exclude(scope="").values_list("pk", "scope")
    return [pk for pk, scope in found if decided.intersection(groups_of(scope))]


def _reopen_around(records: Any, failed: Any) -> None:
    """The groups in whose branches a record has failed go on, and the join whose child it is. A race whose winner failed, or that
    has failed itself, begins anew: all that it waits for opens again."""
    around = list(groups_of(failed.scope))
    if failed.kind == StepKind.RACE:
        around.append((failed.scope, failed.name, failed.count))
    for scope, name, count in around:
        joins = Q(kind=StepKind.CHILD, remaining__isnull=False)
        groups = records.filter(Q(kind__in=GROUPS) | joins, scope=scope, name=name, count=count)
        for race in groups.filter(kind=StepKind.RACE):
            start = f"{scope}/" if scope else ""
            start += component(name, count) + "["
            inner = records.exclude(scope="").values_list("pk", "scope")
            reset(records.filter(pk__in=[pk for pk, own in inner if own.startswith(start)]))
            reset(records.filter(pk=race.pk))
        # A join has one child more to wait for; of all others NULL stays NULL.
        groups.update(status=StepStatus.PENDING, finished=None, remaining=F("remaining") + 1)


def _notifies(records: Any, wait: Any) -> Any:
    """The record of a wait's ``notify``, whatever came of it: the wait opens anew as another pending event, and what was
    told of the first one (a link, say) is stale."""
    return records.filter(scope=wait.scope, kind=StepKind.NOTIFY, name=wait.name, count=wait.count)


def reset(steps: Any) -> None:
    """Make records pending, with a fresh budget; their attempt numbers go on rising."""
    steps.update(
        status=StepStatus.PENDING,
        error_data=None,
        raw_output=None,
        finished=None,
        wake_at=None,
        token=None,
        attempts_before_retry=F("attempts"),
    )

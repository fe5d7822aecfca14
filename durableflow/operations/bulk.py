"""Verbs over many rows (design 9; cases SEC-13, LIF-11)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import OperationalError, models

from durableflow.core.exceptions import InvalidTransition
from durableflow.core.names import check_text
from durableflow.core.outages import contended
from durableflow.core.statuses import Via
from durableflow.models import WorkflowInstance
from durableflow.models.instance_fields import Who
from durableflow.operations.chosen import choose
from durableflow.operations.deletion import Deletion
from durableflow.operations.report import BulkReport, Progress, Reason, gone


def bulk_retry(
    queryset: models.QuerySet[Any], *, by: Who, reason: str = "", via: str = Via.CODE, progress: Progress | None = None
) -> BulkReport:
    """``retry()`` for each row of ``queryset``.

    Which rows that are is settled when it begins, so that it may filter on what the verb changes. Rows are read a hundred at a
    time, in ascending order of their keys, and each verb is a transaction of its own: a row that refuses (no permission for
    ``by``, wrong status, deleted meanwhile) is left out with its reason and holds up no other. What was done stays done whatever
    happens later; inside ``atomic()`` each verb is a savepoint of it. Whether ``by`` may see the rows is the caller's business
    (``visible_to``). ``by=None`` is trusted code.

    ``progress(looked_at, total)`` is called after each hundred. Raises ValueError for a reason that cannot be stored, TypeError for
    a queryset of other rows, and what the database raises when it goes away.
    """
    return _each(queryset, lambda row, _run: row.retry(by=by, reason=reason, via=via), reason, progress)


def bulk_pause(
    queryset: models.QuerySet[Any], *, by: Who, reason: str = "", via: str = Via.CODE, progress: Progress | None = None
) -> BulkReport:
    """``pause()`` for each row; see ``bulk_retry``."""
    return _each(queryset, lambda row, _run: row.pause(by=by, reason=reason, via=via), reason, progress)


def bulk_resume(
    queryset: models.QuerySet[Any], *, by: Who, reason: str = "", via: str = Via.CODE, progress: Progress | None = None
) -> BulkReport:
    """``resume()`` for each row; see ``bulk_retry``."""
    return _each(queryset, lambda row, _run: row.resume(by=by, reason=reason, via=via), reason, progress)


def bulk_terminate(
    queryset: models.QuerySet[Any],
    *,
    by: Who,
    reason: str = "",
    via: str = Via.CODE,
    rollback: bool = False,
    progress: Progress | None = None,
) -> BulkReport:
    """``terminate(rollback=...)`` for each row; see ``bulk_retry``."""
    return _each(
        queryset, lambda row, _run: row.terminate(rollback=rollback, by=by, reason=reason, via=via), reason, progress
    )


def bulk_restart(
    queryset: models.QuerySet[Any], *, by: Who, reason: str = "", via: str = Via.CODE, progress: Progress | None = None
) -> BulkReport:
    """``restart()`` for each row, from the beginning; see ``bulk_retry``. One that somebody else restarts meanwhile is left out, also
    where a worker has taken its new run already."""
    return _each(
        queryset, lambda row, run: row.restart(expected_run=run, by=by, reason=reason, via=via), reason, progress
    )


def bulk_delete(
    queryset: models.QuerySet[Any], *, by: Who, reason: str = "", via: str = Via.CODE, progress: Progress | None = None
) -> BulkReport:
    """Delete each row with all that belongs to it; needs ``delete_workflowinstance``. See ``bulk_retry``.

    Many rows are one transaction, a hundred at most; where a project protects one of them (``on_delete=PROTECT`` or
    ``RESTRICT``), each is one of its own, and the protected ones are left out with the reason ``protected``.
    """
    check_text("reason", reason)
    chosen, report = choose(queryset), BulkReport()
    chosen.lock_limits()
    looked = 0
    for rows in chosen.chunks():
        Deletion(chosen.using, by, reason, via).delete(rows, report)
        looked += len(rows)
        if progress is not None:
            progress(looked, len(chosen))
    report.skipped.sort(key=lambda left_out: left_out[0].pk)
    return report


def _each(
    queryset: models.QuerySet[Any], verb: Callable[[Any, int], None], reason: str, progress: Progress | None
) -> BulkReport:
    """Call ``verb(row, run)`` for each; ``run``: in which the row was when it was chosen."""
    check_text("reason", reason)
    chosen, report = choose(queryset), BulkReport()
    chosen.lock_limits()
    looked = 0
    for rows in chosen.chunks():
        for row in rows:
            why = _refusal(verb, row, chosen.runs[row.pk])
            if why is None:
                report.done.append(row)
            else:
                report.skipped.append((row, why))
        looked += len(rows)
        if progress is not None:
            progress(looked, len(chosen))
    return report


def _refusal(verb: Callable[[Any, int], None], row: WorkflowInstance, run: int) -> Reason | None:
    """Do the verb; why it was refused, or None. Errors that are about more than this row are raised."""
    if row._state.adding:
        return gone(row)
    try:
        verb(row, run)
    except PermissionDenied as error:
        return Reason.of(error, "permission_denied")
    except InvalidTransition as error:
        return Reason.of(error, error.code)
    except WorkflowInstance.DoesNotExist:
        return gone(row)
    except OperationalError as error:
        if not contended(error):
            raise
        return Reason.held(row, error)
    return None


__all__ = ["bulk_delete", "bulk_pause", "bulk_restart", "bulk_resume", "bulk_retry", "bulk_terminate"]

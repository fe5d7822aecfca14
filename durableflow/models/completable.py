"""Which steps a person may complete by hand (design 9, ``complete_step``)."""

from __future__ import annotations

from typing import Any

from django.db.models import Exists

from durableflow.core.fields import Unreadable
from durableflow.core.statuses import Status, StepKind, StepStatus
from durableflow.models.instance_fields import InstanceFields


def ending(error: Any) -> list[tuple[str, str, str, int]]:
    """The identities of the records whose failures ended the run, as its stored error names them."""
    if error is None or isinstance(error, Unreadable):
        return []
    return [(str(scope), str(kind), str(name), int(count)) for scope, kind, name, count in error.get("steps", [])]


def broken(error: Any) -> list[tuple[str, str, int]]:
    """Scope, name and count of the groups whose failures ended the run, as its stored error names them."""
    if error is None or isinstance(error, Unreadable):
        return []
    return [(str(scope), str(name), int(count)) for scope, _kind, name, count in error.get("groups", [])]


def completable(row: InstanceFields) -> Any:
    """The steps of the present run that can be given a result: those that have not finished, and of a failed instance those
    whose failure ended it or that its end has cancelled. A failure that the workflow caught is decided already; a run that is
    being undone goes forward no more."""
    steps = row.steps.filter(run_number=row.run_number, kind=StepKind.DO)
    if row.status != Status.ERRORED:
        undone = row.steps.filter(run_number=row.run_number).exclude(rollback_status="")
        return steps.filter(~Exists(undone), status__in=(StepStatus.PENDING, StepStatus.STARTED))
    ended = {(scope, name, count) for scope, kind, name, count in ending(row.error_data) if kind == StepKind.DO}
    failed = steps.filter(status=StepStatus.FAILED).values_list("pk", "scope", "name", "count") if ended else ()
    pks = [pk for pk, *identity in failed if tuple(identity) in ended]
    return steps.filter(status=StepStatus.CANCELLED) | steps.filter(pk__in=pks)

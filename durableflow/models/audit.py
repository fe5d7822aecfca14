"""Writing history for a verb, under the lock that the verb holds (design 2, 9)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections

from durableflow.core import clock, notices
from durableflow.core.exceptions import InvalidTransition
from durableflow.core.names import check_text
from durableflow.core.statuses import Status
from durableflow.core.transactions import alias_of, write_transaction
from durableflow.models.instance_fields import InstanceFields, Who
from durableflow.models.limits import lock_slots_of
from durableflow.models.permissions import OPERATE, name_of, possible, require, row_of

CAUSES = {
    "retry": "only a failed instance can be retried",
    "resume": "only a paused instance can be resumed",
    "pause": "only what is queued, waits or runs can be paused",
    "restart": "what is queued begins anyway, and what is rolling back ends by itself first",
    "complete_step": "only a step of an instance that waits, is paused or has failed can be given a result",
    "terminate": "it has already ended, or is rolling back and ends by itself",
    "send_event": "nobody can read an event there",
}

UNDONE = "all that it did has been undone, so that nothing is left to go on from: start a new instance in its place"

# They may take an instance from whoever executes it: the limit is locked before the instance (design 4, "Lock order").
FREES_SLOT = frozenset({"terminate", "restart"})


def refuse(instance: InstanceFields, verb: str) -> InvalidTransition:
    """The error for a verb that the status does not allow."""
    label = Status(instance.status).value
    cause = CAUSES.get(verb, "see its status")
    if verb in ("retry", "complete_step") and label in (Status.ERRORED, Status.TERMINATED) and instance.rollback:
        cause = UNDONE
    return InvalidTransition(f"{verb} is not possible: {instance.label} is {label}; {cause}.", status=label)


def blocked_in_rollback(instance: InstanceFields) -> InvalidTransition:
    """The error for ``terminate(rollback=True)`` of an instance that is blocked in the middle of its rollback."""
    return InvalidTransition(
        f"terminate with rollback is not possible: {instance.label} is {Status(instance.status).value} in the middle of its "
        "rollback. resume() goes on with it; terminate() without rollback gives it up.",
        status=Status(instance.status).value,
    )


@contextmanager
def verb(instance: InstanceFields, name: str, by: Who, permission: str = OPERATE) -> Iterator[Any]:
    """One verb is one transaction: lock, check right, check state; the body changes the locked row; then the caller's
    object is refreshed.

    Yields the locked row. Raises DoesNotExist, PermissionDenied, InvalidTransition; then nothing has changed.
    """
    using = alias_of(instance)
    manager: Any = type(instance)._default_manager
    with write_transaction(using):
        if name in FREES_SLOT:
            lock_slots_of(manager.using(using).filter(pk=instance.pk))
        row = manager.using(using).select_for_update(no_key=True).light().get(pk=instance.pk)
        require(by, permission, row, f"{name} {row.label}")
        if not possible(name, row):
            raise refuse(row, name)
        yield row
    fields = [
        field.attname for field in instance._meta.concrete_fields if field.attname not in instance.get_deferred_fields()
    ]
    instance.refresh_from_db(using=using, fields=fields)


def record(
    row: InstanceFields,
    type: str,
    *,
    by: Who = None,
    via: str,
    reason: str = "",
    step: str = "",
    kind: str = "",
    data: Any = None,
) -> None:
    """Append one history entry. The caller holds the instance's row lock, so ids commit in order."""
    check_text("reason", reason)
    using = row._state.db or "default"
    vendor = connections[using].vendor
    row.history.create(
        run_number=row.run_number,
        type=type,
        kind=kind,
        step=step,
        data=data,
        actor=row_of(by),
        actor_name=name_of(by),
        via=via,
        reason=reason,
        at=clock.expression(vendor),
    )
    notices.give_all(using, [row])

"""Delivery: making the instances of sent events due (design 4, "Senders never lock the instance").

Senders only INSERT. Each look delivers first: it locks the instances of undelivered events in ascending id, skipping
those that somebody holds, makes the waiting ones due, tells the running ones through ``woken``, and writes the audit.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from django.contrib.auth import get_user_model
from django.db import InterfaceError, OperationalError, connections, transaction

from durableflow.core import clock
from durableflow.core.statuses import SentKind, Status
from durableflow.core.transactions import write_transaction
from durableflow.engine.sql import ASYNC_COMMIT, SENT, is_postgres, run
from durableflow.models import HistoryEntry, SentEvent, WorkflowInstance

logger = logging.getLogger("durableflow.engine")
BATCH: Final = 500
WINDOW: Final = 5000
TYPES: Final = {SentKind.EVENT: "event_received", SentKind.DECISION: "decided", SentKind.CHILD: "child_finished"}


def _undelivered(using: str) -> str:
    """The condition of the partial index, in its own words: SQLite takes them literally. Django writes it as
    ``NOT delivered`` before 6.1 and as ``delivered = 0`` from then on."""
    return "NOT delivered" if is_postgres(using) else "NOT delivered AND delivered = 0"


def deliver(using: str) -> bool:
    """Deliver what was sent, in short transactions of its own; True if an instance was held by somebody, so that a look
    in 20 ms is due.

    Reads first: nothing is locked or opened while nothing is there.
    """
    # Instances, not events: many events of one instance that somebody holds must not hide those of the others.
    rows = run(
        using,
        f"""SELECT DISTINCT instance_id FROM (
                SELECT instance_id FROM {SENT} WHERE {_undelivered(using)} ORDER BY id LIMIT {WINDOW}
            ) AS oldest LIMIT {BATCH}""",
    )
    if not rows:
        return False
    wanted = {pk for (pk,) in rows}
    try:
        return _deliver_in_transaction(using, wanted)
    except (OperationalError, InterfaceError):
        raise  # the database is away or busy: the next look
    except Exception:
        return _deliver_one_by_one(using, wanted)


def _deliver_one_by_one(using: str, wanted: set[int]) -> bool:
    """One instance's trouble must not keep the others from being delivered (case CON-07)."""
    again = False
    for pk in sorted(wanted):
        try:
            again |= _deliver_in_transaction(using, {pk})
        except (OperationalError, InterfaceError):
            raise
        except Exception:
            logger.exception("What was sent to instance %d cannot be delivered", pk, extra={"instance": pk})
    return again


def _deliver_in_transaction(using: str, wanted: set[int]) -> bool:
    with write_transaction(using):
        if is_postgres(using):
            run(using, f"SELECT {ASYNC_COMMIT}")
        return _deliver_to(using, wanted)


def _deliver_to(using: str, wanted: set[int]) -> bool:
    locked = {
        row.pk: row
        for row in WorkflowInstance.objects.using(using)
        .select_for_update(skip_locked=is_postgres(using), no_key=True)
        .only("id", "status", "run_number", "lease_token")
        .filter(pk__in=wanted)
        .order_by("pk")
    }
    events = list(
        SentEvent.objects.using(using)
        .filter(instance__in=locked, delivered=False)
        .select_related("pending_event")
        .defer("payload")
        .order_by("id")[:BATCH]
    )
    events, held_up = _without_held_senders(using, events)
    for event in events:
        _deliver_one(using, locked[event.instance_id], event)
    touched = [locked[pk] for pk in {event.instance_id for event in events}]
    targets: Any = WorkflowInstance.objects.using(using)
    if waiting := [row.pk for row in touched if row.status == Status.WAITING]:
        targets.filter(pk__in=waiting).update(wake_at=clock.expression(connections[using].vendor))
    if running := [row.pk for row in touched if row.lease_token is not None]:
        targets.filter(pk__in=running).update(woken=True)
    missing = wanted - locked.keys()
    if missing:
        existing = set(WorkflowInstance.objects.using(using).filter(pk__in=missing).values_list("pk", flat=True))
        SentEvent.objects.using(using).filter(instance__in=missing - existing, delivered=False).delete()
        return bool(existing) or held_up
    return held_up


def _without_held_senders(using: str, events: list[SentEvent]) -> tuple[list[SentEvent], bool]:
    """The events whose history can be written now, and whether there are others.

    The history refers to the sender. A transaction that holds that user FOR UPDATE (an account's balance, say) would
    make the reference wait, and with it every look of every process.
    """
    senders = {event.sent_by_id for event in events} - {None}
    if not senders or not is_postgres(using):
        return events, False
    user = get_user_model()._meta
    table, key = (connections[using].ops.quote_name(name) for name in (user.db_table, str(user.pk.column)))
    marks = ", ".join(["%s"] * len(senders))
    sql = f"SELECT {key} FROM {table} WHERE {key} IN ({marks}) FOR KEY SHARE SKIP LOCKED"
    free = {None, *(pk for (pk,) in run(using, sql, list(senders)))}
    return [event for event in events if event.sent_by_id in free], not senders <= free


def _deliver_one(using: str, row: WorkflowInstance, event: SentEvent) -> None:
    event.delivered = True
    fields = ["delivered"]
    if event.run_number != row.run_number and not event.consumed_by and _moves(using, row, event):
        # It was sent to a run that has been restarted since; nobody has seen it.
        event.run_number = row.run_number
        fields.append("run_number")
    event.save(using=using, update_fields=fields)
    HistoryEntry.objects.using(using).create(
        instance_id=row.pk,
        run_number=row.run_number,
        type=TYPES[SentKind(event.kind)],
        kind=event.pending_event.kind if event.pending_event else "",
        step=f"{event.pending_event.name}-{event.pending_event.count}" if event.pending_event else "",
        data={"event": event.pk, "type": event.type}
        if event.kind == SentKind.EVENT
        else {"pending_event": event.pending_event_id},
        actor_id=event.sent_by_id,
        actor_name=event.sent_by_name,
        via=event.via or "code",
        reason=event.reason,
        at=clock.expression(connections[using].vendor),
    )


def _moves(using: str, row: WorkflowInstance, event: SentEvent) -> bool:
    """Whether the event's dedupe key is still free in the current run."""
    taken = SentEvent.objects.using(using).filter(
        instance=row.pk, run_number=row.run_number, dedupe_key=event.dedupe_key
    )
    return not event.dedupe_key or not taken.exists()


def deliver_own(using: str, pk: int) -> None:
    """Deliver what was sent to one instance whose row the caller has locked, so that the history shows it before it
    is consumed."""
    sql = f"SELECT 1 FROM {SENT} WHERE instance_id = %s AND NOT delivered LIMIT 1"
    if not run(using, sql, [pk]):
        return
    with transaction.atomic(using=using):
        row = WorkflowInstance.objects.using(using).only("id", "status", "run_number", "lease_token").get(pk=pk)
        events = list(
            SentEvent.objects.using(using).filter(instance=pk, delivered=False).defer("payload").order_by("id")[:BATCH]
        )
        for event in _without_held_senders(using, events)[0]:
            _deliver_one(using, row, event)

"""Delivery: making the instances of sent events due (design 4, "Senders never lock the instance").

Senders only INSERT. Each look delivers first: it locks the instances of undelivered events in ascending id, skipping
those that somebody holds, makes the waiting ones due, tells the running ones through ``woken``, and writes the audit.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Final, NamedTuple

from django.db import InterfaceError, OperationalError, connections, transaction

from durableflow.core import notices
from durableflow.core.transactions import write_transaction
from durableflow.engine import followed, inbox
from durableflow.engine.lease import Lease
from durableflow.engine.orphans import end_orphans
from durableflow.engine.sql import INSTANCE, SENT, any_of, is_postgres, run

logger = logging.getLogger("durableflow.engine")
BATCH: Final = 500

# Where this process's next look begins, by database: after a full batch behind it, so that as many instances as fill
# one, held for long, hide nobody.
_after: dict[str, int] = {}


class Delivery(NamedTuple):
    """What became of what was sent. ``again``: an instance was held by somebody, so that a look in 20 ms is due. ``due``: an
    instance that has just been made due, where that is known."""

    again: bool
    due: int | None = None


def deliver(using: str) -> bool:
    """Deliver what was sent, in short transactions of its own; True if a look in 20 ms is due (``Delivery.again``)."""
    return delivery(using).again


def delivery(using: str) -> Delivery:
    """The same, and more of what came of it.

    Reads first: nothing is locked or opened while nothing is there.
    """
    wanted = _look(using)
    if not wanted:
        return Delivery(again=False)
    try:
        if len(wanted) < BATCH and is_postgres(using) and not connections[using].in_atomic_block:
            return _deliver_at_once(using)
        return Delivery(_deliver_in_transaction(using, wanted))
    except (OperationalError, InterfaceError):
        raise  # the database is away or busy: the next look
    except Exception:
        return Delivery(_deliver_one_by_one(using, wanted))


def _look(using: str) -> list[int]:
    """Instances with undelivered events. Instances, not events: many events of one that somebody holds must not hide
    those of the others."""
    after = _after.pop(using, 0)
    found = inbox.waiting_instances(using, after, BATCH)
    if len(found) == BATCH:
        _after[using] = found[-1]
    elif after:
        found += [pk for pk in inbox.waiting_instances(using, 0, BATCH - len(found)) if pk <= after]
    return found


def _deliver_at_once(using: str) -> Delivery:
    """The usual case: all that is there, in one statement. What that leaves is looked at more closely."""
    found, locked, left, due, marked = inbox.deliver_at_once(using, BATCH)
    for pk in marked:
        notices.give(using, pk)
    if left:
        return Delivery(_deliver_in_transaction(using, found), due)
    missing = set(found).difference(locked)
    return Delivery(bool(missing) and _drop_orphans(using, missing), due)


def _deliver_one_by_one(using: str, wanted: list[int]) -> bool:
    """One instance's trouble must not keep the others from being delivered (case CON-07)."""
    again = False
    for pk in wanted:
        try:
            again |= _deliver_in_transaction(using, [pk])
        except (OperationalError, InterfaceError):
            raise
        except Exception:
            logger.exception("What was sent to instance %d cannot be delivered", pk, extra={"instance": pk})
    return again


def _deliver_in_transaction(using: str, wanted: list[int]) -> bool:
    with write_transaction(using):
        locked = inbox.lock(using, wanted)
        count, held_up = inbox.hand_over(using, locked, BATCH, wake=True) if locked else (0, False)
        if count:
            followed.tell(using, locked)
        missing = set(wanted).difference(locked)
        again = bool(missing and _drop_orphans(using, missing)) or held_up or count >= BATCH
    return end_orphans(using, wanted) or again


def _drop_orphans(using: str, missing: set[int]) -> bool:
    """What was sent to instances that are no more is dropped; True if others of them are only held."""
    among, params = any_of(using, "id", missing)
    existing = {pk for (pk,) in run(using, f"SELECT id FROM {INSTANCE} WHERE {among}", params)}
    if gone := missing - existing:
        among, params = any_of(using, "instance_id", gone)
        run(using, f"DELETE FROM {SENT} WHERE {among} AND {inbox.undelivered(using)}", params)
    return bool(existing)


def deliver_own(lease: Lease) -> None:
    """Deliver what was sent to an instance whose row the caller has locked as the lease's holder, so that the history shows it
    before it is consumed. Nothing is woken by that: ``lease.arrived`` tells whoever waits in the same execution."""
    if not inbox.hand_over(lease.using, [lease.pk], BATCH, wake=False)[0]:
        return
    if connections[lease.using].savepoint_ids:  # a test's transaction, which is never committed
        _arrived(lease)
    else:  # not before: who looked in between would find nothing, and wait for ever
        transaction.on_commit(partial(_arrived, lease), using=lease.using)


def _arrived(lease: Lease) -> None:
    lease.arrived += 1

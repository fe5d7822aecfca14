"""``atomic=True``: body and checkpoint in one transaction (design 6)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from django.db import Error, InterfaceError, OperationalError, connections

from durableflow.core import atomicity, clock
from durableflow.core.conf import get_settings
from durableflow.core.transactions import write_transaction
from durableflow.engine.journal import COMPLETE, Record
from durableflow.engine.lease import Lease
from durableflow.engine.sql import INSTANCE, STEP, is_postgres, run


def run_atomically(lease: Lease, run_number: int, attempt: Callable[[], str], record: Record) -> str:
    """Run ``attempt`` (body, then fence and checkpoint) in one transaction and return the output's text.

    What the body wrote in this database and the checkpoint commit together, or neither. Where the answer to the COMMIT
    was lost, the record tells. Raises the body's error after the rollback.
    """
    status = record.status
    try:
        with write_transaction(lease.using):
            with atomicity.baseline():
                text = attempt()
            _renew(lease)
        return text
    except (OperationalError, InterfaceError):
        connections[lease.using].close_if_unusable_or_obsolete()
        stored = _committed(lease, run_number, record)
        if stored is not None:
            return stored
        record.status = status
        raise
    except BaseException:
        record.status = status if record.status == COMPLETE else record.status
        if atomicity.opened():
            atomicity.abandon_opened()
        raise


def _renew(lease: Lease) -> None:
    """The renewal could not write while this transaction was open (on SQLite), so the lease is renewed with it."""
    length = float(get_settings().LEASE)
    if is_postgres(lease.using):
        end = f"{clock.postgres('clock')} + make_interval(secs => %s)"
        run(
            lease.using,
            f"UPDATE {INSTANCE} SET wake_at = {end} WHERE id = %s AND lease_token = %s",
            [length, lease.pk, lease.token],
        )
        return
    end = clock.sqlite_text(clock.host_now() + timedelta(seconds=length))
    run(
        lease.using,
        f"UPDATE {INSTANCE} SET wake_at = %s WHERE id = %s AND lease_token = %s",
        [end, lease.pk, lease.token],
    )


def _committed(lease: Lease, run_number: int, record: Record) -> str | None:
    if connections[lease.using].in_atomic_block:
        return None
    try:
        rows = run(
            lease.using,
            f"""SELECT output FROM {STEP} WHERE instance_id = %s AND run_number = %s AND scope = %s AND kind = %s AND name = %s
                AND count = %s AND status = 'complete' AND token = %s""",
            [lease.pk, run_number, *record.identity, lease.token],
        )
    except Error:
        return None
    return str(rows[0][0]) if rows else None

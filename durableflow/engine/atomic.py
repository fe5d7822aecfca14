"""``atomic=True``: body and checkpoint in one transaction (design 6)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import timedelta

from django.db import Error, InterfaceError, OperationalError, connections

from durableflow.core import atomicity, clock
from durableflow.core.conf import get_settings
from durableflow.core.outages import passes
from durableflow.core.transactions import write_transaction
from durableflow.engine.fence import fenced
from durableflow.engine.journal import COMPLETE, Record
from durableflow.engine.lease import Lease, elapsed
from durableflow.engine.patience import FIRST_PAUSE, LAST_PAUSE, patient
from durableflow.engine.sql import INSTANCE, STEP, is_postgres, run
from durableflow.engine.unwind import WriteFailed

logger = logging.getLogger("durableflow.engine")


class NotWritten(Exception):
    """The database failed in a statement of ours, after the body had returned; its cause says how."""


class _Failed(Exception):
    """Carries what the body raised, whatever it is, apart from what the transaction around it raises."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def run_atomically(
    lease: Lease, run_number: int, attempt: Callable[[], str], record: Record, *, again: bool = True
) -> str:
    """Run ``attempt`` (body, then fence and checkpoint) in one transaction and return the output's text.

    What the body wrote in this database and the checkpoint commit together, or neither. Where the answer to the COMMIT
    was lost, the record tells. Where the database failed in a statement of ours, everything is rolled back and made
    ``again`` until the lease is lost: that is no failed attempt (design 4). Raises the body's error after the rollback,
    and WriteFailed where making it again would not help.
    """
    status, pause = record.status, FIRST_PAUSE
    while True:
        try:
            return _transaction(lease, attempt)
        except _Failed as failed:
            record.status = status if record.status == COMPLETE else record.status
            if atomicity.opened():
                atomicity.abandon_opened()
            error, again = failed.error, False
        except (NotWritten, OperationalError, InterfaceError) as raised:
            nested = connections[lease.using].in_atomic_block
            if not (nested or isinstance(raised, NotWritten)):  # it may have been the COMMIT
                stored = _committed(lease, run_number, record)
                if stored is not None:
                    return stored
            record.status = status
            error = raised.__cause__ if isinstance(raised, NotWritten) and raised.__cause__ else raised
            if nested:
                again = False
            elif isinstance(error, Error) and not passes(error):
                raise WriteFailed(error) from raised
        except BaseException:  # at the COMMIT: a deferred constraint, say
            record.status = status
            raise
        if not again:
            raise error  # outside of the except blocks: it keeps its own context
        logger.warning("%s: an atomic step is run again: %s", lease.label, error, extra={"instance": lease.pk})
        time.sleep(pause)
        pause = min(2 * pause, LAST_PAUSE)
        lease.require()


def _transaction(lease: Lease, attempt: Callable[[], str]) -> str:
    with write_transaction(lease.using):
        with atomicity.baseline():
            try:
                text = attempt()
            except NotWritten:
                raise
            except BaseException as error:
                raise _Failed(error) from error
        try:
            renewed = _renew(lease)
        except (OperationalError, InterfaceError) as error:
            raise NotWritten from error
    lease.renewed = renewed
    return text


def _renew(lease: Lease) -> float:
    """The renewal could not write while this transaction was open (on SQLite), so the lease is renewed with it."""
    before = elapsed()
    length = float(get_settings().LEASE)
    if is_postgres(lease.using):
        end = f"{clock.postgres('clock')} + make_interval(secs => %s)"
        parameter: float | str = length
    else:
        end, parameter = "%s", clock.sqlite_text(clock.host_now() + timedelta(seconds=length))
    run(
        lease.using,
        f"UPDATE {INSTANCE} SET wake_at = {end} WHERE id = %s AND lease_token = %s",
        [parameter, lease.pk, lease.token],
    )
    return before


@patient
def _committed(lease: Lease, run_number: int, record: Record) -> str | None:
    """The stored output, if the transaction whose answer was lost has committed.

    It waits until the database answers, and under the fence: the COMMIT may still be on its way, and that transaction holds
    the row until it is done. Who went on without knowing would commit twice what the body has written.
    """
    with fenced(lease):
        rows = run(
            lease.using,
            f"""SELECT output FROM {STEP} WHERE instance_id = %s AND run_number = %s AND scope = %s AND kind = %s AND name = %s
                AND count = %s AND status = 'complete' AND token = %s""",
            [lease.pk, run_number, *record.identity, lease.token],
        )
    return str(rows[0][0]) if rows else None

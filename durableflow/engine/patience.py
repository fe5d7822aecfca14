"""Infrastructure errors in engine transactions are tried again until the lease is lost; they never count as attempts
(design 4)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Concatenate, Final, ParamSpec, TypeVar

from django.db import DataError, Error, NotSupportedError, connections

from durableflow.core import notices
from durableflow.core.outages import locked, passes
from durableflow.engine.fence import waits_short
from durableflow.engine.lease import Lease
from durableflow.engine.unwind import LeaseLost, WriteFailed

logger = logging.getLogger("durableflow.engine")
P = ParamSpec("P")
R = TypeVar("R")
_impatient: ContextVar[bool] = ContextVar("durableflow_impatient", default=False)
FIRST_PAUSE: Final = 0.05
LAST_PAUSE: Final = 1.0


def patient(write: Callable[Concatenate[Lease, P], R]) -> Callable[Concatenate[Lease, P], R]:
    """Repeat a write of a lease's holder while the database is away, locked or restarting.

    Raises LeaseLost once the lease is over, and WriteFailed where waiting would not help. Inside an open transaction
    (an atomic step, a test) the error goes through: that transaction is lost as a whole. Whoever follows the instance gets a
    notice of the commit.
    """

    def repeated(lease: Lease, /, *args: P.args, **kwargs: P.kwargs) -> R:
        pause = FIRST_PAUSE
        while True:
            try:
                # Not "is it young enough to begin something": nobody else may have taken the instance meanwhile (the database
                # was away for all, or somebody holds the row), and if one has, the fence tells.
                if lease.lost:
                    raise LeaseLost(lease.label)
                written = write(lease, *args, **kwargs)
                if lease.followed:
                    notices.give(lease.using, lease.pk)
                return written
            except LeaseLost:
                lease.lost = True  # whoever swallows this gets no further than to the next durable call
                raise
            except DataError:
                raise  # a value that the database does not take: the fault of whoever gave it
            except Error as error:
                connection = connections[lease.using]
                if connection.in_atomic_block or _impatient.get() or (waits_short() and locked(error)):
                    raise
                if not (passes(error) or _stale_plan(error)):
                    raise WriteFailed(error) from error
                logger.log(
                    logging.WARNING if pause == FIRST_PAUSE else logging.DEBUG,  # once for a whole outage
                    "%s: a write failed and is tried again: %s",
                    lease.label,
                    error,
                    extra={"instance": lease.pk},
                )
                if _stale_plan(error):
                    connection.close()
                connection.close_if_unusable_or_obsolete()
            time.sleep(pause)
            pause = min(2 * pause, LAST_PAUSE)

    repeated.__name__ = getattr(write, "__name__", "repeated")
    repeated.__doc__ = write.__doc__
    return repeated


def impatient() -> None:
    """From here on this thread, which has more than one thing to do, tries each write once and gets the error."""
    _impatient.set(True)


def _stale_plan(error: Error) -> bool:
    """'Cached plan must not change result type': a migration ran under the connection's prepared statements; a new
    connection has none."""
    return isinstance(error, NotSupportedError) and "cached plan" in str(error)

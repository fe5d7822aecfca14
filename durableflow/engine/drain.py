"""The drain: run what is due, in the caller's process (api.md, ``drain``; the seam for schedulers other than
django-q2)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from django.db import Error

from durableflow.core import atomicity
from durableflow.core.conf import get_settings
from durableflow.core.outages import passes
from durableflow.engine import chores, heartbeat, replacement, schedules, shutdown
from durableflow.engine.claims import look
from durableflow.engine.delivery import deliver
from durableflow.engine.executor import execute
from durableflow.engine.flushing import flushed_later
from durableflow.engine.isolation import room
from durableflow.engine.lease import Claim
from durableflow.engine.pool import LONGEST, Pool, pool
from durableflow.engine.timeouts import fresh
from durableflow.engine.watcher import held
from durableflow.models.creation import database

MOST_FAILURES: Final = 5
_failures: list[str] = []
SETTLED_EVERY: Final = 0.02  # seconds
DELIVER_EVERY: Final = 0.01  # seconds; a busy drain need not look at the inbox before each claim
DELIVER_SELDOM: Final = 0.5  # seconds; where somebody else does, who hears of each event


def drain(seconds: float = 1.0) -> int:
    """Deliver what was sent, fire schedules, and execute due instances until nothing is due or ``seconds`` have passed; returns the
    number of executions.

    An execution that has begun is never cut short, but by Ctrl-C: then its instance is queued again. With THREADS above 1
    helper threads execute beside the calling one; what they have begun may go on after the return. Raises RuntimeError
    inside ``atomic()``: a claim has to be committed before it runs.
    """
    return drain_for(seconds)


def drain_for(seconds: float, *, wanted: Callable[[], bool] | None = None, delivered: bool = False) -> int:
    """``drain()`` for callers that know more. ``wanted``: asked every 20 ms by one helper that has nothing to do while
    the calling thread is in a long body: True if work is due. ``delivered``: who asks for the drain goes on to deliver what
    was sent and to fire schedules, so that the drain looks for due work first, seldom into the inbox, and not at schedules."""
    if where := atomicity.opened():
        raise RuntimeError(
            f"drain() inside {where} is refused: a claim has to be committed before anything runs. Call it after the block."
        )
    with shutdown.heeded():
        helpers = pool() if get_settings().THREADS > 1 else None
        try:
            executions = _drain(database(), min(seconds, LONGEST), helpers, wanted, delivered)
            _failures.clear()
            return executions
        except Exception as error:
            _count_failure(error)
            if isinstance(error, Error):
                fresh(database())
            raise
        except KeyboardInterrupt:
            if helpers is not None and shutdown.requested():
                helpers.wait_until_idle(get_settings().SHUTDOWN_GRACE)  # they see the sign as long as it stands
            raise


def settle() -> None:
    """Wait for all that drains of this process have begun: bodies in helper threads, and endings that have met a locked row
    or a database that is away. Who exits without that leaves them to a takeover when their leases are over."""
    while held() or (get_settings().THREADS > 1 and not pool().idle()):
        time.sleep(SETTLED_EVERY)


def _count_failure(error: Exception) -> None:
    """A process in which every drain fails is of no use, and each claim that it makes costs an instance an interruption."""
    if isinstance(error, Error) and passes(error):
        return  # the database is away: for everybody
    _failures.append(repr(error))
    if len(_failures) >= MOST_FAILURES and replacement.may_exit():
        replacement.want("drain", f"{len(_failures)} drains in a row have failed, at last by {error!r}")


def _drain(using: str, seconds: float, helpers: Pool | None, wanted: Callable[[], bool] | None, delivered: bool) -> int:
    began = time.monotonic()
    end = began + seconds
    executions, delivered_at, again = 0, began if delivered else float("-inf"), False
    with flushed_later(using) if helpers is None else helpers.draining(using, end, wanted):
        while not (replacement.wanted() or room().occupied()):
            now = time.monotonic()
            if not delivered:
                schedules.look(using)
            if now - delivered_at >= (DELIVER_SELDOM if delivered else DELIVER_EVERY):
                again, delivered_at = deliver(using), now
            claimed, count, more = _look(using, helpers)
            heartbeat.sign(using, workers=get_settings().THREADS, busy=held() + bool(claimed), claimed=bool(claimed))
            if claimed is not None:
                executions += count
                if helpers is not None:
                    helpers.scout()
                execute(claimed)
                chores.do_one(using, idle=False)
            elif not more:
                if delivered_at == now and not again and not chores.do_one(using, idle=True):
                    break
                delivered_at = float("-inf") if not again else delivered_at
                if again:
                    time.sleep(DELIVER_EVERY)  # somebody held an instance at its delivery
            if shutdown.requested():
                raise KeyboardInterrupt  # a body had swallowed it
            if time.monotonic() >= end:
                break
    return executions


def _look(using: str, helpers: Pool | None) -> tuple[Claim | None, int, bool]:
    """Claim what there are threads for: the calling thread's claim, how many there were, whether to look again at once."""
    if helpers is not None:
        return helpers.look(using)
    found = look(using)
    return (found.taken[0] if found.taken else None), len(found.taken), found.again

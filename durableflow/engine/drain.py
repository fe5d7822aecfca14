"""The drain: run what is due, in the caller's process (api.md, ``drain``; the seam for schedulers other than
django-q2)."""

from __future__ import annotations

import time
from typing import Final

from durableflow.core import atomicity
from durableflow.engine import shutdown
from durableflow.engine.claims import claim
from durableflow.engine.delivery import deliver
from durableflow.engine.executor import execute
from durableflow.models.creation import database

DELIVER_EVERY: Final = 0.01  # seconds; a busy drain need not look at the inbox before each claim


def drain(seconds: float = 1.0) -> int:
    """Deliver what was sent and execute due instances until nothing is due or ``seconds`` have passed; returns the
    number of executions.

    An execution that has begun is never cut short, but by Ctrl-C: then its instance is queued again. Raises
    RuntimeError inside ``atomic()``: a claim has to be committed before it runs.
    """
    if where := atomicity.opened():
        raise RuntimeError(
            f"drain() inside {where} is refused: a claim has to be committed before anything runs. Call it after the block."
        )
    with shutdown.heeded():
        return _drain(database(), seconds)


def _drain(using: str, seconds: float) -> int:
    end = time.monotonic() + seconds
    executions, delivered_at, again = 0, float("-inf"), False
    while True:
        now = time.monotonic()
        if now - delivered_at >= DELIVER_EVERY:
            again, delivered_at = deliver(using), now
        claims = claim(using)
        if not claims:
            if delivered_at == now and not again:
                return executions
            delivered_at = float("-inf") if not again else delivered_at
            if again:
                time.sleep(DELIVER_EVERY)  # somebody held an instance at its delivery
        for claimed in claims:
            execute(claimed)
            executions += 1
        if shutdown.requested():
            raise KeyboardInterrupt  # a body had swallowed it
        if time.monotonic() >= end:
            return executions

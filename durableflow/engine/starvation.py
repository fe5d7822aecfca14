"""A process in which the engine itself has no memory left (case OPS-07)."""

from __future__ import annotations

import logging

from durableflow.engine import replacement, takeover
from durableflow.engine.lease import Claim
from durableflow.engine.timeouts import clean_connections

logger = logging.getLogger("durableflow.engine")


def leave(claim: Claim, error: MemoryError) -> None:
    """Let the instance be taken over at once, as if its process had died: most likely the body that ran just before has taken
    the memory, so it loses an attempt, no more and no less; and the process is replaced. Never raises an Exception: where
    that fails for want of memory too, the lease will expire."""
    try:
        if replacement.may_exit():
            replacement.want("memory", f"it ran out of memory while it executed {claim.label}.")
        logger.error(
            "%s: the engine ran out of memory", claim.label, extra={"instance": claim.lease.pk}, exc_info=error
        )
        clean_connections()  # it may have hit in the middle of a query
        claim.lease.lost = True  # it is renewed no more
        takeover.let_expire(claim.lease)
    except Exception:
        logger.exception("%s could not be let go; its lease will expire", claim.label)

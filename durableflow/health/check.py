"""Asking and judging."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import datetime, timedelta

from django.db import Error, connections, transaction

from durableflow.core.statuses import HeartbeatKind
from durableflow.health import probes, rules
from durableflow.health.state import CLUSTER_TERMS, DRAIN_TERMS, Health, Level, Process, Reason, Terms
from durableflow.models import Heartbeat
from durableflow.models.creation import database

logger = logging.getLogger("durableflow.health")


def check(using: str | None = None) -> Health:
    """Look at everything. ``using``: the database of the tables, by default where the router puts them.

    Never raises for the database: one that is away, or has no tables, is a finding of its own (``database``). Inside
    ``atomic()`` it leaves the caller's transaction usable.
    """
    return _checked(using or database(), whole=True)


def glance(using: str | None = None) -> Health:
    """The same for a page's banner: only whether due work finds a worker; two short queries."""
    return _checked(using or database(), whole=False)


def _checked(using: str, *, whole: bool) -> Health:
    try:
        connection = connections[using]
        if connection.in_atomic_block or not connection.get_autocommit():
            # A failed statement breaks an open transaction; a savepoint keeps the break inside.
            with transaction.atomic(using=using):
                return _look(using, whole=whole)
        try:
            return _look(using, whole=whole)
        except Error:
            # Outside of requests nobody else drops a connection that broke while it was not used.
            if connection.connection is None or connection.is_usable():
                raise
            connection.close()
            return _look(using, whole=whole)
    except Error as error:
        logger.info("The health of workflows cannot be told: %s", error)
        return Health(reasons=(Reason(Level.CRITICAL, "database", rules.database_text(using, error)),))


def _look(using: str, *, whole: bool) -> Health:
    now, rows = probes.heartbeats(using)
    terms = terms_for(rows)
    processes = tuple(_process(row, now) for row in rows)
    claims = [process.last_claim for process in processes if process.last_claim is not None]
    found = Health(
        terms=terms,
        processes=processes,
        oldest_due=probes.oldest_due(using, now),
        last_seen=min((process.seen for process in processes), default=None),
        last_claim=min(claims, default=None),
    )
    if whole:
        found = _whole(using, now, found)
    return replace(found, reasons=tuple(rules.reasons(found)))


def _whole(using: str, now: datetime, found: Health) -> Health:
    due, late = found.oldest_due, found.terms.warning
    blocked, holds = probes.counts(using)
    return replace(
        found,
        overdue=probes.overdue(using, now - timedelta(seconds=late)) if due is not None and due.seconds > late else 0,
        undelivered=probes.undelivered(using, now),
        blocked=blocked,
        blocked_latest=probes.blocked_latest(using) if blocked else (),
        holds=holds,
    )


def terms_for(rows: list[Heartbeat]) -> Terms:
    """A project whose processes are all drains of some scheduler is judged by what a scheduler can do; one that has a
    cluster, or had one that never said it would end, by what a cluster does."""
    if rows and all(row.kind == HeartbeatKind.DRAIN or row.stopping for row in rows):
        return DRAIN_TERMS if any(row.kind == HeartbeatKind.DRAIN for row in rows) else CLUSTER_TERMS
    return CLUSTER_TERMS


def _process(row: Heartbeat, now: datetime) -> Process:
    # A word that only newer code knows is some scheduler's: what is certain is that it is no cluster.
    kind = HeartbeatKind(row.kind) if row.kind in HeartbeatKind.values else HeartbeatKind.DRAIN
    terms = CLUSTER_TERMS if kind is HeartbeatKind.CLUSTER else DRAIN_TERMS
    seen = _ago(row.seen, now)
    # A sign from the future was given before the clock was set back: whoever lives has soon given another.
    fresh = abs((now - row.seen).total_seconds()) <= terms.live
    return Process(
        kind=kind,
        host=row.host,
        pid=row.pid,
        workers=row.workers,
        busy=row.busy,
        version=row.version,
        stopping=row.stopping,
        fresh=fresh,
        live=fresh and not row.stopping,
        started=_ago(row.started, now),
        seen=seen,
        last_claim=None if row.last_claim is None else _ago(row.last_claim, now),
    )


def _ago(moment: datetime, now: datetime) -> float:
    return max((now - moment).total_seconds(), 0.0)

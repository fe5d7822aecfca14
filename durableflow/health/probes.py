"""The queries of a check: each reads the head of an index, so that a million rows cost what a thousand do."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from django.db import connections

from durableflow.core import clock
from durableflow.core.conf import get_settings
from durableflow.core.statuses import Hold
from durableflow.engine.sql import INSTANCE, SENT, Rows, is_postgres, moment, run
from durableflow.health.state import MOST_COUNTED, MOST_LISTED, Blocked, Due
from durableflow.models import Heartbeat, WorkflowInstance
from durableflow.models.instance_fields import CLAIM_CLASSES
from durableflow.timeline import Veil

WINDOW: Final = 1000
"""So many due rows of a class are looked at for one that is not on hold."""
MOST_PROCESSES: Final = 1000


def heartbeats(using: str) -> tuple[datetime, list[Heartbeat]]:
    """The database's time, and the processes that told of themselves within a day, the latest first."""
    now: Any = clock.comparable(connections[using].vendor)
    rows = list(Heartbeat.objects.using(using).annotate(now=now).order_by("-seen", "key")[:MOST_PROCESSES])
    return (rows[0].now if rows else clock.read(using)), rows


def oldest_due(using: str, now: datetime) -> Due | None:
    """The instance that has been due for the longest time at ``now``, or None.

    What is leased is not due. A lease that is over is taken after another third of it, so it counts from then on. What
    is on hold is not due either: its next look is a question to a worker with other code.
    """
    found = None
    for pk, workflow, instance_id, wake_at, expired in _due(using, now, "id, workflow, instance_id", 1):
        since = moment(wake_at) or now
        seconds = (now - since - (_third() if expired else timedelta())).total_seconds()
        if found is None or seconds > found.seconds:
            found = Due(pk=pk, workflow=workflow, instance_id=instance_id, seconds=seconds)
    return found


def overdue(using: str, before: datetime) -> int:
    """How many instances have been due since ``before``; it stops above ``MOST_COUNTED``."""
    most = MOST_COUNTED + 1
    ((number,),) = _due(
        using, before, "id", most, f"SELECT count(*) FROM (SELECT id FROM ({{}}) AS due LIMIT {most}) AS c"
    )
    return int(number)


def _due(using: str, at: datetime, columns: str, most: int, around: str = "{}") -> Rows:
    """``columns``, ``wake_at`` and whether it is an expired lease: the first ``most`` of each class that were due at
    ``at``. ``around``: a statement that makes something of them."""
    expired = "lease_token IS NOT NULL AND NOT suspect"
    probes = " UNION ALL ".join(
        f"""SELECT * FROM (
                SELECT {columns}, wake_at, {expired} AS expired FROM (
                    SELECT {columns}, wake_at, hold, lease_token, suspect FROM {INSTANCE}
                    WHERE claim_class = {k} AND wake_at <= %s ORDER BY wake_at LIMIT {max(WINDOW, most)}
                ) AS head WHERE hold = '' AND (NOT ({expired}) OR wake_at <= %s) ORDER BY wake_at LIMIT {most}
            ) AS class{k}"""
        for k in CLAIM_CLASSES
    )
    moments = [at, at - _third()]
    bound = moments if is_postgres(using) else [clock.sqlite_text(each) for each in moments]
    return run(using, around.format(probes), bound * len(CLAIM_CLASSES))


def _third() -> timedelta:
    return timedelta(seconds=float(get_settings().LEASE) / 3)


def undelivered(using: str, now: datetime) -> float | None:
    """Age in seconds of the oldest sent event that no look has delivered (of the first thousand), or None."""
    # The partial index in its own words, as SQLite takes them; Django writes "= 0" from 6.1 on.
    condition = "NOT delivered" if is_postgres(using) else "NOT delivered AND delivered = 0"
    sql = f"SELECT min(sent_at) FROM (SELECT sent_at FROM {SENT} WHERE {condition} LIMIT {WINDOW}) AS waiting"
    oldest = moment(run(using, sql)[0][0])
    return None if oldest is None else max((now - oldest).total_seconds(), 0.0)


def counts(using: str) -> tuple[int, dict[str, int]]:
    """How many instances are blocked, and how many are on hold for each reason; each stops above ``MOST_COUNTED``."""
    # In the order of their partial indexes: without it PostgreSQL may read the table instead, in the hope of meeting
    # enough of them soon.
    most = f"LIMIT {MOST_COUNTED + 1}"
    reasons = [hold.value for hold in Hold]
    columns = [
        f"(SELECT count(*) FROM (SELECT id FROM {INSTANCE} WHERE NOT (blocked = '') ORDER BY id {most}) AS c)",
        *(
            f"""(SELECT count(*) FROM (
                SELECT hold FROM {INSTANCE} WHERE NOT (hold = '') AND hold >= '{reason}' ORDER BY hold {most}
            ) AS c WHERE hold = '{reason}')"""
            for reason in reasons
        ),
    ]
    ((blocked, *held),) = run(using, f"SELECT {', '.join(columns)}")
    return blocked, {reason: number for reason, number in zip(reasons, held, strict=True) if number}


def blocked_latest(using: str) -> tuple[Blocked, ...]:
    """The latest blocked instances with their reasons, masked. One query, and one for each of them."""
    rows = WorkflowInstance.objects.using(using).light().exclude(blocked="").order_by("-id")[:MOST_LISTED]
    return tuple(
        Blocked(
            pk=row.pk,
            workflow=row.workflow,
            instance_id=row.instance_id,
            reason=Veil.over(row).text(row.blocked),
            since=row.paused_at,
        )
        for row in rows
    )

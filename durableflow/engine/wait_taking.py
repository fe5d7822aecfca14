"""Taking the answer of an open wait in two statements (PostgreSQL): a read without a lock, and a fenced write (design 4).

Only for the usual case: the wait is open and its answer lies delivered in the inbox. For everything else ``find`` or
``take`` gives nothing and changes nothing, and the transaction of several statements looks (``engine.waits``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from durableflow.core import clock, codec
from durableflow.core.statuses import SentKind, StepKind
from durableflow.engine.fence import LOCKED, TIMEOUT
from durableflow.engine.journal import Record
from durableflow.engine.lease import Claim, Lease, elapsed, flags_of
from durableflow.engine.sql import HISTORY, INSTANCE, PENDING, SENT, STEP, run
from durableflow.engine.unwind import LeaseLost
from durableflow.engine.wait_rows import Sent

_RECORD: Final = (
    "s.instance_id = %s::bigint AND s.run_number = %s::int AND s.scope = %s "
    "AND s.kind = %s AND s.name = %s AND s.count = %s::int"
)
_FIND: Final = f"""
    SELECT s.id, p.id, e.id, e.kind, e.type, e.payload, e.sent_at, e.sent_by_name
    FROM {STEP} AS s
    JOIN {PENDING} AS p ON p.id = (SELECT max(x.id) FROM {PENDING} AS x WHERE x.step_id = s.id)
    CROSS JOIN LATERAL (
        SELECT * FROM {SENT} AS m WHERE m.instance_id = s.instance_id AND m.run_number = s.run_number AND m.consumed_by = ''
            AND CASE WHEN p.kind = '{StepKind.WAIT_FOR_APPROVAL.value}' THEN m.kind = 'decision' AND m.pending_event_id = p.id
                ELSE m.kind = 'event' AND p.types ? m.type AND (p.deadline IS NULL OR m.sent_at <= p.deadline) END
        ORDER BY m.id LIMIT 1
    ) AS e
    WHERE {_RECORD} AND s.status = 'pending' AND (e.kind = 'decision' OR p.status = 'open')
        AND NOT EXISTS (SELECT 1 FROM {SENT} AS u WHERE u.instance_id = s.instance_id AND NOT u.delivered)"""


@dataclass(frozen=True, slots=True)
class Found:
    """An open wait, by the keys of its record and its pending event, and the message that answers it."""

    step: int
    pending: int
    sent: Sent


def find(lease: Lease, claim: Claim, record: Record) -> Found | None:
    """The answer of an open wait as ``wait_rows.match`` would give it, if all that was sent has been delivered."""
    rows = run(lease.using, _FIND, [str(lease.pk), str(claim.run_number), *map(str, record.identity)])
    if not rows:
        return None
    step, pending, *sent = rows[0]
    return Found(step, pending, Sent(*sent))


def take(lease: Lease, claim: Claim, record: Record, found: Found, output: str) -> bool:
    """Answer the wait with the message, as the lease's holder; False if either is not any more what was found.

    A COMMIT whose answer was lost may still have been on its way when ``find`` read. So the rows are looked at again
    when they are locked, under the lock of the instance: a wait that is answered takes no second message, and a message
    that is consumed answers no second wait. Raises LeaseLost.
    """
    sql = _take(
        clock.postgres("clock"), found.sent.kind != SentKind.DECISION, bool(claim.interruptions or claim.give_backs)
    )
    identity = record.identity
    data = codec.dumps({"pending_event": found.pending, "event": found.sent.pk}, what="data")
    params = [
        lease.pk, lease.token, found.step, found.sent.pk, found.pending, identity.text, found.sent.sent_by_name, output,
        identity.scope, StepKind.NOTIFY.value, identity.name, identity.count, identity.kind, identity.label, data,
    ]  # fmt: skip
    sent = elapsed()
    ((told, taken),) = run(lease.using, sql, [str(value) for value in params])
    if told is None:
        raise LeaseLost(lease.label)
    lease.note(told, sent)
    return bool(taken)


@lru_cache(maxsize=32)
def _take(now: str, event: bool, shaken: bool) -> str:
    # The decision itself has closed its own pending event. The sender's name alone is noted: a reference would wait for
    # whoever holds that user's row.
    closes = f"UPDATE {PENDING} AS p SET status = 'received', closed = b.now, decided_by_name = %s FROM b WHERE p.id = b.pending"
    calm = (
        f"c AS (UPDATE {INSTANCE} AS i SET interruptions = 0, give_backs = 0 FROM b WHERE i.id = b.pk),"
        if shaken
        else ""
    )
    return f"""
        WITH {TIMEOUT}, {LOCKED}, b AS (
            SELECT f.id AS pk, f.run_number, f.lease_token, s.id AS step, m.id AS sent, p.id AS pending, {now} AS now
            FROM f, {STEP} AS s, {SENT} AS m, {PENDING} AS p
            WHERE s.id = %s::bigint AND s.status = 'pending' AND m.id = %s::bigint AND m.consumed_by = ''
                AND p.id = %s::bigint {"AND p.status = 'open'" if event else ""}
            FOR NO KEY UPDATE OF s, m {", p" if event else ""}
        ),
        m AS (UPDATE {SENT} AS m SET consumed_by = %s, consumed_run = b.run_number FROM b WHERE m.id = b.sent),
        p AS ({closes if event else "SELECT %s::text"}),
        {calm}
        s AS (UPDATE {STEP} AS s SET status = 'complete', output = %s, error = NULL, finished = b.now, wake_at = NULL,
            token = b.lease_token FROM b WHERE s.id = b.step),
        n AS (UPDATE {STEP} AS s SET status = 'cancelled', finished = b.now, wake_at = NULL FROM b
            WHERE s.instance_id = b.pk AND s.run_number = b.run_number AND s.scope = %s AND s.kind = %s AND s.name = %s
                AND s.count = %s::int AND s.status IN ('pending', 'started')),
        h AS (INSERT INTO {HISTORY} (instance_id, run_number, type, kind, step, data, actor_name, via, reason, at)
            SELECT b.pk, b.run_number, 'wait_completed', %s, %s, %s, '', 'engine', '', b.now FROM b)
        SELECT (SELECT {flags_of("f.")} FROM f), EXISTS (SELECT 1 FROM b)"""

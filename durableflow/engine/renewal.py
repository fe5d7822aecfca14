"""Renewing the leases of a process: one statement for all of them, every sixth of a lease (design 4, "Renewal").

The watcher does it."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from durableflow.core import clock
from durableflow.core.conf import get_settings
from durableflow.core.transactions import write_transaction
from durableflow.engine import shutdown
from durableflow.engine.lease import Lease, elapsed
from durableflow.engine.sql import ASYNC_COMMIT, INSTANCE, is_postgres, run

SHARE: Final = 6


def patience() -> float:
    """Seconds that the server may take for a renewal; what takes longer is tried again."""
    return max(1.0, float(get_settings().LEASE) / SHARE)


def renew(leases: list[Lease]) -> None:
    """Move the ends of these leases; one that nobody knows any more is marked lost. A row that somebody holds is
    left to the next beat. In a stop they also tell of it (``lease.told_of_stop``)."""
    for using in {lease.using for lease in leases}:
        _renew(using, [lease for lease in leases if lease.using == using])


def _renew(using: str, leases: list[Lease]) -> None:
    before = elapsed()
    length = float(get_settings().LEASE)
    stopping = shutdown.requested()
    owner = "-abs(owner)" if stopping else "abs(owner)"  # a program may go on after Ctrl-C
    if is_postgres(using):
        with write_transaction(using):  # for the time limit, which would outlive a statement of its own behind a pooler
            run(using, "SELECT set_config('statement_timeout', %s, true)", [str(int(1000 * patience()))])
            rows = run(
                using,
                f"""WITH held AS (
                    SELECT i.id FROM {INSTANCE} AS i JOIN unnest(%s::bigint[], %s::bigint[]) AS h (id, token)
                    ON h.id = i.id AND h.token = i.lease_token FOR NO KEY UPDATE OF i SKIP LOCKED)
                UPDATE {INSTANCE} AS i SET wake_at = {clock.postgres("clock")} + make_interval(secs => %s), suspect = false,
                    owner = {owner.replace("owner", "i.owner")}
                FROM held WHERE i.id = held.id RETURNING i.lease_token, {ASYNC_COMMIT}""",
                [[lease.pk for lease in leases], [lease.token for lease in leases], length],
            )
        renewed = {row[0] for row in rows}
    else:
        renewed = set()
        with write_transaction(using):
            end = clock.sqlite_text(clock.host_now() + timedelta(seconds=length))
            for lease in leases:
                sql = f"""UPDATE {INSTANCE} SET wake_at = %s, suspect = 0, owner = {owner}
                    WHERE id = %s AND lease_token = %s RETURNING lease_token"""
                renewed.update(row[0] for row in run(using, sql, [end, lease.pk, lease.token]))
    for lease in leases:
        if lease.token in renewed:
            lease.renewed = max(lease.renewed, before)  # the answer of an older one may have been late
            lease.told = stopping
    _mark_lost(using, [lease for lease in leases if lease.token not in renewed])


def _mark_lost(using: str, missing: list[Lease]) -> None:
    if not missing:
        return
    marks = ", ".join(["%s"] * len(missing))
    rows = run(using, f"SELECT lease_token FROM {INSTANCE} WHERE id IN ({marks})", [lease.pk for lease in missing])
    alive = {row[0] for row in rows}
    for lease in missing:
        lease.lost = lease.lost or lease.token not in alive

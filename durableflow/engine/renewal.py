"""Renewing the leases of a process: one statement for all of them, every sixth of a lease (design 4, "Renewal").

The watcher does it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from django.db import OperationalError

from durableflow.core import clock
from durableflow.core.conf import get_settings
from durableflow.core.outages import locked
from durableflow.core.transactions import write_transaction
from durableflow.engine import shutdown
from durableflow.engine.lease import Lease, elapsed, flags_of
from durableflow.engine.sql import ASYNC_COMMIT, INSTANCE, is_postgres, run

SHARE: Final = 6
WAIT: Final = 0.3
"""Seconds for which a renewal waits for a row that somebody holds."""


def patience() -> float:
    """Seconds that the server may take for a renewal; what takes longer is tried again."""
    return max(1.0, float(get_settings().LEASE) / SHARE)


def renew(leases: list[Lease]) -> None:
    """Move the ends of these leases; one that nobody knows any more is marked lost. A row that somebody holds is waited for a
    moment (its own worker's writes hold it again and again), and then left to the next beat. In a stop they also tell of it
    (``lease.told_of_stop``). Each lease learns what its row says of a pause: a body may run for hours without a checkpoint."""
    for using in {lease.using for lease in leases}:
        _renew(using, [lease for lease in leases if lease.using == using])


def _renew(using: str, leases: list[Lease]) -> None:
    before, stopping = elapsed(), shutdown.requested()
    if is_postgres(using):
        _renewed(leases, _renew_postgres(using, leases, "SKIP LOCKED", stopping), before, stopping)
        missing = [lease for lease in leases if lease.renewed < before]
        _mark_lost(using, missing)
        _wait_for(using, [lease for lease in missing if not lease.lost], stopping)
    else:
        _renewed(leases, _renew_sqlite(using, leases, stopping), before, stopping)
        _mark_lost(using, [lease for lease in leases if lease.renewed < before])


def _owner(stopping: bool, row: str = "") -> str:
    return f"-abs({row}owner)" if stopping else f"abs({row}owner)"  # a program may go on after Ctrl-C


def _renew_postgres(using: str, leases: Sequence[Lease], locked: str, stopping: bool) -> dict[int, int]:
    """The tokens of those that were renewed, each with the flags of its row. ``locked``: what becomes of a row that somebody holds."""
    with write_transaction(using):  # for the time limits, which would outlive a statement of their own behind a pooler
        limits = "set_config('statement_timeout', %s, true), set_config('lock_timeout', %s, true)"
        run(using, f"SELECT {limits}", [str(int(1000 * patience())), str(int(1000 * WAIT))])
        rows = run(
            using,
            f"""WITH held AS (
                SELECT i.id FROM {INSTANCE} AS i JOIN unnest(%s::bigint[], %s::bigint[]) AS h (id, token)
                ON h.id = i.id AND h.token = i.lease_token FOR NO KEY UPDATE OF i {locked})
            UPDATE {INSTANCE} AS i SET wake_at = {clock.postgres("clock")} + make_interval(secs => %s), suspect = false,
                owner = {_owner(stopping, "i.")}
            FROM held WHERE i.id = held.id RETURNING i.lease_token, {flags_of("i.")}, {ASYNC_COMMIT}""",
            [[lease.pk for lease in leases], [lease.token for lease in leases], float(get_settings().LEASE)],
        )
    return {row[0]: row[1] for row in rows}


def _wait_for(using: str, held: Sequence[Lease], stopping: bool) -> None:
    """Whoever waits for a row gets it before those that come later: the writes of its own worker, which may hold it whenever
    somebody looks. One by one, because somebody else may hold one of them for long."""
    end = time.monotonic() + patience()
    for lease in held:
        if time.monotonic() > end:
            return
        before = elapsed()
        try:
            _renewed([lease], _renew_postgres(using, [lease], "", stopping), before, stopping)
        except OperationalError as error:
            if not locked(error):
                raise


def _renew_sqlite(using: str, leases: Sequence[Lease], stopping: bool) -> dict[int, int]:
    renewed: dict[int, int] = {}
    with write_transaction(using):
        end = clock.sqlite_text(clock.host_now() + timedelta(seconds=float(get_settings().LEASE)))
        for lease in leases:
            sql = f"""UPDATE {INSTANCE} SET wake_at = %s, suspect = 0, owner = {_owner(stopping)}
                WHERE id = %s AND lease_token = %s RETURNING lease_token, {flags_of()}"""
            renewed.update(dict(run(using, sql, [end, lease.pk, lease.token])))
    return renewed


def _renewed(leases: Sequence[Lease], told: dict[int, int], before: float, stopping: bool) -> None:
    for lease in leases:
        if lease.token in told:
            lease.note(told[lease.token], before)
            lease.renewed = max(lease.renewed, before)  # the answer of an older one may have been late
            lease.told = stopping


def _mark_lost(using: str, missing: list[Lease]) -> None:
    if not missing:
        return
    marks = ", ".join(["%s"] * len(missing))
    rows = run(using, f"SELECT lease_token FROM {INSTANCE} WHERE id IN ({marks})", [lease.pk for lease in missing])
    alive = {row[0] for row in rows}
    for lease in missing:
        lease.lost = lease.lost or lease.token not in alive

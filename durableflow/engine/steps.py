"""Writing step records: one fenced statement on PostgreSQL, one short transaction on SQLite (design 4)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple

from django.db import connections

from durableflow.core import clock, codec
from durableflow.core.conf import get_settings
from durableflow.core.transactions import raw_transaction
from durableflow.engine.fence import LOCKED, TIMEOUT, fenced
from durableflow.engine.journal import FINISHED, Identity, Record
from durableflow.engine.lease import Lease, elapsed, flags_of
from durableflow.engine.patience import patient
from durableflow.engine.renewal import SHARE
from durableflow.engine.sql import ASYNC_COMMIT, HISTORY, INSTANCE, STEP, is_postgres, moment, run, stored
from durableflow.engine.unwind import AlreadyFinished, LeaseLost

COLUMNS: Final = (
    "instance_id, run_number, scope, kind, name, count, seq, execution, key_run, status, sensitive, config, output, error, attempts, "
    "attempts_before_retry, freed, wake_at, token, started, finished, rollback_status, rollback_attempts"
)
_UPSERT: Final = f"""
    ON CONFLICT (instance_id, run_number, scope, kind, name, count) DO UPDATE SET
        status = excluded.status, config = COALESCE({STEP}.config, excluded.config), output = excluded.output, error = excluded.error,
        attempts = excluded.attempts, wake_at = excluded.wake_at, token = excluded.token,
        started = COALESCE({STEP}.started, excluded.started), finished = excluded.finished
    WHERE {STEP}.status IN ('pending', 'started') AND NOT ({STEP}.token IS NOT NULL AND {STEP}.token = excluded.token
        AND {STEP}.status = excluded.status AND {STEP}.attempts = excluded.attempts)
    RETURNING id, wake_at"""
UNWRITTEN: Final = 4
"""Beside the flags of ``lease.flags_of``: nothing was written."""
_ENTRY_COLUMNS: Final = "instance_id, run_number, type, kind, step, data, actor_name, via, reason, at"


@dataclass(slots=True)
class Entry:
    """A history entry that goes with a write: its type and data, or the ``text`` that stores the data."""

    type: str
    data: Any = None
    text: str | None = None


@dataclass(slots=True, kw_only=True)
class StepWrite:
    """What to write of a record. ``wake_in`` seconds from the database's now, or ``wake_at``; ``unshaken`` clears
    the count of interruptions, because the instance has made progress; ``later``: what would be written once more, should
    the server crash, need not wait for the disk."""

    record: Record
    run_number: int
    started: datetime | None
    entries: tuple[Entry, ...] = ()
    wake_in: float | None = None
    wake_at: datetime | None = None
    unshaken: bool = False
    later: bool = False

    @property
    def wakes(self) -> bool:
        """Whether there is a ``wake_at`` to give back; reading one costs the driver a tenth of the whole write."""
        return self.wake_in is not None or self.wake_at is not None


@patient
def write_step(lease: Lease, write: StepWrite) -> datetime | None:
    """Write a record with its history as the lease's holder; returns its ``wake_at``.

    A finished row is never touched, and a write that is repeated after a lost answer finds its own token: then it has
    succeeded and changes nothing. The answer tells the lease of a pause, so that this costs no statement of its own. Raises
    LeaseLost, AlreadyFinished.
    """
    # Whoever writes holds the row, and one that writes without a pause holds it so often that the renewal, which waits for
    # nobody, may never have it.
    before, length = elapsed(), float(get_settings().LEASE)
    renewed = length if before - lease.renewed > length / SHARE else None
    if is_postgres(lease.using):
        rows = run(
            lease.using,
            _postgres_sql(_shape(write, renewed), clock.postgres("clock")),
            _postgres_params(lease, write),
            bare=not write.wakes,
        )
        if not rows:
            raise LeaseLost(lease.label)
        told, wake_at = rows[0][:2]
    else:
        told, wake_at = _write_sqlite(lease, write, renewed)
    told = int(told)
    lease.note(told, before)
    if renewed is not None and not connections[lease.using].in_atomic_block:
        lease.renewed = max(lease.renewed, before)
    return moment(_own_wake_at(lease, write) if told & UNWRITTEN else wake_at)


def _values(lease: Lease, write: StepWrite) -> list[Any]:
    record = write.record
    identity = record.identity
    return [
        write.run_number, identity.scope, identity.kind, identity.name, identity.count, record.seq, record.execution, record.key_run,
        record.status, record.sensitive, record.config, record.output, record.error, record.attempts, record.attempts_before_retry,
        record.freed,
    ]  # fmt: skip


@lru_cache(maxsize=256)
def _postgres_sql(write: _Shape, now: str) -> str:
    values = ", ".join(f"('{type}', %s)" for type in write.entries)
    history = (
        f""", h AS (INSERT INTO {HISTORY} ({_ENTRY_COLUMNS})
            SELECT f.id, f.run_number, e.type, '{write.kind}', %s, e.data, '', 'engine', '', {now}
            FROM f, s, (VALUES {values}) AS e (type, data))"""
        if write.entries
        else ""
    )
    changes = ["interruptions = 0", "give_backs = 0"] if write.unshaken else []
    if write.renewed is not None:
        changes += [f"wake_at = {now} + make_interval(secs => {write.renewed!r})", "suspect = false"]
    calm = f", c AS (UPDATE {INSTANCE} AS i SET {', '.join(changes)} FROM f WHERE i.id = f.id)" if changes else ""
    wake = (
        f"COALESCE(%s::timestamptz, {now} + make_interval(secs => %s::float8))" if write.wakes else "NULL::timestamptz"
    )
    finished = now if write.status in FINISHED else "NULL::timestamptz"
    return f"""
        WITH {TIMEOUT}, {LOCKED}, s AS (
            INSERT INTO {STEP} ({COLUMNS})
            SELECT f.id, f.run_number, %s, '{write.kind}', %s, %s::int, %s::int, %s::int, %s::int, '{write.status}', {write.sensitive},
                %s, %s, {"%s" if write.failed else "NULL"}, %s::int, %s::int, {write.freed}, {wake}, f.lease_token, %s::timestamptz,
                {finished}, '', 0
            FROM f {_UPSERT.replace("RETURNING id", f"RETURNING {STEP}.id")}
        ){history}{calm}
        SELECT {flags_of("f.")} + CASE WHEN s.id IS NULL THEN {UNWRITTEN} ELSE 0 END,
            {"s.wake_at" if write.wakes else "NULL"}{f", {ASYNC_COMMIT}" if write.later else ""} FROM f LEFT JOIN s ON true"""


class _Shape(NamedTuple):
    """What is part of a statement's text: fewer parameters are less work on both sides."""

    kind: str
    status: str
    sensitive: bool
    freed: bool
    failed: bool
    entries: tuple[str, ...]
    wakes: bool
    unshaken: bool
    later: bool
    renewed: float | None


def _shape(write: StepWrite, renewed: float | None) -> _Shape:
    record = write.record
    return _Shape(
        record.identity.kind, record.status, record.sensitive, record.freed, record.error is not None,
        tuple([entry.type for entry in write.entries]), write.wakes, write.unshaken, write.later, renewed,
    )  # fmt: skip


def _postgres_params(lease: Lease, write: StepWrite) -> list[str | None]:
    """All as text, with casts in the statement: the driver's own ways to write numbers and times depend on the value, so
    that one statement would be prepared several times, and take longer."""
    record, identity = write.record, write.record.identity
    params: list[str | None] = [
        str(lease.pk), str(lease.token), identity.scope, identity.name, str(identity.count), str(record.seq), str(record.execution),
        str(record.key_run), record.config, record.output,
    ]  # fmt: skip
    if record.error is not None:
        params.append(record.error)
    params += [str(record.attempts), str(record.attempts_before_retry)]
    if write.wakes:
        params += [_iso(write.wake_at), None if write.wake_in is None else repr(float(write.wake_in))]
    params.append(_iso(write.started))
    if write.entries:
        params.append(identity.label)
        for entry in write.entries:
            params.append(_text(entry))
    return params


def _iso(value: datetime | None) -> str | None:
    return None if value is None else value.isoformat()


def _text(entry: Entry) -> str | None:
    return entry.text if entry.data is None else codec.dumps(entry.data, what="history")


def _write_sqlite(lease: Lease, write: StepWrite, renewed: float | None) -> tuple[int, Any]:
    record = write.record
    with raw_transaction(lease.using):
        fence = run(
            lease.using,
            f"SELECT {flags_of()} FROM {INSTANCE} WHERE id = %s AND lease_token = %s",
            [lease.pk, lease.token],
        )
        if not fence:
            raise LeaseLost(lease.label)
        ((told,),) = fence
        now = clock.host_now()
        if renewed is not None:
            end = clock.sqlite_text(now + timedelta(seconds=renewed))
            run(lease.using, f"UPDATE {INSTANCE} SET wake_at = %s, suspect = 0 WHERE id = %s", [end, lease.pk])
        wake = write.wake_at or (None if write.wake_in is None else now + timedelta(seconds=write.wake_in))
        values = [lease.pk, *_values(lease, write), _stamp(wake), lease.token, _stamp(write.started)]
        values += [clock.sqlite_text(now) if record.status in FINISHED else None, "", 0]
        marks = ", ".join(["%s"] * len(values))
        rows = run(lease.using, f"INSERT INTO {STEP} ({COLUMNS}) VALUES ({marks}) {_UPSERT}", values)
        if not rows:
            return (told | UNWRITTEN, None)
        for entry in write.entries:
            run(lease.using, _SQLITE_ENTRY, _entry_values(lease, write, entry, now))
        if write.unshaken:
            run(lease.using, f"UPDATE {INSTANCE} SET interruptions = 0, give_backs = 0 WHERE id = %s", [lease.pk])
        return (told, rows[0][1])


_SQLITE_ENTRY: Final = f"INSERT INTO {HISTORY} ({_ENTRY_COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s, '', 'engine', '', %s)"


def _entry_values(lease: Lease, write: StepWrite, entry: Entry, now: datetime) -> list[Any]:
    identity = write.record.identity
    return [
        lease.pk, write.run_number, entry.type, identity.kind, identity.label, _text(entry), clock.sqlite_text(now),
    ]  # fmt: skip


def _stamp(value: datetime | None) -> str | None:
    return None if value is None else clock.sqlite_text(value)


def _own_wake_at(lease: Lease, write: StepWrite) -> Any:
    """Nothing was written: this very write had been done, and its answer was lost; or the row is finished, by somebody else
    (LeaseLost) or by this lease (AlreadyFinished)."""
    rows = run(
        lease.using,
        f"""SELECT token, wake_at, status FROM {STEP}
            WHERE instance_id = %s AND run_number = %s AND scope = %s AND kind = %s AND name = %s AND count = %s""",
        [lease.pk, write.run_number, *write.record.identity],
    )
    if not rows or rows[0][0] != lease.token:
        raise LeaseLost(lease.label)
    if rows[0][2] in FINISHED and rows[0][2] != write.record.status:
        raise AlreadyFinished(f"{lease.label}: {write.record.identity.label}")
    return rows[0][1]


@patient
def correct_group(lease: Lease, run_number: int, record: Record) -> None:
    """Give a finished record of a group the status that ``record`` has: it stands for no value, and how the group ends is for its
    branches to say, each time they run. Raises LeaseLost."""
    with fenced(lease) as fence:
        run(
            lease.using,
            f"""UPDATE {STEP} SET status = %s, finished = %s WHERE instance_id = %s AND run_number = %s AND scope = %s AND kind = %s
                AND name = %s AND count = %s AND status IN ('complete', 'failed')""",
            [record.status, stored(lease.using, fence.now), lease.pk, run_number, *record.identity],
        )


def load_journal(lease: Lease, run_number: int, *, ordered: bool = False) -> list[Record]:
    """All records of a run, in one query (case OPS-01). ``ordered``: by another one, also in which order they ended."""
    records = _load(lease, run_number)
    if ordered and records:
        # What a restart has kept had ended in an earlier run.
        ended = _load_order(lease, min(record.key_run for record in records), run_number)
        for record in records:
            record.ended = None if not record.finished else ended.get((record.identity.kind, record.identity.label))
    return records


@patient
def _load_order(lease: Lease, first: int, last: int) -> dict[tuple[str, str], int]:
    """The last history entry by which each call ended: their ids rise in the order of commit."""
    rows = run(
        lease.using,
        f"""SELECT kind, step, max(id) FROM {HISTORY} WHERE instance_id = %s AND run_number BETWEEN %s AND %s AND type IN (
            'step_completed', 'step_errored', 'sleep_completed', 'wait_completed', 'wait_timed_out', 'wait_cancelled',
            'child_finished') GROUP BY kind, step""",
        [lease.pk, first, last],
    )
    return {(kind, step): number for kind, step, number in rows}


@patient
def _load(lease: Lease, run_number: int) -> list[Record]:
    rows = run(
        lease.using,
        f"""SELECT scope, kind, name, count, seq, execution, key_run, status, sensitive, config, output, error, attempts,
            attempts_before_retry, freed, wake_at, token FROM {STEP} WHERE instance_id = %s AND run_number = %s ORDER BY seq""",
        [lease.pk, run_number],
    )
    # The columns are a Record's fields, in their order: made one by one, ten thousand would take a fifth of the replay.
    if is_postgres(lease.using):
        return [Record(Identity(*row[:4]), *row[4:]) for row in rows]
    return [_record_sqlite(*row) for row in rows]


def _record_sqlite(scope: str, kind: str, name: str, count: int, *row: Any) -> Record:
    """SQLite gives numbers for booleans, and texts for moments."""
    record = Record(Identity(scope, kind, name, count), *row)
    record.sensitive, record.freed = bool(record.sensitive), bool(record.freed)
    record.wake_at = moment(record.wake_at)
    return record

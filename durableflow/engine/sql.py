"""How engine statements are sent: prepared, on the driver's cursor over Django's own connection (design 4, "SQL path").

The same connection, so that ``atomic()``, savepoints and broken-transaction rules hold. Where queries are logged or
wrapped, or PREPARE is off, Django's cursor is used instead, so that debug toolbars, tracing and query guards see
everything.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

from django.db import NotSupportedError, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from durableflow.core import clock
from durableflow.core.conf import get_settings
from durableflow.engine import prepared
from durableflow.models import HistoryEntry, PendingEvent, SentEvent, StepRecord, WorkflowInstance

INSTANCE = WorkflowInstance._meta.db_table
STEP = StepRecord._meta.db_table
HISTORY = HistoryEntry._meta.db_table
PENDING = PendingEvent._meta.db_table
SENT = SentEvent._meta.db_table

# For this transaction of PostgreSQL: the COMMIT does not wait for the disk. For renewals and deliveries: what a crash of the server
# takes back of them is simply due again; for the end of a sleep, which is over all the same; and for completions before a claim
# (engine.flushing). Not for claims: the holder of one that is taken back would go on with its body beside the next.
ASYNC_COMMIT: Final = "set_config('synchronous_commit', 'off', true)"

_LARGE: Final = 100  # rows

Rows = list[tuple[Any, ...]]


def run(using: str, sql: str, params: Sequence[Any] = (), *, bare: bool = False) -> Rows:
    """Execute one statement with ``%s`` marks and return its rows ([] if it gives none). Raises ``django.db``
    errors.

    ``bare``: on PostgreSQL past the driver's cursor, where that can be. The columns are the server's text then, and
    ``params`` must be texts without NUL.
    """
    connection = _usable(using)
    if connection.queries_logged or connection.execute_wrappers:
        return _django(connection, sql, params)
    if connection.vendor == "sqlite":
        return _sqlite(connection, sql, params)
    if not get_settings().PREPARE:
        return _django(connection, sql, params)
    return _planned(_bare if bare and prepared.ready(connection.connection) else _postgres, connection, sql, params)


def _usable(using: str) -> BaseDatabaseWrapper:
    connection = connections[using]
    connection.ensure_connection()
    if connection.needs_rollback:
        connection.validate_no_broken_transaction()
    return connection


def _planned(
    execute: Callable[[BaseDatabaseWrapper, str, Sequence[Any]], Rows],
    connection: BaseDatabaseWrapper,
    sql: str,
    params: Sequence[Any],
) -> Rows:
    try:
        return execute(connection, sql, params)
    except NotSupportedError:
        # "cached plan must not change result type": a migration ran under us. A new connection has no stale plans.
        if connection.in_atomic_block:
            raise
        connection.close()
        connection.ensure_connection()
        return execute(connection, sql, params)


def _django(connection: BaseDatabaseWrapper, sql: str, params: Sequence[Any]) -> Rows:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return list(cursor.fetchall()) if cursor.description else []


def _postgres(connection: BaseDatabaseWrapper, sql: str, params: Sequence[Any]) -> Rows:
    raw = connection.connection
    try:
        cursor = raw.durableflow_cursor
    except AttributeError:
        cursor = raw.durableflow_cursor = _cursor_class()(
            raw
        )  # making one takes a fifth of what the driver takes in all
    # Django switches preparing off for its connection; ORM statements must stay as they are.
    threshold, raw.prepare_threshold = raw.prepare_threshold, 0
    try:
        with connection.wrap_database_errors:
            cursor.execute(sql, params, prepare=True)
            # Not ``cursor.description``, which makes an object of each column.
            rows = cursor.fetchall() if cursor.pgresult.nfields else []
    finally:
        raw.prepare_threshold = threshold
    if len(rows) > _LARGE:
        del raw.durableflow_cursor  # it would keep the result until its next use
    return rows


def _bare(connection: BaseDatabaseWrapper, sql: str, params: Sequence[Any]) -> Rows:
    raw: Any = connection.connection
    with connection.wrap_database_errors:
        prepared.ready(raw)  # a new connection's books are begun
        return prepared.execute(raw, sql, params)


@lru_cache(maxsize=1)
def _cursor_class() -> Any:
    from psycopg import Cursor

    return Cursor


def _sqlite(connection: BaseDatabaseWrapper, sql: str, params: Sequence[Any]) -> Rows:
    with connection.wrap_database_errors:
        cursor = connection.connection.execute(_question_marks(sql), params)
        return list(cursor.fetchall()) if cursor.description else []


@lru_cache(maxsize=512)
def _question_marks(sql: str) -> str:
    return sql.replace("%s", "?")


def together(using: str, statements: Sequence[tuple[str, Sequence[Any]]]) -> Rows:
    """Execute statements that write different rows and do not read what another of them writes, in an open transaction;
    returns the rows of the last. On PostgreSQL it is one statement, so one way to the server and back."""
    if not is_postgres(using):
        rows: Rows = []
        for sql, params in statements:
            rows = run(using, sql, params)
        return rows
    *first, (last, _) = statements
    parts = ", ".join(f"q{number} AS ({sql})" for number, (sql, _) in enumerate(first))
    return run(using, f"WITH {parts} {last}" if parts else last, [item for _, params in statements for item in params])


def any_of(using: str, column: str, keys: Iterable[int]) -> tuple[str, list[Any]]:
    """The condition that ``column`` is one of ``keys``, with its parameters: the same text for any number of them, so
    that it is prepared once."""
    if is_postgres(using):
        return f"{column} = ANY(%s::bigint[])", [list(keys)]
    return f"{column} IN (SELECT value FROM json_each(%s))", [json.dumps(list(keys))]


def now_of(using: str) -> tuple[str, list[Any]]:
    """The present moment for writing: SQL, and its parameters (SQLite has no clock: the host's is bound)."""
    if is_postgres(using):
        return clock.postgres("clock"), []
    return "%s", [clock.sqlite_text(clock.host_now())]


def stored(using: str, value: datetime | None) -> Any:
    """A moment as a parameter."""
    return value if value is None or is_postgres(using) else clock.sqlite_text(value)


@lru_cache(maxsize=16)
def is_postgres(using: str) -> bool:
    """Whether the tables of ``using`` are on PostgreSQL."""
    return connections[using].vendor == "postgresql"


def moment(value: Any) -> datetime | None:
    """A timestamp as a driver gives it, as an aware datetime in UTC (SQLite gives text without a zone)."""
    if value is None or (isinstance(value, datetime) and value.tzinfo is not None):
        return value
    parsed = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    return parsed.replace(tzinfo=UTC)

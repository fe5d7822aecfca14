"""A prepared statement without the driver's cursor, which takes longer over a checkpoint than the server does over its
network (design 4, "SQL path"; design 11).

The driver's connection sends, waits and gives errors as ever; only what its cursor does around that is left out: looking
for types of parameters, and making objects of the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Final

MOST: Final = 100
"""Statements kept on one connection, as many as the driver itself keeps."""
LAST_GOOD: Final = 2  # PGRES_TUPLES_OK; below are COMMAND_OK and EMPTY_QUERY


def ready(raw: Any) -> bool:
    """Whether the driver's connection would send nothing before a statement (BEGIN), and speaks UTF-8."""
    if raw.closed:
        return False  # the driver's cursor tells
    if not hasattr(raw, "durableflow_prepared"):
        raw.durableflow_prepared, raw.durableflow_numbers = {}, count(1)
    return bool(raw.autocommit and raw.pgconn.parameter_status(b"client_encoding") == b"UTF8")


def execute(raw: Any, sql: str, params: Sequence[str | None]) -> list[tuple[str | None, ...]]:
    """The rows of ``sql``, its columns as the server's text. ``params``: all as text without NUL, whose types are the
    statement's matter. Raises the driver's errors."""
    from psycopg.errors import InvalidSqlStatementName

    values = [None if param is None else param.encode() for param in params]
    with raw.lock:
        try:
            result = _ask(raw, raw.pgconn.send_query_prepared, _name(raw, sql), values)
        except InvalidSqlStatementName:
            # After a ROLLBACK or a change of the schema the driver deallocates all there are. Nothing was executed.
            raw.durableflow_prepared.clear()
            result = _ask(raw, raw.pgconn.send_query_prepared, _name(raw, sql), values)
    columns = range(result.nfields)
    return [tuple([_text(result.get_value(row, column)) for column in columns]) for row in range(result.ntuples)]


def _name(raw: Any, sql: str) -> bytes:
    """The name under which it is prepared: one that this connection never had. The oldest one makes room."""
    prepared: dict[str, bytes] = raw.durableflow_prepared
    if sql in prepared:
        return prepared[sql]
    if len(prepared) >= MOST:
        _ask(raw, raw.pgconn.send_query, b"DEALLOCATE " + prepared.pop(next(iter(prepared))))
    name = b"durableflow_%d" % next(raw.durableflow_numbers)
    _ask(raw, raw.pgconn.send_prepare, name, _numbered(sql))
    prepared[sql] = name
    return name


def _ask(raw: Any, send: Callable[..., None], *arguments: Any) -> Any:
    from psycopg import errors, generators

    send(*arguments)
    result = raw.wait(generators.execute(raw.pgconn))[-1]
    if result.status > LAST_GOOD:
        raise errors.error_from_result(result)
    return result


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def _numbered(sql: str) -> bytes:
    """``%s`` marks as the server counts them."""
    first, *others = sql.split("%s")
    return (first + "".join(f"${number}{part}" for number, part in enumerate(others, 1))).encode()

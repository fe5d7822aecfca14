"""Transactions in which a state change is made (design 4, "Fence")."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections, models, router, transaction
from django.db.backends.base.base import BaseDatabaseWrapper


def alias_of(row: models.Model) -> str:
    """The database to which changes of ``row`` go: a row may have been read from a replica."""
    return router.db_for_write(type(row), instance=row)


@contextmanager
def write_transaction(using: str) -> Iterator[None]:
    """An ``atomic()`` block that on SQLite takes the write lock at its start.

    Reading first and writing later in a deferred SQLite transaction fails with "database is locked" as soon as somebody
    wrote in between, so BEGIN IMMEDIATE is used whatever the project's ``transaction_mode`` says. Inside an open block
    it is an ordinary savepoint.
    """
    connection = connections[using]
    if connection.vendor != "sqlite" or connection.in_atomic_block:
        with transaction.atomic(using=using):
            yield
        return
    connection.ensure_connection()  # connecting sets the mode
    mode = connection.transaction_mode  # type: ignore[attr-defined]
    connection.transaction_mode = "IMMEDIATE"  # type: ignore[attr-defined]
    block = transaction.atomic(using=using)
    try:
        block.__enter__()
    finally:
        connection.transaction_mode = mode  # type: ignore[attr-defined]
    try:
        yield
    except BaseException as error:
        block.__exit__(type(error), error, error.__traceback__)
        raise
    else:
        block.__exit__(None, None, None)


@contextmanager
def raw_transaction(using: str) -> Iterator[None]:
    """The same for statements that go to the driver alone (``engine.sql.run``): neither the ORM nor ``on_commit`` may be
    used inside, since Django does not know of the transaction.

    On SQLite Django's bookkeeping takes longer than the statements themselves. On PostgreSQL, in an open block, and where
    queries are logged or wrapped, it is ``write_transaction``.
    """
    connection = connections[using]
    if connection.vendor != "sqlite" or _managed(connection):
        with write_transaction(using):
            yield
        return
    raw = connection.connection
    try:
        with connection.wrap_database_errors:
            raw.execute("BEGIN IMMEDIATE")
        yield
        with connection.wrap_database_errors:
            raw.execute("COMMIT")
    except BaseException:  # a signal too, wherever it hits
        _roll_back(connection, raw)
        raise


def _managed(connection: BaseDatabaseWrapper) -> bool:
    """Whether Django has to know of a transaction. Connects."""
    return (
        connection.in_atomic_block
        or not connection.get_autocommit()
        or connection.queries_logged
        or bool(connection.execute_wrappers)
    )


def _roll_back(connection: BaseDatabaseWrapper, raw: Any) -> None:
    try:
        if raw.in_transaction:
            raw.execute("ROLLBACK")
    except Exception:  # the driver's connection is closed or broken
        connection.close()

"""Transactions in which a state change is made (design 4, "Fence")."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connections, models, router, transaction


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

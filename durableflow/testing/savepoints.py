"""Bodies inside a test's transaction.

A worker runs a body without an open transaction, so an IntegrityError in it spoils nothing. A ``TestCase`` keeps one open
around the whole test, and the error would break that. So each body gets a savepoint, and goes back to it only when it has
broken the transaction: what a body wrote before any other error stays, as it does in a worker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import TransactionManagementError


def guarded(body: Callable[[], Any]) -> Callable[[], Any]:
    """``body`` so that the transactions which are open when it begins stay usable, whatever it does."""

    def run() -> Any:
        opened = [
            _Savepoint(connection)
            for connection in connections.all(initialized_only=True)
            if connection.in_atomic_block
        ]
        try:
            value = body()
        except BaseException:
            for savepoint in opened:
                savepoint.end()
            raise
        broken = [savepoint for savepoint in opened if savepoint.end()]
        if broken:
            raise TransactionManagementError(
                "The body went on after a database error, and the test's transaction took back all it had written. "
                "Put the statement that may fail into transaction.atomic(), or use a TransactionTestCase "
                "(django_db(transaction=True))."
            )
        return value

    return run


class _Savepoint:
    """A savepoint of one connection."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self.connection = connection
        self.depth = len(connection.atomic_blocks)
        self.raw = connection.connection
        self.was_broken = connection.needs_rollback
        self.id = None if self.was_broken else connection.savepoint()

    def end(self) -> bool:
        """Release it, or go back to it where the transaction is broken; True in that case."""
        connection = self.connection
        if self.id is None or connection.connection is not self.raw or len(connection.atomic_blocks) != self.depth:
            return False  # closed after a time-out, or left open: the engine sees to it
        state = self.raw.info.transaction_status.name if connection.vendor == "postgresql" else ""
        if state == "ACTIVE":
            return False  # an interrupted query: the engine closes the connection
        broken = connection.needs_rollback or state == "INERROR"
        connection.needs_rollback = False
        if broken:
            connection.savepoint_rollback(self.id)
        else:
            connection.savepoint_commit(self.id)
        return broken

"""What must happen after a commit that made work due: listeners, filled by the layers above (design 3, 4 "Hint").

A hint only saves waiting time: the tables are the truth, and a hint that is lost costs at most one look of a broker
(case CON-04).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from django.db import connections, transaction
from django.utils.module_loading import import_string

from durableflow.core.conf import get_settings

logger = logging.getLogger("durableflow.dispatch")
Listener = Callable[[str], None]
_listeners: list[Listener] = []


def listen(listener: Listener) -> None:
    """Call ``listener(alias)`` after each commit that made work due in that database. Adding it twice has no effect."""
    if listener not in _listeners:
        _listeners.append(listener)


@contextmanager
def silent() -> Iterator[None]:
    """Give no hints to those who listen now (testing kit only: it runs what is due itself)."""
    before = list(_listeners)
    _listeners.clear()
    try:
        yield
    finally:
        _listeners[:] = before


def wake(using: str) -> None:
    """Give the hint when the current transaction commits, or at once outside of one. Errors in listeners never reach
    the caller."""
    connection = connections[using]
    if connection.in_atomic_block:
        ids = set(connection.savepoint_ids)
        pending = connection.run_on_commit
        # Many verbs in one transaction need one hint; a savepoint that may still roll back needs its own.
        if pending and isinstance(pending[-1][1], _Hint) and pending[-1][0] == ids:
            return
    transaction.on_commit(_Hint(using), using=using, robust=True)


class _Hint:
    def __init__(self, using: str) -> None:
        self.using = using

    def __call__(self) -> None:
        hint(self.using)


def hint(using: str) -> None:
    """Tell all listeners now that work is due in ``using``."""
    for listener in list(_listeners):
        try:
            listener(using)
        except Exception:
            logger.warning("A hint was not given; due work starts at the next look.", exc_info=True)


def call_project(_using: str) -> None:
    """The listener behind ``DURABLEFLOW['DISPATCH']``: call the project's own function."""
    path = get_settings().DISPATCH
    if path:
        import_string(path)()


listen(call_project)

"""The hint after a commit that made work due (design 4, "Hint").

PostgreSQL only: on SQLite a commit is seen by itself (``PRAGMA data_version``). A hint that is lost costs at most one
look, one second.
"""

from __future__ import annotations

from typing import Final

from django.db import connections

CHANNEL: Final = "durableflow"
# In the user's transaction the notification would make all commits wait for one another. Here it is a transaction of
# its own, after the commit, and need not reach the disk: nothing is lost with it.
_NOTIFY: Final = "SELECT set_config('synchronous_commit', 'off', true), pg_notify(%s, %s)"


def notify(using: str, payload: str = "") -> None:
    """Wake the brokers that listen in the database ``using``.

    Does nothing on another database than PostgreSQL, and inside a transaction: whoever made work due there gave a hint
    for its commit. Raises what the database raises; ``core.dispatch.hint`` keeps that from the caller.
    """
    connection = connections[using]
    if connection.vendor != "postgresql" or connection.in_atomic_block or not connection.get_autocommit():
        return
    with connection.cursor() as cursor:
        cursor.execute(_NOTIFY, [CHANNEL, payload])

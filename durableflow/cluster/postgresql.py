"""Hearing of commits on PostgreSQL: LISTEN on a connection of its own."""

from __future__ import annotations

import logging
import select
import time
import uuid
from collections.abc import Callable
from typing import Any, Final

from django.db import Error, connections

from durableflow.cluster.hint import CHANNEL, notify
from durableflow.cluster.listening import TICK, pause

logger = logging.getLogger("durableflow.cluster")

RECONNECT_AFTER: Final = 1.0
TEST_EVERY: Final = 30.0
TEST_PATIENCE: Final = 5.0
_TEST: Final = "test "


class PostgresListener:
    """Listens for the hints given in the database ``using``, over the connection settings of ``listen_on`` (the same
    database, perhaps past a pooler). It never fails: while it hears nothing it says so once in the log, and ``wait``
    just takes its time.

    Every 30 seconds it sends itself a notification over Django's connection. One that does not arrive tells of a pooler
    in between or of a dead connection: it reconnects, and warns.
    """

    def __init__(self, using: str, listen_on: str) -> None:
        self._using = using
        self._listen_on = listen_on
        self._wrapper = connections[listen_on].copy()
        options = self._wrapper.settings_dict["OPTIONS"]
        options.pop("pool", None)
        options.setdefault("application_name", "durableflow cluster")
        options.setdefault("connect_timeout", 5)
        self._wrapper.settings_dict["AUTOCOMMIT"] = True
        self._complaint = ""
        self._connect_at = 0.0
        self._test_at = 0.0
        self._token = ""
        self._token_lost_at = 0.0

    def arm(self) -> None:
        """Be listening, and forget what was heard so far: the look that follows sees it all."""
        now = time.monotonic()
        if self._raw() is None:
            if now < self._connect_at:
                return
            self._connect()
        else:
            self._receive(0.0)
        if self._raw() is not None:
            self._test(now)

    def wait(self, seconds: float, until: Callable[[], bool] | None = None, every: float = TICK) -> bool:
        """Wait for a hint."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not (until and until()):
            if self._raw() is None:
                pause(left, until, every)
            elif self._receive(min(left, every) if until else left):
                return True
        return False

    def close(self) -> None:
        """Close the connection."""
        self._token = ""
        self._wrapper.close()

    def _raw(self) -> Any:
        """The driver's connection, or None where there is none that works."""
        raw = self._wrapper.connection
        return None if raw is None or raw.closed else raw

    def _connect(self) -> None:
        self.close()
        try:
            with self._wrapper.cursor() as cursor:
                cursor.execute(f"LISTEN {CHANNEL}")
        except Error as error:
            self._lost(error)

    def _receive(self, seconds: float) -> bool:
        """Read notifications for at most ``seconds``; True if one of them was a hint."""
        try:
            with self._wrapper.wrap_database_errors:
                payloads = self._arrived()
                # Not the driver's own wait: it ends each by a dozen short ones, and a cluster at work waits all the time.
                if not payloads and seconds > 0 and _readable(self._raw(), seconds):
                    payloads = self._arrived()
        except Error as error:
            self._lost(error)
            return False
        if self._token and self._token in payloads:
            self._token = ""
            self._recovered()
        return any(not payload.startswith(_TEST) for payload in payloads)

    def _arrived(self) -> list[str]:
        """Payloads that are here. A list, so that the generator, which holds the connection's lock, is finished. What it reads
        along with a first notification, and what came along with the answer to LISTEN, it keeps for the next call."""
        return [note.payload for note in self._raw().notifies(timeout=0, stop_after=1)]

    def _test(self, now: float) -> None:
        """Send the next test when it is time; give up a connection over which the last one did not arrive."""
        if self._token:
            if now >= self._token_lost_at:
                self._test_at = now + TEST_EVERY
                self._complain(
                    f"The cluster does not hear notifications over the connection {self._listen_on!r} and looks each "
                    "second instead. Behind a pooler in transaction mode, name a direct connection in "
                    "DURABLEFLOW['LISTEN_DATABASE']."
                )
                self._connect()
        elif now >= self._test_at:
            self._test_at, self._token_lost_at = now + TEST_EVERY, now + TEST_PATIENCE
            self._token = _TEST + uuid.uuid4().hex
            notify(self._using, self._token)

    def _lost(self, error: Error) -> None:
        self.close()
        self._connect_at = time.monotonic() + RECONNECT_AFTER
        self._test_at = 0.0
        self._complain(
            f"The connection {self._listen_on!r} hears no notifications, the cluster looks each second: {error}"
        )

    def _complain(self, text: str) -> None:
        """Say it once until it is over: the cause may last for hours."""
        if not self._complaint:
            logger.warning(text)
        self._complaint = text

    def _recovered(self) -> None:
        if self._complaint:
            logger.info("The cluster hears notifications again.")
        self._complaint = ""


def _readable(raw: Any, seconds: float) -> bool:
    """Wait for something to read for at most ``seconds``."""
    try:
        return bool(select.select([raw], [], [], seconds)[0])
    except ValueError:  # a process with more than a thousand open files: the other one counts in whole milliseconds
        poll = select.poll()
        poll.register(raw, select.POLLIN)
        return bool(poll.poll(1000 * seconds))

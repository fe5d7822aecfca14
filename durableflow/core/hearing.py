"""Hearing in this process that an instance's history has grown: one thread and one connection per database, however many
follow (design 9; reference 12).

They are there while somebody follows, and a few seconds longer: who asks again and again need not connect each time.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from django.db import Error, connections

from durableflow.core.conf import get_settings
from durableflow.core.ears import Ear, PostgresEar, SqliteEar

logger = logging.getLogger("durableflow.notices")

THREAD: Final = "durableflow-hearing"
GLANCE: Final = 0.5
"""Seconds after which the thread looks whether somebody still follows."""
LINGER = 5.0
"""Seconds for which it stays when nobody follows any more."""
RECONNECT_AFTER: Final = 1.0
ECHO_WITHIN: Final = 5.0
"""Seconds within which the notice of a mark has to arrive here; else this process is deaf."""
RECONNECT_DEAF_EVERY: Final = 30.0
_MARK: Final = "mark "
_numbers: Final = itertools.count(1)


class Member:
    """One who follows the instance ``pk``. ``poke`` is called, in another thread, whenever it is worth looking."""

    def __init__(self, pk: int, poke: Callable[[], None]) -> None:
        self.pk = pk
        self.poke = poke


class Hub:
    """What this process hears of one database.

    ``deaf``: it hears nothing for now; those who follow have to look by themselves. ``generation`` rises with each
    connection, 0 before the first: what was committed while there was none was not heard.
    """

    def __init__(self, using: str, ear: Callable[[], Ear]) -> None:
        self.deaf = True
        self.generation = 0
        self._using = using
        self._new_ear = ear
        self._lock = threading.Lock()
        self._members: dict[int, set[Member]] = {}
        self._thread: threading.Thread | None = None
        self._lonely_at = 0.0
        self._name = uuid.uuid4().hex
        self._marks: dict[str, float] = {}
        self._marked: dict[tuple[int, bool], float] = {}
        self._complaint = ""
        self._reconnect_at = 0.0

    def join(self, pk: int, poke: Callable[[], None]) -> Member:
        """Be told from now on. Does not wait: ``poke`` is called once the connection is there."""
        member = Member(pk, poke)
        with self._lock:
            self._members.setdefault(pk, set()).add(member)
            if self._thread is None:
                self._start()
        return member

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name=THREAD, daemon=True)
        try:
            thread.start()  # it begins with the lock
        except RuntimeError as error:  # the system gives no more threads
            logger.warning("Nothing listens for those who follow; they look each second: %s", error)
        else:
            self._thread = thread

    def leave(self, member: Member) -> None:
        """Be told no more."""
        with self._lock:
            found = self._members.get(member.pk, set())
            found.discard(member)
            if not found:
                self._members.pop(member.pk, None)
                for ends in (False, True):
                    self._marked.pop((member.pk, ends), None)
            self._lonely_at = time.monotonic()

    def marked_at(self, pk: int, ends: bool) -> float | None:
        """When somebody of this process has marked the instance last, since the present connection is there: one mark serves
        all. ``ends``: for its end and for rest alone (``core.notices``)."""
        with self._lock:
            return self._marked.get((pk, ends))

    def note_mark(self, pk: int, ends: bool, generation: int, at: float) -> None:
        """It was marked at that moment, when the connection was of that generation."""
        with self._lock:
            if generation == self.generation and pk in self._members:
                self._marked[pk, ends] = at

    def expect(self) -> str:
        """The text of a notice that somebody is about to give: it has to arrive here soon."""
        text = f"{_MARK}{self._name}.{next(_numbers)}"
        with self._lock:
            self._marks[text] = time.monotonic()
        return text

    def forget(self, text: str) -> None:
        """That notice was not given."""
        with self._lock:
            self._marks.pop(text, None)

    def _run(self) -> None:
        ear, connected = self._new_ear(), False
        try:
            while self._wanted():
                try:
                    if not connected:
                        ear.open()
                        connected = True
                        self._opened(ear.tested)
                    self._hand_out(ear.hear(GLANCE))
                    if self._unheard():
                        connected = False
                except (Error, OSError) as error:
                    connected = False
                    ear.close()
                    self._lost(error)
        finally:
            ear.close()
            with self._lock:
                if self._thread is threading.current_thread():
                    self._end()

    def _wanted(self) -> bool:
        with self._lock:
            if self._members or time.monotonic() - self._lonely_at < LINGER:
                return True
            self._end()  # under the lock: whoever comes now starts another
            return False

    def _end(self) -> None:
        self._thread = None
        self.deaf, self.generation = True, 0
        self._marks.clear()
        self._marked.clear()

    def _opened(self, tested: bool) -> None:
        with self._lock:
            self.generation += 1
            self._marks.clear()
            self._marked.clear()
            # A pooler may swallow what comes: until the notice of a mark has arrived, it is looked each second.
            self.deaf = True
        if not tested:
            self._recovered()
        self._poke_all()

    def _hand_out(self, payloads: Iterable[str]) -> None:
        for payload in payloads:
            if payload.startswith(_MARK):
                with self._lock:
                    own = self._marks.pop(payload, None) is not None
                if own:
                    was_deaf = self.deaf
                    self._recovered()
                    if was_deaf:
                        self._poke_all()  # who waits for a second has no need to
            elif payload.isdecimal():
                with self._lock:
                    found = list(self._members.get(int(payload), ()))
                _poke(found)
            else:
                self._poke_all()

    def _unheard(self) -> bool:
        """Whether the notice of a mark has not arrived, so that a new connection is worth a try."""
        now = time.monotonic()
        with self._lock:
            late = any(now - at > ECHO_WITHIN for at in self._marks.values())
            if late:
                self._marks.clear()
        if not late:
            return False
        self._complain(
            f"This process does not hear notifications of the database {self._using!r}; those who follow look each second "
            "instead. Behind a pooler in transaction mode, name a direct connection in DURABLEFLOW['LISTEN_DATABASE']."
        )
        if now < self._reconnect_at:
            return False
        self._reconnect_at = now + RECONNECT_DEAF_EVERY
        return True

    def _lost(self, error: Exception) -> None:
        said = " ".join(str(error).split())
        self._complain(
            f"Notifications of the database {self._using!r} are not heard; who follows looks each second: {said}"
        )
        end = time.monotonic() + RECONNECT_AFTER
        while time.monotonic() < end and self._wanted():
            time.sleep(0.05)

    def _complain(self, text: str) -> None:
        """Say it once until it is over: the cause may last for hours."""
        if not self._complaint:
            logger.warning(text)
        self._complaint = text
        self.deaf = True
        self._poke_all()

    def _recovered(self) -> None:
        if self._complaint:
            logger.info("Notifications of the database %r are heard again.", self._using)
        self._complaint, self.deaf = "", False

    def _poke_all(self) -> None:
        with self._lock:
            found = [member for members in self._members.values() for member in members]
        _poke(found)


def _poke(members: Iterable[Member]) -> None:
    for member in members:
        try:
            member.poke()
        except RuntimeError:  # its event loop has been closed
            logger.debug("Somebody who followed has gone without a word.")


_hubs: dict[str, Hub] = {}
_hubs_lock = threading.Lock()


def hub_of(using: str) -> Hub | None:
    """This process's hub for the database; None where nothing can be heard: in a database in memory, or of another kind."""
    with _hubs_lock:
        if using not in _hubs:
            connection = connections[using]
            if connection.vendor == "postgresql":
                ear: Callable[[], Ear] = partial(PostgresEar, get_settings().LISTEN_DATABASE or using)
            elif connection.vendor == "sqlite" and not connection.is_in_memory_db():  # type: ignore[attr-defined]
                ear = partial(SqliteEar, using)
            else:
                return None
            _hubs[using] = Hub(using, ear)
        return _hubs[using]


def _after_fork() -> None:
    """The thread has stayed in the parent, and what it has open belongs to the parent: it is left alone, not closed."""
    global _hubs, _hubs_lock
    _hubs, _hubs_lock = {}, threading.Lock()


os.register_at_fork(after_in_child=_after_fork)

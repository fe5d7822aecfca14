"""The world around the workflows: starts instances, sends each event twice as providers do, decides approvals."""

from __future__ import annotations

import heapq
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from django.db import InterfaceError, OperationalError, connections

from durableflow import InstanceAlreadyExists, StaleDecision
from durableflow.models import PendingEvent
from tests.chaos.workflows import NOTES, workflow_of

SPREAD: Final = 3.0
"""Seconds after an instance's creation within which its events are sent."""
PAUSE: Final = 0.1


class Driver:
    """A thread that acts until it is stopped. ``created``: number by id of every instance whose creation was answered."""

    def __init__(self, instances: int, seconds: float, ledger: str, dice: random.Random) -> None:
        self.created: dict[str, int] = {}
        self.error: BaseException | None = None
        self.sent = 0
        self._instances, self._seconds, self._ledger, self._random = instances, seconds, ledger, dice
        self._stop = threading.Event()
        self._calendar: list[tuple[float, int, Callable[[], None]]] = []
        self._thread = threading.Thread(target=self._run, name="driver", daemon=True)

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Act while the block runs."""
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()

    @property
    def done(self) -> bool:
        """Whether everything was created and sent."""
        return len(self.created) == self._instances and not self._calendar

    def _run(self) -> None:
        try:
            begun = time.monotonic()
            for number in range(self._instances):
                self._at(begun + self._seconds * number / self._instances, lambda number=number: self._create(number))
            while not self._stop.is_set():
                while self._calendar and self._calendar[0][0] <= time.monotonic() and not self._stop.is_set():
                    act = self._calendar[0][2]
                    self._surely(act)
                    heapq.heappop(self._calendar)
                self._surely(self._decide)
                self._stop.wait(PAUSE)
        except BaseException as error:
            self.error = error
        finally:
            connections.close_all()

    def _at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._calendar, (when, self._random.getrandbits(60), act))

    def _surely(self, act: Callable[[], Any]) -> None:
        """Act, again and again while the database is away: everything here may be repeated."""
        while not self._stop.is_set():
            try:
                act()
                return
            except (OperationalError, InterfaceError):
                connections.close_all()
                self._stop.wait(PAUSE)

    def _create(self, number: int) -> None:
        workflow = workflow_of(number)
        name = f"chaos-{number}"
        try:
            workflow.create({"number": number, "ledger": self._ledger}, instance_id=name)
        except InstanceAlreadyExists:
            pass  # the answer to the first try was lost
        self.created[name] = number
        first = time.monotonic()
        for note in NOTES:
            first += self._random.uniform(0, SPREAD / len(NOTES))
            # The second note is sent after the first is: the calendar is kept in order by one thread.
            for when in (first, first + self._random.uniform(0, SPREAD)):
                self._at(when, lambda note=note: self._send(workflow.get(name), note))

    def _send(self, row: Any, note: str) -> None:
        row.send_event("note", note, dedupe_key=note)
        self.sent += 1

    def _decide(self) -> None:
        for wait in PendingEvent.objects.open().filter(kind="wait_for_approval"):
            try:
                wait.decide(True, by=None, comment=f"yes {wait.name}")
            except StaleDecision:
                continue  # the answer to the first try was lost

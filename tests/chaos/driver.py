"""The world around the workflows: starts instances, sends each event twice as providers do, decides approvals, and does what
operators do: retries what has failed, mends code and resumes what was blocked, terminates."""

from __future__ import annotations

import heapq
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from django.db import InterfaceError, OperationalError, connections

from durableflow import InvalidTransition, StaleDecision
from durableflow.models import PendingEvent, WorkflowInstance
from tests.chaos.sender import Sender
from tests.chaos.verdict import Line, write
from tests.chaos.workflows import NOTES, ChaosMended, mend, workflow_of

SPREAD: Final = 3.0
"""Seconds within which an instance's next event follows, and each event's duplicate."""
REFUSED: Final = 0.5
"""Seconds until a refused event is sent again."""
PAUSE_SHARE: Final = 0.3
"""In so many of their turns people pause somebody's instance, while there is trouble."""
PAUSED: Final = 1.0
"""Seconds within which it is resumed."""
DOOM: Final = 5.0
"""Seconds after its creation within which a doomed one is terminated."""
PAUSE: Final = 0.1
Status = WorkflowInstance.Status


class Driver:
    """Two threads, programs and people, that act until they are stopped. ``created``: number by id of every instance whose
    creation was answered;
    ``doomed`` more than ``instances`` are to be terminated. ``did``: counts of what it did."""

    def __init__(self, instances: int, doomed: int, seconds: float, ledger: str, dice: random.Random) -> None:
        self.created: dict[str, int] = {}
        self.doomed: set[str] = set()
        self.error: BaseException | None = None
        self.did: Counter[str] = Counter()
        self.total = instances + doomed
        self._instances, self._seconds, self._ledger, self._random = instances, seconds, ledger, dice
        self._sender = Sender(dice)
        self._stop = threading.Event()
        self._paused: dict[str, float] = {}
        self._pausing_until = time.monotonic() + seconds
        self._calendar: list[tuple[float, int, Callable[[], bool | None]]] = []
        self._threads = [
            threading.Thread(target=self._run, args=(work,), name=f"driver-{work.__name__}", daemon=True)
            for work in (self._programs, self._people)
        ]

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Act while the block runs."""
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()

    @property
    def done(self) -> bool:
        """Whether everything was created and sent."""
        return len(self.created) == self.total and not self._calendar

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self.error = error
        finally:
            connections.close_all()

    def _programs(self) -> None:
        begun = time.monotonic()
        for number in range(self.total):
            when = begun + self._seconds * (number % self._instances + self._random.random()) / self._instances
            self._at(when, lambda number=number: self._create(number))
        try:
            while not self._stop.is_set():
                while self._calendar and self._calendar[0][0] <= time.monotonic() and not self._stop.is_set():
                    entry = heapq.heappop(self._calendar)
                    self._surely(entry[2])
                self._stop.wait(PAUSE)
        finally:
            self._sender.end()
            self.did["senders killed"] = self._sender.killed

    def _people(self) -> None:
        while not self._stop.is_set():
            for act in (self._decide, self._retry, self._resume, self._pause, self._unpause):
                self._surely(act)
            self._stop.wait(PAUSE)

    def _at(self, when: float, act: Callable[[], bool | None]) -> None:
        heapq.heappush(self._calendar, (when, self._random.getrandbits(60), act))

    def _surely(self, act: Callable[[], bool | None]) -> None:
        """Act, again and again while the database is away or the sender dies: everything here may be repeated. An act that
        gives False was not answered."""
        while not self._stop.is_set():
            try:
                if act() is not False:
                    return
            except (OperationalError, InterfaceError):
                connections.close_all()
            self._stop.wait(PAUSE)

    # What programs do ---------------------------------------------------------------------------------------------------

    def _create(self, number: int) -> bool:
        name = f"chaos-{number}"
        if self._sender.ask(number, name, self._ledger) is None:
            return False
        self.created[name] = number
        now = time.monotonic()
        if number >= self._instances:
            self.doomed.add(name)
            self._at(now + self._random.uniform(0, DOOM), lambda: self._terminate(name, number))
        self._at(now + self._random.uniform(0, SPREAD), lambda: self._send(name, number, 0))
        return True

    def _send(self, name: str, number: int, which: int, *, again: bool = False) -> bool:
        """Send a note; once it is accepted, the same again at some time, and the next one."""
        answer = self._sender.ask(number, name, self._ledger, NOTES[which])
        if answer is None:
            return False
        now = time.monotonic()
        if answer:  # the instance has ended: by a failure that is to be retried, or it is doomed
            self.did["events refused"] += 1
            if name not in self.doomed:
                self._at(now + REFUSED, lambda: self._send(name, number, which, again=again))
            return True
        self.did["events sent"] += 1
        if not again:
            self._at(now + self._random.uniform(0, SPREAD), lambda: self._send(name, number, which, again=True))
            if which + 1 < len(NOTES):
                self._at(now + self._random.uniform(0, SPREAD), lambda: self._send(name, number, which + 1))
        return True

    # What people do -----------------------------------------------------------------------------------------------------

    def _decide(self) -> None:
        for wait in PendingEvent.objects.open().filter(kind="wait_for_approval"):
            try:
                wait.decide(True, by=None, comment=f"yes {wait.name}")
            except StaleDecision:
                continue  # the answer to the first try was lost, or the instance was terminated

    def _retry(self) -> None:
        """An instance that has ended with the error that is to be expected of it."""
        for row in self._mended(status=Status.ERRORED):
            if "breaks" not in (row.error or {}).get("step", ""):
                continue
            write(self._ledger, Line("retry", row.instance_id))
            self._verb(row.retry, "retried")

    def _resume(self) -> None:
        for row in self._mended(status=Status.PAUSED, blocked__contains="SuspensionSwallowed"):
            sign = mend(self._ledger, row.instance_id)
            sign.parent.mkdir(exist_ok=True)
            sign.touch()
            self._verb(row.resume, "resumed")

    def _pause(self) -> None:
        """Anybody's instance, whatever it does. After the ``paused`` line nothing of it starts."""
        if self._random.random() > PAUSE_SHARE or time.monotonic() > self._pausing_until:
            return
        names = [name for name in list(self.created) if name not in self._paused]
        row = WorkflowInstance.objects.filter(instance_id=self._random.choice(names)).first() if names else None
        if row is None:
            return
        # Before the verb: where its answer is lost it may have been done all the same.
        self._paused[row.instance_id] = time.monotonic() + self._random.uniform(0, PAUSED)
        if self._verb(row.pause, "paused") and row.status == Status.PAUSED:
            write(self._ledger, Line("paused", row.instance_id))

    def _unpause(self) -> None:
        now = time.monotonic()
        for name in [name for name, until in self._paused.items() if until <= now]:
            row = WorkflowInstance.objects.get(instance_id=name)
            if not row.blocked:
                write(self._ledger, Line("resumed", name))
                self._verb(row.resume, "taken up")
            del self._paused[name]

    def _mended(self, **where: Any) -> list[WorkflowInstance]:
        return list(WorkflowInstance.objects.filter(workflow=ChaosMended.options.name, **where))

    def _terminate(self, name: str, number: int) -> None:
        row = workflow_of(number).get(name)
        if self._verb(row.terminate, "terminated") or workflow_of(number).get(name).status == Status.TERMINATED:
            write(self._ledger, Line("terminated", name))  # the answer to the first try may have been lost

    def _verb(self, verb: Callable[[], Any], name: str) -> bool:
        try:
            verb()
        except InvalidTransition:
            return False
        self.did[name] += 1
        return True

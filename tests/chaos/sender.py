"""The process that creates instances and sends events, so that it can be killed between any two lines.

What it was asked and has not answered is asked again of the next one, as a provider does whose request got no answer.
"""

from __future__ import annotations

import multiprocessing
import random
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Final

import django
from django.db import InterfaceError, OperationalError, connections

KILL_SHARE: Final = 0.03
"""So many of the requests are not survived."""
KILL_WITHIN: Final = 0.01
PAUSE: Final = 0.1


def serve(requests: Connection) -> None:
    """In the process: do what is asked, one after the other, and answer."""
    django.setup()
    from durableflow import InstanceAlreadyExists, InvalidTransition
    from tests.chaos.workflows import workflow_of

    while True:
        number, name, ledger, note = requests.recv()
        workflow = workflow_of(number)
        answer = ""
        try:
            if note:
                workflow.get(name).send_event("note", note, dedupe_key=note)
            else:
                workflow.create({"number": number, "ledger": ledger}, instance_id=name)
        except InstanceAlreadyExists:
            answer = "exists"
        except InvalidTransition as error:
            answer = f"refused: {error}"
        except (OperationalError, InterfaceError):
            connections.close_all()
            answer = "away"
        requests.send(answer)


class Sender:
    """Its other end. One request at a time."""

    def __init__(self, dice: random.Random) -> None:
        self.killed = 0
        self._random = dice
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.chaos.preload"])
        self._process: Any = None
        self._requests: Any = None

    def ask(self, number: int, name: str, ledger: str, note: str = "") -> str | None:
        """Create an instance, or send it an event; the answer, None if there was none."""
        if self._process is None:
            self._start()
        kill = self._random.random() < KILL_SHARE
        try:
            self._requests.send((number, name, ledger, note))
            if kill:
                time.sleep(self._random.uniform(0, KILL_WITHIN))
                self.killed += 1
                self.end()
                return None
            answer = str(self._requests.recv())
        except (EOFError, OSError):  # somebody else has killed it
            self.end()
            return None
        return None if answer == "away" else answer

    def _start(self) -> None:
        self._requests, theirs = self._context.Pipe()
        self._process = self._context.Process(target=serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def end(self) -> None:
        """Kill it."""
        if self._process is not None:
            with suppress(OSError):
                self._process.kill()
            self._process.join()
            self._requests.close()
            self._process = None

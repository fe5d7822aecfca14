"""What the instance's thread does with the durable calls of an ``async def run`` (design 6, "Suspension, async").

It answers one at a time, with what answers those of a plain ``run``. A call that has to wait is parked; a recorded answer that
comes too early is held back; when the loop rests and nothing is under way, that is all there is, and the instance is suspended.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final

from durableflow.core import atomicity
from durableflow.core.exceptions import InvalidDurableCall
from durableflow.engine.asyncbody import AsyncBodyRun, Body
from durableflow.engine.asynccalls import Calls, DurableCall, drop
from durableflow.engine.desk import END, NEW, Desk, Turn
from durableflow.engine.execution import Execution
from durableflow.engine.handover import adopt_locals
from durableflow.engine.journal import Identity, Record
from durableflow.engine.loop import Loop, Rest
from durableflow.engine.replay import Scope
from durableflow.engine.seats import Seat
from durableflow.engine.unwind import Block, LeaseLost, Suspend, Unwind, WriteFailed

logger = logging.getLogger("durableflow.engine")
LOOK: Final = 0.1
"""Seconds between two looks for a stop, and for what has arrived, while something is under way."""
BUSY_TURNS: Final = 10_000
"""After so many turns without a rest a loop gets its next answer all the same: something in it spins."""
TELL_SECONDS: Final = 10.0
"""After so long it is told what keeps an instance from being put away."""
TURN_SECONDS: Final = 1.0
"""For so long a loop is waited for to come to its next turn: code in it may block it."""
STALLED_SECONDS: Final = 30.0
"""For so long ``run`` may wait for what only another thread could bring."""
FORSAKEN_SECONDS: Final = 1.0
"""For so long a loop may be awake beside calls that wait when a task in it was given up."""
AGAIN: Final = object()
"""The answer to a call that waited, and is to be made again."""


@dataclass(eq=False)
class Ask:
    """One durable call in the instance's thread. ``answer``: gives its value, raises its error, or unwinds to wait. ``again``: the
    same for later, when a body of it has ended meanwhile. ``future``: gets value and error."""

    call: DurableCall
    future: asyncio.Future[tuple[Any, Exception | None]]
    scope: Scope
    identity: Identity | None
    record: Record | None
    answer: Callable[[], Any]
    again: Callable[[], Any]
    seat: Seat | None
    wake_at: datetime | None = None
    label: str = ""
    parked: bool = False
    turn: Turn = NEW

    @property
    def held_by(self) -> Record | None:
        """What has to be called before this may be answered."""
        return None if self.record is None else self.scope.earlier_unmet(self.record)

    def deliver(self, value: Any, error: Exception | None) -> None:
        """In the loop: the answer."""
        if self.future.done():
            drop(value)
        else:
            self.future.set_result((value, error))

    def park(self) -> None:
        """In the loop: the call waits, and its branch may leave its place to others."""
        if self.seat is not None and not self.call.gone:
            self.parked = True
            self.seat.park()

    def wake(self) -> None:
        """In the loop: it waits no longer."""
        if self.parked and self.seat is not None:
            self.parked = False
            self.seat.wake()


class Order:
    """In which order recorded calls ended, as far as a replay has come. In the loop's thread."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._ended = sorted(record.ended for record in records if record.finished and record.ended is not None)
        self._next = 0

    def is_next(self, record: Record) -> bool:
        """Whether no other one ended before ``record`` that has not been answered yet."""
        done = self._next >= len(self._ended)
        return record.ended is None or done or record.ended <= self._ended[self._next]

    def passed(self, record: Record) -> None:
        """It is answered."""
        if record.ended is not None:
            self._next = max(self._next, bisect_right(self._ended, record.ended))


class Answers:
    """The instance's thread at work. ``bodies``: those that run in the loop. ``forsaken``: whether a task was given up, which may
    keep the loop awake for ever."""

    def __init__(self, execution: Execution, loop: Loop, desk: Desk, calls: Calls) -> None:
        self._execution, self._replay = execution, execution.replay
        self.bodies: set[AsyncBodyRun] = set()
        self.order = Order(self._replay.records.values())
        self.forsaken = False
        self._loop, self._desk, self._calls = loop, desk, calls
        self._parked: dict[DurableCall, Ask] = {}
        self._held: list[Ask] = []
        self._queued: list[Ask] = []
        self._undelivered: set[Body] = set()
        self._sent = 0
        self._turns = 0
        self._look_at = 0.0
        self._stalled_at: Rest | None = None
        self._stalled_since = 0.0
        self._heard = execution.news
        self._awake_since = time.monotonic()

    def submit(self, ask: Ask, turn: Turn) -> None:
        """Any thread: have it answered."""
        self._desk.ask(turn, partial(self._do, ask, turn))

    def step(self) -> None:
        """Do one thing, or wait for something to do. Raises Unwind, and whatever else ends the execution."""
        rest = self._loop.rest
        self._desk.collect()  # after that look: what was asked before the loop rested is taken in
        settled = rest is not None and rest.seen == self._sent and self._loop.rest is rest
        if settled:
            self._turns = self._loop.turns
            self._release_held()
        work = self._desk.take(settled=settled or self._loop.turns - self._turns > BUSY_TURNS)
        if work is not None:
            self._turns = self._loop.turns
            work()
        elif self._queued and settled and not self._alone():
            self._again(self._queued.pop(0), NEW)
        elif not (settled and rest is not None and rest.quiet and self._quiescent()):
            self._desk.collect(LOOK)
            self._look()

    def check_abandoned(self) -> None:
        """Leave an instance of which the watcher has given a body up: it has recorded that, and lets the instance go."""
        if any(body.attempt.abandoned for body in list(self.bodies)):
            raise LeaseLost(self._replay.where)

    def end_bodies(self, alive: Callable[[], bool]) -> None:
        """Bodies in flight end and are stored: nobody else may begin with the instance before (design 1)."""
        while self._under_way() and alive() and not self._execution.lease.lost:
            self._do_now(LOOK)
        turned = threading.Event()  # one that has ended this moment asks in the same turn of the loop to be stored
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(turned.set)
            turned.wait(TURN_SECONDS)
        self._do_now(0)

    def close(self) -> None:
        """Keep nothing. Bodies that were begun and that the loop has not taken any more do not go on."""
        for body in self._undelivered:
            body.drop()
        for kept in (self._undelivered, self._parked, self._held, self._queued):
            kept.clear()

    def _do_now(self, wait: float) -> None:
        self._desk.collect(wait)
        while (work := self._desk.take_end()) is not None:
            work()

    def _do(self, ask: Ask, turn: Turn) -> None:
        """One question, answered or put off."""
        if ask.call.gone and turn != END:
            return
        if turn == NEW and self._alone():
            self._queued.append(ask)
            return
        if turn != END and ask.held_by is not None:
            ask.turn = turn
            self._held.append(ask)
            return
        try:
            value = ask.call.context.run(self._in_context, ask.answer, turn)
        except Unwind as stop:
            if not isinstance(stop.outcome, Suspend):
                raise
            ask.scope.stop = None
            if self._replay.stop is stop:
                self._replay.stop = None
            if turn == END and ask.call.gone:
                return
            ask.wake_at, ask.label = stop.outcome.wake_at, stop.outcome.where
            self._parked[ask.call] = ask
            if ask.seat is not None:
                self._post(ask.park)
        except Exception as error:
            self._send(ask, None, error)
        else:
            if isinstance(value, Body):
                self._undelivered.add(value)
            self._send(ask, value, None)

    def _in_context(self, answer: Callable[[], Any], turn: Turn) -> Any:
        try:
            if turn != END:  # a body that has ended is stored, whatever is asked of the process
                adopt_locals()
                self._execution.check_alive()
                self._check_no_block()
            return answer()
        except (WriteFailed, MemoryError) as error:
            self._execution.engine_failed(error)

    def _check_no_block(self) -> None:
        if block := atomicity.opened(self._replay.root.wrappers):
            atomicity.abandon_opened()
            self._replay.refuse(
                f"A durable call of {self._replay.where} was made while {block} was open: sync_to_async has left it so. Open and end a "
                "block inside of one function."
            )

    def _send(self, ask: Ask, value: Any, error: Exception | None) -> None:
        self._post(partial(self._deliver, ask, value, error))

    def _deliver(self, ask: Ask, value: Any, error: Exception | None) -> None:
        """In the loop."""
        if ask.record is not None:
            self.order.passed(ask.record)
        ask.deliver(value, error)

    def _post(self, callback: Callable[[], None]) -> None:
        """Have the loop call back. Counted: until then the loop does not rest."""
        self._sent += 1
        self._loop.call_soon_threadsafe(self._posted, callback)

    def _posted(self, callback: Callable[[], None]) -> None:
        self._loop.seen += 1
        callback()

    # When nothing goes on by itself ---------------------------------------------------------------------------------------

    def _quiescent(self) -> bool:
        """The loop rests, and nothing but an answer can wake it. Suspends the instance if calls wait; True if one has been let
        go on instead."""
        self._held = [ask for ask in self._held if not ask.call.gone]
        if self._held:
            self._let_go_held()
            return True
        if self._replay.refusal is not None:
            self._replay.unwind(Unwind(Block(self._replay.refusal)))  # somebody has caught it
        waiting = self._waiting()
        if not waiting:
            self._look_for_stall()
            return False
        if self._has_news():  # a look of one call has taken delivery of what another one waits for
            for ask in waiting:
                self._again(ask, NEW)
            return True
        wakes = [ask.wake_at for ask in waiting if ask.wake_at is not None]
        first = min(waiting, key=lambda ask: (ask.wake_at is None, ask.wake_at))
        self._replay.suspend(self._replay.root, Unwind(Suspend(min(wakes, default=None), first.label)))

    def _has_news(self) -> bool:
        """Whether something has arrived since this was last asked."""
        before, self._heard = self._heard, self._execution.news
        return self._heard != before

    def _look_for_stall(self) -> None:
        """``run`` waits for something of its own: another thread may bring it, but not for ever."""
        now = time.monotonic()
        if self._loop.rest is not self._stalled_at:
            self._stalled_at, self._stalled_since = self._loop.rest, now
        elif now - self._stalled_since > STALLED_SECONDS:
            failed = self._calls.failed_tasks()
            self._replay.halt(
                InvalidDurableCall(
                    f"run() of {self._replay.where} waits for something that no call, timer, connection or task will bring"
                    f"{f' ({failed})' if failed else ''}. Await the tasks that bring it, so that their errors are seen; then resume "
                    "the instance."
                )
            )

    def _let_go_held(self) -> None:
        """Answers that are held back for calls which this replay has not made. If the program has cancelled a task, that one would
        have made them; else the program has changed."""
        ready = [ask for ask in self._held if ask.held_by is None]
        if not ready:
            first = min(self._held, key=lambda ask: 0 if ask.record is None else ask.record.seq)
            missed = first.held_by
            if missed is not None and first.identity is not None and not self._calls.cancelled:
                self._replay.skipped(first.identity, missed)
            first.scope.forgive(None if first.record is None else first.record.seq)
            ready = [first]
        self._release(ready)

    def _release_held(self) -> None:
        """For some, all that had to be called first may be called by now."""
        if self._held:
            self._release([ask for ask in self._held if ask.held_by is None])

    def _release(self, these: list[Ask]) -> None:
        for ask in these:
            self._held.remove(ask)
            self.submit(ask, ask.turn)
        self._desk.collect()

    def _alone(self) -> bool:
        """Whether an async body is under way that shall be alone: after a worker was lost, until something is stored (design 6,
        "Interruptions")."""
        return self._execution.interrupted and self._under_way()

    def _under_way(self) -> bool:
        """Whether a body runs in the loop, or was begun and is on its way there."""
        self._undelivered = {body for body in self._undelivered if not body.begun}
        return bool(self.bodies or self._undelivered)

    def _waiting(self) -> list[Ask]:
        for call in [call for call in self._parked if call.gone]:
            del self._parked[call]
        return list(self._parked.values())

    def _again(self, ask: Ask, turn: Turn) -> None:
        parked = self._parked.pop(ask.call, None)
        if parked is not None and ask.seat is not None:
            self._send(ask, AGAIN, None)  # it has left its place, and takes one first
            return
        ask.answer = ask.again
        self.submit(ask, turn)

    def _look(self) -> None:
        """While something is under way: has the process to stop, is somebody to be left, can a call go on that waits?"""
        if self._calls.stuck is not None:
            self._replay.give_up(self._calls.stuck)
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK
        self.check_abandoned()
        if not self._under_way():
            self._execution.check_alive()
        waiting = self._waiting()
        if not waiting or self.bodies:
            self._awake_since = now
        elif self.forsaken and now - self._awake_since > FORSAKEN_SECONDS:
            self._quiescent()
        elif now - self._awake_since > TELL_SECONDS:
            self._awake_since = math.inf
            self._tell_why_awake(waiting)
        if waiting and not self._execution.dry:
            moment = self._execution.claim.db_now()
            self._execution.take_news()
            news = self._has_news()
            for ask in waiting:
                if news or (ask.wake_at is not None and ask.wake_at <= moment):
                    self._again(ask, NEW)

    def _tell_why_awake(self, waiting: list[Ask]) -> None:
        """Calls that wait cost nothing, but a loop that something else keeps awake does: say so once."""
        logger.warning(
            "%s waits at %s, but cannot be put away: outside of a step its event loop has %s. Put that into a step, or end it "
            "before the call that waits (a client's connection, say).",
            self._replay.where,
            ", ".join(ask.label for ask in waiting),
            self._loop.kept_by(),
            extra={"instance": self._execution.lease.pk},
        )

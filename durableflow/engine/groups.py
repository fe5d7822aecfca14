"""Running the branches of a gather or a map (design 7).

The calling thread works on its own branches; threads of the process help (``engine.branches``). A branch that has to wait is
parked: when its moment has come it is run again from its beginning, over what it has recorded, so it goes on while others are
still in their bodies. When nothing can go on, the scope around the group is suspended.
"""

from __future__ import annotations

import contextvars
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any, Final, NoReturn

from django.db import connections

from durableflow.core import atomicity, clock
from durableflow.core.exceptions import InvalidDurableCall
from durableflow.engine import scopes, watcher
from durableflow.engine.branch import Branch, State
from durableflow.engine.branches import branches
from durableflow.engine.handover import adopt_locals
from durableflow.engine.journal import Identity
from durableflow.engine.replay import Scope, swallowed
from durableflow.engine.session import Session
from durableflow.engine.unwind import Block, Drop, GiveBack, LeaseLost, ProcessDied, Suspend, Unwind, WriteFailed

LOOK: Final = 0.1
"""Seconds between two looks for a stop, and for what has arrived, while others are in their bodies; they grow to ``LONG_LOOK`` as
long as nothing happens: a body may take hours."""
LONG_LOOK: Final = 0.5


class Group:
    """The branches of one call, while they run. ``replayed``: whether all that they do is recorded already."""

    def __init__(
        self,
        session: Session,
        scope: Scope,
        identity: Identity,
        made: Sequence[Branch],
        concurrency: int | None,
        *,
        replayed: bool = False,
    ) -> None:
        self._session, self._scope, self._identity = session, scope, identity
        self._most = concurrency or len(made)
        self._state = threading.Condition(threading.RLock())
        self._ready = deque(made)
        self._parked: set[Branch] = set()
        self._due: list[tuple[datetime, int, Branch]] = []  # of the parked, a heap; some have gone on meanwhile
        self._tie = count()
        self._heard = session.news
        self._lookouts = self._looking = 0
        self._look = LOOK
        self._running = 0
        self._fatal: BaseException | None = None
        self._over = False
        self._caller_lost = False
        self._mine: tuple[Branch, int] | None = None
        self._context = contextvars.copy_context()
        # Nobody helps where nobody looks after bodies in other threads (the testing kit).
        self._helped = not (session.dry or replayed) and watcher.current(session.lease) is not None

    def settle(self) -> None:
        """Run all branches until each has a value or an error. Suspends the scope around the group, or unwinds the execution,
        where that cannot be."""
        try:
            while True:
                branch = self._take(mine=True)
                if branch is not None:
                    self._run(branch, helping=False)
                elif not self._wait():
                    break
        except BaseException as error:
            self._fail(error)
            if self._mine is not None:  # a signal may have hit between any two lines
                self._settled(*self._mine, State.DONE)
        finally:
            self._leave_no_thread()
        if self._caller_lost:
            raise LeaseLost(self._session.lease.label)  # others have gone on with the branch around the group
        if self._fatal is not None:
            self._raise_fatal()
        if self._parked:
            wakes = [branch.wake_at for branch in self._parked if branch.wake_at is not None]
            self._session.suspend(self._scope, min(wakes, default=None), self._identity)

    def help(self) -> None:
        """In another thread: run branches as long as one is ready, and see to those that wait as long as nobody else does."""
        while True:
            branch = self._take()
            if branch is None:
                if not self._look_out():
                    return
            elif not self._run(branch, helping=True):
                return

    # What to run ------------------------------------------------------------------------------------------------------

    def _take(self, *, mine: bool = False) -> Branch | None:
        """The next branch that may run, which the caller runs now. ``mine``: that is the thread that settles the group."""
        with self._state:
            if self._over or self._fatal is not None or not self._may_take():
                return None
            branch = self._ready.popleft()
            if mine:
                self._mine = branch, branch.turn + 1
            branch.state, branch.turn, branch.heard = State.RUNNING, branch.turn + 1, self._session.news
            self._running += 1
            more = 0
            if self._helped and not self._session.interrupted:
                more = min(len(self._ready), self._most - self._running)
                if not more and self._parked and not self._lookouts:
                    more = 1  # somebody has to see when they can go on
        if more > 0:
            branches().ask(self, more)
        return branch

    def _may_take(self) -> bool:
        """Whether a branch is ready, and may run beside those that do: one that waits leaves its place to others."""
        news = self._session.news
        if news != self._heard:
            self._heard = news
            self._make_ready([branch for branch in self._parked if branch.heard < news])
        if self._due:
            now = self._session.claim.db_now()
            while (first := self._first_due()) is not None and first <= now:
                self._make_ready([self._due[0][2]])
        return bool(self._ready) and self._running < (1 if self._session.interrupted else self._most)

    def _first_due(self) -> datetime | None:
        """When the next of the parked branches can go on by itself."""
        while self._due:
            wake_at, _tie, branch = self._due[0]
            if branch.state is State.PARKED and branch.wake_at == wake_at:
                return wake_at
            heappop(self._due)
        return None

    def _make_ready(self, these: Iterable[Branch]) -> None:
        for branch in these:
            branch.state = State.READY
            self._parked.discard(branch)
            self._ready.append(branch)

    def _park(self, branch: Branch) -> None:
        self._parked.add(branch)
        self._look = LOOK
        asked, branch.asked = branch.asked, branch.wake_at
        if branch.wake_at is not None:
            if branch.wake_at == asked and clock.stopped() is None:
                # It was looked at then, and too early by the database's clock, which somebody has set back.
                branch.wake_at = max(branch.wake_at, self._session.claim.db_now() + timedelta(seconds=LOOK))
            heappush(self._due, (branch.wake_at, next(self._tie), branch))

    def _wait(self) -> bool:
        """In the calling thread: wait until something changes; False if nothing will by itself: no branch is running or
        ready."""
        with self._state:
            if self._fatal is not None or self._over:
                return False
            if self._may_take():
                return True
            if not (self._running or self._looking):
                return False
            self._lookouts += 1
            self._state.wait(self._pause())
            self._lookouts -= 1
        self._session.check_alive()
        self._look_for_news()
        return True

    def _look_out(self) -> bool:
        """In a helping thread: the same, while the calling thread is in a body; False if nobody is needed for that."""
        with self._state:
            if self._over or self._fatal is not None or not self._parked or self._lookouts or not self._running:
                return False
            self._lookouts += 1
            self._state.wait(self._pause())
            self._lookouts -= 1
        try:
            self._look_for_news()
        except LeaseLost:  # the calling thread was given up, or will find that out
            return False
        return True

    def _look_for_news(self) -> None:
        """What has arrived may be for any that waits, here or in a group around this one. Nobody leaves the group while
        somebody looks, and nobody looks any more when it has been left: the instance would be let go without what that takes."""
        with self._state:
            if not self._parked or self._over:
                return
            self._looking += 1
        try:
            self._session.take_news()
        finally:
            with self._state:
                self._looking -= 1
                self._state.notify_all()

    def _pause(self) -> float:
        pause, self._look = self._look, min(LONG_LOOK, self._look * 1.2)
        first = self._first_due()
        return pause if first is None else max(0.0, min(pause, (first - self._session.claim.db_now()).total_seconds()))

    # Running a branch -------------------------------------------------------------------------------------------------

    def _run(self, branch: Branch, *, helping: bool) -> bool:
        """Make a pass over a branch; False if its thread was given up meanwhile."""
        turn, watched = branch.turn, False
        if helping:
            self._session.branches.enter()
        try:
            watched = self._context.copy().run(self._pass, branch, turn, helping)
        except BaseException as error:
            self._fail(error)
        finally:
            if helping:
                self._session.branches.leave()
            if not watched:
                self._settled(branch, turn, State.DONE)  # unless it is settled already
        return branch.turn == turn and not watched

    def _pass(self, branch: Branch, turn: int, helping: bool) -> bool:
        """One pass over a branch, and what became of it; True if that is left to the watcher."""
        scope = self._session.replay.branch(
            branch.scope, threading.get_ident(), list(connections.all()), only=branch.only
        )
        if helping:
            adopt_locals()
            scope.lost = partial(self._lost, branch, turn, scope, threading.current_thread())
        elif self._scope.lost is not None:
            scope.lost = partial(self._lost_caller, branch, turn, scope)
        value, raised = None, None
        try:
            with scopes.inside(scope):
                value = branch.run(scope)
        except BaseException as error:
            raised = error
        stop = scope.stop
        if stop is not None and isinstance(stop.outcome, Drop):
            return True
        try:
            self._judge(branch, turn, scope, value, raised)
        finally:
            raised = None  # no cycle of the frame and its error's traceback
        return False

    def _judge(self, branch: Branch, turn: int, scope: Scope, value: Any, raised: BaseException | None) -> None:
        """What a pass came to: it is done, parked, or all has to stop."""
        stop = scope.stop
        if raised is None:
            try:
                self._check_left(scope)
            except (Exception, Unwind) as error:
                raised = error
            else:
                self._settled(branch, turn, State.DONE, value=value)
                return
        if stop is not None and raised is stop and isinstance(stop.outcome, Suspend):
            self._settled(branch, turn, State.PARKED, wake_at=stop.outcome.wake_at)
        elif isinstance(raised, Exception) and stop is None and self._session.replay.stop is None:
            self._settled(branch, turn, State.DONE, error=raised)
        else:
            self._left(branch, turn, raised, stop)

    def _check_left(self, scope: Scope) -> None:
        """A branch has returned. Was it allowed to?"""
        replay = self._session.replay
        if scope.stop is not None and isinstance(scope.stop.outcome, Suspend):
            raise swallowed(replay.where, scope.stop.outcome, None)
        if replay.stop is not None:
            raise Unwind(replay.stop.outcome)
        if replay.refusal is not None:
            raise replay.refusal
        if block := atomicity.opened(scope.wrappers):
            atomicity.abandon_opened()
            raise InvalidDurableCall(
                f"A branch of {self._identity.label!r} of {replay.where} left {block} open: what it wrote there is rolled back."
            )

    def _left(self, branch: Branch, turn: int, error: BaseException, stop: Unwind | None) -> None:
        """The whole execution has to stop."""
        with self._state:
            if branch.turn != turn:
                return  # the thread of a body that was given up has come back
        replay = self._session.replay
        if stop is not None and isinstance(stop.outcome, Suspend) and not isinstance(error, LeaseLost | ProcessDied):
            error = Unwind(Block(swallowed(replay.where, stop.outcome, error)))
        elif isinstance(error, Exception) and replay.stop is not None:
            error = Unwind(replay.stop.outcome)
        self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Nothing of the group goes on. An Exception that comes here is one of the engine itself, and no fault of the workflow's."""
        if isinstance(error, Exception) and not isinstance(error, MemoryError):
            error = WriteFailed(error)
        replay, lease = self._session.replay, self._session.lease
        with self._state:
            self._fatal = self._fatal or error
            self._state.notify_all()
        if replay.stop is None:  # other branches get no further than to their next durable call
            if isinstance(error, Unwind):
                replay.stop = Unwind(error.outcome)
            elif isinstance(error, LeaseLost | ProcessDied | WriteFailed):
                replay.stop = Unwind(Drop(lease.label))
            else:
                replay.stop = Unwind(GiveBack(stop=False))
                self._session.leaving = error, replay.stop.outcome

    def _settled(
        self,
        branch: Branch,
        turn: int,
        state: State,
        *,
        value: Any = None,
        error: Exception | None = None,
        wake_at: datetime | None = None,
    ) -> None:
        with self._state:
            if branch.turn != turn or branch.state is not State.RUNNING:
                return
            branch.state, branch.value, branch.error, branch.wake_at = state, value, error, wake_at
            self._running -= 1
            if state is State.PARKED:
                if branch.heard < self._session.news:  # for it, perhaps, and it had looked before
                    self._make_ready([branch])
                else:
                    self._park(branch)
            if self._caller_lost and not self._running:
                self._leave_to_others()
            self._state.notify_all()

    def _lost(
        self, branch: Branch, turn: int, scope: Scope, thread: threading.Thread, wake_at: datetime | None
    ) -> None:
        """The watcher has given up the body that a helping thread is in, and has recorded that: the branch goes on without that
        thread."""
        self._give_up(branch, turn, scope, wake_at)
        if self._session.branches.give_up(thread):
            branches().lose(thread)
        branches().ask(self, 1)  # all others may be in their bodies

    def _lost_caller(self, branch: Branch, turn: int, scope: Scope, wake_at: datetime | None) -> None:
        """The same of the thread that settles this group and is itself in a branch of another one: that branch goes on without
        it, when the others of this group have ended what they do."""
        with self._state:
            self._caller_lost = self._over = True
            self._give_up(branch, turn, scope, wake_at)

    def _give_up(self, branch: Branch, turn: int, scope: Scope, wake_at: datetime | None) -> None:
        with self._state:
            scope.stop = scope.stop or Unwind(Drop(self._session.lease.label))
            self._settled(branch, turn, State.PARKED, wake_at=wake_at or self._session.claim.db_now())
            branch.turn += 1

    def _leave_to_others(self) -> None:
        """The branch around the group is run again, by another thread."""
        if self._scope.lost is not None:
            self._scope.lost(self._session.claim.db_now())

    # The end ----------------------------------------------------------------------------------------------------------

    def _leave_no_thread(self) -> None:
        """Bodies in flight end and are stored: nobody else may begin with the instance before (design 1)."""
        with self._state:
            if self._fatal is None:
                self._over = True
            while (self._running or self._looking) and not self._session.lease.lost:
                self._state.wait(LOOK)
            self._over = True

    def _raise_fatal(self) -> NoReturn:
        fatal, replay, leaving = self._fatal, self._session.replay, self._session.leaving
        assert fatal is not None  # noqa: S101
        if leaving is not None and replay.stop is not None and replay.stop.outcome is leaving[1]:
            if self._scope is replay.root:
                replay.stop = None  # all have left: from here on it is as if run() itself had raised it
            raise leaving[0]
        if isinstance(fatal, Unwind) and replay.stop is not None:
            raise Unwind(replay.stop.outcome)
        raise fatal

"""The watcher: one thread of a process that sees to the renewal of its leases and to what its other threads cannot do
(design 4 "Renewal", "Executor exits"; 6 "Attempts", "Timeouts").

It must never die and never wait: what talks to the database, or calls an author's code, is done by two hands, one of
which only renews. A process that holds no lease does not wake it.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from durableflow.core.conf import get_settings
from durableflow.core.outages import locked, passes
from durableflow.engine import abandonment, heartbeat, isolation, renewal, replacement, shutdown
from durableflow.engine.attempts import Attempt
from durableflow.engine.fence import short_waits
from durableflow.engine.hands import MOST_STUCK, Hand, hurry
from durableflow.engine.lease import Lease
from durableflow.engine.unwind import BranchesInFlight, LeaseLost

logger = logging.getLogger("durableflow.engine")
RETRY: Final = 1.0
LOOK: Final = 0.25  # seconds between two looks for a stop, while something runs
HANGS: Final = 10.0  # seconds after which other errands no longer wait for one that hangs
HOPELESS: Final = 30.0  # seconds after which the instance of an ending that hangs is left to a takeover
Ending = Callable[[], object]


class Watcher:
    """The leases, running attempts and unfinished endings of a process, and the thread that looks after them."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._held: dict[int, Lease] = {}
        self._attempts: dict[int, tuple[Attempt, Lease]] = {}
        self._parked: dict[int, tuple[Lease, Ending]] = {}
        self._state = threading.Condition()
        self._until: float | None = None  # when the thread wakes by itself; None: it is awake
        self._beat = self._retry = math.inf
        self._stop_at: float | None = None
        self._renewing, self._errands = Hand("durableflow-renewal", afresh=True), Hand("durableflow-errands")
        self.lost_thread: Callable[[Attempt], None] = lambda attempt: None
        self.turns: list[Callable[[], None]] = []
        atexit.register(self._end_parked_at_exit)
        self._thread = threading.Thread(target=self._work, name="durableflow-watcher", daemon=True)
        self._thread.start()

    # For the other threads ---------------------------------------------------------------------------------------------

    @contextmanager
    def holding(self, lease: Lease) -> Iterator[None]:
        """Renew ``lease`` as long as the block runs, and as long as its ending is parked."""
        with self._state:
            if not (self._held or self._parked):
                self._beat = time.monotonic() + get_settings().LEASE / renewal.SHARE
            self._held[lease.token] = lease
            self._wake(min(self._beat, time.monotonic() + LOOK))
        try:
            yield
        finally:
            self.release(lease)

    def release(self, lease: Lease) -> None:
        """Renew it no longer, unless its ending is parked."""
        with self._state:
            self._held.pop(lease.token, None)

    def holds(self, lease: Lease) -> bool:
        """Whether it is renewed for an execution."""
        return lease.token in self._held

    def held(self) -> int:
        """How many leases this process holds."""
        return len(self._held.keys() | {lease.token for lease, _ in list(self._parked.values())})

    def watch(self, attempt: Attempt, lease: Lease) -> None:
        """Look after a body that begins.

        Without the lock, which would be taken twice in each step: a change of a dict is one step of the interpreter, and
        a wake that is missed here costs at most ``LOOK``.
        """
        self._attempts[id(attempt)] = attempt, lease
        until = self._until
        if until is not None and attempt.abandon_at < until:
            with self._state:
                self._wake(attempt.abandon_at)

    def unwatch(self, attempt: Attempt) -> None:
        """It has ended."""
        self._attempts.pop(id(attempt), None)

    def park(self, lease: Lease, ending: Ending, delay: float = RETRY, *, key: int | None = None) -> None:
        """Make ``ending`` in this thread's place after ``delay`` seconds, and each second until it is done or the lease is
        lost. ``key``: others go on with the instance after it; a negative number that names what is to be done."""
        with self._state:
            self._parked[lease.token if key is None else key] = lease, ending
            self._retry = min(self._retry, time.monotonic() + delay)
            self._wake(self._retry)

    def _wake(self, due: float) -> None:
        """Wake the thread if it would sleep longer than until ``due``. The caller has the lock."""
        if self._until is not None and due < self._until:
            self._until = due
            self._state.notify()

    # Its own thread -----------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            try:
                self._sleep()
                self._turn()
            except BaseException as error:  # whatever it is: without this thread every lease of the process would end
                logger.warning("The watcher failed and goes on: %r", error)
                time.sleep(RETRY)

    def _sleep(self) -> None:
        if not self._needed():
            self._renewing.dismiss()  # who waits holds no connection
            self._errands.dismiss()
            self._stop_at = None
        with self._state:
            self._until = self._next()
            while (left := self._until - time.monotonic()) > 0:
                self._state.wait(None if left == math.inf else left)
            self._until = None

    def _needed(self) -> bool:
        return bool(self._held or self._parked or self._attempts)

    def _next(self) -> float:
        if not self._needed():
            return time.monotonic() if replacement.wanted() and replacement.may_exit() else math.inf
        due = min((attempt.abandon_at for attempt, _ in list(self._attempts.values())), default=math.inf)
        return min(time.monotonic() + LOOK, self._beat, self._retry, due)

    def _turn(self) -> None:
        self._guarded(self._look_for_stop)
        self._guarded(self._see_to_renewal)
        self._guarded(self._see_to_overdue)
        self._guarded(self._see_to_parked)
        self._guarded(self._see_to_hanging)
        for turn in self.turns:
            self._guarded(turn)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            logger.warning("%s failed and is tried again: %r", work.__name__.strip("_"), error)

    def _see_to_renewal(self) -> None:
        now = time.monotonic()
        if now >= self._beat:  # a look at an expired lease leaves its holder a third of it to come back
            self._beat = now + min(RETRY, get_settings().LEASE / renewal.SHARE / 2)  # unless it succeeds
            self._renewing.ask("renewal", self._renew)

    def _see_to_overdue(self) -> None:
        now = time.monotonic()
        with self._state:
            overdue = [item for item in list(self._attempts.values()) if now >= item[0].abandon_at]
        for attempt, lease in overdue:
            self.unwatch(attempt)
            self._errands.ask(attempt, partial(self._abandon, attempt, lease))

    def _see_to_parked(self) -> None:
        now = time.monotonic()
        if now < self._retry:
            return
        with self._state:
            self._retry = now + RETRY if self._parked else math.inf
            parked = list(self._parked)
        for key in parked:
            self._errands.ask(key, partial(self._end_parked, key))

    def _see_to_hanging(self) -> None:
        self._renewing.relieve(1 + 2 * renewal.patience())
        if self._errands.relieve(HANGS) > MOST_STUCK:
            replacement.want("errands", "too many endings or delay functions of its instances do not end.")
        for key in self._errands.stuck_at(HOPELESS):
            with self._state:
                parked = self._parked.get(key) if isinstance(key, int) else None
            if parked is not None and isinstance(key, int):
                logger.error("%s cannot be let go: that does not end. Its lease will expire", parked[0].label)
                parked[0].lost = True
                self._done(key)

    # In the hands' threads ----------------------------------------------------------------------------------------------

    def _renew(self) -> None:
        with self._state:
            parked = {lease.token: lease for lease, _ in self._parked.values()}
            leases = list({**self._held, **parked}.values())
            attempts = list(self._attempts.values())
        databases = {lease.using for lease in leases}
        for using in databases:
            hurry(using)
        if leases:
            renewal.renew(leases)
        self._beat = time.monotonic() + get_settings().LEASE / renewal.SHARE
        if attempts:
            self._errands.ask("start marks", partial(self._mark, attempts))
        self._errands.ask("sign of life", partial(self._sign, databases, len(leases)))

    def _sign(self, databases: set[str], busy: int) -> None:
        """A drain in a long body is alive."""
        for using in databases:
            heartbeat.sign(using, workers=get_settings().THREADS, busy=busy)

    def _mark(self, attempts: list[tuple[Attempt, Lease]]) -> None:
        """Write the start of bodies that this renewal finds running (design 6, "Interruptions")."""
        for attempt, lease in attempts:
            if not attempt.markable or lease.lost or attempt.outcome is None:
                continue
            hurry(lease.using)
            with attempt.running() as running:
                if running:
                    attempt.outcome.mark_running()
                    attempt.markable = False

    def _abandon(self, attempt: Attempt, lease: Lease) -> None:
        outcome = attempt.outcome
        if outcome is not None and abandonment.abandon(attempt):
            self.park(lease, outcome.time_out, 0, key=-id(attempt) if outcome.detached else None)
            self.lost_thread(attempt)

    def _end_parked(self, key: int) -> None:
        with self._state:
            parked = self._parked.get(key)
        if parked is not None and self._ends(*parked):
            self._done(key)

    def _end_parked_at_exit(self) -> None:
        """A program that exits waits for them, if not for longer than a takeover would take."""
        end = time.monotonic() + get_settings().LEASE
        while self._parked and self.pid == os.getpid() and time.monotonic() < end:
            time.sleep(0.02)

    def _done(self, key: int) -> None:
        with self._state:
            lease, _ = self._parked.pop(key)
            if key != lease.token:
                return
            self._held.pop(lease.token, None)
        isolation.room().left(lease)
        lease.lost = True  # a thread that comes back gets no further than to its next durable call

    def _ends(self, lease: Lease, ending: Ending) -> bool:
        """Whether a parked ending is done with."""
        try:
            hurry(lease.using)
            with short_waits():
                ending()
        except LeaseLost:
            logger.info("%s: the lease was lost; its ending is dropped", lease.label, extra={"instance": lease.pk})
            lease.lost = True  # other branches that wait for this get no further
        except BranchesInFlight:
            return False
        except Error as error:
            if passes(error):
                connections[lease.using].close_if_unusable_or_obsolete()
                return False
            logger.exception("%s could not be let go; its lease will expire", lease.label)
            lease.lost = True
        except BaseException:  # a delay function may raise anything
            logger.exception("%s could not be let go; its lease will expire", lease.label)
            lease.lost = True
        return True

    # Ending the process -------------------------------------------------------------------------------------------------

    def _look_for_stop(self) -> None:
        """End the process when bodies outlast the grace, where somebody replaces it (case CON-12)."""
        reason = replacement.wanted()
        if not (reason or shutdown.requested()):
            self._stop_at = None
            return
        now = time.monotonic()
        if self._stop_at is None:
            self._stop_at = now + get_settings().SHUTDOWN_GRACE
            self._beat = now  # the leases are to tell of it before anything ends this process
        elif not reason and not all(lease.told for lease in list(self._held.values())):
            self._beat = min(self._beat, now + RETRY)
        if not replacement.may_exit():
            return
        if reason and not self.held():
            replacement.end(replacement.STUCK, reason)
        if now >= self._stop_at:
            with self._state:
                labels = ", ".join(sorted(lease.label for lease in self._held.values()))
            if reason:
                replacement.end(replacement.STUCK, reason)
            replacement.end(
                replacement.OUTLASTED, f"it was asked to stop, and {labels or 'an ending'} outlasted the grace period."
            )


_watcher: Watcher | None = None
_starting = threading.Lock()


def watcher() -> Watcher:
    """This process's watcher; a new one after a fork, because threads do not survive it."""
    global _watcher
    if _watcher is not None and _watcher.pid == os.getpid():
        return _watcher
    with _starting:
        if _watcher is None or _watcher.pid != os.getpid():
            _watcher = Watcher()
        return _watcher


def held() -> int:
    """How many leases this process holds; 0 if nobody has started its watcher."""
    return _watcher.held() if _watcher is not None and _watcher.pid == os.getpid() else 0


def current(lease: Lease) -> Watcher | None:
    """The watcher, if it looks after this lease: the testing kit does without."""
    found = _watcher
    return found if found is not None and found.pid == os.getpid() and found.holds(lease) else None


def let_go(lease: Lease, ending: Ending) -> None:
    """Make an ending; one that meets a locked row is left to the watcher, so that the thread is free (design 4, "Executor
    exits"). Where nobody watches, the thread waits."""
    keeper = current(lease)
    if keeper is None:
        ending()
        return
    try:
        with short_waits():
            ending()
    except Error as error:
        if not locked(error):
            raise
        logger.info(
            "%s: its row is locked; it is let go as soon as possible", lease.label, extra={"instance": lease.pk}
        )
        keeper.park(lease, ending)


def watch(attempt: Attempt, lease: Lease, wrappers: list[BaseDatabaseWrapper]) -> None:
    """Look after a body that begins now, where its lease is looked after. ``wrappers``: the connections of its thread;
    what they connect to in the body can be seen through them."""
    keeper = current(lease)
    if keeper is not None:
        attempt.connections = wrappers
        keeper.watch(attempt, lease)


def unwatch(attempt: Attempt) -> None:
    """The body has ended."""
    if _watcher is not None:
        _watcher.unwatch(attempt)

"""The time limit of one attempt, without a database."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from durableflow.engine.timeouts import Deadline, DeadlineReached

LONG = 20.0  # what a body would take if nobody interrupted it
IN_THE_BODY = 0.5  # so late that the body has entered its ``try``, on a busy machine too


class OuterAlarm(Exception):
    """What somebody else's handler raises, as django-q2's does."""


@pytest.fixture(autouse=True)
def no_alarm_is_left() -> Iterator[None]:
    handler = signal.getsignal(signal.SIGALRM)
    yield
    left, handler_after = signal.getitimer(signal.ITIMER_REAL)[0], signal.getsignal(signal.SIGALRM)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, handler)
    assert (left, handler_after) == (0, handler)


@pytest.fixture
def outer() -> Iterator[Callable[..., list[float]]]:
    """``outer(seconds, interval, raises=...)`` sets somebody else's alarm; it returns the list of when it fired."""
    before = signal.getsignal(signal.SIGALRM)

    def make(seconds: float, interval: float = 0, *, raises: bool = False) -> list[float]:
        fired: list[float] = []

        def handle(_number: int, _frame: FrameType | None) -> None:
            fired.append(time.monotonic())
            if raises:
                raise OuterAlarm

        signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, seconds, interval)
        return fired

    yield make
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def spin(seconds: float) -> str:
    """A body in plain Python."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
    return "spun"


def took(body: Callable[[], Any]) -> float:
    began = time.monotonic()
    body()
    return time.monotonic() - began


def test_a_body_in_time_gives_its_value() -> None:
    deadline = Deadline(5)
    assert deadline.run(lambda: "value") == "value"
    assert not deadline.expired


def test_errors_of_the_body_go_through() -> None:
    deadline = Deadline(5)
    with pytest.raises(ZeroDivisionError):
        deadline.run(lambda: 1 / 0)
    assert not deadline.expired


def _recv() -> None:
    left, right = socket.socketpair()
    with left, right:
        left.recv(1)


BODIES: list[Callable[[], Any]] = [
    lambda: time.sleep(LONG),
    lambda: spin(LONG),
    lambda: threading.Event().wait(LONG),
    _recv,
]


@pytest.mark.parametrize("body", BODIES, ids=["sleep", "loop", "event", "recv"])
def test_a_body_is_interrupted(body: Callable[[], Any]) -> None:
    """RET-02, spike 4."""
    deadline = Deadline(0.05)
    assert took(lambda: deadline.run(body)) < LONG / 4
    assert deadline.expired


def test_except_exception_does_not_catch_it() -> None:
    """Spike 4: the interruption is a BaseException."""

    def body() -> str:
        try:
            time.sleep(LONG)
        except Exception:
            return "swallowed"
        return "slept"

    deadline = Deadline(0.05)
    assert deadline.run(body) is None
    assert deadline.expired


def test_value_after_a_swallowed_interruption_is_known_to_be_late() -> None:
    """RET-04: a bare except once, and a value: expired tells to discard it."""

    def body() -> str:
        try:
            time.sleep(LONG)
        except:  # noqa: E722
            pass
        return "late"

    deadline = Deadline(0.05)
    deadline.run(body)
    assert deadline.expired


def test_a_body_that_swallows_once_is_interrupted_again() -> None:
    """Spike 4: the alarm repeats each second."""

    def body() -> None:
        for _ in range(2):
            try:
                time.sleep(LONG)
            except DeadlineReached:
                pass

    deadline = Deadline(0.05)
    assert took(lambda: deadline.run(body)) < LONG / 4
    assert deadline.expired


def test_finally_of_the_body_runs() -> None:
    """Spike 4."""
    log: list[str] = []

    def body() -> None:
        try:
            time.sleep(LONG)
        finally:
            log.append("cleaned")

    deadline = Deadline(IN_THE_BODY)
    deadline.run(body)
    assert (deadline.expired, log) == (True, ["cleaned"])


def test_other_error_after_the_interruption() -> None:
    """Spike 4: the body turns the interruption into an error of its own: expired is known all the same."""

    def body() -> None:
        try:
            time.sleep(LONG)
        except BaseException:
            raise ValueError("mine") from None

    deadline = Deadline(IN_THE_BODY)
    with pytest.raises(ValueError, match="mine"):
        deadline.run(body)
    assert deadline.expired


def test_outer_alarm_keeps_its_remaining_time(outer: Callable[..., list[float]]) -> None:
    """Spike 4: in django-q2's own timeout an inner deadline leaves what is left of it."""
    began = time.monotonic()
    fired = outer(10 * LONG)
    deadline = Deadline(0.1)
    deadline.run(lambda: time.sleep(LONG))
    assert deadline.expired and fired == []
    left = signal.getitimer(signal.ITIMER_REAL)[0]
    assert 10 * LONG - (time.monotonic() - began) - 0.01 <= left <= 10 * LONG - 0.1, "as if ours had not been there"
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    while not fired and time.monotonic() < began + LONG:
        time.sleep(0.01)
    assert len(fired) == 1, "and its handler is in force again"


def test_outer_alarm_that_is_due_first_is_obeyed(outer: Callable[..., list[float]]) -> None:
    """Spike 4: the outer one's handler is called in the body; it fires once, not once more afterwards."""
    deadline = Deadline(LONG)
    fired: list[float] = []
    with pytest.raises(OuterAlarm):
        fired = outer(0.5, raises=True)
        deadline.run(lambda: time.sleep(LONG))
    assert not deadline.expired
    time.sleep(0.05)  # an alarm that was set again would be seen here
    assert len(fired) == 1
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_outer_alarm_that_raises_nothing_does_not_switch_ours_off(outer: Callable[..., list[float]]) -> None:
    """Design 6: cooperating with another alarm must not cost the step's own."""
    fired = outer(0.05)
    deadline = Deadline(0.3)
    assert took(lambda: deadline.run(lambda: time.sleep(LONG))) < LONG / 4
    assert deadline.expired and len(fired) == 1


def test_repeating_outer_alarm_goes_on(outer: Callable[..., list[float]]) -> None:
    fired = outer(0.05, 0.1)

    def twice() -> None:
        while len(fired) < 2:
            pass

    assert took(lambda: Deadline(LONG).run(twice)) < LONG / 4
    deadline = Deadline(0.5)
    assert took(lambda: deadline.run(lambda: spin(LONG))) < LONG / 4
    assert deadline.expired
    count, end = len(fired), time.monotonic() + LONG
    while len(fired) == count and time.monotonic() < end:
        time.sleep(0.01)
    assert len(fired) > count
    assert signal.getitimer(signal.ITIMER_REAL)[1] == pytest.approx(0.1)


def test_ignored_outer_alarm_does_not_fire_ours_early() -> None:
    """An alarm that nobody handles is nobody's deadline."""
    before = signal.signal(signal.SIGALRM, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    deadline = Deadline(LONG)
    try:
        assert deadline.run(lambda: spin(0.2)) == "spun"
        assert not deadline.expired
        assert signal.getsignal(signal.SIGALRM) is signal.SIG_IGN
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(("inner", "around"), [(0.05, LONG), (LONG, 0.05)])
def test_nested_deadlines(inner: float, around: float) -> None:
    """Spike 4: the shorter one acts, whichever it is."""
    first, second = Deadline(around), Deadline(inner)
    assert took(lambda: first.run(lambda: second.run(lambda: time.sleep(LONG)))) < LONG / 4
    assert (first.expired, second.expired) == (around < inner, inner < around)


def test_nested_deadline_does_not_spend_the_outer_one() -> None:
    outer_deadline, inner_deadline = Deadline(1.0), Deadline(0.1)

    def body() -> None:
        inner_deadline.run(lambda: time.sleep(LONG))
        time.sleep(LONG)

    assert took(lambda: outer_deadline.run(body)) < LONG / 4
    assert inner_deadline.expired and outer_deadline.expired


def test_a_stray_alarm_does_not_end_the_body() -> None:
    """Somebody sends SIGALRM to the process: the time is not over."""
    deadline = Deadline(LONG)

    def body() -> str:
        signal.raise_signal(signal.SIGALRM)
        return "on"

    assert deadline.run(body) == "on"
    assert not deadline.expired


def test_a_thread_runs_to_its_end_and_is_late() -> None:
    """Design 6: in another thread nothing can be interrupted; the value counts as late."""
    seen: list[Any] = []

    def work() -> None:
        for seconds in (0.01, LONG):
            deadline = Deadline(seconds)
            value = deadline.run(lambda: spin(0.05))
            seen.append((value, deadline.expired))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [("spun", True), ("spun", False)]


def test_a_very_long_deadline_can_be_armed() -> None:
    deadline = Deadline(3650 * 86400.0)
    assert deadline.run(lambda: 1) == 1

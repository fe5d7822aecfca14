"""Timers: due is due, whoever is up; the first arrival stores the moment."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django_q.models import OrmQ, Schedule, Success

from durableflow import EventTimeout, Retries, Step, Workflow, WorkflowEvent, drain
from durableflow.checks import check_settings
from durableflow.engine.claims import claim
from durableflow.engine.delivery import deliver
from durableflow.models import PendingEvent, WorkflowInstance
from tests.integration.conftest import StoppedClock
from tests.support.engine import drained, history_of, noted, steps_of, types_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


def sleeper(log: list[str], duration: Any) -> type[Workflow]:
    class Sleeper(Workflow):
        class Meta:
            name = "sleeper"

        def run(self, event: WorkflowEvent, step: Step) -> str:
            step.sleep("nap", duration)
            return step.do("after", lambda: noted(log, "after", "woke"))

    return Sleeper


def test_a_sleep_that_ended_while_nobody_was_up(stopped_clock: StoppedClock) -> None:
    """TIM-01: late is fine, never is not; the next step runs once."""
    log: list[str] = []
    instance = drained(sleeper(log, 5).create())
    stopped_clock.advance(58)
    assert drain() == 1
    instance.refresh_from_db()
    assert (instance.status, log) == (S.COMPLETE, ["after"])


def test_the_tables_are_the_truth(stopped_clock: StoppedClock) -> None:
    """TIM-02, TIM-08: no row of a queue is needed: sleeping, in back-off and queued instances all go on, once each."""
    log: list[str] = []

    class Retrying(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> str:
            return step.do("flaky", self.flaky, event.instance_id, retries=Retries(limit=1, delay=60))

        def flaky(self, key: str) -> str:
            log.append(key)
            if log.count(key) == 1:
                raise OSError("once")
            return "done"

    Sleeper = sleeper(log, 60)  # noqa: N806
    instances = [Sleeper.create() for _ in range(10)] + [Retrying.create() for _ in range(5)]
    drain(seconds=30)
    instances += [Sleeper.create(start_at=60) for _ in range(5)]
    assert OrmQ.objects.count() == 0  # nothing lies in the queue while they wait
    for table in (OrmQ, Schedule, Success):
        table.objects.all().delete()
    stopped_clock.advance(60)
    drain(seconds=30)
    stopped_clock.advance(60)
    drain(seconds=30)
    for instance in instances:
        instance.refresh_from_db()
        assert instance.status == S.COMPLETE
    assert log.count("after") == 15
    assert len(log) == 15 + 10
    assert OrmQ.objects.count() == 0


def test_a_replay_does_not_start_the_sleep_anew(stopped_clock: StoppedClock) -> None:
    """TIM-03: unrelated wakes at 30 and 50 s leave the wake at 60 s."""
    log: list[str] = []
    instance = drained(sleeper(log, 60).create())
    due = instance.wake_at
    for seconds in (30, 20):
        stopped_clock.advance(seconds)
        instance.send_event("unrelated")
        assert drain() == 1
        instance.refresh_from_db()
        assert (instance.status, instance.wake_at) == (S.WAITING, due)
    stopped_clock.advance("9.999 seconds")
    assert drained(instance).status == S.WAITING
    stopped_clock.advance("0.001 seconds")
    assert (drained(instance).status, log) == (S.COMPLETE, ["after"])
    assert types_of(instance).count("sleep_started") == 1


def test_a_replay_does_not_start_the_timeout_of_a_wait_anew(stopped_clock: StoppedClock) -> None:
    """TIM-03: the deadline of a wait counts from its first arrival, also over a lost worker."""

    class Waits(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> str:
            try:
                step.wait_for_event("answer", type="answer", timeout=60)
            except EventTimeout:
                return "timed out"
            return "answered"

    instance = drained(Waits.create())
    deadline = PendingEvent.objects.get().deadline
    stopped_clock.advance(30)
    instance.send_event("unrelated")
    deliver("default")
    assert len(claim("default")) == 1  # a worker takes it and dies
    WorkflowInstance.objects.filter(pk=instance.pk).update(suspect=True)  # the first look at its lease
    stopped_clock.advance(20)
    drain()
    instance.refresh_from_db()
    assert (instance.status, instance.wake_at) == (S.WAITING, deadline)
    stopped_clock.advance(10)
    assert (drained(instance).status, instance.output) == (S.COMPLETE, "timed out")
    assert PendingEvent.objects.count() == 1


@pytest.mark.parametrize("zero", [0, 0.0, timedelta(0), "0 seconds"])
def test_zero_goes_on_at_once(zero: Any) -> None:
    """TIM-05: recorded, in one execution."""
    log: list[str] = []
    instance = sleeper(log, zero).create()
    assert drain() == 1
    instance.refresh_from_db()
    assert (instance.status, steps_of(instance)) == (S.COMPLETE, [("nap-1", "complete"), ("after-1", "complete")])


@pytest.mark.parametrize("wrong", [-5, "", "1h", True, None, float("nan"), float("inf"), "5", "11 years", "-1 minute"])
def test_wrong_durations_are_refused(wrong: Any) -> None:
    """TIM-05, TIM-11: a clear error that names step and field, not retried; nothing is recorded."""
    log: list[str] = []
    instance = drained(sleeper(log, wrong).create())
    assert (instance.status, log, steps_of(instance)) == (S.ERRORED, [], [])
    assert instance.error is not None and instance.error["type"].endswith("InvalidConfig")
    assert "step 'nap': duration" in instance.error["message"]
    if wrong != "11 years":
        assert "week" in instance.error["message"]  # the list of units


@pytest.mark.parametrize("days", [25, 90, 400, 3650])
def test_long_sleeps(days: int, stopped_clock: StoppedClock) -> None:
    """TIM-06: no wake before the date, one after; the row shows the date."""
    log: list[str] = []
    instance = drained(sleeper(log, f"{days} days").create())
    due = stopped_clock.now + timedelta(days=days)
    assert instance.wake_at == instance.steps.get().wake_at == due
    left = days
    while left > 20:
        stopped_clock.advance("20 days")
        left -= 20
        assert drain() == 0
    stopped_clock.advance(f"{left} days")
    assert drain() == 1
    instance.refresh_from_db()
    assert (instance.status, log) == (S.COMPLETE, ["after"])
    assert types_of(instance).count("sleep_completed") == 1


INSTANT = datetime(2026, 12, 24, 18, 30, 0, 654321, UTC)
SAME: list[Any] = [
    INSTANT,
    INSTANT.astimezone(timezone(timedelta(hours=5))),
    INSTANT.astimezone(ZoneInfo("Europe/Berlin")),
    INSTANT.timestamp(),
]


@pytest.mark.parametrize("when", SAME, ids=["utc", "+05:00", "Berlin", "epoch"])
def test_sleep_until_an_exact_instant(when: Any, stopped_clock: StoppedClock, settings: Any) -> None:
    """TIM-07: aware values give the exact instant, whatever the project's zone is."""
    settings.TIME_ZONE = "Europe/Berlin"

    class Until(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> str:
            step.sleep_until("party", when)
            return "on time"

    instance = drained(Until.create())
    assert instance.wake_at is not None
    assert abs(instance.wake_at - INSTANT) < timedelta(microseconds=2)
    stopped_clock.advance(INSTANT - stopped_clock.now - timedelta(milliseconds=1))
    assert drained(instance).status == S.WAITING
    stopped_clock.advance(0.002)
    assert drained(instance).output == "on time"


def test_a_project_without_time_zones_is_refused(settings: Any) -> None:
    """TIM-07: the same on both settings is not possible: rows hold exact moments."""
    assert "durableflow.E007" not in [message.id for message in check_settings()]
    settings.USE_TZ = False
    (message,) = [message for message in check_settings() if message.id == "durableflow.E007"]
    assert message.is_serious() and "USE_TZ" in str(message.hint)


@pytest.mark.parametrize(
    "wrong",
    [
        datetime(2026, 12, 24),
        True,
        "tomorrow",
        None,
        float("nan"),
        float("inf"),
        1e20,
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-5))),
        datetime(2036, 12, 24, tzinfo=UTC),
    ],
)
def test_sleep_until_refuses_what_is_no_moment(wrong: Any, stopped_clock: StoppedClock) -> None:
    """TIM-07: a naive datetime is refused with a clear message, and so is everything else."""

    class Until(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> None:
            step.sleep_until("party", wrong)

    instance = drained(Until.create())
    assert (instance.status, steps_of(instance)) == (S.ERRORED, [])
    assert instance.error is not None and "step 'party': when" in instance.error["message"]


@pytest.mark.parametrize("when", [0, -1.5, datetime(1999, 1, 1, tzinfo=UTC)])
def test_a_past_moment_returns_at_once(when: Any, stopped_clock: StoppedClock) -> None:
    """Design 5: and is recorded."""

    class Until(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> str:
            step.sleep_until("party", when)
            return "over"

    instance = Until.create()
    assert drain() == 1
    instance.refresh_from_db()
    assert (instance.status, steps_of(instance)) == (S.COMPLETE, [("party-1", "complete")])


def test_waiting_costs_nothing(stopped_clock: StoppedClock) -> None:
    """TIM-08: 200 instances sleep for two hours: no queue row, no lease; each goes on once."""
    log: list[str] = []
    Sleeper = sleeper(log, "2 hours")  # noqa: N806
    instances = [Sleeper.create() for _ in range(200)]
    drain(seconds=60)
    for _ in range(4):
        stopped_clock.advance("29 minutes")
        assert drain() == 0
        assert OrmQ.objects.count() == 0
    assert WorkflowInstance.objects.filter(lease_token__isnull=False).count() == 0
    stopped_clock.advance("4 minutes")
    assert drain(seconds=60) == 200
    assert WorkflowInstance.objects.filter(status=S.COMPLETE).count() == len(instances) == len(log)


def test_timeout_of_an_answered_wait_is_closed(stopped_clock: StoppedClock) -> None:
    """TIM-10: the reason is kept, no second wake, no timeout row, no timer of an ended instance."""

    class Waits(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            reason = step.wait_for_event("answer", type="answer", timeout=10).payload
            step.sleep("long", 20)
            return reason

    instance = drained(Waits.create())
    stopped_clock.advance(2)
    instance.send_event("answer", {"reason": "ok"})
    drained(instance)
    assert instance.wake_at == stopped_clock.now + timedelta(seconds=20)
    stopped_clock.advance(15)  # past the deadline of the wait
    assert drain() == 0
    stopped_clock.advance(5)
    assert (drained(instance).status, instance.output) == (S.COMPLETE, {"reason": "ok"})
    assert instance.wake_at is None
    assert "wait_timed_out" not in types_of(instance)
    assert PendingEvent.objects.get().status == PendingEvent.Status.RECEIVED
    assert instance.steps.get(name="answer").wake_at is None


def test_end_of_a_run_leaves_no_timer(stopped_clock: StoppedClock) -> None:
    """TIM-10: complete at 3 s, nothing is due ever after."""

    class Short(Workflow):
        class Meta:
            max_duration = "1 hour"

        def run(self, event: WorkflowEvent, step: Step) -> str:
            step.wait_for_event("answer", type="answer", timeout=10)
            return "done"

    instance = drained(Short.create())
    stopped_clock.advance(3)
    instance.send_event("answer")
    assert (drained(instance).status, instance.wake_at) == (S.COMPLETE, None)
    finished = instance.finished
    stopped_clock.advance("1 day")
    assert drain() == 0
    instance.refresh_from_db()
    assert instance.finished == finished


@pytest.mark.parametrize(
    ("duration", "seconds"),
    [
        (5, 5),
        (0.25, 0.25),
        ("5 seconds", 5),
        ("1 minute", 60),
        ("2 Weeks", 2 * 604800),
        ("1 month", 30 * 86400),
        ("1 year", 365 * 86400),
        (" 10  seconds ", 10),
        ("1.5 hours", 5400),
        (timedelta(seconds=5), 5),
        (timedelta(microseconds=7), 0.000007),
    ],
)
def test_one_meaning_of_durations(duration: Any, seconds: float, stopped_clock: StoppedClock) -> None:
    """TIM-11: numbers are seconds, words are case-insensitive, singular or plural."""
    log: list[str] = []
    instance = drained(sleeper(log, duration).create())
    assert instance.wake_at == stopped_clock.now + timedelta(seconds=seconds)
    assert history_of(instance, "sleep_started") == [{"seconds": seconds}]


def test_start_at(stopped_clock: StoppedClock) -> None:
    """Api: a start in the future is queued until then; an event does not wake it earlier."""
    log: list[str] = []
    cls = sleeper(log, 0)
    instance = cls.create(start_at="1 hour")
    aware = cls.create(start_at=stopped_clock.now + timedelta(hours=1))
    instance.send_event("early")
    assert drain() == 0
    instance.refresh_from_db()
    assert instance.status == S.QUEUED
    stopped_clock.advance("1 hour")
    assert drain() == 2
    aware.refresh_from_db()
    assert (aware.status, log) == (S.COMPLETE, ["after", "after"])
    for wrong in (datetime(2030, 1, 1), "1h", -1, "11 years"):
        with pytest.raises(ValueError, match="start_at"):
            cls.create(start_at=wrong)
    assert WorkflowInstance.objects.count() == 2

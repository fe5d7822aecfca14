"""TIM-09: the clock of a paused instance stands still. What is relative keeps what it had left; a date stays a date."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from durableflow import EventTimeout, Retries, Step, Workflow, WorkflowEvent, WorkflowTimeout, timeline
from durableflow.models import WorkflowInstance
from tests.integration.conftest import StoppedClock
from tests.support.engine import drained

pytestmark = pytest.mark.django_db(transaction=True)
Status = WorkflowInstance.Status


class PauseTimerChild(Workflow[Any, str]):
    """Waits for ever."""

    class Meta:
        name = "tim-pause-child"

    def run(self, event: WorkflowEvent[Any], step: Step) -> str:
        return step.wait_for_event("go", type="go", timeout=None).type


class PauseTimer(Workflow[str, str]):
    """Waits in one of all the ways in which one can wait for ten minutes."""

    class Meta:
        name = "tim-pause"
        step_retries = Retries(limit=1, delay="10 minutes")

    failed: list[int]

    def run(self, event: WorkflowEvent[str], step: Step) -> str:
        return str(getattr(self, event.params)(step) or "over")

    def sleep(self, step: Step) -> None:
        step.sleep("nap", "10 minutes")

    def wait(self, step: Step) -> str:
        try:
            return step.wait_for_event("answer", type="go", timeout="10 minutes").type
        except EventTimeout:
            return "over"

    def approval(self, step: Step) -> str:
        try:
            return f"approved {step.wait_for_approval('answer', timeout='10 minutes').approved}"
        except EventTimeout:
            return "over"

    def back_off(self, step: Step) -> str:
        return step.do("work", self.fail_once)

    def fail_once(self) -> str:
        self.failed.append(1)
        if len(self.failed) == 1:
            raise RuntimeError("once")
        return "over"

    def branches(self, step: Step) -> None:
        step.gather("both", lambda: step.sleep("one", "10 minutes"), lambda: step.sleep("other", "10 minutes"))

    def race(self, step: Step) -> str:
        winner = step.race(
            "first", nap=lambda: step.sleep("nap", "10 minutes"), event=lambda: step.wait_for_event("go", type="go")
        )
        return "over" if winner.name == "nap" else winner.name

    def child(self, step: Step) -> str:
        try:
            return step.run_workflow("child", PauseTimerChild, None, timeout="10 minutes")
        except WorkflowTimeout:
            return "over"


WAYS = ("sleep", "wait", "approval", "back_off", "branches", "race", "child")


@pytest.fixture(autouse=True)
def failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PauseTimer, "failed", [], raising=False)


@pytest.fixture
def waiting(stopped_clock: StoppedClock) -> Callable[[str], WorkflowInstance]:
    """An instance that has waited for two of its ten minutes."""

    def make(way: str) -> WorkflowInstance:
        row = drained(PauseTimer.create(way))
        assert row.status == Status.WAITING
        stopped_clock.advance("2 minutes")
        return row

    return make


@pytest.mark.parametrize("way", WAYS)
def test_what_was_left_is_left_after_the_pause(
    waiting: Callable[[str], WorkflowInstance], stopped_clock: StoppedClock, way: str
) -> None:
    """Ten minutes; an hour's pause after two; eight more after the resume."""
    row = waiting(way)
    row.pause()
    stopped_clock.advance("1 hour")
    assert drained(row).status == Status.PAUSED
    row.resume()
    assert drained(row).status == Status.WAITING
    assert row.wake_at == stopped_clock.now + timedelta(minutes=8)
    stopped_clock.advance("479 seconds")
    assert drained(row).status == Status.WAITING
    stopped_clock.advance("1 second")
    assert drained(row).output == "over"


def told(row: WorkflowInstance) -> list[Any]:
    """All moments at which something of the instance ends by itself, as people and programs read them."""
    row = WorkflowInstance.objects.get(pk=row.pk)
    views = timeline.steps(row)
    return [
        timeline.deadline_of(row),
        [wait["deadline"] for wait in timeline.waiting_for(row)],
        [(view.label, view.wake_at, view.next_attempt_at, view.wait and view.wait.deadline) for view in views],
        [wait.current_deadline for wait in row.pending_events.order_by("id")],
        [timer.at for timer in timeline.timers_of(row)],
    ]


@pytest.mark.parametrize("way", WAYS)
def test_a_paused_instance_shows_what_a_resume_would_make_of_it(
    waiting: Callable[[str], WorkflowInstance], stopped_clock: StoppedClock, way: str
) -> None:
    """Not the moments of before the pause, which may be past."""
    row = waiting(way)
    row.pause()
    stopped_clock.advance("1 hour")
    paused = told(row)
    assert str(stopped_clock.now + timedelta(minutes=8)) in [str(each) for view in paused[2] for each in view]
    row.resume()
    assert told(row) == paused


@pytest.mark.parametrize("way", WAYS)
def test_a_paused_instance_shows_what_is_over(
    waiting: Callable[[str], WorkflowInstance], stopped_clock: StoppedClock, way: str
) -> None:
    """What had ended before the pause is not shown as if it went on."""
    row = waiting(way)
    stopped_clock.advance("9 minutes")
    before = told(row)
    row.pause()
    stopped_clock.advance("1 hour")
    assert told(row) == before
    row.resume()
    assert told(row) == before


@pytest.mark.parametrize("way", WAYS)
def test_several_pauses_add_up(
    waiting: Callable[[str], WorkflowInstance], stopped_clock: StoppedClock, way: str
) -> None:
    """Also where the instance is not executed between two of them."""
    row = waiting(way)
    for _ in range(3):
        row.pause()
        stopped_clock.advance("1 hour")
        row.resume()
        stopped_clock.advance("1 minute")
    assert drained(row).wake_at == stopped_clock.now + timedelta(minutes=5)
    stopped_clock.advance("5 minutes")
    assert drained(row).output == "over"


@pytest.mark.parametrize("way", WAYS)
def test_what_is_over_before_the_pause_is_over(
    waiting: Callable[[str], WorkflowInstance], stopped_clock: StoppedClock, way: str
) -> None:
    """No worker was up at the end of the ten minutes; nothing begins anew."""
    row = waiting(way)
    stopped_clock.advance("9 minutes")
    row.pause()
    stopped_clock.advance("1 hour")
    row.resume()
    assert drained(row).output == "over"


@pytest.mark.parametrize("way", WAYS)
def test_a_clock_that_was_set_back_in_the_pause(
    waiting: Callable[[str], WorkflowInstance], stopped_clock: StoppedClock, way: str
) -> None:
    """What was left is left, by the clock as it is then."""
    row = waiting(way)
    row.pause()
    stopped_clock.go_back("1 hour")
    row.resume()
    assert drained(row).wake_at == stopped_clock.now + timedelta(minutes=8)


class PauseDate(Workflow[Any, str]):
    """Sleeps until one o'clock."""

    class Meta:
        name = "tim-pause-date"

    def run(self, event: WorkflowEvent[Any], step: Step) -> str:
        step.sleep_until("one o'clock", event.timestamp + timedelta(hours=1))
        return "over"


@pytest.mark.parametrize(("pause", "left"), [("10 minutes", 45), ("2 hours", 0)])
def test_a_date_stays_a_date(stopped_clock: StoppedClock, pause: str, left: int) -> None:
    """One that has passed meanwhile fires at the resume."""
    row = drained(PauseDate.create())
    stopped_clock.advance("5 minutes")
    row.pause()
    stopped_clock.advance(pause)
    row.resume()
    drained(row)
    if left:
        assert row.wake_at == stopped_clock.now + timedelta(minutes=left)
        stopped_clock.advance(timedelta(minutes=left))
        drained(row)
    assert row.output == "over"


class PauseBounded(Workflow[Any, str]):
    """May take ten minutes, and wants to take more."""

    class Meta:
        name = "tim-pause-bounded"
        max_duration = "10 minutes"

    def run(self, event: WorkflowEvent[Any], step: Step) -> str:
        step.sleep("nap", "1 day")
        return "over"


@pytest.mark.parametrize(("start", "after"), [(None, "1 hour"), ("1 hour", "30 minutes"), ("1 hour", "2 hours")])
def test_the_time_of_the_whole_run_is_shown_as_a_resume_would_make_it(
    stopped_clock: StoppedClock, start: str | None, after: str
) -> None:
    """Also of one that was to start later; a date stays a date."""
    row = PauseBounded.create(start_at=start)
    date = drained(PauseDate.create())
    row.pause()
    date.pause()
    stopped_clock.advance(after)
    paused = told(row)
    row.resume()
    assert told(row) == paused
    slept = [view[1] for view in told(date)[2]]
    assert slept == [date.created + timedelta(hours=1)]


@pytest.mark.parametrize("queued", [True, False])
def test_the_whole_run_has_what_it_had_left(stopped_clock: StoppedClock, queued: bool) -> None:
    """``max_duration``, of one that waits and of one that was never executed."""
    row = PauseBounded.create()
    if not queued:
        drained(row)
    stopped_clock.advance("2 minutes")
    row.pause()
    stopped_clock.advance("1 hour")
    row.resume()
    assert drained(row).deadline_at == stopped_clock.now + timedelta(minutes=8)
    stopped_clock.advance("8 minutes")
    assert drained(row).status == Status.ERRORED
    assert row.error is not None and "max_duration" in row.error["message"]


def test_a_start_in_the_future_and_its_time(stopped_clock: StoppedClock) -> None:
    """Before ``start_at`` the time of the run has not begun, so that a pause takes nothing from it and gives it nothing."""
    row = PauseBounded.create(start_at="1 hour")
    deadline = row.deadline_at
    row.pause()
    stopped_clock.advance("30 minutes")
    row.resume()
    assert row.deadline_at == deadline
    row.pause()
    stopped_clock.advance("1 hour")
    row.resume()
    assert row.deadline_at == stopped_clock.now + timedelta(minutes=10)


class PauseLong(Workflow[Any, str]):
    """A step of five minutes, in which it is paused, then a sleep."""

    class Meta:
        name = "tim-pause-long"
        max_duration = "1 hour"

    pass_time: Callable[[Any], Any]

    def run(self, event: WorkflowEvent[Any], step: Step) -> str:
        step.do("long", self.body, event.instance_id)
        step.sleep("nap", "10 minutes")
        return "over"

    @staticmethod
    def body(instance_id: str) -> None:
        PauseLong.get(instance_id).pause()
        PauseLong.pass_time("5 minutes")


def test_the_clock_runs_until_the_last_body_has_ended(
    stopped_clock: StoppedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands still from ``paused_at`` on, not from the request."""
    monkeypatch.setattr(PauseLong, "pass_time", staticmethod(stopped_clock.advance), raising=False)
    row = PauseLong.create()
    begun = stopped_clock.now
    assert drained(row).status == Status.PAUSED
    assert row.paused_at == begun + timedelta(minutes=5)
    stopped_clock.advance("1 day")
    row.resume()
    assert drained(row).status == Status.WAITING
    assert row.deadline_at == stopped_clock.now + timedelta(minutes=55)
    stopped_clock.advance("10 minutes")
    assert drained(row).output == "over"


def test_a_paused_parent_and_its_child(stopped_clock: StoppedClock) -> None:
    """The child goes on; its end is there when the parent is resumed, also after the parent's timeout of it."""
    row = drained(PauseTimer.create("child"))
    row.pause()
    stopped_clock.advance("1 hour")
    child = WorkflowInstance.objects.get(workflow="tim-pause-child")
    child.send_event("go")
    assert drained(child).status == Status.COMPLETE
    row.resume()
    assert drained(row).output == "go"

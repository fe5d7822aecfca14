"""What branches of a race may do, what is told of their waits, and what becomes of one that cannot wait (design 7)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from durableflow import InvalidConfig, Retries, StaleDecision, Step, Workflow, WorkflowEvent
from durableflow.models import PendingEvent, SentEvent, WorkflowInstance
from durableflow.testing import ReplayBroken, replay_check
from durableflow.timeline import reason
from tests.integration.conftest import StoppedClock
from tests.support.engine import drained, noted, steps_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


def racing(**branches: Callable[[Step], Any]) -> type[Workflow]:
    """A workflow that catches whatever its race raises, and then waits for a minute."""

    class Racing(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            try:
                first = step.race("first", **{name: (lambda b=branch: b(step)) for name, branch in branches.items()})
                got = [first.name, first.value]
            except Exception as error:
                got = [type(error).__name__, str(error)]
            step.sleep("pause", 60)
            return got

    return Racing


def wait(step: Step) -> Any:
    return step.wait_for_event("wait", type="wait").payload


@pytest.mark.parametrize(
    ("branch", "told"),
    [
        (lambda step: step.do("work", str), "calls do 'work'"),
        (lambda step: step.map("many", str, [1]), "calls map 'many'"),
        (lambda step: step.gather("all", lambda: wait(step)), "calls gather 'all'"),
        (lambda step: step.race("again", a=lambda: wait(step)), "calls race 'again'"),
        (lambda step: step.now(), "calls now"),
        (lambda step: 5, "has returned without waiting"),
    ],
)
def test_what_does_not_only_wait_is_refused_with_the_cure(branch: Callable[[Step], Any], told: str) -> None:
    """A race of bodies belongs inside one step. The refusal is sticky: caught, the next call raises it again."""
    instance = drained(racing(ok=wait, bad=branch).create())
    assert instance.status == S.ERRORED and instance.error is not None
    message = instance.error["message"]
    assert told in message and "belongs inside one step" in message and "'bad'" in message
    assert "body" not in dict(steps_of(instance))


def test_a_second_call_of_the_winner_is_refused(stopped_clock: StoppedClock) -> None:
    def twice(step: Step) -> None:
        step.sleep("one", 1)
        step.sleep("two", 1)

    instance = drained(racing(twice=twice, other=wait).create())
    stopped_clock.advance("1 second")
    instance = drained(instance)
    assert instance.status == S.ERRORED and instance.error is not None
    assert "a second call, sleep 'two'" in instance.error["message"]


def test_a_suspension_that_a_branch_swallows_blocks_the_instance() -> None:
    """ENG-02 in a branch of a race."""

    def swallow(step: Step) -> str:
        try:
            return str(wait(step))
        except BaseException:
            return "swallowed"

    instance = drained(racing(bad=swallow).create())
    assert instance.status == S.PAUSED and "SuspensionSwallowed" in instance.blocked


def test_each_branch_tells_of_its_wait_once(stopped_clock: StoppedClock) -> None:
    """All waits are open at once, so somebody is told of each; of a race that is decided at once nobody is."""
    told: list[str] = []

    def asks(name: str) -> Callable[[Step], Any]:
        return lambda step: (
            step.wait_for_event(name, type=name, timeout=None, notify=lambda pending: noted(told, pending.name)).payload
        )

    cls = racing(a=asks("a"), b=asks("b"), late=lambda step: step.sleep("late", "1 hour"))
    instance = drained(cls.create())
    assert told == ["a", "b"]
    instance.send_event("other")
    instance = drained(instance)
    instance.send_event("b", 2)
    instance = drained(instance)
    stopped_clock.advance("1 minute")
    assert (drained(instance).output, told) == (["b", 2], ["a", "b"])
    early = cls.create()
    early.send_event("a", 1)
    stopped_clock.advance("1 minute")
    told.clear()
    drained(early)
    assert told == []


def test_a_notify_that_fails_is_tried_again_while_the_others_race(stopped_clock: StoppedClock) -> None:
    tries: list[int] = []

    def tell(pending: PendingEvent) -> None:
        tries.append(1)
        raise OSError("no mail")

    class Told(Workflow):
        class Meta:
            step_retries = Retries(limit=3, delay=60, backoff="constant")

        def run(self, event: WorkflowEvent, step: Step) -> Any:
            first = step.race(
                "first",
                a=lambda: step.wait_for_event("a", type="a", notify=tell).payload,
                b=lambda: wait(step),
            )
            return [first.name, first.value]

    instance = drained(Told.create())
    stopped_clock.advance("1 minute")
    instance = drained(instance)
    assert (instance.status, len(tries)) == (S.WAITING, 2)
    instance.send_event("wait", 7)
    instance = drained(instance)
    assert (instance.status, instance.output, len(tries)) == (S.COMPLETE, ["b", 7], 2)
    assert ("first-1[a]/a-1", "cancelled") in steps_of(instance)


def test_a_notify_that_finally_fails_fails_the_race(stopped_clock: StoppedClock) -> None:
    """A wait that nobody heard of must not stay silent (design 5); what lies in the inbox by then still counts."""

    class Untold(Workflow):
        class Meta:
            step_retries = 0

        def run(self, event: WorkflowEvent, step: Step) -> Any:
            try:
                step.race(
                    "first",
                    a=lambda: step.wait_for_event("a", type="a", notify=lambda pending: 1 // 0),
                    b=lambda: wait(step),
                )
            except ZeroDivisionError as error:
                step.sleep("pause", 60)
                return str(error)

    instance = drained(Untold.create())
    assert dict(PendingEvent.objects.values_list("name", "status")) == {"a": "cancelled", "wait": "cancelled"}
    stopped_clock.advance("1 minute")
    instance = drained(instance)
    assert (instance.status, instance.output) == (S.COMPLETE, "integer division or modulo by zero")
    assert dict(steps_of(instance))["first-1"] in ("failed",)


@pytest.mark.parametrize(
    ("branch", "error"),
    [
        (lambda step: step.wait_for_approval("ok", groups=["nobody knows it"]), "InvalidConfig"),
        (lambda step: step.sleep_until("far", datetime.now(UTC) + timedelta(days=8000)), "InvalidConfig"),
        (lambda step: step.sleep("wrong", "1 fortnight"), "InvalidConfig"),
        (lambda step: [][0], "IndexError"),
    ],
)
def test_a_branch_that_cannot_wait_fails_the_race_at_once(
    branch: Callable[[Step], Any], error: str, stopped_clock: StoppedClock
) -> None:
    """Loud, and recorded: the replay raises the same, whatever the code does by then. Nothing of the race stays open."""
    instance = drained(racing(ok=wait, bad=branch).create())
    assert instance.status == S.WAITING
    assert not PendingEvent.objects.filter(status="open").exists()
    assert dict(steps_of(instance))["first-1"] == "failed"
    stopped_clock.advance("1 minute")
    instance = drained(instance)
    assert (instance.status, instance.output[0]) == (S.COMPLETE, error)


def test_a_branch_that_is_settled_wins_over_one_that_cannot_wait() -> None:
    cls = racing(bad=lambda step: step.sleep("wrong", "1 fortnight"), ok=wait)
    instance = cls.create()
    instance.send_event("wait", 1)
    assert drained(instance).status == S.WAITING
    assert dict(steps_of(instance))["first-1"] == "complete"


def test_a_wrong_race_is_refused_by_the_facade() -> None:
    class Wrong(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            try:
                step.race("none")
            except InvalidConfig as error:
                return str(error)

    assert "at least one branch" in drained(Wrong.create()).output


def test_retry_opens_a_race_anew_whose_winner_failed(stopped_clock: StoppedClock) -> None:
    """The deadline that ended the instance is the winner's failure: all waits open anew, also those that lost."""
    told: list[str] = []

    class Again(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            first = step.race(
                "first",
                a=lambda: step.wait_for_event("a", type="a", timeout="1 hour").payload,
                b=lambda: (
                    step.wait_for_event(
                        "b", type="b", timeout=None, notify=lambda pending: noted(told, pending.pk)
                    ).payload
                ),
            )
            return [first.name, first.value]

    instance = drained(Again.create())
    stopped_clock.advance("1 hour")
    instance = drained(instance)
    assert instance.status == S.ERRORED and instance.error is not None
    assert instance.error["type"] == "durableflow.EventTimeout"
    instance.retry()
    instance = drained(instance)
    assert instance.status == S.WAITING
    assert [wait.name for wait in PendingEvent.objects.filter(status="open")] == ["b", "a"]
    assert len(set(told)) == 2
    instance.send_event("b", 3)
    assert drained(instance).output == ["b", 3]


def test_retry_leaves_the_losers_of_a_decided_race_alone(stopped_clock: StoppedClock) -> None:
    broken = [True]

    class Decided(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            first = step.race("first", a=lambda: step.sleep("a", 1), b=lambda: wait(step))
            step.do("work", lambda: 1 // (0 if broken else 1), retries=0)
            return first.name

    instance = drained(Decided.create())
    stopped_clock.advance("1 second")
    instance = drained(instance)
    assert instance.status == S.ERRORED
    broken.clear()
    instance.retry()
    assert ("first-1[b]/wait-1", "cancelled") in steps_of(instance)
    assert (drained(instance).output, dict(steps_of(instance))["first-1"]) == ("a", "complete")


def test_a_rollback_finds_its_handlers_beyond_a_race(stopped_clock: StoppedClock) -> None:
    """The replay that collects them asks the winner alone; a race that was not decided ends it there."""
    undone: list[str] = []

    class Saga(Workflow[bool, Any]):
        def run(self, event: WorkflowEvent[bool], step: Step) -> Any:
            step.do("before", str, 1, rollback=lambda undo: undone.append("before"))
            step.race("first", a=lambda: step.sleep("a", 1), b=lambda: wait(step))
            step.do("after", str, 2, rollback=lambda undo: undone.append("after"))
            step.do("fails", lambda: 1 // 0, retries=0)

    instance = drained(Saga.create())
    stopped_clock.advance("1 second")
    assert (drained(instance).status, undone) == (S.ERRORED, ["after", "before"])
    undone.clear()
    early = drained(Saga.create())
    early.terminate(rollback=True)
    assert (drained(early).status, undone) == (S.TERMINATED, ["before"])
    assert not PendingEvent.objects.filter(status="open").exists()


def test_recorded_races_are_checked_against_todays_code(stopped_clock: StoppedClock) -> None:
    """A race that is not decided must have the same branches; a decided one needs its winner."""
    names = ["a", "b"]

    class Checked(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            branches = {name: (lambda n=name: step.sleep(n, 60 if n == "a" else 90)) for name in names}
            first = step.race("first", **branches)
            step.wait_for_event("news", type="news", timeout=None)
            return first.name

    instance = drained(Checked.create())
    assert replay_check(instance).fits
    names[:] = ["a", "c"]
    with pytest.raises(ReplayBroken, match="began with the branches a, b"):
        replay_check(instance)
    names[:] = ["a", "b"]
    stopped_clock.advance("1 minute")
    instance = drained(instance)
    names[:] = ["c", "a"]
    assert replay_check(instance).fits
    names[:] = ["c", "b"]
    with pytest.raises(ReplayBroken, match="'a' has won"):
        replay_check(instance)


def test_people_see_when_the_race_ends_and_cannot_answer_past_that(stopped_clock: StoppedClock) -> None:
    """Design 8: a wait past its end reads as timed out everywhere, even if no worker was up; who is told "stored" was heard."""
    seen: list[Any] = []

    class Bounded(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            first = step.race(
                "first",
                boss=lambda: bool(step.wait_for_approval("boss", notify=lambda pending: noted(seen, pending.deadline))),
                paid=lambda: step.wait_for_event("paid", type="paid", timeout="3 hours").payload,
                late=lambda: step.sleep("late", "1 hour"),
            )
            return [first.name, first.value]

    end = stopped_clock.now + timedelta(hours=1)
    instance = drained(Bounded.create())
    assert seen == [end]
    assert set(PendingEvent.objects.values_list("deadline", flat=True)) == {end}
    stopped_clock.advance("2 hours")  # no worker comes
    boss = PendingEvent.objects.get(name="boss")
    assert boss.current_status == "timed_out"
    with pytest.raises(StaleDecision):
        boss.approve(by=None)
    instance.send_event("paid", 5)
    assert drained(instance).output == ["late", None]
    assert not SentEvent.objects.exclude(consumed_by="").exists()


def test_a_wait_beside_a_sleep_has_no_time_of_its_own_unless_it_says_so(stopped_clock: StoppedClock) -> None:
    """The default of 24 hours would end the race before the sleep of two days that its author gives it."""

    class Late(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            first = step.race(
                "first",
                paid=lambda: step.wait_for_event("paid", type="paid"),
                late=lambda: step.sleep("late", "2 days"),
            )
            return first.name

    instance = drained(Late.create())
    stopped_clock.advance("2 days")
    assert drained(instance).output == "late"


def test_the_branchs_own_deadline_wins_a_race_without_the_others(stopped_clock: StoppedClock) -> None:
    """What ends first ends all; with the same moment the earlier branch."""

    class Own(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            first = step.race(
                "first",
                late=lambda: step.sleep("late", "1 hour"),
                paid=lambda: step.wait_for_event("paid", type="paid", timeout="1 hour"),
            )
            return first.name

    instance = drained(Own.create())
    stopped_clock.advance("1 hour")
    assert drained(instance).output == "late"


def test_what_is_said_of_a_wait_names_its_branch() -> None:
    """Two branches may use one name: the history of a decision and the reason tell which of them is meant."""

    class Twins(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return step.gather("ask", lambda: self.ask(step), lambda: self.ask(step))

        def ask(self, step: Step) -> bool:
            return bool(step.wait_for_approval("boss", timeout=None))

    instance = drained(Twins.create())
    assert "ask-1[1]/boss-1" in reason(instance) and "ask-1[2]/boss-1" in reason(instance)
    PendingEvent.objects.get(step__scope="ask-1[2]").approve(by=None)
    instance = drained(instance)
    assert instance.history.get(type="decided").step == "ask-1[2]/boss-1"
    assert "ask-1[1]/boss-1" in reason(instance) and "ask-1[2]" not in reason(instance)

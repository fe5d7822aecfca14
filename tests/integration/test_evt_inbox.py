"""Events: sent, kept, matched in order, timed out, told of (design 4, 5)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from durableflow import EventTimeout, InvalidTransition, Step, Workflow, WorkflowEvent, drain
from durableflow.engine import delivery
from durableflow.models import PendingEvent, SentEvent, WorkflowInstance
from tests.integration.conftest import StoppedClock

pytestmark = pytest.mark.django_db(transaction=True)
Status = WorkflowInstance.Status


def state(row: WorkflowInstance) -> tuple[str, Any]:
    row.refresh_from_db()
    return row.status, row.output


def flow(run: Any) -> type[Workflow[Any, Any]]:
    """A workflow with this ``run(event, step)``."""

    class EvtFlow(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            return run(event, step)

    return EvtFlow


def test_an_event_sent_before_the_wait_is_kept(stopped_clock: StoppedClock) -> None:
    """EVT-01: also while the instance is still queued, and before a sleep that comes first."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        step.sleep("think", 5)
        return step.wait_for_event("paid", type="paid", timeout=10).payload

    row = flow(run).create()
    row.send_event("paid", {"n": 1})
    drain()
    assert state(row) == (Status.WAITING, None)
    stopped_clock.advance(5)
    drain()
    assert state(row) == (Status.COMPLETE, {"n": 1})
    assert PendingEvent.objects.get().status == PendingEvent.Status.RECEIVED


def test_the_sender_gets_the_moment_of_acceptance() -> None:
    """The row that ``send_event`` returns says what is stored."""
    sent = flow(lambda event, step: None).create().send_event("go", 1)
    assert sent.sent_at == SentEvent.objects.get().sent_at


@pytest.mark.parametrize("option", [{"dedupe_key": None}, {"dedupe_key": 5}, {"dedupe_key": "a\0"}, {"reason": "a\0"}])
def test_what_cannot_be_stored_with_an_event_is_refused_by_name(option: dict[str, Any]) -> None:
    """A webhook's id may be a number: the sender learns what to do, and nothing is stored."""
    row = flow(lambda event, step: None).create()
    with pytest.raises(ValueError, match=next(iter(option))):
        row.send_event("go", **option)
    with pytest.raises(ValueError, match="reason"):
        row.terminate(reason=None)  # type: ignore[arg-type]
    row.refresh_from_db()
    assert (row.status, SentEvent.objects.count()) == (Status.QUEUED, 0)


def test_an_event_sent_while_asleep_does_not_wake_it_for_good(stopped_clock: StoppedClock) -> None:
    """EVT-01: the sleep is not cut short, and the event is not lost."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        step.sleep("think", 5)
        return step.wait_for_event("paid", type="paid", timeout=10).payload

    row = flow(run).create()
    drain()
    row.send_event("paid", 7)
    drain()
    assert state(row) == (Status.WAITING, None)
    assert row.wake_at == stopped_clock.now + timedelta(seconds=5)
    stopped_clock.advance(5)
    drain()
    assert state(row) == (Status.COMPLETE, 7)


@pytest.mark.parametrize("before", [1, 3])
def test_only_the_open_wait_takes_the_next_event(stopped_clock: StoppedClock, before: int) -> None:
    """EVT-03: a wait that has timed out never takes an event any more."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        seen: list[Any] = []
        for _ in range(before):
            try:
                seen.append(step.wait_for_event("msg", type="msg", timeout=2).payload)
            except EventTimeout:
                seen.append("timeout")
        return [*seen, step.wait_for_event("msg", type="msg", timeout=2).payload]

    row = flow(run).create()
    for _ in range(before):
        drain()
        stopped_clock.advance(2.5)
    drain()
    row.send_event("msg", "hello")
    drain()
    assert state(row) == (Status.COMPLETE, ["timeout"] * before + ["hello"])
    statuses = list(PendingEvent.objects.order_by("id").values_list("status", flat=True))
    assert statuses == ["timed_out"] * before + ["received"]
    assert SentEvent.objects.get().consumed_by.endswith(f"#{before + 1}")


def test_a_timeout_is_an_outcome_like_any_other(stopped_clock: StoppedClock) -> None:
    """EVT-04: it is stored at its time; a late event for a gate that has timed out changes nothing."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        seen = []
        for gate, timeout in (("g1", 2), ("g2", 2), ("g3", 60)):
            try:
                seen.append(step.wait_for_event(gate, type=gate, timeout=timeout).payload)
            except EventTimeout:
                seen.append(f"{gate} timed out")
        return seen

    row = flow(run).create()
    drain()
    for _ in range(2):
        stopped_clock.advance(2)
        drain()
    assert PendingEvent.objects.open().get().name == "g3"
    assert row.history.filter(type="wait_timed_out").count() == 2
    row.send_event("g1", "late")
    drain()  # woken for nothing
    assert state(row)[0] == Status.WAITING
    row.send_event("g3", "ok")
    drain()
    assert state(row) == (Status.COMPLETE, ["g1 timed out", "g2 timed out", "ok"])
    assert row.history.filter(type="wait_timed_out").count() == 2
    assert row.sent_events.get(type="g1").consumed_by == ""


def test_one_event_answers_one_wait(stopped_clock: StoppedClock) -> None:
    """EVT-06: one file must not open two gates."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        first = step.wait_for_event("file", type="file").payload
        try:
            return [first, step.wait_for_event("file", type="file", timeout=3).payload]
        except EventTimeout:
            return [first, None]

    row = flow(run).create()
    row.send_event("file", "a.txt")
    drain()
    assert state(row)[0] == Status.WAITING
    stopped_clock.advance(3)
    drain()
    assert state(row) == (Status.COMPLETE, ["a.txt", None])
    assert row.sent_events.get().consumed_by == "/wait_for_event:file#1"


def test_events_come_in_the_order_of_acceptance(stopped_clock: StoppedClock) -> None:
    """EVT-07: all in the same microsecond; the id decides, not the time."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        return [step.wait_for_event("n", type="n").payload for _ in range(20)]

    row = flow(run).create()
    for number in range(10):
        row.send_event("n", number)
    drain()
    for number in range(10, 20):
        row.send_event("n", number)
    drain()
    assert state(row) == (Status.COMPLETE, list(range(20)))
    assert row.sent_events.filter(consumed_by="").count() == 0


def test_more_events_than_one_batch_are_all_taken_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """EVT-07: beyond the size of one delivery (500)."""
    assert delivery.BATCH == 500
    monkeypatch.setattr(delivery, "BATCH", 10)

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        return [step.wait_for_event("n", type="n").payload for _ in range(event.params)]

    count = 35
    row = flow(run).create(count)
    now = row.created
    SentEvent.objects.bulk_create(
        SentEvent(instance=row, run_number=1, type="n", payload=number, sent_at=now) for number in range(count)
    )
    drain(120)
    assert state(row) == (Status.COMPLETE, list(range(count)))
    drain()
    assert row.history.filter(type="event_received").count() == count
    assert not SentEvent.objects.filter(delivered=False).exists()


def test_types_match_exactly(stopped_clock: StoppedClock) -> None:
    """EVT-08: another spelling is another type; it is kept, unconsumed, and can be seen."""
    row = flow(lambda event, step: step.wait_for_event("ok", type="approved").payload).create()
    drain()
    sent = row.send_event("Approved", 1)
    drain()
    assert state(row)[0] == Status.WAITING
    sent.refresh_from_db()
    assert (sent.delivered, sent.consumed_by) == (True, "")
    assert [pending.types for pending in row.pending_events.open()] == [["approved"]]
    row.send_event("approved", 2)
    drain()
    assert state(row) == (Status.COMPLETE, 2)


@pytest.mark.parametrize("wanted", ["settled", "failed"])
def test_a_wait_for_several_types_takes_the_first_of_any(wanted: str) -> None:
    """api.md, example 5."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        got = step.wait_for_event("outcome", type=["settled", "failed"])
        return [got.type, got.payload, got.sent_by]

    row = flow(run).create()
    drain()
    row.send_event("other", 0)
    row.send_event(wanted, 1)
    row.send_event("settled", 2)
    drain()
    assert state(row) == (Status.COMPLETE, [wanted, 1, ""])


def test_timeout_zero_asks_the_inbox_once() -> None:
    """Design 6, "timeout=0": what is there is taken, else the wait has timed out at once, without a suspension."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        seen = [step.wait_for_event("a", type="a", timeout=0).payload]
        try:
            step.wait_for_event("b", type="b", timeout=0)
        except EventTimeout:
            seen.append("nothing")
        return seen

    row = flow(run).create()
    row.send_event("a", 1)
    assert drain() == 1
    assert state(row) == (Status.COMPLETE, [1, "nothing"])


def test_timeout_none_waits_for_ever(stopped_clock: StoppedClock) -> None:
    row = flow(lambda event, step: step.wait_for_event("a", type="a", timeout=None).payload).create()
    drain()
    stopped_clock.advance("9 years")
    assert drain() == 0
    assert state(row)[0] == Status.WAITING and row.wake_at is None
    row.send_event("a", 1)
    drain()
    assert state(row) == (Status.COMPLETE, 1)


def test_the_default_timeout_is_the_setting(stopped_clock: StoppedClock) -> None:
    row = flow(lambda event, step: step.wait_for_event("a", type="a")).create()
    drain()
    assert row.pending_events.get().deadline == stopped_clock.now + timedelta(hours=24)
    stopped_clock.advance("24 hours")
    drain()
    assert state(row)[0] == Status.ERRORED
    assert row.error is not None and row.error["type"] == "durableflow.EventTimeout"


def test_what_was_accepted_before_the_deadline_counts_although_nobody_was_up(stopped_clock: StoppedClock) -> None:
    """Design 4, "Time": accepted in time is in time, whenever a worker looks."""
    row = flow(lambda event, step: step.wait_for_event("a", type="a", timeout=60).payload).create()
    drain()
    stopped_clock.advance(60)  # the deadline itself still counts
    row.send_event("a", "in time")
    stopped_clock.advance("1 day")
    drain()
    assert state(row) == (Status.COMPLETE, "in time")


def test_what_came_after_the_deadline_stays_for_a_later_wait(stopped_clock: StoppedClock) -> None:
    """Design 4, "Time": nobody was up, the event is late, the wait has timed out all the same."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        try:
            step.wait_for_event("a", type="a", timeout=60)
        except EventTimeout:
            return step.wait_for_event("again", type="a", timeout=60).payload
        return "taken"

    row = flow(run).create()
    drain()
    stopped_clock.advance(61)
    row.send_event("a", "late")
    drain()
    assert state(row) == (Status.COMPLETE, "late")


@pytest.mark.parametrize("end", ["complete", "errored", "terminated"])
def test_a_finished_instance_refuses_events(end: str) -> None:
    """EVT-14: the sender is told, nothing is stored."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        if end == "terminated":
            step.wait_for_event("x", type="x")
        if end == "errored":
            raise ValueError("no")
        return None

    row = flow(run).create()
    drain()
    if end == "terminated":
        row.terminate()
    with pytest.raises(InvalidTransition) as refused:
        row.send_event("x")
    assert refused.value.status == end and end in str(refused.value)
    assert SentEvent.objects.count() == 0


def test_an_unknown_instance_refuses_events() -> None:
    """EVT-14: the row was deleted since."""
    row = flow(lambda event, step: None).create()
    WorkflowInstance.objects.all().delete()
    with pytest.raises(WorkflowInstance.DoesNotExist):
        row.__class__(pk=1_000_000).send_event("x")
    assert SentEvent.objects.count() == 0


def test_an_event_during_the_last_step_is_accepted_and_shown_as_unconsumed() -> None:
    """EVT-17: completion is not blocked; who came after it is refused."""
    own: list[WorkflowInstance] = []

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        step.do("last", lambda: own[0].send_event("note", 1).pk)
        return "done"

    row = flow(run).create()
    own.append(row)
    drain()
    assert state(row) == (Status.COMPLETE, "done")
    drain()
    sent = row.sent_events.get()
    assert (sent.delivered, sent.consumed_by) == (True, "")
    assert row.history.filter(type="event_received").count() == 1
    with pytest.raises(InvalidTransition):
        row.send_event("note", 2)


def test_a_last_look_misses_no_accepted_event() -> None:
    """EVT-17: "any event?" before the end sees what was sent during the last step."""
    own: list[WorkflowInstance] = []

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        step.do("last", lambda: own[0].send_event("note", 1).pk)
        try:
            return step.wait_for_event("any", type="note", timeout=0).payload
        except EventTimeout:
            return "missed"

    row = flow(run).create()
    own.append(row)
    drain()
    assert state(row) == (Status.COMPLETE, 1)
    assert [entry.type for entry in row.history.order_by("id")][-4:] == [
        "wait_started",
        "event_received",
        "wait_completed",
        "workflow_completed",
    ]

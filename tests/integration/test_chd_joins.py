"""Many children of one call: one join, one window, few replays (design 7; cases CHD-01, OPS-11)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from durableflow import Step, Workflow, WorkflowEvent, WorkflowFailed, drain
from durableflow.core.exceptions import LimitExceeded
from durableflow.engine.claims import claim
from durableflow.engine.delivery import deliver
from durableflow.engine.executor import execute
from durableflow.models import SentEvent, StepRecord, WorkflowInstance, family
from durableflow.timeline import reason
from tests.integration.chd_flows import Child, S, children_of, fresh, history, record_of, settle, step_of
from tests.integration.conftest import StoppedClock

pytestmark = pytest.mark.django_db(transaction=True)
Run = Callable[[WorkflowEvent[Any], Step], Any]


def parent(run: Run, **meta: Any) -> type[Workflow[Any, Any]]:
    class Parent(Workflow[Any, Any]):
        Meta = type("Meta", (), {"name": "chd-joiner", **meta})

        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            return run(event, step)

    return Parent


def joining(event: WorkflowEvent[Any], step: Step) -> Any:
    return step.run_workflows("children", Child, event.params)


def windowed(event: WorkflowEvent[Any], step: Step) -> Any:
    return step.run_workflows("children", Child, event.params["of"], concurrency=event.params["window"])


def due(row: WorkflowInstance) -> int:
    return sum(child.wake_at is not None for child in children_of(row) if not child.is_finished)


def unfinished(row: WorkflowInstance) -> list[WorkflowInstance]:
    """The children that could run, or have begun."""
    return [child for child in children_of(row) if not child.is_finished and child.hold != "window"]


def test_results_come_in_the_order_of_the_params() -> None:
    """Design 7: whatever the order in which the children end."""
    row = parent(joining).create([{"wait": n} for n in range(3)])
    drain(5)
    children = children_of(row)
    for number in (2, 0, 1):
        children[number].send_event("go", f"{number}!")
        drain(5)
    row.refresh_from_db()
    assert (row.status, row.output) == (S.COMPLETE, ["0!", "1!", "2!"])
    join = record_of(row, "children")
    assert (join.status, join.remaining, join.raw_output) == ("complete", 0, None)
    assert [step_of(child).label for child in children] == [f"children-1/children-{n}" for n in (1, 2, 3)]
    assert len({child.seed for child in children}) == 3  # no two share their idempotency keys


def test_no_params_are_no_children() -> None:
    row = parent(joining).create([])
    drain(5)
    assert (fresh(row).output, children_of(row), record_of(row, "children").status) == ([], [], "complete")


def test_failures_come_as_a_group_after_all_have_ended() -> None:
    """Case CHD-01: three children, two raise; the parent's except runs once, with their ids and errors."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        try:
            step.run_workflows("children", Child, [{"raise": "a"}, {"n": 1}, {"raise": "b"}])
        except* WorkflowFailed as group:
            found = [error for error in group.exceptions if isinstance(error, WorkflowFailed)]
            told = [[error.instance_id, error.error["message"]] for error in found]
            step.do("undo", undo, told)

    calls: list[Any] = []

    def undo(told: Any) -> Any:
        calls.append(told)
        return told

    row = parent(run).create()
    drain(5)
    row.refresh_from_db()
    first, _, third = children_of(row)
    assert row.status == S.COMPLETE and row.execution == 2
    assert calls == [[[first.instance_id, "a"], [third.instance_id, "b"]]]
    assert record_of(row, "children").status == "failed"


def test_failures_in_their_places() -> None:
    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        found = step.run_workflows("children", Child, [{"n": 1}, {"raise": "b"}], return_exceptions=True)
        step.wait_for_event("so that all is replayed", type="later", timeout=None)
        return [found[0], type(found[1]).__name__, str(found[1])]

    row = parent(run).create()
    drain(5)
    row.send_event("later")
    drain(5)
    row.refresh_from_db()
    assert row.output[:2] == [1, "WorkflowFailed"] and row.output[2].endswith("Declined: b")
    assert record_of(row, "children").status == "complete"


def test_three_hundred_children_wake_their_parent_once() -> None:
    """Case OPS-11: the parent is executed to start them and to take their results, never in between."""
    row = parent(joining).create([{"n": n} for n in range(300)])
    drain(60)
    row.refresh_from_db()
    assert (row.status, row.output) == (S.COMPLETE, list(range(300)))
    assert row.execution <= 3
    assert sum(child.execution for child in children_of(row)) == 300
    assert len(history(row, "child_finished")) == 300


def test_a_thousand_children_in_few_statements(django_assert_max_num_queries: Any) -> None:
    """Design 7: they are written in few statements; they all end at one moment, and are taken in few transactions."""
    row = parent(joining).create([{"wait": n} for n in range(1000)])
    (claimed,) = claim("default", pk=row.pk)
    with django_assert_max_num_queries(30):
        execute(claimed, renew=False)
    assert record_of(row, "children").remaining == 1000
    WorkflowInstance.objects.filter(parent_step__instance=row).update(status=S.COMPLETE, output=7, wake_at=None)
    for child in children_of(row):
        family.tell_parent("default", child.pk, child.label, child.status, step_of(child).pk)
    before = fresh(row).execution
    with django_assert_max_num_queries(60):
        settle()
    drain(10)
    row.refresh_from_db()
    assert (row.status, row.output) == (S.COMPLETE, [7] * 1000)
    assert row.execution - before == 1
    assert not SentEvent.objects.filter(delivered=False).exists()


def test_a_window_of_children() -> None:
    """Design 12: the window counts unfinished children; each that ends lets the next one go, in order."""
    row = parent(windowed).create({"of": [{"wait": n} for n in range(7)], "window": 3})
    drain(5)
    children = children_of(row)
    assert [child.status for child in children] == [S.WAITING] * 3 + [S.QUEUED] * 4
    assert [child.hold for child in children] == [""] * 3 + ["window"] * 4
    assert [child.wake_at for child in children[3:]] == [None] * 4
    children[1].send_event("go", 1)
    drain(5)
    assert [child.status for child in children_of(row)] == [S.WAITING, S.COMPLETE, *[S.WAITING] * 2, *[S.QUEUED] * 3]
    while (left := unfinished(row)) or fresh(row).status == S.WAITING:
        assert len(left) <= 3
        for child in left:
            child.send_event("go", 1)
        drain(5)
    assert fresh(row).output == [1] * 7 and fresh(row).execution <= 3


def test_a_window_of_fifty() -> None:
    """Case OPS-11 with a window: never more than fifty are unfinished, and the parent is not replayed for it."""
    row = parent(windowed).create({"of": [{"n": n} for n in range(120)], "window": 50})
    most = 0
    while fresh(row).status != S.COMPLETE:
        drain(0)
        deliver("default")
        most = max(most, len(unfinished(row)))
    assert most == 50
    assert fresh(row).output == list(range(120)) and fresh(row).execution <= 3


def test_a_parked_child_that_is_terminated_makes_no_room() -> None:
    """It was never let go: the window does not grow by it. One that was, and never ran, makes room."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        found = step.run_workflows(
            "children", Child, [{"wait": n} for n in range(5)], concurrency=2, return_exceptions=True
        )
        return [item.status if isinstance(item, WorkflowFailed) else item for item in found]

    row = parent(run).create()
    (claimed,) = claim("default", pk=row.pk)
    execute(claimed, renew=False)
    children = children_of(row)
    children[3].terminate()
    settle()
    assert [child.hold for child in children_of(row)] == ["", "", "window", "", "window"] and due(row) == 2
    children[0].terminate()
    settle()
    assert [child.hold for child in children_of(row)] == ["", "", "", "", "window"] and due(row) == 2
    drain(5)
    for _ in range(3):
        for child in unfinished(row):
            child.send_event("go", 1)
        drain(5)
    assert fresh(row).output == ["terminated", 1, 1, "terminated", 1]


def test_max_duration_of_a_parked_child_begins_when_it_may_run(stopped_clock: StoppedClock) -> None:
    """Design 5: from its first due moment."""

    class Bounded(Workflow[Any, Any]):
        class Meta:
            name = "chd-bounded"
            max_duration = "1 hour"

        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            return step.wait_for_event("go", type="go", timeout=None).payload

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        return step.run_workflows("children", Bounded, [1, 2], concurrency=1)

    row = parent(run).create()
    drain(5)
    stopped_clock.advance("30 minutes")
    first, second = children_of(row)
    first.send_event("go", 1)
    drain(5)
    stopped_clock.advance("59 minutes")
    drain(5)
    assert fresh(second).status == S.WAITING
    second.send_event("go", 2)
    drain(5)
    assert fresh(row).output == [1, 2]


@pytest.mark.parametrize("change", ["other", "more", "order"])
def test_changed_params_are_refused(change: str) -> None:
    """Design 6, 7: what the children got is recorded; the message says where the params differ, and what to do."""
    given = [{"n": 1}, {"n": 2}]

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        found = step.run_workflows("children", Child, given)
        step.wait_for_event("later", type="later", timeout=None)
        return found

    row = parent(run).create()
    drain(5)
    before = list(given)
    given[:] = {"other": [{"n": 1}, {"n": 3}], "more": [*before, {"n": 3}], "order": before[::-1]}[change]
    row.send_event("later")
    drain(5)
    row.refresh_from_db()
    assert row.status == S.PAUSED
    expected = {"other": "other params for child 2", "more": "3 params, but 2 children", "order": "params for child 1"}
    assert "NonDeterminismError" in row.blocked and expected[change] in row.blocked
    given[:] = before
    row.resume()
    drain(5)
    assert fresh(row).output == [1, 2]


def test_too_many_records(settings: Any) -> None:
    """Case ENG-12: nothing is started where the journal has no room for all."""
    settings.DURABLEFLOW = {**getattr(settings, "DURABLEFLOW", {}), "LIMITS": {"records": 10}}

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        try:
            return step.run_workflows("children", Child, [{"n": n} for n in range(10)])
        except LimitExceeded as error:
            return [str(error), *step.run_workflows("fewer", Child, [{"n": n} for n in range(3)])]

    row = parent(run).create()
    drain(5)
    row.refresh_from_db()
    assert row.status == S.COMPLETE and row.output[1:] == [0, 1, 2]
    assert row.output[0].startswith(f"{row.label}: the journal") and "step.continue_as_new" in row.output[0]
    assert "records" in row.output[0] and len(children_of(row)) == 3


def test_one_bad_entry_starts_none() -> None:
    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        try:
            step.run_workflows("children", Child, [{"n": 1}, {"n": object()}])
        except Exception as error:
            return type(error).__name__

    row = parent(run).create()
    drain(5)
    assert fresh(row).output == "CodecError" and children_of(row) == []
    assert StepRecord.objects.filter(instance=row).count() == 1


def test_a_crash_leaves_all_of_the_join_or_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case CHD-03 for many: records and children are one transaction."""
    from durableflow.engine import child_rows
    from durableflow.engine.unwind import ProcessDied

    tell, crashes = child_rows.tell, []

    def crash(*args: Any) -> None:
        tell(*args)
        if not crashes:
            crashes.append([WorkflowInstance.objects.count(), StepRecord.objects.count()])
            raise ProcessDied

    monkeypatch.setattr(child_rows, "tell", crash)
    row = parent(joining).create([{"n": n} for n in range(5)])
    with pytest.raises(ProcessDied):
        drain(5)
    assert crashes == [[6, 6]] and [WorkflowInstance.objects.count(), StepRecord.objects.count()] == [1, 0]
    WorkflowInstance.objects.update(suspect=True, wake_at="2020-01-01T00:00:00Z")
    drain(5)
    assert fresh(row).output == list(range(5)) and len(children_of(row)) == 5


def test_open_children_cost_no_queries_when_the_parent_is_woken_for_something_else(
    django_assert_max_num_queries: Any,
) -> None:
    """Design 7, 11: a parent with many open calls asks for none of them unless something has come while it ran."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        calls = [functools.partial(step.run_workflow, f"child {n}", Child, {"wait": n}) for n in range(20)]
        return step.gather("all", *calls, lambda: step.run_workflows("children", Child, [{"wait": 1}] * 5))

    row = parent(run).create()
    drain(5)
    row.send_event("noise")
    settle()
    (claimed,) = claim("default", pk=row.pk)
    with django_assert_max_num_queries(8):
        execute(claimed, renew=False)
    assert fresh(row).status == S.WAITING
    for child in children_of(row):
        child.send_event("go", 1)
    drain(10)
    assert fresh(row).output == (*[1] * 20, [1] * 5)


def test_an_event_for_the_parent_does_not_touch_the_join() -> None:
    """Woken for something else, it waits on: one small look, no outcomes."""
    row = parent(joining).create([{"wait": 1}, {"wait": 2}])
    drain(5)
    first, second = children_of(row)
    first.send_event("go", 1)
    row.send_event("noise")
    drain(5)
    assert fresh(row).status == S.WAITING and record_of(row, "children").remaining == 1
    assert reason(fresh(row)) == "Waits for child workflows in children-1: 1 have not ended."
    second.send_event("go", 2)
    drain(5)
    assert fresh(row).output == [1, 2]

"""``continue_as_new``: the next run of the same instance, with an empty journal (design 7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db.models import Max

from durableflow import InvalidTransition, Step, Workflow, WorkflowEvent, drain
from durableflow.core.exceptions import CodecError, InvalidConfig
from durableflow.engine import continuing
from durableflow.engine.claims import claim
from durableflow.engine.executor import execute
from durableflow.engine.unwind import ProcessDied, Renew
from durableflow.models import HistoryEntry, SentEvent, StepRecord, WorkflowInstance
from tests.integration.chd_flows import Child, S, children_of, fresh, history, settle
from tests.integration.conftest import StoppedClock

pytestmark = pytest.mark.django_db(transaction=True)
Run = Callable[[WorkflowEvent[Any], Step], Any]


def flow(run: Run, **meta: Any) -> type[Workflow[Any, Any]]:
    class Renewed(Workflow[Any, Any]):
        Meta = type("Meta", (), {"name": "chd-renewed", **meta})

        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            return run(event, step)

    return Renewed


def test_the_next_run_begins_with_an_empty_journal() -> None:
    """Same instance and id; new run number, seed and params; the old run's records stay under its number."""
    keys: list[Any] = []

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        step.set_progress(event.params["n"])
        step.do("work", keys.append, (event.run_number, str(step.uuid4())))
        if event.params["n"] < 3:
            step.continue_as_new({"n": event.params["n"] + 1})
        return event.params

    row = flow(run).create({"n": 1}, instance_id="same")
    seed = row.seed
    drain(5)
    row.refresh_from_db()
    assert (row.status, row.output, row.instance_id, row.run_number) == (S.COMPLETE, {"n": 3}, "same", 3)
    assert (row.params, row.progress, row.seed != seed) == ({"n": 3}, 3, True)
    assert [run for run, _ in keys] == [1, 2, 3] and len({key for _, key in keys}) == 3
    steps = StepRecord.objects.filter(instance=row).order_by("run_number")
    assert [(step.run_number, step.seq, step.label) for step in steps] == [(n, 1, "work-1") for n in (1, 2, 3)]
    assert history(row, "workflow_queued")[1:] == [("workflow_queued", {"verb": "continue_as_new"})] * 2
    assert HistoryEntry.objects.filter(instance=row, type="workflow_completed").get().run_number == 3
    assert row.started is not None


def test_unconsumed_events_come_along() -> None:
    """Design 2: delivered and undelivered ones, each with its dedupe key; a consumed one stays where it is."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        first = step.wait_for_event("note", type="note", timeout=None).payload
        if event.run_number == 1:
            step.do("send more", more)
            step.continue_as_new(None)
        return [first, step.wait_for_event("note", type="note", timeout=None).payload]

    def more() -> None:
        row.send_event("note", "undelivered", dedupe_key="c")

    renewed = flow(run)
    row = renewed.create()
    row.send_event("note", "consumed", dedupe_key="a")
    row.send_event("note", "delivered", dedupe_key="b")
    settle()
    (claimed,) = claim("default")
    execute(claimed, renew=False)
    rows = SentEvent.objects.filter(instance=row).order_by("id")
    assert [(sent.dedupe_key, sent.run_number, sent.consumed_run) for sent in rows] == [
        ("a", 1, 1),
        ("b", 2, None),
        ("c", 2, None),
    ]
    again = fresh(row).send_event("note", "undelivered", dedupe_key="c")
    assert again.duplicate
    drain(5)
    assert fresh(row).output == ["delivered", "undelivered"]


def test_what_the_run_leaves_open_is_cancelled() -> None:
    """Waits of abandoned branches end with the run; a started child stays the instance's, and ends with that."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        if event.run_number == 2:
            return step.wait_for_event("end", type="end", timeout=None).payload
        step.start_workflow("bound", Child, {"wait": 1}, instance_id="bound", on_parent_end="terminate")
        step.wait_for_event("never", type="never", timeout=None)

    row = flow(run).create()
    drain(5)
    WorkflowInstance.objects.filter(pk=row.pk).update(wake_at="2020-01-01T00:00:00Z")
    (claimed,) = claim("default", pk=row.pk)
    continuing.renew(
        claimed.lease, 1, Renew("null", "", None, 0)
    )  # as if the program had given up the branch that waits
    drain(5)
    assert (fresh(row).status, fresh(row).run_number) == (S.WAITING, 2)
    assert row.pending_events.get(run_number=1).status == "cancelled"
    assert row.steps.get(name="never").status == "cancelled"
    (bound,) = children_of(row)
    assert bound.status == S.WAITING
    row.send_event("end", 1)
    drain(5)
    assert (fresh(row).output, fresh(bound).status) == (1, S.TERMINATED)


def test_a_child_that_the_old_run_still_waits_for_ends() -> None:
    """Design 7: nobody would ever hear of it; what it says later concerns no run."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        if event.run_number == 2:
            return step.wait_for_event("end", type="end", timeout=None).payload
        return step.gather(
            "both",
            lambda: step.run_workflow("child", Child, {"wait": 1}),
            lambda: step.run_workflow("other", Child, {"n": 1}),
        )

    row = flow(run).create()
    drain(5)
    assert {child.status for child in children_of(row)} == {S.WAITING, S.COMPLETE}
    WorkflowInstance.objects.filter(pk=row.pk).update(wake_at="2020-01-01T00:00:00Z")
    (claimed,) = claim("default", pk=row.pk)
    continuing.renew(
        claimed.lease, 1, Renew("null", "", None, 0)
    )  # as if the program had given up the branch that waits
    drain(5)
    assert (fresh(row).status, fresh(row).run_number) == (S.WAITING, 2)
    assert {child.status for child in children_of(row)} == {S.TERMINATED, S.COMPLETE}
    assert len(history(row, "child_finished")) == 1


def test_max_duration_begins_again(stopped_clock: StoppedClock) -> None:
    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        step.wait_for_event("go", type="go", timeout=None)
        step.continue_as_new(None)

    row = flow(run, max_duration="1 hour").create()
    drain(5)
    for number in range(2, 5):
        stopped_clock.advance("50 minutes")
        row.send_event("go")
        drain(5)
        assert (fresh(row).status, fresh(row).run_number) == (S.WAITING, number)
    stopped_clock.advance("1 hour")
    drain(5)
    assert fresh(row).status == S.ERRORED


def test_its_slot_is_free_and_its_key_is_that_of_the_new_params() -> None:
    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        if event.params == "a":
            step.continue_as_new("b")
        return event.params

    row = flow(run, max_concurrency=1, concurrency_key=staticmethod(lambda params: params)).create("a")
    (claimed,) = claim("default")
    execute(claimed, renew=False)
    assert (fresh(row).concurrency_key, fresh(row).holds_slot, fresh(row).status) == ("chd-renewed:b", False, S.QUEUED)
    drain(5)
    assert fresh(row).output == "b"


def test_inside_a_branch_it_is_refused() -> None:
    """Design 7: it ends the whole run, and a branch is not the run."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        try:
            step.gather("both", lambda: step.continue_as_new(1), lambda: step.do("a", int))
        except* InvalidConfig as group:
            told.append(str(group.exceptions[0]))
        return step.do("b", str)

    told: list[str] = []
    row = flow(run).create()
    drain(5)
    assert fresh(row).status == S.COMPLETE and fresh(row).run_number == 1
    assert "continue_as_new" in told[0] and "branch" in told[0] and "chd-renewed" in told[0]


def test_inside_a_body_it_is_refused() -> None:
    """Design 6: a durable call like any other."""
    row = flow(lambda event, step: step.do("a", lambda: step.continue_as_new(1), retries=0)).create()
    drain(5)
    row.refresh_from_db()
    assert row.status == S.ERRORED and row.error is not None and "continue_as_new" in row.error["message"]


def test_params_that_cannot_be_stored_are_an_error_of_run() -> None:
    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        try:
            step.continue_as_new(object())  # type: ignore[arg-type]
        except CodecError:
            return "caught"

    row = flow(run).create()
    drain(5)
    assert (fresh(row).output, fresh(row).run_number) == ("caught", 1)


def test_a_recorded_step_that_is_skipped_is_seen() -> None:
    """Case ENG-08: the end of a run is its end, also where another follows."""
    skip = [False]

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        if not skip[0]:
            step.do("a", int)
            step.wait_for_event("go", type="go", timeout=None)
        step.continue_as_new(None)

    row = flow(run).create()
    drain(5)
    skip[0] = True
    row.send_event("go")
    drain(5)
    row.refresh_from_db()
    assert (row.status, row.run_number) == (S.PAUSED, 1) and "NonDeterminismError" in row.blocked


def test_swallowing_it_does_not_help() -> None:
    """What run() does after it changes nothing any more."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        try:
            if event.run_number == 1:
                step.continue_as_new("new")
        except BaseException:
            return "swallowed"
        return event.params

    row = flow(run).create()
    drain(5)
    assert (fresh(row).run_number, fresh(row).output) == (2, "new")


def test_a_child_that_continues_as_new_is_still_its_parents() -> None:
    def again(event: WorkflowEvent[Any], step: Step) -> Any:
        if event.params < 3:
            step.continue_as_new(event.params + 1)
        return f"run {event.run_number}"

    renewed = flow(again)

    class Parent(Workflow[Any, Any]):
        class Meta:
            name = "chd-renewer"

        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            return step.run_workflow("child", renewed, 1)

    row = Parent.create()
    drain(5)
    assert fresh(row).output == "run 3" and fresh(row).execution == 2


def test_a_crash_at_its_end_does_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One transaction: killed before it is committed, the old run does it again."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        step.do("work", bodies.append, event.run_number)
        if event.run_number == 1:
            step.continue_as_new(None)

    bodies: list[int] = []
    record, crashes = continuing.record, []

    def crash(*args: Any, **kwargs: Any) -> None:
        record(*args, **kwargs)
        if not crashes:
            crashes.append(1)
            raise ProcessDied

    monkeypatch.setattr(continuing, "record", crash)
    row = flow(run).create()
    with pytest.raises(ProcessDied):
        drain(5)
    assert (fresh(row).run_number, fresh(row).status) == (1, S.RUNNING)
    WorkflowInstance.objects.update(suspect=True, wake_at="2020-01-01T00:00:00Z")
    drain(5)
    assert (fresh(row).run_number, fresh(row).status, bodies) == (2, S.COMPLETE, [1, 2])
    assert HistoryEntry.objects.filter(instance=row).aggregate(Max("run_number"))["run_number__max"] == 2


def test_terminate_and_the_next_run() -> None:
    """A verb between two runs is one like any other."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        step.continue_as_new(None)

    row = flow(run).create()
    (claimed,) = claim("default")
    execute(claimed, renew=False)
    row.refresh_from_db()
    row.terminate()
    with pytest.raises(InvalidTransition):
        row.send_event("late")
    drain(5)
    assert (fresh(row).status, fresh(row).run_number) == (S.TERMINATED, 2)

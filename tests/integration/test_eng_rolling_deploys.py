"""Workers whose code does not know what is due: it is held for those that do (case ENG-13, design 6 "Engine failures")."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from durableflow import Step, Workflow, WorkflowEvent, drain
from durableflow.admin.instances import short_reason
from durableflow.core import clock, registry
from durableflow.core.statuses import Hold
from durableflow.engine.claims import claim, look
from durableflow.engine.executor import execute
from durableflow.engine.look import next_due
from durableflow.engine.verdicts import MAX_GIVE_BACKS, hold_seconds
from durableflow.models import WorkflowInstance
from durableflow.testing import Harness
from durableflow.timeline import reason
from durableflow.timeline.advice import advice
from tests.integration.conftest import StoppedClock
from tests.support.engine import drained, noted, types_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


def gone(bodies: list[str], version: int = 0) -> type[Workflow[Any, Any]]:
    class Gone(Workflow[Any, Any]):
        class Meta:
            name = "gone"

        def run(self, event: WorkflowEvent[Any], step: Step) -> str:
            step.do("before", lambda: bodies.append("before"))
            step.sleep("nap", 60)
            return step.do("after", lambda: noted(bodies, "after", "finished"))

    Gone.options = type(Gone.options)(**{**vars(Gone.options), "version": version})
    return Gone


class Healthy(Workflow[Any, Any]):
    class Meta:
        name = "rolling-healthy"

    def run(self, event: WorkflowEvent[Any], step: Step) -> str:
        return step.do("work", lambda: "done")


def forget() -> None:
    registry._classes.pop("gone")


def test_an_unknown_workflow_is_held_and_the_others_go_on(stopped_clock: StoppedClock) -> None:
    """ENG-13: a clear state, no hot loop, healthy instances finish; a worker that knows it takes it at its next look."""
    registry.register("rolling-healthy", Healthy)
    bodies: list[str] = []
    row = drained(gone(bodies).create())
    before = types_of(row)
    with registry.isolated():
        forget()
        stopped_clock.advance(60)
        healthy = [Healthy.create() for _ in range(20)]
        assert drain(seconds=10) == 20
        assert drain(seconds=0) == 0
        row.refresh_from_db()
        assert (row.status, row.hold, row.execution, row.give_backs) == (S.WAITING, "unknown_workflow", 1, 1)
        assert row.wake_at == stopped_clock.now + timedelta(seconds=15)
        assert row.interruptions == 0 and types_of(row) == before, "nothing is counted, nothing is told"
        assert "No running worker knows this workflow" in reason(row)
        for one in healthy:
            one.refresh_from_db()
            assert one.status == S.COMPLETE
        due = next_due("default")
        assert due is not None and due.seconds == pytest.approx(15)
    # The class is back: nobody waits for the 15 seconds.
    due = next_due("default")
    assert due is not None and (due.seconds, due.instance) == (0, row.pk)
    assert (drained(row).status, row.output, bodies) == (S.COMPLETE, "finished", ["before", "after"])
    assert (row.hold, row.give_backs) == ("", 0)


def test_newer_code_is_held(stopped_clock: StoppedClock) -> None:
    """Design 6: an instance of a higher Meta.version waits for workers that have it; equal or lower ones run."""
    bodies: list[str] = []
    row = gone(bodies, version=2).create()
    gone(bodies, version=1)
    assert drain(seconds=0) == 0
    row.refresh_from_db()
    assert (row.status, row.hold, row.execution, row.started) == (S.QUEUED, "newer_code", 0, None)
    assert "newer code" in reason(row)
    gone(bodies, version=2)
    assert drained(row).status == S.WAITING
    gone(bodies, version=3)
    stopped_clock.advance(60)
    assert drained(row).status == S.COMPLETE


def test_what_newer_code_has_executed_does_not_go_back(stopped_clock: StoppedClock) -> None:
    """Design 6: in a rolling deploy an instance of the old code is taken up by the new, which may have recorded what the old does
    not know. From then on it waits for the new, under a limit too."""
    for limit in ({}, {"max_concurrency": 1}):

        def deployed(version: int, limit: Any = limit) -> type[Workflow[Any, Any]]:
            meta = {"name": "gone", "version": version, **limit}

            def run(self: Any, event: WorkflowEvent[Any], step: Step) -> str:
                if version:
                    step.do("inserted", lambda: None)
                step.sleep("nap", 60)
                return step.do("after", lambda: "finished")

            return type("Gone", (Workflow,), {"run": run, "Meta": type("Meta", (), meta), "__module__": __name__})

        row = drained(deployed(0).create())
        assert row.code_version == 0
        deployed(2)
        stopped_clock.advance(60)
        again = WorkflowInstance.objects.create(
            workflow="gone", instance_id="i", created=stopped_clock.now, wake_at=stopped_clock.now
        )
        assert (drained(again).status, again.code_version) == (S.WAITING, 2)
        row.refresh_from_db()
        assert (row.status, row.code_version) == (S.COMPLETE, 2)
        deployed(1)
        stopped_clock.advance(60)
        assert drain(seconds=0) == 0
        again.refresh_from_db()
        assert (again.status, again.hold, again.blocked) == (S.WAITING, "newer_code", "")
        deployed(3)
        assert (drained(again).status, again.code_version) == (S.COMPLETE, 3)
        WorkflowInstance.objects.all().delete()


def test_the_looks_grow_rarer_and_end_with_a_person(stopped_clock: StoppedClock) -> None:
    """Design 6: 15 s, doubling to 5 minutes; after 10 give-backs without an execution it is blocked."""
    assert [hold_seconds(n) for n in range(7)] == [15, 30, 60, 120, 240, 300, 300]
    row = gone([]).create()
    with registry.isolated():
        forget()
        for number in range(MAX_GIVE_BACKS):
            assert look("default").taken == []
            row.refresh_from_db()
            assert (row.status, row.give_backs) == (S.QUEUED, number + 1)
            assert row.wake_at == stopped_clock.now + timedelta(seconds=hold_seconds(number))
            stopped_clock.advance(hold_seconds(number) - 1)
            assert claim("default") == []
            stopped_clock.advance(1)
        assert drain(seconds=0) == 1
        row.refresh_from_db()
        assert (row.status, row.hold) == (S.PAUSED, "")
        assert "No workflow is named 'gone'" in row.blocked
    row.resume()
    stopped_clock.advance(60)
    drained(row)
    stopped_clock.advance(60)
    assert drained(row).status == S.COMPLETE


def test_looks_of_old_code_do_not_count_behind_a_limit(stopped_clock: StoppedClock) -> None:
    """Nine looks of code that did not know it; the code that does has no slot for it. That starts nothing, but is no reason to
    block it at its first hitch either."""

    class Limited(Workflow[Any, Any]):
        class Meta:
            name = "gone"
            max_concurrency = 1

        def run(self, event: WorkflowEvent[Any], step: Step) -> str:
            return step.do("work", lambda: "done")

    first, row = Limited.create(), Limited.create()
    (running,) = claim("default")
    assert running.lease.pk == first.pk
    WorkflowInstance.objects.filter(pk=row.pk).update(hold=Hold.UNKNOWN_WORKFLOW, give_backs=MAX_GIVE_BACKS - 1)
    assert claim("default") == []
    row.refresh_from_db()
    assert (row.hold, row.wake_at, row.give_backs) == (Hold.LIMIT, None, 0)
    execute(running)
    assert drained(row).status == S.COMPLETE


def test_a_lost_worker_is_still_counted(stopped_clock: StoppedClock) -> None:
    """ENG-13, RET-03: old code that meets the expired lease of an instance it does not know hides no lost attempt."""
    row = gone([]).create()
    (lost,) = claim("default")
    stopped_clock.outlast_leases()
    with registry.isolated():
        forget()
        assert claim("default") == []
        row.refresh_from_db()
        assert (row.hold, row.lease_token, row.interruptions) == ("unknown_workflow", lost.lease.token, 0)
        assert "No running worker knows this workflow" in reason(row)
    (taken,) = claim("default")
    assert (taken.lost_token, taken.interruptions) == (lost.lease.token, 1)
    row.refresh_from_db()
    assert row.hold == ""


def test_an_owner_that_lives_keeps_a_held_instance(stopped_clock: StoppedClock) -> None:
    """A worker that knows the code does not take a held row whose owner has renewed its lease since."""
    gone([]).create()
    (mine,) = claim("default")
    stopped_clock.outlast_leases()
    with registry.isolated():
        forget()
        assert claim("default") == []
    WorkflowInstance.objects.filter(lease_token=mine.lease.token).update(suspect=False)  # as a renewal does
    assert claim("default") == []


@pytest.mark.parametrize("head", ["held", "suspect"])
def test_rows_at_the_head_hide_nobody(stopped_clock: StoppedClock, head: str) -> None:
    """Design 4, 6: a thousand rows that cannot be taken stand before one that can; one look gets there."""
    registry.register("rolling-healthy", Healthy)
    kind = gone([])
    old = stopped_clock.now - timedelta(days=300)
    rows = [
        WorkflowInstance(
            workflow=kind.workflow_name(),
            instance_id=str(number),
            created=old,
            wake_at=old,
            **({"status": S.RUNNING, "lease_token": number + 1, "owner": 1} if head == "suspect" else {}),
        )
        for number in range(1000)
    ]
    WorkflowInstance.objects.bulk_create(rows)
    row = Healthy.create()
    if head == "held":
        forget()
    (taken,) = look("default").taken
    assert taken.lease.pk == row.pk
    assert claim("default") == []
    left = WorkflowInstance.objects.exclude(pk=row.pk)
    assert left.filter(**({"suspect": True} if head == "suspect" else {"hold": "unknown_workflow"})).count() == 1000
    assert left.filter(wake_at__gt=stopped_clock.now).count() == 1000


def test_two_looks_before_a_takeover(stopped_clock: StoppedClock, settings: Any) -> None:
    """Design 4, "Takeover": after an outage in which nobody could renew, live workers get a third of a lease more."""
    settings.DURABLEFLOW = {**settings.DURABLEFLOW, "LEASE": 15}
    registry.register("rolling-healthy", Healthy)
    row = Healthy.create()
    (held,) = claim("default")
    stopped_clock.advance(16)
    first = look("default")
    assert first.taken == [] and not first.again
    row.refresh_from_db()
    assert (row.suspect, row.lease_token) == (True, held.lease.token)
    assert row.wake_at == stopped_clock.now + timedelta(seconds=5)
    stopped_clock.advance(4)
    assert claim("default") == []
    stopped_clock.advance(2)
    (taken,) = claim("default")
    assert (taken.lost_token, taken.interruptions) == (held.lease.token, 1)
    row.refresh_from_db()
    assert row.suspect is False


def test_a_renewal_clears_the_suspicion(stopped_clock: StoppedClock) -> None:
    """Design 4, "Takeover": only an expired, still suspect lease is taken."""
    from durableflow.engine.renewal import renew

    registry.register("rolling-healthy", Healthy)
    row = Healthy.create()
    (held,) = claim("default")
    stopped_clock.advance(20)
    assert claim("default") == []
    renew([held.lease])
    row.refresh_from_db()
    assert row.suspect is False and not held.lease.lost
    stopped_clock.advance(6)
    assert claim("default") == []


def test_the_kit_holds_what_it_does_not_know(workflows: Harness) -> None:
    """The testing kit tells it by ``hold``, it neither fails nor loops."""
    row = gone([]).create()
    with registry.isolated():
        forget()
        workflows.run_due()
        row.refresh_from_db()
        assert (row.status, row.hold) == (S.QUEUED, "unknown_workflow")
        workflows.advance("1 hour")
        row.refresh_from_db()
        assert row.status == S.PAUSED and "No workflow is named" in row.blocked


@pytest.mark.parametrize("taken_by", ["owner", "other"])
def test_leases_of_the_known_dead_end_at_once(stopped_clock: StoppedClock, taken_by: str) -> None:
    """Design 4, "Takeover": a sentinel that has reaped its child need not wait; other owners keep their leases."""
    from durableflow.engine import lease, takeover

    registry.register("rolling-healthy", Healthy)
    before = lease._owner
    try:
        lease.be(7)
        row = Healthy.create()
        (dead,) = claim("default")
        lease.be(8)
        Healthy.create()
        claim("default")
    finally:
        lease._owner = before
    assert takeover.expire("default", []) == 0
    assert takeover.expire("default", [7 if taken_by == "owner" else 9]) == (1 if taken_by == "owner" else 0)
    taken = look("default", 5).taken
    assert [item.lost_token for item in taken] == ([dead.lease.token] if taken_by == "owner" else [])
    assert takeover.expire("default", [7]) == (1 if taken_by == "other" else 0)
    row.refresh_from_db()
    assert row.suspect is (taken_by == "other")


def test_a_hold_that_only_newer_code_knows_is_shown_as_it_is() -> None:
    """A web server of the old version meets rows of the new one's workers: no page may fail for a word."""
    row = WorkflowInstance(workflow="w", instance_id="i", status=S.QUEUED, hold="quota")
    assert (reason(row), short_reason(row), advice(row)) == ("quota.", "quota", "")


def test_a_dead_owners_rows_are_found_by_an_index() -> None:
    """Design 11: a million rows may wait beside them. The planner is told of some: for an empty table each index serves
    as well."""
    now = clock.host_now()
    leases = [{"status": S.RUNNING, "lease_token": n, "owner": n % 50} if n % 4 == 0 else {} for n in range(4000)]
    WorkflowInstance.objects.bulk_create(
        WorkflowInstance(workflow="w", instance_id=f"i{n}", created=now, wake_at=now, **lease)
        for n, lease in enumerate(leases)
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
        explain = "EXPLAIN" if connection.vendor == "postgresql" else "EXPLAIN QUERY PLAN"
        where = "owner IN (7) AND lease_token IS NOT NULL"
        cursor.execute(f"{explain} SELECT id FROM durableflow_workflowinstance WHERE {where}")
        assert "durableflow_by_owner" in str(cursor.fetchall())


def test_events_do_not_use_up_the_looks(stopped_clock: StoppedClock) -> None:
    """Design 6: it is blocked after ten looks that grow ever rarer, not after ten events in a second; nothing is lost."""

    class Listening(Workflow[Any, Any]):
        class Meta:
            name = "gone"

        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            return [step.wait_for_event("go", type="go").payload for _ in range(MAX_GIVE_BACKS + 2)]

    row = drained(Listening.create())
    with registry.isolated():
        forget()
        for number in range(MAX_GIVE_BACKS + 2):
            row.send_event("go", number)
            assert drain(seconds=10) == 0
        row.refresh_from_db()
        assert (row.status, row.hold, row.give_backs) == (S.WAITING, "unknown_workflow", 1)
        assert row.wake_at == stopped_clock.now + timedelta(seconds=15)
    assert drained(row).output == list(range(MAX_GIVE_BACKS + 2))

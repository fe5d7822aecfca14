"""A workflow that has got another name keeps its instances: ``Meta.previous_names`` (design 5; ENG-04, ENG-13)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from durableflow import InstanceAlreadyExists, Step, Workflow, WorkflowEvent, drain
from durableflow.core import registry
from durableflow.engine import endings
from durableflow.engine.claims import claim, look
from durableflow.engine.executor import execute
from durableflow.engine.slots import sweep
from durableflow.models import ConcurrencyLimit, PendingEvent, WorkflowInstance
from tests.conftest import UserFactory
from tests.integration.conftest import StoppedClock
from tests.integration.limit_flows import exact
from tests.support.concurrency import together
from tests.support.engine import drained, noted

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


def named(name: str, *previous: str, run: Any = None, **meta: Any) -> type[Workflow[Any, Any]]:
    """The same program as it is deployed under a name, with the names that it had before."""

    def wait(self: Any, event: WorkflowEvent[Any], step: Step) -> Any:
        step.do("load", lambda: None)
        return [event.workflow, step.wait_for_event("go", type="go", timeout=None).payload]

    space = {"run": run or wait, "Meta": type("Meta", (), {"name": name, "previous_names": list(previous), **meta})}
    return type(name, (Workflow,), {**space, "__module__": __name__, "__qualname__": f"{name}-{len(previous)}"})


@contextmanager
def old_code(name: str = "pay", **meta: Any) -> Iterator[type[Workflow[Any, Any]]]:
    """A process with the code before the renaming."""
    with registry.isolated():
        registry._classes.clear(), registry._previous.clear()
        yield named(name, **meta)


def test_instances_under_the_old_name_go_on(stopped_clock: StoppedClock) -> None:
    """They are run by the renamed class, replay what they have recorded, and keep the name under which they are stored."""
    bodies: list[str] = []

    def run(self: Any, event: WorkflowEvent[Any], step: Step) -> Any:
        step.do("load", lambda: bodies.append("load"))
        step.sleep("nap", 60)
        return event.workflow

    with old_code(run=run) as old:
        row = drained(old.create(instance_id="a"))
    assert row.status == S.WAITING
    new = named("charge", "pay", run=run)
    stopped_clock.advance(60)
    assert (drained(row).status, row.output, row.workflow, bodies) == (S.COMPLETE, "pay", "pay", ["load"])
    fresh = new.create()
    drained(fresh)
    stopped_clock.advance(60)
    assert (drained(fresh).output, fresh.workflow) == ("charge", "charge")


def test_a_process_with_the_old_code_holds_the_new_name(stopped_clock: StoppedClock) -> None:
    """ENG-13: in a rolling deploy it takes what it knows, and leaves the rest to those that know it."""
    new = named("charge", "pay")
    theirs = new.create()
    with old_code() as old:
        mine = old.create()
        assert drained(mine).status == S.WAITING
        theirs.refresh_from_db()
        assert (theirs.status, theirs.hold) == (S.QUEUED, "unknown_workflow")
    assert drained(theirs).status == S.WAITING
    mine.send_event("go", 1)
    assert drained(mine).output == ["pay", 1]


def test_what_was_held_for_its_name_is_taken_at_once(stopped_clock: StoppedClock) -> None:
    """ENG-13: the class was renamed without previous_names; with them, nobody waits for the next look."""
    with old_code() as old:
        row = drained(old.create())
        row.send_event("go", 1)
    with registry.isolated():
        named("charge")
        assert drain(seconds=0) == 0
        row.refresh_from_db()
        assert row.hold == "unknown_workflow"
    named("charge", "pay")
    assert drained(row).output == ["pay", 1]


def test_meta_version_counts_for_the_old_name_too(stopped_clock: StoppedClock) -> None:
    with old_code(version=2) as old:
        row = old.create()
    with registry.isolated():
        named("charge", "pay", version=1)
        assert drain(seconds=0) == 0
        row.refresh_from_db()
        assert row.hold == "newer_code"
    named("charge", "pay", version=2)
    assert drained(row).status == S.WAITING


# Looking up and starting -----------------------------------------------------------------------------------------------


def test_an_id_that_is_taken_under_the_old_name_is_taken() -> None:
    """CON-01: one name now, one namespace of ids."""
    with old_code() as old:
        row = old.create({"by": "old"}, instance_id="order-1")
    new = named("charge", "pay")
    with pytest.raises(InstanceAlreadyExists):
        new.create(instance_id="order-1")
    assert new.get_or_create(instance_id="order-1") == (row, False)
    assert new.get("order-1") == row
    other = new.create(instance_id="order-2")
    assert set(new.instances()) == {row, other}
    assert list(WorkflowInstance.objects.for_workflow("pay")) == [row]
    with pytest.raises(WorkflowInstance.DoesNotExist):
        new.get("order-3")


def test_only_a_renamed_workflow_asks_for_its_old_names() -> None:
    """The plain way costs no statement more."""
    plain, renamed = named("plain"), named("charge", "pay")
    counts = []
    for cls in (plain, renamed):
        with CaptureQueriesContext(connection) as captured:
            cls.create()
        counts.append(len([query for query in captured if "workflowinstance" in query["sql"]]))
    assert counts[1] == counts[0] + 1


@pytest.mark.parametrize("_round", range(5))
def test_creators_at_once_make_one_instance(_round: int) -> None:
    """CON-01: whoever comes, an id is given once."""
    new = named("charge", "pay")
    tasks = together(*[lambda: new.get_or_create(instance_id="order-1")] * 4)
    results = [task.result() for task in tasks]
    assert sorted(created for _row, created in results) == [False] * 3 + [True]
    assert WorkflowInstance.objects.count() == 1


def test_creators_with_old_and_new_code_in_a_deploy() -> None:
    """A process that does not know the new name cannot see what has it: then both exist, each under its own name, and the
    present name counts."""
    new = named("charge", "pay")
    present = new.create(instance_id="order-1")
    with old_code() as old:
        stale = old.create(instance_id="order-1")
    assert new.get("order-1") == present
    assert new.get_or_create(instance_id="order-1") == (present, False)
    assert set(new.instances()) == {present, stale}


# REST ------------------------------------------------------------------------------------------------------------------


def test_both_names_are_addresses(user_factory: UserFactory) -> None:
    with old_code() as old:
        old.create(instance_id="order-1")
    named("charge", "pay").create(instance_id="order-2")
    user = user_factory("ada", is_superuser=True)
    client = APIClient()
    client.force_login(user)
    for name in ("pay", "charge"):
        assert client.get(f"/api/workflows/{name}/").json()["name"] == "charge"
        rows = client.get(f"/api/workflows/{name}/instances/").json()["results"]
        assert [(row["workflow"], row["instance_id"]) for row in rows] == [("charge", "order-2"), ("pay", "order-1")]
        for pk in ("order-1", "order-2"):
            assert client.get(f"/api/workflows/{name}/instances/{pk}/").json()["instance_id"] == pk
    assert "pay" not in [item["name"] for item in client.get("/api/workflows/").json()["results"]]
    again = client.post("/api/workflows/pay/instances/", {"instance_id": "order-2"}, format="json")
    assert (again.status_code, again.json()["code"]) == (409, "already_exists")
    started = client.post("/api/workflows/pay/instances/", {"instance_id": "order-3"}, format="json")
    assert (started.status_code, started.json()["workflow"]) == (201, "charge")


def test_an_idempotency_key_of_the_old_name_gives_the_first_answer(user_factory: UserFactory) -> None:
    """SEC-15: a client that asks once more after the deploy does not start a second one."""
    client = APIClient()
    client.force_login(user_factory("ada", is_superuser=True))

    def start(name: str) -> Any:
        return client.post(f"/api/workflows/{name}/instances/", {}, format="json", headers={"Idempotency-Key": "k1"})

    with old_code():
        first = start("pay")
    assert first.status_code == 201
    named("charge", "pay")
    for name in ("pay", "charge"):
        again = start(name)
        assert (again.status_code, again.json()["instance_id"]) == (200, first.json()["instance_id"])
    assert WorkflowInstance.objects.count() == 1


def test_pending_events_are_filtered_by_workflow(user_factory: UserFactory) -> None:
    def run(self: Any, event: WorkflowEvent[Any], step: Step) -> Any:
        return bool(step.wait_for_approval("ok"))

    with old_code(run=run) as old:
        drained(old.create())
    drained(named("charge", "pay", run=run).create())
    client = APIClient()
    client.force_login(user_factory("ada", is_superuser=True))
    assert PendingEvent.objects.count() == 2
    for name in ("pay", "charge"):
        assert len(client.get(f"/api/pending-events/?workflow={name}").json()["results"]) == 2


# Slots -----------------------------------------------------------------------------------------------------------------


def working(self: Any, event: WorkflowEvent[Any], step: Step) -> Any:
    return step.do("work", lambda: "done")


def test_both_names_share_one_limit() -> None:
    """RET-12, CHD-06: what runs under the old name's key takes part of the present one's slots; its successors stand in one
    line, the older first."""
    with old_code(run=working, max_concurrency=1) as old:
        running, parked, last = old.create(), old.create(), old.create()
        (held,) = look("default", 3).taken
        assert (held.lease.pk, held.lease.slot) == (running.pk, "pay")
    new = named("charge", "pay", run=working, max_concurrency=1)
    fresh = new.create()
    assert claim("default", 4) == []
    fresh.refresh_from_db()
    assert (fresh.hold, fresh.concurrency_key) == ("limit", "charge")
    sweep("default")
    execute(held, renew=False)  # what it was claimed with is given back where it was taken
    assert ConcurrencyLimit.objects.get(key="pay").running == 0
    slots_swept()
    for row in (parked, last, fresh):
        (following,) = look("default", 3).taken
        assert (following.lease.pk, following.lease.slot) == (row.pk, "charge")
        exact(1)
        execute(following, renew=False)
    assert {row.status for row in WorkflowInstance.objects.all()} == {S.COMPLETE}
    exact(1)


def slots_swept() -> None:
    """The sweep looks each few seconds only: let it look now."""
    from durableflow.engine import slots

    slots._pulse.again("default")
    sweep("default")


def test_keys_of_both_names_share_one_limit() -> None:
    """The same for concurrency keys; others are not touched by it."""
    meta: Any = {"run": working, "max_concurrency": 1, "concurrency_key": staticmethod(lambda params: params["key"])}
    with old_code(**meta) as old:
        first = old.create({"key": "a"})
        (held,) = claim("default")
        assert held.lease.slot == "pay:a"
        waiting = old.create({"key": "a"})
    new = named("charge", "pay", **meta)
    other, same = new.create({"key": "b"}), new.create({"key": "a"})
    assert [item.lease.slot for item in look("default", 5).taken] == ["charge:b"]
    endings.give_back(held.lease)
    slots_swept()
    taken = [item for _ in range(3) for item in claim("default")]
    assert [(item.lease.pk, item.lease.slot) for item in taken] == [(first.pk, "charge:a")]
    exact(1)
    execute(taken[0], renew=False)
    assert [drained(row).status for row in (first, waiting, same)] == [S.COMPLETE] * 3
    other.refresh_from_db()
    assert other.status == S.RUNNING
    exact(1)


def test_a_taken_over_instance_keeps_the_slot_of_its_old_name() -> None:
    """Design 4: a slot is free when its instance is let go, not when its workflow is renamed."""
    with old_code(run=working, max_concurrency=1) as old:
        row = old.create()
        (lost,) = claim("default")
    new = named("charge", "pay", run=working, max_concurrency=1)
    fresh = new.create()
    WorkflowInstance.objects.filter(pk=row.pk).update(wake_at="2020-01-01T00:00:00Z", suspect=True)
    (taken,) = look("default", 2).taken
    assert (taken.lease.pk, taken.lost_token, taken.lease.slot) == (row.pk, lost.lease.token, "pay")
    execute(taken, renew=False)
    slots_swept()
    assert drained(fresh).status == S.COMPLETE
    exact(1)


def test_noted_names_are_those_of_the_rows() -> None:
    """What ``run`` and messages show is the name under which the instance is stored: links and logs stay true."""
    seen: list[str] = []

    def run(self: Any, event: WorkflowEvent[Any], step: Step) -> Any:
        return noted(seen, event.workflow)

    with old_code(run=run) as old:
        row = old.create(instance_id="a")
    named("charge", "pay", run=run)
    drained(row)
    assert (seen, row.label, str(row)) == (["pay"], "pay/a", "pay/a")

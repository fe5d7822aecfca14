"""How many instances run at once: ``max_concurrency`` and ``concurrency_key`` (design 4 "Lock order"; RET-12, CHD-06)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

from durableflow import Retries, Step, Workflow, WorkflowEvent, drain
from durableflow.core import registry
from durableflow.core.exceptions import CodecError, LimitExceeded
from durableflow.engine import endings, slots
from durableflow.engine.claims import claim, look
from durableflow.engine.executor import execute
from durableflow.engine.look import next_due
from durableflow.engine.unwind import LeaseLost
from durableflow.models import ConcurrencyLimit, Priority, WorkflowInstance, limits
from durableflow.timeline import reason
from tests.integration.con_flows import expire_leases
from tests.integration.conftest import StoppedClock
from tests.integration.limit_flows import DUE, PARKED, RUNNING, exact, limited, shown

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


def test_no_more_than_the_maximum_and_the_oldest_next() -> None:
    """Design 4: who finds no slot is parked, without a wake; whatever frees a slot makes the oldest parked one due."""
    rows = [limited(2).create() for _ in range(5)]
    first = look("default", 5).taken
    assert [item.lease.pk for item in first] == [row.pk for row in rows[:2]]
    assert [shown(row) for row in rows] == [RUNNING] * 2 + [PARKED] * 3
    assert ConcurrencyLimit.objects.values_list("key", "maximum", "running").get() == ("limited", 2, 2)
    assert "free slot" in reason(rows[2])
    assert next_due("default") is not None and claim("default") == []
    exact(2)
    execute(first[1], renew=False)
    assert [shown(row) for row in rows[2:]] == [DUE, PARKED, PARKED]
    exact(2)
    assert [item.lease.pk for item in look("default", 5).taken] == [rows[2].pk]
    execute(first[0], renew=False)
    drain(5)
    assert [shown(row)[0] for row in rows] == [S.COMPLETE] * 2 + [S.RUNNING] + [S.COMPLETE] * 2
    exact(2)


@pytest.mark.parametrize(
    "how", ["complete", "fail", "suspend", "block", "give_back", "terminate", "delete", "delete_all"]
)
def test_every_way_out_frees_the_slot(how: str) -> None:
    """Design 4, 9: and makes the next one due in the same transaction."""

    def body(event: WorkflowEvent[Any], step: Step) -> Any:
        if how == "fail":
            raise ValueError("no")
        if how == "suspend":
            step.sleep("nap", "1 day")
        if how == "block":
            step.do("a", lambda: None)

    flow = limited(1, body=body)
    row, following = flow.create(), flow.create()
    (held,) = look("default", 2).taken
    assert held.lease.slot == "limited" and shown(following) == PARKED
    if how == "block":
        endings.block(held.lease, "because")
    elif how == "give_back":
        endings.give_back(held.lease)
    elif how == "terminate":
        row.refresh_from_db()
        row.terminate()
    elif how == "delete":
        row.delete()
    elif how == "delete_all":
        WorkflowInstance.objects.filter(pk=row.pk).delete()
    else:
        execute(held, renew=False)
    exact(1)
    assert ConcurrencyLimit.objects.get().running == 0
    assert shown(following) == DUE
    if how in ("delete", "delete_all"):
        assert not WorkflowInstance.objects.filter(pk=row.pk).exists()
    else:
        row.refresh_from_db()
        assert (row.holds_slot, row.lease_token) == (False, None)


def test_an_ending_that_fails_keeps_the_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """One transaction: a slot is free when its instance is let go, not before."""
    flow = limited(1)
    flow.create(), flow.create()
    (held,) = look("default", 2).taken
    held.lease.token += 1  # somebody else's
    with pytest.raises(LeaseLost):
        endings.give_back(held.lease)
    assert ConcurrencyLimit.objects.get().running == 1
    exact(1)


def test_a_takeover_keeps_the_slot() -> None:
    """Design 4: the instance of a lost worker goes on with the slot that it has; nobody else gets it meanwhile."""
    flow = limited(1)
    row, other = flow.create(), flow.create()
    (lost,) = look("default", 2).taken
    expire_leases()
    (taken,) = look("default", 2).taken
    assert (taken.lease.pk, taken.lost_token, taken.lease.slot) == (row.pk, lost.lease.token, "limited")
    exact(1)
    execute(taken, renew=False)
    assert shown(row)[0] == S.COMPLETE and shown(other) == DUE
    exact(1)


def test_waiting_holds_no_slot(stopped_clock: StoppedClock) -> None:
    """RET-12: 20 instances in a back-off of an hour, and a new one runs at once; they show waiting."""
    failing = True

    def fail() -> str:
        if failing:
            raise OSError("away")
        return "done"

    flow = limited(2, body=lambda event, step: step.do("a", fail, retries=Retries(limit=3, delay="1 hour")))
    rows = [flow.create() for _ in range(20)]
    drain(20)
    assert {shown(row)[:3] for row in rows} == {(S.WAITING, "", False)}
    assert ConcurrencyLimit.objects.get().running == 0
    failing = False
    new = flow.create()
    drain(0)
    assert shown(new)[0] == S.COMPLETE
    stopped_clock.advance("1 hour")
    (first, second) = look("default", 20).taken
    parked = WorkflowInstance.objects.filter(hold="limit", wake_at=None, status=S.WAITING)
    assert parked.count() == 18 and "free slot" in reason(parked[0])
    for held in (first, second):
        execute(held, renew=False)
    drain(20)
    assert {shown(row)[0] for row in rows} == {S.COMPLETE}
    exact(2)


def test_who_was_executed_before_goes_first(stopped_clock: StoppedClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Design 4: resumed before new, then the lowest id; among the new ones the urgent ones."""
    monkeypatch.setattr(slots, "sweep", lambda using: None)  # on a slow machine it would wake a second one
    flow = limited(1, body=lambda event, step: step.sleep("nap", 60) if event.params else step.do("a", lambda: None))
    new = [flow.create() for _ in range(2)]
    WorkflowInstance.objects.update(wake_at=None)
    sleepers = [flow.create(True) for _ in range(2)]
    drain(5)
    WorkflowInstance.objects.filter(pk__in=[row.pk for row in new]).update(wake_at=stopped_clock.now)
    urgent = flow.create(priority=Priority.HIGH)
    blocker = flow.create(priority=Priority.HIGH)
    WorkflowInstance.objects.filter(pk=blocker.pk).update(wake_at=blocker.created.replace(year=2020))
    (held,) = look("default", 1).taken
    assert held.lease.pk == blocker.pk
    stopped_clock.advance(60)
    while look("default", 10).again:
        pass
    assert WorkflowInstance.objects.filter(hold="limit", wake_at=None).count() == 5
    order = []
    monkeypatch.setattr(
        limits, "_turn", itertools.count(1)
    )  # else the fourth turn, which is others', may be any of these
    for _ in range(6):
        order.append(held.lease.pk)
        execute(held, renew=False)
        held = next(iter(claim("default")), held)
    assert order[:4] == [blocker.pk, sleepers[0].pk, sleepers[1].pk, urgent.pk]
    assert set(order[4:]) == {row.pk for row in new}


def test_a_parked_instance_gets_an_event(stopped_clock: StoppedClock) -> None:
    """Delivery makes it due, the look parks it again, and the event waits for its slot."""

    def body(event: WorkflowEvent[Any], step: Step) -> Any:
        return step.wait_for_event("x", type="x").payload if event.params else step.do("a", lambda: None)

    flow = limited(1, body=body)
    row = flow.create(True)
    drain(0)
    flow.create()
    (held,) = claim("default")
    for payload in (1, 2):
        row.send_event("x", payload)
        assert drain(0) == 0
        assert shown(row) == (S.WAITING, "limit", False, True)
    execute(held, renew=False)
    drain(0)
    row.refresh_from_db()
    assert (row.status, row.output) == (S.COMPLETE, 1)
    exact(1)


# Keys -------------------------------------------------------------------------------------------------------------------


def test_a_limit_for_each_key() -> None:
    """api.md, ``Meta.concurrency_key``: a text per instance; None is no limit."""
    flow = limited(1, key=lambda params: params["customer"])
    rows = {name: [flow.create({"customer": name}) for _ in range(2)] for name in ("ada", "bob")}
    free = [flow.create({"customer": None}) for _ in range(3)]
    taken = [item.lease.pk for item in look("default", 20).taken]
    assert set(taken) == {rows["ada"][0].pk, rows["bob"][0].pk, *(row.pk for row in free)}
    assert set(ConcurrencyLimit.objects.values_list("key", "running")) == {("limited:ada", 1), ("limited:bob", 1)}
    assert shown(rows["ada"][1]) == PARKED
    assert not WorkflowInstance.objects.filter(pk__in=[row.pk for row in free]).exclude(holds_slot=False).exists()
    exact(1)


@pytest.mark.parametrize(
    ("params", "error", "match"),
    [
        ({}, ValueError, r"concurrency_key of workflow 'limited' .*KeyError: 'customer'"),
        ({"customer": 7}, ValueError, r"concurrency_key of workflow 'limited' must be a text .*not 7"),
        ({"customer": ""}, ValueError, "at least one character, or None for no limit"),
        ({"customer": "x" * 200}, LimitExceeded, "concurrency_key of workflow 'limited'"),
        ({"customer": "a\0"}, CodecError, "Params of limited cannot be stored.*NUL"),
    ],
)
def test_a_key_that_cannot_be_had(params: Any, error: type[Exception], match: str) -> None:
    """An error at ``create`` names workflow and key, and stores nothing."""
    with pytest.raises(error, match=match):
        limited(1, key=lambda params: params["customer"]).create(params)
    assert not WorkflowInstance.objects.exists()


def test_a_key_may_have_no_nul_character() -> None:
    with pytest.raises(ValueError, match=r"concurrency_key of workflow 'limited' .*NUL"):
        limited(1, key=lambda params: "a\0").create({})


def test_the_key_function_cannot_change_the_params() -> None:
    with pytest.raises(ValueError, match="TypeError"):
        limited(1, key=lambda params: params.update(a=1)).create({"customer": "ada"})


@pytest.mark.parametrize(
    ("meta", "match"),
    [
        ({"max_concurrency": 0}, "max_concurrency must be a whole number of at least 1, not 0"),
        ({"max_concurrency": True}, "not True"),
        ({"max_concurrency": "2"}, "not '2'"),
        ({"max_concurrency": 2, "concurrency_key": "customer"}, "concurrency_key must be a function"),
        ({"concurrency_key": str}, "concurrency_key needs max_concurrency"),
    ],
)
def test_wrong_meta(meta: dict[str, Any], match: str) -> None:
    """A TypeError at import that names the class."""
    with pytest.raises(TypeError, match=match):
        type("Wrong", (Workflow,), {"Meta": type("Meta", (), meta), "run": lambda self, event, step: None})


# Deploys ----------------------------------------------------------------------------------------------------------------


def test_instances_from_before_the_limit_are_limited() -> None:
    """A deploy that adds a limit: also those get a key that were created without one, at their claim."""
    rows = [limited(None).create({"customer": "ada"}) for _ in range(3)]
    strange = limited(None).create({})
    limited(1, key=lambda params: params["customer"])
    taken = look("default", 10).taken
    assert {item.lease.slot for item in taken} == {"limited:ada", "limited"}
    assert [shown(row) for row in rows] == [RUNNING, PARKED, PARKED]
    assert shown(strange) == RUNNING, "without a key in its params it shares the slots of the workflow"
    exact(1)


@pytest.mark.parametrize("maximum", [3, None])
def test_a_limit_that_a_deploy_raises_or_takes_away(maximum: int | None) -> None:
    """Nothing stays parked for a limit that is not there any more."""
    rows = [limited(1).create() for _ in range(4)]
    look("default", 10)
    assert [shown(row) for row in rows] == [RUNNING, PARKED, PARKED, PARKED]
    limited(maximum)
    due = next_due("default")
    assert due is not None and due.seconds <= 0
    taken = [item.lease.pk for item in look("default", 10).taken]
    assert taken == [row.pk for row in (rows[1:] if maximum is None else rows[1:3])]
    exact(maximum)


def test_a_limit_that_a_deploy_lowers() -> None:
    """Those that run go on; nobody new starts above it."""
    rows = [limited(3).create() for _ in range(5)]
    taken = look("default", 10).taken
    limited(1)
    assert look("default", 10).taken == []
    for item in taken[:2]:
        execute(item, renew=False)
        assert claim("default") == []
        exact(3)
    execute(taken[2], renew=False)
    assert len(look("default", 10).taken) == 1
    assert len(rows) == 5


def test_code_that_does_not_know_the_workflow_leaves_parked_ones_alone() -> None:
    rows = [limited(1).create() for _ in range(2)]
    (held,) = look("default", 2).taken
    execute(held, renew=False)
    WorkflowInstance.objects.filter(pk=rows[1].pk).update(hold="limit", wake_at=None)
    with registry.isolated():
        registry._classes.pop("limited")
        slots.sweep("default")
        assert shown(rows[1]) == PARKED
    slots.sweep("default")
    assert shown(rows[1]) == DUE


def test_the_database_keeps_slots_and_leases_together() -> None:
    """A constraint for the invariant: without a lease nobody holds a slot."""
    row = limited(1).create()
    claim("default")
    with pytest.raises(IntegrityError), transaction.atomic():
        WorkflowInstance.objects.filter(pk=row.pk).update(lease_token=None)


@pytest.mark.postgresql_only
def test_a_free_slot_wakes_one_whatever_the_plan(stopped_clock: StoppedClock) -> None:
    """A plan that searched once for each row of the table would find another parked instance each time."""
    flow = limited(1)
    rows = [flow.create()]
    with connection.cursor() as cursor:
        cursor.execute(
            "VACUUM ANALYZE durableflow_workflowinstance"
        )  # a table of one row is read before what to look up in it
    rows += [flow.create() for _ in range(5)]
    (held,) = look("default", 1).taken
    while look("default", 10).again:
        pass
    assert limits.wake("default", WorkflowInstance._meta.db_table, flow.options.name, 1) == 1
    assert WorkflowInstance.objects.filter(hold="limit").count() == len(rows) - 2
    execute(held, renew=False)

"""The transition table, and what every verb has in common: state, right, audit, twins (design 2, 9; LIF-06, SEC-02)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import AnonymousUser, User
from django.core.exceptions import PermissionDenied
from django.db import connection, transaction

from durableflow import InstanceAlreadyExists, InvalidTransition, Step, Workflow, WorkflowEvent, drain
from durableflow.core.statuses import ACTIVE, FINISHED, TRANSITIONS, Status, allowed
from durableflow.engine import endings
from durableflow.engine.claims import claim
from durableflow.engine.verdicts import MAX_GIVE_BACKS
from durableflow.models import HistoryEntry, PendingEvent, SentEvent, StepRecord, WorkflowInstance
from tests.conftest import UserFactory
from tests.integration.con_flows import expire_leases
from tests.support.concurrency import together

pytestmark = pytest.mark.django_db(transaction=True)
OPERATE = "durableflow.operate_workflowinstance"
VERBS: dict[str, Callable[..., Any]] = {
    "terminate": lambda row, **kwargs: row.terminate(**kwargs),
    "resume": lambda row, **kwargs: row.resume(**kwargs),
    "retry": lambda row, **kwargs: row.retry(**kwargs),
    "send_event": lambda row, **kwargs: row.send_event("x", 1, **kwargs),
}
AFTER = {"terminate": "terminated", "resume": "queued", "retry": "queued"}


class Waits(Workflow[Any, Any]):
    class Meta:
        name = "verbs-waits"

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        step.do("a", lambda: None)
        return step.wait_for_event("x", type="x").payload


def in_status(status: str) -> WorkflowInstance:
    row = Waits.create()
    WorkflowInstance.objects.filter(pk=row.pk).update(status=status, wake_at=None)
    row.refresh_from_db()
    return row


def everything() -> list[Any]:
    tables = (WorkflowInstance, StepRecord, PendingEvent, SentEvent, HistoryEntry)
    return [list(table._default_manager.order_by("pk").values()) for table in tables]


def test_the_table_is_the_designs() -> None:
    """Design 2, "Transitions", for the verbs that exist."""
    assert TRANSITIONS["claim"] == {
        Status.QUEUED: Status.RUNNING,
        Status.WAITING: Status.RUNNING,
        Status.RUNNING: Status.RUNNING,
    }
    assert TRANSITIONS["suspend"] == {Status.RUNNING: Status.WAITING}
    assert TRANSITIONS["give_back"] == {Status.RUNNING: Status.QUEUED}
    assert TRANSITIONS["resume"] == {Status.PAUSED: Status.QUEUED}
    assert TRANSITIONS["retry"] == {Status.ERRORED: Status.QUEUED}
    assert set(TRANSITIONS["terminate"]) == ACTIVE - {Status.ROLLING_BACK}
    assert set(TRANSITIONS["terminate"].values()) == {Status.TERMINATED}
    assert set(TRANSITIONS["send_event"]) == ACTIVE - {Status.ROLLING_BACK}
    ends = {status for verb in ("complete", "fail", "terminate") for status in TRANSITIONS[verb].values()}
    assert ends == FINISHED


@pytest.mark.parametrize(("verb", "status"), list(itertools.product(VERBS, Status)))
def test_every_verb_in_every_status(verb: str, status: str) -> None:
    """LIF-06: either the transition of the table, or an error that names the status, and then nothing has changed."""
    row = in_status(status)
    before = everything()
    if allowed(verb, status):
        VERBS[verb](row)
        row.refresh_from_db()
        assert row.status == AFTER.get(verb, status)
        assert everything() != before
    else:
        with pytest.raises(InvalidTransition) as refused:
            VERBS[verb](row)
        assert (refused.value.status, refused.value.code) == (status, "invalid_transition")
        assert f"is {status}" in str(refused.value) and row.label in str(refused.value)
        assert everything() == before


@pytest.mark.parametrize("verb", ["terminate", "resume", "retry"])
def test_a_verb_twice_changes_nothing_the_second_time(verb: str) -> None:
    """LIF-06: that is what safe against double clicks means; also from a page that was loaded before."""
    row = in_status({"terminate": "waiting", "resume": "paused", "retry": "errored"}[verb])
    page = WorkflowInstance.objects.get(pk=row.pk)
    VERBS[verb](row)
    before = everything()
    for stale in (row, page):
        with pytest.raises(InvalidTransition):
            VERBS[verb](stale)
    assert everything() == before


@pytest.mark.parametrize("verb", ["terminate", "resume", "retry"])
def test_two_clicks_at_once_do_it_once(verb: str) -> None:
    for _ in range(8):
        row = in_status({"terminate": "waiting", "resume": "paused", "retry": "errored"}[verb])
        entries = row.history.count()
        tasks = together(*[lambda pk=row.pk: VERBS[verb](WorkflowInstance.objects.get(pk=pk))] * 3)  # type: ignore[misc]
        errors = [task.error for task in tasks if task.error is not None]
        assert len(errors) == 2 and all(isinstance(error, InvalidTransition) for error in errors)
        assert row.history.count() == entries + 1


@pytest.mark.parametrize("verb", VERBS)
def test_only_who_may_operate(user_factory: UserFactory, verb: str) -> None:
    """Design 9: ``by=user`` is checked, ``by=None`` is trusted; the creator's own instance is no exception."""
    status = {"resume": "paused", "retry": "errored"}.get(verb, "waiting")
    starter = user_factory("starter", permissions=["durableflow.view_workflowinstance"])
    decider = user_factory(
        "decider", permissions=["durableflow.decide_pendingevent", "durableflow.start_workflowinstance"]
    )
    gone = user_factory("gone", permissions=[OPERATE], is_active=False)
    row = in_status(status)
    WorkflowInstance.objects.update(created_by=starter)
    before = everything()
    for stranger in (starter, decider, gone, AnonymousUser()):
        with pytest.raises(PermissionDenied, match="may not"):
            VERBS[verb](row, by=stranger)
    assert everything() == before
    VERBS[verb](row, by=user_factory("operator", permissions=[OPERATE]))
    assert everything() != before


@pytest.mark.parametrize("verb", VERBS)
def test_the_right_is_checked_before_the_state(user_factory: UserFactory, verb: str) -> None:
    """Who may not act learns nothing of the state."""
    row = in_status("complete")
    with pytest.raises(PermissionDenied):
        VERBS[verb](row, by=user_factory("stranger"))


@pytest.mark.parametrize("verb", VERBS)
def test_a_right_on_the_one_row_is_enough(
    user_factory: UserFactory, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """api.md, "Permissions": asked as ``has_perm(p)`` or ``has_perm(p, instance)``."""
    row = in_status({"resume": "paused", "retry": "errored"}.get(verb, "waiting"))
    owner = user_factory("owner")

    def has_perm(self: User, name: str, obj: Any = None) -> bool:
        return obj is not None and obj.pk == row.pk and name == OPERATE

    monkeypatch.setattr(User, "has_perm", has_perm)
    VERBS[verb](row, by=owner)


class Primary:
    """A router of one database."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "default"

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "default"


@pytest.mark.parametrize("verb", VERBS)
def test_a_row_that_was_read_from_a_replica(verb: str, settings: Any) -> None:
    """Design 2: the tables live where the project's router puts them; a verb goes to the database for writing."""
    settings.DATABASE_ROUTERS = [f"{__name__}.Primary"]
    row = in_status({"resume": "paused", "retry": "errored"}.get(verb, "waiting"))
    row._state.db = "replica"
    VERBS[verb](row)
    assert WorkflowInstance.objects.get().status == AFTER.get(verb, "waiting")


def test_a_decision_of_a_wait_that_was_read_from_a_replica(settings: Any) -> None:
    class Ask(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            return step.wait_for_approval("ok", title="Ok?").approved

    settings.DATABASE_ROUTERS = [f"{__name__}.Primary"]
    Ask.create()
    drain()
    pending = PendingEvent.objects.get()
    pending._state.db = "replica"
    pending.approve(by=None)
    assert PendingEvent.objects.get().approved is True


@pytest.mark.parametrize("verb", VERBS)
def test_the_audit_names_actor_door_and_reason(user_factory: UserFactory, verb: str) -> None:
    """SEC-10: also after the person is gone."""
    ada = user_factory("ada", permissions=[OPERATE])
    row = in_status({"resume": "paused", "retry": "errored"}.get(verb, "waiting"))
    newest = HistoryEntry.objects.order_by("-id").values_list("id", flat=True)[0]
    VERBS[verb](row, by=ada, reason="because", via="admin")
    if verb == "send_event":
        drain()
    entry = row.history.filter(pk__gt=newest).exclude(via="engine").get()
    expected = {"terminate": "workflow_terminated", "send_event": "event_received"}.get(verb, "workflow_queued")
    assert (entry.type, entry.actor, entry.actor_name) == (expected, ada, "ada")
    assert (entry.via, entry.reason, entry.run_number) == ("admin", "because", 1)
    ada.delete()
    entry.refresh_from_db()
    assert (entry.actor, entry.actor_name) == (None, "ada")


def test_trusted_code_leaves_an_entry_without_an_actor() -> None:
    row = in_status("waiting")
    row.terminate()
    entry = row.history.get(type="workflow_terminated")
    assert (entry.actor, entry.actor_name, entry.via, entry.reason) == (None, "", "code", "")


@pytest.mark.parametrize("verb", VERBS)
def test_a_row_that_is_gone(verb: str) -> None:
    row = in_status("waiting")
    stale = WorkflowInstance.objects.get(pk=row.pk)
    row.delete()
    with pytest.raises(WorkflowInstance.DoesNotExist):
        VERBS[verb](stale)


def test_available_actions_are_what_would_work(user_factory: UserFactory) -> None:
    """Design 12: no no-op is ever offered; and what is offered works."""
    operator, stranger = user_factory("operator", permissions=[OPERATE]), user_factory("stranger")
    for status in Status:
        row = in_status(status)
        offered = row.available_actions(operator)
        assert offered == {verb for verb in VERBS if allowed(verb, status)}
        assert row.available_actions(stranger) == row.available_actions(AnonymousUser()) == set()
        for verb in offered:
            VERBS[verb](in_status(status), by=operator)


# All changes of a status go through the table ----------------------------------------------------------------------------

FORBIDDEN = [
    (before, after)
    for before, after in itertools.product(Status, Status)
    if before != after and not any(table.get(before) == after for table in TRANSITIONS.values())
]


@contextmanager
def watched() -> Iterator[None]:
    """The database itself refuses every change of a status that the table does not have."""
    pairs = " OR ".join(
        f"(OLD.status = '{before.value}' AND NEW.status = '{after.value}')" for before, after in FORBIDDEN
    )
    table = WorkflowInstance._meta.db_table
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute(
                f"CREATE TRIGGER watch_status BEFORE UPDATE OF status ON {table} WHEN {pairs} "
                "BEGIN SELECT RAISE(ABORT, 'not in the table'); END"
            )
        else:
            cursor.execute(
                "CREATE FUNCTION watch_status() RETURNS trigger LANGUAGE plpgsql AS "
                f"$$ BEGIN IF {pairs} THEN RAISE 'not in the table: % to %', OLD.status, NEW.status; END IF; RETURN NEW; END $$"
            )
            cursor.execute(
                f"CREATE TRIGGER watch_status BEFORE UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION watch_status()"
            )
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            if connection.vendor == "sqlite":
                cursor.execute("DROP TRIGGER watch_status")
            else:
                cursor.execute(f"DROP TRIGGER watch_status ON {table}")
                cursor.execute("DROP FUNCTION watch_status()")


def test_the_watch_sees_what_is_forbidden() -> None:
    row = Waits.create()
    with watched(), pytest.raises(Exception, match="not in the table"), transaction.atomic():
        WorkflowInstance.objects.filter(pk=row.pk).update(status="complete", wake_at=None)


def test_engine_and_verbs_change_statuses_by_the_table_only() -> None:
    """Design 2: one transition table in code. Everything an instance can live through, watched by the database."""

    class Life(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            if event.params == "fail":
                step.do("a", lambda: 1 / 0, retries=0)
            step.wait_for_event("x", type="x", timeout=None)
            return "out"

    with watched():
        done = Life.create("done")
        failing = Life.create("fail")
        stopped, blocked, lost, returned = (Life.create() for _ in range(4))
        WorkflowInstance.objects.filter(pk=blocked.pk).update(code_version=9, give_backs=MAX_GIVE_BACKS)
        held = {claimed.lease.pk: claimed for claimed in (claim("default")[0] for _ in range(6))}
        endings.give_back(held[returned.pk].lease)
        expire_leases()  # all the others are taken over
        drain(10)
        done.send_event("x")
        drain(10)
        stopped.terminate()
        failing.retry()
        drain(10)
        WorkflowInstance.objects.filter(pk=blocked.pk).update(code_version=0)
        blocked.resume()
        lost.send_event("x")
        returned.send_event("x")
        drain(10)
        blocked.terminate()
        with pytest.raises(InvalidTransition):
            done.terminate()
    statuses = [
        WorkflowInstance.objects.get(pk=row.pk).status for row in (done, failing, stopped, blocked, lost, returned)
    ]
    assert statuses == ["complete", "errored", "terminated", "terminated", "complete", "complete"]


# Twins -------------------------------------------------------------------------------------------------------------------


def test_the_async_twins_do_the_same(user_factory: UserFactory) -> None:
    """api.md: every verb has an a-twin."""
    ada = user_factory("ada", permissions=[OPERATE, "durableflow.decide_pendingevent"])

    class Twin(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            if event.params == "fail":
                raise ValueError("no")
            return [step.wait_for_approval("ok", title="Ok?").by, step.wait_for_event("x", type="x").payload]

    async def begin() -> list[WorkflowInstance]:
        row = await Twin.acreate("go", instance_id="a", created_by=ada)
        with pytest.raises(InstanceAlreadyExists):
            await Twin.acreate("go", instance_id="a")
        again, created = await Twin.aget_or_create("go", instance_id="a")
        assert (again.pk, created) == (row.pk, False)
        assert (await Twin.aget("a")).pk == row.pk
        return [row, await Twin.acreate("fail"), await Twin.acreate("go"), await Twin.acreate("go")]

    row, failing, stopped, blocked = async_to_sync(begin)()
    drain()
    WorkflowInstance.objects.filter(pk=blocked.pk).update(status="paused", blocked="x", wake_at=None)

    async def go_on() -> None:
        pending = await row.pending_events.aget()
        decision = await pending.aapprove(by=ada, comment="fine")
        assert (decision.by, decision.comment) == ("ada", "fine")
        sent = await row.asend_event("x", 7, by=ada)
        assert sent.sent_by_name == "ada"
        await failing.aretry(by=ada, reason="again")
        await stopped.aterminate(by=ada)
        await blocked.aresume(by=ada)
        with pytest.raises(InvalidTransition):
            await stopped.aterminate()
        with pytest.raises(PermissionDenied):
            await row.aterminate(by=AnonymousUser())

    async_to_sync(go_on)()
    drain()
    assert async_to_sync(row.aresult)(timeout=1) == ["ada", 7]
    statuses = [WorkflowInstance.objects.get(pk=one.pk).status for one in (failing, stopped, blocked)]
    assert statuses == ["errored", "terminated", "waiting"]

    async def refuse() -> None:
        await (await blocked.pending_events.aget()).areject(by=ada)

    async_to_sync(refuse)()
    assert blocked.pending_events.get().approved is False


def test_awaiting_a_result_lets_others_go_on() -> None:
    """Also their synchronous code, which Django runs in one and the same thread: else the end could never come."""
    row = Waits.create()

    async def both() -> Any:
        waiting = asyncio.ensure_future(row.aresult(timeout=60))
        await asyncio.sleep(0)
        await (await Waits.aget(row.instance_id)).asend_event("x", 7)
        await sync_to_async(drain)()
        return await waiting

    assert async_to_sync(both)() == 7
    other = Waits.create()
    with pytest.raises(TimeoutError):
        async_to_sync(other.aresult)(timeout=0.02)

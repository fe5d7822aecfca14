"""The transition table, and what every verb has in common: state, right, audit, twins (design 2, 9; LIF-06, SEC-02)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.core.exceptions import PermissionDenied
from django.db import connection, transaction

from durableflow import InvalidTransition, Step, Workflow, WorkflowEvent, drain
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
OVERRIDE = "durableflow.override_workflowinstance"
VERBS: dict[str, Callable[..., Any]] = {
    "pause": lambda row, **kwargs: row.pause(**kwargs),
    "terminate": lambda row, **kwargs: row.terminate(**kwargs),
    "resume": lambda row, **kwargs: row.resume(**kwargs),
    "retry": lambda row, **kwargs: row.retry(**kwargs),
    "restart": lambda row, **kwargs: row.restart(**kwargs),
    "complete_step": lambda row, **kwargs: row.complete_step(step_of(row), 1, **kwargs),
    "send_event": lambda row, **kwargs: row.send_event("x", 1, **kwargs),
}
STATE_VERBS = ("pause", "terminate", "resume", "retry", "restart")
# A status in which the verb is possible, and does nothing the second time.
FROM = {"resume": "paused", "retry": "errored", "complete_step": "errored"}
AFTER = {"terminate": "terminated", "retry": "queued", "restart": "queued"}


def after(verb: str, status: str) -> str:
    """Design 2, "Transitions", once more."""
    if verb == "pause":
        return "waiting_for_pause" if status == "running" else "paused"
    if verb == "resume":
        return "running" if status == "waiting_for_pause" else "queued"
    if verb == "complete_step" and status == "errored":
        return "queued"
    return AFTER.get(verb, status)


def right(verb: str) -> str:
    return OVERRIDE if verb == "complete_step" else OPERATE


class Waits(Workflow[Any, Any]):
    class Meta:
        name = "verbs-waits"

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        step.do("a", lambda: None)
        return step.wait_for_event("x", type="x").payload


def step_of(row: WorkflowInstance) -> StepRecord:
    return StepRecord.objects.filter(instance=row.pk, name="a").first() or StepRecord(name="a")


def in_status(status: str) -> WorkflowInstance:
    """With a step that could be completed by hand."""
    row = Waits.create()
    open_or_cancelled = "cancelled" if status in FINISHED else "pending"
    StepRecord.objects.create(
        instance=row, run_number=1, kind="do", name="a", count=1, seq=1, execution=1, status=open_or_cancelled
    )
    WorkflowInstance.objects.filter(pk=row.pk).update(status=status, wake_at=None)
    row.refresh_from_db()
    return row


def everything() -> list[Any]:
    tables = (WorkflowInstance, StepRecord, PendingEvent, SentEvent, HistoryEntry)
    return [list(table._default_manager.order_by("pk").values()) for table in tables]


def test_the_table_is_the_designs() -> None:
    """Design 2, "Transitions"."""
    pausing = {Status.WAITING_FOR_PAUSE: Status.WAITING_FOR_PAUSE}
    started = (Status.QUEUED, Status.WAITING, Status.RUNNING)
    assert TRANSITIONS["claim"] == dict.fromkeys(started, Status.RUNNING) | pausing
    assert TRANSITIONS["suspend"] == {Status.RUNNING: Status.WAITING, Status.WAITING_FOR_PAUSE: Status.PAUSED}
    assert TRANSITIONS["give_back"] == {Status.RUNNING: Status.QUEUED, Status.WAITING_FOR_PAUSE: Status.PAUSED}
    for end in ("complete", "fail", "roll_back", "block"):
        assert set(TRANSITIONS[end]) == {Status.RUNNING, Status.WAITING_FOR_PAUSE}
    assert set(TRANSITIONS["pause"]) == set(started)
    assert set(TRANSITIONS["resume"]) == {Status.PAUSED, Status.WAITING_FOR_PAUSE}
    assert TRANSITIONS["retry"] == {Status.ERRORED: Status.QUEUED}
    assert set(TRANSITIONS["restart"]) == set(Status) - {Status.QUEUED, Status.ROLLING_BACK}
    assert set(TRANSITIONS["complete_step"]) == {Status.QUEUED, Status.WAITING, Status.PAUSED, Status.ERRORED}
    assert set(TRANSITIONS["terminate"]) == ACTIVE - {Status.ROLLING_BACK}
    assert set(TRANSITIONS["send_event"]) == ACTIVE - {Status.ROLLING_BACK}
    for verb in (*STATE_VERBS, "complete_step", "send_event"):
        assert TRANSITIONS[verb] == {status: after(verb, status) for status in TRANSITIONS[verb]}
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
        assert row.status == after(verb, status)
        assert everything() != before
    else:
        with pytest.raises(InvalidTransition) as refused:
            VERBS[verb](row)
        assert (refused.value.status, refused.value.code) == (status, "invalid_transition")
        assert f"is {status}" in str(refused.value) and row.label in str(refused.value)
        assert everything() == before


@pytest.mark.parametrize("verb", [*STATE_VERBS, "complete_step"])
def test_a_verb_twice_changes_nothing_the_second_time(verb: str) -> None:
    """LIF-06: that is what safe against double clicks means; also from a page that was loaded before."""
    row = in_status(FROM.get(verb, "waiting"))
    page = WorkflowInstance.objects.get(pk=row.pk)
    VERBS[verb](row)
    before = everything()
    for stale in (row, page):
        with pytest.raises(InvalidTransition):
            VERBS[verb](stale)
    assert everything() == before


@pytest.mark.parametrize("verb", [*STATE_VERBS, "complete_step"])
def test_two_clicks_at_once_do_it_once(verb: str) -> None:
    for _ in range(8):
        row = in_status(FROM.get(verb, "waiting"))
        entries = row.history.count()
        tasks = together(*[lambda pk=row.pk: VERBS[verb](WorkflowInstance.objects.get(pk=pk))] * 3)  # type: ignore[misc]
        errors = [task.error for task in tasks if task.error is not None]
        assert len(errors) == 2 and all(isinstance(error, InvalidTransition) for error in errors)
        assert row.history.count() == entries + (2 if verb == "complete_step" else 1)


@pytest.mark.parametrize("verb", VERBS)
def test_only_who_may_operate(user_factory: UserFactory, verb: str) -> None:
    """Design 9: ``by=user`` is checked, ``by=None`` is trusted; the creator's own instance is no exception."""
    status = FROM.get(verb, "waiting")
    starter = user_factory("starter", permissions=["durableflow.view_workflowinstance"])
    decider = user_factory(
        "decider", permissions=["durableflow.decide_pendingevent", "durableflow.start_workflowinstance"]
    )
    gone = user_factory("gone", permissions=[OPERATE, OVERRIDE], is_active=False)
    row = in_status(status)
    WorkflowInstance.objects.update(created_by=starter)
    before = everything()
    for stranger in (starter, decider, gone, AnonymousUser()):
        with pytest.raises(PermissionDenied, match="may not"):
            VERBS[verb](row, by=stranger)
    assert everything() == before
    VERBS[verb](row, by=user_factory("operator", permissions=[right(verb)]))
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
    row = in_status(FROM.get(verb, "waiting"))
    owner = user_factory("owner")

    def has_perm(self: User, name: str, obj: Any = None) -> bool:
        return obj is not None and obj.pk == row.pk and name == right(verb)

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
    row = in_status(FROM.get(verb, "waiting"))
    row._state.db = "replica"
    VERBS[verb](row)
    assert WorkflowInstance.objects.get().status == after(verb, FROM.get(verb, "waiting"))


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
    ada = user_factory("ada", permissions=[right(verb)])
    row = in_status(FROM.get(verb, "waiting"))
    newest = HistoryEntry.objects.order_by("-id").values_list("id", flat=True)[0]
    VERBS[verb](row, by=ada, reason="because", via="admin")
    if verb == "send_event":
        drain()
    entry = row.history.filter(pk__gt=newest).exclude(via="engine").order_by("id")[0]
    expected = {
        "pause": "workflow_paused",
        "terminate": "workflow_terminated",
        "send_event": "event_received",
        "complete_step": "step_completed",
    }.get(verb, "workflow_queued")
    assert (entry.type, entry.actor, entry.actor_name) == (expected, ada, "ada")
    assert (entry.via, entry.reason, entry.run_number) == ("admin", "because", row.run_number)
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
    operator, stranger = user_factory("operator", permissions=[OPERATE, OVERRIDE]), user_factory("stranger")
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
        again = Life.create()
        for verbs in (["pause", "resume"], ["restart"], ["pause", "restart"], ["terminate", "restart"], ["pause"]):
            for verb in verbs:
                VERBS[verb](again)
            drain(10)
            again.refresh_from_db()
        assert (again.status, again.run_number) == ("paused", 4)
    statuses = [
        WorkflowInstance.objects.get(pk=row.pk).status for row in (done, failing, stopped, blocked, lost, returned)
    ]
    assert statuses == ["complete", "errored", "terminated", "terminated", "complete", "complete"]

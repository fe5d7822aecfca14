"""Approvals: which wait a decision is for, who may make it, what comes with it (design 5, 8)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, Group, User
from django.core.exceptions import PermissionDenied

from durableflow import (
    EventTimeout,
    InvalidTransition,
    Step,
    Workflow,
    WorkflowEvent,
    drain,
)
from durableflow.core.exceptions import InvalidConfig, StaleDecision
from durableflow.models import PendingEvent, WorkflowInstance, links
from durableflow.models.permissions import RequesterBarred
from tests.conftest import UserFactory
from tests.integration.conftest import StoppedClock
from tests.integration.evt_flows import DECIDE, finished, flow, nothing_stored, opened

pytestmark = pytest.mark.django_db(transaction=True)
Status = WorkflowInstance.Status


# The wait that is meant ------------------------------------------------------------------------------------------------


class Gates(Workflow[Any, Any]):
    """A manager's gate, then a director's, with the same name."""

    class Meta:
        name = "evt-gates"

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        for group in ("managers", "directors"):
            try:
                return [group, step.wait_for_approval("approval", title=group, groups=[group], timeout=60).approved]
            except EventTimeout:
                pass
        return "nobody"


def test_a_decision_opens_the_gate_it_was_made_for(user_factory: UserFactory, stopped_clock: StoppedClock) -> None:
    """EVT-13: the form of gate 1 is late; gate 2 stays shut, although the manager is a director as well."""
    both = user_factory("both", groups=["managers", "directors"])
    row = Gates.create()
    drain()
    first = row.pending_events.get()
    stopped_clock.advance(60)
    drain()
    second = row.pending_events.open().get()
    assert (first.count, second.count) == (1, 2)
    with pytest.raises(StaleDecision) as late:
        first.approve(by=both)
    assert late.value.code == "timed_out"
    row.send_event("approval", True)
    row.send_event("managers", {"approved": True})
    drain()
    second.refresh_from_db()
    assert second.status == "open" and row.sent_events.filter(kind="decision").count() == 0
    # Even one that lies in the inbox, for whatever reason, belongs to the wait that it names.
    stray = {
        "approved": True,
        "data": None,
        "comment": "",
        "by": "x",
        "by_id": None,
        "via": "code",
        "at": second.opened,
    }
    row.sent_events.create(kind="decision", run_number=1, pending_event=first, payload=stray, sent_at=second.opened)
    drain()
    second.refresh_from_db()
    row.refresh_from_db()
    assert (second.status, row.status) == ("open", Status.WAITING)
    second.approve(by=both)
    drain()
    row.refresh_from_db()
    assert row.output == ["directors", True]


def test_a_gate_cannot_be_decided_before_it_opens(user_factory: UserFactory) -> None:
    """EVT-13: there is no wait to name; a decision of gate 1 is consumed by gate 1 alone."""

    class Both(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            first = step.wait_for_approval("approval", title="1", timeout=60)
            return [first.comment, step.wait_for_approval("approval", title="2", timeout=60).comment]

    row = Both.create()
    drain()
    row.pending_events.get().approve(by=None, comment="one")
    with pytest.raises(StaleDecision):
        row.pending_events.get().approve(by=None, comment="again")
    drain()
    row.refresh_from_db()
    assert row.status == Status.WAITING and row.pending_events.open().get().count == 2
    row.pending_events.open().get().reject(by=None, comment="two")
    drain()
    row.refresh_from_db()
    assert row.output == ["one", "two"]


def test_events_never_answer_an_approval_and_people_never_an_event() -> None:
    """Design 5: an approval is answered through decide() alone."""
    pending = opened()
    for type_ in ("ok", "decision", "approved", "wait_for_approval"):
        pending.instance.send_event(type_, {"approved": True})
    drain()
    pending.refresh_from_db()
    assert pending.status == "open"

    class Listening(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            return step.wait_for_event("ok", type="ok").payload

    row = Listening.create()
    drain()
    with pytest.raises(InvalidTransition, match="events of type ok"):
        row.pending_events.get().approve(by=None)
    assert not row.sent_events.exists()


def test_a_closed_wait_says_why(user_factory: UserFactory, stopped_clock: StoppedClock) -> None:
    ada = user_factory("ada", permissions=[DECIDE])
    decided, cancelled, expired = opened(), opened(), opened(timeout=60)
    decided.approve(by=ada)
    cancelled.instance.terminate()
    stopped_clock.advance(61)  # nobody was up: it reads as timed out all the same
    expected = [(decided, "already_decided"), (cancelled, "cancelled"), (expired, "timed_out")]
    for pending, code in expected:
        before = PendingEvent.objects.values().get(pk=pending.pk)
        with pytest.raises(StaleDecision) as stale:
            PendingEvent.objects.get(pk=pending.pk).reject(by=ada, comment="no")
        assert stale.value.code == code
        assert PendingEvent.objects.values().get(pk=pending.pk) == before
    assert expired.current_status == "timed_out" and not PendingEvent.objects.open().exists()
    with pytest.raises(StaleDecision, match="ada"):
        decided.approve(by=None)


def test_a_decision_at_the_deadline_itself_counts(stopped_clock: StoppedClock) -> None:
    pending = opened(timeout=60)
    stopped_clock.advance(60)
    pending.approve(by=None)
    stopped_clock.advance("1 day")
    assert finished(pending)[0] is True


# Who may ---------------------------------------------------------------------------------------------------------------


def named(form: str, ada: User) -> Any:
    group = Group.objects.get(name="managers")
    return {
        "user": {"users": [ada]},
        "user key": {"users": [ada.pk]},
        "users queryset": {"users": User.objects.filter(pk=ada.pk)},
        "group": {"groups": [group]},
        "group name": {"groups": ["managers"]},
        "groups tuple": {"groups": ("managers", group)},
        "permission": {"permission": "auth.change_group"},
        "nobody named": {},
    }[form]


@pytest.mark.parametrize(
    "form",
    ["user", "user key", "users queryset", "group", "group name", "groups tuple", "permission", "nobody named"],
)
def test_who_is_named_decides_and_nobody_else(user_factory: UserFactory, form: str) -> None:
    ada = user_factory("ada", groups=["managers"], permissions=[DECIDE, "auth.change_group"])
    other = user_factory("other", groups=["others"], permissions=[DECIDE] if form != "nobody named" else ())
    pending = opened(**named(form, ada))
    for stranger in (other, AnonymousUser()):
        with pytest.raises(PermissionDenied):
            pending.approve(by=stranger)
    assert nothing_stored(pending)
    pending.approve(by=ada, comment="fine")
    assert finished(pending) == [True, None, "fine", "ada", ada.pk, "code"]
    entry = pending.instance.history.get(type="decided")
    assert (entry.actor, entry.actor_name, entry.via) == (ada, "ada", "code")


def test_a_right_on_the_one_instance_is_enough(user_factory: UserFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """api.md, "Permissions": asked as ``has_perm(p)`` or ``has_perm(p, instance)``."""
    ada = user_factory("ada")
    for permission, wanted in (("", DECIDE), ("shop.approve_order", "shop.approve_order")):
        pending = opened(permission=permission)

        def has_perm(self: User, name: str, obj: Any = None, wanted: str = wanted, own: Any = pending.instance) -> bool:
            return name == wanted and isinstance(obj, WorkflowInstance) and obj.pk == own.pk

        with pytest.raises(PermissionDenied):
            pending.approve(by=ada)
        with monkeypatch.context() as patch:
            patch.setattr(User, "has_perm", has_perm)
            assert pending.approve(by=ada).approved


def test_an_inactive_user_decides_nothing(user_factory: UserFactory) -> None:
    gone = user_factory("gone", is_superuser=True, is_active=False)
    pending = opened(users=[gone])
    with pytest.raises(PermissionDenied):
        pending.approve(by=gone)
    assert nothing_stored(pending)


@pytest.mark.parametrize("approved", [True, False])
def test_the_requester_is_barred_a_superuser_too(user_factory: UserFactory, approved: bool) -> None:
    """SEC-05: four eyes."""
    starter = user_factory("starter", is_superuser=True)
    pending = opened(created_by=starter, allow_requester=False, users=[starter])
    with pytest.raises(RequesterBarred) as barred:
        pending.decide(approved, by=starter)
    assert barred.value.code == "requester_barred"
    assert nothing_stored(pending)
    assert opened(created_by=starter, users=[starter]).approve(by=starter).approved


def test_a_barred_requester_must_be_known() -> None:
    """Design 5: without created_by the rule could bar nobody, so the wait does not open."""
    row = flow(allow_requester=False).create()
    drain()
    row.refresh_from_db()
    assert row.status == Status.ERRORED and not PendingEvent.objects.exists()
    assert row.error is not None and row.error["step"] == "ok-1"
    assert row.error["message"].endswith("Start it anew with created_by, on the command line with --user.")


@pytest.mark.parametrize(
    "options", [{"groups": ["nobody"]}, {"groups": ["managers", "nobody"]}, {"users": [4711]}, {"users": ["ada"]}]
)
def test_unknown_people_are_an_error_when_the_wait_opens(options: dict[str, Any]) -> None:
    Group.objects.create(name="managers")
    row = flow(**options).create()
    drain()
    row.refresh_from_db()
    assert row.status == Status.ERRORED and not PendingEvent.objects.exists()
    assert row.error is not None and row.error["type"] == "durableflow.InvalidConfig"
    assert row.error["step"] == "ok-1" and "'ok'" in row.error["message"]


def test_after_the_group_was_made_retry_opens_the_wait(user_factory: UserFactory) -> None:
    row = flow(groups=["late"]).create()
    drain()
    Group.objects.create(name="late")
    row.refresh_from_db()
    row.retry()
    drain()
    row.refresh_from_db()
    assert row.status == Status.WAITING
    assert [group.name for group in row.pending_events.get().groups.all()] == ["late"]


def test_a_caught_unknown_group_stays_caught(stopped_clock: StoppedClock) -> None:
    """Design 6: failures are checkpoints. The group that is made meanwhile must not change a replay."""

    class Caught(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            try:
                return step.wait_for_approval("ok", title="Ok?", groups=["late"]).approved
            except InvalidConfig:
                step.sleep("on", 5)
                return "nobody to ask"

    row = Caught.create()
    drain()
    Group.objects.create(name="late")
    stopped_clock.advance(5)
    drain()
    row.refresh_from_db()
    assert (row.status, row.output) == (Status.COMPLETE, "nobody to ask")
    assert not PendingEvent.objects.exists()


def test_a_context_that_cannot_be_stored_is_refused() -> None:
    row = flow(context={"x": object()}).create()
    drain()
    row.refresh_from_db()
    assert row.status == Status.ERRORED and not PendingEvent.objects.exists()
    assert row.error is not None and row.error["type"].endswith("CodecError")


# Links -----------------------------------------------------------------------------------------------------------------


def test_a_link_is_for_one_person_and_one_wait(user_factory: UserFactory, stopped_clock: StoppedClock) -> None:
    ada = user_factory("ada")
    pending = opened(users=[ada])
    url = pending.decision_url(ada, expires="2 hours")
    assert url.startswith("http://testserver/")
    token = url.rstrip("/").rpartition("/")[2]
    content = links.read(token)
    assert (content.pending_event, content.user) == (pending.pk, str(ada.pk))
    for changed in (token[:-1] + ("a" if token[-1] != "a" else "b"), "x" + token, "", token.split(":")[0]):
        with pytest.raises(links.BadLink):
            links.read(changed)
    stopped_clock.advance("119 minutes")
    links.read(token)
    stopped_clock.advance("1 minute")
    with pytest.raises(links.ExpiredLink):
        links.read(token)


@pytest.mark.parametrize("expires", ["soon", 0, -1, "1h"])
def test_a_link_needs_a_real_duration(user_factory: UserFactory, expires: Any) -> None:
    ada = user_factory("ada")
    pending = opened(users=[ada])
    with pytest.raises(ValueError, match="expires"):
        pending.decision_url(ada, expires=expires)


def test_the_link_is_made_in_notify(user_factory: UserFactory) -> None:
    """api.md, mail_managers."""
    ada = user_factory("ada")
    urls: list[str] = []
    tell: Callable[[PendingEvent], object] = lambda pending: urls.append(pending.decision_url(ada))  # noqa: E731
    pending = opened(users=[ada], notify=tell)
    assert links.read(urls[0].rstrip("/").rpartition("/")[2]).pending_event == pending.pk

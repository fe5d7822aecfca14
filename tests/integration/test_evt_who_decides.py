"""Who may decide: the method on the row and the querysets agree for all users and waits (design 8)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, Group, Permission, User
from django.utils import timezone

from durableflow import Step, Workflow, WorkflowEvent
from durableflow.models import PendingEvent, WorkflowInstance
from durableflow.models.permissions import may_view
from tests.conftest import UserFactory

pytestmark = pytest.mark.django_db
NOBODY: list[Any] = [None, AnonymousUser()]


class Waiting(Workflow[Any, Any]):
    class Meta:
        name = "evt-who-waits"

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        return None


@pytest.fixture
def people(user_factory: UserFactory) -> list[User]:
    """Every combination of what a right can come from, with rights of their own and through a group."""
    carriers = Group.objects.create(name="carriers")
    carriers.permissions.add(Permission.objects.get(codename="decide_pendingevent"))
    carriers.permissions.add(Permission.objects.get(codename="change_group", content_type__app_label="auth"))
    made = []
    for number, (group, rights, kind) in enumerate(
        itertools.product(("", "managers", "carriers"), ("", "decide", "view", "named"), ("plain", "super", "inactive"))
    ):
        permissions = {
            "": [],
            "decide": ["durableflow.decide_pendingevent"],
            "view": ["durableflow.view_workflowinstance"],
            "named": ["auth.change_group", "durableflow.view_pendingevent"],
        }[rights]
        made.append(
            user_factory(
                f"user{number}",
                groups=[group] if group else [],
                permissions=permissions,
                is_superuser=kind == "super",
                is_active=kind != "inactive",
            )
        )
    return made


@pytest.fixture
def waits(people: list[User]) -> list[PendingEvent]:
    """Waits of all rules, started by some of the people or by nobody."""
    managers = Group.objects.get(name="managers")
    made = []
    starters = [None, people[0], people[1], people[4]]
    rules = ["open", "user", "group", "permission", "unknown permission", "all"]
    for starter, rule, allow in itertools.product(starters, rules, (True, False)):
        row = Waiting.create(created_by=starter)
        pending = PendingEvent.objects.create(
            instance=row,
            run_number=1,
            kind="wait_for_approval",
            name="ok",
            opened=timezone.now(),
            restricted=rule != "open",
            permission={"permission": "auth.change_group", "all": "auth.change_group"}.get(
                rule, "no.such" if rule == "unknown permission" else ""
            ),
            allow_requester=allow,
        )
        if rule in ("user", "all"):
            pending.users.set([people[0], people[2], people[5]])
        if rule in ("group", "all"):
            pending.groups.set([managers])
        made.append(pending)
    return made


def test_method_and_querysets_agree(people: list[User], waits: list[PendingEvent]) -> None:
    for user in [*people, *NOBODY]:
        fresh = User.objects.get(pk=user.pk) if isinstance(user, User) else user
        by_method = {pending.pk for pending in waits if pending.may_decide(fresh)}
        by_queryset = list(PendingEvent.objects.decidable_by(fresh).values_list("pk", flat=True))
        assert len(by_queryset) == len(set(by_queryset)), "each wait once"
        assert set(by_queryset) == by_method, user
        instances = set(WorkflowInstance.objects.waiting_for(fresh).values_list("pk", flat=True))
        assert instances == {pending.instance_id for pending in waits if pending.pk in by_method}, user


def test_the_rules_say_what_they_shall(people: list[User], waits: list[PendingEvent]) -> None:
    """The agreement above would hold for two equal mistakes: the rule itself, written once more."""
    for user, pending in itertools.product(people, waits):
        groups = {group.name for group in user.groups.all()}
        named = user in pending.users.all() or "managers" in groups & {group.name for group in pending.groups.all()}
        general = user.has_perm("durableflow.decide_pendingevent")
        holds = bool(pending.permission) and user.has_perm(pending.permission)
        right = user.is_superuser or named or holds or (not pending.restricted and general)
        barred = not pending.allow_requester and pending.instance.created_by_id == user.pk
        assert pending.may_decide(user) is (user.is_active and right and not barred), (user, pending.permission)


def test_who_sees_which_instances(people: list[User], waits: list[PendingEvent]) -> None:
    """Design 9: all with the permission, else the own ones."""
    rows = [pending.instance for pending in waits]
    for user in [*people, *NOBODY]:
        seen = set(WorkflowInstance.objects.visible_to(user).values_list("pk", flat=True))
        assert seen == {row.pk for row in rows if may_view(row, user)}, user
        if isinstance(user, User):
            own = {row.pk for row in rows if row.created_by_id == user.pk}
            every = {row.pk for row in rows} if user.has_perm("durableflow.view_workflowinstance") else own
            assert seen == (every if user.is_active else set())
        else:
            assert seen == set()


def test_who_decides_sees_the_wait(people: list[User], waits: list[PendingEvent]) -> None:
    """A decider without the right to view sees the pending event all the same."""
    for user in people:
        visible = set(PendingEvent.objects.visible_to(user).values_list("pk", flat=True))
        assert visible >= set(PendingEvent.objects.decidable_by(user).values_list("pk", flat=True)), user
        own = {pending.pk for pending in waits if pending.instance.created_by_id == user.pk}
        assert not user.is_active or visible >= own
    for nobody in NOBODY:
        assert not PendingEvent.objects.visible_to(nobody).exists()


def test_closed_and_late_waits_are_not_offered(people: list[User], waits: list[PendingEvent]) -> None:
    user = people[1]  # a superuser
    assert user.is_superuser
    for status in ("received", "timed_out", "cancelled"):
        PendingEvent.objects.update(status=status)
        assert not PendingEvent.objects.decidable_by(user).exists()
    PendingEvent.objects.update(status="open", deadline=timezone.now())
    assert not PendingEvent.objects.decidable_by(user).exists()
    assert not WorkflowInstance.objects.waiting_for(user).exists()

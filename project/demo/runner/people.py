"""The two users of the demo, what they may do, and how they log in."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group, Permission, User
from django.db import transaction
from rest_framework.authtoken.models import Token

REQUESTERS = ("durableflow.start_workflowinstance",)
"""One's own instances are visible without a permission."""

APPROVERS = (
    "demo.approve_image",
    "demo.view_image",
    "demo.view_cart",
    "demo.view_payment",
    "demo.view_invoice",
    "durableflow.view_workflowinstance",
    "durableflow.operate_workflowinstance",
    "durableflow.view_workflowschedule",
    "durableflow.change_workflowschedule",
    "durableflow.view_pendingevent",
    "durableflow.decide_pendingevent",
)


@dataclass(frozen=True, kw_only=True)
class Person:
    """A user with the password and token of this run. Neither is shown by ``repr``."""

    user: User
    password: str
    token: str

    def __repr__(self) -> str:
        return f"Person({self.user.get_username()})"


def make_people() -> tuple[Person, Person]:
    """``requester``, who starts workflows, and ``approver``, who is staff and decides: made or renewed.

    The passwords are random and new at each run, so that they need not be kept anywhere.
    """
    with transaction.atomic():
        requesters, approvers = _group("requesters", REQUESTERS), _group("approvers", APPROVERS)
        return _person("requester", requesters, staff=False), _person("approver", approvers, staff=True)


def _group(name: str, permissions: tuple[str, ...]) -> Group:
    group, _ = Group.objects.get_or_create(name=name)
    for label in permissions:
        app, codename = label.split(".")
        group.permissions.add(Permission.objects.get(content_type__app_label=app, codename=codename))
    return group


def _person(username: str, group: Group, *, staff: bool) -> Person:
    password = secrets.token_urlsafe(12)
    user, _ = get_user_model().objects.get_or_create(username=username, defaults={"email": f"{username}@example.com"})
    user.is_staff, user.is_active = staff, True
    user.set_password(password)
    user.save()
    user.groups.add(group)
    token, _ = Token.objects.get_or_create(user=user)
    return Person(user=user, password=password, token=token.key)

"""Which rows a verb means: ``WORKFLOW INSTANCE_ID|latest``, one rule for all verbs (design 12)."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, Final

from django.contrib.auth import get_user_model
from django.core.management.base import CommandParser

from durableflow.core import registry
from durableflow.core.names import LATEST, check_instance_id, check_text, check_workflow_name
from durableflow.management.errors import told, wrong
from durableflow.models import PendingEvent, WorkflowInstance
from durableflow.models.creation import database

LOOKED_AT: Final = 500
"""The newest ids among which one is looked for that was meant."""


class Everybody:
    """Whoever reads without ``--user``: who can run commands can read the database, so nothing is hidden but what is masked
    for all."""

    pk = None
    is_active = is_authenticated = is_superuser = True

    def has_perm(self, _name: str, _row: Any = None) -> bool:
        """Yes."""
        return True


EVERYBODY: Any = Everybody()


def add_instance(parser: CommandParser) -> None:
    """``WORKFLOW`` and ``INSTANCE_ID``."""
    parser.add_argument("workflow", help="The workflow's name.")
    parser.add_argument("instance_id", help="The instance's id, or 'latest' for the newest one.")


def user_of(username: str | None) -> Any:
    """The user of this name, None where none is given. CommandError where there is no such user."""
    if username is None:
        return None
    with told():
        check_text("The user's name", username)
    users: Any = get_user_model()
    try:
        return users._default_manager.get_by_natural_key(username)
    except users.DoesNotExist:
        raise wrong(f"There is no user {username!r}.") from None


def class_of(workflow: str) -> Any:
    """The class of a workflow. CommandError, with the known names, where this code has none."""
    found = registry.find(workflow)
    if found is None:
        raise unknown_workflow(workflow)
    return found


def rows_of(workflow: str, user: Any = None) -> Any:
    """The instances of a workflow, light; those that ``user`` may see, if one is given.

    CommandError for a name that neither this code nor a stored instance has.
    """
    with told():
        check_workflow_name(workflow)
    every: Any = WorkflowInstance.objects.using(database())
    cls = registry.find(workflow)
    if cls is None and not every.for_workflow(workflow).exists():
        raise unknown_workflow(workflow)
    rows = every.for_workflow(cls or workflow)
    return (rows if user is None else rows.visible_to(user)).light()


def instance_of(workflow: str, instance_id: str, *, user: Any = None, whole: bool = False) -> WorkflowInstance:
    """The instance, with all its columns if ``whole``; one that ``user`` may see, if one is given.

    CommandError (status 2) where there is none: one that is foreign and one that does not exist are told alike.
    """
    rows = rows_of(workflow, user)
    rows = rows.defer(None) if whole else rows
    if instance_id == LATEST:
        found = rows.order_by("-id").first()
        if found is None:
            raise wrong(f"The workflow {workflow!r} has no instance.")
        return found  # type: ignore[no-any-return]
    with told():
        check_instance_id(instance_id)
    cls = registry.find(workflow) or workflow
    named: Any = rows.with_id(cls, instance_id, first=workflow)
    found = named.first()
    if found is None:
        newest = list(rows.order_by("-id").values_list("instance_id", flat=True)[:LOOKED_AT])
        close = get_close_matches(instance_id, newest, n=1)
        guess = f" Did you mean {close[0]!r}?" if close else ""
        there = f"The latest is {newest[0]!r}." if newest else "It has none."
        raise wrong(f"No instance {instance_id!r} of workflow {workflow!r}.{guess} {there}")
    return found  # type: ignore[no-any-return]


def pending_of(key: int, user: Any = None) -> PendingEvent:
    """The pending event of this number; one that ``user`` may see, if one is given. CommandError where there is none."""
    every: Any = PendingEvent.objects.using(database())
    rows = every if user is None else every.visible_to(user)
    found = rows.select_related("instance").filter(pk=key).first()
    if found is None:
        raise wrong(f"There is no pending event {key}. 'durableflow pending' lists those that are open.")
    return found  # type: ignore[no-any-return]


def unknown_workflow(workflow: str) -> Exception:
    """The error for a name that nothing has."""
    names = registry.names()
    close = get_close_matches(workflow, names, n=1)
    guess = f" Did you mean {close[0]!r}?" if close else ""
    known = ", ".join(names) or "none. They are found in the module 'workflows' of each app in INSTALLED_APPS"
    return wrong(f"There is no workflow {workflow!r}.{guess} Known: {known}.")

"""Who may do what to an instance: one rule for Python, admin, REST and command line (design 1.6, 9)."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import PermissionDenied

from durableflow.core.statuses import Status, allowed
from durableflow.models.completable import completable
from durableflow.models.instance_fields import InstanceFields, Who

VIEW = "view_workflowinstance"
START = "start_workflowinstance"
OPERATE = "operate_workflowinstance"
OVERRIDE = "override_workflowinstance"
DELETE = "delete_workflowinstance"
VIEW_PENDING = "view_pendingevent"
DECIDE = "decide_pendingevent"

# Row verbs that need the right to operate, in the order in which screens show them.
OPERATIONS = ("retry", "resume", "pause", "restart", "terminate", "send_event")


class RequesterBarred(PermissionDenied):
    """The person who started the instance may not decide this wait (``allow_requester=False``)."""

    code = "requester_barred"


def holds(user: Who, permission: str, row: Any = None) -> bool:
    """Whether ``user`` holds ``durableflow.<permission>`` for all rows or for this one. Nobody and inactive users
    hold nothing."""
    if user is None or not getattr(user, "is_active", False):
        return False
    name = f"durableflow.{permission}"
    asked: Any = user
    return bool(asked.has_perm(name) or (row is not None and asked.has_perm(name, row)))


def require(by: Who, permission: str, row: Any, what: str) -> None:
    """Raise PermissionDenied unless ``by`` may do ``what``. ``by=None`` is trusted code."""
    if by is not None and not holds(by, permission, row):
        raise PermissionDenied(
            f"{name_of(by) or 'Anonymous'} may not {what}: the permission durableflow.{permission} is missing."
        )


def name_of(user: Who) -> str:
    """The text copy of a user that survives the user's deletion; '' for nobody."""
    if user is None or not getattr(user, "is_authenticated", False):
        return ""
    return str(getattr(user, "get_username", lambda: "")())[:255]


def row_of(user: Who) -> Any:
    """The user as a foreign key takes it: None for nobody and for anonymous users."""
    return user if user is not None and getattr(user, "is_authenticated", False) else None


def may_view(instance: InstanceFields, user: Who) -> bool:
    """Whether ``user`` sees this instance: by permission, or because the user created it (design 9)."""
    if holds(user, VIEW, instance):
        return True
    return bool(user is not None and user.is_authenticated and user.is_active and instance.created_by_id == user.pk)


def available_actions(instance: InstanceFields, user: Who) -> set[str]:
    """The verbs that are allowed to ``user`` in the instance's present status; never one that would change nothing.

    For who may override, one query looks for a step that can be completed: nothing for lists.
    """
    offered = {verb for verb in OPERATIONS if possible(verb, instance)} if holds(user, OPERATE, instance) else set()
    if holds(user, OVERRIDE, instance) and possible("complete_step", instance) and completable(instance).exists():
        offered.add("complete_step")
    if holds(user, DELETE, instance):
        offered.add("delete")
    return offered


def possible(verb: str, instance: InstanceFields) -> bool:
    """Whether the instance's state lets ``verb`` do something: its status, and of one that was rolled back what came of that.

    What has been undone cannot go forward again; handlers that failed can run again, of a terminated instance too (design 7).
    """
    if verb == "retry" and instance.status in (Status.ERRORED, Status.TERMINATED) and instance.rollback:
        return bool(instance.rollback["outcome"] == "failed")
    if verb == "complete_step" and instance.status == Status.ERRORED and instance.rollback:
        return False
    return allowed(verb, instance.status)

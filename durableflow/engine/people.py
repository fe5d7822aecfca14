"""Who is named in an approval (design 5, 8)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.core.exceptions import ValidationError

from durableflow.authoring.calls import ApprovalCall
from durableflow.core.exceptions import InvalidConfig
from durableflow.engine.lease import Claim, Lease


@dataclass(frozen=True)
class People:
    """The users and groups of an approval, looked up."""

    users: list[Any]
    groups: list[Any]


def look_up_people(lease: Lease, claim: Claim, call: ApprovalCall) -> People:
    """Find who is named; raises InvalidConfig for unknown ones, and for ``allow_requester=False`` without a creator
    (design 5)."""
    if not call.allow_requester and claim.created_by_id is None:
        raise InvalidConfig(
            f"{claim.label}: step {call.name!r} bars the requester, but nobody is known to have started it. "
            "Start it anew with created_by, on the command line with --user.",
            step=call.name,
            field="allow_requester",
        )
    keys = [getattr(user, "pk", user) for user in call.users]
    try:
        users = list(get_user_model()._default_manager.using(lease.using).filter(pk__in=keys))
    except (TypeError, ValueError, ValidationError) as error:  # "ada" where keys are numbers or UUIDs
        raise InvalidConfig(
            f"{claim.label}: step {call.name!r}: users must be users or their primary keys: {error}",
            step=call.name,
            field="users",
        ) from error
    missing = {str(key) for key in keys} - {str(user.pk) for user in users}
    if missing:
        raise InvalidConfig(
            f"{claim.label}: step {call.name!r}: there is no user {', '.join(sorted(missing))}.",
            step=call.name,
            field="users",
        )
    names = [getattr(group, "name", group) for group in call.groups]
    groups = list(Group.objects.using(lease.using).filter(name__in=names))
    unknown = {str(name) for name in names} - {group.name for group in groups}
    if unknown:
        raise InvalidConfig(
            f"{claim.label}: step {call.name!r}: there is no group {', '.join(sorted(unknown))}. Create it first.",
            step=call.name,
            field="groups",
        )
    return People(users, groups)

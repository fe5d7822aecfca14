"""Starting an instance once, however often the request comes (cases SEC-15, CON-01)."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from rest_framework.exceptions import NotFound, ValidationError

from durableflow.api.base import NO_WORKFLOW
from durableflow.api.errors import KeyReused
from durableflow.core import registry
from durableflow.core.exceptions import InstanceAlreadyExists
from durableflow.core.statuses import Trigger, Via
from durableflow.models import WorkflowInstance, WorkflowSchedule
from durableflow.models.creation import NewInstance, database, insert
from durableflow.models.permissions import START, require


def digest(body: Any) -> str:
    """A digest of a request's body that does not depend on the order of keys or on white space."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def startable(workflow: str, user: Any) -> Any:
    """The workflow's class. Raises PermissionDenied, then NotFound: who may not start anything learns no names."""
    require(user, START, None, f"start {workflow}")
    found = registry.find(workflow)
    if found is None:
        raise NotFound(NO_WORKFLOW)
    return found


def start(cls: Any, user: Any, body: dict[str, Any], key: str, key_digest: str) -> tuple[WorkflowInstance, bool]:
    """The instance, and whether this request has started it.

    The unique constraint over workflow, creator and key decides between parallel requests with one key: the losers get
    the winner's instance. Raises KeyReused, InstanceAlreadyExists, ValidationError, CodecError, LimitExceeded; then nothing is stored.
    """
    if key and (first := _first(cls, user, key, key_digest)):
        return first, False
    keyed = {"request_key": key, "request_digest": key_digest} if key else {}
    row = insert(plan_of(cls, user, {"instance_id": None, **body}, **keyed))
    if row is not None:
        return row, True
    if key and (first := _first(cls, user, key, key_digest)):
        return first, False
    raise InstanceAlreadyExists(workflow=cls.workflow_name(), instance_id=body.get("instance_id", ""))


def plan_of(cls: Any, user: Any, body: dict[str, Any], **more: Any) -> NewInstance:
    """What a checked body asks for. Raises ValidationError where the workflow's ``concurrency_key`` has no key for its params."""
    try:
        found: NewInstance = cls.planned(**body, created_by=user, trigger=Trigger.API, via=Via.API, **more)
    except ValueError as error:
        raise ValidationError({"params": [str(error)]}) from error
    return found


def run_schedule(row: WorkflowSchedule, user: Any, reason: str, key: str) -> tuple[WorkflowInstance, bool]:
    """What a schedule would start, and whether this request has started it: the same rule, with the key of a start.

    Raises PermissionDenied, KeyReused, and what ``run_now`` raises; then nothing is stored.
    """
    require(user, START, None, f"start {row.workflow}")
    cls = registry.find(row.workflow) or row.workflow
    key_digest = digest({"schedule": row.pk, "reason": reason}) if key else ""
    if key and (first := _first(cls, user, key, key_digest)):
        return first, False
    try:
        return row.run_now(by=user, reason=reason, via=Via.API, request_key=key, request_digest=key_digest), True
    except InstanceAlreadyExists:  # another request with this key was quicker
        if first := _first(cls, user, key, key_digest):
            return first, False
        raise


def _first(cls: Any, user: Any, key: str, key_digest: str) -> WorkflowInstance | None:
    rows = WorkflowInstance.objects.using(database()).for_workflow(cls).light()
    found: WorkflowInstance | None = rows.filter(created_by=user.pk, request_key=key).first()
    if found is not None and found.request_digest != key_digest:
        raise KeyReused
    return found

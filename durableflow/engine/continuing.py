"""``continue_as_new``: the same instance goes on as a new run, with an empty journal (design 7)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, NoReturn

from durableflow.authoring.events import freeze
from durableflow.core import codec, dispatch
from durableflow.core.conf import get_settings
from durableflow.core.exceptions import InvalidConfig
from durableflow.core.statuses import SentKind, Status
from durableflow.engine.fence import fenced
from durableflow.engine.lease import Lease
from durableflow.engine.patience import patient
from durableflow.engine.replay import Scope
from durableflow.engine.session import Session
from durableflow.engine.slots import frees_slot
from durableflow.engine.unwind import Renew, Unwind
from durableflow.models import SentEvent, WorkflowInstance, family
from durableflow.models.audit import record
from durableflow.models.lifecycle import LET_GO_FIELDS, cancel_open, rest


def continue_as_new(session: Session, params: Any) -> NoReturn:
    """End this run and go on with the next one. Raises InvalidConfig inside a branch, CodecError, LimitExceeded, what the
    workflow's ``concurrency_key`` raises for the new params, and InvalidDurableCall inside a body."""
    scope, replay = session.scope(), session.replay
    replay.guard(scope, "continue_as_new()")
    text = checked(session, scope, params)
    session.check_alive()
    options = session.options
    key = options.limit_key(freeze(codec.loads(text)))
    replay.check_end()
    replay.unwind(Unwind(Renew(text, key, options.max_duration, options.version)))


def checked(session: Session, scope: Scope, params: Any) -> str:
    """The params as they are stored. Raises InvalidConfig inside a branch, CodecError, LimitExceeded."""
    if scope is not session.replay.root:
        raise InvalidConfig(
            f"{session.claim.label}: continue_as_new() was called in the branch {scope.name!r}. It ends the whole run: return from the "
            "branch, and call it in run() after the gather."
        )
    return codec.dumps(params, what=f"params of {session.claim.label}", max_bytes=get_settings().LIMITS.params)


@patient
@frees_slot
def renew(lease: Lease, run_number: int, new: Renew) -> None:
    """Begin the next run: another number and seed, no records, and the events that nobody has consumed.

    What the run leaves open is cancelled, children that it still waits for end; those that it has started go on as children
    of the instance. ``max_duration`` begins again.
    """
    with fenced(lease) as fence:
        using = lease.using
        row: Any = WorkflowInstance.objects.using(using).light().get(pk=lease.pk)
        family.end_children(using, [row.pk], "has begun its next run", waited_in=run_number)
        cancel_open(row)
        row.run_number = run_number + 1
        row.seed = uuid.uuid4()
        row.status = Status.QUEUED
        row.started = None
        row.wake_at = fence.now
        row.deadline_at = None if new.max_duration is None else fence.now + new.max_duration
        row.concurrency_key, row.code_version = new.concurrency_key, new.code_version
        row.lease_token = row.owner = None
        row.woken = row.suspect = row.holds_slot = False
        row.hold = ""
        row.interruptions = row.give_backs = 0
        values: Mapping[str, Any] = {
            "params": codec.loads(new.params),
            "output": None,
            "error_data": None,
            "progress": None,
        }
        WorkflowInstance.objects.using(using).filter(pk=row.pk).update(**values)
        # The next run has no events yet, so that their dedupe keys are free there.
        left = SentEvent.objects.using(using).filter(
            instance=row.pk, run_number=run_number, kind=SentKind.EVENT, consumed_by=""
        )
        left.update(run_number=row.run_number)
        record(row, "workflow_queued", via="engine", data={"verb": "continue_as_new"})
        if fence.status == Status.WAITING_FOR_PAUSE:  # the next run does not begin before resume()
            rest(row, fence.now)
        row.save(update_fields=[*LET_GO_FIELDS, *_RENEWED])
        dispatch.wake(using)


_RENEWED = [
    "run_number", "seed", "status", "started", "wake_at", "paused_at", "deadline_at", "concurrency_key", "code_version",
    "interruptions", "give_backs",
]  # fmt: skip

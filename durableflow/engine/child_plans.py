"""What a call says of the child that it starts, and what becomes of a call that cannot start one (design 7)."""

from __future__ import annotations

from typing import Any, NoReturn
from uuid import UUID

from durableflow.authoring.context import derive
from durableflow.core import codec, failures
from durableflow.engine.child_rows import Stored
from durableflow.engine.journal import FAILED, FINISHED, PENDING, Record
from durableflow.engine.session import Session
from durableflow.engine.steps import Entry
from durableflow.models.child_creation import Plan, plan


def planned(
    session: Session,
    record: Record,
    workflow: Any,
    params: Any,
    instance_id: str | None = None,
    *,
    position: int = 0,
    attempts: int = 0,
) -> Plan:
    """What the child shall be; ``position``: of those that ``record`` joins; ``attempts``: how often it was started before.

    Its id and its seed derive from the call, so that a crash or a replay comes to the same child (case CHD-03), and one that is
    started anew after ``retry()`` to the same idempotency keys. The id depends on the parent's own id too: a parent that was
    started anew has its predecessor's seed, whose children still exist. Raises what is wrong with it.
    """
    claim = session.claim
    call = (claim.seed, record.key_run, *record.identity)
    own = instance_id
    if own is None:
        own = derive("child", claim.workflow, claim.instance_id, *call).hex()[:32] + (
            f"-{position}" if position else ""
        )
    if attempts:
        own += f"-r{attempts}"  # the id without it is that of the child before
    child = plan(workflow.planned(params, instance_id=own))
    child.row.seed = UUID(bytes=derive("child seed", *call, position)[:16], version=4)
    return child


def refuse(session: Session, record: Record, error: Exception) -> NoReturn:
    """The child cannot be started. That is an outcome like any other: one that ``run`` has caught stays caught (CHD-02)."""
    described = session.describe(error, record.identity, False)
    record.status, record.error, record.wake_at = FAILED, codec.dumps(described), None
    session.write(record, Entry("step_errored", {"error": failures.public(described)}))
    raise session.failure(record) from None


def stale(session: Session, record: Record) -> bool:
    """Whether an open record has to be read anew. Else nothing has come for the instance since its journal was loaded, or what has
    come makes it due once more (``woken``): a parent with many open calls asks for none of them."""
    overdue = record.wake_at is not None and record.wake_at <= session.claim.db_now()
    return session.news > 0 or record.used == 0 or overdue


def adopt(record: Record, found: Stored | None) -> None:
    """Take over into memory what is stored."""
    if found is None or found.status not in (*FINISHED, PENDING):
        return
    record.status, record.output, record.error, record.wake_at = found.status, found.output, found.error, found.wake_at
    record.attempts, record.attempts_before_retry = found.attempts, found.attempts_before_retry

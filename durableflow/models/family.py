"""What parents and children tell each other: messages to an inbox, so that nobody locks the other's row (design 4, 7).

A child that ends tells its parent, where the parent still waits for it; a parent that ends tells the children that end with
it. Both messages are part of the transaction that ends the sender, so that no crash can lose them (case CHD-04); delivery
does what they say (``engine.outcomes``, ``engine.orphans``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from django.apps import apps
from django.db import connections

from durableflow.core import clock, codec, dispatch
from durableflow.core.statuses import DEAF, FINISHED, SentKind, StepKind

TERMINATE: Final = "terminate"
LEAVE: Final = "leave"
UNDO: Final = "rollback"
"""The type of a message to a child that is to end as by ``terminate(rollback=True)``."""
ENDED: Final = "has ended"
DELETED: Final = "deleted"
"""The status of a child that is no more, as its parent sees it."""
AT_ONCE: Final = 500

_OVER: Final = ", ".join(f"'{status.value}'" for status in sorted(FINISHED))
_DEAF: Final = ", ".join(f"'{status.value}'" for status in sorted(DEAF))
_COLUMNS: Final = "instance_id, run_number, kind, type, payload, sent_by_name, via, reason, sent_at, dedupe_key, delivered, consumed_by"


def ended(using: str, pk: int, label: str, status: str, parent_step: int | None, *, undo: bool = False) -> None:
    """An instance has ended: tell its parent and its children. ``label``: workflow and instance_id. ``undo``: it was rolled
    back, and so are the children that end with it. Part of the transaction that ends it."""
    if parent_step is not None:
        tell_parent(using, pk, label, status, parent_step)
    end_children(using, [pk], ENDED, undo=undo)


def tell_parent(using: str, pk: int, label: str, status: str, parent_step: int) -> bool:
    """Tell the parent that its child has ended, if it still waits for it; whether it does."""
    workflow, _slash, instance_id = label.partition("/")
    payload = {
        "child": pk, "step": parent_step, "workflow": workflow, "instance_id": instance_id, "status": status,
    }  # fmt: skip
    now, at = _now(using)
    sql = f"""
        INSERT INTO {_table("SentEvent")} ({_COLUMNS})
        SELECT s.instance_id, s.run_number, '{SentKind.CHILD.value}', '', %s, '', 'engine', '', {now}, '', false, ''
        FROM {_table("StepRecord")} AS s JOIN {_table("WorkflowInstance")} AS p ON p.id = s.instance_id
        WHERE s.id = %s AND s.status = 'pending' AND p.status NOT IN ({_DEAF})"""  # noqa: S608
    return _insert(using, sql, [codec.dumps(payload), *at, parent_step])


def end_children(
    using: str, parents: Sequence[int], how: str, *, waited_in: int | None = None, undo: bool = False
) -> bool:
    """Tell the unfinished children of these instances to end, those that end with their parent; whether there are any.

    ``how``: what the history of a child says of its parent. ``waited_in``: only the children that this run still waits for.
    ``undo``: they are to undo first what they have done.
    """
    found = False
    only = "AND s.status = 'pending' AND s.run_number = %s" if waited_in is not None else ""
    for start in range(0, len(parents), AT_ONCE):
        some = list(parents[start : start + AT_ONCE])
        now, at = _now(using)
        sql = f"""
            INSERT INTO {_table("SentEvent")} ({_COLUMNS})
            SELECT c.id, c.run_number, '{SentKind.PARENT.value}', '{UNDO if undo else ""}', NULL, '', 'engine',
                'Its parent ' || p.workflow || '/' || p.instance_id || ' {how}.', {now}, '', false, ''
            FROM {_table("StepRecord")} AS s
            JOIN {_table("WorkflowInstance")} AS c ON c.parent_step_id = s.id
            JOIN {_table("WorkflowInstance")} AS p ON p.id = s.instance_id
            WHERE s.instance_id IN ({", ".join(["%s"] * len(some))}) AND s.kind = '{StepKind.CHILD.value}' {only}
                AND c.on_parent_end = '{TERMINATE}' AND c.status NOT IN ({_OVER})
            ORDER BY c.id"""  # noqa: S608
        found |= _insert(using, sql, [*at, *some, *([] if waited_in is None else [waited_in])])
    return found


def forget_end(row: Any) -> None:
    """A person has brought the instance, whose row the caller holds, to life again: what it was told of its parent's end before,
    and nobody has delivered yet, is void, as where it had been delivered at once."""
    row.sent_events.filter(kind=SentKind.PARENT, delivered=False).update(delivered=True)


def _insert(using: str, sql: str, params: list[Any]) -> bool:
    with connections[using].cursor() as cursor:
        cursor.execute(sql, params)
        found = bool(cursor.rowcount > 0)
    if found:
        dispatch.wake(using)
    return found


def _table(model: str) -> str:
    # By name: the tables that point to the instance are defined after it.
    return str(apps.get_model("durableflow", model)._meta.db_table)


def _now(using: str) -> tuple[str, list[Any]]:
    if connections[using].vendor == "postgresql":
        return clock.postgres("clock"), []
    return "%s", [clock.sqlite_text(clock.host_now())]

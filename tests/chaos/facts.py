"""Reads at the end what the tables say, as plain data for the verdict."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from django.db import connection

from durableflow.models import HistoryEntry, SentEvent, StepRecord, WorkflowInstance
from durableflow.models.limits import ConcurrencyLimit
from tests.chaos.verdict import Facts, Line
from tests.chaos.workflows import ChaosLimited, label, plan, workflow_of

TABLE = "chaos_effect"


def make_table() -> None:
    """The app's own table that atomic bodies write to; no key, so that a second row would show."""
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {TABLE} (instance text, step text, nonce text)")


def read_ledger(path: Path) -> list[Line]:
    """The ledger's lines, in order."""
    return [Line(**json.loads(text)) for text in path.read_text().splitlines()] if path.exists() else []


def leaked_slots() -> list[str]:
    """The limits that count somebody as running, when nobody is."""
    return [f"limit {row.key!r} counts {row.running} running" for row in ConcurrencyLimit.objects.exclude(running=0)]


def collect(created: dict[str, int], doomed: set[str]) -> Iterable[Facts]:
    """The facts of each instance that was created, from its id and number; also of those that are not there."""
    rows: dict[str, list[tuple[str, str]]] = defaultdict(list)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT instance, step, nonce FROM {TABLE}")
        for instance, step, nonce in cursor.fetchall():
            rows[instance].append((step, nonce))
    found = {row.instance_id: row for row in WorkflowInstance.objects.filter(instance_id__in=created)}
    steps: dict[int, list[StepRecord]] = defaultdict(list)
    for record in StepRecord.objects.all():
        steps[record.instance_id].append(record)
    events: dict[int, list[tuple[Any, str]]] = defaultdict(list)
    for event in SentEvent.objects.filter(kind=SentEvent.Kind.EVENT).order_by("id"):
        events[event.instance_id].append((event.payload, event.consumed_by))
    failed: dict[int, list[tuple[str, str]]] = defaultdict(list)
    for entry in HistoryEntry.objects.filter(type="step_errored", step__contains="breaks"):
        failed[entry.instance_id].append((entry.step.rpartition("-")[0], str(entry.data["error"]["message"])))
    for name, number in created.items():
        program = [(label(position, kind), kind) for position, kind in enumerate(plan(number))]
        row = found.get(name)
        yield Facts(
            instance=name,
            status=row.status if row else "missing",
            why=_why(row) if row else "",
            output=row.output if row and isinstance(row.output, list) else None,
            steps=program,
            checkpoints={record.name: _nonce(record) for record in steps[row.pk]} if row else {},
            events=events[row.pk] if row else [],
            rows=rows[name],
            stuck=_stuck(row) if row else [],
            limited=issubclass(workflow_of(number), ChaosLimited),
            doomed=name in doomed,
            failed=failed[row.pk] if row else [],
            after_end=_after_end(row) if row and name in doomed else 0,
        )


def _after_end(row: WorkflowInstance) -> int:
    """How many entries of steps follow the one of its termination."""
    ended = row.history.filter(type="workflow_terminated").first()
    late = ("step_started", "step_completed", "step_errored", "attempt_errored", "attempt_lost")
    return row.history.filter(type__in=late, id__gt=ended.pk).count() if ended else 0


def _why(row: WorkflowInstance) -> str:
    parts = [row.blocked, row.hold, f"{row.error['type']}: {row.error['message']}" if row.error else ""]
    parts.append(f"wake_at {row.wake_at} token {row.lease_token} interruptions {row.interruptions} woken {row.woken}")
    return "; ".join(part for part in parts if part)


def _nonce(record: StepRecord) -> str:
    if record.status == StepRecord.Status.COMPLETE:
        return str(record.output)
    return str(record.error["message"]) if record.error else ""


def _stuck(row: WorkflowInstance) -> list[str]:
    if row.status not in (row.Status.COMPLETE, row.Status.ERRORED, row.Status.TERMINATED):
        return []
    children = WorkflowInstance.objects.filter(parent_step__instance=row, finished=None)
    left = [f"has ended with its child {child.instance_id} {child.status}" for child in children]
    held = {"lease_token": row.lease_token, "wake_at": row.wake_at, "holds_slot": row.holds_slot or None}
    return left + [f"has ended with {name} {value}" for name, value in held.items() if value is not None]

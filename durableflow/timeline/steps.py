"""The steps of an instance with their attempts and waits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import Q

from durableflow.core import clock
from durableflow.core.redact import shown
from durableflow.core.statuses import StepKind, StepStatus
from durableflow.models import StepRecord, WorkflowInstance
from durableflow.timeline.masking import Veil
from durableflow.timeline.waits import WaitView, views_of

ATTEMPTED: Final = frozenset({StepKind.DO, StepKind.NOTIFY})
MAX_LABELS: Final = 500
"""Names of steps in one query; beyond it a query takes all of the run."""

COMPLETE, FAILED, LOST, RUNNING = "complete", "failed", "lost", "running"


@dataclass(frozen=True, kw_only=True)
class AttemptView:
    """One try of a body.

    ``status``: complete, failed, lost (its worker died) or running. ``retry_delay``: seconds until the next one.
    """

    number: int
    status: str
    started: datetime | None
    finished: datetime | None
    error: dict[str, Any] | None
    retry_delay: float | None


@dataclass(frozen=True, kw_only=True)
class RollbackView:
    """How far a step's rollback handler is (design 7).

    ``status``: pending, started, complete or failed. ``attempts``: how many of its tries were begun. ``next_attempt_at``: when
    one that failed runs again.
    """

    status: str
    attempts: int
    error: dict[str, Any] | None
    next_attempt_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class StepView:
    """One durable call of the present run.

    ``attempts``: how many tries were begun; ``tries``: each of them, as far as the history tells. ``next_attempt_at``:
    when a failed body runs again. ``wake_at``: when a sleep or wait ends by itself; both, of a paused instance, if it was
    resumed now. ``wait``: what the call waits for. ``output``: plain and masked; None as well where it was not asked for.
    ``duration``: from start to end, None while it is open. ``rollback``: how far its rollback handler is, None where it has
    none to run.
    """

    id: int
    run_number: int
    seq: int
    label: str
    scope: str
    kind: str
    name: str
    count: int
    status: str
    sensitive: bool
    attempts: int
    tries: tuple[AttemptView, ...]
    started: datetime | None
    finished: datetime | None
    duration: timedelta | None
    error: dict[str, Any] | None
    next_attempt_at: datetime | None
    wake_at: datetime | None
    wait: WaitView | None
    output: Any
    rollback: RollbackView | None


def steps(
    instance: WorkflowInstance, records: Sequence[StepRecord] | None = None, *, outputs: bool = True
) -> list[StepView]:
    """The steps of the present run in the order in which they started. At most six queries, whatever their number.

    ``records``: only these (a page of ``instance.steps``). ``outputs=False`` reads no outputs: they may be large.
    """
    rows = records
    if rows is None:
        queryset = instance.steps.filter(run_number=instance.run_number).order_by("seq").defer("config")
        rows = list(queryset if outputs else queryset.defer("config", "raw_output"))
    veil = Veil.over(instance)
    tries = _tries(instance, rows, veil)
    waits = {view.step: view for view in views_of(instance, None if records is None else [row.pk for row in rows])}
    views = [_view(row, veil, tries.get(_key(row), []), waits.get(row.pk), outputs) for row in rows]
    return views if instance.paused_at is None else [_standing_still(view, instance.paused_at) for view in views]


def output_of(step: StepRecord) -> Any:
    """A step's output, plain and masked."""
    return shown(step.output)


def _view(step: StepRecord, veil: Veil, tries: list[AttemptView], wait: WaitView | None, outputs: bool) -> StepView:
    retries = step.kind in ATTEMPTED and step.status == StepStatus.PENDING
    return StepView(
        id=step.pk,
        run_number=step.run_number,
        seq=step.seq,
        label=step.label,
        scope=step.scope,
        kind=step.kind,
        name=step.name,
        count=step.count,
        status=step.status,
        sensitive=step.sensitive,
        attempts=step.attempts if step.remaining is None else 0,  # of a join it says how many children were let go
        tries=(*tries, *_last_try(step, tries)),
        started=step.started,
        finished=step.finished,
        duration=step.finished - step.started if step.started and step.finished else None,
        error=veil.error(step.error, step=step.label),
        next_attempt_at=step.wake_at if retries else None,
        wake_at=None if retries else step.wake_at,
        wait=wait,
        output=output_of(step) if outputs else None,
        rollback=_rollback(step, veil),
    )


def _standing_still(view: StepView, paused_at: datetime) -> StepView:
    """The view of a step whose instance is paused: times as they would be if it was resumed now. ``sleep_until`` keeps its date."""
    if view.finished is not None and view.rollback is None:
        return view
    wake_at, rollback = view.wake_at, view.rollback
    if view.finished is None and view.kind != StepKind.SLEEP_UNTIL:
        wake_at = clock.running_on(wake_at, paused_at)
    if rollback is not None:
        rollback = replace(rollback, next_attempt_at=clock.running_on(rollback.next_attempt_at, paused_at))
    attempt = clock.running_on(view.next_attempt_at, paused_at)
    return replace(view, wake_at=wake_at, next_attempt_at=attempt, rollback=rollback)


def _rollback(step: StepRecord, veil: Veil) -> RollbackView | None:
    if not step.rollback_status:
        return None
    error = step.rollback_error
    return RollbackView(
        status=step.rollback_status,
        attempts=step.rollback_attempts,
        error=veil.error(error, step=step.label) if isinstance(error, dict) else None,
        next_attempt_at=step.rollback_wake_at,
    )


def _key(row: StepRecord) -> tuple[str, str]:
    return row.kind, row.label


def _tries(
    instance: WorkflowInstance, rows: Sequence[StepRecord], veil: Veil
) -> dict[tuple[str, str], list[AttemptView]]:
    """The failed and lost attempts, and the last one of a step that needed several: one query."""
    wanted = {"attempt_errored": FAILED, "attempt_lost": LOST}
    condition = Q(type__in=wanted) & _labels(rows)
    retried = [row for row in rows if row.attempts > 1 and row.status == StepStatus.COMPLETE]
    if retried:
        condition |= Q(type="step_completed") & _labels(retried)
    # What a restart has kept has its tries in the history of an earlier run.
    since = {_key(row): row.key_run for row in rows}
    first = min(since.values(), default=instance.run_number)
    entries = instance.history.filter(condition, run_number__range=(first, instance.run_number)).order_by("id")
    found: dict[tuple[str, str], list[AttemptView]] = {}
    for entry in entries:
        data = entry.data if isinstance(entry.data, dict) else {}
        if entry.run_number < since.get((entry.kind, entry.step), first) or "verb" in data:
            continue  # of an earlier run's step; or a person has completed it, and that was no try
        of_step = found.setdefault((entry.kind, entry.step), [])
        of_step.append(
            AttemptView(
                number=data.get("attempt") or len(of_step) + 1,
                status=wanted.get(entry.type, COMPLETE),
                started=_moment(data.get("started")),
                finished=entry.at,
                error=veil.error(data.get("error"), step=entry.step),
                retry_delay=_seconds(data.get("retry_delay")),
            )
        )
    return found


def _labels(rows: Iterable[StepRecord]) -> Q:
    labels = {row.label for row in rows if row.kind in ATTEMPTED}
    return Q(step__in=sorted(labels)) if len(labels) <= MAX_LABELS else Q()


def _last_try(step: StepRecord, known: list[AttemptView]) -> list[AttemptView]:
    """The try that no entry of the history tells of by itself: the only one of a step that succeeded at once, or the
    one that runs.
    """
    if step.kind not in ATTEMPTED or step.attempts <= (known[-1].number if known else 0):
        return []
    if step.status == StepStatus.COMPLETE:
        status, started = COMPLETE, step.started if step.attempts == 1 else None
    elif step.status == StepStatus.STARTED:
        status, started = RUNNING, step.started if not known else None
    else:
        return []
    return [
        AttemptView(
            number=step.attempts, status=status, started=started, finished=step.finished, error=None, retry_delay=None
        )
    ]


def _moment(value: Any) -> datetime | None:
    return datetime.fromisoformat(value) if isinstance(value, str) else value if isinstance(value, datetime) else None


def _seconds(value: Any) -> float | None:
    return value.total_seconds() if isinstance(value, timedelta) else value

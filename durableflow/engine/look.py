"""When does an instance next need a worker? (design 4)"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from durableflow.core import clock
from durableflow.engine import chores, held, schedules, slots
from durableflow.engine.sql import INSTANCE, is_postgres, moment, run
from durableflow.models.instance_fields import CLAIM_CLASSES

SCHEDULE: Final = 0
"""Stands for a schedule among the primary keys of instances."""
CHORE: Final = -1
"""Stands for a chore."""
MOMENT: Final = 0.001
"""Seconds: a slot that is due is fired by the next look, not by a worker."""


@dataclass(frozen=True)
class NextDue:
    """The first row that will be due: ``seconds`` from now (0 or less: it is due now), ``instance`` its primary key. 0: it is
    a schedule, which is no work for a worker: the looker fires it. -1: it is a chore, which a drain does."""

    seconds: float
    instance: int


def next_due(using: str) -> NextDue | None:
    """Look at the head of each claim class, at the next slot of a schedule and at the next chore; None when nothing will ever be
    due by itself.

    Takes no lock. Each few seconds it also looks for what nobody's clock makes due: parked instances for which there is a
    slot, and held ones that this code may run.
    """
    slots.sweep(using)
    if (waiting := held.found(using, 1)) is not None:
        return NextDue(0.0, waiting.pks[0])
    found = [_next_instance(using)]
    if (slot := schedules.seconds_until_next(using)) is not None:
        found.append(NextDue(max(slot, MOMENT), SCHEDULE))
    if (chore := chores.seconds_left(using)) is not None:
        found.append(NextDue(chore, CHORE))
    return min((due for due in found if due is not None), key=lambda due: due.seconds, default=None)


def _next_instance(using: str) -> NextDue | None:
    if is_postgres(using):
        rows = run(
            using,
            f"""SELECT x.id, extract(epoch FROM x.wake_at - {clock.postgres("clock")})::float8
                FROM generate_series(0, {CLAIM_CLASSES[-1]}) AS k,
                LATERAL (SELECT id, wake_at FROM {INSTANCE} WHERE claim_class = k AND wake_at IS NOT NULL ORDER BY wake_at LIMIT 1) AS x
                ORDER BY x.wake_at LIMIT 1""",
        )
        return NextDue(rows[0][1], rows[0][0]) if rows else None
    heads = " UNION ALL ".join(
        f"SELECT * FROM (SELECT id, wake_at FROM {INSTANCE} WHERE claim_class = {k} AND wake_at IS NOT NULL ORDER BY wake_at LIMIT 1)"
        for k in CLAIM_CLASSES
    )
    rows = run(using, f"SELECT id, wake_at FROM ({heads}) ORDER BY wake_at LIMIT 1")
    if not rows:
        return None
    due = moment(rows[0][1])
    return None if due is None else NextDue((due - clock.host_now()).total_seconds(), rows[0][0])

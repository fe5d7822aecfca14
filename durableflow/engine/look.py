"""When does an instance next need a worker? (design 4)"""

from __future__ import annotations

from dataclasses import dataclass

from durableflow.core import clock
from durableflow.engine import held, slots
from durableflow.engine.sql import INSTANCE, is_postgres, moment, run
from durableflow.models.instance_fields import CLAIM_CLASSES


@dataclass(frozen=True)
class NextDue:
    """The first row that will be due: ``seconds`` from now (0 or less: it is due now), ``instance`` its primary key."""

    seconds: float
    instance: int


def next_due(using: str) -> NextDue | None:
    """Look at the head of each claim class; None when no instance will ever be due by itself.

    Takes no lock. Each few seconds it also looks for what nobody's clock makes due: parked instances for which there is a
    slot, and held ones that this code may run.
    """
    slots.sweep(using)
    if (waiting := held.found(using, 1)) is not None:
        return NextDue(0.0, waiting.pks[0])
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

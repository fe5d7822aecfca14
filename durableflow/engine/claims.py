"""Looking for due instances and claiming them, by class (design 4 "Claim", "Takeover"; 6 "Engine failures")."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from durableflow.core import notices
from durableflow.core.statuses import Status
from durableflow.engine import flushing, followed, held, slots
from durableflow.engine.lease import Claim, Lease, elapsed, told_of_stop
from durableflow.engine.sql import moment
from durableflow.engine.taking import Found, by_class, by_pk, oldest, take
from durableflow.engine.verdicts import HELD, LIMIT, TAKE

OLDEST_EVERY: Final = 4
WINDOW: Final = 64
"""Rows that one round reads once it has met rows that cannot be taken: they must not hide those behind them."""
ROUNDS: Final = 32
"""Rounds of one look: a thousand leases may have expired at once, but a caller wants to stop in between."""
_turn = itertools.count(1)


@dataclass(frozen=True)
class Look:
    """What a look has found. ``taken``: the claims. ``again``: it has changed rows without taking them, and did not come
    to the end of them: look again at once."""

    taken: list[Claim]
    again: bool = False


def claim(using: str, limit: int = 1, *, pk: int | None = None) -> list[Claim]:
    """The claims of one ``look``."""
    return look(using, limit, pk=pk).taken


def look(using: str, limit: int = 1, *, pk: int | None = None) -> Look:
    """Take up to ``limit`` due instances, best class first; every fourth is the oldest of all, so that nothing starves.

    Statements of their own, refused by nobody's transaction: what they took is committed before anything runs. A due row
    that cannot be taken is put aside by the same statement and does not hide those behind it: the first look at an expired
    lease only makes it suspect, a row whose code this process has not is held, one without a free slot is parked.
    ``pk``: this instance alone (the testing kit runs due work in an order of its own).
    """
    if pk is not None:
        one, changed = _round(using, by_pk(pk), 1, 1)
        return Look(one, changed and not one)
    slots.sweep(using)
    taken: list[Claim] = []
    if (waited := held.found(using, limit)) is not None:
        taken += _round(using, waited, limit, limit)[0]
    share = sum(next(_turn) % OLDEST_EVERY == 0 for _ in range(limit - len(taken)))
    changed = False
    for find, wanted in ((oldest(), share), (by_class(), limit - len(taken))):
        if wanted := min(wanted, limit - len(taken)):
            more, changed = _rounds(using, find, wanted)
            taken += more
    if taken:
        flushing.paid()
    else:
        flushing.flush(using)
    return Look(taken, changed and len(taken) < limit)


def _rounds(using: str, find: Found, wanted: int) -> tuple[list[Claim], bool]:
    taken: list[Claim] = []
    changed, window = True, wanted
    for number in range(ROUNDS):
        more, changed = _round(using, find, wanted - len(taken), max(window, wanted - len(taken)), plain=number == 0)
        taken += more
        if not changed or len(taken) >= wanted:
            break
        window = WINDOW
    return taken, changed


def _round(using: str, find: Found, wanted: int, window: int, *, plain: bool = False) -> tuple[list[Claim], bool]:
    """One statement, and one transaction per concurrency key that it has met; whether it has met rows that it has not taken
    and that are put aside now (``plain``: in the next round)."""
    before = elapsed()
    rows = take(using, find, wanted, window, plain=plain)
    taken = _claims(using, [row.values for row in rows if row.values], before)
    changed = any(row.verdict not in (TAKE, LIMIT) for row in rows)
    if changed and not plain:  # who waits until an instance is at rest has to hear that it is put aside
        followed.tell(using, [row.pk for row in rows if row.verdict in HELD])
    limited = [(row.pk, row.workflow, row.key) for row in rows if row.verdict == LIMIT]
    if limited:
        admitted, parked = slots.admit(using, limited, wanted - len(taken))
        taken += _claims(using, admitted, before)
        changed = changed or parked
    return taken, changed


def _claims(using: str, rows: Sequence[tuple[Any, ...]], before: float) -> list[Claim]:
    made = [_made(using, row, before) for row in rows]
    for claim in made:
        if claim.lease.followed:
            notices.give(using, claim.lease.pk)
    return made


def _made(using: str, row: tuple[Any, ...], before: float) -> Claim:
    (pk, workflow, instance_id, run_number, execution, seed, params, created, scheduled_for, deadline_at) = row[:10]
    (created_by_id, code_version, interruptions, give_backs, holds_slot, key, status, parent_step) = row[10:18]
    (marked, cron, token, lost_token, lost_owner, now) = row[18:]
    counted = lost_token is not None
    if not counted and lost_owner is not None:  # its lost attempt is still to be charged (``Claim.lost_mark``)
        lost_token = abs(lost_owner)
    created_at, now_at = moment(created), moment(now)
    if created_at is None or now_at is None:
        raise RuntimeError(f"{workflow}/{instance_id} has no creation time.")
    label = f"{workflow}/{instance_id}"
    return Claim(
        lease=Lease(
            using,
            pk,
            token,
            label,
            renewed=before,
            slot=key if holds_slot else "",
            parent_step=parent_step,
            children=run_number > 1,
            pausing=status == Status.WAITING_FOR_PAUSE,
            followed=marked is not None and (moment(marked) or now_at) > now_at,
        ),
        workflow=workflow,
        instance_id=instance_id,
        run_number=run_number,
        execution=execution,
        seed=UUID(str(seed)),
        params=params,
        created=created_at,
        scheduled_for=moment(scheduled_for),
        cron=cron,
        deadline_at=moment(deadline_at),
        created_by_id=created_by_id,
        code_version=code_version,
        interruptions=interruptions,
        give_backs=give_backs,
        now=now_at,
        lost_token=lost_token,
        by_stop=told_of_stop(lost_owner),
        rolling_back=status == Status.ROLLING_BACK,
        counted=counted,
    )

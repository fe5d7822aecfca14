"""Deciding a race: which of its waits was settled first, in one fenced transaction with all that follows (design 7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from durableflow.authoring.calls import WaitCall
from durableflow.authoring.group_calls import ChildCall
from durableflow.core import codec, failures
from durableflow.engine import child_rows, child_writes, waits
from durableflow.engine.delivery import deliver_own
from durableflow.engine.fence import Fence, fenced
from durableflow.engine.journal import COMPLETE, FAILED, PENDING, Identity, Record
from durableflow.engine.lease import Claim, Lease
from durableflow.engine.patience import patient
from durableflow.engine.sql import INSTANCE, STEP, run, stored
from durableflow.engine.waits import LOCKED_AGAIN, Outlook

_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)
_IDENTITY: Final = "instance_id = %s AND run_number = %s AND scope = %s AND kind = %s AND name = %s AND count = %s"


@dataclass(frozen=True)
class Standing:
    """One branch that waits. ``name``: the branch's; ``record``: of its one call."""

    name: str
    record: Record
    call: Any


@dataclass(frozen=True)
class Verdict:
    """``decided``: the race is over, as its record says. Else ``wake_at``: when to look again, None where that is not known
    here."""

    decided: bool
    wake_at: datetime | None = None


class _HeldError(Exception):
    """Somebody is deciding a wait of the race at this moment."""


@dataclass(frozen=True)
class _Seen:
    """A branch under the lock. ``at``: when it was settled, None if it is not."""

    standing: Standing
    at: datetime | None
    wait: Outlook | None = None


@patient
def decide(
    lease: Lease,
    claim: Claim,
    race: Record,
    scopes: Sequence[str],
    standings: Sequence[Standing],
    error: dict[str, Any] | None,
) -> Verdict:
    """Let the branch win that was settled first, ties by position: its message is consumed, what the others wait for is
    cancelled, and the race's record names it.

    ``scopes``: of its branches. ``error``: what keeps a branch from waiting, described; the race fails by it where no other
    branch is settled yet. Raises UnreadableAnswer.
    """
    held = Verdict(decided=False)
    try:
        with fenced(lease) as fence:
            held = Verdict(decided=False, wake_at=fence.now + LOCKED_AGAIN)
            if _over(lease, claim, race):
                return Verdict(decided=True)  # by this very look, whose answer was lost
            if any(isinstance(standing.call, ChildCall) for standing in standings):
                deliver_own(lease)
            seen = [_look(lease, claim, fence, standing) for standing in standings]
            winner = min((one for one in seen if one.at is not None), key=_moment, default=None)
            if winner is None and error is None:
                _bind(lease, seen)
                return Verdict(decided=False)
            if winner is not None:
                _settle(lease, claim, fence, winner)
            for one in seen:
                if one is not winner:
                    _withdraw(lease, claim, fence, one)
            _write(lease, claim, fence, race, scopes, winner, error)
            return Verdict(decided=True)
    except _HeldError:
        return held


def _moment(seen: _Seen) -> datetime:
    return seen.at or _LONG_AGO


def _over(lease: Lease, claim: Claim, race: Record) -> bool:
    sql = f"SELECT status FROM {STEP} WHERE {_IDENTITY}"
    rows = run(lease.using, sql, [lease.pk, claim.run_number, *race.identity])
    return bool(rows) and rows[0][0] != PENDING


# Under the lock -------------------------------------------------------------------------------------------------------


def _look(lease: Lease, claim: Claim, fence: Fence, standing: Standing) -> _Seen:
    record = standing.record
    if isinstance(standing.call, ChildCall):
        return _Seen(standing, child_writes.settled_at(lease, claim, record, fence.now))
    if record.finished:
        return _Seen(standing, _LONG_AGO)
    if isinstance(standing.call, WaitCall):
        # Its own deadline is the record's; that of its pending event may be another branch's.
        outlook = waits.outlook(lease, claim, record, fence)
        return _Seen(standing, _past(record, fence) if outlook.sent is None else outlook.at, outlook)
    return _Seen(standing, _past(record, fence))


def _past(record: Record, fence: Fence) -> datetime | None:
    return record.wake_at if record.wake_at is not None and record.wake_at <= fence.now else None


def _bind(lease: Lease, seen: Sequence[_Seen]) -> None:
    """The race ends by itself at the first of its moments: until then its waits can be answered, and people see that."""
    moments = [one.standing.record.wake_at for one in seen]
    end = min((moment for moment in moments if moment is not None), default=None)
    for one in seen:
        if one.wait is not None:
            waits.bind(lease, one.wait, end)


def _settle(lease: Lease, claim: Claim, fence: Fence, winner: _Seen) -> None:
    record = winner.standing.record
    if winner.wait is not None:
        if not waits.settle(lease, claim, record, winner.wait, fence):
            raise _HeldError
    elif isinstance(winner.standing.call, ChildCall):
        found = child_rows.read(lease, claim, record.identity)
        if found is not None and found.status == PENDING:
            child_writes.expire(lease, claim, record, found, fence.now)
    elif not record.finished:
        sql = f"UPDATE {STEP} SET status = 'complete', finished = %s, wake_at = NULL, token = %s WHERE {_IDENTITY}"
        at = stored(lease.using, fence.now)
        run(lease.using, sql, [at, lease.token, lease.pk, claim.run_number, *record.identity])
        child_rows.tell(lease, claim, record.identity, "sleep_completed", {})


def _withdraw(lease: Lease, claim: Claim, fence: Fence, loser: _Seen) -> None:
    """Nobody can answer it any more. What was sent for it stays in the inbox, for a later wait."""
    if loser.wait is not None and not waits.withdraw(lease, loser.wait, fence):
        raise _HeldError
    if isinstance(loser.standing.call, ChildCall):
        child_writes.cancel(lease, claim, loser.standing.record, fence.now)


def _write(
    lease: Lease, claim: Claim, fence: Fence, race: Record, scopes: Sequence[str], winner: _Seen | None, error: Any
) -> None:
    """The records: of the race, and of what is cancelled with it."""
    using, at = lease.using, stored(lease.using, fence.now)
    marks = ", ".join(["%s"] * len(scopes))
    sql = f"""UPDATE {STEP} SET status = 'cancelled', finished = %s, wake_at = NULL
              WHERE instance_id = %s AND run_number = %s AND scope IN ({marks}) AND status IN ('pending', 'started')"""
    run(using, sql, [at, lease.pk, claim.run_number, *scopes])
    status, output, text = FAILED, None, None
    data: dict[str, Any]
    if winner is not None:
        status, output = COMPLETE, codec.dumps(winner.standing.name)
        entry, data = "race_completed", {"winner": winner.standing.name}
    else:
        text = codec.dumps(error)
        entry, data = "step_errored", {"error": failures.public(error)}
    sql = f"UPDATE {STEP} SET status = %s, output = %s, error = %s, finished = %s, token = %s WHERE {_IDENTITY}"
    run(using, sql, [status, output, text, at, lease.token, lease.pk, claim.run_number, *race.identity])
    if claim.interruptions or claim.give_backs:  # progress was made
        run(using, f"UPDATE {INSTANCE} SET interruptions = 0, give_backs = 0 WHERE id = %s", [lease.pk])
    child_rows.tell(lease, claim, race.identity, entry, data)


@patient
def stored_records(
    lease: Lease, claim: Claim, race: Identity, scopes: Sequence[str]
) -> list[tuple[Identity, str, str | None, str | None]]:
    """Status, output and error of the race's record and of all records in its branches, as they are stored now."""
    marks = ", ".join(["%s"] * len(scopes))
    sql = f"""SELECT scope, kind, name, count, status, output, error FROM {STEP} WHERE instance_id = %s AND run_number = %s
              AND (scope IN ({marks}) OR (scope = %s AND kind = %s AND name = %s AND count = %s))"""
    rows = run(lease.using, sql, [lease.pk, claim.run_number, *scopes, *race])
    return [(Identity(*row[:4]), *row[4:]) for row in rows]

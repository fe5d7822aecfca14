"""Which open waits of an instance nothing has arrived for, in one look for all of them.

Branches that wait are run again at each arrival, and each would ask the inbox for itself: with hundreds of them that takes
longer than anything else.
"""

from __future__ import annotations

import json
import threading
from datetime import datetime
from typing import Any, Final, Protocol

from durableflow.core.statuses import SentKind, StepKind
from durableflow.engine.inbox import undelivered
from durableflow.engine.journal import Identity
from durableflow.engine.lease import Claim, Lease
from durableflow.engine.patience import patient
from durableflow.engine.sql import PENDING, SENT, STEP, moment, run

_WAITS: Final = ", ".join(repr(kind.value) for kind in (StepKind.WAIT_FOR_EVENT, StepKind.WAIT_FOR_APPROVAL))


class Asking(Protocol):
    """The session that asks."""

    claim: Claim
    lease: Lease
    run_number: int

    @property
    def news(self) -> int: ...


class Quiet:
    """What the last look of an execution has found. It counts as long as nobody has heard of an arrival (``Session.news``): what
    comes after it wakes the instance."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._news = -1
        self._found: dict[Identity, datetime | None] = {}

    def knows(self, session: Asking, identity: Identity) -> bool:
        """Whether there is nothing for this open wait, and its time is not over."""
        with self._lock:
            news = session.news
            if news != self._news:
                self._found = _look(session.lease, session.run_number)
                self._news = news
            if identity not in self._found:
                return False
            deadline = self._found[identity]
        return deadline is None or deadline > session.claim.db_now()

    def deadline(self, identity: Identity) -> datetime | None:
        """That of a wait which it knows."""
        return self._found.get(identity)


@patient
def _look(lease: Lease, run_number: int) -> dict[Identity, datetime | None]:
    using = lease.using
    sent = run(
        using,
        f"""SELECT DISTINCT CASE WHEN {undelivered(using)} THEN 1 ELSE 0 END, kind, type, pending_event_id FROM {SENT}
            WHERE instance_id = %s AND ((run_number = %s AND consumed_by = '') OR {undelivered(using)})""",
        [lease.pk, run_number],
    )
    if any(new for new, _kind, _type, _pending in sent):
        return {}  # it has to be delivered first: whoever asks does that
    types = {type for _new, kind, type, _pending in sent if kind == SentKind.EVENT}
    decided = {pending for _new, kind, _type, pending in sent if kind == SentKind.DECISION}
    rows = run(
        using,
        f"""SELECT s.scope, s.kind, s.name, s.count, p.id, p.types, p.deadline FROM {STEP} AS s JOIN {PENDING} AS p ON p.step_id = s.id
            WHERE s.instance_id = %s AND s.run_number = %s AND s.status = 'pending' AND s.kind IN ({_WAITS}) AND p.status = 'open'""",
        [lease.pk, run_number],
    )
    return {
        Identity(*identity): moment(deadline)
        for *identity, pending, wanted, deadline in rows
        if pending not in decided and types.isdisjoint(_types(wanted))
    }


def _types(stored: Any) -> list[str]:
    found: list[str] = json.loads(stored) if isinstance(stored, str) else stored
    return found

"""``step.patched``: runs that were there before a change of the code keep the old path (design 6 "Determinism").

A patch has one record in each scope at most, written where the answer is true. It is no step of the program: the replay need
not meet it, so that the call can be taken out again (``replay.UNCOUNTED``).
"""

from __future__ import annotations

from typing import Final

from durableflow.authoring.group_calls import PatchCall
from durableflow.core import codec
from durableflow.engine.journal import COMPLETE, Identity, Record
from durableflow.engine.replay import Scope
from durableflow.engine.session import Session

_TRUE: Final = codec.dumps(True)


def patched(session: Session, scope: Scope, identity: Identity, record: Record | None, call: PatchCall) -> bool:
    """Whether this run takes the new path.

    Recorded: yes. Else no, as long as the journal holds records of this scope that the replay has not met yet: they are of the
    old path. Else yes, by one fenced write. The first answer of a pass over the scope is that of the whole pass: a loop does
    not change its path half-way, and a replay, which has more records before it, gives the same.
    """
    answer = scope.patches.get(call.name)
    if answer is None:
        # However often it is called, it has one record: the one of the first call.
        answer = scope.patches[call.name] = _first(session, scope, identity._replace(count=1))
    return answer


def _first(session: Session, scope: Scope, identity: Identity) -> bool:
    record = session.replay.records.get(identity)
    if record is not None:
        record.met = True
        return True
    if session.replay.replaying(scope):
        return False
    session.claim.uncharged = False  # nothing was in a body when the worker was lost
    record = session.new_record(identity)
    record.status, record.output = COMPLETE, _TRUE
    session.write(record)
    return True

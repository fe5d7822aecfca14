"""What the ends of children do to their parents' records: a part of delivery (design 4, 7; case OPS-11).

The parent's row is locked by whoever delivers, so that ends of many children at one moment are counted one after the other,
many at a time. A parent is woken by the last child of a join, or by a child of its own call; between them only as many parked
children become due as the window has room for.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from durableflow.core import clock, codec, failures
from durableflow.core.exceptions import CodecError
from durableflow.core.statuses import FINISHED, Hold, Status, StepKind
from durableflow.engine.journal import Identity
from durableflow.engine.scopes import inner
from durableflow.engine.sql import HISTORY, INSTANCE, SENT, STEP, any_of, is_postgres, moment, now_of, run, stored
from durableflow.models import family
from durableflow.models.results import failed

TRACEBACK: Final = 4_000
"""Characters of the child's traceback in ``WorkflowFailed.error``; the whole of it stands with the error's cause."""


@dataclass
class Ends:
    """What became of messages that children have ended: their keys, those ``kept`` because somebody holds a child that is to
    follow, and the parents to ``wake``."""

    delivered: list[int] = field(default_factory=list)
    wake: set[int] = field(default_factory=set)
    kept: bool = False


@dataclass(frozen=True, slots=True)
class Record:
    """The record by which a parent waits for a child. ``join``: the key of the join that it belongs to."""

    pk: int
    parent: int
    run_number: int
    identity: Identity
    join: int | None


@dataclass(frozen=True, slots=True)
class Child:
    """A child as it is now; one whose row is gone has the status ``deleted``."""

    pk: int
    workflow: str
    instance_id: str
    status: str
    error: str | None = None
    executed: bool = True
    finished: Any = None


def take_in(using: str, events: Sequence[int]) -> Ends:
    """Write what became of the children into the records that wait for them; the caller holds the rows of the parents, and
    marks as delivered what this gives as such. A record that does not wait any more stays as it is."""
    ends = Ends()
    told = _told(using, events)
    known = _known(using, {said["step"] for _event, _parent, said in told})
    joined: dict[int, list[tuple[int, Record, Child]]] = defaultdict(list)
    single: list[tuple[Record, Child]] = []
    for event, parent, said in told:
        record, child = known.pop(said["step"], (None, None))
        if record is not None and (child is None or child.pk < said["child"]):
            child = Child(said["child"], said["workflow"], said["instance_id"], family.DELETED)
        if record is None or child is None or record.parent != parent or not _ended(child, said):
            ends.delivered.append(event)
            if record is not None and child is not None:
                known[record.pk] = (record, child)  # another message may be the one
        elif record.join is not None:
            joined[record.join].append((event, record, child))
        else:
            single.append((record, child))
            ends.delivered.append(event)
    if single:
        ends.wake |= {record.parent for record, _child in _settle(using, single)}
    for join, those in sorted(joined.items()):
        _join(using, join, those, ends)
    return ends


def _ended(child: Child, said: Mapping[str, Any]) -> bool:
    """Whether the child of the message has ended, and no other was started in its place since. One that goes on again will tell
    when it ends."""
    return child.pk == said["child"] and child.status in _ENDS


_ENDS: Final = frozenset({*FINISHED, family.DELETED})


def _told(using: str, events: Sequence[int]) -> list[tuple[int, int, Mapping[str, Any]]]:
    """Key, parent and content of each message, in the order in which they were sent; what cannot be read says nothing."""
    among, params = any_of(using, "id", events)
    found: list[tuple[int, int, Mapping[str, Any]]] = []
    for event, parent, payload in run(
        using, f"SELECT id, instance_id, payload FROM {SENT} WHERE {among} ORDER BY id", params
    ):
        try:
            said = codec.loads(payload)
            found.append((event, parent, {**_NOTHING, **said}))
        except (CodecError, TypeError):
            found.append((event, parent, _NOTHING))
    return found


_NOTHING: Final = {"child": 0, "step": 0, "workflow": "", "instance_id": "", "status": ""}


def _known(using: str, steps: set[int]) -> dict[int, tuple[Record, Child | None]]:
    """Those of these records that wait, each with the child that was started last for it, if its row is there."""
    among, params = any_of(using, "s.id", sorted(steps))
    sql = f"""SELECT s.id, s.instance_id, s.run_number, s.scope, s.kind, s.name, s.count, s.config, c.id, c.workflow, c.instance_id,
            c.status, CASE WHEN c.status = '{Status.ERRORED.value}' THEN c.error END, c.execution, c.finished
        FROM {STEP} AS s LEFT JOIN {INSTANCE} AS c ON c.parent_step_id = s.id
        WHERE {among} AND s.status = 'pending' AND s.kind = '{StepKind.CHILD.value}' ORDER BY c.id"""
    found: dict[int, tuple[Record, Child | None]] = {}
    for (
        pk,
        parent,
        run_number,
        *identity,
        config,
        child,
        workflow,
        instance_id,
        status,
        error,
        execution,
        finished,
    ) in run(using, sql, params):
        record = Record(pk, parent, run_number, Identity(*identity), _config(config).get("join"))
        if child is None:
            found[pk] = (record, None)
        else:
            found[pk] = (record, Child(child, workflow, instance_id, status, error, execution > 0, finished))
    return found


def _config(text: str | None) -> dict[str, Any]:
    """What a record says of its call; nothing where it cannot be read: its parent is blocked for that, and nobody else."""
    try:
        return dict(codec.loads(text or "{}"))
    except (CodecError, TypeError, ValueError):
        return {}


def _settle(using: str, those: Sequence[tuple[Record, Child]]) -> list[tuple[Record, Child]]:
    """Write the outcomes into the records, each with the moment at which the child had ended, and a history entry of the parent
    each; those that were written."""
    now, at = now_of(using)
    complete = [child.pk for _record, child in those if child.status == Status.COMPLETE]
    written: set[int] = set()
    if complete:
        among, params = any_of(using, "c.id", complete)
        # What a child that somebody deletes at this moment has said is gone with it; the deletion tells in its turn.
        sql = f"""UPDATE {STEP} AS s SET status = 'complete', output = COALESCE(c.output, 'null'), error = NULL,
                finished = COALESCE(c.finished, {now}), wake_at = NULL FROM {INSTANCE} AS c
            WHERE {among} AND c.parent_step_id = s.id AND c.status = 'complete' AND s.status = 'pending'
            RETURNING {"s.id" if is_postgres(using) else "id"}"""
        written |= {pk for (pk,) in run(using, sql, [*at, *params])}
    for record, child in those:
        if child.status != Status.COMPLETE:
            cast = "%s::timestamptz" if is_postgres(using) else "%s"
            sql = f"""UPDATE {STEP} SET status = 'failed', error = %s, finished = COALESCE({cast}, {now}), wake_at = NULL
                WHERE id = %s AND status = 'pending' RETURNING id"""
            written |= {pk for (pk,) in run(using, sql, [_failure(record, child), child.finished, *at, record.pk])}
    done = [(record, child) for record, child in those if record.pk in written]
    if done:
        _tell(using, done)
    return done


def _failure(record: Record, child: Child) -> str:
    """What the parent's call raises, as it is stored: ``WorkflowFailed``, with the child's own error as its cause."""
    error: dict[str, Any] | None = None
    cause: Exception | None = None
    if child.error is not None:
        try:
            described = codec.loads(child.error)
            error, cause = failures.public(described), failures.rebuild(described)
            error["traceback"] = str(error["traceback"])[-TRACEBACK:]
        except (CodecError, AttributeError, TypeError):
            error = {"type": "Unreadable", "message": "its error cannot be read", "traceback": "", "step": ""}
    raised = failed(child.workflow, child.instance_id, child.status, error)
    raised.__cause__ = cause
    return codec.dumps(failures.describe(raised, step=record.identity.label))


def _tell(using: str, those: Sequence[tuple[Record, Child]]) -> None:
    now, at = now_of(using)
    entries = json.dumps(
        [
            [
                record.parent,
                record.run_number,
                record.identity.label,
                codec.dumps({"workflow": child.workflow, "instance_id": child.instance_id, "status": child.status}),
            ]
            for record, child in those
        ]
    )
    if is_postgres(using):
        values, source = "(x->>0)::bigint, (x->>1)::int, {}, x->>2, x->>3", "json_array_elements(%s::json) AS x"
    else:
        values = ", ".join(["json_extract(x.value, '$[0]')", "json_extract(x.value, '$[1]')", "{}"])
        values += ", json_extract(x.value, '$[2]'), json_extract(x.value, '$[3]')"
        source = "json_each(%s) AS x"
    sql = f"""INSERT INTO {HISTORY} (instance_id, run_number, type, kind, step, data, actor_name, via, reason, at)
        SELECT {values.format(f"'child_finished', '{StepKind.CHILD.value}'")}, '', 'engine', '', {now} FROM {source}"""
    run(using, sql, [*at, entries])


# Joins -------------------------------------------------------------------------------------------------------------------


def _join(using: str, join: int, those: Sequence[tuple[int, Record, Child]], ends: Ends) -> None:
    """The ends of several children of one join."""
    rows = run(
        using,
        f"SELECT instance_id, run_number, scope, kind, name, count, config, attempts FROM {STEP} WHERE id = %s AND status = 'pending'",
        [join],
    )
    if not rows:
        ends.delivered += [event for event, _record, _child in those]
        return
    parent, run_number, *identity, config, reached = rows[0]
    windowed = _config(config).get("window") is not None
    following: list[int] = []
    if windowed:
        # A child that was never let go makes no room. They are let go in order, so that the last position tells which those are.
        room = sum(child.executed or record.identity.count <= reached for _event, record, child in those)
        candidates = _parked(using, parent, run_number, Identity(*identity), reached, room)
        following = _held(using, [pk for pk, _position in candidates])
        if len(following) < len(candidates):  # somebody is at work on one of them: all of this a moment later
            ends.kept = True
            return
        if candidates:
            reached = candidates[-1][1]
    done = _settle(using, [(record, child) for _event, record, child in those])
    sql = f"UPDATE {STEP} SET remaining = remaining - %s, attempts = %s WHERE id = %s RETURNING remaining"
    ((remaining,),) = run(using, sql, [len(done), reached, join])
    if following:
        _let_go(using, following)
    if remaining <= 0:
        ends.wake.add(parent)
    ends.delivered += [event for event, _record, _child in those]


def fill(using: str, join: int) -> None:
    """Let parked children of a join go for which its window has room. The caller holds the parent's row; unlike a delivery it
    waits for theirs."""
    rows = run(
        using, f"SELECT instance_id, run_number, scope, kind, name, count, config FROM {STEP} WHERE id = %s", [join]
    )
    parent, run_number, *identity, config = rows[0]
    window = _config(config).get("window")
    if window is None:
        return
    own = Identity(*identity)
    room = window - _running(using, parent, run_number, own)
    following = _parked(using, parent, run_number, own, 0, max(room, 0))
    if following:
        _let_go(using, [pk for pk, _position in following])


def _running(using: str, parent: int, run_number: int, join: Identity) -> int:
    """How many children of a join have been let go and have not ended."""
    sql = f"""
        SELECT count(*) FROM (
            SELECT id FROM {STEP} WHERE instance_id = %s AND run_number = %s AND scope = %s AND kind = '{StepKind.CHILD.value}'
                AND name = %s AND status = 'pending') AS s
        JOIN {INSTANCE} AS c ON c.parent_step_id = s.id WHERE c.finished IS NULL AND c.hold <> '{Hold.WINDOW.value}'"""
    ((found,),) = run(using, sql, [parent, run_number, inner(join), join.name])
    return int(found)


def _parked(using: str, parent: int, run_number: int, join: Identity, reached: int, most: int) -> list[tuple[int, int]]:
    """The next children of a join that wait for their turn, with their positions."""
    sql = f"""
        SELECT c.id, s.count FROM {STEP} AS s JOIN {INSTANCE} AS c ON c.parent_step_id = s.id
        WHERE s.instance_id = %s AND s.run_number = %s AND s.scope = %s AND s.kind = '{StepKind.CHILD.value}' AND s.name = %s
            AND s.count > %s AND s.status = 'pending' AND c.hold = '{Hold.WINDOW.value}' AND c.wake_at IS NULL
        ORDER BY s.count LIMIT %s"""
    return [(pk, count) for pk, count in run(using, sql, [parent, run_number, inner(join), join.name, reached, most])]


def _held(using: str, pks: Sequence[int]) -> list[int]:
    """Those of parked children that could be locked at once."""
    if not pks:
        return []
    among, params = any_of(using, "id", pks)
    lock = "FOR NO KEY UPDATE SKIP LOCKED" if is_postgres(using) else ""
    sql = f"SELECT id FROM {INSTANCE} WHERE {among} AND hold = '{Hold.WINDOW.value}' ORDER BY id {lock}"
    return [pk for (pk,) in run(using, sql, params)]


def _let_go(using: str, pks: Sequence[int]) -> None:
    """Parked children become due; what their workflow's ``max_duration`` gives them begins now. One that is paused has its turn
    all the same, and becomes due when it is resumed: its time stands still from ``paused_at`` on."""
    among, params = any_of(using, "id", pks)
    now = clock.read(using)
    cast = "%s::timestamptz" if is_postgres(using) else "%s"
    sql = f"""UPDATE {INSTANCE} SET wake_at = CASE WHEN status = '{Status.PAUSED.value}' THEN NULL ELSE {cast} END, hold = ''
        WHERE {among}"""
    run(using, sql, [stored(using, now), *params])
    sql = f"SELECT id, created, deadline_at, paused_at FROM {INSTANCE} WHERE {among} AND deadline_at IS NOT NULL"
    for pk, created, deadline, paused in run(using, sql, params):
        begun, until, begins = moment(created), moment(deadline), moment(paused) or now
        if begun is not None and until is not None:
            sql = f"UPDATE {INSTANCE} SET deadline_at = %s WHERE id = %s"
            run(using, sql, [stored(using, until + (begins - begun)), pk])

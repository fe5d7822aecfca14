"""``gather`` and ``map`` of an ``async def run`` (design 7): their branches are tasks of the loop.

Records, scopes, errors and results are those of the groups of a plain ``run`` (``gathering``). A branch that waits is not run
again from its beginning: it stays where it is.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from durableflow.authoring.calls import Call
from durableflow.authoring.group_calls import GatherCall, MapCall
from durableflow.core.exceptions import InvalidConfig
from durableflow.engine import scopes
from durableflow.engine.asyncbody import CANCEL_SECONDS
from durableflow.engine.asynccalls import Calls, DurableCall, turn_of
from durableflow.engine.branch import Branch
from durableflow.engine.desk import NEW, Turn, recorded
from durableflow.engine.execution import Execution
from durableflow.engine.gathering import Plan, plan_gather, plan_map
from durableflow.engine.journal import Identity, Record
from durableflow.engine.replay import Scope
from durableflow.engine.seats import Places, Seat, current_seat

PLANS: Final[dict[type[Call], Callable[..., Plan]]] = {GatherCall: plan_gather, MapCall: plan_map}


class Asker(Protocol):
    """What a group needs of its run."""

    execution: Execution
    calls: Calls

    async def ask(
        self,
        made: DurableCall,
        turn: Turn,
        scope: Scope,
        identity: Identity | None,
        record: Record | None,
        work: Callable[[], Any],
    ) -> Any:
        """Have the instance's thread do ``work``."""
        ...


async def settle(
    run: Asker, made: DurableCall, scope: Scope, identity: Identity, record: Record | None, call: GatherCall | MapCall
) -> Any:
    """What the group returns or raises, as in a plain ``run``."""
    # A dry replay looks into what has begun before a recorded failure cuts it off: there may be something to undo.
    turn = recorded() if record is not None and (record.finished or run.execution.dry) else NEW
    begin = partial(_begin, run.execution, scope, identity, call)
    plan = await run.ask(made, turn, scope, identity, record, begin)
    if record is not None and record.finished and isinstance(call, MapCall):
        turn = _after_items(run.execution, identity)
    while True:
        branches, value = await run.ask(made, turn, scope, None, None, partial(_next, plan))
        if branches is None:
            return value
        await _run_all(run, branches, identity, call.concurrency)


def _after_items(execution: Execution, identity: Identity) -> Turn:
    """A recorded map is over when the last of its items was."""
    inner = scopes.inner(identity)
    ended = [record.ended for record in execution.replay.records.values() if record.identity.scope == inner]
    return recorded(1, max((number for number in ended if number is not None), default=0))


def _begin(execution: Execution, scope: Scope, identity: Identity, call: GatherCall | MapCall) -> Plan:
    """In the instance's thread."""
    execution.note(scope, identity, call)
    record = execution.replay.meet(scope, identity)
    if record is None or not record.finished:
        execution.claim.uncharged = False  # bodies of branches have start marks of their own
    return PLANS[type(call)](execution, identity, record, call)


def _next(plan: Plan) -> tuple[list[Branch] | None, Any]:
    """In the instance's thread: what has to be settled next, or the value."""
    try:
        branches, _replayed = next(plan)
    except StopIteration as over:
        return None, over.value
    return branches, None


async def _run_all(run: Asker, branches: list[Branch], identity: Identity, concurrency: int | None) -> None:
    most = 1 if run.execution.interrupted else concurrency
    places = None if most is None else Places(most)
    loop = asyncio.get_running_loop()
    tasks = []
    for branch in branches:
        task = loop.create_task(_run_branch(run, branch, identity, places))
        run.calls.root(task)  # its scope is its own
        tasks.append(task)
    try:
        await asyncio.wait(tasks)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=CANCEL_SECONDS)
        raise
    for task in tasks:
        task.result()  # CancelledError of a branch that its own code has cancelled


async def _run_branch(run: Asker, branch: Branch, identity: Identity, places: Places | None) -> None:
    seat = current_seat.get()
    own = None if places is None else Seat(places, seat)
    if own is not None:
        current_seat.set(own)
        await own.take()
    root = run.execution.replay.root
    scope = run.execution.replay.branch(branch.scope, root.owner, root.wrappers, only=branch.only)
    scopes.current.set(scope)
    try:
        if branch.only is None:
            branch.value = await awaitable(branch.run(scope), branch.scope, identity)
        else:
            branch.value = await _item(run, branch, branch.only, scope)
    except Exception as error:
        branch.error = error
    finally:
        if run.calls.cancelled:
            scope.forgive()
        if own is not None:
            own.leave()


def awaitable(found: Any, branch: str, identity: Identity) -> Any:
    """What a branch of this scope has returned. Raises InvalidConfig if it cannot be awaited."""
    if not inspect.isawaitable(found):
        raise InvalidConfig(
            f"step {identity.name!r}: branch {branch!r} returned {found!r}, which cannot be awaited. Give functions that "
            "return something to await: async functions, or lambda: step.do(...).",
            step=identity.name,
            field="branches",
        )
    return found


def _item(run: Asker, branch: Branch, identity: Identity, scope: Scope) -> DurableCall:
    """One step of a map."""
    record = run.execution.replay.records.get(identity)
    work = partial(branch.run, scope)
    return run.calls.new(
        f"{identity.kind} {identity.label!r}",
        lambda made: run.ask(made, turn_of(record), scope, identity, record, work),
    )

"""``race`` of an ``async def run`` (design 7): its branches are tasks of the loop, until each has made the call at which it waits.

Then the instance's thread opens the waits and decides, as for a race of a plain ``run`` (``racing``). The winner's branch runs
again, over what is recorded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from durableflow.authoring.calls import Call
from durableflow.authoring.group_calls import RaceCall
from durableflow.authoring.undo import Winner
from durableflow.engine import scopes
from durableflow.engine.asyncbody import CANCEL_SECONDS
from durableflow.engine.asynccalls import DurableCall
from durableflow.engine.asyncgroups import Asker, awaitable
from durableflow.engine.desk import NEW, recorded
from durableflow.engine.execution import Execution
from durableflow.engine.gathering import begin
from durableflow.engine.journal import Identity, Record
from durableflow.engine.racing import Entrant, check_met, check_names, entrants_of, settle, winner_of
from durableflow.engine.replay import Scope


@dataclass(eq=False)
class Visit:
    """One branch up to its call. ``made``: what it has called; ``error``: what it raised before."""

    entrant: Entrant
    made: list[tuple[Identity, Call]] = field(default_factory=list)
    error: Exception | None = None

    def pay(self, execution: Execution, scope: Scope) -> None:
        """In the instance's thread: what the branch did, once more."""
        if self.error is not None:
            raise self.error
        for identity, call in self.made:
            self.entrant.check(execution, identity, call)  # a second one is refused
        for identity, call in self.made[:1]:
            execution.answer_as(scope, identity, call)


async def race(
    run: Asker, made: DurableCall, scope: Scope, identity: Identity, record: Record | None, call: RaceCall
) -> Winner[Any]:
    """The winner, or its error is raised, as in a plain ``run``."""
    execution = run.execution
    turn = recorded() if record is not None and record.finished else NEW
    record = await run.ask(made, turn, scope, identity, record, partial(_begin, execution, scope, identity, call))
    if not record.finished:
        entrants = entrants_of(identity, call, decided=False)
        visits = {entrant.name: await _visit(run, entrant, identity) for entrant in entrants}
        decide = partial(_decide, execution, scope, record, entrants, visits)
        await run.ask(made, NEW, scope, None, None, decide)
    winner = await run.ask(made, turn, scope, None, None, partial(winner_of, execution, identity, record, call))
    value = await _run(run, winner, identity)
    await run.ask(made, turn, scope, None, None, partial(check_met, execution, winner))
    return Winner(winner.name, value)


def _begin(execution: Execution, scope: Scope, identity: Identity, call: RaceCall) -> Record:
    execution.note(scope, identity, call)
    known = execution.replay.meet(scope, identity)
    names = list(call.branches)
    record = begin(execution, identity, known, {"branches": names})
    if not record.finished:
        execution.claim.uncharged = False  # nothing was in a body when the worker was lost
        check_names(execution, identity, record, names)
    return record


def _decide(
    execution: Execution, scope: Scope, record: Record, entrants: list[Entrant], visits: dict[str, Visit]
) -> None:
    if not record.finished:
        settle(execution, scope, record, entrants, lambda entrant, own: visits[entrant.name].pay(execution, own))


async def _visit(run: Asker, entrant: Entrant, identity: Identity) -> Visit:
    """Run a branch until it waits, and cancel it there."""
    visit = Visit(entrant)
    called = asyncio.Event()

    def note(identity: Identity, call: Call) -> None:
        visit.made.append((identity, call))
        called.set()

    task = _task(run, entrant, identity, note)
    waits = asyncio.ensure_future(called.wait())
    try:
        await asyncio.wait({task, waits}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        run.calls.dismiss(waits)
        run.calls.dismiss(task)
        if not task.done():
            await asyncio.wait({task}, timeout=CANCEL_SECONDS)
    if not visit.made and task.done() and not task.cancelled() and isinstance(task.exception(), Exception):
        visit.error = task.exception()  # type: ignore[assignment]
    return visit


async def _run(run: Asker, entrant: Entrant, identity: Identity) -> Any:
    """Run the winner's branch to its end."""
    task = _task(run, entrant, identity, None)
    try:
        return await task
    finally:
        run.calls.dismiss(task)


def _task(
    run: Asker, entrant: Entrant, identity: Identity, note: Callable[[Identity, Call], None] | None
) -> asyncio.Task[Any]:
    root = run.execution.replay.root
    scope = run.execution.replay.branch(entrant.scope, root.owner, root.wrappers)
    scope.entrant = entrant
    run.calls.enter(scope, note)

    async def branch() -> Any:
        scopes.current.set(scope)
        return await awaitable(entrant.branch(), entrant.scope, identity)

    task = asyncio.get_running_loop().create_task(branch())
    run.calls.root(task)
    return task

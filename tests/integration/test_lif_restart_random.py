"""Random programs that fail, take too long, are terminated and paused, and are restarted from random steps, retried and completed by
hand at random moments, and come to the same end (design 6, 9)."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from durableflow import AsyncStep, InvalidTransition, Retries, Step, Workflow, WorkflowEvent, get_step_context
from durableflow.models import WorkflowInstance
from tests.integration.chd_flows import Child
from tests.integration.conftest import StoppedClock
from tests.support.engine import drained

pytestmark = pytest.mark.django_db(transaction=True)
Status = WorkflowInstance.Status
Node = tuple[Any, ...]
FIRST = int(os.environ.get("DURABLEFLOW_RESTART_FIRST", "0"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("DURABLEFLOW_RESTART_SEEDS", "6")))
"""More of them, and other ones: for a long search by hand."""
STEPS = 60
AGAIN = Retries(limit=50, delay=30)


class World:
    """What runs, what fails now and then, and what must not run again since it is kept."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.kept: set[str] = set()
        self.names = 0

    def name(self, kind: str) -> str:
        self.names += 1
        return f"{kind}{self.names}"

    def program(self, depth: int = 0) -> list[Node]:
        return [self.node(depth) for _ in range(self.random.randint(1, 3))]

    def node(self, depth: int) -> Node:
        kinds = ["do", "do", "once", "sleep", "wait", "race", "work", "map", "child", "children"]
        kind = self.random.choice([*kinds, *(["gather"] * 4 if depth < 2 else [])])
        inner = [self.program(depth + 1) for _ in range(self.random.randint(2, 3))] if kind == "gather" else []
        return (kind, self.name(kind), inner)

    def keep(self, row: WorkflowInstance) -> Any:
        """What is complete now must not run again."""
        kept = row.steps.filter(run_number=row.run_number, kind="do", status="complete")
        self.kept = {f"{step.name}-{step.count}" for step in kept}
        return kept

    def body(self, value: str) -> str:
        context = get_step_context()
        assert f"{context.name}-{context.count}" not in self.kept, "it is kept"
        if self.random.random() < 0.25:
            raise OSError("now and then")
        return value


def expected(program: list[Node]) -> list[Any]:
    found: list[Any] = []
    for kind, name, inner in program:
        if kind == "gather":
            found.append([expected(branch) for branch in inner])
        else:
            found.append({"sleep": None, "map": [f"{name}{n}" for n in range(3)], "children": [1, 2]}.get(kind, name))
    return found


def interpret(world: World, step: Step, program: list[Node]) -> list[Any]:
    found: list[Any] = []
    for kind, name, inner in program:
        if kind in ("do", "once"):
            found.append(step.do(name, world.body, name, retries=AGAIN if kind == "do" else 0))
        elif kind == "sleep":
            found.append(step.sleep(name, 60))
        elif kind == "wait":
            found.append(step.wait_for_event(name, type=name, timeout=None).payload)
        elif kind == "race":
            branches = {
                which: partial(step.wait_for_event, f"{name}{which}", type=f"{name}{which}", timeout=None)
                for which in ("left", "right")
            }
            found.append(step.race(name, **branches).value.payload)
        elif kind == "work":
            body = partial(step.run_workflow, f"{name}left", Child, {"n": name})
            found.append(step.race(name, left=body, right=partial(step.sleep, f"{name}right", "1 day")).value)
        elif kind == "map":
            found.append(step.map(name, world.body, [f"{name}{n}" for n in range(3)], retries=AGAIN, concurrency=2))
        elif kind == "child":
            found.append(step.run_workflow(name, Child, {"n": name}))
        elif kind == "children":
            found.append(step.run_workflows(name, Child, [{"n": 1}, {"n": 2}], concurrency=1))
        else:
            branches_of = [partial(interpret, world, step, branch) for branch in inner]
            found.append(list(step.gather(name, *branches_of)))
    return found


async def interpret_async(world: World, step: AsyncStep, program: list[Node]) -> list[Any]:
    found: list[Any] = []
    for kind, name, inner in program:
        if kind in ("do", "once"):
            found.append(await step.do(name, world.body, name, retries=AGAIN if kind == "do" else 0))
        elif kind == "sleep":
            found.append(await step.sleep(name, 60))
        elif kind == "wait":
            found.append((await step.wait_for_event(name, type=name, timeout=None)).payload)
        elif kind == "race":
            branches = {
                which: partial(step.wait_for_event, f"{name}{which}", type=f"{name}{which}", timeout=None)
                for which in ("left", "right")
            }
            found.append((await step.race(name, **branches)).value.payload)
        elif kind == "work":
            body = partial(step.run_workflow, f"{name}left", Child, {"n": name})
            found.append((await step.race(name, left=body, right=partial(step.sleep, f"{name}right", "1 day"))).value)
        elif kind == "map":
            found.append(
                await step.map(name, world.body, [f"{name}{n}" for n in range(3)], retries=AGAIN, concurrency=2)
            )
        elif kind == "child":
            found.append(await step.run_workflow(name, Child, {"n": name}))
        elif kind == "children":
            found.append(await step.run_workflows(name, Child, [{"n": 1}, {"n": 2}], concurrency=1))
        else:
            branches_of = [partial(interpret_async, world, step, branch) for branch in inner]
            found.append(list(await step.gather(name, *branches_of)))
    return found


def go_on(world: World, row: WorkflowInstance, clock: StoppedClock) -> None:
    """Something happens: a wait is answered, or time passes."""
    waits = list(row.pending_events.filter(status="open").order_by("id"))
    if waits and world.random.random() < 0.7:
        wait = world.random.choice(waits)
        row.send_event(wait.name, wait.name.removesuffix("left").removesuffix("right"))
    else:
        clock.advance(world.random.choice([30, 60]))
    if world.random.random() < 0.8:
        drained(row)


def restart(world: World, row: WorkflowInstance) -> None:
    """From any record that is one to restart from."""
    row.refresh_from_db()
    steps = list(row.steps.filter(run_number=row.run_number))
    if row.status == Status.QUEUED or not steps:
        return
    if row.status == Status.WAITING and world.random.random() < 0.3:
        row.pause() if world.random.random() < 0.5 else row.terminate()
    step = world.random.choice(steps)
    try:
        row.restart(from_step=step)
    except ValueError as refused:
        assert "has started together" in str(refused)
        return
    assert not world.keep(row).filter(pk=step.pk).exists()


def repair(world: World, row: WorkflowInstance) -> None:
    """An errored instance goes on: all that has failed runs again, or is given a result."""
    failed = list(row.steps.filter(run_number=row.run_number, kind="do", status="failed"))
    if failed and world.random.random() < 0.5:
        step = world.random.choice(failed)
        try:
            row.complete_step(step, step.name.removesuffix("left"))
        except InvalidTransition as refused:  # its error was overtaken: max_duration ended the instance
            assert row.error and row.error["type"] == "durableflow.WorkflowTimeout", refused
            row.retry()
    else:
        row.retry()
    world.keep(row)


def live(world: World, row: WorkflowInstance, clock: StoppedClock) -> int:
    """Go on and restart for a while, then go on to the end; how often it was restarted."""
    for number in range(STEPS * 20):
        if number < STEPS and world.random.random() < 0.25:
            restart(world, row)
        row.refresh_from_db()
        if row.status in (Status.PAUSED, Status.TERMINATED):
            assert not row.blocked, row.blocked
            row.resume() if row.status == Status.PAUSED else row.restart()
            world.kept = (
                set() if row.run_number and not row.steps.filter(run_number=row.run_number).exists() else world.kept
            )
        if row.status == Status.COMPLETE and number >= STEPS:
            break
        if row.status == Status.ERRORED:
            repair(world, row)
        if row.status != Status.COMPLETE:
            go_on(world, row, clock)
    return row.run_number


def check(world: World, program: list[Node], row: WorkflowInstance, clock: StoppedClock) -> None:
    drained(row)
    assert live(world, row, clock) > 1, "nothing was tried"
    row.refresh_from_db()
    assert (row.status, row.output, row.error) == (Status.COMPLETE, expected(program), None)
    assert not row.pending_events.filter(status="open").exists()
    assert not row.steps.exclude(status__in=["complete", "failed", "cancelled"]).exists()
    clock.advance("1 day")
    drained(row)
    children = WorkflowInstance.objects.filter(workflow="chd-child")
    assert not children.exclude(status__in=["complete", "terminated"]).exists(), "no child is left behind"


Make = Callable[[World, list[Node]], type[Workflow[Any, Any]]]


def sync_flow(world: World, program: list[Node]) -> type[Workflow[Any, Any]]:
    class RandomFlow(Workflow[Any, Any]):
        class Meta:
            name = "restart-random"
            max_duration = "20 minutes"

        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            return interpret(world, step, program)

    return RandomFlow


def async_flow(world: World, program: list[Node]) -> type[Workflow[Any, Any]]:
    class RandomAsync(Workflow[Any, Any]):
        class Meta:
            name = "restart-random-async"
            max_duration = "20 minutes"

        async def run(self, event: WorkflowEvent[Any], step: AsyncStep) -> Any:
            return await interpret_async(world, step, program)

    return RandomAsync


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("make", [sync_flow, async_flow])
def test_every_restart_comes_to_the_same_end(make: Make, seed: int, stopped_clock: StoppedClock) -> None:
    """What is kept never runs again, the replay always agrees with it, and nothing is left open anywhere."""
    world = World(seed)
    program = world.program()
    check(world, program, make(world, program).create(), stopped_clock)

"""Random programs with children, people, races, groups and rollbacks, whose workers die and to which anything is done at any moment,
come to the end that they would have come to alone (design 1, 6, 7, 9)."""

from __future__ import annotations

import os
from typing import Any

import pytest

from durableflow import AsyncStep, Retries, Step, Workflow, WorkflowEvent
from tests.integration.conftest import StoppedClock
from tests.integration.repair_programs import aplay, play
from tests.integration.repair_world import RepairWorld

pytestmark = pytest.mark.django_db(transaction=True)
FIRST = int(os.environ.get("DURABLEFLOW_REPAIR_FIRST", "0"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("DURABLEFLOW_REPAIR_SEEDS", "10")))
"""More of them, and other ones: for a long search by hand."""
THREADS = int(os.environ.get("DURABLEFLOW_REPAIR_THREADS", "0"))
"""Without threads a seed stands for one course of things."""
STEPS = 40


def define_flows(world: RepairWorld) -> None:
    """The two workflows that run a world's programs."""
    retries = Retries(limit=1, delay=30)

    class Sync(Workflow[Any, Any]):
        class Meta:
            name = "repair-random"
            max_concurrency = world.limit
            max_duration = world.duration
            step_retries = retries

        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            first, second = world.programs[event.params["program"]]
            if second is None or event.params["round"]:
                return play(world, step, second or first)
            play(world, step, first)
            step.continue_as_new({**event.params, "round": 1})

    class Async(Workflow[Any, Any]):
        class Meta:
            name = "repair-random-async"
            max_duration = world.duration
            step_retries = retries

        async def run(self, event: WorkflowEvent[Any], step: AsyncStep) -> Any:
            first, second = world.programs[event.params["program"]]
            if second is None or event.params["round"]:
                return await aplay(world, step, second or first)
            await aplay(world, step, first)
            await step.continue_as_new({**event.params, "round": 1})

    world.flows = {"sync": Sync, "async": Async}


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_is_repaired_comes_to_the_same_end(seed: int, stopped_clock: StoppedClock, settings: Any) -> None:
    """Nothing that is complete runs again, no event is read twice, nothing is stuck and nothing is left open."""
    settings.DURABLEFLOW = {**settings.DURABLEFLOW, "BRANCH_THREADS": THREADS}
    world = RepairWorld(seed, stopped_clock)
    define_flows(world)
    root = world.flows["async" if seed % 2 else "sync"].create({"program": world.root, "round": 0})
    try:
        world.live(root, STEPS)
    except BaseException:
        print("\n".join(world.log))  # noqa: T201
        raise

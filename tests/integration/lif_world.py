"""What the machine of ``lif_machine`` works on: the table of design 2, and a workflow whose bodies do what the machine says."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from hypothesis import strategies as st

from durableflow import EventTimeout, Retries, Rollback, Step, Undo, Workflow, WorkflowEvent
from durableflow.engine.interception import Interceptor
from durableflow.engine.journal import Identity
from durableflow.engine.lease import Lease
from durableflow.engine.unwind import ProcessDied
from durableflow.models import WorkflowInstance

if TYPE_CHECKING:
    from tests.integration.lif_machine import LifeMachine

USING: Final = "default"
OPEN: Final = {"queued", "running", "waiting", "waiting_for_pause", "paused", "rolling_back"}
ENDED: Final = {"complete", "errored", "terminated"}
# Design 2, "Transitions": what each verb does to each status in which it is allowed.
ALLOWED: Final[dict[str, dict[str, str]]] = {
    "pause": {"queued": "paused", "waiting": "paused", "running": "waiting_for_pause"},
    "resume": {"paused": "queued", "waiting_for_pause": "running"},
    "terminate": dict.fromkeys(OPEN - {"rolling_back"}, "terminated"),
    "retry": {"errored": "queued"},
    "restart": dict.fromkeys((OPEN | ENDED) - {"queued", "rolling_back"}, "queued"),
    "undo": dict.fromkeys(OPEN - {"rolling_back"}, "rolling_back"),
}
EVENTS_REFUSED: Final = ENDED | {"rolling_back"}
STEPS: Final = ("first", "also", "left", "right", "last")
IDS: Final = ("one", "two")

# What a body does: verbs on its own instance, then an end.
VERBS: Final = ("pause", "resume", "terminate", "undo", "restart", "send")
Plan = tuple[tuple[str, ...], str]
SEEDS: Final = st.integers(0, 10**9)
"""Of what bodies do: drawn as numbers, because what is drawn one by one is nearly always the same simple thing."""
SOME: Final = st.sampled_from(["pause", "pause", "resume", "resume", "retry", "restart", "terminate", "undo"])


def plans_of(seed: int) -> list[Plan]:
    """What the next bodies do."""
    dice = random.Random(seed)
    weights = [6, 3, 1, 1, 2, 2]
    verbs = [tuple(dice.choices(VERBS, weights, k=dice.choice([0, 0, 1, 1, 2]))) for _ in range(3)]
    return [(some, dice.choice(["fine", "fine", "fine", "fail", "die"])) for some in verbs]


which: Final = st.sampled_from(IDS)


class Script:
    """What the bodies of the next execution do, one after the other; then they are fine."""

    plans: list[Plan] = []
    machine: LifeMachine | None = None

    @classmethod
    def undo(cls, undo: Undo[str]) -> None:
        """The rollback handler of the first step."""
        cls.watched(lambda machine: machine.in_handler(undo.context.instance_id))

    @classmethod
    def body(cls, instance_id: str, name: str) -> str:
        """The body of every step."""
        return cls.watched(lambda machine: machine.in_body(instance_id, name))

    @classmethod
    def watched(cls, call: Callable[[LifeMachine], Any]) -> Any:
        """What is wrong in a body must fail the test, not the step alone."""
        machine = cls.machine
        assert machine is not None
        try:
            return call(machine)
        except AssertionError as error:
            machine.wrong.append(str(error))
            raise


class LifeModel(Workflow[dict[str, bool], Any]):
    """One of each: a retried step, a timer, a wait, branches with timers, an approval, a step that begins once."""

    class Meta:
        name = "lif-model"
        max_concurrency = 1

    def run(self, event: WorkflowEvent[dict[str, bool]], step: Step) -> Any:
        who = event.instance_id
        twice = Retries(limit=1, delay=60, backoff="constant")
        undo = Rollback(Script.undo, retries=1) if event.params["undone"] else None
        first = step.do("first", Script.body, who, "first", retries=twice, rollback=undo)
        also = step.do("also", Script.body, who, "also", retries=twice)
        step.sleep("nap", 300)
        try:
            got = step.wait_for_event("go", type="go", timeout="1 hour").payload
        except EventTimeout:
            got = "timeout"

        def left() -> str:
            step.sleep("short nap", 30)
            return step.do("left", Script.body, who, "left", retries=twice)

        both = step.gather("both", left, lambda: step.do("right", Script.body, who, "right", retries=twice))
        decision = step.wait_for_approval("ok", title="Go on?", timeout=None)
        return [[first, also], got, list(both), decision.approved, step.do("last", Script.body, who, "last", retries=0)]


def call(row: WorkflowInstance, verb: str) -> None:
    """Apply a verb, in the name that the table here has for it."""
    if verb == "undo":
        row.terminate(rollback=True)
    else:
        getattr(row, verb)()


class Mortal(Interceptor):
    """Its process dies before the checkpoint of a body that says so."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.dies = False

    def before_checkpoint(self, workflow: str, identity: Identity, attempt: int) -> None:
        """Nothing is written any more."""
        if self.dies:
            self.lease.lost = True
            raise ProcessDied(f"{self.lease.label} died")

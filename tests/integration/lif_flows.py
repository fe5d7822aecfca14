"""A saga that child processes of the tests run, and how a process dies in the middle of its rollback."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from django.conf import settings
from django.test import override_settings

from durableflow import NonRetryableError, Retries, Step, Undo, Workflow, WorkflowEvent, drain
from durableflow.engine import rollback, rollback_handlers, rollback_writes
from durableflow.engine.claims import claim
from durableflow.engine.executor import execute
from durableflow.engine.interception import PASS, Interceptor
from durableflow.engine.journal import Identity
from durableflow.models import WorkflowInstance
from tests.integration.con_flows import die
from tests.support.ledger import Ledger

MOMENTS: Final = ("begun", "between", "inside", "before_checkpoint", "after_checkpoint", "before_end", "ended")
"""Of the rollback of ``Saga``: before its first handler; before b's; in b's; after it, when nothing is written; just after
that is written; when all have run; when the instance has ended."""


def nothing() -> None:
    """Nobody dies."""


class Saga(Workflow[str, None]):
    """Three steps to undo, then a failure. Its params are a file in which its bodies and handlers note that they ran."""

    class Meta:
        name = "lif-saga"
        step_retries = Retries(limit=20, delay=0)

    in_handler_of_b: Callable[[], None] = staticmethod(nothing)

    def run(self, event: WorkflowEvent[str], step: Step) -> None:
        ledger = Ledger(event.params)

        def undo(undo: Undo[str]) -> None:
            ledger.add(f"undo {undo.output}")
            if undo.output == "B":
                self.in_handler_of_b()

        for name in "abc":
            step.do(name, lambda name=name: (ledger.add(name), name.upper())[1], rollback=undo)
        step.do("d", self.fail)

    @staticmethod
    def fail() -> None:
        raise NonRetryableError("no money")


class AtCheckpoint(Interceptor):
    """Calls ``stop`` when b's handler has returned."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self.stop = stop

    def before_checkpoint(self, _workflow: str, identity: Identity, _attempt: int) -> None:
        """See ``Interceptor``."""
        if (identity.kind, identity.name) == (rollback_handlers.KIND, "b"):
            self.stop()


def arm(moment: str, stop: Callable[[], None], patch: Callable[[Any, str, Any], None]) -> Interceptor:
    """Have ``stop`` called at this moment of the next rollback; the interceptor to execute with. ``patch``: as setattr."""

    def around(module: Any, name: str, *, before: bool, only: str = "") -> None:
        original = getattr(module, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            mine = not only or any(getattr(getattr(arg, "identity", None), "name", "") == only for arg in args)
            if before and mine:
                stop()
            result = original(*args, **kwargs)
            if not before and mine:
                stop()
            return result

        patch(module, name, wrapped)

    if moment == "begun":
        around(rollback, "roll_back", before=True)
    elif moment == "between":
        around(rollback, "_undo", before=True, only="b")
    elif moment == "inside":
        patch(Saga, "in_handler_of_b", staticmethod(stop))
    elif moment == "before_checkpoint":
        return AtCheckpoint(stop)
    elif moment == "after_checkpoint":
        around(rollback, "_undo", before=False, only="b")
    elif moment == "before_end":
        around(rollback_writes, "finish", before=True)
    elif moment == "ended":
        around(rollback_writes, "finish", before=False)
    return PASS


def run_and_die(moment: str) -> None:
    """Claim what is due, and die as kill -9 does at this moment of its rollback."""
    interceptor = arm(moment, die, setattr)
    (claimed,) = claim("default")
    execute(claimed, interceptor=interceptor)


def drain_for_ever() -> None:
    """Say that we are ready, and drain until nothing is left or somebody kills us."""
    WorkflowInstance.objects.count()
    print("ready", flush=True)  # noqa: T201
    end = time.monotonic() + 120
    with override_settings(DURABLEFLOW={**settings.DURABLEFLOW, "LEASE": 1.5}):
        while WorkflowInstance.objects.active().exists() and time.monotonic() < end:
            drain(0.2)
            time.sleep(0.005)


def drain_endlessly() -> None:
    """Drain with a program that swallows every suspension."""

    def run(_self: Saga, _event: WorkflowEvent[str], step: Step) -> None:
        while True:
            try:
                step.do("new", nothing)
                return
            except BaseException:
                pass

    Saga.run = run  # type: ignore[assignment, method-assign]
    drain(5)

"""Workflows that child processes of the tests run, and what those processes do."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from typing import Any, NoReturn

from django.contrib.auth.models import Group
from django.db.models import F

from durableflow import Retries, Step, Workflow, WorkflowEvent, drain, get_step_context
from durableflow.engine import bodies, steprun
from durableflow.engine.claims import claim
from durableflow.engine.executor import execute
from durableflow.engine.interception import Interceptor
from durableflow.models import WorkflowInstance
from tests.support.ledger import Ledger


def expire_leases() -> None:
    """Let every lease end, as if its worker had been silent for long enough."""
    leased = WorkflowInstance.objects.filter(lease_token__isnull=False)
    leased.update(wake_at=F("created") - timedelta(hours=1), suspect=True)


def note(path: str) -> str:
    """Count a body in a file: instance, step, attempt, process, idempotency key."""
    context = get_step_context()
    Ledger(path).add(f"{context.instance_id} {context.name} {context.attempt} {os.getpid()} {context.idempotency_key}")
    return context.idempotency_key


class Booking(Workflow[dict[str, Any], str]):
    """One atomic step that writes in the app's database."""

    class Meta:
        name = "con-booking"
        step_retries = Retries(limit=3, delay=0)

    def run(self, event: WorkflowEvent[dict[str, Any]], step: Step) -> str:
        return step.do("book", self.book, str(event.params["ledger"]), atomic=True)

    def book(self, path: str) -> str:
        note(path)
        return Group.objects.create(name="booked").name


class Charging(Workflow[dict[str, Any], str]):
    """One step with an effect outside of the database."""

    class Meta:
        name = "con-charging"
        step_retries = Retries(limit=3, delay=0)

    def run(self, event: WorkflowEvent[dict[str, Any]], step: Step) -> str:
        return step.do("charge", note, str(event.params["ledger"]))


class Steps(Workflow[dict[str, Any], int]):
    """As many steps as its params say, each counted in a file."""

    class Meta:
        name = "con-steps"

    def run(self, event: WorkflowEvent[dict[str, Any]], step: Step) -> int:
        for number in range(int(event.params["steps"])):
            step.do(f"step {number}", note, str(event.params["ledger"]))
        return int(event.params["steps"])


def die(*_args: Any) -> NoReturn:
    """As kill -9 does: no handler, no ``finally``, no COMMIT."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


class Killer(Interceptor):
    """Ends the process after the body, before anything is written."""

    def before_checkpoint(self, *_args: Any) -> None:
        die()


def run_and_die(moment: str) -> None:
    """Claim what is due, and die at ``moment`` of its first step."""
    if moment == "before_commit":  # of an atomic step: the checkpoint is written, not committed
        write = steprun.write_step

        def write_and_die(*args: Any) -> None:
            write(*args)
            die()

        steprun.write_step = write_and_die  # type: ignore[assignment]
    if moment == "after_commit":
        bodies.BodyRun.run = _after(bodies.BodyRun.run)  # type: ignore[method-assign]
    (claimed,) = claim("default")
    execute(claimed, interceptor=Killer() if moment == "before_checkpoint" else Interceptor())


def _after(run: Any) -> Any:
    def wrapped(self: Any, body: Any) -> None:
        run(self, body)
        die()

    return wrapped


def drain_until(count: str) -> None:
    """Say that we are ready, wait for the word, and drain until so many instances have ended."""
    WorkflowInstance.objects.count()
    print("ready", flush=True)  # noqa: T201
    input()
    end = time.monotonic() + 60
    while WorkflowInstance.objects.finished().count() < int(count) and time.monotonic() < end:
        drain(0.2)


def quick(body: Any = lambda: "done") -> type[Workflow[Any, Any]]:
    class Quick(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            return step.do("a", body)

    return Quick


def state(row: WorkflowInstance) -> tuple[str, Any]:
    row.refresh_from_db()
    return row.status, row.output

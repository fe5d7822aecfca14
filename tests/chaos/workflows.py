"""The instances of the chaos test: twenty steps of all kinds, in an order of their own.

Each body tells the ledger that it starts and that it ends. ``nonce``: a random name of that start; it is what the body
returns (or the message of its error), so that the checkpoint says which start it came from. ``seen``: the nonce that
the program had of the step before. A ``fork`` is two bodies side by side; a ``child`` is a workflow of one body, which writes in
its parent's name.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, TypedDict
from uuid import uuid4

from django.db import connection

from durableflow import (
    AsyncStep,
    NonRetryableError,
    Retries,
    Step,
    WorkerLost,
    Workflow,
    WorkflowEvent,
    get_step_context,
)
from tests.support.ledger import Ledger

NOTES: Final = ("note-a", "note-b")
"""The payloads that the driver sends to each instance, in this order, each twice."""
KINDS: Final = (
    ["do"] * 6
    + ["fork", "child"]
    + ["flaky"] * 3
    + ["sleep"] * 2
    + ["atomic"] * 2
    + ["event"] * 2
    + ["approval", "once", "caught"]
)
MENDED_KINDS: Final = ["breaks", "swallowed", *KINDS[1:11], *KINDS[12:]]
"""The same, but one step fails until a person retries it, and one sleep is swallowed until the code is mended."""
SLOTS: Final = int(os.environ.get("CHAOS_SLOTS", "2"))
LOST: Final = "lost"
"""What a step that starts once gives if its worker died in it."""
NAP: Final = 0.2
ARMS: Final = "ab"
"""The branches of a fork: what is put behind its name."""
SHORT: Final = (0.0, 0.05)
LONG: Final = (0.2, 1.0)
LONG_SHARE: Final = 0.1
PATIENT: Final = Retries(limit=200, delay=0.2, backoff="constant", jitter=0)


class Params(TypedDict):
    """``number``: the seed of the plan; ``ledger``: the file that bodies write to."""

    number: int
    ledger: str


def plan(number: int) -> list[str]:
    """The kinds of the steps of an instance, in order: the twenty of its workflow, shuffled."""
    kinds = list(workflow_of(number).kinds)
    random.Random(number).shuffle(kinds)
    return kinds


def label(position: int, kind: str) -> str:
    """The name of a step."""
    return f"{position:02}-{kind}"


class Body:
    """One attempt of one step: tells of its start and end, takes a moment, and gives its nonce."""

    def __init__(self, ledger: str, seen: Any, of: tuple[str, str] | None = None) -> None:
        context = get_step_context()
        self.nonce = uuid4().hex[:12]
        self.attempt = context.attempt
        self.instance, self.name = of or (context.instance_id, context.name)
        self._ledger, self._seen = Ledger(ledger), seen
        self.run_number = context.run_number
        self.tell("start")

    def tell(self, what: str) -> None:
        """Append a line: one write, so that the order of the lines is the order of what happened."""
        entry = {"what": what, "instance": self.instance, "run": self.run_number, "step": self.name}
        entry |= {"attempt": self.attempt}
        entry |= {"nonce": self.nonce, "seen": self._seen, "pid": os.getpid(), "thread": threading.get_ident()}
        self._ledger.add(json.dumps(entry))

    def work(self) -> str:
        """Take a moment, so that a kill can hit; the nonce."""
        time.sleep(random.uniform(*(LONG if random.random() < LONG_SHARE else SHORT)))
        self.tell("end")
        return self.nonce


def plain(ledger: str, seen: Any) -> str:
    """A body that succeeds."""
    return Body(ledger, seen).work()


def of_child(ledger: str, seen: Any, instance: str, name: str) -> str:
    """The body of a child, in the name of the step of its parent."""
    return Body(ledger, seen, (instance, name)).work()


def flaky(ledger: str, seen: Any) -> str:
    """A body that fails at its first attempt."""
    body = Body(ledger, seen)
    if body.attempt == 1:
        body.work()
        raise ConnectionError(body.nonce)
    return body.work()


def fails(ledger: str, seen: Any) -> str:
    """A body that fails for good."""
    raise NonRetryableError(Body(ledger, seen).work())


def breaks(ledger: str, seen: Any) -> str:
    """A body that fails for good at its first attempt: the instance ends, and a person retries it."""
    body = Body(ledger, seen)
    nonce = body.work()
    if body.attempt == 1:
        raise NonRetryableError(nonce)
    return nonce


def atomic(ledger: str, seen: Any) -> str:
    """A body that writes a row of the app, in the transaction of its checkpoint."""
    body = Body(ledger, seen)
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO chaos_effect VALUES (%s, %s, %s)", [body.instance, body.name, body.nonce])
    return body.work()


class ChildParams(TypedDict):
    """``instance`` and ``name``: whose step it is."""

    ledger: str
    seen: Any
    instance: str
    name: str


class ChaosChild(Workflow[ChildParams, str]):
    """One body, for another instance."""

    class Meta:
        step_retries = PATIENT

    def run(self, event: WorkflowEvent[ChildParams], step: Step) -> str:
        return step.do("body", lambda: of_child(**event.params))


BODIES: Final[dict[str, Callable[[str, Any], str]]] = {
    "do": plain,
    "flaky": flaky,
    "atomic": atomic,
    "once": plain,
    "caught": fails,
    "breaks": breaks,
}
OPTIONS: Final[dict[str, dict[str, Any]]] = {"atomic": {"atomic": True}, "once": {"retries": 0}}


class Chaos(Workflow[Params, list[Any]]):
    """Twenty steps. Its output: what each of them gave."""

    kinds: ClassVar[Sequence[str]] = KINDS

    class Meta:
        step_retries = PATIENT

    def run(self, event: WorkflowEvent[Params], step: Step) -> list[Any]:
        out: list[Any] = []
        for position, kind in enumerate(plan(event.params["number"])):
            out.append(self.one(step, label(position, kind), kind, event.params["ledger"], out[-1] if out else ""))
        return out

    def one(self, step: Step, name: str, kind: str, ledger: str, seen: Any) -> Any:
        """One step of the plan."""
        if kind == "sleep":
            step.sleep(name, NAP)
            return ""
        if kind == "event":
            return step.wait_for_event(name, type="note", timeout="1 day").payload
        if kind == "approval":
            return step.wait_for_approval(name, title=name, timeout="1 day").comment
        if kind == "swallowed":
            return self.swallow(step, name, ledger)
        if kind == "fork":
            return list(step.gather(name, *(partial(self.arm, step, f"{name}{arm}", ledger, seen) for arm in ARMS)))
        if kind == "child":
            params: ChildParams = {"ledger": ledger, "seen": seen, "instance": step.instance_id, "name": name}
            return step.run_workflow(name, ChaosChild, params)
        try:
            return step.do(name, BODIES[kind], ledger, seen, **OPTIONS.get(kind, {}))
        except WorkerLost:
            return LOST
        except NonRetryableError as error:
            if kind == "breaks":
                raise
            return str(error)

    def arm(self, step: Step, name: str, ledger: str, seen: Any) -> str:
        """A branch: a body, and a moment of waiting in one of the two."""
        if name.endswith(ARMS[0]):
            step.sleep("nap", NAP)
        return step.do(name, plain, ledger, seen)

    def swallow(self, step: Step, name: str, ledger: str) -> str:
        """A sleep; before the code is mended, its suspension is swallowed: the instance is blocked."""
        try:
            step.sleep(name, NAP)
        except BaseException:
            if mend(ledger, step.instance_id).exists():
                raise
        return ""


class ChaosAsync(Workflow[Params, list[Any]]):
    """The same, asynchronous."""

    kinds: ClassVar[Sequence[str]] = KINDS

    class Meta:
        step_retries = PATIENT

    async def run(self, event: WorkflowEvent[Params], step: AsyncStep) -> list[Any]:
        out: list[Any] = []
        for position, kind in enumerate(plan(event.params["number"])):
            name = label(position, kind)
            out.append(await self.one(step, name, kind, event.params["ledger"], out[-1] if out else ""))
        return out

    async def one(self, step: AsyncStep, name: str, kind: str, ledger: str, seen: Any) -> Any:
        """One step of the plan."""
        if kind == "sleep":
            await step.sleep(name, NAP)
            return ""
        if kind == "event":
            return (await step.wait_for_event(name, type="note", timeout="1 day")).payload
        if kind == "approval":
            return (await step.wait_for_approval(name, title=name, timeout="1 day")).comment
        if kind == "fork":
            return list(await asyncio.gather(*(self.arm(step, f"{name}{arm}", ledger, seen) for arm in ARMS)))
        if kind == "child":
            params: ChildParams = {"ledger": ledger, "seen": seen, "instance": step.instance_id, "name": name}
            return await step.run_workflow(name, ChaosChild, params)
        try:
            return await step.do(name, BODIES[kind], ledger, seen, **OPTIONS.get(kind, {}))
        except WorkerLost:
            return LOST
        except NonRetryableError as error:
            return str(error)

    async def arm(self, step: AsyncStep, name: str, ledger: str, seen: Any) -> str:
        """A task of its own."""
        if name.endswith(ARMS[0]):
            await step.sleep(f"nap {name}", NAP)
        return await step.do(name, plain, ledger, seen)


class ChaosLimited(Chaos):
    """The same, of which only some may run at the same time."""

    class Meta:
        max_concurrency = SLOTS


class ChaosMended(Chaos):
    """One that needs people: ``retry`` after a failure, ``resume`` after its code was mended."""

    kinds = MENDED_KINDS


def mend(ledger: str, instance: str) -> Path:
    """The file that stands for the deploy which mends the code, for one instance."""
    return Path(f"{ledger}.mended") / instance


WORKFLOWS: Final[tuple[type[Chaos] | type[ChaosAsync], ...]] = (Chaos, ChaosLimited, ChaosAsync, ChaosMended)
"""By an instance's number, in turn."""


def workflow_of(number: int) -> type[Chaos] | type[ChaosAsync]:
    """The workflow of an instance."""
    return WORKFLOWS[number % len(WORKFLOWS)]

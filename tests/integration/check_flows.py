"""Versions of a workflow for tests of ``replay_check``: what a process finds after a deploy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import models

from durableflow import AsyncStep, Step, Workflow, WorkflowEvent
from durableflow.models import ConcurrencyLimit, HistoryEntry, PendingEvent, SentEvent, StepRecord, WorkflowInstance

Run = Callable[[Step], Any]
AsyncRun = Callable[[AsyncStep], Any]


def deployed(run: Run, name: str = "check", **meta: Any) -> type[Workflow[Any, Any]]:
    """What a process finds after a deploy: a version of a workflow."""

    def method(self: Any, event: WorkflowEvent[Any], step: Step) -> Any:
        return run(step)

    space = {"run": method, "Meta": type("Meta", (), {"name": name, **meta}), "__module__": __name__}
    return type("Checked", (Workflow,), {**space, "__qualname__": f"Checked-{name}"})


def ran(*args: Any) -> Any:
    raise AssertionError("a check runs no body")


def recorded(step: Step) -> Any:
    """Three steps, and a wait in which the instance stands."""
    cart = step.do("load", lambda: {"total": 7})
    step.do("charge", lambda: cart["total"])
    step.do("pack", lambda: "packed")
    step.wait_for_event("go", type="go", timeout=None)
    return step.do("ship", ran)


def snapshot() -> list[Any]:
    """All rows of our tables: equal before and after means that nothing was written."""
    tables: list[type[models.Model]] = [
        WorkflowInstance,
        StepRecord,
        PendingEvent,
        SentEvent,
        HistoryEntry,
        ConcurrencyLimit,
    ]
    return [list(table._base_manager.order_by("pk").values()) for table in tables]


# Deploys that break -----------------------------------------------------------------------------------------------


def renamed(step: Step) -> Any:
    step.do("load the cart", ran)
    step.do("charge", ran)
    step.do("pack", ran)
    step.wait_for_event("go", type="go", timeout=None)


def renamed_and_used(step: Step) -> Any:
    cart = step.do("load the cart", ran)
    if cart["total"] > 5:
        step.do("charge", ran)
    step.do("pack", ran)
    step.wait_for_event("go", type="go", timeout=None)


def renamed_wait(step: Step) -> Any:
    step.do("load", ran)
    step.do("charge", ran)
    step.do("pack", ran)
    step.wait_for_event("start", type="go", timeout=None)
    step.do("ship", ran)


def other_kind(step: Step) -> Any:
    step.do("load", ran)
    step.sleep("charge", 60)
    step.do("pack", ran)
    step.wait_for_event("go", type="go", timeout=None)


def removed(step: Step) -> Any:
    step.do("load", ran)
    step.do("pack", ran)
    step.wait_for_event("go", type="go", timeout=None)


def reordered(step: Step) -> Any:
    step.do("load", ran)
    step.do("pack", ran)
    step.do("charge", ran)
    step.wait_for_event("go", type="go", timeout=None)


def earlier_end(step: Step) -> Any:
    step.do("load", ran)
    return "done"


def behind_an_inserted_step(step: Step) -> Any:
    step.do("load", ran)
    step.do("check fraud", ran)
    step.do("pack", ran)
    step.wait_for_event("go", type="go", timeout=None)


def raises(step: Step) -> Any:
    return step.do("load", ran)["sum"]


# Deploys that fit -------------------------------------------------------------------------------------------------


def inserted(step: Step) -> Any:
    step.do("load", ran)
    enriched = step.do("enrich", ran)
    step.do("charge", ran, enriched["more"])
    step.sleep("pause", 60)
    step.do("pack", ran)
    step.wait_for_event("go", type="go", timeout=None)


def inserted_and_used(step: Step) -> Any:
    step.do("load", ran)
    step.do("charge", ran)
    if step.do("is fragile", ran):
        step.do("wrap", ran)
    step.do("pack", ran)
    step.wait_for_event("go", type="go", timeout=None)


def patched(step: Step) -> Any:
    step.do("load", ran)
    if step.patched("bank"):
        step.do("transfer", ran)
    else:
        step.do("charge", ran)
    step.do("pack", ran)
    step.wait_for_event("go", type="go", timeout=None)


def appended(step: Step) -> Any:
    recorded(step)
    return step.do("tell", ran)


def inserted_group(step: Step) -> Any:
    step.do("load", ran)
    one, two = step.gather("both", lambda: step.do("one", ran), lambda: step.do("two", ran))
    sizes = step.map("measure", ran, [1, 2, 3])
    step.do("charge", ran, one, two, sizes)
    step.do("pack", ran)
    step.wait_for_event("go", type="go", timeout=None)


# Async ------------------------------------------------------------------------------------------------------------


def deployed_async(run: AsyncRun) -> type[Workflow[Any, Any]]:
    """The same with ``async def run``."""

    async def method(self: Any, event: WorkflowEvent[Any], step: AsyncStep) -> Any:
        return await run(step)

    space = {"run": method, "Meta": type("Meta", (), {"name": "check"}), "__module__": __name__}
    return type("Checked", (Workflow,), {**space, "__qualname__": "Checked-check"})


async def async_recorded(step: AsyncStep) -> Any:
    cart = await step.do("load", lambda: {"total": 7})
    await step.gather("both", lambda: step.do("left", lambda: 1), lambda: step.do("right", lambda: 2))
    await step.do("charge", lambda: cart["total"])
    await step.wait_for_event("go", type="go", timeout=None)


async def async_inserted(step: AsyncStep) -> Any:
    await step.do("load", ran)
    new = await step.do("new", ran)
    await step.gather("both", lambda: step.do("left", ran, new), lambda: step.do("right", ran))
    await step.do("charge", ran)
    await step.wait_for_event("go", type="go", timeout=None)


async def async_needed(step: AsyncStep) -> Any:
    await step.do("load", ran)
    if await step.do("new", ran):
        await async_recorded(step)


async def async_removed(step: AsyncStep) -> Any:
    await step.gather("both", lambda: step.do("left", ran), lambda: step.do("right", ran))
    await step.do("charge", ran)
    await step.wait_for_event("go", type="go", timeout=None)


async def async_renamed(step: AsyncStep) -> Any:
    cart = await step.do("load the cart", ran)
    if cart["total"] > 5:
        await step.gather("both", lambda: step.do("left", ran), lambda: step.do("right", ran))
        await step.do("charge", ran)
    await step.wait_for_event("go", type="go", timeout=None)


async def async_patched(step: AsyncStep) -> Any:
    await async_recorded(step) if not await step.patched("all new") else await async_removed(step)

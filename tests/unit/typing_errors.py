"""Wrong uses of the author's interface, marked with the codes of mypy that refuse the line. Nothing here is run."""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import datetime
from functools import partial
from typing import assert_type

from durableflow import (
    AsyncStep,
    Decision,
    Event,
    Retries,
    Rollback,
    Step,
    Undo,
    Winner,
    Workflow,
    WorkflowEvent,
    WorkflowOptions,
)
from durableflow.models import PendingEvent, WorkflowInstance
from durableflow.testing import Harness
from shop import services
from shop.workflows import CartParams, Checkout, PageParams, RefundForm, RenderPage, Settlement


def two(first: int, second: str) -> float:
    return first + len(second)


def right(step: Step, event: WorkflowEvent[CartParams]) -> None:
    assert_type(step.do("two", two, 1, "b", retries=3, timeout="1 minute"), float)
    assert_type(step.do("no arguments", lambda: [1]), list[int])
    assert_type(step.do("cart", services.load_cart, event.params["cart_id"]), services.Cart)
    assert_type(step.wait_for_event("event", type="paid", timeout=None), Event)
    assert_type(step.wait_for_approval("ok", form=RefundForm, notify=services.mail_managers), Decision)
    assert_type(Checkout.create({"cart_id": 1}), WorkflowInstance)
    assert_type(Checkout.get_or_create({"cart_id": 1}, instance_id="a"), tuple[WorkflowInstance, bool])


def wrong_steps(step: Step, event: WorkflowEvent[CartParams]) -> None:
    step.do("too few", two, 1)  # E: arg-type
    step.do("too many", two, 1, "b", 2)  # E: arg-type
    step.do("wrong type", two, "1", "b")  # E: arg-type
    step.do("keyword argument", lambda: 1, flag=True)  # E: call-arg
    step.do("not callable", 5)  # E: arg-type
    step.do("bad retries", two, 1, "b", retries="3")  # E: arg-type
    step.do(fn=two, name="names are positional")  # E: call-arg
    step.sleep("nap", duration="1 hour")  # E: call-arg
    step.sleep_until("nap", "tomorrow")  # E: arg-type
    step.wait_for_event("event")  # E: call-arg
    step.wait_for_approval("ok", notify=notify_nobody)  # E: arg-type
    _: str = step.do("two", two, 1, "b")  # E: assignment
    event.params["card_id"]  # E: typeddict-item
    Retries(3)  # E: call-arg


def notify_nobody(pending: PendingEvent, twice: bool) -> None: ...


def wrong_starts(workflows: Harness, row: WorkflowInstance) -> None:
    Checkout.create({"cart_id": "1"})  # E: arg-type
    Checkout.create({"cart": 1})  # E: arg-type
    Checkout.create(1)  # E: arg-type
    Settlement.create({"order": 7})  # E: dict-item
    Settlement.create({"order": "7"}, id="order-7")  # E: call-arg
    Settlement.get(7)  # E: arg-type
    workflows.run(Settlement, {"order": "7"}, id="order-7")  # E: call-arg
    workflows.mock_late("create intent")  # E: attr-defined
    workflows.approve(row, "ok", None)  # E: call-arg


# ------------------------------------------------------------------------------------- branches, children, rollback


def number() -> int:
    return 1


def text() -> str:
    return ""


def nothing() -> None: ...


def length(item: str) -> int:
    return len(item)


def undo_text(undo: Undo[str]) -> None:
    assert_type(undo.output, str | None)


def undo_number(undo: Undo[int]) -> None: ...


def undo_anything(undo: Undo[object]) -> str:
    return undo.context.idempotency_key


def right_groups(step: Step, page: PageParams, pages: list[PageParams]) -> None:
    assert_type(step.gather("one", number), tuple[int])
    assert_type(step.gather("two", number, lambda: step.do("inner", text)), tuple[int, str])
    assert_type(step.gather("three", number, text, nothing, concurrency=2), tuple[int, str, None])
    assert_type(step.gather("six", number, text, number, text, number, text), tuple[int, str, int, str, int, str])
    assert_type(step.gather("any", *[number]), tuple[int, ...])
    assert_type(step.gather("errors", number, text, return_exceptions=True), tuple[int | Exception, str | Exception])
    assert_type(step.gather("any errors", *[number], return_exceptions=True), tuple[int | Exception, ...])
    assert_type(step.map("lengths", length, ["a"], concurrency=3, retries=2, timeout="1 hour"), list[int])
    assert_type(step.map("lambda", lambda item: item + 1, range(3)), list[int])
    assert_type(step.map("errors", length, ["a"], return_exceptions=True), list[int | Exception])
    assert_type(step.race("first", paid=number, later=number), Winner[int])
    assert_type(step.race("first", paid=number).value, int)
    assert_type(step.run_workflow("child", RenderPage, page, instance_id="a", timeout="1 day"), str)
    assert_type(step.run_workflows("children", RenderPage, pages, concurrency=5), list[str])
    assert_type(step.run_workflows("errors", RenderPage, pages, return_exceptions=True), list[str | Exception])
    assert_type(step.start_workflow("started", RenderPage, page, on_parent_end="terminate"), str)
    assert_type(step.run_workflow("literal", RenderPage, {"page": 1}), str)
    assert_type(step.run_workflows("literals", RenderPage, ({"page": number} for number in range(3))), list[str])
    assert_type(step.gather("partial", partial(length, "a")), tuple[int])
    assert_type(step.gather("bound", *[lambda item=item: length(item) for item in "ab"]), tuple[int, ...])
    assert_type(step.do("undone", text, rollback=undo_text), str)
    assert_type(step.do("undone", text, rollback=undo_anything), str)
    assert_type(step.do("undone", text, rollback=Rollback(undo_anything)), str)
    assert_type(step.do("undone", two, 1, "b", rollback=lambda undo: undo.output or 0.5), float)
    assert_type(step.do("undone", text, rollback=Rollback(undo_text, retries=3, timeout=30)), str)
    assert_type(step.map("undone", length, ["a"], rollback=undo_number), list[int])
    assert_type(step.patched("new path"), bool)


def wrong_groups(step: Step, page: PageParams, pages: list[PageParams]) -> None:
    step.gather("not callable", number())  # E: call-overload
    step.gather("takes an argument", length)  # E: arg-type
    step.gather("no limit", number, concurrency="2")  # E: call-overload
    step.gather("unknown option", number, timeout=3)  # E: call-overload
    step.gather(number, text)  # E: call-overload
    step.gather("result", number, text)[1].bit_length()  # E: attr-defined
    step.gather("arity", number, text)[2]  # E: misc
    _first: str = step.gather("other type", number, text)[0]  # E: assignment
    _size, _name, _rest = step.gather("unpacked", number, text)  # E: misc
    step.gather("an error too", number, return_exceptions=True)[0].bit_length()  # E: union-attr
    step.map("items", length, [1])  # E: arg-type
    step.map("no items", length)  # E: call-overload
    step.map("two arguments", two, ["a"])  # E: arg-type
    step.map("unknown option", length, ["a"], workers=3)  # E: call-overload
    _lengths: list[str] = step.map("other type", length, ["a"])  # E: arg-type
    step.race("by name", number)  # E: call-arg
    step.race("not callable", paid=3)  # E: arg-type
    _winner: Winner[str] = step.race("other type", paid=number)  # E: arg-type
    step.run_workflow("params", RenderPage, {"page": "1"})  # E: arg-type
    step.run_workflow("params", RenderPage, pages)  # E: arg-type
    step.run_workflow("no class", "render-page", page)  # E: arg-type
    step.run_workflow("unknown option", RenderPage, page, on_parent_end="leave")  # E: call-arg
    step.run_workflow("output", RenderPage, page).bit_length()  # E: attr-defined
    step.run_workflows("one of them", RenderPage, page)  # E: arg-type
    _outputs: list[int] = step.run_workflows("output", RenderPage, pages)  # E: arg-type
    step.start_workflow("policy", RenderPage, page, on_parent_end="kill")  # E: arg-type
    step.do("other step's", number, rollback=undo_text)  # E: misc
    step.do("no argument", number, rollback=nothing)  # E: arg-type
    step.do("other step's", number, rollback=Rollback(undo_text))  # E: misc
    step.do("by keyword", text, rollback=Rollback(undo_text, 3))  # E: call-arg
    step.map("other step's", length, ["a"], rollback=undo_text)  # E: misc
    _patched: str = step.patched("new path")  # E: assignment
    step.patched(1)  # E: arg-type


# ------------------------------------------------------------------------------------------------------------ async


async def later(item: str) -> int:
    return len(item)


async def nothing_later() -> None: ...


async def right_async(step: AsyncStep, page: PageParams, pages: list[PageParams]) -> None:
    assert_type(await step.do("async", later, "a", timeout=3), int)
    assert_type(await step.do("sync", two, 1, "b"), float)
    assert_type(await step.do("async undone", later, "a", rollback=undo_number), int)
    assert_type(await step.gather("two", lambda: step.do("a", later, "a"), lambda: step.do("b", text)), tuple[int, str])
    assert_type(await step.gather("any", *[lambda: later("a")]), tuple[int, ...])
    assert_type(await step.gather("errors", nothing_later, return_exceptions=True), tuple[Exception | None])
    assert_type(await step.map("async", later, ["a"]), list[int])
    assert_type(await step.map("sync", length, ["a"], return_exceptions=True), list[int | Exception])
    assert_type(await step.race("first", paid=lambda: step.wait_for_event("paid", type="paid")), Winner[Event])
    assert_type(await step.run_workflow("child", RenderPage, page), str)
    assert_type(await step.run_workflows("children", RenderPage, pages), list[str])
    assert_type(await step.wait_for_approval("ok"), Decision)
    assert_type(await step.now(), datetime)
    assert_type(await step.patched("new path"), bool)
    await step.sleep("nap", "1 hour")
    await step.set_progress({"state": "done"})
    step.continue_as_new({"page": 1})


async def wrong_async(step: AsyncStep, page: PageParams) -> None:
    step.do("forgotten", later, "a")  # E: unused-coroutine
    step.sleep("forgotten", "1 hour")  # E: unused-coroutine
    step.gather("forgotten", nothing_later)  # E: unused-coroutine
    step.set_progress(1)  # E: unused-coroutine
    if step.patched("always true"):  # E: truthy-bool
        step.do("forgotten", text).upper()  # E: attr-defined
    _value: int = step.do("forgotten", later, "a")  # E: assignment
    await step.do("too few", later)  # E: arg-type call-arg
    await step.do("wrong type", later, 5)  # E: arg-type
    await step.do("unknown option", later, "a", priority=1)  # E: call-overload
    await step.do("other step's", later, "a", rollback=undo_text)  # E: misc
    await step.gather("not awaitable", number)  # E: arg-type
    await step.gather("a coroutine", nothing_later())  # E: call-overload
    await step.map("items", later, [1])  # E: arg-type
    (await step.gather("two", nothing_later, lambda: later("a")))[1].upper()  # E: attr-defined
    await step.run_workflow("params", RenderPage, {"page": "1"})  # E: arg-type
    await step.uuid4()  # E: misc
    _wait: Awaitable[str] = step.wait_for_event("other type", type="paid")  # E: assignment


async def awaits_sync(step: Step) -> None:
    await step.do("sync", number)  # E: misc
    await step.gather("sync", number)  # E: misc


class WrongMeta(Workflow[None, str]):
    class Meta(WorkflowOptions):
        name = 5  # E: assignment

    def run(self, event: WorkflowEvent[None], step: Step) -> str:
        return step.do("two", two, 1, "b")  # E: return-value

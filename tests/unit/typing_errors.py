"""Wrong uses of the author's interface. Each line marked ``# E: code`` must be refused by mypy; nothing here is run."""

from __future__ import annotations

from typing import assert_type

from durableflow import Decision, Event, Retries, Step, Workflow, WorkflowEvent, WorkflowOptions
from durableflow.models import PendingEvent, WorkflowInstance
from durableflow.testing import Harness
from shop import services
from shop.workflows import CartParams, Checkout, RefundForm, Settlement


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
    step.do("not built yet", two, 1, "b", rollback=print)  # E: call-arg
    step.do(fn=two, name="names are positional")  # E: call-arg
    step.sleep("nap", duration="1 hour")  # E: call-arg
    step.sleep_until("nap", "tomorrow")  # E: arg-type
    step.wait_for_event("event")  # E: call-arg
    step.wait_for_approval("ok", notify=notify_nobody)  # E: arg-type
    step.gather("not built yet")  # E: attr-defined
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
    workflows.mock_timeout("create intent")  # E: attr-defined
    workflows.approve(row, "ok", None)  # E: call-arg


class WrongMeta(Workflow[None, str]):
    class Meta(WorkflowOptions):
        name = 5  # E: assignment

    def run(self, event: WorkflowEvent[None], step: Step) -> str:
        return step.do("two", two, 1, "b")  # E: return-value

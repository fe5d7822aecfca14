"""Workflows that the tests of the API start."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from django import forms

from durableflow import Retries, Step, Workflow, WorkflowEvent


class RefundForm(forms.Form):
    """What an approver enters."""

    amount = forms.DecimalField(max_digits=8, decimal_places=2)
    day = forms.DateField(required=False)
    tags = forms.MultipleChoiceField(choices=[("a", "A"), ("b", "B")], required=False)
    note = forms.CharField(required=False)


class ApiOrder(Workflow[dict[str, Any], Any]):
    """Ships an order.

    Waits for an approval first.
    """

    class Meta:
        name = "api-order"

    def run(self, event: WorkflowEvent[dict[str, Any]], step: Step) -> Any:
        decision = step.wait_for_approval("approval", title="Ship it?", form=RefundForm, allow_requester=False)
        return {"approved": decision.approved, "data": decision.data}


class ApiPayment(Workflow[dict[str, Any], Any]):
    """Waits for the payment provider."""

    class Meta:
        name = "api-payment"

    def run(self, event: WorkflowEvent[dict[str, Any]], step: Step) -> Any:
        return step.wait_for_event("outcome", type=["payment_settled", "payment_failed"]).payload


class ApiCheckout(Workflow[dict[str, int], dict[str, str]]):
    """Charge a cart and mail its invoice."""

    class Meta:
        name = "api-checkout"

    def run(self, event: WorkflowEvent[dict[str, int]], step: Step) -> dict[str, str]:
        cart = step.do("load cart", load_cart, event.params["cart_id"])
        decision = step.wait_for_approval(
            "manager approval",
            title=f"Order over 500: {cart['total']}",
            groups=["managers"],
            form=RefundForm,
            allow_requester=False,
            timeout="3 days",
        )
        if not decision:
            return {"state": "rejected", "by": decision.by, "why": decision.comment}
        return {"state": "paid", "by": decision.by}


class ApiRepair(Workflow[Any, Any]):
    """Has a step of every kind, one of which fails until it is mended."""

    class Meta:
        name = "api-repair"

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        step.do("token", make_token, sensitive=True)
        step.do("flaky", flaky, retries=Retries(limit=2, delay=60, backoff="constant"))
        step.sleep("nap", "1 hour")
        return step.wait_for_event("note", type="note", timeout=None).payload


def load_cart(cart_id: int) -> dict[str, int]:
    """A cart that a manager has to look at."""
    return {"cart_id": cart_id, "total": 600}


TOKEN = "tok_5f1c9a7e"
broken = [True]


def make_token() -> str:
    """A secret."""
    return TOKEN


def flaky() -> str:
    """Fails, with the secret in its message, as long as ``broken`` says so."""
    if broken[0]:
        raise OSError(f"refused {TOKEN}")
    return "ok"


class ApiTour(Workflow[Any, Any]):
    """Three steps, of which the second fails until it is mended, and a nap."""

    class Meta:
        name = "api-tour"

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        first = step.do("first", count_up, "first")
        second = step.do("second", second_of, retries=0)
        step.sleep("nap", "1 hour")
        both = step.gather("both", lambda: step.do("leg", count_up, "a"), lambda: step.do("leg", count_up, "b"))
        return {"first": first, "second": second, "legs": sorted(both)}


ran: list[str] = []
mended = [True]


def count_up(name: str) -> str:
    """Tells that it ran, and the which time."""
    ran.append(name)
    return f"{name} {ran.count(name)}"


def second_of() -> str:
    """Fails unless ``mended`` says otherwise."""
    if not mended[0]:
        raise OSError("not yet")
    return count_up("second")


class ApiRenamed(Workflow[Any, Any]):
    """Has had another name."""

    class Meta:
        name = "api-renamed"
        previous_names = ("api-former",)

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        return step.wait_for_event("note", type="note", timeout=None).payload


class ApiStory(Workflow[Any, Any]):
    """Two steps with a nap between; ``inside`` is done in the body of the second."""

    class Meta:
        name = "api-story"

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        one = step.do("one", count_up, "one")
        step.sleep("nap", "1 hour")
        return [one, step.do("two", do_inside), step.do("three", count_up, "three")]


inside: list[Callable[[], object]] = []


def do_inside() -> str:
    """Do what a test wants done while a body runs, once."""
    if inside:
        inside.pop()()
    return count_up("two")


class ApiQuick(Workflow[Any, Any]):
    """One step, whose body says that it runs and waits until it may end."""

    class Meta:
        name = "api-quick"

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        return step.do("only", through_gates)


gates: list[threading.Event] = []


def through_gates() -> str:
    """Open the first gate, and go through the second."""
    running, go = gates
    running.set()
    go.wait(30)
    return "done"


class ApiKeyed(Workflow[Any, Any]):
    """One per account at a time."""

    class Meta:
        name = "api-keyed"
        max_concurrency = 1
        concurrency_key = staticmethod(lambda params: params["account"])

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        return event.params["account"]

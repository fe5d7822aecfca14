from __future__ import annotations

from typing import TypedDict

from django import forms

from durableflow import EventTimeout, Retention, Retries, Step, Workflow, WorkflowEvent
from shop import services


class RefundForm(forms.Form):
    amount = forms.DecimalField()


class CartParams(TypedDict):
    cart_id: int


# 1. checkout with approval ------------------------------------------------------------------------------------------------
class Checkout(Workflow[CartParams, dict[str, str]]):
    """Charge a cart and mail its invoice."""

    class Meta:
        name = "checkout"
        step_retries = Retries(limit=5, delay=10, max_delay="10 minutes")
        step_timeout = "2 minutes"
        max_duration = "30 days"
        retention = Retention(success="30 days", error="90 days")

    def run(self, event: WorkflowEvent[CartParams], step: Step) -> dict[str, str]:
        cart = step.do("load cart", services.load_cart, event.params["cart_id"])
        if cart["total"] > 500:
            decision = step.wait_for_approval("manager approval", title=f"Order over 500: {cart['total']}", groups=["managers"],
                                              form=RefundForm, allow_requester=False, timeout="3 days",
                                              notify=services.mail_managers)
            if not decision:
                return {"state": "rejected", "by": decision.by, "why": decision.comment}
        charge = step.do("charge card", services.charge_card, cart["total"], retries=Retries(limit=10, delay=60, give_up_on=(services.CardDeclined,)))
        step.set_progress({"state": "charged"})
        step.do("mail invoice", services.mail_invoice, cart, charge)
        return {"state": "paid", "charge": charge}


# 5. webhook-driven wait ------------------------------------------------------------------------------------------------------
class Settlement(Workflow[dict[str, str], str]):
    def run(self, event: WorkflowEvent[dict[str, str]], step: Step) -> str:
        step.do("create intent", services.create_intent, event.params["order"])
        try:
            got = step.wait_for_event("payment outcome", type=["payment_settled", "payment_failed"], timeout="2 days")
        except EventTimeout:
            return "abandoned"
        return "paid" if got.type == "payment_settled" else "failed"

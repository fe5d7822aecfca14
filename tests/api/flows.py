"""Workflows that the tests of the API start."""

from __future__ import annotations

from typing import Any

from django import forms

from durableflow import Step, Workflow, WorkflowEvent


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

"""Workflows of the tests of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django import forms

from durableflow import Retries, Step, Undo, Workflow, WorkflowEvent, get_step_context

BROKEN: set[str] = set()
"""Names of steps that fail."""
RAN: list[tuple[str, str]] = []
"""Steps whose bodies have run, with their idempotency keys."""


@contextmanager
def broken(*names: str) -> Iterator[None]:
    """These steps fail meanwhile."""
    BROKEN.update(names)
    try:
        yield
    finally:
        BROKEN.clear()
        RAN.clear()


def body(value: Any = None) -> Any:
    context = get_step_context()
    RAN.append((context.name, context.idempotency_key))
    if context.name in BROKEN:
        raise OSError(f"{context.name} is \x1b[2Jbroken")
    return value


def undo(_undo: Undo[Any]) -> None:
    """Nothing to do: it only has to be there."""


class Order(Workflow[Any, Any]):
    """Load, charge, and wait for a person."""

    class Meta:
        name = "cmd-order"
        step_retries = Retries(limit=0)

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        step.do("load", body, {"total": event.params, "password": "hunter22"})
        step.do("token", body, "a secret token", sensitive=True)
        step.do("charge", body, rollback=undo)
        decision = step.wait_for_approval("approval", title="Ship it?", allow_requester=event.params != "barred")
        return {"approved": decision.approved, "comment": decision.comment}


class AmountForm(forms.Form):
    """What has to be said."""

    amount = forms.DecimalField()


class Ask(Workflow[Any, Any]):
    """Ask a person for an amount."""

    class Meta:
        name = "cmd-ask"

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        return str(step.wait_for_approval("amount", title="How much?", form=AmountForm).data["amount"])


class Wait(Workflow[Any, Any]):
    """Wait for an event, and return what it says."""

    class Meta:
        name = "cmd-wait"

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        return step.wait_for_event("payment", type=["paid", "refused"]).payload


class Retrying(Workflow[Any, Any]):
    """A step that is tried several times."""

    class Meta:
        name = "cmd-retrying"
        step_retries = Retries(limit=2, delay=60, backoff="constant")

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        return step.do("fetch", body, "got it")

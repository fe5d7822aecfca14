from __future__ import annotations
from typing import Any
import pytest
from durableflow.models import WorkflowInstance
from durableflow.testing import Harness
from shop.workflows import Agent, Book, Checkout, NightlyExport, Settlement, Trip

S = WorkflowInstance.Status
pytestmark = pytest.mark.django_db

def test_checkout_waits_for_a_manager(workflows: Harness, manager: Any, customer: Any) -> None:
    workflows.mock_result("load cart", {"total": 600})
    order = workflows.run(Checkout, {"cart_id": 1}, instance_id="order-1", created_by=customer)
    assert order.status == S.WAITING
    workflows.approve(order, by=manager, data={"amount": "600.00"})
    assert order.output["state"] == "paid"
    assert workflows.attempts("charge card") == 1

def test_checkout_survives_a_crash_after_the_charge(workflows: Harness) -> None:
    workflows.mock_result("load cart", {"total": 5})
    workflows.crash_before_checkpoint("charge card")
    order = workflows.run(Checkout, {"cart_id": 1})
    assert workflows.attempts("charge card") == 2   # same idempotency key both times
    assert order.status == S.COMPLETE

def test_export(workflows: Harness) -> None:
    workflows.mock_result("list tables", ["a", "b"])
    workflows.mock_error("export table", OSError("disk"), times=1, count=2)
    run = workflows.run(NightlyExport)
    workflows.advance("1 minute")
    assert run.status == S.COMPLETE

def test_saga_undoes_in_reverse(workflows: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    undone: list[str] = []
    monkeypatch.setattr("shop.services.cancel", lambda kind, ref: undone.append(kind))
    workflows.mock_error("pay", RuntimeError("no money"))
    trip = workflows.run(Trip, {})
    assert (trip.status, undone) == (S.ERRORED, ["hotel", "flight"])

def test_fan_out(workflows: Harness) -> None:
    book = workflows.run(Book, {})
    workflows.approve(book, "cover ok")
    assert workflows.attempts("measure") == 500

def test_webhook(workflows: Harness) -> None:
    run = workflows.run(Settlement, {"order": "7"}, instance_id="order-7")
    for _ in range(2):                                # the provider delivers twice
        run.send_event("payment_settled", {}, dedupe_key="evt_1")
    workflows.run_due()
    assert run.output == "paid"
    late = workflows.run(Settlement, {"order": "8"})
    workflows.advance("2 days")
    assert late.output == "abandoned"

def test_agent_refusal(workflows: Harness, staff: Any) -> None:
    workflows.mock_result("think", {"tool": "shell", "args": {}}, count=1)
    workflows.mock_result("think", {"text": "done"}, count=2)
    run = workflows.run(Agent, {"messages": []})
    workflows.reject(run, by=staff, comment="no")
    assert run.output == "done" and workflows.attempts("tool") == 0

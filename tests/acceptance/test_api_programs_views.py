"""The views of the documentation's programs: what a customer and a payment provider call (cases CON-03, TST-01, EVT-16)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import transaction
from django.test import RequestFactory, TestCase, TransactionTestCase

from durableflow.models import WorkflowInstance
from durableflow.testing import Harness, WorkflowTestMixin
from shop import stripe
from shop.models import Order
from shop.views import payment_webhook, place_order
from shop.workflows import Checkout, Settlement

S = WorkflowInstance.Status


def place(order: Order, user: Any) -> Any:
    request = RequestFactory().post("/orders/")
    request.user = user
    return place_order(request, order)


def call_webhook(order: str, event: str, kind: str = "payment_settled", data: Any = None) -> int:
    body = json.dumps({"order": order, "type": kind, "data": data or {}, "event_id": event})
    request = RequestFactory().post("/webhooks/payment/", body, content_type="application/json")
    return int(payment_webhook(request).status_code)


class Refused(Exception):
    """The caller's transaction ends with it."""


def place_and_fail(user: Any) -> None:
    with transaction.atomic():
        order = Order.objects.create()
        assert place(order, user).status_code == 202
        raise Refused


@pytest.mark.django_db
def test_an_order_starts_its_checkout_once(workflows: Harness, customer: Any) -> None:
    order = Order.objects.create()
    first, second = place(order, customer), place(order, customer)
    assert json.loads(first.content) == {"instance_id": f"order-{order.pk}", "created": True}
    assert json.loads(second.content) == {"instance_id": f"order-{order.pk}", "created": False}
    order.refresh_from_db()
    assert (order.checkout, order.checkout.created_by) == (Checkout.get(f"order-{order.pk}"), customer)


@pytest.mark.django_db
def test_a_rolled_back_order_leaves_nothing(workflows: Harness, customer: Any) -> None:
    """CON-03: in a savepoint of a larger transaction."""
    with pytest.raises(Refused):
        place_and_fail(customer)
    assert (Order.objects.count(), WorkflowInstance.objects.count()) == (0, 0)
    workflows.run_due()
    assert stripe.calls == []


@pytest.mark.django_db(transaction=True)
def test_a_rolled_back_order_leaves_nothing_in_the_database(workflows: Harness, customer: Any) -> None:
    """CON-03: with real transactions, and what is committed is seen with its order."""
    with pytest.raises(Refused):
        place_and_fail(customer)
    assert (Order.objects.count(), WorkflowInstance.objects.count()) == (0, 0)
    order = Order.objects.create()
    place(order, customer)
    workflows.mock_result("load cart", {"total": 5})
    workflows.run_due()
    assert Checkout.get(f"order-{order.pk}").status == S.COMPLETE
    assert Order.objects.get(checkout__status=S.COMPLETE) == order


@pytest.mark.django_db
def test_a_payment_is_told_once(workflows: Harness) -> None:
    run = workflows.run(Settlement, {"order": "7"}, instance_id="order-7")
    assert [call_webhook("7", "evt_1"), call_webhook("7", "evt_1")] == [204, 204]
    assert run.sent_events.count() == 1
    workflows.run_due()
    assert run.output == "paid"
    assert call_webhook("7", "evt_1") == 204
    assert call_webhook("7", "evt_2", "payment_failed") == 200
    assert call_webhook("8", "evt_3") == 404


@pytest.mark.django_db
def test_a_payment_that_failed(workflows: Harness) -> None:
    run = workflows.run(Settlement, {"order": "7"}, instance_id="order-7")
    assert call_webhook("7", "evt_1", "payment_failed") == 204
    workflows.run_due()
    assert run.output == "failed"


@pytest.mark.django_db
def test_a_large_order_mails_the_managers(
    workflows: Harness, manager: Any, customer: Any, mailoutbox: list[Any]
) -> None:
    workflows.mock_result("load cart", {"total": 501})
    order = workflows.run(Checkout, {"cart_id": 1}, created_by=customer)
    (mail,) = mailoutbox
    assert (mail.to, mail.subject) == ([manager.email], "Decide: Order over 500: 501")
    assert mail.body.startswith("http://testserver/")
    workflows.reject(order, by=manager, comment="too much")
    assert order.output == {"state": "rejected", "by": manager.username, "why": "too much"}


@pytest.mark.django_db
def test_the_same_key_reaches_the_bank_twice(workflows: Harness) -> None:
    """CON-05: a crash between the charge and its checkpoint."""
    workflows.mock_result("load cart", {"total": 5})
    workflows.crash_before_checkpoint("charge card")
    workflows.run(Checkout, {"cart_id": 1})
    assert len(stripe.calls) == 2
    assert len(set(stripe.calls)) == 1


@pytest.fixture(autouse=True)
def quiet_bank() -> None:
    stripe.calls.clear()


class OrderSteps:
    """TST-01: a view starts a workflow inside the test's transaction; the kit runs it."""

    workflows: Harness

    def check(self) -> None:
        order = Order.objects.create()
        self.workflows.mock_result("load cart", {"total": 5})
        response = place(order, None)
        assert response.status_code == 202
        assert order.checkout.status == S.QUEUED
        self.workflows.run_due()
        order.checkout.refresh_from_db()
        assert order.checkout.status == S.COMPLETE


class OrderTests(WorkflowTestMixin, OrderSteps, TestCase):
    def test_it_runs_inside_the_transaction(self) -> None:
        self.check()

    def test_it_runs_with_callbacks_executed(self) -> None:
        """TST-01: callbacks run, also those that callbacks register."""
        ran: list[str] = []

        def again() -> None:
            ran.append("first")
            transaction.on_commit(lambda: ran.append("second"))

        with self.captureOnCommitCallbacks(execute=True):
            order = Order.objects.create()
            self.workflows.mock_result("load cart", {"total": 5})
            place(order, None)
            transaction.on_commit(again)
        self.workflows.run_due()
        assert ran == ["first", "second"]
        assert Checkout.get(f"order-{order.pk}").status == S.COMPLETE


class CommittedOrderTests(WorkflowTestMixin, OrderSteps, TransactionTestCase):
    def test_it_runs_with_real_commits(self) -> None:
        self.check()

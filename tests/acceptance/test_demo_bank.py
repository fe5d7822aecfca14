"""The payment endpoint of the example app, and the step that calls it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.urls import reverse
from pytest_django.live_server_helper import LiveServer

from project.demo import conf
from project.demo.models import Cart, Payment
from project.demo.services import bank, carts, payments


@pytest.fixture
def cart(customer: Any) -> Cart:
    return carts.create_cart(owner=customer, email="customer@example.com")


def call(body: Any, key: str = "key-1", **headers: str) -> Any:
    known = {"Authorization": f"Bearer {conf.bank_token()}", "Idempotency-Key": key}
    return Client(headers=known | headers).post(reverse("demo:charges"), body, content_type="application/json")


def test_first_call_fails_then_one_payment_however_often_it_is_asked_for(cart: Cart) -> None:
    body = {"cart": cart.pk, "amount": "31.90"}
    first, second, third = call(body), call(body), call(body)
    assert (first.status_code, second.status_code, third.status_code) == (503, 201, 200)
    assert first.headers["Retry-After"] == "1"
    assert second.json() == third.json()
    payment = Payment.objects.get()
    assert (payment.amount, payment.calls, payment.reference) == (Decimal("31.90"), 3, second.json()["reference"])


def test_each_key_fails_as_often_as_configured(cart: Cart, settings: Any) -> None:
    settings.DEMO_BANK_FAILURES = 2
    body = {"cart": cart.pk, "amount": "31.90"}
    assert [call(body, key).status_code for key in ("a", "b") for _ in range(3)] == [503, 503, 201] * 2
    settings.DEMO_BANK_FAILURES = 0
    assert call(body, "c").status_code == 201


def test_a_key_belongs_to_one_payment(cart: Cart, customer: Any) -> None:
    other = carts.create_cart(owner=customer, email="customer@example.com")
    call({"cart": cart.pk, "amount": "31.90"})
    for body in ({"cart": cart.pk, "amount": "31.91"}, {"cart": other.pk, "amount": "31.90"}):
        answer = call(body)
        assert (answer.status_code, answer.json()["code"]) == (422, "idempotency_conflict")
    assert Payment.objects.get().calls == 1


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("{", 400),
        ([], 400),
        ({"cart": "x", "amount": "1.00"}, 400),
        ({"cart": 1}, 400),
        ({"cart": 1, "amount": "NaN"}, 400),
        ({"cart": 1, "amount": "-1.00"}, 400),
        ({"cart": 1, "amount": "0.001"}, 400),
        ({"cart": 1, "amount": "1e30"}, 400),
        ({"cart": 10**30, "amount": "1.00"}, 404),
        ({"cart": 0, "amount": "1.00"}, 404),
    ],
)
@pytest.mark.django_db
def test_bad_input_is_named_and_nothing_is_stored(body: Any, status: int) -> None:
    answer = call(body)
    assert answer.status_code == status
    assert answer.json()["detail"]
    assert not Payment.objects.exists()


@pytest.mark.parametrize("key", ["", "k" * 101])
def test_a_key_is_asked_for(cart: Cart, key: str) -> None:
    assert call({"cart": cart.pk, "amount": "31.90"}, key).status_code == 400


@pytest.mark.parametrize("authorization", ["", "Bearer ", "Bearer x", "Token x"])
def test_only_the_shop_charges(cart: Cart, authorization: str) -> None:
    assert call({"cart": cart.pk, "amount": "31.90"}, Authorization=authorization).status_code == 401
    assert not Payment.objects.exists()


@pytest.mark.django_db
def test_only_post_charges(client: Client) -> None:
    assert client.get(reverse("demo:charges")).status_code == 405


@pytest.mark.django_db(transaction=True)
def test_simultaneous_calls_with_one_key_pay_once(cart: Cart, settings: Any) -> None:
    settings.DEMO_BANK_FAILURES = 0

    def charge(_: int) -> tuple[str, bool]:
        try:
            payment, first = bank.charge(cart, cart.total, key="one")
            return payment.reference, first
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(charge, range(8)))
    assert sorted(first for _, first in answers) == [False] * 7 + [True]
    assert {reference for reference, _ in answers} == {Payment.objects.get().reference}


@pytest.fixture
def step_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payments, "get_step_context", lambda: SimpleNamespace(idempotency_key="step-key"))


@pytest.mark.usefixtures("step_key")
@pytest.mark.django_db(transaction=True)
def test_the_step_charges_over_http_with_its_own_key(cart: Cart, live_server: LiveServer, settings: Any) -> None:
    settings.BASE_URL = live_server.url
    checked_out: carts.CheckedOutCart = {"cart_id": cart.pk, "total": cart.total, "email": cart.email}
    with pytest.raises(payments.BankUnavailable, match="503"):
        payments.charge(checked_out)
    reference = payments.charge(checked_out)
    assert payments.charge(checked_out) == reference
    assert Payment.objects.get().idempotency_key == "step-key"
    with pytest.raises(payments.PaymentRefused, match="422"):
        payments.charge(checked_out | {"total": Decimal("1.00")})


@pytest.mark.usefixtures("step_key")
def test_a_bank_that_is_away_is_worth_another_attempt(settings: Any) -> None:
    settings.BASE_URL = "http://127.0.0.1:9"
    with pytest.raises(payments.BankUnavailable, match="cannot be reached"):
        payments.charge({"cart_id": 1, "total": Decimal("1.00"), "email": ""})

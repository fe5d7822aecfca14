"""The bank: ``POST /demo/bank/charges/``, as a payment provider offers it. Only the shop's token opens it."""

from __future__ import annotations

import json
import time
from decimal import Decimal, InvalidOperation
from typing import Any

from django.http import HttpRequest, JsonResponse
from django.utils.crypto import constant_time_compare
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from project.demo import conf
from project.demo.models import Cart
from project.demo.services import bank


class BadCharge(ValueError):
    """The request does not say what to charge."""


@csrf_exempt  # for programs: a bearer token, no cookie
@require_POST
def charges(request: HttpRequest) -> JsonResponse:
    """Charge ``{"cart": 3, "amount": "31.90"}`` once per ``Idempotency-Key``.

    201 with the payment, 200 with the same payment for a repeated key, 503 with ``Retry-After`` when the bank is busy
    (each new key meets that first), 400 for a bad body, 401 without the token, 404 for an unknown cart, 422 for a key
    that was used with another body.
    """
    if not constant_time_compare(request.headers.get("Authorization", ""), f"Bearer {conf.bank_token()}"):
        return _problem(401, "unauthorized", "Send the shop's token: Authorization: Bearer ...")
    time.sleep(conf.bank_delay())
    try:
        cart, amount, key = _read(request)
        payment, first = bank.charge(cart, amount, key=key)
    except BadCharge as error:
        return _problem(400, "invalid", str(error))
    except Cart.DoesNotExist:
        return _problem(404, "not_found", "There is no such cart.")
    except bank.KeyReused as error:
        return _problem(422, "idempotency_conflict", str(error))
    except bank.Unavailable as error:
        return _problem(503, "unavailable", str(error), {"Retry-After": "1"})
    body = {"reference": payment.reference, "amount": str(payment.amount), "cart": payment.cart_id}
    return JsonResponse(body, status=201 if first else 200)


def _read(request: HttpRequest) -> tuple[Cart, Decimal, str]:
    key = request.headers.get("Idempotency-Key", "")
    if not 1 <= len(key) <= 100:
        raise BadCharge("Send an Idempotency-Key of 1 to 100 characters.")
    try:
        body: Any = json.loads(request.body)
        cart_id, amount = int(body["cart"]), Decimal(body["amount"])
    except (ValueError, TypeError, KeyError, InvalidOperation):
        raise BadCharge('Expected a body like {"cart": 3, "amount": "31.90"}.') from None
    if not (amount.is_finite() and 0 < amount < 10**8 and amount == round(amount, 2)):
        raise BadCharge("The amount must be above zero, in whole cents.")
    return Cart.objects.get(pk=cart_id), amount, key


def _problem(status: int, code: str, detail: str, headers: dict[str, str] | None = None) -> JsonResponse:
    return JsonResponse({"code": code, "detail": detail}, status=status, headers=headers)

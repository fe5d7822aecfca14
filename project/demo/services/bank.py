"""The bank's side: a ledger with one payment per idempotency key, and a habit of failing the first call."""

from __future__ import annotations

from decimal import Decimal
from uuid import uuid4

from django.db import transaction
from django.utils import timezone

from project.demo import conf
from project.demo.models import Cart, Payment


class Unavailable(Exception):
    """The bank takes no payments at the moment."""


class KeyReused(Exception):
    """The idempotency key was used before, for another cart or amount."""


def charge(cart: Cart, amount: Decimal, *, key: str) -> tuple[Payment, bool]:
    """Charge ``amount`` once per ``key``; the payment, and whether this call made it.

    Each new key meets ``conf.bank_failures()`` refusals (``Unavailable``) before it is paid: they are counted on its
    row, so they are the same in every process and after a restart. A known key with other data is ``KeyReused``.
    """
    with transaction.atomic():
        Payment.objects.get_or_create(
            idempotency_key=key, defaults={"cart": cart, "amount": amount, "reference": f"pay_{uuid4().hex[:16]}"}
        )
        payment = Payment.objects.select_for_update().get(idempotency_key=key)
        if (payment.cart_id, payment.amount) != (cart.pk, amount):
            raise KeyReused("This Idempotency-Key belongs to another payment.")
        payment.calls += 1
        first = payment.paid_at is None and payment.calls > conf.bank_failures()
        if first:
            payment.paid_at = timezone.now()
        payment.save(update_fields=["calls", "paid_at"])
    if payment.paid_at is None:
        raise Unavailable("The bank is busy. Please try again.")
    return payment, first

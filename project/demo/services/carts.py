"""Carts: making one, checking it out, the first step of the workflow that pays it, and forgetting those that nobody wanted."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from decimal import Decimal
from typing import TypedDict

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models.functions import Now

from durableflow import InvalidTransition, get_step_context
from durableflow.models import WorkflowInstance
from project.demo.models import Cart, Line

SAMPLE_LINES: tuple[Line, ...] = (
    {"name": "Enamel mug", "quantity": 2, "price": "9.50"},
    {"name": "Notebook, dotted", "quantity": 1, "price": "12.90"},
)


class NotCheckedOut(Exception):
    """The cart's owner has not checked it out yet: to be tried again later."""


class CheckedOutCart(TypedDict):
    """What the later steps need to know of a cart."""

    cart_id: int
    total: Decimal
    email: str


def create_cart(*, owner: User, email: str, lines: Iterable[Line] = SAMPLE_LINES) -> Cart:
    """Make a cart and compute its total. Its workflow is the caller's business."""
    kept = list(lines)
    return Cart.objects.create(owner=owner, email=email, lines=kept, total=total_of(kept))


def total_of(lines: Iterable[Line]) -> Decimal:
    """The sum of the lines, to the cent."""
    return sum((Decimal(line["price"]) * line["quantity"] for line in lines), Decimal("0.00"))


def check_out(cart: Cart) -> bool:
    """Check a cart out. False where it already was: the first time stands."""
    return bool(Cart.objects.filter(pk=cart.pk, checked_out_at=None).update(checked_out_at=Now()))


def load_checked_out_cart(cart_id: int) -> CheckedOutCart:
    """The cart once it is checked out, linked to the workflow of this step. ``NotCheckedOut`` before that."""
    cart = Cart.objects.get(pk=cart_id)
    if cart.instance is None:
        context = get_step_context()
        cart.instance = WorkflowInstance.objects.get(workflow=context.workflow, instance_id=context.instance_id)
        cart.save(update_fields=["instance"])
    if cart.checked_out_at is None:
        raise NotCheckedOut(f"{cart} is not checked out yet")
    return {"cart_id": cart.pk, "total": cart.total, "email": cart.email}


def left_behind(before: datetime) -> list[int]:
    """Keys of carts that were made before a moment and never checked out, the oldest first; at most a thousand."""
    return list(
        Cart.objects.filter(checked_out_at=None, created_at__lt=before)
        .order_by("pk")
        .values_list("pk", flat=True)[:1000]
    )


def forget(cart_id: int) -> bool:
    """End the workflow of a cart and delete the cart, in one transaction. False where it was checked out or deleted meanwhile, so
    that a repeated call does no harm."""
    with transaction.atomic():
        cart = Cart.objects.select_for_update().filter(pk=cart_id, checked_out_at=None).first()
        if cart is None:
            return False
        if cart.instance is not None:
            with suppress(InvalidTransition):  # it has ended by itself
                cart.instance.terminate(reason=f"{cart} was never checked out.")
        cart.delete()
    return True

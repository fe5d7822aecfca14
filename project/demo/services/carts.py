"""Carts: making one, checking it out, and the first step of the workflow that pays it."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import TypedDict

from django.contrib.auth.models import User
from django.db.models.functions import Now

from durableflow import get_step_context
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

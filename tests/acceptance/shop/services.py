from __future__ import annotations

from typing import Any, TypedDict

from django.contrib.auth.models import User
from django.core.mail import send_mail
from django.db.models import QuerySet

from durableflow import get_step_context
from durableflow.models import PendingEvent
from shop import stripe


class Cart(TypedDict):
    total: int


class CardDeclined(Exception):
    """The bank says no, for good."""


def load_cart(cart_id: int) -> Cart:
    return {"total": 100 * cart_id}


def charge_card(total: int) -> str:
    key = get_step_context().idempotency_key          # same key across attempts, crashes and retry()
    return stripe.charge(total, idempotency_key=key)


def mail_managers(pending: PendingEvent) -> None:     # given as notify=; a recorded step body
    for user in managers():
        send_mail(f"Decide: {pending.title}", pending.decision_url(user, expires="3 days"), None, [user.email])


def managers() -> QuerySet[User]:
    return User.objects.filter(groups__name="managers")


def mail_invoice(cart: Cart, charge: str) -> None:
    send_mail("Your invoice", f"{cart['total']}, paid with {charge}", None, ["customer@example.com"])


def create_intent(order: str) -> str:
    return f"intent-{order}"


def list_tables() -> list[str]:
    return ["customers", "orders"]


def export_table(table: str) -> str:
    return f"exports/{table}.csv"


def write_manifest(day: str, keys: list[str]) -> str:
    return f"exports/{day}/{len(keys)}.json"


def book(kind: str) -> str:
    return f"{kind}-{get_step_context().idempotency_key[:8]}"


def cancel(kind: str, ref: str) -> None:
    """Cancel a booking, by its reference or by the key that it was made with."""


def pay(bookings: list[str]) -> None:
    """Pay for the bookings."""


def measure(page: int) -> int:
    return page % 7


def render(page: int) -> str:
    return f"pages/{page}.pdf"


def index(keys: list[str]) -> int:
    return len(keys)


DANGEROUS = frozenset({"shell", "browser"})


def ask_model(messages: list[dict[str, Any]]) -> dict[str, Any]:
    return {"text": f"answer after {len(messages)}"}


def call_tool(tool: str, args: dict[str, Any]) -> dict[str, Any]:
    return {"role": "tool", "content": f"{tool}({args})"}

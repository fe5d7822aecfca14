"""The last step of a payment: write the invoice, store it, mail it."""

from __future__ import annotations

from typing import TypedDict

from django.core.mail import EmailMessage
from django.utils import timezone

from durableflow import get_step_context
from project.demo.models import Cart, Invoice
from project.demo.services.files import store

SENDER = "shop@durableflow.example"


class Mailed(TypedDict):
    """The number of an invoice and the stored name of its document."""

    number: str
    document: str


def mail_invoice(cart_id: int, reference: str) -> Mailed:
    """Store the invoice of a paid cart and mail it to the cart's address.

    A mail cannot be taken back, so it is sent at least once: a crash right after sending may send it again, with the
    same ``Message-ID``, by which a mailbox recognises it. Once the row says that it was sent, nothing is sent again.
    """
    cart = Cart.objects.get(pk=cart_id)
    invoice = _invoice(cart, reference)
    if invoice.sent_at is None:
        _message(invoice, cart).send()
        Invoice.objects.filter(pk=invoice.pk, sent_at=None).update(sent_at=timezone.now())
    return {"number": invoice.number, "document": str(invoice.document)}


def invoice_text(cart: Cart, number: str, reference: str) -> str:
    """The invoice as plain text, the same each time it is written."""
    day = (cart.checked_out_at or cart.created_at).date()
    rows = [f"{line['quantity']:>3} x {line['name']:<32}{line['price']:>10}" for line in cart.lines]
    head = [f"Invoice {number}", f"Date     {day.isoformat()}", f"Payment  {reference}", ""]
    return "\n".join([*head, *rows, "", f"{'Total (EUR)':<38}{cart.total:>10}", ""])


def _invoice(cart: Cart, reference: str) -> Invoice:
    year = (cart.checked_out_at or cart.created_at).year
    number = f"{year}-{cart.pk:05d}"
    document = store(f"invoices/{number}-{reference}.txt", invoice_text(cart, number, reference).encode())
    key = get_step_context().idempotency_key
    invoice, _ = Invoice.objects.get_or_create(
        cart=cart,
        defaults={"number": number, "document": document, "message_id": f"<invoice.{key}@durableflow.example>"},
    )
    return invoice


def _message(invoice: Invoice, cart: Cart) -> EmailMessage:
    message = EmailMessage(
        subject=f"Your invoice {invoice.number}",
        body=f"Thank you for your order.\n\nYour invoice {invoice.number} is attached.\n",
        from_email=SENDER,
        to=[cart.email],
        headers={"Message-ID": invoice.message_id},
    )
    with invoice.document.open("rb") as document:
        message.attach(f"invoice-{invoice.number}.txt", document.read().decode(), "text/plain")
    return message

"""The workflows of the example app: two that people start, and one that a schedule starts each night."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, TypedDict

from django import forms
from django.core.exceptions import ObjectDoesNotExist
from PIL import UnidentifiedImageError

from durableflow import EventTimeout, Retention, Retries, Schedule, Step, Workflow, WorkflowEvent
from project.demo.services import carts, images, invoices, payments


class ApprovalForm(forms.Form):
    """What the person who approves a picture may add."""

    title = forms.CharField(
        max_length=120, required=False, help_text="Shown with the picture instead of its file name."
    )


class ImageParams(TypedDict):
    """``image_id``: key of the ``Image`` row."""

    image_id: int


class CartParams(TypedDict):
    """``cart_id``: key of the ``Cart`` row."""

    cart_id: int


class ImageTagging(Workflow[ImageParams, dict[str, Any]]):
    """Measure an uploaded picture, let a person look at it, then tag it by its pixels."""

    class Meta:
        name = "image-tagging"
        step_retries = Retries(limit=3, delay=2, give_up_on=(ObjectDoesNotExist, UnidentifiedImageError))
        step_timeout = "1 minute"

    def run(self, event: WorkflowEvent[ImageParams], step: Step) -> dict[str, Any]:
        """Returns ``{"state": "tagged" | "rejected" | "expired", ...}``; a picture that nobody approved is not tagged."""
        image_id = event.params["image_id"]
        metadata = step.do("save metadata", images.save_metadata, image_id)
        try:
            decision = step.wait_for_approval(
                "approval",
                title=f"Approve {metadata['name']}?",
                description="Open the picture. Approve it if it may be shown with its tags.",
                context={**metadata},
                form=ApprovalForm,
                permission="demo.approve_image",
                allow_requester=False,
                timeout="7 days",
            )
        except EventTimeout:
            return {"state": "expired"}
        if not decision:
            return {"state": "rejected", "by": decision.by, "why": decision.comment}
        tagged = step.do("compute tags", images.compute_tags, image_id)
        step.do("store tags", images.store_tags, image_id, tagged, str(decision.data.get("title", "")))
        return {"state": "tagged", **tagged}


class PayCart(Workflow[CartParams, dict[str, str]]):
    """Wait until a cart is checked out, charge it once, and mail its invoice."""

    class Meta:
        name = "pay-cart"
        step_retries = Retries(
            limit=20, delay=1, max_delay="10 seconds", give_up_on=(ObjectDoesNotExist, payments.PaymentRefused)
        )
        step_timeout = "1 minute"

    def run(self, event: WorkflowEvent[CartParams], step: Step) -> dict[str, str]:
        """Returns ``{"state": "paid", "payment": ..., "invoice": ..., "document": ...}``."""
        cart_id = event.params["cart_id"]
        every_two_seconds = Retries(limit=5000, delay=2, backoff="constant", give_up_on=(ObjectDoesNotExist,))
        cart = step.do("wait for checkout", carts.load_checked_out_cart, cart_id, retries=every_two_seconds)
        reference = step.do("charge", payments.charge, cart)
        step.set_progress({"state": "charged", "payment": reference})
        mailed = step.do("mail invoice", invoices.mail_invoice, cart_id, reference)
        return {"state": "paid", "payment": reference, "invoice": mailed["number"], "document": mailed["document"]}


class ForgetCarts(Workflow[None, dict[str, int]]):
    """Each night: end the workflows of carts that nobody has checked out for 30 days, and delete the carts."""

    class Meta:
        name = "forget-carts"
        schedules = [Schedule("0 3 * * *", name="nightly", overlap="skip")]
        retention = Retention(success="7 days")

    def run(self, event: WorkflowEvent[None], step: Step) -> dict[str, int]:
        """Returns ``{"forgotten": number of carts}``. What counts is the slot, however late it starts."""
        before = (event.scheduled_for or event.timestamp) - timedelta(days=30)
        left = step.do("find carts", carts.left_behind, before)
        return {"forgotten": sum(step.map("forget cart", carts.forget, left))}

"""The workflows of the example app from end to end, with real steps on a real picture."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any
from urllib.error import URLError

import pytest
from django.core import mail
from django.core.exceptions import PermissionDenied
from django.core.files import File
from django.core.files.base import ContentFile
from django.core.files.storage import default_storage
from django.test import Client

from durableflow.models import WorkflowInstance
from durableflow.templatetags import durableflow as tags
from durableflow.testing import Harness, harness
from project.demo.models import Cart, Image, Invoice, Payment
from project.demo.runner import flow as flows
from project.demo.runner.errors import DemoFailed
from project.demo.runner.flow import SAMPLES
from project.demo.services import bank, carts, images, payments
from project.demo.workflows import CartParams, ForgetCarts, ImageParams, ImageTagging, PayCart
from tests.conftest import UserFactory

pytestmark = pytest.mark.django_db
S = WorkflowInstance.Status


@pytest.fixture
def approver(user_factory: UserFactory) -> Any:
    return user_factory("approver", permissions=["demo.approve_image"], is_staff=True)


@pytest.fixture
def image(customer: Any) -> Image:
    with (SAMPLES / "sunset.jpg").open("rb") as stream:
        return images.add_image(File(stream, name="sunset.jpg"), by=customer)


@pytest.fixture
def cart(customer: Any) -> Cart:
    return carts.create_cart(owner=customer, email="customer@example.com")


@pytest.fixture
def open_bank(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The bank without the network between: the keys it was called with."""
    keys: list[str] = []

    def post(body: dict[str, Any], *, key: str) -> dict[str, Any]:
        keys.append(key)
        try:
            payment, _ = bank.charge(Cart.objects.get(pk=body["cart"]), Decimal(body["amount"]), key=key)
        except bank.Unavailable as error:
            raise payments.BankUnavailable("503") from error
        return {"reference": payment.reference}

    monkeypatch.setattr(payments, "_post", post)
    return keys


def tagging(workflows: Harness, image: Image, customer: Any) -> WorkflowInstance:
    return workflows.run(ImageTagging, ImageParams(image_id=image.pk), created_by=customer)


def test_an_approved_picture_is_tagged(workflows: Harness, image: Image, customer: Any, approver: Any) -> None:
    run = tagging(workflows, image, customer)
    assert run.status == S.WAITING
    pending = workflows.pending(run)
    assert pending.context["picture"].endswith(f"/demo/images/{image.pk}/file/")
    assert (pending.context["width"], pending.context["height"], pending.context["format"]) == (480, 300, "JPEG")
    image.refresh_from_db()
    assert (image.instance, image.tags, len(image.sha256)) == (run, None, 64)
    workflows.approve(run, by=approver, data={"title": "Evening"})
    assert run.status == S.COMPLETE
    image.refresh_from_db()
    assert image.title == "Evening"
    tags: Any = image.tags
    assert [colour["name"] for colour in tags["colours"]] == ["orange", "blue", "yellow"]
    assert default_storage.exists(str(image.thumbnail))
    assert run.output["state"] == "tagged"
    assert run.output["thumbnail"] == image.thumbnail.name


def test_a_rejected_picture_is_not_tagged(workflows: Harness, image: Image, customer: Any, approver: Any) -> None:
    run = tagging(workflows, image, customer)
    workflows.reject(run, by=approver, comment="blurred")
    assert run.output == {"state": "rejected", "by": "approver", "why": "blurred"}
    image.refresh_from_db()
    assert image.tags is None
    assert workflows.attempts("compute tags", run) == 0


def test_a_picture_nobody_looks_at_expires(workflows: Harness, image: Image, customer: Any) -> None:
    run = tagging(workflows, image, customer)
    workflows.advance("8 days")
    assert run.output == {"state": "expired"}


def test_who_may_not_approve(workflows: Harness, image: Image, customer: Any, user_factory: UserFactory) -> None:
    run = tagging(workflows, image, customer)
    general = user_factory("general", permissions=["durableflow.decide_pendingevent"], is_staff=True)
    requester = user_factory("allowed", permissions=["demo.approve_image"])
    WorkflowInstance.objects.filter(pk=run.pk).update(created_by=requester)
    for user in (customer, general, requester):
        with pytest.raises(PermissionDenied):
            workflows.approve(run, by=user, data={"title": ""})


def test_a_crash_after_the_thumbnail_leaves_one_thumbnail(
    workflows: Harness, image: Image, customer: Any, approver: Any
) -> None:
    run = tagging(workflows, image, customer)
    workflows.crash_before_checkpoint("compute tags")
    workflows.approve(run, by=approver, data={"title": ""})
    assert (run.status, workflows.attempts("compute tags", run)) == (S.COMPLETE, 2)
    _, thumbnails = default_storage.listdir("thumbnails")
    assert len([name for name in thumbnails if name.startswith(f"{image.pk}-")]) == 1


def test_a_file_that_is_no_picture_fails_without_retries(workflows: Harness, customer: Any) -> None:
    image = images.add_image(ContentFile(b"no picture", name="fake.png"), by=customer)
    run = tagging(workflows, image, customer)
    assert (run.status, workflows.attempts("save metadata", run)) == (S.ERRORED, 1)
    assert run.error is not None
    assert run.error["type"].endswith("UnidentifiedImageError")


def test_an_unknown_picture_fails_without_retries(workflows: Harness, customer: Any) -> None:
    run = workflows.run(ImageTagging, ImageParams(image_id=0), created_by=customer)
    assert (run.status, workflows.attempts("save metadata", run)) == (S.ERRORED, 1)


def test_a_cart_is_paid_once_it_is_checked_out(
    workflows: Harness, cart: Cart, customer: Any, open_bank: list[str]
) -> None:
    run = workflows.run(PayCart, CartParams(cart_id=cart.pk), created_by=customer)
    workflows.advance("10 seconds")
    assert run.status == S.WAITING
    assert workflows.attempts("wait for checkout", run) >= 5
    assert open_bank == []
    carts.check_out(cart)
    workflows.advance("2 seconds")
    workflows.advance("1 second")
    cart.refresh_from_db()
    payment, invoice = Payment.objects.get(), Invoice.objects.get()
    assert run.output == {
        "state": "paid",
        "payment": payment.reference,
        "invoice": invoice.number,
        "document": invoice.document.name,
    }
    assert len(open_bank) == 2
    assert len(set(open_bank)) == 1
    assert (payment.cart, payment.calls, cart.instance) == (cart, 2, run)


def paid(workflows: Harness, cart: Cart) -> WorkflowInstance:
    carts.check_out(cart)
    run = workflows.run(PayCart, CartParams(cart_id=cart.pk))
    workflows.advance("1 minute")
    return run


@pytest.mark.usefixtures("open_bank")
def test_the_invoice_is_mailed_with_its_document(workflows: Harness, cart: Cart) -> None:
    run = paid(workflows, cart)
    message = mail.outbox[0]
    invoice = Invoice.objects.get()
    assert len(mail.outbox) == 1
    assert message.to == ["customer@example.com"]
    assert message.extra_headers["Message-ID"] == invoice.message_id
    name, content, kind = message.attachments[0]
    assert (name, kind) == (f"invoice-{invoice.number}.txt", "text/plain")
    assert "31.90" in content
    assert run.output["payment"] in content
    with default_storage.open(str(invoice.document)) as document:
        assert document.read().decode() == content


@pytest.mark.usefixtures("open_bank")
def test_crashes_after_charge_and_mail_repeat_neither(workflows: Harness, cart: Cart) -> None:
    workflows.crash_before_checkpoint("charge")
    workflows.crash_before_checkpoint("mail invoice")
    run = paid(workflows, cart)
    assert run.status == S.COMPLETE
    assert workflows.attempts("mail invoice", run) == 2
    assert Payment.objects.exclude(paid_at=None).count() == 1
    assert len(mail.outbox) == 1


@pytest.mark.usefixtures("open_bank")
def test_a_mail_that_may_have_gone_out_is_repeated_with_the_same_id(
    workflows: Harness, cart: Cart, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = mail.EmailMessage.send
    tries: list[int] = []

    def send_then_fail(message: mail.EmailMessage, **kwargs: Any) -> int:
        sent = send(message, **kwargs)
        tries.append(sent)
        if len(tries) == 1:
            raise URLError("the connection broke after the mail was taken")
        return sent

    monkeypatch.setattr(mail.EmailMessage, "send", send_then_fail)
    assert paid(workflows, cart).status == S.COMPLETE
    assert len(mail.outbox) == 2
    assert len({message.extra_headers["Message-ID"] for message in mail.outbox}) == 1


def test_a_refused_payment_is_not_tried_again(workflows: Harness, cart: Cart, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise payments.PaymentRefused("The bank answered 422: no")

    monkeypatch.setattr(payments, "_post", refuse)
    run = paid(workflows, cart)
    assert (run.status, workflows.attempts("charge", run)) == (S.ERRORED, 1)
    assert not mail.outbox


def test_a_cart_that_nobody_checks_out_is_forgotten_after_a_month(customer: Any) -> None:
    """The slots of two nights with a testing kit whose clock is a month on; a paid-for cart and a new one stay."""
    kept, left, new = (carts.create_cart(owner=customer, email="customer@example.com") for _ in range(3))
    carts.check_out(kept)
    Cart.objects.exclude(pk=new.pk).update(created_at=new.created_at - timedelta(days=40))
    with harness(now=new.created_at.replace(hour=12)) as workflows:
        waiting = workflows.run(PayCart, CartParams(cart_id=left.pk))
        waiting.pause(reason="its owner is asked")
        workflows.advance("2 days")
        nights = list(ForgetCarts.instances().order_by("id"))
        assert [(night.status, night.output) for night in nights] == [
            (S.COMPLETE, {"forgotten": 1}),
            (S.COMPLETE, {"forgotten": 0}),
        ]
        assert nights[0].instance_id.startswith("nightly-")
        waiting.refresh_from_db()
        assert (waiting.status, set(Cart.objects.all())) == (S.TERMINATED, {kept, new})
        assert "was never checked out" in waiting.history.get(type="workflow_terminated").reason


def test_a_cart_that_was_checked_out_meanwhile_is_not_forgotten(cart: Cart) -> None:
    assert carts.left_behind(cart.created_at + timedelta(seconds=1)) == [cart.pk]
    carts.check_out(cart)
    assert not carts.forget(cart.pk)
    assert Cart.objects.filter(pk=cart.pk).exists()


def test_forgetting_a_cart_again_does_no_harm(cart: Cart) -> None:
    assert [carts.forget(cart.pk) for _ in range(2)] == [True, False]


@pytest.mark.usefixtures("open_bank")
def test_the_demo_tells_what_is_stored_and_what_is_not(
    workflows: Harness, image: Image, cart: Cart, customer: Any, approver: Any
) -> None:
    run = tagging(workflows, image, customer)
    paid(workflows, cart)
    workflows.reject(run, by=approver, comment="blurred")
    nothing: Any = None
    flow = flows.Flow(image=image, cart=cart, tagging=nothing, payment=nothing, say=print)
    lines = flows.stored(flow, everything=False)
    assert "tags       none" in lines
    assert any(line.startswith("payment    pay_") for line in lines)
    with pytest.raises(DemoFailed, match="not stored: tags, thumbnail"):
        flows.stored(flow, everything=True)
    Payment.objects.create(
        idempotency_key="x", cart=cart, amount=cart.total, reference="again", calls=1, paid_at=cart.created_at
    )
    with pytest.raises(DemoFailed, match="paid 2 times"):
        flows.stored(flow, everything=False)


def test_pages_count_what_waits_on_the_user(
    workflows: Harness, image: Image, customer: Any, approver: Any, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    tagging(workflows, image, customer)
    seen = {}
    for user in (customer, approver):
        client.force_login(user)
        seen[user] = 'class="count">1<' in client.get("/").content.decode()
    assert seen == {customer: False, approver: True}
    assert "Waiting on you: 1" in client.get("/admin/").content.decode()
    monkeypatch.setattr(tags, "MOST", 0)
    assert 'class="count">0+<' in client.get("/").content.decode()

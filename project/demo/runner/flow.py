"""What the demo does: start both workflows, check the cart out, decide or wait for a person, tell what was stored."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from django.conf import settings
from django.core.files import File

from project.demo.models import Cart, Image, Invoice
from project.demo.runner.client import Api, Refused
from project.demo.runner.errors import DemoFailed
from project.demo.runner.people import Person
from project.demo.runner.watch import Watched, all_pages
from project.demo.services import carts, images

SAMPLES = Path(__file__).resolve().parents[1] / "sample"
CHECK_OUT_AFTER = 3.0
PAUSE, LONG_PAUSE = 0.3, 2.0


@dataclass
class Flow:
    """The rows and the instances of one demo."""

    image: Image
    cart: Cart
    tagging: Watched
    payment: Watched
    say: Callable[[str], None]

    @property
    def instances(self) -> tuple[Watched, Watched]:
        """Both."""
        return self.tagging, self.payment

    @property
    def complete(self) -> bool:
        """Whether both are."""
        return all(instance.complete for instance in self.instances)

    def look(self) -> None:
        """See what has changed."""
        for instance in self.instances:
            if not instance.complete:
                instance.look(self.say)

    def check_out(self) -> None:
        """What the button on the page does."""
        if carts.check_out(self.cart):
            self.say(f"{self.payment}: the customer checks the cart out")

    def pending_approval(self) -> int | None:
        """The id of the open pending event, once the picture waits for its decision."""
        return next((int(wait["pending_event"]) for wait in self.tagging.waits if wait.get("pending_event")), None)

    def unfinished(self) -> str:
        """What is not complete and why, for the message of a failure."""
        late = [instance for instance in self.instances if not instance.complete]
        return "; ".join(f"{one} is {one.status}" + (f": {one.trouble()}" if one.stuck else "") for one in late)


def start(requester: Person, api: Api, *, say: Callable[[str], None]) -> Flow:
    """Make one picture and one cart of the requester's, and start their workflows through the API."""
    samples = sorted(SAMPLES.iterdir())
    sample = samples[Image.objects.count() % len(samples)]
    with sample.open("rb") as stream:
        image = images.add_image(File(stream, name=sample.name), by=requester.user)
    cart = carts.create_cart(owner=requester.user, email=requester.user.email)
    tagging = _start(api, "image-tagging", f"image-{image.pk}", {"image_id": image.pk})
    payment = _start(api, "pay-cart", f"cart-{cart.pk}", {"cart_id": cart.pk})
    for instance, what in ((tagging, f"picture {sample.name}"), (payment, f"cart over {cart.total} EUR")):
        say(f"{instance}: started for {what}")
    return Flow(image=image, cart=cart, tagging=tagging, payment=payment, say=say)


def _start(api: Api, workflow: str, instance_id: str, params: dict[str, int]) -> Watched:
    body = {"instance_id": instance_id, "params": params}
    # The key makes the call safe to repeat: when the answer is lost, the same instance is answered again.
    api.post(f"/api/workflows/{workflow}/instances/", body, **{"Idempotency-Key": str(uuid4())})
    return Watched(api=api, workflow=workflow, instance_id=instance_id)


def run_until_complete(flow: Flow, *, decide: Callable[[int], None], deadline: float | None) -> None:
    """Look until both are complete. ``decide`` gets the pending event's id, once.

    ``deadline``, in seconds of ``time.monotonic()``: past it, or when an instance does not go on by itself, ``DemoFailed``
    names what is not complete. Without one a person is there to repair it, and this waits for as long as it takes.
    """
    started, decided, checked_out = time.monotonic(), False, False
    while True:
        flow.look()
        if flow.complete:
            return
        now = time.monotonic()
        if not checked_out and now - started >= CHECK_OUT_AFTER:
            flow.check_out()
            checked_out = True
        pending = flow.pending_approval()
        if pending is not None and not decided:
            decide(pending)
            decided = True
        stuck = any(instance.stuck for instance in flow.instances)
        if deadline is not None and stuck:
            raise DemoFailed(f"Not complete: {flow.unfinished()}.")
        if deadline is not None and now > deadline:
            raise DemoFailed(f"Not complete in time: {flow.unfinished()}.")
        time.sleep(LONG_PAUSE if stuck else PAUSE)


def approve(api: Api, pending_event: int, *, title: str) -> None:
    """Approve as a person's program would: find the event among those that wait on its user, then decide it."""
    mine = [row["id"] for row in all_pages(api, "/api/pending-events/?mine=true")]
    if pending_event not in mine:
        raise DemoFailed(f"Pending event {pending_event} does not wait on the approver.")
    body = {"approved": True, "data": {"title": title}, "comment": "Approved by the demo."}
    try:
        api.post(f"/api/pending-events/{pending_event}/decide/", body)
    except Refused as refused:
        # The call is repeated when its answer is lost: then the first one has already decided.
        if refused.code != "already_decided":
            raise


def stored(flow: Flow, *, everything: bool) -> list[str]:
    """What the two workflows have left behind, as lines of text.

    ``everything``: raises ``DemoFailed`` where something is missing. Else the lines say so: a picture may be rejected.
    """
    image, cart = Image.objects.get(pk=flow.image.pk), Cart.objects.get(pk=flow.cart.pk)
    lines = {
        "picture": f"{image.file.name} ({image.width} x {image.height} {image.format}, sha256 {image.sha256[:12]}...)",
        "tags": _tags(image),
        "thumbnail": image.thumbnail.name or "",
        "payment": _payment(cart),
        "invoice": _invoice(cart),
        "files in": f"{settings.MEDIA_ROOT}, mails in {settings.MAIL_DIR}",
    }
    missing = [name for name, text in lines.items() if not text]
    if everything and missing:
        raise DemoFailed(f"Both workflows are complete, but not stored: {', '.join(missing)}.")
    return [f"{name:<11}{text or 'none'}" for name, text in lines.items()]


def _tags(image: Image) -> str:
    if not image.tags:
        return ""
    colours = ", ".join(f"{colour['name']} {colour['share']:.0%}" for colour in image.tags["colours"])
    return f"{colours}; {image.tags['brightness']}; {image.tags['orientation']}"


def _payment(cart: Cart) -> str:
    made = list(cart.payments.exclude(paid_at=None))
    if len(made) > 1:
        raise DemoFailed(f"{cart} was paid {len(made)} times: {', '.join(payment.reference for payment in made)}.")
    return "".join(f"{one.reference}: {one.amount} EUR, paid once in {one.calls} calls of the bank" for one in made)


def _invoice(cart: Cart) -> str:
    invoice = Invoice.objects.filter(cart=cart).exclude(sent_at=None).first()
    return f"{invoice.document.name}, mailed to {cart.email}" if invoice else ""

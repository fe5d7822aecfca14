"""The pages of the example app: who may open and change what, and that everything shown is escaped."""

from __future__ import annotations

import re
from io import BytesIO
from typing import Any

import pytest
from django.core.files import File
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import DatabaseError
from django.test import Client
from django.urls import reverse
from PIL import Image as Pillow

from durableflow.models import WorkflowInstance
from project.demo.models import Cart, Image
from project.demo.runner.flow import SAMPLES
from project.demo.services import carts, images
from project.demo.workflows import ImageTagging
from tests.conftest import UserFactory

START = "durableflow.start_workflowinstance"
GET_PAGES = ("demo:images", "demo:carts", "demo:upload")


@pytest.fixture
def starter(user_factory: UserFactory) -> Any:
    return user_factory("starter", permissions=[START])


@pytest.fixture
def image(starter: Any) -> Image:
    with (SAMPLES / "flower.png").open("rb") as stream:
        return images.add_image(File(stream, name="flower.png"), by=starter)


@pytest.fixture
def cart(starter: Any) -> Cart:
    return carts.create_cart(owner=starter, email="starter@example.com")


def signed_in(user: Any) -> Client:
    client = Client()
    client.force_login(user)
    return client


def picture(name: str = "dot.png", kind: str = "PNG") -> SimpleUploadedFile:
    content = BytesIO()
    Pillow.new("RGB", (3, 2), "red").save(content, kind)
    return SimpleUploadedFile(name, content.getvalue())


@pytest.mark.django_db
def test_anybody_sees_home(client: Client) -> None:
    assert client.get("/").status_code == 200


def test_everything_else_asks_for_a_login(client: Client, image: Image, cart: Cart) -> None:
    pages = [reverse(name) for name in GET_PAGES]
    pages += [reverse("demo:picture", args=[image.pk]), reverse("demo:thumbnail", args=[image.pk])]
    for page in pages:
        assert client.get(page).headers["Location"].startswith("/accounts/login/"), page
    for page in (reverse("demo:upload"), reverse("demo:new-cart"), reverse("demo:check-out", args=[cart.pk])):
        assert client.post(page).headers["Location"].startswith("/accounts/login/"), page
    cart.refresh_from_db()
    assert (cart.checked_out_at, Cart.objects.count(), Image.objects.count()) == (None, 1, 1)


def test_starting_needs_the_permission(customer: Any) -> None:
    client = signed_in(customer)
    assert client.post(reverse("demo:upload"), {"picture": picture()}).status_code == 403
    assert client.post(reverse("demo:new-cart")).status_code == 403
    assert reverse("demo:upload") not in client.get(reverse("demo:images")).content.decode()
    assert reverse("demo:new-cart") not in client.get(reverse("demo:carts")).content.decode()
    assert not (Image.objects.exists() or Cart.objects.exists() or WorkflowInstance.objects.exists())


def test_changes_need_a_csrf_token(starter: Any, cart: Cart) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(starter)
    for page in (reverse("demo:upload"), reverse("demo:new-cart"), reverse("demo:check-out", args=[cart.pk])):
        assert client.post(page).status_code == 403, page


def test_changes_are_posts(starter: Any, cart: Cart) -> None:
    client = signed_in(starter)
    for page in (reverse("demo:new-cart"), reverse("demo:check-out", args=[cart.pk])):
        assert client.get(page).status_code == 405, page


def test_an_upload_starts_its_workflow(starter: Any) -> None:
    answer = signed_in(starter).post(reverse("demo:upload"), {"picture": picture("../My Dot.PNG")})
    assert answer.headers["Location"] == reverse("demo:images")
    image = Image.objects.get()
    assert (image.original_name, image.uploaded_by) == ("My Dot.PNG", starter)
    assert re.fullmatch(r"pictures/[0-9a-f]{32}\.png", str(image.file))
    assert image.instance is not None
    assert (image.instance.workflow, image.instance.created_by) == ("image-tagging", starter)
    assert image.instance.params == {"image_id": image.pk}


def test_an_upload_whose_workflow_cannot_start_leaves_no_row(starter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise DatabaseError("no")

    monkeypatch.setattr(ImageTagging, "create", fail)
    with pytest.raises(DatabaseError):
        signed_in(starter).post(reverse("demo:upload"), {"picture": picture()})
    assert not Image.objects.exists()


@pytest.mark.parametrize(
    "upload",
    [
        SimpleUploadedFile("a.png", b"<svg onload=alert(1)>"),
        SimpleUploadedFile("empty.png", b""),
        picture("a.bmp", "BMP"),
        picture("a.html"),
    ],
    ids=["no picture", "empty", "another format", "another suffix"],
)
def test_what_is_no_picture_is_refused(starter: Any, upload: SimpleUploadedFile) -> None:
    upload.seek(0)
    answer = signed_in(starter).post(reverse("demo:upload"), {"picture": upload})
    assert answer.status_code == 200
    assert answer.context["form"].errors["picture"]
    assert not (Image.objects.exists() or WorkflowInstance.objects.exists())


def test_large_files_and_pictures_are_refused(starter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("LARGEST_FILE", "LARGEST_PICTURE"):
        with monkeypatch.context() as patch:
            patch.setattr(f"project.demo.forms.{limit}", 5)
            answer = signed_in(starter).post(reverse("demo:upload"), {"picture": picture()})
        assert answer.context["form"].has_error("picture", "too_large"), limit
    assert not Image.objects.exists()


def test_files_come_as_what_they_are(starter: Any, image: Image) -> None:
    Image.objects.update(format="PNG")
    client = signed_in(starter)
    answer: Any = client.get(reverse("demo:picture", args=[image.pk]))
    assert b"".join(answer.streaming_content) == (SAMPLES / "flower.png").read_bytes()
    assert answer.headers["Content-Type"] == "image/png"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "private" in answer.headers["Cache-Control"]
    assert client.get(reverse("demo:thumbnail", args=[image.pk])).status_code == 404
    assert client.get(reverse("demo:picture", args=[image.pk + 1])).status_code == 404


def test_hostile_names_are_text(starter: Any, image: Image, cart: Cart) -> None:
    evil = "<script>alert(1)</script>"
    Image.objects.update(original_name=evil)
    Cart.objects.update(lines=[{"name": evil, "quantity": 1, "price": "1.00"}])
    client = signed_in(starter)
    for page in (reverse("demo:images"), reverse("demo:carts")):
        text = client.get(page).content.decode()
        assert "&lt;script&gt;" in text, page
        assert "<script" not in text, page


def test_no_page_has_inline_style_or_script(starter: Any, image: Image, cart: Cart) -> None:
    client = signed_in(starter)
    for page in ("/", *(reverse(name) for name in GET_PAGES), reverse("login"), "/nowhere/"):
        assert not re.search(r"<script|<style|\sstyle=|\son[a-z]+=", client.get(page).content.decode()), page


def test_a_new_cart_starts_its_workflow(starter: Any) -> None:
    signed_in(starter).post(reverse("demo:new-cart"))
    cart = Cart.objects.get()
    assert (cart.owner, str(cart.total), cart.email) == (starter, "31.90", starter.email)
    assert cart.instance is not None
    assert (cart.instance.workflow, cart.instance.created_by) == ("pay-cart", starter)


def test_one_checks_out_ones_own_cart_once(starter: Any, customer: Any, cart: Cart) -> None:
    page = reverse("demo:check-out", args=[cart.pk])
    assert signed_in(customer).post(page).status_code == 404
    cart.refresh_from_db()
    assert cart.checked_out_at is None
    client = signed_in(starter)
    assert "is checked out" in client.post(page, follow=True).content.decode()
    cart.refresh_from_db()
    first = cart.checked_out_at
    assert "was already checked out" in client.post(page, follow=True).content.decode()
    cart.refresh_from_db()
    assert cart.checked_out_at == first


def test_foreign_carts_show_to_whoever_may_view_carts(cart: Cart, customer: Any, user_factory: UserFactory) -> None:
    auditor = user_factory("auditor", permissions=["demo.view_cart"])
    seen = {
        user: str(cart) in signed_in(user).get(reverse("demo:carts")).content.decode() for user in (customer, auditor)
    }
    assert seen == {customer: False, auditor: True}


@pytest.mark.django_db
def test_lists_ask_the_same_number_of_queries_for_one_row_and_many(
    starter: Any, django_assert_max_num_queries: Any
) -> None:
    client = signed_in(starter)
    for _ in range(6):
        client.post(reverse("demo:new-cart"))
        client.post(reverse("demo:upload"), {"picture": picture()})
    client.get(reverse("demo:images"))  # shows the messages
    for page in ("demo:images", "demo:carts"):
        with django_assert_max_num_queries(9):
            client.get(reverse(page))

"""Rows of the example app: pictures, carts, the bank's payments and the invoices."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, TypedDict
from uuid import uuid4

from django.conf import settings
from django.db import models
from django.db.models.functions import Now

if TYPE_CHECKING:
    from durableflow.models import WorkflowInstance


class Line(TypedDict):
    """One line of a cart. ``price`` is the price of one piece as decimal text, as JSON has no decimals."""

    name: str
    quantity: int
    price: str


def picture_name(image: Image, filename: str) -> str:
    """A stored name that no visitor chooses: random, with the suffix of the upload in lower case."""
    return f"pictures/{uuid4().hex}{PurePosixPath(filename).suffix.lower()}"


class WithInstance(models.QuerySet[Any]):
    """Lists that show the state of each row's workflow."""

    def with_state(self) -> WithInstance:
        """The rows with their workflow instance, of which only the status is read: the other columns may be big."""
        light = self.model._meta.get_field("instance").remote_field.model.objects.only("status")
        return self.prefetch_related(models.Prefetch("instance", light))


class Image(models.Model):
    """An uploaded picture. The columns from ``width`` on are filled by its workflow."""

    file = models.FileField(upload_to=picture_name)
    original_name = models.CharField(max_length=200)
    title = models.CharField(max_length=120, blank=True, help_text="Given by the person who approved the picture.")
    width = models.PositiveIntegerField(null=True, editable=False)
    height = models.PositiveIntegerField(null=True, editable=False)
    format = models.CharField(max_length=10, blank=True, editable=False)
    size = models.PositiveBigIntegerField(null=True, editable=False, help_text="Bytes.")
    sha256 = models.CharField(max_length=64, blank=True, editable=False)
    tags = models.JSONField(null=True, editable=False)
    thumbnail = models.FileField(blank=True, editable=False)
    uploaded_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, editable=False, on_delete=models.SET_NULL, related_name="+"
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    instance = models.OneToOneField(
        "durableflow.WorkflowInstance",
        null=True,
        blank=True,
        editable=False,
        on_delete=models.SET_NULL,
        related_name="image",
    )

    objects = WithInstance.as_manager()

    class Meta:
        ordering = ["-pk"]
        permissions = [("approve_image", "Can approve images")]

    def __str__(self) -> str:
        return self.title or self.original_name

    @property
    def state(self) -> str:
        """For people: the label of the workflow's status."""
        return state_label(self.instance)


class Cart(models.Model):
    """A shopping cart. Its workflow waits until it is checked out, charges it and mails the invoice."""

    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="carts")
    email = models.EmailField()
    lines = models.JSONField()
    total = models.DecimalField(max_digits=10, decimal_places=2)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    checked_out_at = models.DateTimeField(null=True, blank=True, editable=False)
    instance = models.OneToOneField(
        "durableflow.WorkflowInstance",
        null=True,
        blank=True,
        editable=False,
        on_delete=models.SET_NULL,
        related_name="cart",
    )

    objects = WithInstance.as_manager()

    class Meta:
        ordering = ["-pk"]
        constraints = [models.CheckConstraint(condition=models.Q(total__gt=0), name="demo_cart_total_positive")]

    def __str__(self) -> str:
        return f"Cart {self.pk}"

    @property
    def state(self) -> str:
        """For people: the label of the workflow's status."""
        return state_label(self.instance)


class Payment(models.Model):
    """What the bank keeps: one row per idempotency key, however often it is called. Paid once ``paid_at`` is set."""

    idempotency_key = models.CharField(max_length=100, unique=True)
    cart = models.ForeignKey(Cart, on_delete=models.PROTECT, related_name="payments")
    amount = models.DecimalField(max_digits=10, decimal_places=2)
    reference = models.CharField(max_length=40, unique=True)
    calls = models.PositiveIntegerField(default=0, help_text="How often the bank was called with this key.")
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    paid_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-pk"]

    def __str__(self) -> str:
        return self.reference


class Invoice(models.Model):
    """An invoice and its mail. A repeated mail has the same ``message_id``, so that a mailbox recognises it."""

    cart = models.OneToOneField(Cart, on_delete=models.PROTECT, related_name="invoice")
    number = models.CharField(max_length=30, unique=True)
    document = models.FileField()
    message_id = models.CharField(max_length=200, unique=True)
    sent_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-pk"]

    def __str__(self) -> str:
        return self.number


def state_label(instance: WorkflowInstance | None) -> str:
    """The label of a workflow's status, or that there is none."""
    return "Not started" if instance is None else str(instance.get_status_display())

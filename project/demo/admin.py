"""The example app's rows in the admin, to look at: what changes them are the pages and the workflows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.http import HttpRequest

from project.demo.models import Cart, Image, Invoice, Payment

if TYPE_CHECKING:  # generic for the type checker alone
    ModelAdmin = admin.ModelAdmin[Any]
else:
    ModelAdmin = admin.ModelAdmin


class ReadOnlyAdmin(ModelAdmin):
    """Rows are shown; they are neither added nor changed nor deleted here."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Never."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Never."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Never."""
        return False


@admin.register(Image)
class ImageAdmin(ReadOnlyAdmin):
    """Pictures."""

    list_display = ("__str__", "format", "width", "height", "state", "uploaded_by", "created_at")
    list_filter = ("format",)

    def get_queryset(self, request: HttpRequest) -> Any:
        """With the state."""
        return Image.objects.with_state().select_related("uploaded_by")


@admin.register(Cart)
class CartAdmin(ReadOnlyAdmin):
    """Carts."""

    list_display = ("__str__", "owner", "total", "checked_out_at", "state")

    def get_queryset(self, request: HttpRequest) -> Any:
        """With the state."""
        return Cart.objects.with_state().select_related("owner")


@admin.register(Payment)
class PaymentAdmin(ReadOnlyAdmin):
    """The bank's ledger."""

    list_display = ("reference", "cart", "amount", "calls", "paid_at")
    list_select_related = ("cart",)


@admin.register(Invoice)
class InvoiceAdmin(ReadOnlyAdmin):
    """Invoices."""

    list_display = ("number", "cart", "sent_at")
    list_select_related = ("cart",)

"""Pages about carts: the list, a new one, and the button that checks one out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib import messages
from django.contrib.auth.decorators import login_required, permission_required
from django.contrib.auth.mixins import LoginRequiredMixin
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.http import require_POST
from django.views.generic import ListView

from project.demo.models import Cart
from project.demo.services import carts
from project.demo.views.users import user_of
from project.demo.workflows import PayCart

if TYPE_CHECKING:  # generic for the type checker alone
    Carts = ListView[Cart]
else:
    Carts = ListView


def visible_carts(user: User) -> QuerySet[Cart]:
    """One's own carts; all of them for whoever may view carts."""
    every = Cart.objects.with_state().select_related("invoice")
    return every if user.has_perm("demo.view_cart") else every.filter(owner=user)


class CartList(LoginRequiredMixin, Carts):
    """Carts with their lines and the state of their workflow, newest first."""

    template_name = "demo/carts.html"
    paginate_by = 24

    def get_queryset(self) -> QuerySet[Cart]:
        """Only what the user may see."""
        return visible_carts(user_of(self.request))


@require_POST
@login_required
@permission_required("durableflow.start_workflowinstance", raise_exception=True)
def new_cart(request: HttpRequest) -> HttpResponse:
    """Make a cart with the sample lines and start its workflow, in one transaction."""
    user = user_of(request)
    with transaction.atomic():
        cart = carts.create_cart(owner=user, email=user.email or f"{user.get_username()}@example.com")
        cart.instance = PayCart.create({"cart_id": cart.pk}, instance_id=f"cart-{cart.pk}", created_by=user)
        cart.save(update_fields=["instance"])
    messages.success(request, f"{cart} is ready. Its workflow waits until you check it out.")
    return redirect("demo:carts")


@require_POST
@login_required
def check_out(request: HttpRequest, pk: int) -> HttpResponse:
    """Check out one's own cart. A second click changes nothing; a foreign cart is a 404 like an unknown one."""
    cart = get_object_or_404(Cart, pk=pk, owner=request.user)
    if carts.check_out(cart):
        messages.success(request, f"{cart} is checked out. It will be charged in a moment.")
    else:
        messages.info(request, f"{cart} was already checked out.")
    return redirect("demo:carts")

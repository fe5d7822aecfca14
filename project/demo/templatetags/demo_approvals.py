"""How many approvals wait on the user: for the header of every page and of the admin."""

from __future__ import annotations

from django import template
from django.contrib.auth.models import AnonymousUser
from django.template import Context

from durableflow.models import PendingEvent

register = template.Library()

MOST = 99
"""Counting stops one above: the header says "99+", and costs the same with a million open waits."""


@register.simple_tag(takes_context=True)
def approvals_waiting(context: Context) -> str:
    """``{% approvals_waiting as waiting %}``: the number as text, "99+" above 99, empty where nothing waits."""
    user = context.get("user") or AnonymousUser()
    if not user.is_authenticated:
        return ""
    found = PendingEvent.objects.open().decidable_by(user)[: MOST + 1].count()
    return f"{MOST}+" if found > MOST else str(found or "")

"""``{% load durableflow %}``: how many decisions wait on the user, and how the package's own templates draw moments."""

from __future__ import annotations

from typing import Any, Final

from django import template
from django.template import Context

from durableflow.models import PendingEvent
from durableflow.pages.moments import moment, span

register = template.Library()

MOST: Final = 99
"""Counting stops one above, so that a header costs the same with a million open waits."""


@register.simple_tag(takes_context=True)
def durableflow_pending_count(context: Context) -> str:
    """How many decisions wait on the user, "99+" above 99, '' where none does: ``{% durableflow_pending_count as waiting %}``."""
    user: Any = context.get("user") or getattr(context.get("request"), "user", None)
    if user is None or not user.is_authenticated:
        return ""
    rows = PendingEvent.objects.decidable_by(user).order_by().values("pk")
    found = rows[: MOST + 1].count()
    return f"{MOST}+" if found > MOST else str(found or "")


register.filter("moment", moment)
register.filter("span", span)

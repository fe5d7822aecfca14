"""``{% load durableflow %}``: how many decisions wait on the user, and how the package's own templates draw moments."""

from __future__ import annotations

import logging
from typing import Any, Final

from django import template
from django.template import Context
from django.urls import NoReverseMatch, reverse
from django.utils import timezone

from durableflow.core.spans import span
from durableflow.core.statuses import Via
from durableflow.models import PendingEvent, WorkflowInstance
from durableflow.models.permissions import VIEW, holds
from durableflow.pages.banner import Trouble, trouble
from durableflow.pages.moments import moment

register = template.Library()
logger = logging.getLogger("durableflow.health")

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


@register.inclusion_tag("admin/durableflow/health.html", takes_context=True)
def durableflow_health(context: Context) -> dict[str, Trouble | None]:
    """A banner where due work is not executed, for users who may view all instances: ``{% durableflow_health %}``.

    Two short queries; nothing else, and never an error, for anybody else or where all is well.
    """
    request = context.get("request")
    user: Any = context.get("user") or getattr(request, "user", None)
    if not holds(user, VIEW):
        return {"trouble": None}
    try:
        return {"trouble": trouble(lambda pk: _admin_url(request, pk))}
    except Exception:  # a page must not fail for its banner
        logger.exception("The banner about the health of workflows cannot be shown")
        return {"trouble": None}


def _admin_url(request: Any, pk: int) -> str:
    """The page of an instance in the admin site that shows the present page; '' where it has none."""
    site = getattr(request, "current_app", None) or "admin"
    meta = WorkflowInstance._meta
    try:
        return reverse(f"{site}:{meta.app_label}_{meta.model_name}_change", args=[pk])
    except NoReverseMatch:
        return ""


@register.simple_tag
def durableflow_zone() -> str:
    """The time zone in which the templates draw moments, as people call it and by its name."""
    here = timezone.localtime(timezone.now())
    return f"{timezone.get_current_timezone_name()} ({here:%Z})" if str(here.tzinfo) != f"{here:%Z}" else f"{here:%Z}"


@register.filter
def via_label(via: str) -> str:
    """The door through which somebody acted, as people call it; the word itself where only newer code knows it."""
    return str(dict(Via.choices).get(via, via))


register.filter("moment", moment)
register.filter("span", span)

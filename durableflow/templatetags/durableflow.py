"""``{% load durableflow %}``: how many decisions wait on the user, and how the package's own templates draw moments."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from django import template
from django.template import Context
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from durableflow.models import PendingEvent

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


@register.filter
def moment(value: Any) -> SafeString | str:
    """A ``<time>`` to the second in the reader's time zone; '' for None, other values as they are."""
    if value is None:
        return ""
    if not isinstance(value, datetime):
        return str(value)
    local = timezone.localtime(value) if timezone.is_aware(value) else value
    text = local.strftime("%Y-%m-%d %H:%M:%S")
    return format_html('<time datetime="{}" title="{}">{}</time>', value.isoformat(), local.strftime("%Z"), text)


@register.filter
def span(value: timedelta | None) -> str:
    """How long something took: ``0.04 s``, ``2 min 5 s``, ``3 h 10 min``, ``2 d 4 h``."""
    if value is None:
        return ""
    seconds = max(value.total_seconds(), 0.0)
    if seconds < 10:
        return _("%(n)s s") % {"n": f"{seconds:.2f}"}
    days, rest = divmod(round(seconds), 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, whole = divmod(rest, 60)
    if days:
        return _("%(d)d d %(h)d h") % {"d": days, "h": hours}
    if hours:
        return _("%(h)d h %(m)d min") % {"h": hours, "m": minutes}
    if minutes:
        return _("%(m)d min %(s)d s") % {"m": minutes, "s": whole}
    return _("%(n)s s") % {"n": whole}

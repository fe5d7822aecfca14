"""Moments as people read them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString


def moment(value: Any, show: str = "") -> SafeString | str:
    """A ``<time>`` to the second in the reader's time zone; '' for None, other values as they are. ``show="zone"``: with the name of
    the zone, where people act by it; tables leave it out, their pages name it once."""
    if value is None:
        return ""
    if not isinstance(value, datetime):
        return str(value)
    local = timezone.localtime(value) if timezone.is_aware(value) else value
    text = local.strftime("%Y-%m-%d %H:%M:%S %Z" if show == "zone" else "%Y-%m-%d %H:%M:%S").rstrip()
    return format_html('<time datetime="{}" title="{}">{}</time>', value.isoformat(), local.strftime("%Z"), text)

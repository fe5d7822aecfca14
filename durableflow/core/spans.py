"""Durations as people read them."""

from __future__ import annotations

from datetime import timedelta

from django.utils.translation import gettext as _


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

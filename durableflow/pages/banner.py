"""What a page says when due work is not executed (case OPS-14)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from django.utils.translation import gettext as _

from durableflow import health
from durableflow.health import Level
from durableflow.health.rules import cure

TOLD = ("no_worker", "overdue")
"""The reasons that every page tells; the others are in their lists."""


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """``status``: warning or critical. ``due_url``: the page of the instance that waits, or ''."""

    status: Level
    icon: str
    heading: str
    text: str
    cure: str
    due_url: str


def trouble(url: Callable[[int], str]) -> Trouble | None:
    """What to tell, or None where due work is executed. Two short queries; a database that cannot be asked is not
    told here: the page has its own trouble with it then."""
    found = health.glance()
    reasons = [reason for reason in found.reasons if reason.code in TOLD]
    if not reasons:
        return None
    critical = found.status is Level.CRITICAL
    if not found.workers:
        heading = _("Workflows are not being executed.") if critical else _("No worker is ready for workflows.")
    else:
        heading = _("Workflows are late.")
    due = found.oldest_due
    return Trouble(
        status=found.status,
        icon="✕" if critical else "!",
        heading=heading,
        text=" ".join(reason.text for reason in reasons),
        cure=cure(found),
        due_url=url(due.pk) if due is not None else "",
    )

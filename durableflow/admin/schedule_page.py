"""What the page of one schedule shows beside its form: next runs, instances, skipped slots (design 9, 10; case SCH-07)."""

from __future__ import annotations

from datetime import datetime
from functools import cached_property
from typing import Any, Final
from zoneinfo import ZoneInfo

from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from durableflow.admin.badges import badge, toned
from durableflow.core import registry
from durableflow.core.redact import shown
from durableflow.models import WorkflowInstance, WorkflowSchedule
from durableflow.pages.values import json_html

UPCOMING: Final = 5
RECENT: Final = 10
SKIPPED: Final = 20


def state(schedule: WorkflowSchedule) -> SafeString:
    """Whether it fires, as icon and text."""
    if schedule.problem:
        return toned("!", "bad", _("Cannot run"))
    if not schedule.enabled:
        return toned("‖", "warn", _("Paused"))
    if registry.find(schedule.workflow) is None:
        return toned("!", "warn", _("Workflow unknown here"))
    if schedule.buffered_slot is not None:
        return toned("◔", "busy", _("Waits for the instance before"))
    return toned("✓", "good", _("Active"))


def zone_of(schedule: WorkflowSchedule) -> ZoneInfo | None:
    """Its time zone; None where a row that came past ``save()`` names none."""
    try:
        return ZoneInfo(schedule.timezone)
    except (ValueError, KeyError, OSError):
        return None


class SchedulePage:
    """One schedule for one person. ``url_of``: the address of an instance's page, '' where it is not shown."""

    def __init__(self, schedule: WorkflowSchedule, user: Any, url_of: Any) -> None:
        self.schedule = schedule
        self.user = user
        self._url_of = url_of

    @property
    def badge(self) -> SafeString:
        """Whether it fires."""
        return state(self.schedule)

    @cached_property
    def upcoming(self) -> list[tuple[datetime, str]]:
        """The next slots, each with what the clock says in the schedule's zone."""
        zone = zone_of(self.schedule)
        return [(slot, slot.astimezone(zone).strftime("%a %Y-%m-%d %H:%M %Z") if zone else "") for slot in self.slots]

    @cached_property
    def slots(self) -> list[datetime]:
        """The next slots."""
        return self.schedule.upcoming(UPCOMING)

    @cached_property
    def instances(self) -> list[tuple[WorkflowInstance, str, SafeString]]:
        """The latest instances that the person may see, each with address and status: those of slots and those started by hand."""
        rows = WorkflowInstance.objects.visible_to(self.user).light().filter(schedule=self.schedule.pk)
        found = [
            *rows.filter(scheduled_for__isnull=False).order_by("-scheduled_for")[:RECENT],
            *rows.filter(scheduled_for__isnull=True).order_by("-id")[:RECENT],
        ]
        found.sort(key=lambda row: row.pk, reverse=True)
        return [(row, self._url_of(row), badge(row.status, row.get_status_display())) for row in found[:RECENT]]

    @cached_property
    def skipped(self) -> list[Any]:
        """The latest slots that started nothing."""
        return list(self.schedule.skipped.order_by("-slot")[:SKIPPED])

    @property
    def params_html(self) -> SafeString | str:
        """What each instance gets, secrets masked."""
        return "" if self.schedule.params is None else json_html(shown(self.schedule.params))

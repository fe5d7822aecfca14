"""Schedules: when a workflow starts by itself (design 9)."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from durableflow.core.fields import CodecField
from durableflow.core.schedules import MAX_NAME
from durableflow.models.schedule_verbs import ScheduleVerbs, removing


class ScheduleQuerySet(models.QuerySet["WorkflowSchedule"]):
    """All as in Django, but that ``delete()`` has the rule and the locks of a row's."""

    def delete(self) -> tuple[int, dict[str, int]]:
        """Delete them; see ``WorkflowSchedule.delete``. One that belongs to this code refuses all."""
        with removing(self):
            return super().delete()

    delete.alters_data = True  # type: ignore[attr-defined]
    delete.queryset_only = True  # type: ignore[attr-defined]


class WorkflowSchedule(ScheduleVerbs):
    """One cron line of one workflow. ``next_slot`` is when it fires next; each slot starts at most one instance.

    ``declared``: it comes from ``Meta.schedules``, so that only ``enabled`` is for staff to change. ``buffered_slot``: a slot that
    waits for the end of the instance before it. ``look_at``: when somebody has to look at it next, NULL where nothing will ever be
    due. ``problem``: why it cannot fire, '' if it can. ``catch_up``: "none", "latest" or a number, as text.

    ``save()`` checks it and computes ``next_slot`` from now. ``QuerySet.update`` and ``bulk_create`` do neither: pause and resume
    by the verbs.
    """

    class Overlap(models.TextChoices):
        """What happens when the instance of an earlier slot has not ended."""

        ALLOW = "allow", _("Start it beside the other")
        SKIP = "skip", _("Skip the slot")
        BUFFER_ONE = "buffer_one", _("Start one when the other ends")

    objects: ClassVar[ScheduleQuerySet] = ScheduleQuerySet.as_manager()  # type: ignore[assignment]

    workflow = models.CharField(_("workflow"), max_length=64)
    name = models.CharField(_("name"), max_length=MAX_NAME)
    cron = models.CharField(_("cron"), max_length=256)
    timezone = models.CharField(_("time zone"), max_length=64, default="UTC")
    params = CodecField(_("params"), null=True, blank=True, editable=False)
    enabled = models.BooleanField(_("enabled"), default=True)
    declared = models.BooleanField(_("declared in code"), default=False, editable=False)
    catch_up = models.CharField(_("catch up"), max_length=10, default="latest")
    overlap = models.CharField(_("overlap"), max_length=10, choices=Overlap.choices, default=Overlap.ALLOW)
    next_slot = models.DateTimeField(_("next slot"), null=True, blank=True, editable=False)
    buffered_slot = models.DateTimeField(_("buffered slot"), null=True, blank=True, editable=False)
    look_at = models.DateTimeField(null=True, blank=True, editable=False)
    problem = models.TextField(_("problem"), blank=True, default="", editable=False)

    class Meta:
        verbose_name = _("workflow schedule")
        verbose_name_plural = _("workflow schedules")
        ordering = ("workflow", "name")
        constraints = (
            models.UniqueConstraint(fields=("workflow", "name"), name="durableflow_schedule_name"),
            models.CheckConstraint(
                condition=Q(overlap__in=("allow", "skip", "buffer_one")), name="durableflow_overlap"
            ),
        )
        indexes = (
            models.Index(
                fields=("look_at",), condition=Q(enabled=True, look_at__isnull=False), name="durableflow_next_slot"
            ),
        )

    def __str__(self) -> str:
        return f"{self.workflow}: {self.name}"


class SkippedSlots(models.Model):
    """Slots of a schedule that started nothing, and why: a skip that nobody sees is a lost report (case SCH-07).

    ``slot`` is the first, ``last`` the last of ``number`` slots in a row that were skipped for the same reason.
    """

    class Reason(models.TextChoices):
        """Why nothing was started."""

        OVERLAP = "overlap", _("An earlier instance had not ended")
        BUFFER_FULL = "buffer_full", _("Another slot was waiting already")
        CATCH_UP = "catch_up", _("Nobody was there at its time")
        REFUSED = "refused", _("The instance could not be created")

    schedule = models.ForeignKey(
        WorkflowSchedule, models.CASCADE, related_name="skipped", db_index=False, verbose_name=_("schedule")
    )
    slot = models.DateTimeField(_("slot"))
    last = models.DateTimeField(_("last slot"))
    number = models.PositiveIntegerField(_("number"), default=1)
    reason = models.CharField(_("reason"), max_length=11, choices=Reason.choices)
    detail = models.TextField(_("detail"), blank=True, default="")
    at = models.DateTimeField(_("at"))

    class Meta:
        verbose_name = _("skipped slots")
        verbose_name_plural = _("skipped slots")
        ordering = ("-id",)
        default_permissions = ()
        constraints = (models.UniqueConstraint(fields=("schedule", "slot"), name="durableflow_skipped_slot"),)

    def __str__(self) -> str:
        return f"{self.number} x {self.slot}"

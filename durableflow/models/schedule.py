"""Schedules: when a workflow starts by itself (design 9)."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from durableflow.core.fields import CodecField


class WorkflowSchedule(models.Model):
    """One cron line of one workflow. ``next_slot`` is when it fires next; each slot starts at most one instance."""

    class Overlap(models.TextChoices):
        """What happens when the instance of an earlier slot has not ended."""

        ALLOW = "allow", _("Start it beside the other")
        SKIP = "skip", _("Skip the slot")
        BUFFER_ONE = "buffer_one", _("Start one when the other ends")

    workflow = models.CharField(_("workflow"), max_length=64)
    name = models.CharField(_("name"), max_length=100)
    cron = models.CharField(_("cron"), max_length=255)
    timezone = models.CharField(_("time zone"), max_length=64, default="UTC")
    params = CodecField(_("params"), null=True, editable=False)
    enabled = models.BooleanField(_("enabled"), default=True)
    next_slot = models.DateTimeField(_("next slot"), null=True, blank=True)
    catch_up = models.CharField(_("catch up"), max_length=10, default="latest")
    overlap = models.CharField(_("overlap"), max_length=10, choices=Overlap.choices, default=Overlap.ALLOW)

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
        indexes = (models.Index(fields=("next_slot",), condition=Q(enabled=True), name="durableflow_next_slot"),)

    def __str__(self) -> str:
        return f"{self.workflow}: {self.name}"

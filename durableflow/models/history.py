"""The append-only log of what happened to an instance (design 2)."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from durableflow.core.entries import types_of
from durableflow.core.fields import CodecField
from durableflow.core.statuses import Via
from durableflow.models.instance import WorkflowInstance


class HistoryEntry(models.Model):
    """One thing that happened. Ids rise within an instance in the order of commit, because a writer holds the
    instance's row lock.

    ``step``: display name (``charge card-1``), ``kind`` its kind; '' for the instance itself. Types are those of the
    reference, in lower case (``workflow_started``, ``step_completed``, ...). A step that succeeds at once writes one
    entry, with its start in ``data``.
    """

    instance = models.ForeignKey(
        WorkflowInstance, models.CASCADE, related_name="history", db_index=False, verbose_name=_("instance")
    )
    run_number = models.IntegerField(_("run number"))
    type = models.CharField(_("type"), max_length=32)
    kind = models.CharField(_("kind"), max_length=17, blank=True, default="")
    step = models.CharField(_("step"), max_length=700, blank=True, default="")
    data = CodecField(_("data"), null=True, editable=False)
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        models.SET_NULL,
        null=True,
        blank=True,
        related_name="+",
        db_index=False,
        verbose_name=_("actor"),
    )
    actor_name = models.CharField(_("actor"), max_length=255, blank=True, default="")
    via = models.CharField(_("via"), max_length=6, choices=Via.choices, default=Via.ENGINE)
    reason = models.TextField(_("reason"), blank=True, default="")
    at = models.DateTimeField(_("at"))

    class Meta:
        verbose_name = _("history entry")
        verbose_name_plural = _("history entries")
        ordering = ("id",)
        default_permissions = ()
        indexes = (
            models.Index(fields=("instance", "id"), name="durableflow_history"),
            models.Index(fields=("actor",), condition=Q(actor__isnull=False), name="durableflow_history_actor"),
        )

    def __str__(self) -> str:
        return f"{self.type} {self.step}".rstrip()

    @property
    def types(self) -> tuple[str, ...]:
        """The types of all that this entry stands for, in the order in which it happened: for a step that succeeded at once
        ``step_started``, ``attempt_started``, ``attempt_completed``, ``step_completed``."""
        return types_of(self.type, self.kind, self.data)

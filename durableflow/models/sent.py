"""The inbox: events, decisions and finished children on their way to an instance (design 2, 4)."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from durableflow.core.fields import CodecField
from durableflow.core.statuses import SentKind
from durableflow.models.instance import WorkflowInstance
from durableflow.models.pending import PendingEvent


class SentEvent(models.Model):
    """Something sent to an instance. Senders only INSERT here and never lock the instance (design 4).

    ``delivered``: the instance was made due. ``consumed_by``: identity of the step that took it, as text, so that it
    stays consumed whatever is dropped later; '' while nobody has. There is no database constraint to the instance: a
    sender never waits for its row, and delivery drops orphans.
    """

    Kind = SentKind

    # Not stored: whether send_event() gave the row of an earlier call with the same dedupe_key.
    duplicate = False

    instance = models.ForeignKey(
        WorkflowInstance,
        models.CASCADE,
        related_name="sent_events",
        db_constraint=False,
        db_index=False,
        verbose_name=_("instance"),
    )
    run_number = models.PositiveIntegerField(_("run number"))
    kind = models.CharField(_("kind"), max_length=8, choices=SentKind.choices, default=SentKind.EVENT)
    pending_event = models.ForeignKey(
        PendingEvent,
        models.SET_NULL,
        null=True,
        blank=True,
        related_name="sent_events",
        verbose_name=_("pending event"),
    )
    type = models.CharField(_("type"), max_length=100, blank=True, default="")
    payload = CodecField(_("payload"), null=True, editable=False)
    sent_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+", verbose_name=_("sent by")
    )
    sent_by_name = models.CharField(max_length=255, blank=True, default="", editable=False)
    via = models.CharField(max_length=6, blank=True, default="", editable=False)
    reason = models.TextField(_("reason"), blank=True, default="")
    sent_at = models.DateTimeField(_("sent"))
    dedupe_key = models.CharField(_("dedupe key"), max_length=255, blank=True, default="")
    delivered = models.BooleanField(_("delivered"), default=False)
    consumed_by = models.CharField(_("consumed by"), max_length=800, blank=True, default="")
    consumed_run = models.PositiveIntegerField(null=True, editable=False)

    class Meta:
        verbose_name = _("sent event")
        verbose_name_plural = _("sent events")
        ordering = ("id",)
        default_permissions = ()
        constraints = (
            models.UniqueConstraint(
                fields=("instance", "run_number", "dedupe_key"),
                condition=~Q(dedupe_key=""),
                name="durableflow_dedupe_key",
            ),
        )
        indexes = (
            # For whoever deletes an instance, and for its page; the others are of what is still to be done alone.
            models.Index(fields=("instance",), name="durableflow_sent"),
            models.Index(fields=("instance", "id"), condition=Q(delivered=False), name="durableflow_undelivered"),
            models.Index(
                fields=("instance", "run_number", "id"), condition=Q(consumed_by=""), name="durableflow_unconsumed"
            ),
        )

    def __str__(self) -> str:
        return f"{self.type or self.kind} #{self.pk}"

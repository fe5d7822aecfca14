"""The columns of ``PendingEvent`` (design 2)."""

from __future__ import annotations

from django.conf import settings
from django.contrib.auth.models import Group
from django.db import models
from django.utils.translation import gettext_lazy as _

from durableflow.core.fields import CodecField
from durableflow.core.statuses import PendingStatus, StepKind, Via
from durableflow.models.instance import WorkflowInstance
from durableflow.models.step import StepRecord


class PendingFields(models.Model):
    """The wait, how it is shown, who may decide, and the decision.

    ``types``: event types that answer it. ``restricted``: users, groups or a permission are named, so the general right
    to decide is not enough. ``form``: dotted path of the form class. ``via``: the door of the decision.
    """

    instance = models.ForeignKey(
        WorkflowInstance, models.CASCADE, related_name="pending_events", verbose_name=_("instance")
    )
    run_number = models.PositiveIntegerField(_("run number"))
    step = models.ForeignKey(
        StepRecord, models.SET_NULL, null=True, related_name="pending_events", verbose_name=_("step")
    )
    kind = models.CharField(
        _("kind"),
        max_length=17,
        choices=[(kind.value, kind.label) for kind in (StepKind.WAIT_FOR_EVENT, StepKind.WAIT_FOR_APPROVAL)],
    )
    name = models.CharField(_("name"), max_length=256)
    count = models.PositiveIntegerField(_("count"), default=1)
    types = models.JSONField(_("event types"), default=list, help_text=_("Types of events that answer it."))
    deadline = models.DateTimeField(_("deadline"), null=True, blank=True)
    status = models.CharField(_("status"), max_length=9, choices=PendingStatus.choices, default=PendingStatus.OPEN)

    title = models.CharField(_("title"), max_length=255, blank=True, default="")
    description = models.TextField(_("description"), blank=True, default="")
    context = CodecField(_("context"), null=True, editable=False)
    form = models.CharField(
        max_length=255, blank=True, default="", editable=False, help_text=_("Path of the form class.")
    )

    users = models.ManyToManyField(settings.AUTH_USER_MODEL, blank=True, related_name="+", verbose_name=_("users"))
    groups = models.ManyToManyField(Group, blank=True, related_name="+", verbose_name=_("groups"))
    permission = models.CharField(_("permission"), max_length=255, blank=True, default="")
    restricted = models.BooleanField(
        default=False, editable=False, help_text=_("Users, groups or a permission are named.")
    )
    allow_requester = models.BooleanField(_("requester may decide"), default=True)

    approved = models.BooleanField(_("approved"), null=True)
    data = CodecField(_("data"), null=True, editable=False)
    comment = models.TextField(_("comment"), blank=True, default="")
    decided_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+", verbose_name=_("decided by")
    )
    decided_by_name = models.CharField(max_length=255, blank=True, default="", editable=False)
    decided_at = models.DateTimeField(_("decided"), null=True, blank=True)
    via = models.CharField(_("via"), max_length=6, choices=Via.choices, blank=True, default="")

    opened = models.DateTimeField(_("opened"))
    closed = models.DateTimeField(_("closed"), null=True, blank=True)

    class Meta:
        abstract = True

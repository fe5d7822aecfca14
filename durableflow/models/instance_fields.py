"""The columns of ``WorkflowInstance`` (design 2 and 4)."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final

from django.conf import settings
from django.db import models
from django.utils.translation import gettext_lazy as _

from durableflow.core.fields import CodecField
from durableflow.core.statuses import Hold, Status, Trigger

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser
    from django.contrib.auth.models import AnonymousUser

    Who = AbstractBaseUser | AnonymousUser | None
else:
    Who = Any


class Priority(models.IntegerChoices):
    """Which due instances are claimed first."""

    HIGH = 0, _("High")
    NORMAL = 1, _("Normal")
    LOW = 2, _("Low")

    @classmethod
    def _missing_(cls, value: object) -> None:
        raise ValueError(f"priority must be Priority.HIGH, Priority.NORMAL or Priority.LOW, not {value!r}.")


CLAIM_CLASSES: Final = range(2 * len(Priority))
"""What ``claim_class`` can be: twice the priority, and one more until the first claim. The lower is claimed first."""


HEAVY: Final = ("params", "output", "error_data", "progress", "rollback")
"""The big columns, which lists leave out (design 2)."""


class InstanceFields(models.Model):
    """One execution of a workflow: its input, its state and when it next needs a worker.

    The scheduling columns at the end make this table the queue (design 4): ``wake_at`` is when the instance next needs
    a worker, NULL when nothing but an event can move it; while it is claimed, ``wake_at`` is the end of the lease.
    """

    workflow = models.CharField(_("workflow"), max_length=64)
    instance_id = models.CharField(_("instance id"), max_length=100)
    run_number = models.IntegerField(_("run number"), default=1, help_text=_("Grows at each restart."))
    execution = models.IntegerField(_("execution"), default=0, help_text=_("How often a worker has taken it up."))
    seed = models.UUIDField(default=uuid.uuid4, editable=False)
    status = models.CharField(_("status"), max_length=17, choices=Status.choices, default=Status.QUEUED)
    blocked = models.TextField(_("blocked"), blank=True, default="", help_text=_("Why a person is needed."))
    hold = models.CharField(_("hold"), max_length=16, choices=Hold.choices, blank=True, default="")

    params = CodecField(_("params"), null=True, editable=False)
    output = CodecField(_("output"), null=True, editable=False)
    error_data = CodecField(null=True, editable=False, db_column="error")
    progress = CodecField(_("progress"), null=True, editable=False)

    priority = models.SmallIntegerField(_("priority"), choices=Priority.choices, default=Priority.NORMAL)
    # The indexes of foreign keys are in Meta, without the rows that have none: a claim writes to each index of its row.
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        models.SET_NULL,
        null=True,
        blank=True,
        related_name="+",
        verbose_name=_("created by"),
        db_index=False,
    )
    created_by_name = models.CharField(max_length=255, blank=True, default="", editable=False)
    trigger = models.CharField(_("trigger"), max_length=8, choices=Trigger.choices, default=Trigger.CODE)
    scheduled_for = models.DateTimeField(_("scheduled for"), null=True, blank=True)
    cron = models.CharField(max_length=256, blank=True, default="", editable=False)
    schedule = models.ForeignKey(
        "durableflow.WorkflowSchedule",
        models.SET_NULL,
        null=True,
        blank=True,
        related_name="instances",
        db_index=False,
    )
    parent_step = models.ForeignKey(
        "durableflow.StepRecord",
        models.SET_NULL,
        null=True,
        blank=True,
        related_name="children",
        editable=False,
        db_index=False,
    )
    on_parent_end = models.CharField(max_length=9, blank=True, default="", editable=False)
    concurrency_key = models.CharField(max_length=255, blank=True, default="", editable=False)
    holds_slot = models.BooleanField(default=False, editable=False)
    code_version = models.IntegerField(_("code version"), default=0)
    deadline_at = models.DateTimeField(
        _("deadline"), null=True, blank=True, help_text=_("From the workflow's max_duration.")
    )
    paused_at = models.DateTimeField(_("paused"), null=True, blank=True)
    interruptions = models.PositiveSmallIntegerField(
        default=0, help_text=_("Workers lost since the last checkpoint."), editable=False
    )
    give_backs = models.PositiveSmallIntegerField(default=0, editable=False)
    rollback = CodecField(_("rollback"), null=True, editable=False)
    request_key = models.CharField(max_length=255, blank=True, default="", editable=False)
    request_digest = models.CharField(max_length=64, blank=True, default="", editable=False)
    # Of its own, as create() was told; NULL: as its workflow says, or the settings (design 9).
    retention_success = models.DurationField(_("kept if it succeeds"), null=True, blank=True, editable=False)
    retention_error = models.DurationField(_("kept if it fails"), null=True, blank=True, editable=False)

    starts_at = models.DateTimeField(
        _("starts at"), null=True, blank=True, editable=False, help_text=_("Not before, from create(start_at=...).")
    )
    created = models.DateTimeField(_("created"))
    started = models.DateTimeField(_("started"), null=True, blank=True)
    finished = models.DateTimeField(_("finished"), null=True, blank=True)

    wake_at = models.DateTimeField(_("wake at"), null=True, blank=True)
    claim_class = models.SmallIntegerField(default=3, editable=False)
    lease_token = models.BigIntegerField(null=True, editable=False)
    owner = models.BigIntegerField(null=True, editable=False)
    suspect = models.BooleanField(default=False, editable=False)
    woken = models.BooleanField(default=False, editable=False)
    followed_until = models.DateTimeField(null=True, editable=False)
    awaited_until = models.DateTimeField(null=True, editable=False)

    if TYPE_CHECKING:
        # The relations of the tables that point here; declared, so that verbs need not import those tables.
        steps: Any
        pending_events: Any
        sent_events: Any
        history: Any

    class Meta:
        abstract = True

    @property
    def label(self) -> str:
        """How messages name this instance: ``checkout/order-42``."""
        return f"{self.workflow}/{self.instance_id}"

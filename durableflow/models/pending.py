"""Pending events: waits that a program or a person has to answer (design 2, 8)."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from durableflow.core import clock
from durableflow.core.statuses import PendingStatus, StepKind
from durableflow.models.decisions import DecisionVerbs
from durableflow.models.querysets import PendingEventQuerySet


class PendingEvent(DecisionVerbs):
    """A wait of one instance: what it waits for, how it is shown, who may decide, and the decision. Rows are kept as
    the audit of decisions."""

    Status = PendingStatus

    objects: ClassVar[PendingEventQuerySet] = PendingEventQuerySet.as_manager()  # type: ignore[assignment]

    class Meta:
        verbose_name = _("pending event")
        verbose_name_plural = _("pending events")
        ordering = ("-id",)
        default_permissions = ("view",)
        permissions = (("decide_pendingevent", "Can decide pending event"),)
        constraints = (
            models.UniqueConstraint(fields=("step",), condition=Q(status="open"), name="durableflow_one_open_wait"),
            models.CheckConstraint(condition=Q(status__in=PendingStatus.values), name="durableflow_pending_status"),
            models.CheckConstraint(
                condition=Q(approved__isnull=True) | Q(status=PendingStatus.RECEIVED),
                name="durableflow_decided_is_received",
            ),
        )
        indexes = (
            models.Index(fields=("kind", "id"), condition=Q(status="open"), name="durableflow_open_waits"),
            models.Index(fields=("permission",), condition=~Q(permission=""), name="durableflow_permitted_waits"),
        )

    def __str__(self) -> str:
        return self.title or self.name

    @property
    def is_approval(self) -> bool:
        """Whether a person has to decide it (else a program sends an event)."""
        return self.kind == StepKind.WAIT_FOR_APPROVAL

    @property
    def current_status(self) -> str:
        """The status as everybody must read it: an open wait past its deadline has timed out, even if no worker was
        up (design 8), unless its instance was paused before (``PendingEventQuerySet.open``)."""
        deadline = self.deadline
        if self.status != PendingStatus.OPEN or deadline is None or deadline >= clock.host_now():
            return self.status
        paused = self.instance.paused_at
        return self.status if paused is not None and paused <= deadline else PendingStatus.TIMED_OUT

    @property
    def current_deadline(self) -> datetime | None:
        """The deadline as everybody must read it: while the instance is paused it moves on with the clock, and is that of an
        instance which is resumed now. An open wait has never one that is past."""
        paused = self.instance.paused_at if self.status == PendingStatus.OPEN else None
        return clock.running_on(self.deadline, paused)

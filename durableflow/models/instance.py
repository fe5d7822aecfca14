"""The instance: one execution of a workflow (design 2)."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from durableflow.core import failures
from durableflow.core.fields import Unreadable
from durableflow.core.retries import Retention
from durableflow.core.statuses import Hold
from durableflow.core.statuses import Status as InstanceStatus
from durableflow.core.transactions import alias_of
from durableflow.models.completion import CompletionVerbs
from durableflow.models.following import FollowVerbs
from durableflow.models.instance_events import EventVerbs
from durableflow.models.instance_fields import Who
from durableflow.models.lifecycle import LifecycleVerbs
from durableflow.models.permissions import available_actions
from durableflow.models.querysets import InstanceQuerySet
from durableflow.models.removal import removing
from durableflow.models.repair import RepairVerbs
from durableflow.models.restart import RestartVerbs
from durableflow.models.results import ResultVerbs
from durableflow.models.undoing import NOT_UNDONE


class WorkflowInstance(
    EventVerbs, LifecycleVerbs, RepairVerbs, RestartVerbs, CompletionVerbs, FollowVerbs, ResultVerbs
):
    """One execution of a workflow. Change it through its verbs only: they check right and state and write the history.

    ``params``, ``output``, ``progress``: decoded values. ``error``: None or ``{"type", "message", "traceback",
    "step"}``.
    """

    Status = InstanceStatus

    objects: ClassVar[InstanceQuerySet] = InstanceQuerySet.as_manager()  # type: ignore[assignment]

    class Meta:
        verbose_name = _("workflow instance")
        verbose_name_plural = _("workflow instances")
        ordering = ("-id",)
        default_permissions = ("view", "delete")
        permissions = (
            ("start_workflowinstance", "Can start workflow instance"),
            ("operate_workflowinstance", "Can operate workflow instance"),
            ("override_workflowinstance", "Can override workflow instance"),
        )
        constraints = (
            models.UniqueConstraint(fields=("workflow", "instance_id"), name="durableflow_instance_id"),
            models.UniqueConstraint(
                fields=("schedule", "scheduled_for"),
                condition=Q(schedule__isnull=False),
                name="durableflow_instance_slot",
            ),
            models.UniqueConstraint(
                fields=("workflow", "created_by", "request_key"),
                condition=~Q(request_key=""),
                name="durableflow_request_key",
            ),
            models.CheckConstraint(condition=Q(status__in=InstanceStatus.values), name="durableflow_instance_status"),
            models.CheckConstraint(
                condition=Q(blocked="") | Q(status=InstanceStatus.PAUSED), name="durableflow_blocked_is_paused"
            ),
            models.CheckConstraint(
                condition=Q(lease_token__isnull=True)
                | Q(status__in=(InstanceStatus.RUNNING, InstanceStatus.WAITING_FOR_PAUSE, InstanceStatus.ROLLING_BACK)),
                name="durableflow_lease_is_running",
            ),
            models.CheckConstraint(
                condition=Q(holds_slot=False) | (Q(lease_token__isnull=False) & ~Q(concurrency_key="")),
                name="durableflow_slot_is_leased",
            ),
            models.CheckConstraint(
                condition=Q(wake_at__isnull=True)
                | ~Q(status__in=(InstanceStatus.COMPLETE, InstanceStatus.ERRORED, InstanceStatus.TERMINATED)),
                name="durableflow_finished_sleeps",
            ),
        )
        indexes = (
            models.Index(fields=("claim_class", "wake_at"), condition=Q(wake_at__isnull=False), name="durableflow_due"),
            models.Index(
                fields=("concurrency_key", "claim_class", "id"),
                condition=Q(hold=Hold.LIMIT, wake_at__isnull=True),
                name="durableflow_parked",
            ),
            models.Index(
                fields=("workflow", "id"),
                condition=Q(hold__in=(Hold.NEWER_CODE, Hold.UNKNOWN_WORKFLOW)),
                name="durableflow_held_by_code",
            ),
            models.Index(fields=("owner",), condition=Q(lease_token__isnull=False), name="durableflow_by_owner"),
            models.Index(F("status"), F("id").desc(), name="durableflow_by_status"),
            models.Index(F("workflow"), F("id").desc(), name="durableflow_by_workflow"),
            models.Index(F("workflow"), F("status"), F("id").desc(), name="durableflow_by_both"),
            models.Index(F("created"), name="durableflow_by_created"),
            models.Index(
                F("created_by"),
                F("id").desc(),
                condition=Q(created_by__isnull=False),
                name="durableflow_by_creator",
            ),
            models.Index(fields=("parent_step",), condition=Q(parent_step__isnull=False), name="durableflow_by_parent"),
            models.Index(fields=("id",), condition=~Q(blocked=""), name="durableflow_blocked"),
            models.Index(fields=("id",), condition=NOT_UNDONE, name="durableflow_not_undone"),
            models.Index(fields=("hold",), condition=~Q(hold=""), name="durableflow_held"),
            # Both for the purge: who is kept as the workflow or the settings say, and who by a rule of its own.
            models.Index(
                fields=("workflow", "status", "finished"),
                condition=Q(finished__isnull=False, retention_success__isnull=True, retention_error__isnull=True),
                name="durableflow_finished",
            ),
            models.Index(
                fields=("finished",),
                condition=Q(finished__isnull=False)
                & (Q(retention_success__isnull=False) | Q(retention_error__isnull=False)),
                name="durableflow_own_retention",
            ),
            models.Index(fields=("id",), condition=Q(paused_at__isnull=False), name="durableflow_paused"),
        )

    def __str__(self) -> str:
        return self.label

    def delete(self, using: str | None = None, keep_parents: bool = False) -> tuple[int, dict[str, int]]:
        """Delete the row with all that belongs to it, as Django does, in one transaction that has locked it first; a slot
        that it held is free then."""
        rows = type(self)._base_manager.using(using or alias_of(self)).filter(pk=self.pk)
        with removing(rows):
            return super().delete(using=using, keep_parents=keep_parents)

    delete.alters_data = True  # type: ignore[attr-defined]

    @property
    def error(self) -> dict[str, Any] | None:
        """What ended the instance: ``{"type", "message", "traceback", "step"}``, or None."""
        stored = self.error_data
        if stored is None:
            return None
        if isinstance(stored, Unreadable):
            return {"type": "Unreadable", "message": stored.reason, "traceback": "", "step": ""}
        return failures.public(stored)

    @property
    def retention(self) -> Retention | None:
        """How long it is kept by its own rule, as ``create(retention=...)`` was told; None where its workflow or the settings
        say so."""
        if self.retention_success is None and self.retention_error is None:
            return None
        return Retention(success=self.retention_success, error=self.retention_error)

    @property
    def is_finished(self) -> bool:
        """Whether it has ended: complete, errored or terminated."""
        return self.status in (InstanceStatus.COMPLETE, InstanceStatus.ERRORED, InstanceStatus.TERMINATED)

    def available_actions(self, user: Who) -> set[str]:
        """What buttons, API and command line offer ``user`` now: verbs that are allowed both to the user and in this
        status."""
        return available_actions(self, user)

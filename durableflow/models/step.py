"""The journal: one row per durable call (design 2)."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from durableflow.core import failures
from durableflow.core.fields import CodecField, Unreadable
from durableflow.core.statuses import StepKind, StepStatus
from durableflow.models.instance import WorkflowInstance


class StepRecord(models.Model):
    """One durable call of one run: (scope, kind, name, count) is its identity, a finished row is a checkpoint (design
    6).

    ``seq``: order of first start in the run. ``execution``: which execution started it. ``key_run``: run number in
    which it first started; the idempotency key derives from it. ``config``: the resolved options of its first
    execution. ``attempts``: tries so far, of which ``attempts_before_retry`` were made before an operator's ``retry()``
    (they do not count to the budget). ``freed``: started after a step that ``retry()`` reset, so the replay need not
    meet it again. ``rollback_status``: how far its rollback handler is (``RollbackStatus``), '' where it has none to run;
    ``rollback_attempts`` and so on: the same of the handler's attempts.
    """

    Kind = StepKind
    Status = StepStatus

    instance = models.ForeignKey(
        WorkflowInstance, models.CASCADE, related_name="steps", db_index=False, verbose_name=_("instance")
    )
    run_number = models.IntegerField(_("run number"))
    scope = models.CharField(_("scope"), max_length=400, blank=True, default="")
    kind = models.CharField(_("kind"), max_length=17, choices=StepKind.choices)
    name = models.CharField(_("name"), max_length=256)
    count = models.IntegerField(_("count"), default=1)
    seq = models.IntegerField(_("order"))
    execution = models.IntegerField(_("execution"))
    key_run = models.IntegerField(default=1, editable=False)
    status = models.CharField(_("status"), max_length=9, choices=StepStatus.choices)
    sensitive = models.BooleanField(_("sensitive"), default=False)
    config = CodecField(_("config"), null=True, editable=False)
    raw_output = CodecField(null=True, editable=False, db_column="output")
    error_data = CodecField(null=True, editable=False, db_column="error")
    attempts = models.IntegerField(_("attempts"), default=0)
    attempts_before_retry = models.IntegerField(default=0, editable=False)
    freed = models.BooleanField(default=False, editable=False)
    wake_at = models.DateTimeField(_("wake at"), null=True, blank=True)
    token = models.BigIntegerField(null=True, editable=False)
    started = models.DateTimeField(_("started"), null=True, blank=True)
    finished = models.DateTimeField(_("finished"), null=True, blank=True)
    rollback_status = models.CharField(max_length=9, blank=True, default="", editable=False)
    rollback_attempts = models.IntegerField(default=0, editable=False)
    rollback_error = CodecField(null=True, editable=False)
    # NULL means none: the statement of a checkpoint need not name them.
    rollback_attempts_before_retry = models.IntegerField(null=True, editable=False)
    rollback_wake_at = models.DateTimeField(null=True, editable=False)
    # Of a join: how many of its children are still to finish. NULL elsewhere.
    remaining = models.IntegerField(null=True, editable=False)

    class Meta:
        verbose_name = _("step")
        verbose_name_plural = _("steps")
        ordering = ("run_number", "seq")
        default_permissions = ()
        constraints = (
            models.UniqueConstraint(
                fields=("instance", "run_number", "scope", "kind", "name", "count"), name="durableflow_step_identity"
            ),
            models.UniqueConstraint(fields=("instance", "run_number", "seq"), name="durableflow_step_seq"),
            models.CheckConstraint(condition=Q(status__in=StepStatus.values), name="durableflow_step_status"),
            models.CheckConstraint(condition=Q(kind__in=StepKind.values), name="durableflow_step_kind"),
            # One for all counts that are computed. The server reads a constraint's text anew in each statement that writes, so
            # that one for each number, as PositiveIntegerField makes, would cost a checkpoint a twentieth of its time.
            models.CheckConstraint(
                condition=Q(attempts__gte=F("attempts_before_retry")), name="durableflow_step_attempts"
            ),
        )

    def __str__(self) -> str:
        return self.label

    @property
    def label(self) -> str:
        """How people see the step: ``charge card-1``, inside a scope ``cover and index-1/draft-1``."""
        return step_label(self.scope, self.name, self.count)

    @property
    def output(self) -> Any:
        """The stored result; of a sensitive step only a mask (case SEC-09)."""
        if self.sensitive and self.raw_output is not None:
            return failures.REDACTED
        return self.raw_output

    @property
    def error(self) -> dict[str, Any] | None:
        """The last error: ``{"type", "message", "traceback", "step"}`` or None; of a sensitive step message and
        traceback are masked."""
        stored = self.error_data
        if stored is None:
            return None
        if isinstance(stored, Unreadable):
            return {"type": "Unreadable", "message": stored.reason, "traceback": "", "step": self.label}
        return failures.public(failures.masked(stored) if self.sensitive else stored)


def step_label(scope: str, name: str, count: int) -> str:
    """The display name of a step: name and occurrence, with its scope before it."""
    return f"{scope}/{name}-{count}" if scope else f"{name}-{count}"

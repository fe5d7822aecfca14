"""Signs of life of the processes that execute workflows (design 11; case OPS-14)."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from durableflow.core.statuses import HeartbeatKind


class Heartbeat(models.Model):
    """One group of processes that executes workflows: a cluster, or a process that calls ``drain()``.

    For people and for the health check alone. Nothing is decided by it: leases alone say who runs what. ``host`` and
    ``pid`` are texts for people (containers share them). ``seen``: when it last told of itself, by the database's
    clock; ``workers``: executions that it can run at the same time, ``busy``: those that ran then.
    """

    Kind = HeartbeatKind

    objects: ClassVar[Any] = models.Manager()

    key = models.BigIntegerField(primary_key=True, editable=False)
    kind = models.CharField(_("kind"), max_length=7, choices=HeartbeatKind.choices)
    host = models.CharField(_("host"), max_length=255, blank=True, default="")
    pid = models.CharField(_("process"), max_length=20, blank=True, default="")
    workers = models.PositiveIntegerField(_("workers"), default=0)
    busy = models.PositiveIntegerField(_("busy"), default=0)
    stopping = models.BooleanField(_("stopping"), default=False, help_text=_("It has said that it ends."))
    version = models.CharField(_("version"), max_length=64, blank=True, default="")
    started = models.DateTimeField(_("started"))
    seen = models.DateTimeField(_("seen"))
    last_claim = models.DateTimeField(_("last claim"), null=True, blank=True)

    class Meta:
        verbose_name = _("heartbeat")
        verbose_name_plural = _("heartbeats")
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.kind} {self.host}:{self.pid}"

"""How many instances of one key may run at once (design 4, "Lock order")."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class ConcurrencyLimit(models.Model):
    """The slots of one concurrency key: ``running`` of ``maximum`` are taken."""

    key = models.CharField(_("key"), max_length=320, unique=True)
    maximum = models.PositiveIntegerField(_("maximum"))
    running = models.PositiveIntegerField(_("running"), default=0)

    class Meta:
        verbose_name = _("concurrency limit")
        verbose_name_plural = _("concurrency limits")
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.key}: {self.running}/{self.maximum}"

"""When the engine's own regular work is due next (design 9, "purge")."""

from __future__ import annotations

from django.db import models


class Chore(models.Model):
    """One kind of regular work, done by one process at a time: who moves ``due_at`` forward does it."""

    name = models.CharField(max_length=40, unique=True)
    due_at = models.DateTimeField()

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return self.name

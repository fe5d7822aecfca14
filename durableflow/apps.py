"""App configuration."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class DurableflowConfig(AppConfig):
    """The app ``durableflow``."""

    name = "durableflow"
    default_auto_field = "django.db.models.BigAutoField"
    verbose_name = _("Durable workflows")

"""The Django app."""

from __future__ import annotations

from importlib import import_module

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules
from django.utils.translation import gettext_lazy as _


class DurableflowConfig(AppConfig):
    """Finds the ``workflows`` module of every app and connects checks and the cluster. Never queries the database."""

    name = "durableflow"
    label = "durableflow"
    default_auto_field = "django.db.models.BigAutoField"
    verbose_name = _("Workflows")

    def ready(self) -> None:
        """Called once, when all models are loaded."""
        import_module("durableflow.checks").register_all()
        import_module("durableflow.operations.regular").connect()
        import_module("durableflow.cluster.setup").connect()
        autodiscover_modules("workflows")

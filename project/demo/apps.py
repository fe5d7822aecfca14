"""App configuration of the example app."""

from __future__ import annotations

from django.apps import AppConfig


class DemoConfig(AppConfig):
    """Label ``demo``; its workflows are found in ``project.demo.workflows``."""

    name = "project.demo"
    label = "demo"
    verbose_name = "Demo"
    default_auto_field = "django.db.models.BigAutoField"

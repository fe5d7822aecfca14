"""What the app connects when it is ready."""

from __future__ import annotations

from django.apps import apps
from django.db.models.signals import post_migrate

from durableflow.cluster.fallback import keep_schedule
from durableflow.cluster.hint import notify
from durableflow.core import dispatch


def connect() -> None:
    """Give hints after commits, and keep the minute fallback up to date after each ``migrate``. Called by
    ``AppConfig.ready``; no query.

    The hint is given in every project on PostgreSQL, also in one without django-q2: the cluster that hears it may run
    with other settings than the process that commits, and a notification that nobody hears is cheap.
    """
    dispatch.listen(notify)
    post_migrate.connect(
        keep_schedule, sender=apps.get_app_config("durableflow"), dispatch_uid="durableflow.cluster.fallback"
    )

"""The minute fallback: workflows go on, slowly, in a project that runs only a stock django-q2 cluster (design 4)."""

from __future__ import annotations

from typing import Any, Final

from django.apps import apps
from django.db import connections, router

from durableflow.cluster import mode

NAME: Final = "durableflow: run due workflows"
FUNC: Final = "durableflow.cluster.tasks.run_due"
# No time limit of django-q2's own: it would cut steps off in the middle. A second delivery meanwhile meets live leases
# and does nothing.
_KWARGS: Final = {"q_options": {"timeout": -1, "save": False, "ack_failure": True}}


def keep_schedule(*, using: str, **_kwargs: Any) -> None:
    """Receiver of ``post_migrate``: see that the ``Schedule`` row is there where it is needed, once, and nowhere else.

    Needed where django-q2 is installed and the cluster that executes workflows has another broker than ours. The row is
    recognised by its name; what a project changed in it (its minutes, its cluster) stays.
    """
    if not mode.installed():
        return
    schedule: Any = apps.get_model("django_q", "Schedule")
    if router.db_for_write(schedule) != using:
        return
    if schedule._meta.db_table not in connections[using].introspection.table_names():
        return  # django-q2's own migrations come later, and with them this signal
    rows = schedule._default_manager.using(using).filter(name=NAME)
    if mode.is_ours(mode.cluster_config()):
        rows.delete()
        return
    first = rows.order_by("pk").first()
    if first is None:
        rows.create(name=NAME, func=FUNC, schedule_type=schedule.MINUTES, minutes=1, kwargs=repr(_KWARGS))
    else:
        rows.exclude(pk=first.pk).delete()
        rows.exclude(func=FUNC).update(func=FUNC)

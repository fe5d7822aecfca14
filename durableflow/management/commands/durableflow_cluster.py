"""``manage.py durableflow_cluster``: execute workflows until SIGTERM or Ctrl-C (design 4, "django-q2")."""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

from django.core.management.base import BaseCommand, CommandError

from durableflow.cluster import mode
from durableflow.cluster.run import broker_class, describe, queue_database, run
from durableflow.management.tables import require
from durableflow.models.creation import database

VARIABLE = "Q_CLUSTER_NAME"


class Command(BaseCommand):
    """Run the django-q2 cluster that executes workflows, in the foreground."""

    help = "Executes workflows, and the project's ordinary django-q2 tasks, until SIGTERM or Ctrl-C."

    def handle(self, **options: Any) -> None:
        """Exit status 0 after a stop that was asked for; 1 for wrong settings or tables (CommandError) and when the cluster died;
        75 when its watchdog ended it; 128 and the signal's number when a second signal ended it at once."""
        if not mode.installed():
            raise CommandError("Add 'django_q' to INSTALLED_APPS: the cluster is django-q2's.")
        entry = mode.entry()
        if entry and os.environ.get(VARIABLE) != entry:
            self._become(entry)
        if not mode.is_ours({"broker_class": broker_class()}):
            setting = _setting(os.environ.get(VARIABLE, ""))
            raise CommandError(
                f"{setting} is {broker_class()!r}, and that broker does not execute workflows. "
                f"Set it to {mode.BROKER!r}, or name a cluster that has it in DURABLEFLOW['CLUSTER']."
            )
        require(database(), "durableflow")
        require(queue_database(), "django_q", "which the cluster needs for ordinary tasks and their results")
        self.stdout.write(describe())
        self.stdout.flush()
        if status := run():
            sys.exit(status)

    def _become(self, entry: str) -> NoReturn:
        """Start this program anew as that cluster: django-q2 reads its settings once, when it is imported."""
        if entry not in mode.alternatives():
            raise CommandError(
                f"DURABLEFLOW['CLUSTER'] is {entry!r}, but Q_CLUSTER['ALT_CLUSTERS'] has no such entry. "
                f"It has: {', '.join(sorted(mode.alternatives())) or 'none'}."
            )
        sys.stdout.flush()
        sys.stderr.flush()
        arguments = [sys.executable, *sys.orig_argv[1:]]
        os.execve(sys.executable, arguments, {**os.environ, VARIABLE: entry})  # noqa: S606  this very program


def _setting(name: str) -> str:
    return f"Q_CLUSTER['ALT_CLUSTERS'][{name!r}]['broker_class']" if name else "Q_CLUSTER['broker_class']"

"""``manage.py demo``: both workflows of the example app at work, in one command."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from project.demo.runner.main import SECONDS, Demo


class Command(BaseCommand):
    """Migrates, makes two users, starts web server, cluster and both workflows, and shows their progress."""

    help = "Run both workflows of the example app: live, until Ctrl-C, or with --auto until they are complete."
    requires_system_checks: list[str] = []
    requires_migrations_checks = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        """``--auto``, also as ``AUTO=1`` in the environment, and ``--seconds``."""
        parser.add_argument(
            "--auto",
            action="store_true",
            default=os.environ.get("AUTO", "").lower() in ("1", "true", "yes"),
            help="Approve over REST, wait until all is complete, print what was stored, and end.",
        )
        parser.add_argument(
            "--seconds",
            type=float,
            default=SECONDS,
            help="With --auto: give up after this time (default: %(default)g).",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Exits with the demo's exit code."""
        sys.exit(Demo(auto=options["auto"], seconds=options["seconds"], say=self._say).run())

    def _say(self, text: str) -> None:
        self.stdout.write(text + "\n")  # a text may itself end with an empty line
        self.stdout.flush()

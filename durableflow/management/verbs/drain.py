"""``manage.py durableflow drain``: execute what is due, in this process."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import Error

from durableflow.core.conf import get_settings
from durableflow.core.outages import passes
from durableflow.engine import heartbeat
from durableflow.engine.drain import drain, settle
from durableflow.management.arguments import add_json
from durableflow.management.verbs.base import Verb
from durableflow.models.creation import database


def seconds(text: str) -> float:
    """A number of seconds from the command line."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ArgumentTypeError(f"expected a number of seconds of at least 0, not {text!r}")
    return value


class Drain(Verb):
    """The same as ``durableflow.drain()``: for cron, and for looking at what happens without a cluster."""

    name = "drain"
    help = "Execute what is due now, in this process, and end."

    @staticmethod
    def add_arguments(parser: CommandParser) -> None:
        """``--seconds``, ``--json``."""
        parser.add_argument(
            "--seconds",
            type=seconds,
            default=1.0,
            help="Begin nothing more after so many seconds (default 1); it ends earlier when nothing is due.",
        )
        add_json(parser)

    def run(self, **options: Any) -> None:
        """Print how many executions ran, when all that they have begun is over. CommandError without the tables, and where the
        database is away."""
        using = database()
        try:
            count = drain(seconds=options["seconds"])
            settle()
        except Error as error:
            if not passes(error):
                raise
            said = " ".join(str(error).split())
            raise CommandError(f"The database {using!r} is away or busy, try again: {said}") from error
        finally:
            heartbeat.leave(using, workers=get_settings().THREADS)
        printer = self.printer(options)
        printer.document({"executions": count})
        printer.line(f"{count} executions" if count != 1 else "1 execution")

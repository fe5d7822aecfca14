"""``manage.py durableflow tail``: the history of an instance, and what happens from now on."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentTypeError
from collections.abc import Generator
from contextlib import closing
from typing import Any, Final

from django.core.management.base import CommandParser
from django.db import Error, connections

from durableflow import timeline
from durableflow.core.outages import passes
from durableflow.core.statuses import Status
from durableflow.management.arguments import MOST_KEY, at_least
from durableflow.management.choosing import add_instance, instance_of
from durableflow.management.errors import NO, wrong
from durableflow.management.output import Printer
from durableflow.management.text import local, pad, printable, shortened
from durableflow.management.verbs.base import Verb
from durableflow.models import WorkflowInstance
from durableflow.models.creation import database
from durableflow.models.following import Follower, Found
from durableflow.timeline import HISTORY_TYPES, HistoryView

LONGEST: Final = 200
"""Characters of an entry's data that people are shown."""
TYPE_WIDTH: Final = max(len(type) for type in HISTORY_TYPES)
AGAIN_AFTER: Final = 1.0


class Tail(Verb):
    """Follows until the instance has ended. Exit status 0, 1 where it has ended errored or terminated, 2 where there is no such
    instance (any more), 130 after Ctrl-C."""

    name = "tail"
    help = "Print the history of an instance, and then what happens, until it has ended."
    more = "Exit status: 0 complete (or, with --no-follow, not ended), 1 errored or terminated, 2 unknown or deleted, 130 Ctrl-C."

    @staticmethod
    def add_arguments(parser: CommandParser) -> None:
        """``WORKFLOW``, ``INSTANCE_ID``, ``--after``, ``--types``, ``--no-follow``."""
        add_instance(parser)
        parser.add_argument(
            "--after",
            type=at_least(0, MOST_KEY),
            default=0,
            metavar="ID",
            help="Begin after this entry (its id is in --json).",
        )
        parser.add_argument(
            "--types",
            type=history_types,
            metavar="A,B",
            help="Only entries of these types: " + ", ".join(HISTORY_TYPES) + ".",
        )
        parser.add_argument("--no-follow", action="store_true", help="End after what is there now.")
        parser.add_argument(
            "--json", action="store_true", help="Print one JSON document per entry and line, for programs."
        )

    def run(self, **options: Any) -> None:
        """Print entry by entry. A database that is away is waited for."""
        printer = self.printer(options)
        row = instance_of(options["workflow"], options["instance_id"])
        tail = _Tail(printer, row, options["after"], options["types"])
        status = tail.print_all(once=options["no_follow"])
        if status is None:
            raise wrong(f"{row.label} does not exist any more: somebody has deleted it.")
        if status in (Status.ERRORED, Status.TERMINATED):
            sys.exit(NO)


class _Tail:
    """Where the printing has come to."""

    def __init__(self, printer: Printer, row: WorkflowInstance, after: int, types: list[str] | None) -> None:
        self.printer = printer
        self.row = row
        self.after = after
        self.types = types
        self.run_number = 0

    def print_all(self, *, once: bool) -> str | None:
        """Print to the end, or with ``once`` what is there. The instance's last known status, None if it is gone."""
        complained = False
        while True:
            try:
                return self._print_on(once)
            except Error as error:
                if once or not passes(error):
                    raise
                if not complained:
                    self.printer.note(f"The database is away or busy, trying again: {printable(error)}")
                complained = True
                connections[database()].close_if_unusable_or_obsolete()
                time.sleep(AGAIN_AFTER)

    def _print_on(self, once: bool) -> str | None:
        follower = Follower(self.row, self.after, self.types)
        status: str | None = None
        with closing(_at_once(follower) if once else follower.batches()) as batches:
            for found in batches:
                self._print_entries(found, follower)
                status = found.status
        return status

    def _print_entries(self, found: Found, follower: Follower) -> None:
        told = timeline.told(self.row, found.entries, follower.types)
        for entry, views in zip(found.entries, told, strict=True):
            for view in views:
                self._print(view)
            self.after = entry.pk
        self.printer.stdout.flush()

    def _print(self, view: HistoryView) -> None:
        if self.printer.as_json:
            self.printer.document({name: getattr(view, name) for name in view.__dataclass_fields__})
            return
        if view.run_number != self.run_number and view.run_number > 1:
            self.printer.line(f"run {view.run_number}")
        self.run_number = view.run_number
        parts = [local(view.at), self._painted(view.type), printable(view.step)]
        parts.append(shortened(view.data, LONGEST) if view.data not in (None, {}) else "")
        parts.append(printable(f"by {view.actor}") if view.actor else "")
        parts.append(printable(f"({view.reason})") if view.reason else "")
        self.printer.line("  ".join(part for part in parts if part).rstrip())

    def _painted(self, type: str) -> str:
        style: Any = self.printer.style
        text = pad(type, TYPE_WIDTH)
        if type.endswith(("_errored", "_lost", "_terminated", "_timed_out")):
            return str(style.ERROR(text))
        return str(style.SUCCESS(text)) if type == "workflow_completed" else text


def _at_once(follower: Follower) -> Generator[Found]:
    while True:
        found = follower.look()
        yield found
        if not found.more:
            return


def history_types(text: str) -> list[str]:
    """Types of history entries, separated by commas."""
    types = [part.strip() for part in text.split(",") if part.strip()]
    unknown = [type for type in types if type not in HISTORY_TYPES]
    if unknown or not types:
        raise ArgumentTypeError(f"unknown history types: {', '.join(unknown) or 'none given'}")
    return types

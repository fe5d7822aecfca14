"""``manage.py durableflow health``: is due work executed, and by whom?"""

from __future__ import annotations

import sys
from typing import Any, Final

from django.core.management.base import CommandParser

from durableflow import health
from durableflow.core.statuses import Hold
from durableflow.health import Health, Level
from durableflow.health.report import as_dict
from durableflow.health.rules import ago, number
from durableflow.management.output import Column, Printer
from durableflow.management.text import printable
from durableflow.management.verbs.base import Verb

EXIT: Final = {Level.OK: 0, Level.WARNING: 1, Level.CRITICAL: 2}
MOST_ROWS: Final = 20
COLUMNS: Final = tuple(
    Column(head) for head in ("kind", "host", "process", "busy", "started", "seen", "last claim", "version")
)


class HealthVerb(Verb):
    """For people, and for service managers by its exit status.

    0: ok, and warnings without ``--strict``; 1: a warning, with ``--strict``; 2: critical, also when the database
    cannot be asked. So a supervisor restarts nothing for a warning, and a monitor that knows the three (Nagios and its
    kin) runs it with ``--strict``.
    """

    needs_tables = False
    name = "health"
    help = "Tell whether due work is executed, and by whom. Exit status 2: critical."

    @staticmethod
    def add_arguments(parser: CommandParser) -> None:
        """``--json``, ``--strict``."""
        parser.add_argument("--json", action="store_true", help="Print one JSON object, for programs.")
        parser.add_argument("--strict", action="store_true", help="End with 1 for a warning instead of 0.")

    def run(self, **options: Any) -> None:
        """Print what was found; leaves by SystemExit unless the status is 0."""
        found, printer = health.check(), self.printer(options)
        printer.document(as_dict(found))
        for line in lines(found, printer):
            printer.line(line)
        status = EXIT[found.status]
        if status > 1 or (status and options["strict"]):
            sys.exit(status)


def lines(found: Health, printer: Printer) -> list[str]:
    """The report for people."""
    style: Any = printer.style
    paint = {Level.OK: style.SUCCESS, Level.WARNING: style.WARNING, Level.CRITICAL: style.ERROR}
    said = [paint[found.status](found.status.upper())]
    said += [f"  {paint[reason.level](reason.level)}: {reason.text}" for reason in found.reasons]
    if any(reason.code == "database" for reason in found.reasons):
        return said
    return [*said, "", *_facts(found), *_processes(found, printer), *_blocked(found)]


def _facts(found: Health) -> list[str]:
    due = found.oldest_due
    facts = [
        ("workers", f"{found.busy} of {found.workers} busy, in {_plural(len(found.live), 'process group')}"),
        ("last seen", "never within a day" if found.last_seen is None else f"{ago(found.last_seen)} ago"),
        ("last claim", "none within a day" if found.last_claim is None else f"{ago(found.last_claim)} ago"),
        ("oldest due", "nothing is due" if due is None else f"{due.label}, for {ago(due.seconds)}"),
        ("overdue", f"{number(found.overdue)} (due for more than {ago(found.terms.warning)})"),
        ("undelivered", "nothing" if found.undelivered is None else f"the oldest for {ago(found.undelivered)}"),
        ("blocked", number(found.blocked)),
        *((f"on hold, {hold}", f"{number(count)} ({Hold(hold).label})") for hold, count in found.holds.items()),
    ]
    width = max(len(name) for name, _value in facts)
    return [f"  {name:<{width}}  {value}" for name, value in facts]


def _processes(found: Health, printer: Printer) -> list[str]:
    if not found.live:
        return []
    rows = [
        (
            str(process.kind),
            process.host,
            process.pid,
            f"{process.busy}/{process.workers}",
            f"{ago(process.started)} ago",
            f"{ago(process.seen)} ago",
            "-" if process.last_claim is None else f"{ago(process.last_claim)} ago",
            process.version,
        )
        for process in found.live[:MOST_ROWS]
    ]
    more = len(found.live) - MOST_ROWS
    table = printer.table(COLUMNS, rows, indent="  ")
    return ["", *table, *([f"  and {more} more"] if more > 0 else [])]


def _blocked(found: Health) -> list[str]:
    if not found.blocked_latest:
        return []
    said = ["", "  Blocked, the latest first (repair the cause, then: durableflow resume WORKFLOW INSTANCE_ID):"]
    return said + [f"    {row.label}: {printable(row.reason)[:300]}" for row in found.blocked_latest]


def _plural(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"

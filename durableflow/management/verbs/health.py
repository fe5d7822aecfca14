"""``manage.py durableflow health``: is due work executed, and by whom?"""

from __future__ import annotations

import json
import sys
from typing import Any, Final

from django.core.management.base import CommandParser
from django.core.management.color import Style, color_style, no_style

from durableflow import health
from durableflow.core.statuses import Hold
from durableflow.health import Health, Level
from durableflow.health.report import as_dict
from durableflow.health.rules import ago, number
from durableflow.management.verbs.base import Verb

EXIT: Final = {Level.OK: 0, Level.WARNING: 1, Level.CRITICAL: 2}
MOST_ROWS: Final = 20


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
        found = health.check()
        if options["json"]:
            self.stdout.write(json.dumps(as_dict(found), ensure_ascii=False))
        else:
            for line in lines(found, self._style(options)):
                self.stdout.write(line)
        status = EXIT[found.status]
        if status > 1 or (status and options["strict"]):
            sys.exit(status)

    def _style(self, options: dict[str, Any]) -> Style:
        if options.get("no_color"):
            return no_style()
        return color_style(force_color=True) if options.get("force_color") or self.stdout.isatty() else no_style()


def lines(found: Health, style: Style) -> list[str]:
    """The report for people."""
    paint = {Level.OK: style.SUCCESS, Level.WARNING: style.WARNING, Level.CRITICAL: style.ERROR}
    said = [paint[found.status](found.status.upper())]
    said += [f"  {paint[reason.level](reason.level)}: {reason.text}" for reason in found.reasons]
    if any(reason.code == "database" for reason in found.reasons):
        return said
    return [*said, "", *_facts(found), *_processes(found), *_blocked(found)]


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


def _processes(found: Health) -> list[str]:
    if not found.live:
        return []
    head = ("kind", "host", "process", "busy", "started", "seen", "last claim", "version")
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
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    table = [
        "  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in (head, *rows)
    ]
    more = len(found.live) - MOST_ROWS
    return ["", *(line.rstrip() for line in table), *([f"  and {more} more"] if more > 0 else [])]


def _blocked(found: Health) -> list[str]:
    if not found.blocked_latest:
        return []
    said = ["", "  Blocked, the latest first (repair the cause, then resume or terminate them in the admin):"]
    return said + [f"    {row.label}: {_printable(row.reason)[:300]}" for row in found.blocked_latest]


def _printable(text: str) -> str:
    """In one line, and nothing that a terminal would obey: the text of an error may hold anything."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in " ".join(text.split()))


def _plural(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"

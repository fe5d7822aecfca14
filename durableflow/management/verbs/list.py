"""``manage.py durableflow list``: which instances there are."""

from __future__ import annotations

from typing import Any, Final

from django.core.management.base import CommandParser
from django.db.models import Count

from durableflow.core import clock, registry
from durableflow.core.spans import span
from durableflow.core.statuses import Hold, Status
from durableflow.management.arguments import add_json, at_least, since, until
from durableflow.management.choosing import rows_of
from durableflow.management.documents import instance_row
from durableflow.management.output import Cell, Column, Printer
from durableflow.management.text import local
from durableflow.management.verbs.base import Verb
from durableflow.models import WorkflowInstance
from durableflow.models.creation import database

DEFAULT_LIMIT: Final = 50
NARROWING: Final = ("status", "failed", "since", "until", "reverse", "limit")
COLUMNS: Final = (
    Column("INSTANCE", keep=True),
    Column("STATUS", keep=True),
    Column("RUN", right=True),
    Column("CREATED"),
    Column("TOOK", right=True),
    Column("STARTED BY"),
    Column("NOTE"),
)


class ListVerb(Verb):
    """Reads only. Exit status 0, also for an empty list; 2: there is no such workflow."""

    name = "list"
    help = "List instances, the newest first; without a workflow and options, the workflows with their numbers."

    @staticmethod
    def add_arguments(parser: CommandParser) -> None:
        """``WORKFLOW`` and what narrows the list."""
        parser.add_argument("workflow", nargs="?", help="Only instances of this workflow.")
        add_filters(parser)
        parser.add_argument("--limit", type=at_least(1), help=f"At most so many instances (default {DEFAULT_LIMIT}).")
        parser.add_argument("--reverse", action="store_true", help="The oldest first.")
        add_json(parser)

    def run(self, **options: Any) -> None:
        """Print them."""
        printer = self.printer(options)
        if options["workflow"] is None and not any(options[name] for name in NARROWING):
            _overview(printer)
            return
        if options["workflow"] is not None:
            rows = rows_of(options["workflow"])
        else:
            rows = WorkflowInstance.objects.using(database()).light()
        limit = options["limit"] or DEFAULT_LIMIT
        rows = narrowed(rows, options).with_not_undone()
        found = list(rows.order_by("id" if options["reverse"] else "-id")[: limit + 1])
        more, found = len(found) > limit, found[:limit]
        printer.document([instance_row(row) for row in found])
        if found and not printer.as_json:
            print_rows(printer, found, several=options["workflow"] is None)
        if not found:
            printer.line("No instances.")
        if more:
            which = "oldest" if options["reverse"] else "newest"
            printer.note(f"Only the {which} {limit} are listed: --limit lists more.")


def add_filters(parser: CommandParser) -> None:
    """``--status``, ``--failed``, ``--since``, ``--until``."""
    parser.add_argument(
        "--status",
        action="append",
        choices=[str(status) for status in Status],
        metavar="STATUS",
        help=f"Only instances of this status; may be given several times. One of: {', '.join(Status.values)}.",
    )
    parser.add_argument(
        "--failed", action="store_true", help="Only instances that need a person: errored, blocked, or not undone."
    )
    bound = "a day, a moment, or how long ago ('2 hours')"
    parser.add_argument("--since", type=since, metavar="WHEN", help=f"Created then or later: {bound}.")
    parser.add_argument(
        "--until", type=until, metavar="WHEN", help=f"Created before: {bound}; a day counts as a whole."
    )


def narrowed(rows: Any, options: dict[str, Any]) -> Any:
    """Those of ``rows`` that the options of ``add_filters`` mean."""
    if options["status"]:
        rows = rows.filter(status__in=sorted(set(options["status"])))
    if options["failed"]:
        rows = rows.failed()
    if options["since"] is not None:
        rows = rows.filter(created__gte=options["since"])
    if options["until"] is not None:
        rows = rows.filter(created__lt=options["until"])
    return rows


def print_rows(printer: Printer, rows: list[WorkflowInstance], *, several: bool) -> None:
    """A table of instances; with their workflows, where there are several."""
    table: list[list[Cell | str]] = [
        [
            row.label if several else row.instance_id,
            printer.status(row.status),
            str(row.run_number),
            local(row.created),
            took(row),
            row.created_by_name or row.get_trigger_display(),
            note(row),
        ]
        for row in rows
    ]
    printer.print_table(COLUMNS, table)


def took(row: WorkflowInstance) -> str:
    """How long it has taken, or takes so far; '' before its start."""
    return "" if row.started is None else span((row.finished or clock.host_now()) - row.started)


def note(row: WorkflowInstance) -> str:
    """What else is to be said of an instance in a list."""
    if row.blocked:
        return "blocked, a person is needed"
    if getattr(row, "is_not_undone", False):
        return "not undone, a person is needed"
    if row.hold:
        return str(Hold(row.hold).label) if row.hold in Hold.values else row.hold
    if row.wake_at is not None and row.wake_at > clock.host_now() and row.status in (Status.QUEUED, Status.WAITING):
        return f"goes on at {local(row.wake_at)}" if row.status == Status.WAITING else f"starts at {local(row.wake_at)}"
    return ""


def _overview(printer: Printer) -> None:
    """One line for each workflow that this code or a stored instance has."""
    counts: dict[str, dict[str, int]] = {name: {} for name in registry.names()}
    rows = WorkflowInstance.objects.using(database()).order_by()
    for name, status, number in rows.values_list("workflow", "status").annotate(Count("id")):
        counts.setdefault(name, {})[status] = number
    known = set(registry.names())
    printer.document(
        [
            {"workflow": name, "known": name in known, "total": sum(found.values()), "counts": found}
            for name, found in sorted(counts.items())
        ]
    )
    if printer.as_json:
        return
    if not counts:
        printer.line(
            "No workflows: no app in INSTALLED_APPS has one in its module 'workflows', and no instance is stored."
        )
        return
    statuses = [str(status) for status in Status if any(status in found for found in counts.values())]
    columns = [Column("WORKFLOW", keep=True), *(Column(status.upper(), right=True) for status in statuses)]
    table = []
    for name, found in sorted(counts.items()):
        cells: list[Cell | str] = [name if name in known else _stored_only(name)]
        for status in statuses:
            number = found.get(status, 0)
            cells.append(Cell(f"{number:,}", printer.paint(status)) if number else "-")
        table.append([*cells, f"{sum(found.values()):,}"])
    printer.print_table([*columns, Column("TOTAL", right=True)], table)


def _stored_only(name: str) -> str:
    heir: Any = registry.find(name)
    return f"{name} (now {heir.options.name})" if heir is not None else f"{name} (not in this code)"

"""``manage.py durableflow schedules``: what starts by itself, and when (design 9)."""

from __future__ import annotations

from typing import Any, Final
from zoneinfo import ZoneInfo

from django.core.management.base import CommandParser

from durableflow.core import registry
from durableflow.core.names import check_workflow_name
from durableflow.core.redact import shown
from durableflow.core.schedules import check_schedule_name
from durableflow.core.statuses import Via
from durableflow.management.arguments import add_actor, add_json, at_least
from durableflow.management.choosing import unknown_workflow, user_of
from durableflow.management.documents import named
from durableflow.management.errors import told, wrong
from durableflow.management.output import Cell, Column, Printer
from durableflow.management.text import local, printable
from durableflow.management.verbs.base import Verb
from durableflow.models import WorkflowSchedule
from durableflow.models.creation import database
from durableflow.models.permissions import holds

LIST, PAUSE, RESUME, RUN = "list", "pause", "resume", "run"
DEFAULT_NEXT: Final = 3
MOST_NEXT: Final = 1_000
VIEW: Final = "view_workflowschedule"
COLUMNS: Final = (
    Column("WORKFLOW", keep=True),
    Column("NAME", keep=True),
    Column("CRON"),
    Column("STATE", keep=True),
    Column("NEXT"),
)


class Schedules(Verb):
    """Exit status 0: done; 2: refused (no such schedule, paused already, a missing right), nothing has changed."""

    name = "schedules"
    help = "List schedules with their next runs; pause, resume or run one."
    more = "With the workflow's name, and the schedule's name where there are several."

    @staticmethod
    def add_arguments(parser: CommandParser) -> None:
        """``list|pause|resume|run``, ``WORKFLOW``, ``NAME``."""
        actions = (LIST, PAUSE, RESUME, RUN)
        parser.add_argument("action", nargs="?", choices=actions, default=LIST, help="Default: list.")
        parser.add_argument("workflow", nargs="?", help="The workflow's name.")
        parser.add_argument("schedule", nargs="?", metavar="NAME", help="The schedule's name.")
        parser.add_argument(
            "--next",
            type=at_least(1, MOST_NEXT),
            default=DEFAULT_NEXT,
            help=f"List so many next runs (default {DEFAULT_NEXT}).",
        )
        add_actor(parser)
        add_json(parser)

    def run(self, **options: Any) -> None:
        """List them, or act on one."""
        user, action = user_of(options["user"]), options["action"]
        rows = _rows(options["workflow"], options["schedule"])
        if options["workflow"] is not None and registry.find(options["workflow"]) is None and not rows:
            raise unknown_workflow(options["workflow"])
        if action == LIST:
            _list(self.printer(options), [row for row in rows if _sees(user, row)], options["next"])
            return
        if options["workflow"] is None:
            raise wrong(f"Say which: schedules {action} WORKFLOW [NAME].")
        self._act(_one([row for row in rows if _sees(user, row)], options), options, user)

    def _act(self, row: WorkflowSchedule, options: dict[str, Any], user: Any) -> None:
        said: dict[str, Any] = {"by": user, "reason": options["reason"], "via": Via.CLI}
        printer = self.printer(options)
        if options["action"] == RUN:
            with told():
                instance = row.run_now(**said)
            printer.document(named(instance))
            printer.line(f"Started {instance.label}.")
            return
        with told():
            (row.pause if options["action"] == PAUSE else row.resume)(**said)
        printer.document(schedule_document(row, options["next"]))
        upcoming = row.upcoming(1)
        then = f"Resumed the schedule {row}. It starts next at {_at(row, upcoming[0])}." if upcoming else ""
        printer.line(printable(then or f"Paused the schedule {row}: nothing is started by it until it is resumed."))


def schedule_document(row: WorkflowSchedule, count: int) -> dict[str, Any]:
    """A schedule, with its next slots and the latest that were skipped."""
    names = ("workflow", "name", "cron", "timezone", "enabled", "declared", "catch_up", "overlap")
    skipped = ("slot", "last", "number", "reason", "detail", "at")
    latest = row.skipped.order_by("-id").first()
    return {
        **{name: getattr(row, name) for name in names},
        "params": shown(row.params),
        "next_slot": row.next_slot,
        "buffered_slot": row.buffered_slot,
        "upcoming": row.upcoming(count),
        "problem": row.problem,
        "skipped": None if latest is None else {name: getattr(latest, name) for name in skipped},
    }


def _rows(workflow: str | None, name: str | None) -> Any:
    rows = WorkflowSchedule.objects.using(database()).order_by("workflow", "name")
    with told():
        if name is not None:
            check_schedule_name(name)
        if workflow is not None:
            check_workflow_name(workflow)
    if workflow is not None:
        cls: Any = registry.find(workflow)
        rows = rows.filter(workflow__in=[workflow] if cls is None else cls.options.names)
    return rows if name is None else rows.filter(name=name)


def _sees(user: Any, row: WorkflowSchedule) -> bool:
    return user is None or holds(user, VIEW, row)


def _one(rows: list[WorkflowSchedule], options: dict[str, Any]) -> WorkflowSchedule:
    if len(rows) == 1:
        return rows[0]
    workflow, name = options["workflow"], options["schedule"]
    if rows:
        raise wrong(f"{workflow} has several schedules, say which: {', '.join(row.name for row in rows)}.")
    what = f"no schedule {name!r}" if name is not None else "no schedule"
    raise wrong(f"The workflow {workflow!r} has {what}. 'durableflow schedules' lists them.")


def _list(printer: Printer, rows: list[WorkflowSchedule], count: int) -> None:
    documents = [schedule_document(row, count) for row in rows]
    printer.document(documents)
    if printer.as_json:
        return
    if not rows:
        printer.line("No schedules. Those in Meta.schedules are listed once a cluster or a drain has run.")
        return
    lines = printer.table(COLUMNS, [_row(printer, row) for row in rows])
    printer.line(lines[0])
    for line, row, document in zip(lines[1:], rows, documents, strict=True):
        printer.line(line)
        if later := document["upcoming"][1:]:
            printer.line(f"     then {', '.join(_at(row, slot) for slot in later)}")
        if row.problem:
            printer.line(f"     {printer.style.ERROR(printable(row.problem))}")
        if row.buffered_slot is not None:
            printer.line(f"     {_at(row, row.buffered_slot)} waits for the end of an earlier instance")
        if (skip := document["skipped"]) is not None:
            printer.line(f"     skipped {skip['number']:,}, last {_at(row, skip['last'])}: {_why(skip)}")


def _why(skip: dict[str, Any]) -> str:
    return printable(", ".join(filter(None, (skip["reason"], skip["detail"]))))


def _row(printer: Printer, row: WorkflowSchedule) -> list[Cell | str]:
    state = "on" if row.enabled and not row.problem else "cannot fire" if row.enabled else "paused"
    style: Any = printer.style
    paint = {"on": str, "paused": style.WARNING, "cannot fire": style.ERROR}[state]
    upcoming = row.upcoming(1)
    cron = f"{row.cron} ({row.timezone})"
    return [row.workflow, row.name, cron, Cell(state, paint), _at(row, upcoming[0]) if upcoming else ""]


def _at(row: WorkflowSchedule, slot: Any) -> str:
    """A slot in the schedule's own time zone: that is where its cron line is read."""
    try:
        return str(slot.astimezone(ZoneInfo(row.timezone)).strftime("%Y-%m-%d %H:%M %Z"))
    except (ValueError, KeyError, OSError):  # a row that was changed past save()
        return local(slot)

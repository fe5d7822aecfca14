"""``manage.py durableflow show``: one instance with its steps."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from django.core.management.base import CommandParser

from durableflow import timeline
from durableflow.core.redact import shown
from durableflow.core.spans import span
from durableflow.core.statuses import StepKind
from durableflow.management.arguments import add_json, at_least
from durableflow.management.choosing import EVERYBODY, add_instance, instance_of
from durableflow.management.documents import instance_document, step_document
from durableflow.management.errors import wrong
from durableflow.management.output import Cell, Column, Printer
from durableflow.management.text import local, printable, printable_lines, shortened
from durableflow.management.verbs.base import Verb
from durableflow.management.verbs.list import took
from durableflow.models import WorkflowInstance
from durableflow.timeline import AttemptView, Relative, StepView, Veil

DEFAULT_LIMIT: Final = 5_000
COLUMNS: Final = (
    Column("#", keep=True, right=True),
    Column("STEP"),
    Column("KIND", keep=True),
    Column("STATUS", keep=True),
    Column("ATTEMPTS", right=True),
    Column("STARTED"),
    Column("TOOK", right=True),
    Column("NEXT"),
)
INDENT: Final = "     "
COMMANDS: Final = {"complete_step": "complete-step", "send_event": "send"}
"""Actions that the command line calls otherwise."""


class Show(Verb):
    """Reads only; outputs of sensitive steps and redacted keys are masked. Exit status 0; 2: there is no such instance."""

    name = "show"
    help = "Show an instance: where it is and why, and its steps with their attempts."

    @staticmethod
    def add_arguments(parser: CommandParser) -> None:
        """``WORKFLOW``, ``INSTANCE_ID``, ``--limit``."""
        add_instance(parser)
        parser.add_argument(
            "--limit",
            type=at_least(0),
            metavar="CHARACTERS",
            help=f"Cut params, outputs and errors to so many characters (default {DEFAULT_LIMIT}; 0: without outputs). "
            "With --json they are whole, and 0 alone has a meaning.",
        )
        add_json(parser)

    def run(self, **options: Any) -> None:
        """Print it."""
        printer, limit = self.printer(options), options["limit"]
        if printer.as_json and limit:
            raise wrong("--limit cuts what people read; with --json only --limit 0 (without outputs) is possible.")
        row = instance_of(options["workflow"], options["instance_id"], whole=True)
        stored = row.steps.filter(run_number=row.run_number).order_by("seq").defer("config")
        records = list(stored.defer("config", "raw_output") if limit == 0 else stored)
        views = timeline.steps(row, records, outputs=limit != 0)
        children = timeline.children_of(records, EVERYBODY)
        document = instance_document(row, Veil.over(row))
        if limit == 0:
            document["output"] = None
        document["steps"] = [step_document(view, children.get(view.id, [])) for view in views]
        printer.document(document)
        if not printer.as_json:
            _Report(printer, DEFAULT_LIMIT if limit is None else limit, document).show(row, document, views, children)


class _Report:
    """What people read of an instance."""

    def __init__(self, printer: Printer, limit: int, document: dict[str, Any]) -> None:
        self.printer, self.limit = printer, limit
        self.pause = document["pause"]
        # While it is paused its clock stands still: what each timer has left is all that can be said.
        timers = self.pause["timers"] if self.pause else ()
        self.left: dict[tuple[str, str], Any] = {(each["kind"], each["label"]): each["left"] for each in timers}

    def show(
        self,
        row: WorkflowInstance,
        document: dict[str, Any],
        views: list[StepView],
        children: dict[int, list[Relative]],
    ) -> None:
        """The instance, then its steps."""
        printer = self.printer
        printer.line(f"{row.label}  {printer.paint(row.status)(row.status)}")
        printer.line(f"  {printable(document['reason'])}")
        if document["advice"]:
            printer.line(f"  {printable(document['advice'])}")
        printer.line()
        printer.facts(self._facts(row, document))
        printer.line()
        self._steps(views, children)
        self._error(document["error"])

    def _steps(self, views: list[StepView], children: dict[int, list[Relative]]) -> None:
        if not views:
            self.printer.line("No step has begun.")
            return
        lines = self.printer.table(COLUMNS, [self._row(view) for view in views])
        self.printer.line(lines[0])
        for line, view in zip(lines[1:], views, strict=True):
            self.printer.line(line)
            for detail in self._details(view, children.get(view.id, [])):
                self.printer.line(f"{INDENT}{detail}")

    def _facts(self, row: WorkflowInstance, document: dict[str, Any]) -> Iterator[tuple[str, str]]:
        by = f", by {printable(row.created_by_name)}" if row.created_by_name else ""
        yield "run", str(row.run_number)
        yield "trigger", f"{row.trigger}{by}"
        yield "priority", document["priority"]
        yield "scheduled for", local(row.scheduled_for)
        yield "created", local(row.created)
        yield "starts", local(row.starts_at) if row.started is None else ""
        yield "started", local(row.started)
        yield "finished", local(row.finished)
        yield "took" if row.is_finished else "takes", took(row)
        yield "deadline", self._until(row.deadline_at, ("", "")) if not row.is_finished else ""
        yield "paused", self._paused()
        if (parent := document["parent"]) is not None:
            yield "parent", printable(f"{parent['workflow']}/{parent['instance_id']}, in {parent['step']}")
        yield from (("waits for", self._wait(wait)) for wait in document["waiting_for"])
        if row.rollback:
            failed = ", ".join(row.rollback["failed"])
            yield "rollback", printable(f"{row.rollback['outcome']}{f': {failed}' if failed else ''}")
        for name in ("params", "progress", "output"):
            if self.limit and document[name] is not None:
                yield name, shortened(document[name], self.limit)
        yield "can now", ", ".join(sorted(COMMANDS.get(each, each) for each in document["available_actions"]))

    def _error(self, error: dict[str, Any] | None) -> None:
        if error is None:
            return
        self.printer.line()
        self.printer.line(f"  {self.printer.style.ERROR(self._told(error))}")
        text = error["traceback"]
        if self.limit and text:
            kept = text if len(text) <= self.limit else f"...{text[-self.limit :]}"
            for line in printable_lines(kept):
                self.printer.line(f"    {line}")

    def _told(self, error: dict[str, Any]) -> str:
        text = f"{error['type']}: {error['message']}" if error["message"] else error["type"]
        most = self.limit or DEFAULT_LIMIT
        return printable(text if len(text) <= most else f"{text[:most]}...")

    def _row(self, view: StepView) -> list[Cell | str]:
        what = "retries" if view.next_attempt_at else "ends"
        until = self._until(view.next_attempt_at or view.wake_at, (view.kind, view.label))
        upcoming = f"{what} {until}" if until.endswith("left") else f"{what} at {until}" if until else ""
        return [
            str(view.seq),
            view.label,
            view.kind,
            self.printer.status(view.status),
            str(view.attempts) if view.attempts else "",
            local(view.started),
            span(view.duration),
            upcoming,
        ]

    def _until(self, moment: datetime | None, timer: tuple[str, str]) -> str:
        left = self.left.get(timer)
        return local(moment) if left is None else f"with {span(left)} left"

    def _wait(self, wait: dict[str, Any]) -> str:
        until = f", until {local(wait['deadline'])}" if wait["deadline"] and self.pause is None else ""
        if wait["kind"] == StepKind.WAIT_FOR_APPROVAL:
            return printable(f"decision {wait['pending_event']}: {wait['title'] or wait['name']}{until}")
        return printable(f"an event of type {' or '.join(wait['types'])} in {wait['name']}{until}")

    def _paused(self) -> str:
        if self.pause is None:
            return ""
        since = local(self.pause["since"]) or f"asked {local(self.pause['asked'])}"
        by = f", by {self.pause['by']}" if self.pause["by"] else ""
        why = f": {self.pause['reason']}" if self.pause["reason"] else ""
        return printable(f"{since}{by}{why}")

    def _details(self, view: StepView, children: list[Relative]) -> Iterator[str]:
        if len(view.tries) > 1 or any(attempt.error for attempt in view.tries):
            yield from (self._attempt(attempt) for attempt in view.tries)
        elif view.error is not None:
            yield self.printer.style.ERROR(self._told(view.error))
        if children:
            yield f"child {children[0].label} ({children[0].status})"
        if view.wait is not None and view.wait.approved is not None:
            said = "approved" if view.wait.approved else "rejected"
            comment = f": {view.wait.comment}" if view.wait.comment else ""
            yield printable(f"{said} by {view.wait.decided_by or 'a program'}{comment}")
        if view.rollback is not None:
            yield f"rollback {self.printer.paint(view.rollback.status)(view.rollback.status)}"
            if view.rollback.error:
                yield self.printer.style.ERROR(self._told(view.rollback.error))
        if self.limit and view.output is not None and view.kind != StepKind.WAIT_FOR_APPROVAL:
            yield f"output {shortened(shown(view.output), self.limit)}"

    def _attempt(self, attempt: AttemptView) -> str:
        parts = [f"attempt {attempt.number}", self.printer.paint(attempt.status)(attempt.status)]
        if attempt.started is not None:
            parts.append(local(attempt.started))
            parts += [span(attempt.finished - attempt.started)] if attempt.finished is not None else []
        if attempt.error:
            parts.append(self._told(attempt.error))
        return "  ".join(parts)

"""``manage.py durableflow start``: start an instance."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import CommandParser

from durableflow.core.exceptions import InstanceAlreadyExists, WorkflowFailed
from durableflow.core.redact import shown
from durableflow.core.retries import Retention
from durableflow.core.statuses import Trigger, Via
from durableflow.management.arguments import DIGITS, add_actor, add_json, json_value, start
from durableflow.management.choosing import class_of, user_of
from durableflow.management.documents import named
from durableflow.management.errors import NO, told, wrong
from durableflow.management.text import as_json, local, printable
from durableflow.management.verbs.base import Verb
from durableflow.management.verbs.drain import seconds
from durableflow.models import Priority, WorkflowInstance
from durableflow.models.creation import insert
from durableflow.models.permissions import START, require


def _kept(text: str) -> int | str:
    """A number of seconds; what is none is for ``Retention`` to read, or to refuse."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= DIGITS else text


class Start(Verb):
    """The same as ``Workflow.create``. Exit status 0: started; 1: ``--wait``, and it failed or has not ended; 2: refused, nothing
    is stored."""

    name = "start"
    help = "Start an instance."
    more = "With --wait the exit status is 1 unless it completes in time."

    @staticmethod
    def add_arguments(parser: CommandParser) -> None:
        """``WORKFLOW``, ``PARAMS`` and the options of ``create``."""
        parser.add_argument("workflow", help="The workflow's name.")
        parser.add_argument(
            "params", nargs="?", metavar="PARAMS", help="JSON, or - to read it from stdin. Default: null."
        )
        parser.add_argument("--id", dest="instance_id", help="The instance's id. Default: a new UUID.")
        parser.add_argument(
            "--start-at",
            type=start,
            metavar="WHEN",
            help="Not before: a moment, or a duration from now ('10 minutes').",
        )
        parser.add_argument("--priority", choices=[priority.name.lower() for priority in Priority])
        for end, what in (("success", "it completes or is terminated"), ("error", "it fails")):
            parser.add_argument(
                f"--retention-{end}",
                type=_kept,
                metavar="DURATION",
                help=f"Keep it so long after {what} ('30 days', or seconds). Default: what the workflow says.",
            )
        parser.add_argument(
            "--wait", type=seconds, metavar="SECONDS", help="Wait for its end, and print its output; at most so long."
        )
        add_actor(parser)
        add_json(parser)

    def run(self, **options: Any) -> None:
        """Print what was started; leaves by SystemExit where it was waited for in vain."""
        cls, user = class_of(options["workflow"]), user_of(options["user"])
        params = None if options["params"] is None else json_value(options["params"], "PARAMS")
        priority = options["priority"]
        keep = {end: options[f"retention_{end}"] for end in ("success", "error")}
        with told():
            require(user, START, None, f"start {cls.workflow_name()}")
            plan = cls.planned(
                params,
                instance_id=options["instance_id"],
                start_at=options["start_at"],
                priority=None if priority is None else Priority[priority.upper()],
                retention=Retention(**keep),
                created_by=user,
                trigger=Trigger.CLI,
                via=Via.CLI,
                reason=options["reason"],
            )
            row = insert(plan)
            if row is None:
                raise InstanceAlreadyExists(workflow=cls.workflow_name(), instance_id=options["instance_id"])
        if options["wait"] is not None:
            self._wait(row, options)
            return
        printer = self.printer(options)
        printer.document(named(row))
        when = f" It starts at {local(row.starts_at)}." if options["start_at"] is not None else ""
        printer.line(f"Started {row.label}.{when}")

    def _wait(self, row: WorkflowInstance, options: dict[str, Any]) -> None:
        printer = self.printer(options)
        if not printer.as_json:
            printer.note(f"Started {row.label}.")
        no = ""
        try:
            row.result(options["wait"])
        except (WorkflowFailed, TimeoutError) as error:
            no = printable(error)
        except RuntimeError as error:  # in a transaction of whoever called the command
            raise wrong(printable(error)) from error
        row.refresh_from_db()
        printer.document({**named(row), "output": shown(row.output)})
        if no:
            printer.note(no)
            sys.exit(NO)
        printer.line(as_json(shown(row.output)))

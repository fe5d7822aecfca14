"""``manage.py durableflow send``: send an event to an instance."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from durableflow import timeline
from durableflow.core.statuses import Via
from durableflow.management.arguments import add_actor, add_json, json_value
from durableflow.management.choosing import add_instance, instance_of, user_of
from durableflow.management.errors import told
from durableflow.management.verbs.base import Verb


class Send(Verb):
    """The same as ``WorkflowInstance.send_event``. Exit status 0: kept for the instance; 2: refused, nothing is stored."""

    name = "send"
    help = "Send an event to an instance."

    @staticmethod
    def add_arguments(parser: CommandParser) -> None:
        """``WORKFLOW``, ``INSTANCE_ID``, ``TYPE``, ``PAYLOAD``."""
        add_instance(parser)
        parser.add_argument("type", help="The event's type.")
        parser.add_argument(
            "payload", nargs="?", metavar="PAYLOAD", help="JSON, or - to read it from stdin. Default: null."
        )
        parser.add_argument(
            "--dedupe-key",
            default="",
            help="A key that the sender gives once to each event: the same key again sends nothing more.",
        )
        add_actor(parser)
        add_json(parser)

    def run(self, **options: Any) -> None:
        """Print what became of it."""
        user = user_of(options["user"])
        payload = None if options["payload"] is None else json_value(options["payload"], "PAYLOAD")
        row = instance_of(options["workflow"], options["instance_id"], user=user)
        with told():
            sent = row.send_event(
                options["type"],
                payload,
                dedupe_key=options["dedupe_key"],
                by=user,
                reason=options["reason"],
                via=Via.CLI,
            )
            row.refresh_from_db(fields=["status", "run_number"])
        types = timeline.waited_types(row)
        printer = self.printer(options)
        printer.document(
            {"id": sent.pk, "duplicate": sent.duplicate, "status": row.status, "waiting_for": types},
        )
        if sent.duplicate:
            printer.line(f"{row.label} had this event already.")
        elif options["type"] in types:
            printer.line(f"Sent. {row.label} waits for it.")
        else:
            waits = f" It waits for {', '.join(types)} now." if types else ""
            printer.line(f"Sent. {row.label} keeps it until it waits for {options['type']}.{waits}")

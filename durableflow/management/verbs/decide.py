"""``manage.py durableflow decide``: answer an approval."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from durableflow.core.redact import shown
from durableflow.core.statuses import Via
from durableflow.management.arguments import MOST_KEY, add_actor, add_json, at_least, json_value, storable
from durableflow.management.choosing import pending_of, user_of
from durableflow.management.errors import told, wrong
from durableflow.management.text import printable
from durableflow.management.verbs.base import Verb

APPROVE, REJECT = "approve", "reject"


class Decide(Verb):
    """The same as ``PendingEvent.decide``. Exit status 0: decided; 2: refused (decided before, too late, no right, wrong data)."""

    name = "decide"
    help = "Approve or reject a pending event; 'durableflow pending' lists them."

    @staticmethod
    def add_arguments(parser: CommandParser) -> None:
        """``PENDING_ID``, ``approve|reject``."""
        parser.add_argument(
            "pending_id", type=at_least(1, MOST_KEY), metavar="PENDING_ID", help="The pending event's number."
        )
        parser.add_argument("answer", choices=(APPROVE, REJECT))
        parser.add_argument("--comment", type=storable, default="", help="Told to the workflow, and kept.")
        parser.add_argument(
            "--data", metavar="JSON", help="The fields of its form as a JSON object, or - to read it from stdin."
        )
        add_actor(parser)
        add_json(parser)

    def run(self, **options: Any) -> None:
        """Print the decision."""
        user = user_of(options["user"])
        data = None if options["data"] is None else json_value(options["data"], "--data")
        if data is not None and not isinstance(data, dict):
            raise wrong("--data must be a JSON object: the fields of the form with their values.")
        row = pending_of(options["pending_id"], user)
        with told():
            decision = row.decide(
                options["answer"] == APPROVE,
                by=user,
                data=data,
                comment=options["comment"],
                reason=options["reason"],
                via=Via.CLI,
            )
        printer = self.printer(options)
        names = ("approved", "by", "at", "via", "comment")
        stored = {name: getattr(decision, name) for name in names}
        printer.document({**stored, "data": shown(decision.data)})
        said = "Approved" if decision.approved else "Rejected"
        printer.line(f"{said}: {printable(row)} ({row.instance.label}).")

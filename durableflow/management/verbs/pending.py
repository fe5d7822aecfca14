"""``manage.py durableflow pending``: what waits for a person."""

from __future__ import annotations

from typing import Any, Final

from django.core.management.base import CommandParser

from durableflow.core import registry
from durableflow.management.arguments import add_json, at_least
from durableflow.management.choosing import rows_of, user_of
from durableflow.management.documents import pending_document
from durableflow.management.output import Cell, Column
from durableflow.management.text import local
from durableflow.management.verbs.base import Verb
from durableflow.models import PendingEvent
from durableflow.models.creation import database
from durableflow.models.instance_fields import HEAVY

DEFAULT_LIMIT: Final = 50
COLUMNS: Final = (
    Column("ID", keep=True, right=True),
    Column("TITLE"),
    Column("INSTANCE", keep=True),
    Column("WHO"),
    Column("OPENED"),
    Column("UNTIL"),
)


class Pending(Verb):
    """Reads only. Exit status 0, also for an empty list; 2: there is no such user or workflow."""

    name = "pending"
    help = "List open approvals, the newest first."

    @staticmethod
    def add_arguments(parser: CommandParser) -> None:
        """``WORKFLOW`` and what narrows the list."""
        parser.add_argument("workflow", nargs="?", help="Only those of this workflow.")
        parser.add_argument("--user", metavar="USERNAME", help="Only those that this user may decide.")
        parser.add_argument(
            "--limit", type=at_least(1), default=DEFAULT_LIMIT, help=f"At most so many (default {DEFAULT_LIMIT})."
        )
        add_json(parser)

    def run(self, **options: Any) -> None:
        """Print them."""
        user, limit = user_of(options["user"]), options["limit"]
        every: Any = PendingEvent.objects.using(database())
        rows = every.open().approvals() if user is None else every.decidable_by(user)
        if (workflow := options["workflow"]) is not None:
            rows_of(workflow)  # told where there is none
            cls: Any = registry.find(workflow)
            rows = rows.filter(instance__workflow__in=[workflow] if cls is None else cls.options.names)
        heavy = [f"instance__{name}" for name in HEAVY]
        rows = rows.select_related("instance").defer("context", "data", *heavy).prefetch_related("users", "groups")
        found = list(rows.order_by("-id")[: limit + 1])
        more, found = len(found) > limit, found[:limit]
        printer = self.printer(options)
        printer.document([pending_document(row) for row in found])
        if found and not printer.as_json:
            table: list[list[Cell | str]] = [
                [str(row.pk), str(row), row.instance.label, who(row), local(row.opened), until(row)] for row in found
            ]
            printer.print_table(COLUMNS, table)
        if not found:
            printer.line("Nothing waits for a person." if user is None else f"Nothing waits for {user.get_username()}.")
        if more:
            printer.note(f"Only the newest {limit} are listed: --limit lists more.")


def until(row: PendingEvent) -> str:
    """Its deadline, which does not pass while its instance is paused."""
    stands_still = row.deadline is not None and row.instance.paused_at is not None
    return "paused" if stands_still else local(row.deadline)


def who(row: PendingEvent) -> str:
    """Who may decide it, in a few words."""
    found = pending_document(row)
    named = [*found["users"], *(f"group {name}" for name in found["groups"]), *filter(None, [row.permission])]
    barred = f", not {row.instance.created_by_name or 'who started it'}" if not row.allow_requester else ""
    return (", ".join(named) or "whoever may decide") + barred

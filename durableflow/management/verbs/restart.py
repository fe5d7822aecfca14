"""``manage.py durableflow restart``."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from durableflow.core.statuses import StepKind
from durableflow.management.arguments import at_least, storable
from durableflow.management.errors import wrong
from durableflow.management.many import is_many
from durableflow.management.verbs.acting import ActingVerb
from durableflow.models import WorkflowInstance
from durableflow.models.restart import find_step
from durableflow.operations import BulkReport, bulk_restart

KEYS = "with new idempotency keys: outside systems may charge again"


class Restart(ActingVerb):
    """The same id and params run again as the next run, from the start or from a step."""

    name = "restart"
    help = "Run an instance, or many, again from the start, or one from a step."
    more = (
        f"What runs again does so {KEYS}. Events that nobody has read are dropped. Children of the old run keep their ids: where the "
        "program gives one itself, and not with event.run_number, the new run cannot start that child until the old one is deleted."
    )
    past = "Restarted"
    warning = f"%s will run again from the start, {KEYS}."

    @classmethod
    def add_own(cls, parser: CommandParser) -> None:
        """``--from-step`` and what makes it exact."""
        step = parser.add_argument_group("from a step", "Steps that started before it are kept.")
        step.add_argument(
            "--from-step", type=storable, metavar="NAME", help="The name of the step from which on it runs again."
        )
        step.add_argument("--count", type=at_least(1), help="The so many-th step of this name (default 1).")
        kinds = [str(kind) for kind in StepKind]
        step.add_argument("--kind", choices=kinds, metavar="KIND", help=f"Its kind (default do): {', '.join(kinds)}.")
        step.add_argument("--scope", type=storable, help="The scope of its branch, as 'show --json' has it.")

    def run(self, **options: Any) -> None:
        """The options of a step belong to one, and to one instance."""
        if options["from_step"] is None:
            if any(options[name] is not None for name in ("count", "kind", "scope")):
                raise wrong("--count, --kind and --scope belong to --from-step NAME.")
        elif is_many(options):
            raise wrong("--from-step is possible for one instance alone.")
        super().run(**options)

    def one(self, row: WorkflowInstance, options: dict[str, Any], said: dict[str, Any]) -> None:
        """Restart it."""
        step = None
        if options["from_step"] is not None:
            count, kind = options["count"] or 1, options["kind"] or StepKind.DO
            step = find_step(row, options["from_step"], count=count, kind=kind, scope=options["scope"])
        row.restart(from_step=step, **said)

    def many(self, rows: Any, options: dict[str, Any], said: dict[str, Any]) -> BulkReport:
        """Restart them."""
        return bulk_restart(rows, **said)

    def sentence(self, row: WorkflowInstance) -> str:
        """With its run number."""
        return f"{self.past} {row.label}: run {row.run_number} is queued."

"""What the verbs on instances have in common: one by its id, or many after a question (design 9; case LIF-06)."""

from __future__ import annotations

import sys
from abc import abstractmethod
from typing import Any, ClassVar, Final

from django.core.management.base import CommandParser

from durableflow.core.statuses import Via
from durableflow.management.arguments import add_actor, add_json
from durableflow.management.choosing import instance_of, user_of
from durableflow.management.documents import named
from durableflow.management.errors import INTERRUPTED, NO, told
from durableflow.management.many import Many, add_many, confirmed, is_many
from durableflow.management.output import Column, Printer
from durableflow.management.progress import Progress
from durableflow.management.verbs.base import Verb
from durableflow.models import WorkflowInstance
from durableflow.operations import BulkReport

MOST_SKIPPED: Final = 50
"""Skipped rows that are listed for people; ``--json`` has them all."""


class ActingVerb(Verb):
    """A verb on instances. Right, state and audit are the row verb's own.

    ``past``: what was done, as the first word of a sentence. Exit status 0: done; 1: some of many were skipped, or a person said
    no; 2: refused, nothing was done.
    """

    past: ClassVar[str]
    warning: ClassVar[str]
    """What the question says of many; ``%s`` is how many of what."""

    @classmethod
    def add_arguments(cls, parser: CommandParser) -> None:
        """``WORKFLOW``, ``INSTANCE_ID`` or what means many; the verb's own; who acts."""
        add_many(parser)
        cls.add_own(parser)
        add_actor(parser)
        add_json(parser)

    @classmethod
    def add_own(cls, parser: CommandParser) -> None:
        """Options of this verb alone."""

    @abstractmethod
    def one(self, row: WorkflowInstance, options: dict[str, Any], said: dict[str, Any]) -> None:
        """Apply it to one instance. ``said``: by, reason, via."""

    @abstractmethod
    def many(self, rows: Any, options: dict[str, Any], said: dict[str, Any]) -> BulkReport:
        """Apply it to many. ``said``: by, reason, via, progress."""

    def run(self, **options: Any) -> None:
        """Do it and tell; leaves by SystemExit where rows were skipped."""
        many, user = is_many(options), user_of(options["user"])
        said = {"by": user, "reason": options["reason"], "via": Via.CLI}
        if many:
            self._many(options, said)
            return
        row = instance_of(options["workflow"], options["instance_id"], user=user)
        with told():
            self.one(row, options, said)
        printer = self.printer(options)
        printer.document(self.answer(row))
        printer.line(self.sentence(row))

    def answer(self, row: WorkflowInstance) -> dict[str, Any]:
        """The document of one instance."""
        return named(row)

    def sentence(self, row: WorkflowInstance) -> str:
        """What people read of one instance."""
        return f"{self.past} {row.label}: it is {row.status} now."

    def _many(self, options: dict[str, Any], said: dict[str, Any]) -> None:
        printer = self.printer(options)
        chosen = Many(self.name, options, said["by"])
        number = chosen.count()
        report = BulkReport()
        if number:
            what = f"{number:,} instance{'s' * (number != 1)} of {options['workflow']}"
            if not confirmed(self.stderr, self.warning % what, yes=options["yes"]):
                printer.note("Nothing was done.")
                sys.exit(NO)
            report = self._applied(chosen, printer, options, said)
        self._report(printer, options["workflow"], report, chosen.missing)
        if report.skipped or chosen.missing:
            sys.exit(NO)

    def _applied(self, chosen: Many, printer: Printer, options: dict[str, Any], said: dict[str, Any]) -> BulkReport:
        progress = Progress(self.stderr, self.name)
        try:
            with told(), progress:
                return self.many(chosen.rows, options, {**said, "progress": progress})
        except KeyboardInterrupt:
            printer.note(f"Interrupted after {progress.done:,} or some more; what was done stays done.")
            sys.exit(INTERRUPTED)

    def _report(self, printer: Printer, workflow: str, report: BulkReport, missing: list[str]) -> None:
        skipped = [(row.instance_id, getattr(why, "code", "skipped"), str(why)) for row, why in report.skipped]
        skipped += [(each, "not_found", f"The workflow {workflow} has no instance {each}.") for each in missing]
        printer.document(
            {
                "done": [self.answer(row) for row in report.done],
                "skipped": [dict(zip(("instance_id", "code", "reason"), each, strict=True)) for each in skipped],
            }
        )
        number = len(report.done)
        printer.line(f"{self.past} {number:,} instance{'s' * (number != 1)} of {workflow}.")
        if not skipped:
            return
        printer.line(f"Skipped {len(skipped):,}:")
        table = [(each, why) for each, _code, why in skipped[:MOST_SKIPPED]]
        printer.print_table((Column("INSTANCE", keep=True), Column("WHY")), table)
        if len(skipped) > MOST_SKIPPED:
            printer.line(f"and {len(skipped) - MOST_SKIPPED:,} more; --json lists them all")

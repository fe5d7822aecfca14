"""``manage.py durableflow purge``: delete finished instances whose retention is over (design 9)."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import CommandParser

from durableflow.management.arguments import add_json
from durableflow.management.errors import INTERRUPTED
from durableflow.management.output import Column, Printer
from durableflow.management.progress import Progress
from durableflow.management.text import printable
from durableflow.management.verbs.base import Verb
from durableflow.operations import PurgeReport, purge

COLUMNS = (
    Column("WORKFLOW", keep=True),
    Column("SUCCEEDED", right=True),
    Column("FAILED", right=True),
    Column("TOTAL", right=True),
)


class PurgeVerb(Verb):
    """The same as ``operations.purge()``, which the cluster does by itself each hour. Exit status 0, also where rows had to stay."""

    name = "purge"
    help = "Delete finished instances whose retention is over, now."
    more = (
        "The cluster does it by itself, at least once an hour. It can be interrupted at any time: the next one goes on."
    )

    @staticmethod
    def add_arguments(parser: CommandParser) -> None:
        """``--dry-run``, ``--json``."""
        parser.add_argument("--dry-run", action="store_true", help="Delete nothing; tell what would be.")
        add_json(parser)

    def run(self, **options: Any) -> None:
        """Print what was deleted, workflow by workflow, and what had to stay."""
        printer, progress = self.printer(options), Progress(self.stderr, self.name)
        try:
            with progress:
                report = purge(dry_run=options["dry_run"], progress=progress)
        except KeyboardInterrupt:
            printer.note(f"Interrupted after {progress.done:,} or some more; the next purge goes on.")
            sys.exit(INTERRUPTED)
        printer.document(document(report))
        if not printer.as_json:
            _report(printer, report)


def document(report: PurgeReport) -> dict[str, Any]:
    """The report for programs."""
    return {
        "dry_run": report.dry_run,
        "total": report.total,
        "workflows": {
            name: {"success": purged.success, "error": purged.error}
            for name, purged in sorted(report.workflows.items())
        },
        "protected": report.protected,
        "protected_instances": [
            {"instance": label, "protected_by": models} for label, models in report.protected_instances
        ],
        "locked": report.locked,
        "others": report.others,
    }


def _report(printer: Printer, report: PurgeReport) -> None:
    said = "Would delete" if report.dry_run else "Deleted"
    printer.line(f"{said} {report.total:,} instance{'s' * (report.total != 1)}.")
    if report.workflows:
        rows = [
            (name, f"{purged.success:,}", f"{purged.error:,}", f"{purged.success + purged.error:,}")
            for name, purged in sorted(report.workflows.items())
        ]
        printer.print_table(COLUMNS, rows)
    for model, number in sorted(report.others.items()):
        if number:
            printer.line(f"{said} {number:,} rows of {model}.")
    for models, number in sorted(report.protected.items()):
        printer.line(printer.style.WARNING(f"Kept {number:,}, protected by {printable(models)}:"))
        for label, by in report.protected_instances:
            if by == models:
                printer.line(f"  {label}")
    if sum(report.protected.values()) > len(report.protected_instances):
        printer.line(f"Only the first {len(report.protected_instances)} of those are named.")
    if report.locked:
        printer.line(f"Kept {report.locked:,} with which somebody works just now; the next purge takes them.")

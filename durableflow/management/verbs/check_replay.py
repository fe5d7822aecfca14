"""``manage.py durableflow check-replay``: does this code fit what running instances have recorded? (cases ENG-04, TST-06.)"""

from __future__ import annotations

import sys
import tempfile
from argparse import ArgumentTypeError
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from django.core.management.base import CommandError, CommandParser
from django.db import transaction
from django.db.models import Min

from durableflow.core import registry
from durableflow.core.names import LATEST
from durableflow.core.statuses import ACTIVE, Status
from durableflow.management.choosing import unknown_workflow
from durableflow.management.text import printable
from durableflow.management.verbs.base import Verb
from durableflow.models import WorkflowInstance
from durableflow.models.creation import database
from durableflow.testing.checking import Fit, ReplayReport, add, check
from durableflow.testing.recorded import recorded_run, save

BROKEN, WRONG_USE = 1, 2
DEFAULT_LIMIT: Final = 20


def positive(text: str) -> int:
    """A number of instances from the command line."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"expected a number of at least 1, not {text!r}")
    return int(text)


@dataclass
class Found(ReplayReport):
    """``unknown``: names of workflows that this code has not, with the number of their open instances."""

    unknown: dict[str, int] = field(default_factory=dict)

    @property
    def broken(self) -> bool:
        """Whether something would not go on with this code."""
        return bool(self.breaks or self.unknown)


class CheckReplay(Verb):
    """Before a deploy, with the new code and the database of the old: what would be blocked, and why.

    Reads only, and locks nothing. Exit status 0: all that was checked fits; 1: something breaks; 2: wrong use.
    """

    name = "check-replay"
    help = "Replay recorded runs against this code, and list what would break. Exit status 1: something does."

    @staticmethod
    def add_arguments(parser: CommandParser) -> None:
        """``WORKFLOW``, ``ID``, ``--limit``, ``--status``, ``--save``, ``--json``."""
        parser.add_argument("workflow", nargs="?", help="Only this workflow.")
        parser.add_argument("instance_id", nargs="?", help="Only this instance of it, or 'latest'.")
        parser.add_argument(
            "--limit",
            type=positive,
            default=DEFAULT_LIMIT,
            help=f"The newest so many instances of each workflow (default {DEFAULT_LIMIT}).",
        )
        parser.add_argument(
            "--status",
            action="append",
            choices=[str(status) for status in Status],
            help="Only instances of this status; may be given several times. Default: all that have not ended.",
        )
        parser.add_argument(
            "--save", metavar="DIR", help="Write each checked run into this folder, for replay_check()."
        )
        parser.add_argument("--json", action="store_true", help="Print one JSON object, for programs.")

    def run(self, **options: Any) -> None:
        """Print what was found; leaves by SystemExit unless all fits. CommandError for what does not exist."""
        found = Found(unknown={} if options["instance_id"] else unknown(options["workflow"]))
        folder = None if options["save"] is None else folder_for(options["save"])
        for row in self._rows(**options):
            recorded = recorded_run(row)
            with undone():
                add(found, check(recorded))
            if folder is not None:
                save(recorded, folder)
        printer = self.printer(options)
        printer.document(as_dict(found))
        for line in lines(found):
            printer.line(line)
        if found.broken:
            sys.exit(BROKEN)

    def _rows(self, **options: Any) -> Iterator[WorkflowInstance]:
        name, instance_id = options["workflow"], options["instance_id"]
        cls = registry.find(name) if name else None
        if name and cls is None and not rows_of(name).exists():
            raise unknown_workflow(name)
        if instance_id:
            rows = rows_of(cls or name)
            rows = rows.order_by("-id") if instance_id == LATEST else rows.filter(instance_id=instance_id)
            row = rows.first()
            if row is None:
                raise CommandError(f"The workflow {name!r} has no instance {instance_id!r}.", returncode=WRONG_USE)
            yield row
            return
        statuses = options["status"] or sorted(ACTIVE)
        for each in [cls] if cls is not None else [] if name else [known for _name, known in registry.items()]:
            yield from newest(each, statuses, options["limit"])


def folder_for(path: str) -> Path:
    """The folder for saved runs, made where it is missing. CommandError where that cannot be."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        reason = error.strerror or str(error)
        raise CommandError(f"--save: nothing can be written into {path!r}: {reason}.", returncode=WRONG_USE) from error


def rows_of(workflow: Any) -> Any:
    """Its instances, without what a check does not need."""
    return WorkflowInstance.objects.using(database()).for_workflow(workflow).light()


def newest(workflow: Any, statuses: list[str], limit: int) -> list[WorkflowInstance]:
    """Its newest instances of these statuses. Asked for status by status: each question is answered by an index, however many
    instances have ended."""
    rows = [row for status in statuses for row in rows_of(workflow).filter(status=status).order_by("-id")[:limit]]
    return sorted(rows, key=lambda row: -row.pk)[:limit]


def unknown(workflow: str | None) -> dict[str, int]:
    """Workflows of open instances that no class of this code has, now or by ``Meta.previous_names``."""
    rows = WorkflowInstance.objects.using(database()).active().order_by()
    names = [workflow] if workflow else stored()
    return {
        name: count for name in names if registry.find(name) is None and (count := rows.filter(workflow=name).count())
    }


def stored() -> Iterator[str]:
    """The names under which there are instances: one step through the index for each, however many there are."""
    rows, last = WorkflowInstance.objects.using(database()).order_by(), ""
    while (name := rows.filter(workflow__gt=last).aggregate(first=Min("workflow"))["first"]) is not None:
        yield name
        last = name


@contextmanager
def undone() -> Iterator[None]:
    """Whatever code between the steps writes in the database of durableflow's tables is rolled back."""
    using = database()
    with transaction.atomic(using=using):
        try:
            yield
        finally:
            transaction.set_rollback(True, using=using)


def lines(found: Found) -> Iterator[str]:
    """The report for people."""
    checked = len(found.fits) + len(found.breaks)
    for name, count in found.unknown.items():
        yield f"UNKNOWN {name}: {count} open instance{'s' * (count != 1)}, and no class has this name. Put its code back, or name it in"
        yield "        Meta.previous_names of the class that has followed it."
    for broken in found.breaks:
        yield f"BREAKS  {printable(str(broken))}"
    for fit in found.fits:
        if fit.note:
            yield f"fits    {printable(str(fit))}"
    yield f"{checked} recorded run{'s' * (checked != 1)} checked: {len(found.breaks)} would break, {len(found.fits)} fit."


def as_dict(found: Found) -> dict[str, Any]:
    """The report for programs."""
    return {
        "checked": len(found.fits) + len(found.breaks),
        "broken": [asdict(broken) for broken in found.breaks],
        "fits": [fit_as_dict(fit) for fit in found.fits],
        "unknown": [{"workflow": name, "open": count} for name, count in found.unknown.items()],
    }


def fit_as_dict(fit: Fit) -> dict[str, Any]:
    """One that fits, with what is worth telling of it."""
    return {**asdict(fit), "note": fit.note}

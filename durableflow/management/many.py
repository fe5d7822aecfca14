"""Which rows a verb over many rows means, and the question before it begins."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from django.core.management.base import CommandParser
from django.db.models import Max, Q

from durableflow.core.names import check_instance_id
from durableflow.core.statuses import TRANSITIONS
from durableflow.management.arguments import STDIN, read_stdin
from durableflow.management.choosing import rows_of
from durableflow.management.errors import told, wrong
from durableflow.management.verbs.list import add_filters, narrowed
from durableflow.models.undoing import NOT_UNDONE

MOST_IDS: Final = 10_000
"""Ids that one file may name: each is a value in one query."""
NARROWING: Final = ("status", "since", "until")


def add_many(parser: CommandParser) -> None:
    """``WORKFLOW``, ``INSTANCE_ID`` or what takes its place: ``--all``, ``--failed``, ``--ids-from``; ``--yes``."""
    parser.add_argument("workflow", help="The workflow's name.")
    parser.add_argument("instance_id", nargs="?", help="The instance's id, or 'latest' for the newest one.")
    many = parser.add_argument_group("many instances", "In place of an instance's id; asks before it begins.")
    many.add_argument("--all", action="store_true", help="All of the workflow to which the verb can be applied now.")
    add_filters(many)  # type: ignore[arg-type]
    many.add_argument(
        "--ids-from", metavar="FILE", help="Those that a file names, one id a line or a JSON list; - is stdin."
    )
    many.add_argument(
        "--yes", action="store_true", help="Do not ask. Without a terminal nothing is done unless it is given."
    )


class Many:
    """The rows that the options mean.

    ``rows``: light, none that was created later. ``missing``: ids of a file that name nothing that the user may see.
    """

    def __init__(self, verb: str, options: dict[str, Any], user: Any) -> None:
        self.missing: list[str] = []
        rows = rows_of(options["workflow"], user)
        if options["ids_from"] is not None:
            ids = ids_from(options["ids_from"])
            there = _meant(rows.filter(instance_id__in=ids), options["workflow"])
            self.missing = [each for each in ids if each not in there]
            rows = rows.filter(pk__in=list(there.values()))
        else:
            rows = narrowed(rows, options)
            if not options["status"] and verb in TRANSITIONS:
                possible = Q(status__in=sorted(TRANSITIONS[verb]))
                rows = rows.filter(possible | NOT_UNDONE if verb == "retry" else possible)
        newest = rows.aggregate(newest=Max("pk"))["newest"]
        self.rows = rows.none() if newest is None else rows.filter(pk__lte=newest)

    def count(self) -> int:
        """How many there are."""
        return int(self.rows.count())


def _meant(rows: Any, workflow: str) -> dict[str, int]:
    """Ids with the primary keys that they mean. Where two have one id, under two names of the workflow, as ``with_id`` says: the
    one under the name that was given, else the newer one."""
    found: dict[str, tuple[bool, int]] = {}
    for instance_id, name, pk in rows.values_list("instance_id", "workflow", "pk"):
        found[instance_id] = max((name == workflow, pk), found.get(instance_id, (False, 0)))
    return {instance_id: pk for instance_id, (_, pk) in found.items()}


def is_many(options: dict[str, Any]) -> bool:
    """Whether the options mean many rows and not one. CommandError where they mean both, neither, or something in between."""
    selecting = [name for name in ("all", "failed", "ids_from") if options[name]]
    narrowing = [name for name in NARROWING if options[name]]
    if options["instance_id"] is not None:
        if used := [*selecting, *narrowing]:
            raise wrong(f"An instance's id and {_flags(used)} exclude each other.")
        return False
    if not selecting:
        more = f" {_flags(narrowing)} narrows --all or --failed." if narrowing else ""
        raise wrong(f"Name an instance (an id or 'latest'), or give --all, --failed or --ids-from FILE.{more}")
    if options["ids_from"] is not None and (used := [*(each for each in selecting if each != "ids_from"), *narrowing]):
        raise wrong(f"--ids-from and {_flags(used)} exclude each other.")
    if options["all"] and options["failed"]:
        raise wrong("--all and --failed exclude each other.")
    return True


def _flags(names: list[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)


def ids_from(path: str) -> list[str]:
    """The ids that a file names, each once, in their order. CommandError for what is no id, or for too many."""
    try:
        text = read_stdin() if path == STDIN else Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise wrong(f"--ids-from: {path!r} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise wrong(f"--ids-from: {path!r} is not UTF-8 text.") from error
    found = _ids(text)
    with told():
        ids = list(dict.fromkeys(check_instance_id(each) for each in found))
    if not ids:
        raise wrong(f"--ids-from: {path!r} names no instance.")
    if len(ids) > MOST_IDS:
        raise wrong(f"--ids-from: {path!r} names {len(ids):,} instances; {MOST_IDS:,} at most are possible. Split it.")
    return ids


def _ids(text: str) -> list[Any]:
    if text.lstrip()[:1] != "[":
        return [line.strip() for line in text.splitlines() if line.strip()]
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise wrong(f"--ids-from: neither one id a line nor a JSON list: {error}.") from error
    return list(found)


def confirmed(stderr: Any, question: str, *, yes: bool) -> bool:
    """Whether a person says yes, or said so with ``--yes``. CommandError, status 2, where nobody can be asked."""
    if yes:
        return True
    if not (sys.stdin is not None and sys.stdin.isatty() and stderr.isatty()):
        raise wrong(f"{question} Nothing was done: without a terminal give --yes.")
    stderr.write(f"{question} Go on? [y/N] ", style_func=str, ending="")
    stderr.flush()
    return sys.stdin.readline().strip().casefold() in ("y", "yes")

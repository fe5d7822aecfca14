"""``manage.py durableflow VERB``."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from typing import Any, Final, TextIO

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import Error

from durableflow.core.outages import passes
from durableflow.management.errors import BROKEN_PIPE, INTERRUPTED, UNWRITTEN, WRONG
from durableflow.management.parser import VerbParser
from durableflow.management.tables import require
from durableflow.management.text import printable
from durableflow.management.verbs import VERBS
from durableflow.models.creation import database

EPILOG = "Exit status: 0 done, 1 the answer is no (rows were skipped, an instance failed), 2 refused. See docs/command-line.md."


_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


class Command(BaseCommand):
    """Hands over to a verb; each is a class in ``durableflow.management.verbs``."""

    help = "Works on workflows."

    def __init__(self, stdout: Any = None, stderr: Any = None, **options: Any) -> None:
        """A stream that whoever calls has closed (``>&-``) takes what is written to it, and drops it."""
        stdout = _nowhere() if stdout is None and sys.stdout is None else stdout
        stderr = _nowhere() if stderr is None and sys.stderr is None else stderr
        super().__init__(stdout, stderr, **options)

    def add_arguments(self, parser: CommandParser) -> None:
        """One subcommand per verb."""
        parser.epilog = EPILOG
        verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=VerbParser)
        for verb in VERBS:
            own = verbs.add_parser(verb.name, help=verb.help, description=f"{verb.help} {verb.more}")
            verb.add_arguments(own)
            _add_common(own)

    def handle(self, *, verb: str, **options: Any) -> None:
        """Run the verb that was given."""
        chosen = next(each for each in VERBS if each.name == verb)
        try:
            if chosen.needs_tables:
                require(database(), "durableflow")
            chosen(self.stdout, self.stderr).run(**options)
            self.stdout.flush()
        except Error as error:
            if not passes(error):
                raise
            using = database()
            raise CommandError(
                f"The database {using!r} is away or busy, try again: {printable(error)}", returncode=WRONG
            ) from error
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
        except BrokenPipeError:
            _let_go_of_stdout()
            sys.exit(BROKEN_PIPE)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            _let_go_of_stdout()
            raise CommandError(f"The output cannot be written: {error.strerror}.", returncode=UNWRITTEN) from error


def _add_common(parser: CommandParser) -> None:
    """Django's own options behind the verb too, where people write them. Without defaults: those would undo what stands before
    the verb."""
    common = parser.add_argument_group("options of every command")
    for flag, told in (("--no-color", "No colours."), ("--force-color", "Colours also where there is no terminal.")):
        common.add_argument(flag, action="store_true", default=argparse.SUPPRESS, help=told)
    for flag in ("--settings", "--pythonpath"):
        common.add_argument(flag, default=argparse.SUPPRESS, help="As before the verb.")
    common.add_argument(
        "--traceback", action="store_true", default=argparse.SUPPRESS, help="Errors with their traceback."
    )


def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")


def _let_go_of_stdout() -> None:
    """Who read the output has gone. Python would try to write the rest at its end, and complain."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        return
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, descriptor)
    os.close(nothing)

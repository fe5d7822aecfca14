"""``manage.py durableflow VERB``."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from durableflow.management.verbs import VERBS


class Command(BaseCommand):
    """Hands over to a verb; each is a class in ``durableflow.management.verbs``."""

    help = "Works on workflows."

    def add_arguments(self, parser: CommandParser) -> None:
        """One subcommand per verb."""
        verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
        for verb in VERBS:
            verb.add_arguments(verbs.add_parser(verb.name, help=verb.help, description=verb.help))

    def handle(self, *, verb: str, **options: Any) -> None:
        """Run the verb that was given."""
        chosen = next(each for each in VERBS if each.name == verb)
        chosen(self.stdout).run(**options)

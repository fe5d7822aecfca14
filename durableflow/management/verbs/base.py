"""What a verb of the command line is."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from django.core.management.base import CommandParser, OutputWrapper

from durableflow.management.output import Printer


class Verb(ABC):
    """``manage.py durableflow NAME``. ``help`` is its line in the list of verbs; errors for people are CommandError.

    ``more``: what ``--help`` of the verb says beyond it. ``needs_tables``: it is run on a database that has
    all tables of this code.
    """

    name: ClassVar[str]
    help: ClassVar[str]
    more: ClassVar[str] = ""
    needs_tables: ClassVar[bool] = True

    def __init__(self, stdout: OutputWrapper, stderr: OutputWrapper | None = None) -> None:
        self.stdout = stdout
        self.stderr = OutputWrapper(sys.stderr) if stderr is None else stderr

    @staticmethod
    @abstractmethod
    def add_arguments(parser: CommandParser) -> None:
        """Declare the verb's own arguments."""

    @abstractmethod
    def run(self, **options: Any) -> None:
        """Do it, with the parsed arguments."""

    def printer(self, options: dict[str, Any]) -> Printer:
        """Where it prints, as its options want it."""
        return Printer(self.stdout, self.stderr, options)

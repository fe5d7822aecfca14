"""What a verb of the command line is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from django.core.management.base import CommandParser, OutputWrapper


class Verb(ABC):
    """``manage.py durableflow NAME``. ``help`` is its line in the list of verbs; errors for people are CommandError."""

    name: ClassVar[str]
    help: ClassVar[str]

    def __init__(self, stdout: OutputWrapper) -> None:
        self.stdout = stdout

    @staticmethod
    @abstractmethod
    def add_arguments(parser: CommandParser) -> None:
        """Declare the verb's own arguments."""

    @abstractmethod
    def run(self, **options: Any) -> None:
        """Do it, with the parsed arguments."""

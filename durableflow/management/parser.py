"""How the words of a verb are read."""

from __future__ import annotations

from copy import copy
from typing import Any

from django.core.management.base import CommandParser


class VerbParser(CommandParser):
    """Takes what may be left out (PARAMS, PAYLOAD, an instance) behind options too: ``start checkout --id order-42 '{}'``.

    argparse gives such a word up as soon as an option stands before it (Python below 3.12.7 and 3.13.1). So where words are
    left over, it is asked to read the options first and the words then; where that does not help either, the first answer stands.
    """

    _again = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse, and once more if words are left over."""
        fresh = copy(namespace)
        found, extras = super().parse_known_args(args, namespace)
        if not extras or self._again:
            return found, extras
        self._again = True
        try:
            second, left = self.parse_known_intermixed_args(args, fresh)
        finally:
            self._again = False
        return (found, extras) if left else (second, left)

"""``manage.py durableflow complete-step``: give the result of a step in place of its body."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from durableflow.core.statuses import StepKind, Via
from durableflow.management.arguments import add_actor, add_json, at_least, json_value, storable
from durableflow.management.choosing import add_instance, instance_of, user_of
from durableflow.management.documents import named
from durableflow.management.errors import told
from durableflow.management.text import printable
from durableflow.management.verbs.base import Verb
from durableflow.models.restart import find_step


class CompleteStep(Verb):
    """The same as ``WorkflowInstance.complete_step``. Exit status 0: done; 2: refused, nothing has changed."""

    name = "complete-step"
    help = "Give the result of a step that failed or waits for its retry."
    more = "Its body does not run; what it would have done outside is yours to see to."

    @staticmethod
    def add_arguments(parser: CommandParser) -> None:
        """``WORKFLOW``, ``INSTANCE_ID``, ``STEP``, ``OUTPUT``."""
        add_instance(parser)
        parser.add_argument("step", type=storable, metavar="STEP", help="The step's name.")
        parser.add_argument("output", metavar="OUTPUT", help="Its result as JSON, or - to read it from stdin.")
        parser.add_argument(
            "--count", type=at_least(1), default=1, help="The so many-th step of this name (default 1)."
        )
        parser.add_argument("--scope", type=storable, help="The scope of its branch, as 'show --json' has it.")
        add_actor(parser)
        add_json(parser)

    def run(self, **options: Any) -> None:
        """Do it and tell."""
        user = user_of(options["user"])
        output = json_value(options["output"], "OUTPUT")
        row = instance_of(options["workflow"], options["instance_id"], user=user)
        with told():
            step = find_step(row, options["step"], count=options["count"], kind=StepKind.DO, scope=options["scope"])
            row.complete_step(step, output, by=user, reason=options["reason"], via=Via.CLI)
        printer = self.printer(options)
        printer.document({**named(row), "step": step.label})
        printer.line(f"Completed {printable(step.label)} of {row.label}: it is {row.status} now.")

"""A workflow of one step, and looks at locks, for the tests of the fence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import connection

from durableflow import Step, Workflow, WorkflowEvent
from durableflow.engine.interception import Interceptor
from durableflow.models import WorkflowInstance


class At(Interceptor):
    """Calls a function when a body has returned and nothing is written yet."""

    def __init__(self, function: Callable[[], object]) -> None:
        self.function = function

    def before_checkpoint(self, *_args: Any) -> None:
        self.function()


def one_step() -> type[Workflow[Any, Any]]:
    class OneStep(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            return step.do("a", lambda: "done")

    return OneStep


def state(row: WorkflowInstance) -> tuple[str, Any]:
    row.refresh_from_db()
    return row.status, row.output


def blocked() -> bool:
    """Whether a statement waits for a lock."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database() "
            "AND backend_type = 'client backend'"
        )
        (count,) = cursor.fetchone()
    return bool(count)

"""Endpoints of one instance: running it again, and giving a step its result (reference 11)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from durableflow.api.answers import StartedAnswer
from durableflow.api.base import NO_STEP
from durableflow.api.bodies import CompleteStepBody, RestartBody
from durableflow.api.docs import STEP_ID, documented, responses
from durableflow.api.verbs import VerbView
from durableflow.core.exceptions import InvalidTransition
from durableflow.core.statuses import Via
from durableflow.models import WorkflowInstance
from durableflow.models.audit import refuse
from durableflow.models.permissions import OPERATE, possible, require
from durableflow.models.restart import find_step


class RestartView(VerbView):
    """Run an instance again."""

    verb = "restart"
    body_class = RestartBody

    @documented(
        operation_id="restart_instance",
        tags=["instances"],
        request=RestartBody,
        responses=responses(200, StartedAnswer, 400, 404, 409),
    )
    def post(self, request: Request, workflow: str, instance_id: str) -> Response:
        """From its start, or from a step: what started before that step is kept, the rest runs again, with new
        idempotency keys.

        An ``Idempotency-Key`` is not read: with ``run_number`` a request that comes twice restarts once (409).
        """
        body = self.body(RestartBody)
        row = self.instance(workflow, instance_id)
        who: dict[str, Any] = {"by": request.user, "via": Via.API, "reason": body["reason"]}
        who["expected_run"] = body["run_number"]
        step = body["from_step"]
        if step is None:
            row.restart(**who)
        else:
            checked(row, "restart", request.user, OPERATE)  # run and step are looked at before the verb asks
            if body["run_number"] not in (None, row.run_number):  # whose steps are others
                text = f"restart is not possible: {row.label} is in run {row.run_number}, and run {body['run_number']} was meant."
                raise InvalidTransition(text, status=row.status)
            with named("from_step"):
                row.restart(from_step=find_step(row, step.pop("name"), **step), **who)
        return self.applied(row)


class CompleteStepView(VerbView):
    """Give a step its result."""

    verb = "complete_step"
    body_class = CompleteStepBody

    @documented(
        operation_id="complete_step",
        tags=["instances"],
        parameters=[STEP_ID],
        request=CompleteStepBody,
        responses=responses(200, StartedAnswer, 400, 404, 409, 413),
    )
    def post(self, request: Request, workflow: str, instance_id: str, step_id: int) -> Response:
        """In place of its body, which failed or waits for its next try; the instance goes on with it."""
        body = self.body(CompleteStepBody)
        row = self.instance(workflow, instance_id)
        step = row.steps.filter(pk=step_id).defer("config", "raw_output").first()
        if step is None:
            raise NotFound(NO_STEP)
        with named("step"):
            row.complete_step(step, body["output"], by=request.user, via=Via.API, reason=body["reason"])
        return self.applied(row)


def checked(row: WorkflowInstance, verb: str, user: Any, permission: str) -> None:
    """Ask for right and state before a body is looked at more closely; the verb asks again, under the row's lock. Raises
    PermissionDenied, InvalidTransition."""
    require(user, permission, row, f"{verb} {row.label}")
    if not possible(verb, row):
        raise refuse(row, verb)


@contextmanager
def named(field: str) -> Iterator[None]:
    """A ValueError inside is one of the body's ``field``."""
    try:
        yield
    except ValueError as error:
        raise ValidationError({field: [str(error)]}) from error

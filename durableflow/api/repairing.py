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
from durableflow.api.docs import documented, responses
from durableflow.api.verbs import VerbView
from durableflow.core.exceptions import InvalidTransition
from durableflow.core.statuses import Via
from durableflow.core.transactions import alias_of, write_transaction
from durableflow.models import WorkflowInstance
from durableflow.models.audit import refuse
from durableflow.models.limits import lock_slots_of
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
        idempotency keys."""
        body = self.body(RestartBody)
        row = self.instance(workflow, instance_id)
        who: dict[str, Any] = {"by": request.user, "via": Via.API, "reason": body["reason"]}
        checked(row, "restart", request.user, OPERATE)  # run and step are looked at before the verb asks
        with at_run(row, body["run_number"]):
            if (step := body["from_step"]) is None:
                row.restart(**who)
            else:
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
def at_run(row: WorkflowInstance, number: int | None) -> Iterator[None]:
    """Keep the row locked inside, so that its run is ``number`` still; None: whatever it is. Raises InvalidTransition."""
    if number is None:
        yield
        return
    using = alias_of(row)
    rows = WorkflowInstance.objects.using(using).filter(pk=row.pk)
    with write_transaction(using):
        lock_slots_of(rows)  # before the instance (design 4, "Lock order")
        present = rows.select_for_update(no_key=True).values_list("run_number", "status").first()
        if present is not None and present[0] != number:
            text = f"restart is not possible: {row.label} is in run {present[0]}, not in run {number}."
            raise InvalidTransition(text, status=present[1])
        yield


@contextmanager
def named(field: str) -> Iterator[None]:
    """A ValueError inside is one of the body's ``field``."""
    try:
        yield
    except ValueError as error:
        raise ValidationError({field: [str(error)]}) from error

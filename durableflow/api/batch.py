"""Endpoints: starting and deleting several instances at once (cases BAT-01, SEC-13)."""

from __future__ import annotations

from typing import Any, Final

from django.db import transaction
from django.utils.decorators import method_decorator
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from durableflow.api.base import ApiView
from durableflow.api.batch_answers import BatchAnswer, BatchDeleteAnswer
from durableflow.api.batch_bodies import BatchBody, BatchDeleteBody, BatchRequest
from durableflow.api.bodies import StartBody
from durableflow.api.choosing import by_key, known, left_out, with_ids
from durableflow.api.docs import documented, responses
from durableflow.api.instances import NamesakeView
from durableflow.api.starting import plan_of, startable
from durableflow.core.exceptions import CodecError, LimitExceeded
from durableflow.core.statuses import Status, Via
from durableflow.models import WorkflowInstance
from durableflow.models.creation import NewInstance, check, insert_many
from durableflow.operations import bulk_delete

NO_KEY: Final = "A batch takes no key. Give each entry an instance_id: sent again, the batch starts nothing twice and says which exist."
DETAILS: Final = {
    "exists": "The workflow already has an instance of this id.",
    "repeated": "An earlier entry of this batch has this id.",
}


class BatchView(NamesakeView):
    """Several new instances. An instance may be called ``batch`` as well."""

    @documented(
        operation_id="start_instances",
        tags=["instances"],
        request=BatchRequest,
        responses={200: BatchAnswer, **responses(201, BatchAnswer, 400, 404, 413)},
    )
    def post(self, request: Request, workflow: str, instance_id: str) -> Response:
        """Start 1 to 100: those whose ids are free (201; 200 if there are none).

        If any entry is invalid nothing is started; ``fields`` names it, as in ``instances.3.instance_id``.
        """
        cls = startable(workflow, request.user)
        if self.idempotency_key():
            raise ValidationError({"Idempotency-Key": [NO_KEY]})
        plans = planned(cls, self.body(BatchBody), request.user)
        created, errors = [], []
        for index, (plan, made) in enumerate(zip(plans, insert_many(plans), strict=True)):
            if isinstance(made, WorkflowInstance):
                url = self.url("instance", made.workflow, made.instance_id)
                named = {"workflow": made.workflow, "instance_id": made.instance_id}
                created.append({**named, "status": Status.QUEUED, "url": url})
            else:
                code = str(made)
                errors.append({"index": index, "instance_id": plan.instance_id, "code": code, "detail": DETAILS[code]})
        answer = BatchAnswer({"created": created, "errors": errors})
        return Response(answer.data, status=201 if created else 200)


@method_decorator(transaction.non_atomic_requests, name="dispatch")
class BatchDeleteView(ApiView):
    """Several instances that are no longer wanted."""

    @documented(
        operation_id="delete_instances",
        tags=["instances"],
        request=BatchDeleteBody,
        responses=responses(200, BatchDeleteAnswer, 400, 404, 413),
    )
    def post(self, request: Request, workflow: str) -> Response:
        """Delete 1 to 100, and say which could not be."""
        body = self.body(BatchDeleteBody)
        rows = known(self.visible_instances(workflow), workflow)
        keys, missing = with_ids(rows, workflow, body["instance_ids"])
        report = bulk_delete(by_key(keys), by=request.user, reason=body["reason"], via=Via.API)
        gone = {row.instance_id for row in report.done}
        deleted = [each for each in dict.fromkeys(body["instance_ids"]) if each in gone]
        return Response(BatchDeleteAnswer({"deleted": deleted, "errors": left_out(report, missing)}).data)


def planned(cls: Any, body: dict[str, Any], user: Any) -> list[NewInstance]:
    """What each entry of a batch asks for. Raises ValidationError, which names each that cannot be had."""
    if "instances" not in body:
        count = body.pop("count")
        return [plan(cls, body, user)] * count
    plans: list[NewInstance] = []
    wrong: dict[str, Any] = {}
    for index, data in enumerate(body["instances"]):
        try:
            entry = StartBody(data=data)
            entry.is_valid(raise_exception=True)
            plans.append(plan(cls, dict(entry.validated_data), user))
        except ValidationError as error:
            wrong[f"instances.{index}"] = error.detail
        except LimitExceeded as error:  # of the id; in a list the place is worth more than a status of its own
            wrong[f"instances.{index}.instance_id"] = [str(error)]
    if wrong:
        raise ValidationError(wrong)
    return plans


def plan(cls: Any, body: dict[str, Any], user: Any) -> NewInstance:
    """What one entry asks for. Raises ValidationError where its params cannot be stored, or have no concurrency key."""
    try:
        found = plan_of(cls, user, body)
        check(found)
    except (CodecError, LimitExceeded, ValueError) as error:
        raise ValidationError({"params": [str(error)]}) from error
    return found

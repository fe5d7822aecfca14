"""Endpoints of one instance: reading it."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.utils.decorators import method_decorator
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from durableflow import timeline
from durableflow.api.answers import HistoryAnswer, InstanceAnswer, OutputAnswer, StepAnswer
from durableflow.api.base import ApiView
from durableflow.api.bodies import DeleteQuery, HistoryQuery, WaitQuery
from durableflow.api.docs import STEP_ID, documented, responses
from durableflow.api.filtering import QueryFilter
from durableflow.api.filters import StepFilter
from durableflow.api.paging import InOrder
from durableflow.api.waiting import until_at_rest, until_told
from durableflow.core.statuses import Via
from durableflow.models import StepRecord
from durableflow.models.removal import delete_instance


@method_decorator(transaction.non_atomic_requests, name="dispatch")
class InstanceView(ApiView):
    """One instance."""

    query_class = WaitQuery
    delete_query_class = DeleteQuery

    @documented(
        operation_id="retrieve_instance",
        tags=["instances"],
        parameters=[WaitQuery],
        responses=responses(200, InstanceAnswer, 400, 404),
    )
    def get(self, request: Request, workflow: str, instance_id: str) -> Response:
        """Its state. ``?wait=20`` answers when it is at rest, or after 20 seconds."""
        wait = self.query(WaitQuery)["wait"]
        if wait:
            until_at_rest(self.instance(workflow, instance_id), wait)
        row = self.instance(workflow, instance_id, whole=True)
        veil = timeline.Veil.over(row)
        waits = timeline.open_waits(row)
        context = {
            "view": self,
            "reason": timeline.reason(row, waits=waits, veil=veil),
            "error": timeline.error_of(row, veil),
            "waiting_for": timeline.waiting_for(row, waits),
            "parent": timeline.parent_of(row, request.user),
            "actions": row.available_actions(request.user),
        }
        return Response(InstanceAnswer(row, context=context).data)

    @documented(
        operation_id="delete_instance",
        tags=["instances"],
        parameters=[DeleteQuery],
        responses=responses(204, None, 400, 404, 409),
    )
    def delete(self, request: Request, workflow: str, instance_id: str) -> Response:
        """With all that belongs to it, whatever its status; nothing is undone. Its id is free again."""
        reason = self.query(DeleteQuery)["reason"]
        delete_instance(self.instance(workflow, instance_id), by=request.user, reason=reason, via=Via.API)
        return Response(status=204)


class NamesakeView(InstanceView):
    """What many instances share, at a name that an instance may have as well: GET and DELETE are that instance's (case SEC-14)."""

    @documented(exclude=True)
    def get(self, request: Request, workflow: str, instance_id: str) -> Response:
        """The instance of that name."""
        return super().get(request, workflow, instance_id)

    @documented(exclude=True)
    def delete(self, request: Request, workflow: str, instance_id: str) -> Response:
        """The instance of that name."""
        return super().delete(request, workflow, instance_id)


class StepsView(ApiView):
    """The steps of an instance's present run."""

    pagination_class = InOrder
    filter_backends: Any = (QueryFilter,)
    filterset_class = StepFilter
    serializer_class = StepAnswer
    queryset = StepRecord.objects.none()  # tells the schema what is filtered

    @documented(
        operation_id="list_steps", tags=["instances"], responses=responses(200, StepAnswer(many=True), 400, 404)
    )
    def get(self, request: Request, workflow: str, instance_id: str) -> Response:
        """In the order in which they started, page by page, without their outputs."""
        row = self.instance(workflow, instance_id)
        records = row.steps.filter(run_number=row.run_number).defer("config", "raw_output")
        page: Any = self.paginate_queryset(self.filter_queryset(records))
        views = timeline.steps(row, page, outputs=False)
        children = timeline.children_of(page, request.user)
        context = {"view": self, "workflow": row.workflow, "instance_id": row.instance_id, "children": children}
        return self.get_paginated_response(StepAnswer(views, many=True, context=context).data)


class StepOutputView(ApiView):
    """The output of one step."""

    @documented(
        operation_id="retrieve_step_output",
        tags=["instances"],
        parameters=[STEP_ID],
        responses=responses(200, OutputAnswer, 404),
    )
    def get(self, request: Request, workflow: str, instance_id: str, step_id: int) -> Response:
        """The whole output; of a sensitive step only a mask."""
        step = self.instance(workflow, instance_id).steps.filter(pk=step_id).first()
        if step is None:
            raise NotFound("There is no such step.")
        answer: dict[str, Any] = {name: getattr(step, name) for name in ("id", "label", "status", "sensitive")}
        return Response(OutputAnswer({**answer, "output": timeline.output_of(step)}).data)


@method_decorator(transaction.non_atomic_requests, name="dispatch")
class HistoryView(ApiView):
    """The history of an instance."""

    query_class = HistoryQuery

    @documented(
        operation_id="list_history",
        tags=["instances"],
        parameters=[HistoryQuery],
        responses=responses(200, HistoryAnswer, 400, 404),
    )
    def get(self, request: Request, workflow: str, instance_id: str) -> Response:
        """What happened, oldest first. Nothing that happens later gets an id below the ``cursor`` of an answer.

        ``?after=7&wait=20`` answers as soon as there is an entry after 7, or with none after 20 seconds.
        """
        query = self.query(HistoryQuery)
        row = self.instance(workflow, instance_id)
        if query["wait"]:
            until_told(row, query["after"], query["types"], query["wait"])
            row = self.instance(workflow, instance_id)
        page = timeline.history_page(row, query["after"], query["types"], query["limit"])
        # Of a row that was read before the page: what ended it is on the page, or before it.
        ended = row.is_finished and not page.has_more
        answer = {"results": page.entries, "cursor": page.last_id, "next": None, "ended": ended}
        if page.has_more:
            parameters = request.query_params.copy()
            parameters["after"] = str(page.last_id)
            url = self.url("history", row.workflow, row.instance_id)
            answer["next"] = f"{url}?{parameters.urlencode()}"
        return Response(HistoryAnswer(answer).data)
